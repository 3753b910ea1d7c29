//! The capacity falls from 100 to 20 Mb/s and returns.

use crate::support::scenario::{SEEDS, paper_bounds, prague, run_alone, step_marking};
use crate::support::{Random, mean, ms, percentile};

#[test]
fn a_fall_to_a_fifth_delays_no_frame_by_200_ms() {
    for seed in SEEDS {
        let falls_at = ms(4000 + (33.0 * Random(seed).next()) as u64);
        let falls = falls_at.as_secs_f64();
        let class = step_marking(&[(ms(0), 100.0), (falls_at, 20.0), (ms(8000), 100.0)]);
        let media = run_alone(prague(paper_bounds()), class, seed, ms(11_000));
        let slowest = percentile(media.frame_ms(3.0, 8.0), 1.0);
        let back = media.reached(90.0, 8.0).expect("returns to 90 Mb/s") - 8.0;
        let low = mean(&media.targets_between(5.0, 8.0));
        let fallen = media.first_target_below(20.0, falls).expect("falls") - falls;
        println!(
            "seed {seed}: below the capacity after {fallen:.3} s, slowest frame {slowest:.0} ms, \
             {} dropped, {} cut; {low:.1} Mb/s; back after {back:.2} s",
            media.skipped, media.truncated
        );
        assert!(slowest <= 200.0);
        assert!(fallen <= 0.1);
        assert!(media.skipped + media.truncated <= 8);
        assert!((16.0..20.0).contains(&low));
        assert!(back <= 2.0);
    }
}
