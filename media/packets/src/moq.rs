//! Objects of media in Media over QUIC: the packets of one object, one after the other, without the fields
//! that belong to a hop.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------------------------------+-------------------------------+
//! |        length of the packet   |  the first 26 bytes of its    |
//! +-------------------------------+  header, which no hop changes +
//! |              ...              |   ciphertext and tag  ...     |
//! +-------------------------------+-------------------------------+
//! ```
//!
//! The length counts what follows it. `docs/design/moq.md` describes tracks, groups and the catalog.

use crate::media::{AEAD_TAG, Header, HeaderError, Hop, ObjectId};

/// The maximum number of bytes of an object's payload: as much as a group may have in common relays.
pub const MAX_PAYLOAD: usize = 32 << 20;

/// The name of the track with the catalog.
pub const CATALOG: &str = "hawser.json";

/// The bytes in front of each packet.
const LENGTH: usize = 2;

/// A packet of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CarriedPacket<'a> {
    /// The header.
    pub header: Header,
    /// The ciphertext, with its authentication tag at the end.
    pub sealed: &'a [u8],
}

/// The packets of a payload. It ends after the first error.
#[derive(Debug, Clone)]
pub struct Packets<'a> {
    rest: &'a [u8],
    object: Option<ObjectId>,
}

/// An error in a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PayloadError {
    /// The payload ends within a packet.
    #[error("the payload ends within a packet")]
    Truncated,
    /// A packet is not valid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A packet belongs to another object than the first one.
    #[error("a packet belongs to another object than the first one")]
    OtherObject,
}

/// Returns the name of the track that carries one layer of a track.
pub fn track_name(alias: u32, layer: u8) -> String {
    format!("{alias}/{layer}")
}

/// Returns the payload of an object from the datagrams of its packets in order, with whatever hop fields
/// they have. `None` if one of them has no header, or they are too long.
pub fn emit<'a>(datagrams: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Vec<u8>> {
    let lengths = datagrams.clone().map(<[u8]>::len);
    let length = lengths.map(|length| (length + LENGTH).saturating_sub(Header::HOP));
    let length = length.sum();
    if length > MAX_PAYLOAD {
        return None;
    }
    let mut payload = Vec::with_capacity(length);
    for datagram in datagrams {
        let (header, sealed) = datagram.split_first_chunk::<{ Header::LEN }>()?;
        let carried = Header::IMMUTABLE + sealed.len();
        payload.extend(u16::try_from(carried).ok()?.to_be_bytes());
        payload.extend(&header[..Header::IMMUTABLE]);
        payload.extend(sealed);
    }
    Some(payload)
}

/// Returns the packets of a payload. They are neither authenticated nor decrypted.
pub const fn packets(payload: &[u8]) -> Packets<'_> {
    Packets {
        rest: payload,
        object: None,
    }
}

impl<'a> Packets<'a> {
    fn take(&mut self) -> Result<CarriedPacket<'a>, PayloadError> {
        let (length, rest) = self
            .rest
            .split_first_chunk::<LENGTH>()
            .ok_or(PayloadError::Truncated)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (packet, rest) = rest
            .split_at_checked(length)
            .ok_or(PayloadError::Truncated)?;
        self.rest = rest;
        let (immutable, sealed) = packet
            .split_first_chunk::<{ Header::IMMUTABLE }>()
            .filter(|(_, sealed)| sealed.len() > AEAD_TAG)
            .ok_or(HeaderError::Length(length))?;
        let header = Header::parse(immutable)?;
        if *self.object.get_or_insert(header.id.object) != header.id.object {
            return Err(PayloadError::OtherObject);
        }
        Ok(CarriedPacket { header, sealed })
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<CarriedPacket<'a>, PayloadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let taken = self.take();
        if taken.is_err() {
            self.rest = &[];
        }
        Some(taken)
    }
}

impl CarriedPacket<'_> {
    /// Returns the packet as a datagram for the next hop.
    pub fn datagram(&self, hop: &Hop) -> Vec<u8> {
        let mut datagram = self.header.emit(hop).to_vec();
        datagram.extend(self.sealed);
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::{Flags, MediaTime, PacketId, is_from_hop};
    use hawser_wire::Key;
    use std::num::NonZeroU16;

    fn hop(number: u16) -> Hop {
        Hop {
            number,
            key: Key::from_bytes([number as u8; 16]),
        }
    }

    fn datagram(object: u32, index: u16) -> Vec<u8> {
        let header = Header {
            flags: Flags::default(),
            priority: 1,
            id: PacketId {
                object: ObjectId {
                    alias: 7,
                    group: 8,
                    object,
                    layer: 1,
                },
                index,
            },
            count: NonZeroU16::new(3),
            deadline: MediaTime(6),
            epoch: 10,
        };
        let sealed = vec![index as u8; AEAD_TAG + 1 + usize::from(index)];
        [&header.emit(&hop(1))[..], &sealed].concat()
    }

    fn payload(datagrams: &[Vec<u8>]) -> Vec<u8> {
        emit(datagrams.iter().map(Vec::as_slice)).unwrap()
    }

    #[test]
    fn packets_are_carried_and_leave_with_the_tag_of_the_next_hop() {
        let datagrams = [0, 1, 2].map(|index| datagram(9, index));
        let payload = payload(&datagrams);
        let carried: Vec<CarriedPacket<'_>> = packets(&payload).map(Result::unwrap).collect();
        let same = carried.iter().map(|packet| packet.datagram(&hop(1)));
        assert_eq!(same.collect::<Vec<_>>(), datagrams);
        assert!(is_from_hop(&carried[0].datagram(&hop(2)), &hop(2).key));
    }

    #[test]
    fn a_payload_of_two_objects_ends_at_the_second() {
        let payload = payload(&[datagram(9, 0), datagram(10, 0), datagram(9, 1)]);
        let taken: Vec<_> = packets(&payload).collect();
        assert_eq!(taken.len(), 2);
        assert_eq!(taken[1], Err(PayloadError::OtherObject));
    }

    #[test]
    fn a_payload_that_was_cut_says_so() {
        let whole = payload(&[datagram(9, 0), datagram(9, 1)]);
        let first = payload(&[datagram(9, 0)]).len();
        for length in 0..whole.len() {
            let last = packets(&whole[..length]).last();
            let is_whole = length == 0 || length == first;
            assert_eq!(last.is_none_or(|last| last.is_ok()), is_whole, "{length}");
        }
    }

    #[test]
    fn what_has_no_header_is_not_carried() {
        assert_eq!(emit([&[0; Header::LEN - 1][..]].into_iter()), None);
    }
}
