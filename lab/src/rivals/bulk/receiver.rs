use super::segment::{Acknowledgement, Segment};
use hawser_units::ByteSize;

/// The receiver of a bulk flow: acknowledges every segment at once.
#[derive(Debug, Clone, Default)]
pub struct Receiver {
    received: u64,
}

impl Receiver {
    /// Takes a segment as it arrived, and returns its acknowledgement.
    pub fn handle_segment(&mut self, segment: &Segment) -> Acknowledgement {
        self.received = self.received.saturating_add(segment.size.0);
        Acknowledgement {
            number: segment.number,
            ecn: segment.ecn,
        }
    }

    /// Returns the bytes received so far.
    pub fn received(&self) -> ByteSize {
        ByteSize(self.received)
    }
}
