use hawser_qoe::{Frame, Qoe, Window};
use hawser_units::Instant;
use std::fmt;
use std::time::Duration;

/// What a viewer saw.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Frames that arrived and could be decoded.
    pub frames: u64,
    /// Those whose points are not the ones that were captured.
    pub frames_damaged: u64,
    /// Times that the publisher sent something that the protocol does not allow.
    pub protocol_errors: u64,
    /// Connections made: one, and one more for every time that the publisher was away.
    pub connections: u64,
    /// The experience from the first frame to the end, with how long that was; none without frames.
    pub qoe: Option<(Duration, Qoe)>,
}

impl Summary {
    pub(crate) fn measure(frames: &[Frame], end: Instant) -> Option<(Duration, Qoe)> {
        let window = Window::new(frames.first()?.decoded, end)?;
        Some((window.duration(), hawser_qoe::measure(frames, window)))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            frames,
            frames_damaged,
            protocol_errors,
            connections,
            qoe,
        } = self;
        write!(f, "{frames} frames")?;
        if let Some((duration, qoe)) = qoe {
            let delay = |delay: Option<f64>| delay.unwrap_or(f64::NAN);
            write!(
                f,
                " in {:.1} s: {:.1} fps, {:.1} Mb/s; delay {:.1} ms (median), {:.1} ms (p95), {:.1} ms (p99); {} stalls, {:.1} % of the time",
                duration.as_secs_f64(),
                qoe.fps_mean,
                qoe.throughput_mbps,
                delay(qoe.frame_delay_p50_ms),
                delay(qoe.frame_delay_p95_ms),
                delay(qoe.frame_delay_p99_ms),
                qoe.stalls,
                qoe.stall_ratio * 100.0
            )?;
        }
        write!(
            f,
            "\n{frames_damaged} frames differ from what was captured; {connections} connections, {protocol_errors} protocol errors"
        )
    }
}
