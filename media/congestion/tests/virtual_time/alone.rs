//! A media flow alone in a class of 100 Mb/s.

use crate::support::bottleneck::Bottleneck;
use crate::support::scenario::{FEW_SEEDS, SEEDS, paper_bounds, prague, run_alone, step_marking};
use crate::support::{mean, ms, percentile};
use hawser_congestion::{Bounds, Prague, PragueConfig, Spread};
use hawser_units::Bitrate;

fn class(mbps: f64) -> Bottleneck {
    step_marking(&[(ms(0), mbps)])
}

#[test]
fn the_target_rises_from_12_5_to_90_within_3_s() {
    for seed in SEEDS {
        let media = run_alone(prague(paper_bounds()), class(100.0), seed, ms(3000));
        let reached = media.reached(90.0, 0.0).expect("reaches 90 Mb/s");
        let queue = percentile(media.queue_ms(0.0, 3.0), 1.0);
        println!("seed {seed}: 90 Mb/s after {reached:.2} s, highest queue {queue:.2} ms");

        assert_eq!(media.targets[0].1, 12.5);
        assert!(reached <= 3.0);
        assert!(queue <= 3.0);
    }
}

#[test]
fn the_plateau_is_nine_tenths_with_a_queue_below_1_ms() {
    for seed in SEEDS {
        let media = run_alone(prague(paper_bounds()), class(100.0), seed, ms(12_000));
        let plateau = mean(&media.targets_between(4.0, 12.0));
        let rate = media.mbps(4.0, 12.0);
        let queue = percentile(media.queue_ms(0.0, 12.0), 0.99);
        let transport = percentile(media.transport_ms(4.0, 11.0), 0.99);
        let excess = percentile(media.excess_ms(4.0, 11.0), 0.99);
        println!(
            "seed {seed}: target {plateau:.1}, received {rate:.1} Mb/s, queue p99 {queue:.2} ms"
        );
        println!("  transport p99 {transport:.1} ms, beyond the pacing {excess:.2} ms");

        assert!(plateau >= 90.0);
        assert!(rate >= 0.95 * plateau);
        assert!(queue <= 1.0);
        assert!(excess <= 10.0 + 2.0);
        assert_eq!(media.skipped, 0);
    }
}

#[test]
fn frames_near_the_target_leave_in_the_frame_interval() {
    for seed in FEW_SEEDS {
        let mut media = prague(paper_bounds())(seed);
        media.variation = 0.05;
        let media = run_alone(|_| media, class(100.0), seed, ms(9000));
        let transport = percentile(media.transport_ms(3.0, 8.0), 0.99);
        println!("seed {seed}: transport p99 {transport:.1} ms");
        assert!(transport <= 33.4 + 10.0 + 2.0);
    }
}

#[test]
fn at_half_of_the_link_frames_leave_in_half_of_the_time() {
    let half = Bounds::new(
        Bitrate::from_mbps(12.5),
        Bitrate::from_mbps(12.5),
        Bitrate::from_mbps(50.0),
    );
    for seed in FEW_SEEDS {
        let media = run_alone(prague(half), class(100.0), seed, ms(9000));
        let frame = percentile(media.frame_ms(4.0, 8.0), 0.99);
        let queue = percentile(media.queue_ms(0.0, 9.0), 0.99);
        println!("seed {seed}: capture to completeness p99 {frame:.1} ms, queue p99 {queue:.2} ms");
        // 35 ms less encoding and decoding, which overlap with sending.
        assert!(frame <= 35.0);
        assert!(queue <= 1.0);
    }
}

#[test]
fn a_class_below_the_maximum_is_used_to_85_percent() {
    let mut marks_at_lower_rate = 0;
    let wide = Bounds::new(
        Bitrate::from_mbps(12.5),
        Bitrate::from_mbps(12.5),
        Bitrate::from_mbps(400.0),
    );
    for mbps in [30.0, 100.0, 200.0] {
        let media = run_alone(prague(wide), class(mbps), 11, ms(10_000));
        let share = mean(&media.targets_between(4.0, 10.0)) / mbps;
        let queue = percentile(media.queue_ms(4.0, 10.0), 0.99);
        let marks = media.marked;
        println!("{mbps} Mb/s: {share:.3} of the class, queue p99 {queue:.2} ms, {marks} marks");
        assert!(share >= 0.85);
        // Scalable: the time between marks does not grow with the rate (RFC 9331, section 4.3).
        assert!(marks >= marks_at_lower_rate);
        marks_at_lower_rate = marks;
        assert!(queue <= 3.0);
    }
}

#[test]
fn an_interval_of_20_ms_sends_a_frame_in_20_ms() {
    let media = run_alone(
        |seed| {
            let control = Prague::new(PragueConfig::default(), hawser_units::Instant::ZERO);
            crate::support::media::Media::new(0, control, Spread::Interval(ms(20)), seed)
        },
        class(200.0),
        1,
        ms(5000),
    );
    let transport = media.transport_ms(3.0, 4.5);
    let (median, highest) = (
        percentile(transport.clone(), 0.5),
        percentile(transport, 1.0),
    );
    println!("transport median {median:.2}, highest {highest:.2} ms");
    assert!((29.0..=30.5).contains(&median) && highest <= 31.0);
}
