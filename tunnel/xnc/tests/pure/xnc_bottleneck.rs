//! Paths with a bottleneck: rates, queues that build up, adaptive windows, loss and reordering.

use crate::configs::configs;
use crate::network::{MS, Network, Pipe, path};
use hawser_units::Instant;
use hawser_xnc::experiment::{Experiment, RecoveryMethod};
use hawser_xnc::{Config, Hint};
use std::collections::BTreeSet;
use std::time::Duration;

/// The bytes per millisecond of a path of 1 Mb/s.
const MBPS: u64 = 125;

/// The seeds of the paths' random number generators.
const SEEDS: std::ops::Range<u64> = 0..4;

fn network(pipes: Vec<Pipe>) -> Network {
    Network::new(Config::default(), pipes)
}

/// Sends packets of a flow that always has data to send, until `time` has passed.
fn upload(network: &mut Network, time: Duration) {
    let end = network.now + time;
    while network.now < end {
        while network.ends[0].waiting() < 200 {
            network.send(Hint::default(), 1200);
        }
        network.run_for(MS);
    }
}

/// Returns the share of the packets from number `first` on that arrived.
fn delivered(network: &Network, first: u64) -> f64 {
    let arrived: BTreeSet<u64> = network.numbers().into_iter().collect();
    arrived.range(first..).count() as f64 / (network.sent - first) as f64
}

/// Returns the megabits per second that arrived from `since` on.
fn goodput(network: &Network, since: Instant) -> f64 {
    let arrived = network.received.iter().filter(|(at, _)| *at >= since);
    let bytes: usize = arrived.map(|(_, packet)| packet.bytes.len()).sum();
    bytes as f64 * 8e-6 / network.now.saturating_since(since).as_secs_f64()
}

#[test]
fn windows_are_respected() {
    for config in configs() {
        for seed in SEEDS {
            let lossy = Pipe {
                loss: 0.03,
                overtaken: 5,
                max_queue: 60_000,
                ..Pipe::bottleneck(15 * MS, 12, seed)
            };
            let fixed = Pipe::new(40 * MS, 30_000);
            let mut network = Network::new(config.clone(), vec![lossy, fixed]);
            network.stream(500 * MS, 30);
            network.pipes.get_mut(&path(0)).unwrap().rate = Some(MBPS * 1000);
            network.pipes.get_mut(&path(1)).unwrap().window = 4_000;
            network.stream(500 * MS, 30);
            for pipe in network.pipes.values() {
                let counts = pipe.counts();
                assert_eq!(
                    counts.beyond_window, 0,
                    "{:?}, seed {seed}",
                    config.experiment.recovery
                );
            }
            let sent = network.ends[0].stats().sender.paths;
            assert!(sent[0].first > 100, "{:?}", sent[0]);
        }
    }
}

#[test]
fn the_queue_of_a_bottleneck_is_bounded() {
    // A window of 0.8 s, and no limit of the queue.
    let window = 10 * MBPS * 800;
    let pipe = Pipe {
        adapts: false,
        window,
        ..Pipe::bottleneck(20 * MS, 10, 0)
    };
    let mut network = network(vec![pipe]);
    upload(&mut network, 3000 * MS);
    network.pipes.get_mut(&path(0)).unwrap().reset_counts();
    let since = network.now;
    upload(&mut network, 3000 * MS);
    let goodput = goodput(&network, since);
    assert!(goodput > 8.5, "{goodput} of 10 Mb/s");
    // A queue that drains within 40 ms is allowed. Packets sent in one millisecond are extra.
    let queue = network.pipes[&path(0)].counts().longest_queue;
    assert!(queue <= 10 * MBPS * 70, "{queue} bytes");
}

#[test]
fn losses_behind_a_queue_are_recovered() {
    for coded in [true, false] {
        for seed in SEEDS {
            let pipes = [10, 25].map(|delay| Pipe {
                loss: 0.02,
                adapts: false,
                window: 60_000,
                ..Pipe::bottleneck(delay * MS, 10, seed)
            });
            let config = Config {
                experiment: Experiment {
                    recovery: RecoveryMethod::OneShot { coded },
                    ..Experiment::default()
                },
                ..Config::default()
            };
            let mut network = Network::new(config, pipes.into());
            // 9.6 Mb/s, with a queue after each frame.
            network.stream(3000 * MS, 33);
            network.run_for(1000 * MS);
            let sender = network.ends[0].stats().sender;
            let queue = network.pipes[&path(0)].counts().longest_queue;
            assert!(queue > 10_000, "{queue} bytes");
            assert!(sender.lost > 20, "coded {coded}, seed {seed}: {sender:?}");
            let share = delivered(&network, 0);
            assert!(share > 0.999, "coded {coded}, seed {seed}: {share}");
            assert_eq!(sender.given_up + sender.delivered, sender.packets);
        }
    }
}

