//! Packets of media: a clear header in front of an encrypted piece of one object.
//!
//! An object is one encoded layer of one frame of one track. `docs/design/media.md` describes keys,
//! nonces and the reasons for the fields.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! |   version 1   |     flags     |   priority    |     layer     |   0
//! +---------------+---------------+---------------+---------------+
//! |                          track alias                          |   4
//! +---------------------------------------------------------------+
//! |                             group                             |   8
//! +---------------------------------------------------------------+
//! |                            object                             |  12
//! +-------------------------------+-------------------------------+
//! |         packet index          |         packet count          |  16
//! +-------------------------------+-------------------------------+
//! |                           deadline                            |  20
//! +-------------------------------+-------------------------------+
//! |           key epoch           |            hop key            |  24
//! +-------------------------------+-------------------------------+
//! |                                                               |  28
//! +                            hop tag                            +
//! |                                                               |  32
//! +---------------------------------------------------------------+
//! ```
//!
//! The first [`Header::IMMUTABLE`] bytes never change between publisher and viewer. They are the
//! associated data of the ciphertext. Each hop replaces the number of the hop key and the tag.

use hawser_units::Instant;
use hawser_wire::{Key, Tag};
use std::num::NonZeroU16;
use std::time::Duration;

/// The first byte of a packet of media: the version.
pub const VERSION: u8 = 1;

/// The highest layer. Layer 0 is the base.
pub const MAX_LAYER: u8 = 7;

/// The bytes that AES-128-GCM adds to the payload.
pub const AEAD_TAG: usize = 16;

/// The default length of a UDP payload in bytes. It fits the smallest MTU of IPv6 with room for
/// tunnels (RFC 9000, section 14).
pub const DEFAULT_DATAGRAM: usize = 1200;

const LAST_IN_GROUP: u8 = 0x01;
const PACKETS_ALONE: u8 = 0x02;
const TOP_LAYER: u8 = 0x04;

/// The number of bytes that the hop tag covers: the immutable ones and the number of the hop key.
const HOP_COVERED: usize = 28;

/// An object of a publisher, in the order in which a track is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The publisher's number of the track.
    pub alias: u32,
    /// The group. Decoding can begin with the first frame of any group.
    pub group: u32,
    /// The frame within the group, from 0. All layers of a frame have the same number.
    pub object: u32,
    /// The layer, 0 to [`MAX_LAYER`].
    pub layer: u8,
}

/// A packet of a publisher. There is no sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId {
    /// The object.
    pub object: ObjectId,
    /// The packet within the object, from 0.
    pub index: u16,
}

/// The flags of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags {
    /// The frame is the last of its group.
    pub last_in_group: bool,
    /// Each packet can be decoded without the other packets of the object.
    pub packets_alone: bool,
    /// The publisher made no higher layer of this frame.
    pub top_layer: bool,
}

/// A time of the publisher's clock in milliseconds. It wraps after 49.7 days and is compared as
/// RFC 1982 compares serial numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MediaTime(pub u32);

/// The header of a packet without its hop fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The flags of the object.
    pub flags: Flags,
    /// The priority of the object; 0 is sent first.
    pub priority: u8,
    /// The packet.
    pub id: PacketId,
    /// The number of packets of the object. `None` while the publisher has not encoded the whole
    /// object; the last packet always has it.
    pub count: Option<NonZeroU16>,
    /// The time after which the object is of no use.
    pub deadline: MediaTime,
    /// The epoch of the key of the payload.
    pub epoch: u16,
}

/// The key that a hop shares with the next one, and its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hop {
    /// The number of the key.
    pub number: u16,
    /// The key.
    pub key: Key,
}

/// A parsed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The header.
    pub header: Header,
    /// The number of the hop key.
    pub hop: u16,
    /// The ciphertext, with its authentication tag at the end.
    pub sealed: &'a [u8],
}

