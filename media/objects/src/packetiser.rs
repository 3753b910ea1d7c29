use crate::keys::{AeadKey, PACKETS_PER_KEY, TrackSecret};
use crate::object::{LayerContent, ObjectInfo, SealedObject, SealedPacket};
use hawser_packets::media::{
    DEFAULT_DATAGRAM, Header, Hop, MAX_LAYER, MediaTime, ObjectId, PacketId,
};
use std::num::NonZeroU16;

/// The longest payload of UDP over IPv4.
const MAX_DATAGRAM: usize = 65_507;

/// The settings of a [`Packetiser`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketiserConfig {
    /// The number of the track.
    pub alias: u32,
    /// Random bytes that the publisher chose when it started, different for each start.
    pub incarnation: [u8; 16],
    /// The length of the longest UDP payload in bytes, 53 to 65,507.
    pub datagram: usize,
    /// The number of packets that a key seals, at most [`PACKETS_PER_KEY`].
    pub packets_per_key: u64,
}

/// Cuts the objects of one track into packets and seals them.
///
/// No nonce is used twice: objects are in ascending order, and each packet is sealed once.
#[derive(Debug)]
pub struct Packetiser {
    config: PacketiserConfig,
    /// The number of payload bytes of a full packet.
    full: usize,
    secret: TrackSecret,
    hop: Hop,
    current: SealingKey,
    previous: Option<SealingKey>,
    newest: Option<ObjectId>,
}

/// An object of which the publisher has not encoded all bytes yet.
#[derive(Debug)]
pub struct OpenObject {
    info: ObjectInfo,
    epoch: u16,
    next: u16,
}

/// The reason why an object cannot be made into packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketiseError {
    /// The object or a chunk of it has no bytes.
    #[error("an object and each chunk of it must have at least one byte")]
    Empty,
    /// A chunk is longer than the payload of a packet.
    #[error("a chunk of {0} bytes does not fit a packet")]
    Chunk(usize),
    /// The object has more than 65,535 packets.
    #[error("an object must have at most 65,535 packets")]
    TooLong,
    /// The object is of another track, or the layer is out of range.
    #[error("{0:?} is not an object of this track")]
    Unknown(ObjectId),
    /// The object does not follow the ones before. Its nonces might have been used.
    #[error("objects must be in ascending order of group, object and layer")]
    OutOfOrder,
    /// No epoch is left: the publisher must start a new incarnation.
    #[error("all key epochs of this incarnation are used")]
    Exhausted,
    /// The key of the object's epoch has sealed all packets it may, or was replaced twice.
    #[error("the key of the object is no longer in use")]
    KeyRetired,
}

#[derive(Debug)]
struct SealingKey {
    epoch: u16,
    key: AeadKey,
    sealed: u64,
}

impl PacketiserConfig {
    /// Returns the default settings for a track: datagrams of 1,200 bytes.
    pub const fn new(alias: u32, incarnation: [u8; 16]) -> Self {
        PacketiserConfig {
            alias,
            incarnation,
            datagram: DEFAULT_DATAGRAM,
            packets_per_key: PACKETS_PER_KEY,
        }
    }

    /// Returns the number of payload bytes of the longest packet.
    fn payload(&self) -> usize {
        self.datagram.clamp(Header::OVERHEAD + 1, MAX_DATAGRAM) - Header::OVERHEAD
    }

    fn key(&self, secret: &TrackSecret, epoch: u16) -> SealingKey {
        SealingKey {
            epoch,
            key: secret.packet_key(&self.incarnation, epoch, self.alias),
            sealed: 0,
        }
    }

    fn limit(&self) -> u64 {
        self.packets_per_key.min(PACKETS_PER_KEY)
    }
}

impl Packetiser {
    /// Creates the packetiser of a track at the start of an incarnation, with epoch 0.
    pub fn new(config: PacketiserConfig, secret: TrackSecret, hop: Hop) -> Self {
        Packetiser {
            current: config.key(&secret, 0),
            previous: None,
            newest: None,
            full: config.payload(),
            config,
            secret,
            hop,
        }
    }

    /// Returns the epoch of the next object's key.
    pub const fn epoch(&self) -> u16 {
        self.current.epoch
    }

