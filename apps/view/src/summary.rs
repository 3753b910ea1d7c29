use crate::Drawn;
use hawser_qoe::{Frame, Qoe, Window};
use hawser_units::Instant;
use std::fmt;
use std::time::Duration;

/// The measurements of a viewer.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Number of frames that were received and decoded.
    pub frames: u64,
    /// Number of frames whose points differ from the captured ones.
    pub frames_damaged: u64,
    /// Number of times that the publisher violated the protocol.
    pub protocol_errors: u64,
    /// Number of connections that were made, including reconnections.
    pub connections: u64,
    /// The duration from the first frame to the end, or the last hour of it, and the quality of
    /// experience in it. `None` without frames.
    pub qoe: Option<(Duration, Qoe)>,
    /// The pictures of the frames. `None` if none were requested.
    pub pictures: Option<Drawn>,
}

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

/// Writes the quality of experience in a duration as the rest of a sentence.
pub(crate) fn write_qoe(f: &mut fmt::Formatter<'_>, duration: Duration, qoe: &Qoe) -> fmt::Result {
    let delay = |delay: Option<f64>| delay.unwrap_or(f64::NAN);
    write!(
        f,
        " in {:.1} s: {:.1} fps, {:.1} Mb/s; delay {:.1} ms (median), {:.1} ms (p95), {:.1} ms (p99); {} stalls of more than {:.0} ms, {:.1} % of the time",
        duration.as_secs_f64(),
        qoe.fps_mean,
        qoe.throughput_mbps,
        delay(qoe.frame_delay_p50_ms),
        delay(qoe.frame_delay_p95_ms),
        delay(qoe.frame_delay_p99_ms),
        qoe.stalls,
        qoe.stall_threshold_ms,
        qoe.stall_ratio * 100.0
    )
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            frames,
            frames_damaged,
            protocol_errors,
            connections,
            qoe,
            pictures,
        } = self;
        write!(f, "{frames} frames")?;
        if let Some((duration, qoe)) = qoe {
            write_qoe(f, *duration, qoe)?;
        }
        write!(
            f,
            "\n{frames_damaged} frames differ from the captured ones; {connections} connections, {protocol_errors} protocol errors"
        )?;
        match pictures {
            Some(pictures) => write!(f, "\n{pictures}"),
            None => Ok(()),
        }
    }
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
}
