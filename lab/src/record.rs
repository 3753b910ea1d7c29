//! The logs of a volumetric stream.

use crate::programs::push::PushLogs;
use crate::programs::stream::Logs;
use anyhow::{Context, Result};
use hawser_qoe::{Frame, Window};
use hawser_units::Instant;
use hawser_view::Row as PushRow;
use hawser_view::pull::timeline::{self, Arrival, Row};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;

/// The logs of the viewer and the publisher.
#[derive(Debug, Clone)]
pub struct Record {
    /// Frames, in the order in which they arrived.
    pub frames: Vec<Row>,
    /// The results of the reads of the viewer's socket.
    pub arrivals: Vec<Arrival>,
    /// The capture time of each frame, nanoseconds since 1970.
    pub captured_ns: Vec<u64>,
    /// The start of the stream, nanoseconds since 1970.
    pub began_ns: u64,
}

impl Record {
    /// Reads the logs of a stream.
    pub fn read(logs: &Logs) -> Result<Self> {
        Ok(Record {
            frames: timeline::read(&logs.frames)?,
            arrivals: timeline::read_arrivals(&logs.arrivals)?,
            captured_ns: captured(&logs.captured)?,
            began_ns: logs.began_ns,
        })
    }

    /// Reads the logs of a stream that is pushed. Frames that arrived before the clocks were related are
    /// left out. The others count as identical: their parts are authenticated.
    pub fn read_pushed(logs: &PushLogs) -> Result<Self> {
        let frames: Vec<PushRow> = read_table(&logs.frames)?;
        let arrival = |row: &PushRow| Arrival {
            received_ns: row.received_ns,
            bytes: row.bytes,
        };
        Ok(Record {
            arrivals: frames.iter().map(arrival).collect(),
            frames: frames.iter().filter_map(pushed).collect(),
            captured_ns: captured(&logs.encoded)?,
            began_ns: logs.began_ns,
        })
    }

    /// Returns the part of the stream between two times, which are relative to its start.
    ///
    /// # Panics
    /// If `from` is not before `to`.
    pub fn window(&self, from: Duration, to: Duration) -> Window {
        let began = Instant::from_nanos(self.began_ns);
        Window::new(began + from, began + to).expect("a window has a length")
    }

    /// Returns the frames in the form that the metrics of `hawser_qoe` take.
    pub fn timeline(&self) -> Vec<Frame> {
        self.frames.iter().map(|row| (*row).into()).collect()
    }

    /// Converts nanoseconds since 1970 to seconds since the start of the stream.
    pub fn seconds(&self, unix_ns: u64) -> f64 {
        (unix_ns as f64 - self.began_ns as f64) / 1e9
    }

    /// Returns the average number of frames captured per second over a part of the stream.
    pub fn captured_fps(&self, from: Duration, to: Duration) -> f64 {
        let within = from.as_secs_f64()..to.as_secs_f64();
        let count = self
            .captured_ns
            .iter()
            .filter(|&&at| within.contains(&self.seconds(at)))
            .count();
        count as f64 / (to - from).as_secs_f64()
    }
}

/// Converts a line of a viewer's table, if the time of its capture is known.
fn pushed(row: &PushRow) -> Option<Row> {
    let captured_ns = row.captured_ns?;
    Some(Row {
        frame: u64::from(row.group),
        captured_ns,
        requested_ns: captured_ns,
        received_ns: row.received_ns,
        decoded_ns: row.decoded_ns,
        bytes: row.bytes,
        points: row.points,
        is_identical: true,
    })
}

fn captured(path: &Path) -> Result<Vec<u64>> {
    #[derive(serde::Deserialize)]
    struct Row {
        captured_ns: u64,
    }
    let rows: Vec<Row> = read_table(path)?;
    Ok(rows.iter().map(|row| row.captured_ns).collect())
}

/// Reads the lines of a CSV file.
pub(crate) fn read_table<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let context = || format!("cannot read {}", path.display());
    let mut table = csv::Reader::from_path(path).with_context(context)?;
    let rows: Result<Vec<T>, _> = table.deserialize().collect();
    rows.with_context(context)
}
