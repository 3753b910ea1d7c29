//! Losses that are congestion, and losses that are not.

use crate::support::bottleneck::{Bottleneck, Marking};
use crate::support::media::Media;
use crate::support::network::{Network, lossy_path, path};
use crate::support::scenario::{FEW_SEEDS, SEEDS, paper_bounds, prague, run_alone, step_marking};
use crate::support::{mean, ms};
use hawser_congestion::Prague;
use hawser_netem::{Delay, LinkConfig, Loss, Steps};
use hawser_units::ByteSize;
use std::num::NonZeroU32;
use std::time::Duration;

/// Sends for 20 s over a path that loses packets.
fn run_lossy(class: Bottleneck, path_out: LinkConfig, seed: u64) -> Media<Prague> {
    let mut media = prague(paper_bounds())(seed);
    Network::new(class, path_out, path(), seed, vec![&mut media]).run(ms(20_000));
    media
}

/// A path that loses this share from 5 s on.
fn losing(share: f64) -> LinkConfig {
    lossy_path(&[(0.0, 0.0), (5.0, share)])
}

/// The same with this delay.
fn losing_after(share: f64, delay: Duration) -> LinkConfig {
    LinkConfig {
        delay: Delay::Constant(delay),
        ..losing(share)
    }
}

fn unmarking(mbps: f64, queue: u64) -> Bottleneck {
    Bottleneck::new(&[(ms(0), mbps)], Marking::Never, ByteSize(queue))
}

#[test]
fn random_loss_is_tolerated_where_the_bottleneck_marks() {
    for seed in FEW_SEEDS {
        for share in [0.0005, 0.001, 0.01, 0.03, 0.1] {
            let media = run_lossy(step_marking(&[(ms(0), 100.0)]), losing(share), seed);
            let rates =
                [(5.0, 8.0), (10.0, 20.0)].map(|(from, to)| mean(&media.targets_between(from, to)));
            println!(
                "seed {seed}: {rates:.1?} Mb/s at {:.2} % loss",
                100.0 * share
            );
            // A share that appears suddenly may be congestion in the first seconds.
            assert!(rates[0] > 50.0 && rates[1] > 85.0);
        }
    }
}

#[test]
fn without_marks_random_loss_is_answered_for_some_seconds() {
    for seed in SEEDS {
        let media = run_lossy(unmarking(100.0, 200_000), losing(0.01), seed);
        let rates =
            [(6.0, 8.0), (12.0, 20.0)].map(|(from, to)| mean(&media.targets_between(from, to)));
        println!("seed {seed}: {rates:.1?} Mb/s");
        // Reno's rate at a round trip of 25 ms and 1500 bytes is 5.9 Mb/s, the lowest 12.5.
        assert!((12.5..=20.0).contains(&rates[0]));
        assert!(rates[1] > 80.0);
    }
}

#[test]
fn losses_in_bursts_are_tolerated_too() {
    for seed in SEEDS {
        let steps = [(ms(0), 0.0), (ms(5_000), 0.01)];
        let steps = steps.map(|(from, share)| (from, share.try_into().unwrap()));
        let bursts = LinkConfig {
            loss: Some(Loss::Bursts {
                steps: Steps::new(steps.to_vec()).unwrap(),
                mean_packets: NonZeroU32::new(8).unwrap(),
            }),
            ..path()
        };
        let media = run_lossy(step_marking(&[(ms(0), 100.0)]), bursts, seed);
        let rate = mean(&media.targets_between(8.0, 20.0));
        println!("seed {seed}: {rate:.1} Mb/s");
        assert!(rate > 80.0);
    }
}

#[test]
fn losses_of_a_full_queue_are_congestion_also_on_a_lossy_path() {
    for seed in SEEDS {
        let media = run_lossy(unmarking(60.0, 75_000), losing(0.01), seed);
        let stats = media.control.stats();
        let rate = mean(&media.targets_between(12.0, 20.0));
        println!("seed {seed}: {rate:.1} of 60 Mb/s, {stats:?}");
        assert!(rate < 55.0 && stats.halvings > 20);
    }
}

#[test]
fn a_policer_that_delays_nothing_is_not_overrun() {
    for seed in FEW_SEEDS {
        for (policed, share, delay) in [
            (40.0, 0.0, 10),
            (40.0, 0.01, 10),
            (70.0, 0.01, 40),
            (20.0, 0.0, 10),
            (10.0, 0.0, 10),
        ] {
            // Two packets: they wait for half a millisecond.
            let path_out = losing_after(share, ms(delay));
            let mut media = prague(paper_bounds())(seed);
            let class = unmarking(policed, 2_400);
            Network::new(class, path_out, path(), seed, vec![&mut media]).run(ms(60_000));
            let rate = mean(&media.targets_between(10.0, 60.0));
            let sent = media.sent_between(10.0, 60.0) as f64 * 1200.0 * 8e-6 / 50.0;
            let received = media.mbps(10.0, 60.0);
            println!(
                "seed {seed}: target {rate:.1}, sent {sent:.1}, received {received:.1} of {policed} Mb/s"
            );
            // Below the lowest rate, 12.5 Mb/s, nothing is reduced.
            let lowest = (1.0 - policed / 12.5).max(0.0);
            assert!(1.0 - received / sent < share + lowest + 0.06);
        }
    }
}

#[test]
fn a_full_queue_without_marks_is_left_by_half() {
    for seed in FEW_SEEDS {
        // Half a bandwidth-delay product.
        let media = run_alone(
            prague(paper_bounds()),
            unmarking(60.0, 75_000),
            seed,
            ms(12_000),
        );
        let stats = media.control.stats();
        let rate = mean(&media.targets_between(4.0, 12.0));
        println!(
            "seed {seed}: {rate:.1} of 60 Mb/s, {} halvings",
            stats.halvings
        );
        assert!(stats.halvings > 0);
        assert!(rate >= 30.0);
    }
}
