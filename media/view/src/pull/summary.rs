use crate::Drawn;
use crate::measured::write_qoe;
use hawser_qoe::Qoe;
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
