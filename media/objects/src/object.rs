use hawser_packets::media::{Flags, MediaTime, ObjectId, PacketId};
use hawser_units::{ByteSize, Instant};
use std::sync::Arc;

/// An object without its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectInfo {
    /// The object.
    pub id: ObjectId,
    /// The priority; 0 is sent first.
    pub priority: u8,
    /// The time by the publisher's clock after which the object is of no use.
    pub deadline: Instant,
    /// The flags.
    pub flags: Flags,
}

/// The bytes of a layer, or of a slice of it.
#[derive(Debug, Clone, Copy)]
pub enum LayerContent<'a> {
    /// Bytes that are of use when all of the layer have arrived.
    Whole(&'a [u8]),
    /// Chunks that fit a packet each and decode alone.
    Chunks(&'a [&'a [u8]]),
}

/// The properties of an object that its first packet tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// The flags.
    pub flags: Flags,
    /// The time by the publisher's clock after which the object is of no use.
    pub deadline: MediaTime,
    /// The arrival of the first packet.
    pub first_arrival: Instant,
    /// Whether a packet was marked CE.
    pub marked: bool,
}

/// A sealed packet. Its bytes are the same for every viewer and each time that it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedPacket {
    /// The packet.
    pub id: PacketId,
    /// The UDP payload.
    pub datagram: Arc<[u8]>,
}

/// An object with all of its packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedObject {
    /// The object.
    pub info: ObjectInfo,
    /// The packets in ascending order.
    pub packets: Vec<SealedPacket>,
}

impl SealedPacket {
    /// Returns the length of the UDP payload.
    pub fn size(&self) -> ByteSize {
        ByteSize(self.datagram.len() as u64)
    }
}

impl SealedObject {
    /// Returns the sum of the lengths of the UDP payloads.
    pub fn size(&self) -> ByteSize {
        self.packets.iter().map(SealedPacket::size).sum()
    }
}
