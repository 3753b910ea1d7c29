//! Quality of experience, computed from a timeline of decoded frames.
//!
//! ```
//! use hawser_qoe::{Frame, Window, measure};
//! use hawser_units::{ByteSize, Instant};
//! use std::time::Duration;
//!
//! // 30 frames a second for two seconds, each 50 ms old when decoded.
//! let at = |index: u64| Instant::from_nanos(index * 1_000_000_000 / 30);
//! let frame = |index| Frame {
//!     captured: at(index),
//!     decoded: at(index) + Duration::from_millis(50),
//!     size: ByteSize(10_000),
//! };
//! let timeline: Vec<Frame> = (0..60).map(frame).collect();
//! let window = Window::new(at(15), at(45)).unwrap();
//!
//! let qoe = measure(&timeline, window);
//!
//! assert_eq!(qoe.fps_mean, 30.0);
//! assert_eq!(qoe.frame_delay_p95_ms, Some(50.0));
//! assert_eq!(qoe.stalls, 0);
//! ```

use hawser_units::{Bitrate, ByteSize, Instant};
use serde::Serialize;
use std::time::Duration;

/// The longest gap between two decoded frames that is not a stall, of streams with 12.5 frames per second
/// or more.
pub const STALL_THRESHOLD: Duration = Duration::from_millis(200);

/// Returns the longest gap between two decoded frames that is not a stall, of a stream with this interval
/// between captures: two and a half intervals, as a slow stream is not stalled between its frames, and at
/// least [`STALL_THRESHOLD`].
pub fn stall_threshold(interval: Duration) -> Duration {
    STALL_THRESHOLD.max(interval.saturating_mul(5) / 2)
}

/// A frame that arrived and was decoded. Both times are from the same clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The capture time at the source.
    pub captured: Instant,
    /// The time at which the viewer had completely decoded the frame.
    pub decoded: Instant,
    /// The encoded size.
    pub size: ByteSize,
}

/// A half-open interval of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    from: Instant,
    to: Instant,
}

impl Window {
    /// Creates the window `[from, to)`, or returns `None` if it is empty.
    pub fn new(from: Instant, to: Instant) -> Option<Self> {
        (from < to).then_some(Window { from, to })
    }

    /// Returns the length of the window.
    pub fn duration(self) -> Duration {
        self.to.saturating_since(self.from)
    }

    /// Returns whether the window contains an instant.
    pub fn contains(self, at: Instant) -> bool {
        self.from <= at && at < self.to
    }
}

/// The quality of experience of a viewer within a window. A frame belongs to the window in which it
/// was decoded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Qoe {
    /// Frames per second over the window.
    pub fps_mean: f64,
    /// Frames per second in each second from the start of the window; the last one may be part of a
    /// second.
    pub fps: Vec<f64>,
    /// Median time from capture to decoding, in ms; `None` without frames.
    pub frame_delay_p50_ms: Option<f64>,
    /// 95th percentile of the same.
    pub frame_delay_p95_ms: Option<f64>,
    /// 99th percentile of the same.
    pub frame_delay_p99_ms: Option<f64>,
    /// Encoded bits of the decoded frames over the window.
    pub throughput_mbps: f64,
    /// The longest gap that is not a stall, in ms.
    pub stall_threshold_ms: f64,
    /// Gaps between consecutive decoded frames above the threshold that reach into the window.
    pub stalls: usize,
    /// Share of the window that lies in stalls.
    pub stall_ratio: f64,
}

/// Measures the part of a timeline within the window. The timeline may be in any order. Longer gaps than
/// [`STALL_THRESHOLD`] are stalls.
pub fn measure(timeline: &[Frame], window: Window) -> Qoe {
    measure_with(timeline, window, STALL_THRESHOLD)
}

