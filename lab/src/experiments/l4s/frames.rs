//! The fate of each frame.

use hawser_packets::media::ObjectId;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::ops::Range;
use std::time::Duration;

/// A frame from capture to completeness.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Frame {
    pub(super) captured: Instant,
    /// The target of the rate control.
    pub(super) target: Bitrate,
    /// The bytes of its packets with all headers.
    pub(super) size: ByteSize,
    /// The time at which the first packet left.
    pub(super) began: Option<Instant>,
    /// The time that pacing takes for the frame, as it was when the first packet left; with WebRTC
    /// the time that passed from the first packet to the last.
    pub(super) pacing: Duration,
    /// The time at which each layer was complete at the viewer.
    pub(super) complete: Vec<Option<Instant>>,
}

impl Frame {
    /// Returns whether the viewer can decode the frame: it has the base.
    pub(super) fn is_decodable(&self) -> bool {
        self.complete.first().is_some_and(Option::is_some)
    }

    /// Returns whether all layers arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.complete.iter().all(Option::is_some)
    }

    /// Returns the time at which the viewer had all that it got of the frame, if it can decode it.
    pub(super) fn shown(&self) -> Option<Instant> {
        let last = self.complete.iter().flatten().max().copied();
        last.filter(|_| self.is_decodable())
    }

    /// Returns the time from the first packet's leaving to completeness.
    pub(super) fn latency(&self) -> Option<Duration> {
        Some(self.shown()?.saturating_since(self.began?))
    }

    /// Returns the time from capture to completeness.
    pub(super) fn delay(&self) -> Option<Duration> {
        Some(self.shown()?.saturating_since(self.captured))
    }
}

/// The time before the end in which captured frames are not counted, so that each can arrive.
const LAST: Duration = Duration::from_millis(500);

/// Returns the frames that were captured in a time and could arrive within it. Their times are from the
/// first frame's capture.
pub(super) fn captured_within(frames: &[Frame], time: Range<Duration>) -> Range<usize> {
    let captured = |frame: &Frame| Duration::from_nanos(frame.captured.as_nanos());
    let start = frames.partition_point(|frame| captured(frame) < time.start);
    let end = frames.partition_point(|frame| captured(frame) + LAST < time.end);
    start..end.max(start)
}

/// Marks a layer as complete. The group of an object is the number of its frame.
pub(super) fn complete(frames: &mut [Frame], id: &ObjectId, now: Instant) {
    let frame = usize::try_from(id.group).ok();
    let frame = frame.and_then(|number| frames.get_mut(number));
    if let Some(layer) = frame.and_then(|frame| frame.complete.get_mut(usize::from(id.layer))) {
        layer.get_or_insert(now);
    }
}
