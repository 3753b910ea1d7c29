use hawser_units::{ByteSize, Ecn};

/// A packet with the fields that a queue discipline reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<T> {
    /// The size on the link.
    pub size: ByteSize,
    /// The ECN field.
    pub ecn: Ecn,
    /// A number that is the same for all packets of a flow, such as a hash of its addresses.
    pub flow: u64,
    /// The packet itself.
    pub payload: T,
}

impl<T> Packet<T> {
    /// Creates a packet of flow 0 that is not ECN-capable.
    pub fn new(size: ByteSize, payload: T) -> Self {
        Packet {
            size,
            ecn: Ecn::NotEct,
            flow: 0,
            payload,
        }
    }
}
