//! Paths with other round-trip times, and with jitter.

use crate::support::network::{Network, jittery_path, path_of};
use crate::support::scenario::{FEW_SEEDS, paper_bounds, prague, step_marking};
use crate::support::{mean, ms, percentile};

#[test]
fn short_and_long_round_trips_reach_the_maximum() {
    for delay in [1, 25, 50] {
        let mut media = prague(paper_bounds())(11);
        let class = step_marking(&[(ms(0), 100.0)]);
        let path = path_of(ms(delay));
        Network::new(class, path.clone(), path, 11, vec![&mut media]).run(ms(12_000));
        let reached = media.reached(90.0, 0.0).expect("reaches the maximum");
        let target = mean(&media.targets_between(8.0, 12.0));
        let queue = percentile(media.queue_ms(0.0, 12.0), 0.99);
        println!(
            "round trip {} ms: after {reached:.2} s, then {target:.1} Mb/s, queue p99 {queue:.2} ms",
            2 * delay
        );
        assert!(target >= 85.0);
        assert!(queue <= 4.0);
    }
}

#[test]
fn jitter_slows_the_rise_at_most_a_little() {
    for jitter in [0.5, 3.0] {
        for seed in FEW_SEEDS {
            let mut media = prague(paper_bounds())(seed);
            let class = step_marking(&[(ms(0), 100.0)]);
            let path = jittery_path(jitter);
            Network::new(class, path.clone(), path, seed, vec![&mut media]).run(ms(8000));
            let reached = media.reached(90.0, 0.0).expect("reaches the maximum");
            let lowest = media.lowest_target(5.0, 8.0);
            println!("jitter {jitter} ms, seed {seed}: after {reached:.2} s, lowest {lowest:.1}");
            assert!(reached <= 3.0);
            assert!(lowest >= 80.0);
        }
    }
}