    /// Returns the number of payload bytes of a full packet.
    pub fn payload(&self) -> usize {
        self.full
    }

    /// Limits the packets of further objects to `datagram` bytes, or to the configured length if that is less.
    /// Chunks stay as they are.
    pub fn set_datagram(&mut self, datagram: usize) {
        self.full = datagram
            .saturating_sub(Header::OVERHEAD)
            .clamp(1, self.config.payload());
    }

    /// Tags further packets with another hop key.
    pub fn set_hop(&mut self, hop: Hop) {
        self.hop = hop;
    }

    /// Seals further objects with the key of the next epoch. Viewers accept the previous epoch until the
    /// next change.
    pub fn rotate(&mut self) -> Result<(), PacketiseError> {
        let epoch = self.current.epoch.checked_add(1);
        let epoch = epoch.ok_or(PacketiseError::Exhausted)?;
        let next = self.config.key(&self.secret, epoch);
        self.previous = Some(std::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// Makes an object into packets of about equal length.
    pub fn packetise(
        &mut self,
        info: ObjectInfo,
        bytes: &[u8],
    ) -> Result<SealedObject, PacketiseError> {
        let pieces = self.pieces(LayerContent::Whole(bytes))?;
        self.packetise_pieces(info, &pieces)
    }

    /// Makes an object into packets of one chunk each.
    pub fn packetise_chunks(
        &mut self,
        info: ObjectInfo,
        chunks: &[&[u8]],
    ) -> Result<SealedObject, PacketiseError> {
        let pieces = self.pieces(LayerContent::Chunks(chunks))?;
        self.packetise_pieces(info, &pieces)
    }

    /// Begins an object that is sent while it is encoded.
    pub fn begin(&mut self, info: ObjectInfo) -> Result<OpenObject, PacketiseError> {
        self.begin_with(info, u16::MAX)
    }

    /// Makes the next slice of an object into packets. They do not name the number of packets.
    pub fn push(
        &mut self,
        object: &mut OpenObject,
        slice: LayerContent<'_>,
    ) -> Result<Vec<SealedPacket>, PacketiseError> {
        let pieces = self.pieces(slice)?;
        count_after(object.next, pieces.len() + 1)?;
        self.seal(object, &pieces, None)
    }

    /// Makes the last slice of an object into packets.
    pub fn finish(
        &mut self,
        mut object: OpenObject,
        slice: LayerContent<'_>,
    ) -> Result<Vec<SealedPacket>, PacketiseError> {
        let pieces = self.pieces(slice)?;
        let count = count_after(object.next, pieces.len())?;
        self.seal(&mut object, &pieces, Some(count))
    }

    /// Returns the payloads of the packets.
    fn pieces<'a>(&self, content: LayerContent<'a>) -> Result<Vec<&'a [u8]>, PacketiseError> {
        let pieces: Vec<&[u8]> = match content {
            LayerContent::Whole(bytes) => split(bytes, self.full).collect(),
            LayerContent::Chunks(chunks) => chunks.to_vec(),
        };
        let longest = self.config.payload();
        if let Some(long) = pieces.iter().find(|piece| piece.len() > longest) {
            return Err(PacketiseError::Chunk(long.len()));
        }
        let is_empty = pieces.iter().any(|piece| piece.is_empty());
        (!is_empty).then_some(pieces).ok_or(PacketiseError::Empty)
    }

    fn packetise_pieces(
        &mut self,
        info: ObjectInfo,
        pieces: &[&[u8]],
    ) -> Result<SealedObject, PacketiseError> {
        let count = count_after(0, pieces.len())?;
        let mut object = self.begin_with(info, count.get())?;
        let packets = self.seal(&mut object, pieces, Some(count))?;
        Ok(SealedObject { info, packets })
    }

    fn begin_with(&mut self, info: ObjectInfo, packets: u16) -> Result<OpenObject, PacketiseError> {
        if info.id.alias != self.config.alias || info.id.layer > MAX_LAYER {
            return Err(PacketiseError::Unknown(info.id));
        }
        if self.newest.is_some_and(|newest| newest >= info.id) {
            return Err(PacketiseError::OutOfOrder);
        }
        let used = self.current.sealed;
        if used > 0 && used.saturating_add(packets.into()) > self.config.limit() {
            self.rotate()?;
        }
        self.newest = Some(info.id);
        Ok(OpenObject {
            info,
            epoch: self.current.epoch,
            next: 0,
        })
    }