/// An error in a datagram that should be a packet of media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HeaderError {
    /// The datagram has no room for the header, a byte of payload and the authentication tag.
    #[error("{0} bytes are too short for a packet of media")]
    Length(usize),
    /// The version is not known.
    #[error("version {0} of the media header is unknown: this is version {VERSION}")]
    Version(u8),
    /// A flag is not defined.
    #[error("flags {0:#04x} are not all defined")]
    Flags(u8),
    /// The layer is out of range.
    #[error("layer {0} is out of range: the highest is {MAX_LAYER}")]
    Layer(u8),
    /// The packet's index is not below the number of packets.
    #[error("packet {index} of an object of {count} packets")]
    Index {
        /// The index.
        index: u16,
        /// The number of packets; 0 if it is not known, where the index may be at most 65,534.
        count: u16,
    },
}

impl Flags {
    const fn bits(self) -> u8 {
        (self.last_in_group as u8 * LAST_IN_GROUP)
            | (self.packets_alone as u8 * PACKETS_ALONE)
            | (self.top_layer as u8 * TOP_LAYER)
    }

    const fn from_bits(bits: u8) -> Result<Self, HeaderError> {
        if bits & !(LAST_IN_GROUP | PACKETS_ALONE | TOP_LAYER) != 0 {
            return Err(HeaderError::Flags(bits));
        }
        Ok(Flags {
            last_in_group: bits & LAST_IN_GROUP != 0,
            packets_alone: bits & PACKETS_ALONE != 0,
            top_layer: bits & TOP_LAYER != 0,
        })
    }
}

impl MediaTime {
    /// Returns the time of an instant of the publisher's clock, rounded down to a millisecond.
    pub const fn of(instant: Instant) -> Self {
        MediaTime((instant.as_nanos() / 1_000_000) as u32)
    }

    /// Returns whether this time is before `other`: less than 2^31 ms before it.
    pub const fn is_before(self, other: MediaTime) -> bool {
        let distance = other.0.wrapping_sub(self.0);
        distance != 0 && distance < 1 << 31
    }

    /// Returns the instant of this time that is nearest to `reference`, by the same clock; at
    /// earliest [`Instant::ZERO`].
    pub fn nearest(self, reference: Instant) -> Instant {
        let distance = self
            .0
            .wrapping_sub(MediaTime::of(reference).0)
            .cast_signed();
        let whole = Instant::from_nanos(reference.as_nanos() / 1_000_000 * 1_000_000);
        let millis = Duration::from_millis(distance.unsigned_abs().into());
        if distance < 0 {
            whole - millis
        } else {
            whole + millis
        }
    }
}

impl Header {
    /// The length of the header in bytes.
    pub const LEN: usize = 36;

    /// The number of bytes that no hop changes.
    pub const IMMUTABLE: usize = 26;

    /// The number of bytes after them that each hop replaces.
    pub(crate) const HOP: usize = Header::LEN - Header::IMMUTABLE;

    /// The bytes of a datagram that are not payload.
    pub const OVERHEAD: usize = Header::LEN + AEAD_TAG;

    /// Returns the bytes that no hop changes: the associated data of the payload.
    pub fn immutable(&self) -> [u8; Header::IMMUTABLE] {
        let ObjectId {
            alias,
            group,
            object,
            layer,
        } = self.id.object;
        let mut bytes = [0; Header::IMMUTABLE];
        bytes[..4].copy_from_slice(&[VERSION, self.flags.bits(), self.priority, layer]);
        bytes[4..8].copy_from_slice(&alias.to_be_bytes());
        bytes[8..12].copy_from_slice(&group.to_be_bytes());
        bytes[12..16].copy_from_slice(&object.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.id.index.to_be_bytes());
        let count = self.count.map_or(0, NonZeroU16::get);
        bytes[18..20].copy_from_slice(&count.to_be_bytes());
        bytes[20..24].copy_from_slice(&self.deadline.0.to_be_bytes());
        bytes[24..26].copy_from_slice(&self.epoch.to_be_bytes());
        bytes
    }

    /// Returns the header for the next hop.
    pub fn emit(&self, hop: &Hop) -> [u8; Header::LEN] {
        let mut bytes = [0; Header::LEN];
        bytes[..Header::IMMUTABLE].copy_from_slice(&self.immutable());
        write_hop(&mut bytes, hop);
        bytes
    }

