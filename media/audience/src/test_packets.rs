//! Packets for the tests.

use hawser_objects::RelayedPacket;
use hawser_packets::media::{Flags, Header, MediaTime, ObjectId, PacketId};

/// Returns a packet of track 7 with a datagram of so many bytes.
pub(crate) fn packet(group: u32, layer: u8, index: u16, bytes: usize) -> RelayedPacket {
    let object = ObjectId {
        alias: 7,
        group,
        object: 0,
        layer,
    };
    RelayedPacket {
        header: Header {
            flags: Flags::default(),
            priority: layer,
            id: PacketId { object, index },
            count: None,
            deadline: MediaTime(0),
            epoch: 0,
        },
        datagram: vec![0; bytes].into(),
    }
}