/// Measures like [`measure`], where gaps longer than `threshold` are stalls.
pub fn measure_with(timeline: &[Frame], window: Window, threshold: Duration) -> Qoe {
    let mut timeline = timeline.to_vec();
    timeline.sort_by_key(|frame| frame.decoded);
    let frames: Vec<Frame> = timeline
        .iter()
        .copied()
        .filter(|frame| window.contains(frame.decoded))
        .collect();

    let mut delays: Vec<Duration> = frames
        .iter()
        .map(|frame| frame.decoded.saturating_since(frame.captured))
        .collect();
    delays.sort();
    let delay_ms = |share| percentile(&delays, share).map(|delay| delay.as_secs_f64() * 1e3);

    let stalls = stalls(&timeline, window, threshold);
    let stalled: Duration = stalls.iter().sum();
    let size: ByteSize = frames.iter().map(|frame| frame.size).sum();
    Qoe {
        fps_mean: frames.len() as f64 / window.duration().as_secs_f64(),
        fps: fps_by_second(&frames, window),
        frame_delay_p50_ms: delay_ms(0.50),
        frame_delay_p95_ms: delay_ms(0.95),
        frame_delay_p99_ms: delay_ms(0.99),
        throughput_mbps: Bitrate::average(size, window.duration()).mbps(),
        stall_threshold_ms: threshold.as_secs_f64() * 1e3,
        stalls: stalls.len(),
        stall_ratio: stalled.as_nanos() as f64 / window.duration().as_nanos() as f64,
    }
}

fn fps_by_second(frames: &[Frame], window: Window) -> Vec<f64> {
    let length = window.duration().as_secs_f64();
    let mut fps = vec![0.0; length.ceil() as usize];
    for frame in frames {
        fps[frame.decoded.saturating_since(window.from).as_secs() as usize] += 1.0;
    }
    if let Some(last) = fps.last_mut().filter(|_| length.fract() > 0.0) {
        *last /= length.fract();
    }
    fps
}

/// Returns the part of every stall that lies in the window.
///
/// A gap is classified by its full length, even if it starts before the window or ends after it. If
/// the timeline has no frame before or after, the gap extends to the edge of the window.
fn stalls(timeline: &[Frame], window: Window, threshold: Duration) -> Vec<Duration> {
    let first = timeline
        .first()
        .map_or(window.from, |frame| frame.decoded.min(window.from));
    let last = timeline
        .last()
        .map_or(window.to, |frame| frame.decoded.max(window.to));
    let decoded = timeline.iter().map(|frame| frame.decoded);
    let edges: Vec<Instant> = std::iter::once(first)
        .chain(decoded)
        .chain([last])
        .collect();
    let in_window = |gap: &[Instant]| {
        let overlap = gap[1]
            .min(window.to)
            .saturating_since(gap[0].max(window.from));
        (gap[1].saturating_since(gap[0]) > threshold && !overlap.is_zero()).then_some(overlap)
    };
    edges.windows(2).filter_map(in_window).collect()
}