    /// Returns the nonce of the payload before it is combined with the key's initial vector: group,
    /// object, layer, a zero byte, packet index. It is unique in a track.
    pub fn nonce(&self) -> [u8; 12] {
        let ObjectId {
            group,
            object,
            layer,
            ..
        } = self.id.object;
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&group.to_be_bytes());
        nonce[4..8].copy_from_slice(&object.to_be_bytes());
        nonce[8] = layer;
        nonce[10..].copy_from_slice(&self.id.index.to_be_bytes());
        nonce
    }

    /// Parses the bytes that no hop changes.
    pub(crate) fn parse(bytes: &[u8; Header::IMMUTABLE]) -> Result<Self, HeaderError> {
        let [version, flags, priority, layer, rest @ ..] = *bytes;
        if version != VERSION {
            return Err(HeaderError::Version(version));
        }
        let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| rest[at + byte]));
        let half = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        let object = ObjectId {
            alias: word(0),
            group: word(4),
            object: word(8),
            layer: layer_of(layer)?,
        };
        let index = half(12);
        Ok(Header {
            flags: Flags::from_bits(flags)?,
            priority,
            id: PacketId { object, index },
            count: count_above(index, half(14))?,
            deadline: MediaTime(word(16)),
            epoch: half(20),
        })
    }
}

fn layer_of(layer: u8) -> Result<u8, HeaderError> {
    let is_known = layer <= MAX_LAYER;
    is_known.then_some(layer).ok_or(HeaderError::Layer(layer))
}

/// Returns the number of packets if it may have a packet with this index.
fn count_above(index: u16, count: u16) -> Result<Option<NonZeroU16>, HeaderError> {
    let limit = if count == 0 { u16::MAX } else { count };
    if index >= limit {
        return Err(HeaderError::Index { index, count });
    }
    Ok(NonZeroU16::new(count))
}

impl<'a> Packet<'a> {
    /// Parses a datagram. The payload is neither authenticated nor decrypted.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, HeaderError> {
        let too_short = HeaderError::Length(datagram.len());
        let (immutable, rest) = datagram.split_first_chunk().ok_or(too_short)?;
        let (hop, sealed) = rest
            .split_first_chunk::<{ Header::HOP }>()
            .filter(|(_, sealed)| sealed.len() > AEAD_TAG)
            .ok_or(too_short)?;
        Ok(Packet {
            header: Header::parse(immutable)?,
            hop: u16::from_be_bytes([hop[0], hop[1]]),
            sealed,
        })
    }
}

/// Returns whether the tag of a datagram was made with this key.
pub fn is_from_hop(datagram: &[u8], key: &Key) -> bool {
    let Some(header) = datagram.first_chunk::<{ Header::LEN }>() else {
        return false;
    };
    header.last_chunk() == Some(&key.tag(&header[..HOP_COVERED]).0)
}

