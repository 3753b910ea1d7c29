//! The capacity falls from 100 to 20 Mb/s and returns.

use crate::support::scenario::{SEEDS, paper_bounds, prague, run_alone, step_marking};
use crate::support::{Random, mean, ms, percentile};

#[test]
fn a_fall_to_a_fifth_delays_no_frame_by_200_ms_and_the_return_takes_2_s() {
    for seed in SEEDS {
        let falls_at = ms(10_000 + (33.0 * Random(seed).next()) as u64);
        let class = step_marking(&[(ms(0), 100.0), (falls_at, 20.0), (ms(15_000), 100.0)]);
        let media = run_alone(prague(paper_bounds()), class, seed, ms(20_000));
        let slowest = percentile(media.frame_ms(9.0, 15.0), 1.0);
        let back = media.reached(90.0, 15.0).expect("returns to 90 Mb/s") - 15.0;
        let low = mean(&media.targets_between(11.0, 15.0));
        let queue = percentile(media.queue_ms(11.0, 15.0), 0.99);
        println!(
            "seed {seed}: slowest frame {slowest:.0} ms, {} dropped, {} cut; {low:.1} Mb/s, queue p99 {queue:.2} ms; back after {back:.2} s",
            media.skipped, media.truncated
        );
        assert!(slowest <= 200.0);
        assert!(media.skipped + media.truncated <= 8);
        assert!((15.0..20.0).contains(&low));
        assert!(back <= 2.0);
    }
}

#[test]
fn the_rate_falls_within_some_round_trips() {
    for seed in SEEDS {
        let class = step_marking(&[(ms(0), 100.0), (ms(10_000), 20.0)]);
        let media = run_alone(prague(paper_bounds()), class, seed, ms(11_000));
        let fallen = media
            .targets
            .iter()
            .find(|(at, mbps)| *at > 10.0 && *mbps <= 20.0);
        let after = (fallen.expect("falls to the capacity").0 - 10.0) * 1e3;
        println!("seed {seed}: at the capacity after {after:.0} ms");
        assert!(after <= 100.0);
    }
}
