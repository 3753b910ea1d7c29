use crate::figure::InvalidConfig;
use crate::steps::StepsError;
use hawser_units::ByteSize;
use std::time::Duration;

/// The first line of a recorded drive: the names of its columns.
pub const DRIVE_HEADER: &str = "t_ms,path,rate_mbps,owd_ms,loss";

/// An error in a trace.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TraceError {
    /// The first line does not name the columns.
    #[error("line 1: the columns must be `{}`", DRIVE_HEADER)]
    Header,
    /// A line is not a row of the table.
    #[error("line {line}: `{text}` is not {wanted}")]
    Line {
        /// The line number, starting at 1.
        line: usize,
        /// The text of the line.
        text: String,
        /// The expected format.
        wanted: &'static str,
    },
    /// A value is invalid.
    #[error("line {line}: {source}")]
    Value {
        /// The line number, starting at 1.
        line: usize,
        /// The error.
        source: InvalidConfig,
    },
    /// The rows of a path do not define its state at every time.
    #[error("path {path}: {source}")]
    Steps {
        /// The path.
        path: u32,
        /// The error.
        source: StepsError,
    },
    /// The drive has no such path.
    #[error("there is no path {0} in the trace")]
    NoPath(u32),
    /// The delivery opportunities are not in rising order, or have no period.
    #[error("delivery opportunities must be in rising order and end after 0 ms")]
    Opportunities,
}

/// Opportunities to deliver up to 1500 bytes, as recorded by Mahimahi: the milliseconds of one
/// period, which repeats. Unused opportunities are lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opportunities {
    at_ms: Vec<u64>,
    period_ms: u64,
}

impl Opportunities {
    /// The number of bytes that one opportunity delivers.
    pub const SIZE: ByteSize = ByteSize(1500);

    /// Creates opportunities at the given milliseconds. The last one ends the period.
    ///
    /// Returns an error if the times decrease, or if the period has zero length.
    pub fn new(at_ms: Vec<u64>) -> Result<Self, TraceError> {
        let period_ms = at_ms.last().copied().unwrap_or(0);
        if period_ms == 0 || !at_ms.is_sorted() {
            return Err(TraceError::Opportunities);
        }
        Ok(Opportunities { at_ms, period_ms })
    }

    /// Parses a Mahimahi trace: one millisecond per line.
    ///
    /// Returns an error that names the invalid line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let rows = text
            .lines()
            .map(str::trim)
            .zip(1..)
            .filter(|(text, _)| !text.is_empty());
        let millisecond = |(text, line): (&str, usize)| {
            text.parse().map_err(|_| TraceError::Line {
                line,
                text: text.into(),
                wanted: "a millisecond",
            })
        };
        Opportunities::new(rows.map(millisecond).collect::<Result<_, _>>()?)
    }

    /// Returns the number of the first opportunity at or after `elapsed`.
    pub(crate) fn first_from(&self, elapsed: Duration) -> u64 {
        let period_ns = u128::from(self.period_ms) * 1_000_000;
        // The end of a period and the start of the next one coincide. The opportunity of the former
        // comes first.
        let period = elapsed.as_nanos().saturating_sub(1) / period_ns;
        let within_ns = elapsed.as_nanos() - period * period_ns;
        let index = self
            .at_ms
            .partition_point(|at| u128::from(*at) * 1_000_000 < within_ns);
        u64::try_from(period)
            .unwrap_or(u64::MAX)
            .saturating_mul(self.at_ms.len() as u64)
            + index as u64
    }

    /// Returns the time of opportunity `number`.
    pub(crate) fn time(&self, number: u64) -> Duration {
        let length = self.at_ms.len() as u64;
        let period_at_ms = (number / length).saturating_mul(self.period_ms);
        Duration::from_millis(period_at_ms.saturating_add(self.at_ms[(number % length) as usize]))
    }
}

impl From<Opportunities> for Vec<u64> {
    fn from(opportunities: Opportunities) -> Self {
        opportunities.at_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_line_is_named() {
        let error = Opportunities::parse("0\n5\nx\n").unwrap_err();
        assert!(error.to_string().starts_with("line 3"));
    }

    #[test]
    fn opportunities_repeat() {
        let ms = Duration::from_millis;
        let trace = Opportunities::parse("0\n5\n5\n10\n").unwrap();

        assert_eq!(
            (0..9).map(|number| trace.time(number)).collect::<Vec<_>>(),
            [0, 5, 5, 10, 10, 15, 15, 20, 20].map(ms)
        );
        assert_eq!(
            [0, 1, 5, 6, 10, 11, 20].map(|at| trace.first_from(ms(at))),
            [0, 1, 1, 3, 3, 5, 7]
        );
        assert_eq!(Opportunities::new(vec![0]), Err(TraceError::Opportunities));
        assert_eq!(
            Opportunities::new(vec![5, 3]),
            Err(TraceError::Opportunities)
        );
    }
}