    fn seal(
        &mut self,
        object: &mut OpenObject,
        pieces: &[&[u8]],
        count: Option<NonZeroU16>,
    ) -> Result<Vec<SealedPacket>, PacketiseError> {
        let limit = self.config.limit();
        let mut keys = std::iter::once(&mut self.current).chain(&mut self.previous);
        let key = keys
            .find(|key| key.epoch == object.epoch)
            .filter(|key| key.sealed.saturating_add(pieces.len() as u64) <= limit)
            .ok_or(PacketiseError::KeyRetired)?;
        key.sealed += pieces.len() as u64;
        let mut packets = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let header = object.header(count);
            packets.push(key.seal(&header, &self.hop, piece));
            object.next += 1;
        }
        Ok(packets)
    }
}

impl OpenObject {
    /// Returns the object.
    pub const fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn header(&self, count: Option<NonZeroU16>) -> Header {
        Header {
            flags: self.info.flags,
            priority: self.info.priority,
            id: PacketId {
                object: self.info.id,
                index: self.next,
            },
            count,
            deadline: MediaTime::of(self.info.deadline),
            epoch: self.epoch,
        }
    }
}

impl SealingKey {
    fn seal(&self, header: &Header, hop: &Hop, payload: &[u8]) -> SealedPacket {
        let mut sealed = Vec::with_capacity(payload.len() + Header::OVERHEAD);
        sealed.extend_from_slice(payload);
        self.key
            .seal(header.nonce(), &header.immutable(), &mut sealed);
        sealed.splice(..0, header.emit(hop));
        SealedPacket {
            id: header.id,
            datagram: sealed.into(),
        }
    }
}

/// Returns the number of packets of an object that has `more` packets after the first `before`.
fn count_after(before: u16, more: usize) -> Result<NonZeroU16, PacketiseError> {
    if more == 0 {
        return Err(PacketiseError::Empty);
    }
    let count = usize::from(before).checked_add(more);
    count
        .and_then(|count| u16::try_from(count).ok())
        .and_then(NonZeroU16::new)
        .ok_or(PacketiseError::TooLong)
}