/// Returns the nearest-rank percentile of sorted values: `share` is 0.99 for the 99th. `None` if there
/// are no values.
pub fn percentile<T: Copy>(sorted: &[T], share: f64) -> Option<T> {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn frame(captured: u64, decoded: u64, bytes: u64) -> Frame {
        Frame {
            captured: ms(captured),
            decoded: ms(decoded),
            size: ByteSize(bytes),
        }
    }

    fn window(from: u64, to: u64) -> Window {
        Window::new(ms(from), ms(to)).unwrap()
    }

    #[test]
    fn worked_by_hand() {
        // Window [1000, 3500): frames at 1000, 1100, 1250 | 2600 | 3400; gaps 150 before, then 100,
        // 150, 1350, 800, 100.
        let timeline = [
            frame(800, 850, 9999),
            frame(980, 1000, 1000),
            frame(1070, 1100, 2000),
            frame(1210, 1250, 3000),
            frame(2550, 2600, 4000),
            frame(3340, 3400, 5000),
            frame(3490, 3500, 9999),
        ];

        let qoe = measure(&timeline, window(1000, 3500));

        assert_eq!(qoe.fps_mean, 2.0);
        assert_eq!(
            qoe.fps,
            [3.0, 1.0, 2.0],
            "the last is one frame in half a second"
        );
        assert_eq!(qoe.frame_delay_p50_ms, Some(40.0), "of 20, 30, 40, 50, 60");
        assert_eq!(qoe.frame_delay_p95_ms, Some(60.0));
        assert_eq!(qoe.throughput_mbps, 15_000.0 * 8.0 / 2.5 / 1e6);
        assert_eq!(qoe.stalls, 2);
        assert_eq!(qoe.stall_ratio, 2150.0 / 2500.0);
    }

    #[test]
    fn a_gap_of_exactly_the_threshold_is_no_stall() {
        let at = |second| {
            measure(
                &[frame(0, 0, 1), frame(0, second, 1), frame(0, 1000, 1)],
                window(0, 1000),
            )
            .stalls
        };
        assert_eq!((at(800), at(799)), (1, 2));
    }

    #[test]
    fn stream_is_not_stalled_between_its_own_frames() {
        for (interval_ms, lost) in [(500, 0), (200, 0), (100, 0), (33, 4), (16, 10)] {
            let threshold = stall_threshold(Duration::from_millis(interval_ms));
            let frames = |lost: u64| {
                let missing = move |number: &u64| (10..10 + lost).contains(number);
                let numbers = (0..40).filter(move |number| !missing(number));
                let at =
                    numbers.map(|number| number * interval_ms + number % 2 * (interval_ms / 4));
                at.map(|at| frame(at, at, 1)).collect::<Vec<_>>()
            };
            let stalls = |lost| {
                let window = window(0, 40 * interval_ms);
                measure_with(&frames(lost), window, threshold).stalls
            };
            assert_eq!(stalls(lost), 0, "{interval_ms} ms, {lost} frames lost");
            assert_eq!(stalls(lost + 3), 1, "{interval_ms} ms");
        }
    }

    #[test]
    fn a_stall_across_the_edge_counts_within_the_window() {
        let timeline = [
            frame(0, 0, 1),
            frame(0, 1150, 1),
            frame(0, 1300, 1),
            frame(0, 1450, 1),
        ];
        let qoe = measure(&timeline, window(1000, 1400));
        assert_eq!((qoe.stalls, qoe.stall_ratio), (1, 150.0 / 400.0));
    }

    #[test]
    fn when_frames_stop_the_rest_is_a_stall() {
        let qoe = measure(&[frame(0, 100, 1)], window(0, 1000));
        assert_eq!((qoe.stalls, qoe.stall_ratio), (1, 0.9));

        let nothing = measure(&[], window(0, 1000));
        assert_eq!((nothing.fps_mean, nothing.stall_ratio), (0.0, 1.0));
        assert_eq!(nothing.frame_delay_p95_ms, None);
    }

    #[test]
    fn metrics_have_the_names_used_in_results() {
        let json = serde_json::to_value(measure(&[], window(0, 1000))).unwrap();
        for name in [
            "fps_mean",
            "frame_delay_p50_ms",
            "frame_delay_p95_ms",
            "throughput_mbps",
            "stall_ratio",
        ] {
            assert!(json.get(name).is_some(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn every_figure_stays_within_its_bounds(
            times in prop::collection::vec((0u64..5000, 0u64..500), 0..200), from in 0u64..4000, length in 1u64..3000,
        ) {
            let timeline: Vec<Frame> = times.iter().map(|(at, delay)| frame(*at, at + delay, 100)).collect();

            let qoe = measure(&timeline, window(from, from + length));

            let inside = timeline.iter().filter(|f| (ms(from)..ms(from + length)).contains(&f.decoded)).count();
            let seconds = length as f64 / 1e3;
            prop_assert!((qoe.fps_mean * seconds - inside as f64).abs() < 1e-6);
            let last = if seconds.fract() > 0.0 { seconds.fract() } else { 1.0 };
            let (tail, whole) = qoe.fps.split_last().unwrap();
            prop_assert!((whole.iter().sum::<f64>() + tail * last - inside as f64).abs() < 1e-6);
            prop_assert!((0.0..=1.0).contains(&qoe.stall_ratio));
            prop_assert_eq!(qoe.stalls == 0, qoe.stall_ratio == 0.0);
            prop_assert!(qoe.frame_delay_p50_ms <= qoe.frame_delay_p95_ms);
            prop_assert!(qoe.frame_delay_p95_ms <= qoe.frame_delay_p99_ms);
            prop_assert_eq!(qoe.frame_delay_p50_ms.is_some(), inside > 0);
        }

        #[test]
        fn the_order_of_the_timeline_does_not_matter(times in prop::collection::vec(0u64..5000, 1..50)) {
            let timeline: Vec<Frame> = times.iter().map(|at| frame(*at, at + 20, 100)).collect();
            let backwards: Vec<Frame> = timeline.iter().rev().copied().collect();
            prop_assert_eq!(measure(&timeline, window(500, 4000)), measure(&backwards, window(500, 4000)));
        }
    }
}
