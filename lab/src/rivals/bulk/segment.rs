use hawser_units::{ByteSize, Ecn};

/// A segment on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The number of the transmission.
    pub number: u64,
    /// The size of the packet.
    pub size: ByteSize,
    /// The ECN field.
    pub ecn: Ecn,
}

/// An acknowledgement of one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The segment's number.
    pub number: u64,
    /// The ECN field with which it arrived.
    pub ecn: Ecn,
}