/// Returns the fewest pieces of at most `payload` bytes, all but the last of equal length.
fn split(bytes: &[u8], payload: usize) -> impl Iterator<Item = &[u8]> {
    let pieces = bytes.len().div_ceil(payload).max(1);
    bytes.chunks(bytes.len().div_ceil(pieces).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_packets::media::{Flags, Packet};
    use hawser_units::Instant;
    use proptest::prelude::*;

    fn info(group: u32, object: u32, layer: u8) -> ObjectInfo {
        ObjectInfo {
            id: ObjectId {
                alias: 7,
                group,
                object,
                layer,
            },
            priority: 0,
            deadline: Instant::ZERO,
            flags: Flags::default(),
        }
    }

    fn packetiser(packets_per_key: u64) -> Packetiser {
        let secret = TrackSecret::new([1; 32]);
        let hop = secret.access().hop(&[2; 16], 0);
        let config = PacketiserConfig {
            packets_per_key,
            datagram: Header::OVERHEAD + 10,
            ..PacketiserConfig::new(7, [3; 16])
        };
        Packetiser::new(config, secret, hop)
    }

    fn header(packet: &SealedPacket) -> Header {
        Packet::parse(&packet.datagram).unwrap().header
    }

    proptest! {
        #[test]
        fn pieces_are_the_fewest_that_fit(length in 1..3000usize, payload in 1..200usize) {
            let bytes = vec![7; length];
            let pieces: Vec<&[u8]> = split(&bytes, payload).collect();
            prop_assert_eq!(pieces.concat(), &bytes[..]);
            prop_assert!(pieces.iter().all(|piece| (1..=payload).contains(&piece.len())));
            prop_assert_eq!(pieces.len(), length.div_ceil(payload));
        }
    }

    #[test]
    fn an_object_that_does_not_follow_is_refused() {
        let mut packetiser = packetiser(PACKETS_PER_KEY);
        packetiser.packetise(info(1, 1, 1), b"x").unwrap();
        for earlier in [info(1, 1, 1), info(1, 1, 0), info(1, 0, 2), info(0, 2, 2)] {
            let refused = packetiser.packetise(earlier, b"x");
            assert_eq!(refused, Err(PacketiseError::OutOfOrder), "{earlier:?}");
        }
        packetiser.packetise(info(1, 1, 2), b"x").unwrap();
        packetiser.packetise(info(2, 0, 0), b"x").unwrap();
    }

    #[test]
    fn a_key_seals_no_more_packets_than_it_may() {
        let mut packetiser = packetiser(5);
        let epochs = (0..4u32).map(|group| {
            let object = packetiser.packetise(info(group, 0, 0), &[0; 20]).unwrap();
            object.packets.iter().map(|p| header(p).epoch).collect()
        });
        let expected: Vec<Vec<u16>> = vec![vec![0; 2], vec![0; 2], vec![1; 2], vec![1; 2]];
        assert_eq!(epochs.collect::<Vec<Vec<u16>>>(), expected);
        let refused = packetiser.packetise(info(9, 0, 0), &[0; 60]);
        assert_eq!(
            refused,
            Err(PacketiseError::KeyRetired),
            "more than any key"
        );
    }

    #[test]
    fn the_last_epoch_is_not_followed_by_the_first() {
        let mut packetiser = packetiser(1);
        packetiser.current.epoch = u16::MAX;
        packetiser.packetise(info(0, 0, 0), b"x").unwrap();
        let refused = packetiser.packetise(info(1, 0, 0), b"x");
        assert_eq!(refused, Err(PacketiseError::Exhausted));
    }

    #[test]
    fn an_object_in_slices_names_its_length_in_the_last_one() {
        let mut packetiser = packetiser(PACKETS_PER_KEY);
        let mut object = packetiser.begin(info(0, 0, 0)).unwrap();
        let first = packetiser
            .push(&mut object, LayerContent::Whole(&[1; 15]))
            .unwrap();
        packetiser.rotate().unwrap();
        let last = packetiser
            .finish(object, LayerContent::Chunks(&[&[2; 8], &[2; 7]]))
            .unwrap();
        let headers: Vec<Header> = first.iter().chain(&last).map(header).collect();
        let counts: Vec<_> = headers
            .iter()
            .map(|h| h.count.map(NonZeroU16::get))
            .collect();
        assert_eq!(counts, [None, None, Some(4), Some(4)]);
        let indices: Vec<u16> = headers.iter().map(|h| h.id.index).collect();
        assert_eq!(indices, [0, 1, 2, 3]);
        assert!(
            headers.iter().all(|h| h.epoch == 0),
            "the key of its beginning"
        );
    }

    #[test]
    fn an_object_whose_key_was_replaced_twice_is_not_continued() {
        let mut packetiser = packetiser(PACKETS_PER_KEY);
        let mut object = packetiser.begin(info(0, 0, 0)).unwrap();
        packetiser.rotate().unwrap();
        packetiser.rotate().unwrap();
        let refused = packetiser.push(&mut object, LayerContent::Whole(b"x"));
        assert_eq!(refused, Err(PacketiseError::KeyRetired));
    }

    #[test]
    fn objects_without_bytes_and_with_too_many_are_refused() {
        let mut packetiser = packetiser(PACKETS_PER_KEY);
        let mut refused = |chunks: &[&[u8]]| packetiser.packetise_chunks(info(0, 0, 0), chunks);
        assert_eq!(refused(&[]), Err(PacketiseError::Empty));
        assert_eq!(refused(&[b"x", b""]), Err(PacketiseError::Empty));
        assert_eq!(refused(&[&[0; 11]]), Err(PacketiseError::Chunk(11)));
        assert_eq!(refused(&[&b"x"[..]; 65_536]), Err(PacketiseError::TooLong));
        let refused = packetiser.packetise(info(0, 0, 0), &[]);
        assert_eq!(refused, Err(PacketiseError::Empty));
        let other = ObjectInfo {
            id: ObjectId {
                alias: 8,
                ..info(0, 0, 0).id
            },
            ..info(0, 0, 0)
        };
        let refused = packetiser.packetise(other, b"x");
        assert_eq!(refused, Err(PacketiseError::Unknown(other.id)));
    }
}
