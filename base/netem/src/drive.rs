use crate::config::{Delay, LinkConfig, Loss, Rate};
use crate::figure::{Figure, InvalidConfig, Probability};
use crate::steps::Steps;
use crate::trace::{DRIVE_HEADER, TraceError};
use hawser_units::Bitrate;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A recorded drive over several cellular paths: the rate, delay and loss of each path, in steps.
#[derive(Debug, Clone, PartialEq)]
pub struct Drive {
    paths: BTreeMap<u32, Vec<Row>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Row {
    at: Duration,
    rate: Bitrate,
    delay: Duration,
    loss: Probability,
}

impl Drive {
    /// Parses CSV with the columns `t_ms,path,rate_mbps,owd_ms,loss`. Each row of a path holds
    /// until its next row.
    ///
    /// Returns an error that names the invalid line.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut lines = text.lines().map(str::trim).zip(1..);
        if lines
            .next()
            .is_none_or(|(header, _)| header != DRIVE_HEADER)
        {
            return Err(TraceError::Header);
        }
        let mut paths = BTreeMap::<u32, Vec<Row>>::new();
        for (text, line) in lines.filter(|(text, _)| !text.is_empty()) {
            let wanted = "a row of `t_ms,path,rate_mbps,owd_ms,loss`";
            let error = || TraceError::Line {
                line,
                text: text.into(),
                wanted,
            };
            let (path, figures) = split_row(text).ok_or_else(error)?;
            let row =
                Row::from_figures(figures).map_err(|source| TraceError::Value { line, source })?;
            paths.entry(path).or_default().push(row);
        }
        Ok(Drive { paths })
    }

    /// Returns the paths of the drive in ascending order.
    pub fn paths(&self) -> impl Iterator<Item = u32> {
        self.paths.keys().copied()
    }

    /// Returns the duration: the time of its last row, and the interval between the last two times at
    /// which any path has a row. `None` if all rows are of the same time.
    pub fn length(&self) -> Option<Duration> {
        let rows = self.paths.values().flatten();
        let times: BTreeSet<Duration> = rows.map(|row| row.at).collect();
        let mut latest = times.iter().rev();
        let (last, previous) = (latest.next()?, latest.next()?);
        Some(*last + (*last - *previous))
    }

    /// Returns the configuration of a link that follows one path. The caller chooses queue and
    /// order.
    ///
    /// Returns an error if there is no such path, or if its rows do not start at 0 or do not rise.
    pub fn link(&self, path: u32) -> Result<LinkConfig, TraceError> {
        let rows = self.paths.get(&path).ok_or(TraceError::NoPath(path))?;
        Ok(LinkConfig {
            rate: Some(Rate::Steps(steps(path, rows, |row| row.rate)?)),
            delay: Delay::Steps(steps(path, rows, |row| row.delay)?),
            loss: Some(Loss::Steps(steps(path, rows, |row| row.loss)?)),
            ..LinkConfig::default()
        })
    }
}

fn steps<T: Copy>(
    path: u32,
    rows: &[Row],
    value: impl Fn(&Row) -> T,
) -> Result<Steps<T>, TraceError> {
    Steps::new(rows.iter().map(|row| (row.at, value(row))).collect())
        .map_err(|source| TraceError::Steps { path, source })
}

fn split_row(text: &str) -> Option<(u32, [f64; 4])> {
    let [at, path, rate, delay, loss] = text.split(',').collect::<Vec<_>>().try_into().ok()?;
    let number = |field: &str| field.parse::<f64>().ok();
    Some((
        path.parse().ok()?,
        [number(at)?, number(rate)?, number(delay)?, number(loss)?],
    ))
}

impl Row {
    fn from_figures([at, rate, delay, loss]: [f64; 4]) -> Result<Self, InvalidConfig> {
        Ok(Row {
            at: Duration::from_figure(at)?,
            rate: Bitrate::from_figure(rate)?,
            delay: Duration::from_figure(delay)?,
            loss: Probability::from_figure(loss)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVE: &str = "t_ms,path,rate_mbps,owd_ms,loss\n\
                         0,0,39.75,23.1,0.00\n0,1,50.00,33.0,0.00\n100,0,67.00,23.9,0.25\n100,1,0.00,33.0,0.00\n";

    #[test]
    fn a_drive_gives_each_path_its_steps() {
        let drive = Drive::parse(DRIVE).unwrap();
        let link = drive.link(0).unwrap();
        let later = Duration::from_millis(150);

        assert_eq!(drive.paths().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(link.delay.at(later), Duration::from_micros(23_900));
        let Some(Rate::Steps(rate)) = link.rate else {
            panic!("a drive's rate changes")
        };
        assert_eq!(rate.at(later), Bitrate::from_mbps(67.0));
        assert_eq!(drive.link(2), Err(TraceError::NoPath(2)));
        assert_eq!(drive.length(), Some(Duration::from_millis(200)));
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = |text: &str| Drive::parse(text).unwrap_err().to_string();
        assert!(error("time,rate\n").contains("t_ms,path"));
        assert!(error("t_ms,path,rate_mbps,owd_ms,loss\n0,0,1\n").starts_with("line 2"));
        assert!(
            error("t_ms,path,rate_mbps,owd_ms,loss\n\n0,0,1,2,7\n")
                .starts_with("line 3: 7 is not a probability")
        );
    }
}
