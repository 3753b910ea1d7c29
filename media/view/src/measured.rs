//! The quality of experience of a viewing, whichever way its frames come.

use hawser_qoe::{Frame, Qoe, Window};
use hawser_units::Instant;
use std::fmt;
use std::time::Duration;

/// The number of newest frames of which the times are summarised: an hour of 30 frames per second.
pub(crate) const SUMMARISED: usize = 108_000;

/// Measures frames until `end`. A stall is defined by the interval of the stream, if that is known.
pub(crate) fn measure(
    frames: &[Frame],
    end: Instant,
    interval: Option<Duration>,
) -> Option<(Duration, Qoe)> {
    let window = Window::new(frames.first()?.decoded, end)?;
    let threshold = hawser_qoe::stall_threshold(interval.unwrap_or_default());
    let qoe = hawser_qoe::measure_with(frames, window, threshold);
    Some((window.duration(), qoe))
}

/// The interval at which a publisher captures frames, from the numbers and capture times of those that
/// arrive.
#[derive(Debug, Default)]
pub(crate) struct CaptureInterval {
    /// The numbers and capture times of the first and the newest frame, in nanoseconds.
    frames: Option<[(u64, u64); 2]>,
}

impl CaptureInterval {
    pub(crate) fn record(&mut self, number: u64, captured_ns: u64) {
        let frame = (number, captured_ns);
        match &mut self.frames {
            Some([_, newest]) if newest.0 < number && newest.1 < captured_ns => *newest = frame,
            // The publisher has restarted, or its clock was set back.
            _ => self.frames = Some([frame; 2]),
        }
    }

    /// Returns the mean interval since the publisher's start.
    pub(crate) fn get(&self) -> Option<Duration> {
        let [first, newest] = self.frames?;
        let (frames, nanos) = (newest.0 - first.0, newest.1 - first.1);
        nanos.checked_div(frames).map(Duration::from_nanos)
    }
}

/// The median delay, in milliseconds, from which on it is a difference of the clocks: no viewer watches video that is so late.
const MAX_DELAY_MS: f64 = 10_000.0;

/// Writes the quality of experience in a duration as the rest of a sentence.
pub(crate) fn write_qoe(f: &mut fmt::Formatter<'_>, duration: Duration, qoe: &Qoe) -> fmt::Result {
    write!(
        f,
        " in {:.1} s: {:.1} fps, {:.1} Mb/s; {}; {} stalls of more than {:.0} ms, {:.1} % of the time",
        duration.as_secs_f64(),
        qoe.fps_mean,
        qoe.throughput_mbps,
        delays([
            qoe.frame_delay_p50_ms,
            qoe.frame_delay_p95_ms,
            qoe.frame_delay_p99_ms,
        ]),
        qoe.stalls,
        qoe.stall_threshold_ms,
        qoe.stall_ratio * 100.0
    )
}

/// Returns whether a median delay is one, and not a difference of the clocks.
pub(crate) fn are_clocks_related(median_ms: Option<f64>) -> bool {
    median_ms.is_some_and(|median| (0.0..MAX_DELAY_MS).contains(&median))
}

/// Describes the delays of frames. Where the clocks of the two machines differ too much, they say nothing about the
/// network.
fn delays(percentiles_ms: [Option<f64>; 3]) -> String {
    let [Some(p50), Some(p95), Some(p99)] = percentiles_ms else {
        return "delay unknown".to_owned();
    };
    if !are_clocks_related(Some(p50)) {
        let difference = match p50.abs() {
            ms if ms < 1e3 => format!("{ms:.1} ms"),
            ms => format!("{:.1} s", ms / 1e3),
        };
        return format!(
            "delay unknown: the clocks of publisher and viewer differ by about {difference}, so synchronize them"
        );
    }
    format!("delay {p50:.1} ms (median), {p95:.1} ms (p95), {p99:.1} ms (p99)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capture_interval_is_known_although_frames_are_lost() {
        let mut interval = CaptureInterval::default();
        assert_eq!(interval.get(), None);
        let record =
            |interval: &mut CaptureInterval, number| interval.record(number, 7 + number * 200);
        record(&mut interval, 4);
        assert_eq!(interval.get(), None, "one frame");
        for number in [5, 9, 30] {
            record(&mut interval, number);
            assert_eq!(interval.get(), Some(Duration::from_nanos(200)));
        }
        record(&mut interval, 0);
        assert_eq!(interval.get(), None, "another publisher");
        record(&mut interval, 1);
        assert_eq!(interval.get(), Some(Duration::from_nanos(200)));
    }

    #[test]
    fn a_difference_of_clocks_is_not_shown_as_a_delay() {
        let with = |median_ms: f64| delays([Some(median_ms); 3]);
        for (median_ms, shown) in [
            (7_200_002.6, "differ by about 7200.0 s"),
            (-3000.0, "about 3.0 s"),
        ] {
            let text = with(median_ms);
            assert!(text.contains(shown) && !text.contains("ms"), "{text}");
        }
        assert!(with(81.5).starts_with("delay 81.5 ms (median)"));
    }
}