#[test]
fn drops_of_a_full_queue_are_recovered_over_the_other_path() {
    for seed in SEEDS {
        let short = Pipe {
            adapts: false,
            window: 100_000,
            max_queue: 8_000,
            ..Pipe::bottleneck(10 * MS, 8, seed)
        };
        let mut network = network(vec![short, Pipe::new(30 * MS, 200_000)]);
        network.stream(2000 * MS, 20);
        network.run_for(1000 * MS);
        let counts = network.pipes[&path(0)].counts();
        assert!(counts.dropped > 10, "seed {seed}: {counts:?}");
        assert!(counts.longest_queue <= 8_000, "seed {seed}: {counts:?}");
        let share = delivered(&network, 0);
        assert!(share > 0.999, "seed {seed}: {share}");
    }
}

#[test]
fn reordering_below_the_threshold_is_not_taken_for_loss() {
    // The bottleneck takes a millisecond for a packet. Before the first acknowledgements, the time
    // that the path takes is not known.
    let run = |overtaken: usize, seed: u64| {
        let pipe = Pipe {
            adapts: false,
            window: 200_000,
            overtaken,
            ..Pipe::bottleneck(50 * MS, 10, seed)
        };
        let mut network = network(vec![pipe]);
        network.stream(1000 * MS, 12);
        network.pipes.get_mut(&path(0)).unwrap().reset_counts();
        let before = network.ends[0].stats().sender;
        network.stream(3000 * MS, 12);
        network.run_for(500 * MS);
        assert_eq!(delivered(&network, 0), 1.0);
        let overtook = network.pipes[&path(0)].counts().overtook;
        assert!(overtook > 20, "{overtook}");
        let after = network.ends[0].stats().sender;
        [after.lost - before.lost, after.spurious - before.spurious]
    };
    for seed in SEEDS {
        assert_eq!(run(2, seed), [0, 0], "seed {seed}");
        let [lost, spurious] = run(8, seed);
        assert!(lost > 10, "seed {seed}: {lost} beyond the threshold");
        assert!(spurious >= lost, "seed {seed}: {spurious} of {lost}");
    }
}

#[test]
fn unlike_paths_share_what_one_cannot_carry() {
    for seed in SEEDS {
        let pipes = [(10, 12), (60, 6)].map(|(delay, mbps)| Pipe {
            adapts: false,
            window: 100_000,
            ..Pipe::bottleneck(delay * MS, mbps, seed)
        });
        let mut network = network(pipes.into());
        // 14.5 Mb/s of 18.
        network.stream(1000 * MS, 50);
        let (first, since) = (network.sent, network.now);
        network.stream(3000 * MS, 50);
        network.run_for(300 * MS);
        let share = delivered(&network, first);
        assert!(share > 0.999, "seed {seed}: {share}");
        let paths = network.ends[0].stats().sender.paths;
        let slow = paths[1].first as f64 / paths[0].first as f64;
        assert!((0.1..0.6).contains(&slow), "seed {seed}: {slow}");
        let goodput = goodput(&network, since);
        assert!(goodput > 12.5, "seed {seed}: {goodput}");
    }
}

#[test]
fn a_path_whose_rate_collapses_is_relieved() {
    for seed in SEEDS {
        let pipes = [15, 30].map(|delay| Pipe::bottleneck(delay * MS, 20, seed));
        let mut network = network(pipes.into());
        network.stream(2000 * MS, 35);
        let collapsing = network.pipes.get_mut(&path(0)).unwrap();
        collapsing.rate = Some(2 * MBPS * 1000);
        let first = network.sent;
        // A second in which the queue drains.
        network.stream(1000 * MS, 35);
        let settled = network.sent;
        network.pipes.get_mut(&path(0)).unwrap().reset_counts();
        network.stream(2000 * MS, 35);
        network.run_for(500 * MS);

        let shares = [first, settled].map(|from| delivered(&network, from));
        assert!(shares[0] > 0.97, "seed {seed}: {shares:?}");
        assert!(shares[1] > 0.995, "seed {seed}: {shares:?}");
        let queue = network.pipes[&path(0)].counts().longest_queue;
        assert!(queue < 2 * MBPS * 100, "seed {seed}: {queue} bytes");
    }
}

#[test]
fn the_same_seeds_give_the_same_session() {
    let run = || {
        let pipe = Pipe {
            loss: 0.05,
            overtaken: 4,
            ..Pipe::bottleneck(20 * MS, 10, 7)
        };
        let mut network = network(vec![pipe, Pipe::bottleneck(30 * MS, 5, 8)]);
        network.stream(1000 * MS, 40);
        (network.ends[0].stats(), network.numbers())
    };
    assert_eq!(run(), run());
}
