//! The table of frames.

use hawser_objects::ReceivedFrame;
use hawser_units::Instant;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A frame. All times are nanoseconds since 1970 by the viewer's clock; the publisher's clock is
/// related to it by the exchange of reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The number of the frame's group.
    pub group: u32,
    /// The time at which it was captured, to the millisecond; `None` if the clocks were not related.
    pub captured_ns: Option<u64>,
    /// The arrival of the first packet of a complete layer.
    pub first_packet_ns: Option<u64>,
    /// The time at which all that is shown of it had arrived.
    pub received_ns: u64,
    /// The time at which decoding began.
    pub decoding_ns: u64,
    /// The time at which all its points were decoded.
    pub decoded_ns: u64,
    /// Encoded size, bytes.
    pub bytes: u64,
    /// Number of points.
    pub points: u64,
    /// Whether all selected layers arrived.
    pub is_whole: bool,
    /// Whether a packet was marked CE.
    pub is_marked: bool,
    /// The most layers of a track that are in it.
    pub layers: u8,
    /// Whether the viewer looked at it.
    pub is_looked_at: bool,
}

impl Row {
    /// Takes the times at which a frame was captured, and decoding began and ended.
    pub(crate) fn new(
        frame: &ReceivedFrame,
        times: [Option<Instant>; 3],
        points: usize,
        is_looked_at: bool,
    ) -> Self {
        let [captured, decoding, decoded] = times.map(|time| time.map(Instant::as_nanos));
        let payloads = frame.tracks.values().flatten().flatten();
        let layers = frame.tracks.values().map(|layers| layers.len() as u8);
        Row {
            group: frame.id.0,
            captured_ns: captured,
            first_packet_ns: frame.first_arrival.map(Instant::as_nanos),
            received_ns: frame.completed.as_nanos(),
            decoding_ns: decoding.unwrap_or_default(),
            decoded_ns: decoded.unwrap_or_default(),
            bytes: payloads.map(|payload| payload.len() as u64).sum(),
            points: points as u64,
            is_whole: frame.is_whole,
            is_marked: frame.marked,
            layers: layers.max().unwrap_or_default(),
            is_looked_at,
        }
    }

    /// Returns the time from capture to the end of decoding; `None` if the clocks are not related.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let nanos = self.decoded_ns.saturating_sub(self.captured_ns?);
        Some(Duration::from_nanos(nanos))
    }
}
