//! The raw data that a viewer leaves behind, as CSV files.

use hawser_qoe::Frame;
use hawser_units::{ByteSize, Instant};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A frame: all times are nanoseconds since 1970, `captured_ns` of the publisher's clock, the others of the viewer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The publisher's number of the frame.
    pub frame: u64,
    /// When it was captured.
    pub captured_ns: u64,
    /// When the request that it answers was sent.
    pub requested_ns: u64,
    /// When its last byte was received.
    pub received_ns: u64,
    /// When all its points were decoded.
    pub decoded_ns: u64,
    /// Encoded size.
    pub bytes: u64,
    /// Points.
    pub points: u64,
    /// Whether the decoded points are those that were captured.
    pub is_identical: bool,
}

/// Bytes that one read of the socket returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// Nanoseconds since 1970.
    pub received_ns: u64,
    /// How many.
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
