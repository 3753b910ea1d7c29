//! Random loss.

use crate::support::bottleneck::{Bottleneck, Marking};
use crate::support::network::{Network, lossy_path, path};
use crate::support::scenario::{FEW_SEEDS, paper_bounds, prague, run_alone, step_marking};
use crate::support::{mean, ms};
use hawser_units::ByteSize;

/// Loses a share of the packets between 5 and 15 s, and returns the mean target from 8 s on.
fn target_at_loss(probability: f64, seed: u64) -> f64 {
    let mut media = prague(paper_bounds())(seed);
    let class = step_marking(&[(ms(0), 100.0)]);
    let path_out = lossy_path(&[(0.0, 0.0), (5.0, probability)]);
    Network::new(class, path_out, path(), seed, vec![&mut media]).run(ms(15_000));
    assert!(media.control.stats().halvings > 0);
    mean(&media.targets_between(8.0, 15.0))
}

#[test]
fn random_loss_is_answered_as_reno_would_above_the_minimum() {
    for seed in FEW_SEEDS {
        let rates = [0.01, 0.0005].map(|probability| target_at_loss(probability, seed));
        println!(
            "seed {seed}: {:.1} Mb/s at 1 % loss, {:.1} at 0.05 %",
            rates[0], rates[1]
        );
        // Reno's rate at a round trip of 25 ms and 1500 bytes is 5.9 and 26 Mb/s.
        assert!((12.5..=20.0).contains(&rates[0]));
        assert!((18.0..=60.0).contains(&rates[1]));
    }
}

#[test]
fn a_full_queue_without_marks_is_left_by_half() {
    for seed in FEW_SEEDS {
        // Half a bandwidth-delay product.
        let queue = Bottleneck::new(&[(ms(0), 60.0)], Marking::Never, ByteSize(75_000));
        let media = run_alone(prague(paper_bounds()), queue, seed, ms(12_000));
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
