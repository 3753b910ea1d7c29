use crate::cursor::{Cursor, Truncated};
use hawser_units::Instant;
use std::time::Duration;

/// The times in a message by which two clocks are related, as in NTP (RFC 5905, section 8): when it
/// was sent, and the newest time stamp that had arrived from the other end.
///
/// Each [`Instant`] is of its sender's clock, so the two have different origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockStamp {
    /// The time of sending, by the sender's clock.
    pub sent: Instant,
    /// The newest time stamp from the receiver of this message, if there was one.
    pub echo: Option<StampEcho>,
}

/// A time stamp that is returned to its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampEcho {
    /// The time stamp, by the clock of the receiver of the echo.
    pub stamp: Instant,
    /// The time between its arrival and the echo, in whole microseconds, up to
    /// [`ClockStamp::MAX_HELD`].
    pub held: Duration,
}

impl ClockStamp {
    /// The length in bytes.
    pub const LEN: usize = 20;

    /// The longest time that an echo says it was held: 71.6 minutes.
    pub const MAX_HELD: Duration = Duration::from_micros(NO_ECHO as u64 - 1);

    pub(crate) fn emit(&self, bytes: &mut Vec<u8>) {
        let (stamp, held) = match self.echo {
            None => (0, NO_ECHO),
            Some(StampEcho { stamp, held }) => {
                let held = held.min(ClockStamp::MAX_HELD).as_micros();
                (stamp.as_nanos(), u32::try_from(held).unwrap_or(NO_ECHO - 1))
            }
        };
        bytes.extend(self.sent.as_nanos().to_be_bytes());
        bytes.extend(stamp.to_be_bytes());
        bytes.extend(held.to_be_bytes());
    }

    /// Returns `None` where an echo is missing and its time stamp is not zero.
    pub(crate) fn parse(cursor: &mut Cursor<'_>) -> Result<Option<Self>, Truncated> {
        let sent = Instant::from_nanos(cursor.u64()?);
        let (stamp, held) = (cursor.u64()?, cursor.u32()?);
        let echo = match (stamp, held) {
            (0, NO_ECHO) => None,
            (_, NO_ECHO) => return Ok(None),
            _ => Some(StampEcho {
                stamp: Instant::from_nanos(stamp),
                held: Duration::from_micros(held.into()),
            }),
        };
        Ok(Some(ClockStamp { sent, echo }))
    }
}

/// The time held that stands for no echo.
const NO_ECHO: u32 = u32::MAX;
