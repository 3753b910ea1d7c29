//! Feedback that does not arrive.

use crate::support::ms;
use crate::support::network::{Network, path, path_with_cut};
use crate::support::scenario::{FEW_SEEDS, SEEDS, paper_bounds, prague, step_marking};

#[test]
fn silence_of_a_second_brings_the_minimum_and_the_rate_returns() {
    for seed in SEEDS {
        let mut media = prague(paper_bounds())(seed);
        let class = step_marking(&[(ms(0), 100.0)]);
        let reverse = path_with_cut(5000, 6000);
        Network::new(class, path(), reverse, seed, vec![&mut media]).run(ms(9000));
        let back = media.reached(90.0, 6.0).expect("returns") - 6.0;
        let lowest = media.lowest_target(5.0, 6.0);
        println!("seed {seed}: lowest {lowest:.1} Mb/s, 90 Mb/s again after {back:.2} s");
        assert_eq!(lowest, 12.5);
        assert_eq!(media.control.stats().stops, 0);
        assert!(back <= 3.0);
    }
}

#[test]
fn a_path_that_is_gone_for_5_s_is_probed_and_used_again() {
    for seed in FEW_SEEDS {
        let mut media = prague(paper_bounds())(seed);
        let class = step_marking(&[(ms(0), 100.0)]);
        let forward = path_with_cut(5000, 10_000);
        Network::new(class, forward, path(), seed, vec![&mut media]).run(ms(13_000));
        let sent = media.sent_between(8.0, 10.0);
        let back = media.reached(90.0, 10.0).expect("returns") - 10.0;
        println!("seed {seed}: {sent} packets in 2 s, 90 Mb/s again after {back:.2} s");
        assert_eq!(media.control.stats().stops, 1);
        assert!((1..=5).contains(&sent));
        assert!(back <= 3.5);
    }
}
