//! Phases in which the encoder produces less than the target.

use crate::support::scenario::{FEW_SEEDS, SEEDS, paper_bounds, prague, run_alone, step_marking};
use crate::support::{mean, ms, percentile};

#[test]
fn a_quiet_phase_neither_grows_nor_collapses_the_estimate() {
    for seed in SEEDS {
        let mut media = prague(paper_bounds())(seed);
        // From 0.6 s on, while the target still rises, a tenth of the target for 5 s.
        media.demand = |at| if (0.6..5.6).contains(&at) { 0.1 } else { 1.0 };
        let class = step_marking(&[(ms(0), 100.0)]);
        let media = run_alone(|_| media, class, seed, ms(8000));
        let (before, after) = (
            mean(&media.targets_between(0.6, 0.75)),
            mean(&media.targets_between(5.4, 5.6)),
        );
        let reached = media.reached(90.0, 5.6).expect("rises again") - 5.6;
        println!(
            "seed {seed}: {before:.1} before, {after:.1} Mb/s after; 90 Mb/s {reached:.2} s later"
        );
        assert!(before < 60.0);
        assert!((0.95..=1.1).contains(&(after / before)));
        assert!(reached <= 3.0);
    }
}

#[test]
fn demand_that_returns_meets_an_empty_queue() {
    for seed in FEW_SEEDS {
        let mut media = prague(paper_bounds())(seed);
        media.demand = |at| if at > 4.0 && at % 2.0 < 1.0 { 0.3 } else { 1.0 };
        let class = step_marking(&[(ms(0), 100.0)]);
        let media = run_alone(|_| media, class, seed, ms(10_000));
        let queue = percentile(media.queue_ms(4.0, 10.0), 0.99);
        let lowest = media.lowest_target(4.0, 10.0);
        println!("seed {seed}: queue p99 {queue:.2} ms, lowest target {lowest:.1} Mb/s");
        assert!(queue <= 1.0);
        assert!(lowest >= 80.0);
    }
}
