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

impl Summary {
    pub(crate) fn measure(frames: &[Frame], end: Instant) -> Option<(Duration, Qoe)> {
        let window = Window::new(frames.first()?.decoded, end)?;
        Some((window.duration(), hawser_qoe::measure(frames, window)))
    }
}

/// Writes the quality of experience in a duration as the rest of a sentence.
pub(crate) fn write_qoe(f: &mut fmt::Formatter<'_>, duration: Duration, qoe: &Qoe) -> fmt::Result {
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
