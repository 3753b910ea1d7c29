//! The CSV files of raw data that a viewer writes.

use hawser_qoe::Frame;
use hawser_units::{ByteSize, Instant};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A frame. All times are nanoseconds since 1970: `captured_ns` by the publisher's clock, the
/// others by the viewer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The publisher's number of the frame.
    pub frame: u64,
    /// The time at which it was captured.
    pub captured_ns: u64,
    /// The time at which its request was sent.
    pub requested_ns: u64,
    /// The time at which its last byte was received.
    pub received_ns: u64,
    /// The time at which all its points were decoded.
    pub decoded_ns: u64,
    /// Encoded size, bytes.
    pub bytes: u64,
    /// Number of points.
    pub points: u64,
    /// Whether the decoded points are the captured ones.
    pub is_identical: bool,
}

/// One read of the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The time of the read, nanoseconds since 1970.
    pub received_ns: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl From<Row> for Frame {
    fn from(row: Row) -> Frame {
        Frame {
            captured: Instant::from_nanos(row.captured_ns),
            decoded: Instant::from_nanos(row.decoded_ns),
            size: ByteSize(row.bytes),
        }
    }
}

/// Reads a timeline that a viewer wrote.
pub fn read(path: &Path) -> Result<Vec<Row>, csv::Error> {
    csv::Reader::from_path(path)?.deserialize().collect()
}

/// Reads the arrivals that a viewer wrote.
pub fn read_arrivals(path: &Path) -> Result<Vec<Arrival>, csv::Error> {
    csv::Reader::from_path(path)?.deserialize().collect()
}