/// Replaces the hop fields of a header, as each hop does before it forwards a packet.
pub fn write_hop(header: &mut [u8; Header::LEN], hop: &Hop) {
    header[Header::IMMUTABLE..HOP_COVERED].copy_from_slice(&hop.number.to_be_bytes());
    let Tag(tag) = hop.key.tag(&header[..HOP_COVERED]);
    header[HOP_COVERED..].copy_from_slice(&tag);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hop() -> Hop {
        Hop {
            number: 3,
            key: Key::from_bytes([0x5a; 16]),
        }
    }

    fn header() -> Header {
        let object = ObjectId {
            alias: 7,
            group: 8,
            object: 9,
            layer: 2,
        };
        Header {
            flags: Flags::default(),
            priority: 1,
            id: PacketId { object, index: 4 },
            count: NonZeroU16::new(5),
            deadline: MediaTime(6),
            epoch: 10,
        }
    }

    fn datagram() -> Vec<u8> {
        [&header().emit(&hop())[..], &[0x77; 20]].concat()
    }

    prop_compose! {
        fn headers()(
            last_in_group: bool, packets_alone: bool, top_layer: bool, priority: u8, alias: u32, group: u32,
            object: u32,
            layer in 0..=MAX_LAYER, count: u16, index: u16, deadline: u32, epoch: u16,
        ) -> Header {
            let limit = if count == 0 { u16::MAX } else { count };
            Header {
                flags: Flags { last_in_group, packets_alone, top_layer },
                priority,
                id: PacketId {
                    object: ObjectId { alias, group, object, layer },
                    index: index % limit,
                },
                count: NonZeroU16::new(count),
                deadline: MediaTime(deadline),
                epoch,
            }
        }
    }

    proptest! {
        #[test]
        fn emitted_packets_are_parsed_back(header in headers(), sealed in proptest::collection::vec(any::<u8>(), 17..40)) {
            let datagram = [&header.emit(&hop())[..], &sealed].concat();
            prop_assert_eq!(Packet::parse(&datagram), Ok(Packet { header, hop: 3, sealed: &sealed }));
            prop_assert!(is_from_hop(&datagram, &hop().key));
        }

        #[test]
        fn packets_of_a_track_have_different_nonces(one in headers(), mut other in headers()) {
            other.id.object.alias = one.id.object.alias;
            prop_assert_eq!(one.nonce() == other.nonce(), one.id == other.id);
        }

        #[test]
        fn a_time_is_restored_within_twenty_days(nanos in 1u64 << 51..1 << 63, ahead in -2_000_000_000i64..2_000_000_000) {
            let reference = Instant::from_nanos(nanos / 2);
            let nanos = reference.as_nanos().cast_signed() + ahead * 1_000_000;
            let instant = Instant::from_nanos(nanos.unsigned_abs());
            let restored = MediaTime::of(instant).nearest(reference);
            prop_assert_eq!(restored.as_nanos(), instant.as_nanos() / 1_000_000 * 1_000_000);
        }
    }

    #[test]
    fn the_hop_tag_covers_every_bit_of_the_header() {
        for bit in 0..Header::LEN * 8 {
            let mut forged = datagram();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_from_hop(&forged, &hop().key), "bit {bit}");
        }
        assert!(!is_from_hop(&datagram(), &Key::from_bytes([0; 16])));
        assert!(!is_from_hop(&datagram()[..Header::LEN - 1], &hop().key));
    }

    #[test]
    fn a_hop_replaces_nothing_but_its_fields() {
        let next = Hop {
            number: 0x0102,
            key: Key::from_bytes([1; 16]),
        };
        let mut bytes = header().emit(&hop());
        write_hop(&mut bytes, &next);
        assert_eq!(bytes[..Header::IMMUTABLE], header().immutable());
        assert_eq!(bytes, header().emit(&next));
        assert!(is_from_hop(&bytes, &next.key) && !is_from_hop(&bytes, &hop().key));
    }

    #[test]
    fn invalid_headers_are_refused() {
        let with = |at: usize, value: u8| {
            let mut bytes = datagram();
            bytes[at] = value;
            Packet::parse(&bytes).map(|packet| packet.header)
        };
        assert_eq!(with(0, 2), Err(HeaderError::Version(2)));
        assert_eq!(with(1, 0x08), Err(HeaderError::Flags(0x08)));
        assert_eq!(with(3, 8), Err(HeaderError::Layer(8)));
        let error = HeaderError::Index { index: 5, count: 5 };
        assert_eq!(with(17, 5), Err(error));
        for length in [0, Header::LEN, Header::LEN + AEAD_TAG] {
            let error = HeaderError::Length(length);
            assert_eq!(Packet::parse(&[1; 60][..length]), Err(error));
        }
    }

    #[test]
    fn an_object_of_unknown_length_has_at_most_65535_packets() {
        assert_eq!(count_above(65_534, 0), Ok(None));
        assert_eq!(count_above(65_534, u16::MAX), Ok(NonZeroU16::new(u16::MAX)));
        let error = HeaderError::Index {
            index: u16::MAX,
            count: 0,
        };
        assert_eq!(count_above(u16::MAX, 0), Err(error));
    }

    #[test]
    fn times_are_compared_across_the_wrap() {
        let [early, late] = [MediaTime(u32::MAX - 1), MediaTime(3)];
        assert!(early.is_before(late) && !late.is_before(early));
        assert!(!early.is_before(early));
        let opposite = MediaTime(late.0.wrapping_add(1 << 31));
        assert!(!late.is_before(opposite) && !opposite.is_before(late));
    }
}
