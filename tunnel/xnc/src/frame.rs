//! The frames of the coded tunnel: one frame is the payload of one QUIC datagram (RFC 9221).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-------------------------------+---------------+
//! |     count     |         transmission          |               |   0   a packet, followed by
//! +---------------+---------------+---------------+               +       its bytes or its symbol
//! |             start             |                                   4
//! +-------------------------------+
//!
//! +---------------+---------------+-------------------------------+
//! |       0       |    kind 1     |  blocks, each as below                acknowledgements
//! +---------------+---------------+-------------------------------+
//! |E|    path     |    ranges     |             delay             |   0
//! +---------------+---------------+-------------------------------+
//! |                            largest                            |   4
//! |                                                               |   8
//! +---------------------------------------------------------------+
//! |                ECT(0), ECT(1), CE: 32 bits each               |  12   with E only
//! +-------------------------------+-------------------------------+
//! |         more in first         |   then per further range:             gap, more in it: 16 bits each
//! +-------------------------------+
//!
//! +---------------+---------------+-------------------------------+
//! |       0       |    kind 2     |                               |   0   a ping
//! +---------------+---------------+                               +
//! |                         transmission                          |   4
//! +                               +-------------------------------+
//! |                               |                                   8
//! +-------------------------------+
//! ```

use bytes::{Bytes, BytesMut};
use hawser_units::{PathId, PathSet};
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::time::Duration;

/// Maximum number of original packets in a coded packet.
pub const MAX_COUNT: u8 = 63;

/// Maximum number of ranges in a block of an acknowledgement.
pub const MAX_RANGES: usize = 32;

const ACKS: u8 = 1;
const PING: u8 = 2;
const WITH_ECN: u8 = 0x80;

/// A parsed datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An original or a coded packet.
    Packet(PacketHeader, &'a [u8]),
    /// Acknowledgements, at most one block for each path.
    Acks(Vec<AckBlock>),
    /// A request for an acknowledgement, with its transmission number.
    Ping(u64),
}

/// The header of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// The number of original packets that are coded together, 1 to [`MAX_COUNT`]; 1 is the
    /// original itself.
    pub count: u8,
    /// The low 16 bits of the transmission number on the path.
    pub transmission: u16,
    /// The low 24 bits of the number of the first original.
    pub start: u32,
}

/// A packet with room in front of it for the header of its datagram, so that it need not be copied
/// to be sent. Dereferences to the packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketBuffer(BytesMut);

/// Memory for packets of about the same size. Up to [`PacketMemory::SHARERS`] packets share an
/// allocation, which is released when all of them are dropped.
#[derive(Debug)]
pub struct PacketMemory {
    rest: BytesMut,
    /// The bytes of the packets to come.
    left: usize,
}

/// Acknowledged ranges of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AckBlock {
    /// The path.
    pub path: PathId,
    /// The delay between the arrival of the largest number and this acknowledgement, up to 65.535
    /// ms.
    pub delay: Duration,
    /// The acknowledged ranges of transmission numbers, highest range first, at most
    /// [`MAX_RANGES`]; never empty.
    pub ranges: Vec<RangeInclusive<u64>>,
    /// Packets by ECN mark since the path started, if the receiver can read the marks.
    pub ecn: Option<EcnCounts>,
}

/// Counts of received packets by ECN mark. They wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EcnCounts {
    /// Marked ECT(0).
    pub ect0: u32,
    /// Marked ECT(1).
    pub ect1: u32,
    /// Marked CE (congestion experienced).
    pub ce: u32,
}

/// An error in a datagram that should be a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The datagram is shorter than its fields require.
    #[error("the datagram ends early")]
    Truncated,
    /// The kind or the count is not defined.
    #[error("unknown kind of frame")]
    Unknown,
    /// A field has an invalid value, or extra bytes follow the end.
    #[error("a field has an invalid value")]
    Invalid,
}

impl PacketHeader {
    /// The length of the header in bytes.
    pub const LEN: usize = 6;

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; PacketHeader::LEN] {
        let [transmission_high, transmission_low] = self.transmission.to_be_bytes();
        let [_, start_high, start_middle, start_low] = self.start.to_be_bytes();
        [
            self.count,
            transmission_high,
            transmission_low,
            start_high,
            start_middle,
            start_low,
        ]
    }
}

impl PacketBuffer {
    /// Returns the datagram: the header and the packet.
    pub fn into_datagram(self, header: PacketHeader) -> Bytes {
        let mut datagram = self.0;
        datagram[..PacketHeader::LEN].copy_from_slice(&header.emit());
        datagram.freeze()
    }
}

impl PacketMemory {
    /// The number of packets that share an allocation. A packet that is kept keeps the memory of
    /// the others.
    pub const SHARERS: usize = 4;

    /// Returns memory for `packets` packets of `bytes` bytes in total. More of them only need more
    /// allocations.
    pub fn for_packets(packets: usize, bytes: usize) -> Self {
        PacketMemory {
            rest: BytesMut::new(),
            left: packets * PacketHeader::LEN + bytes,
        }
    }

    /// Returns the packet that consists of these parts.
    pub fn packet(&mut self, parts: &[&[u8]]) -> PacketBuffer {
        let length = PacketHeader::LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        if self.rest.capacity() < length {
            let shared = self.left.min(Self::SHARERS * length);
            self.rest = BytesMut::with_capacity(shared.max(length));
        }
        self.left = self.left.saturating_sub(length);
        self.rest.extend_from_slice(&[0; PacketHeader::LEN]);
        for part in parts {
            self.rest.extend_from_slice(part);
        }
        PacketBuffer(self.rest.split())
    }
}

impl Deref for PacketBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0[PacketHeader::LEN..]
    }
}

impl DerefMut for PacketBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0[PacketHeader::LEN..]
    }
}

impl AsRef<[u8]> for PacketBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for PacketBuffer {
    fn from(packet: &[u8]) -> Self {
        PacketMemory::for_packets(1, packet.len()).packet(&[packet])
    }
}

impl From<Vec<u8>> for PacketBuffer {
    fn from(packet: Vec<u8>) -> Self {
        packet.as_slice().into()
    }
}

impl<'a> Frame<'a> {
    /// Parses a datagram.
    ///
    /// Returns an error if the datagram is truncated or invalid.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ParseError> {
        let mut cursor = Cursor(datagram);
        match cursor.byte()? {
            0 => match cursor.byte()? {
                ACKS => parse_acks(cursor),
                PING => {
                    let number = cursor.array().map(u64::from_be_bytes)?;
                    if cursor.0.is_empty() {
                        Ok(Frame::Ping(number))
                    } else {
                        Err(ParseError::Invalid)
                    }
                }
                _ => Err(ParseError::Unknown),
            },
            count @ 1..=MAX_COUNT => {
                let transmission = cursor.array().map(u16::from_be_bytes)?;
                let [high, middle, low] = cursor.array()?;
                let start = u32::from_be_bytes([0, high, middle, low]);
                if cursor.0.is_empty() {
                    return Err(ParseError::Truncated);
                }
                Ok(Frame::Packet(
                    PacketHeader {
                        count,
                        transmission,
                        start,
                    },
                    cursor.0,
                ))
            }
            _ => Err(ParseError::Unknown),
        }
    }
}

/// Returns the datagram of a ping.
pub fn emit_ping(transmission: u64) -> Vec<u8> {
    [&[0, PING][..], &transmission.to_be_bytes()].concat()
}

/// Returns the datagram of as many blocks, from the first on, as fit into `limit` bytes, and their
/// number.
pub fn emit_acks(blocks: &[AckBlock], limit: usize) -> (Vec<u8>, usize) {
    let mut datagram = vec![0, ACKS];
    for (number, block) in blocks.iter().enumerate() {
        let before = datagram.len();
        emit_block(block, &mut datagram);
        if datagram.len() > limit {
            datagram.truncate(before);
            return (datagram, number);
        }
    }
    (datagram, blocks.len())
}

/// Emits a block. Ranges after the first whose gap or length exceeds 16 bits are left out together
/// with all lower ones.
fn emit_block(block: &AckBlock, datagram: &mut Vec<u8>) {
    let Some(first) = block.ranges.first() else {
        return;
    };
    let head = datagram.len();
    let path = u8::from(block.path) | if block.ecn.is_some() { WITH_ECN } else { 0 };
    datagram.extend([path, 0]);
    let delay = u16::try_from(block.delay.as_micros()).unwrap_or(u16::MAX);
    datagram.extend(delay.to_be_bytes());
    datagram.extend(first.end().to_be_bytes());
    if let Some(ecn) = block.ecn {
        for count in [ecn.ect0, ecn.ect1, ecn.ce] {
            datagram.extend(count.to_be_bytes());
        }
    }
    let more = (first.end() - first.start()).min(u16::MAX.into());
    datagram.extend((more as u16).to_be_bytes());
    let mut emitted = 1;
    let mut below = first.end() - more;
    for range in block.ranges[1..].iter().take(MAX_RANGES - 1) {
        let gap = below
            .checked_sub(range.end() + 2)
            .and_then(|gap| u16::try_from(gap).ok());
        let (Some(gap), Ok(more)) = (gap, u16::try_from(range.end() - range.start())) else {
            break;
        };
        datagram.extend(gap.to_be_bytes());
        datagram.extend(more.to_be_bytes());
        below = *range.start();
        emitted += 1;
    }
    datagram[head + 1] = emitted;
}

fn parse_acks(mut cursor: Cursor<'_>) -> Result<Frame<'_>, ParseError> {
    let mut blocks = Vec::new();
    let mut seen = PathSet::EMPTY;
    while !cursor.0.is_empty() {
        let block = parse_block(&mut cursor)?;
        if seen.contains(block.path) {
            return Err(ParseError::Invalid);
        }
        seen = seen.with(block.path);
        blocks.push(block);
    }
    if blocks.is_empty() {
        Err(ParseError::Truncated)
    } else {
        Ok(Frame::Acks(blocks))
    }
}

fn parse_block(cursor: &mut Cursor<'_>) -> Result<AckBlock, ParseError> {
    let path = cursor.byte()?;
    let count = usize::from(cursor.byte()?);
    if !(1..=MAX_RANGES).contains(&count) {
        return Err(ParseError::Invalid);
    }
    let delay = Duration::from_micros(cursor.array().map(u16::from_be_bytes)?.into());
    let largest = cursor.array().map(u64::from_be_bytes)?;
    let ecn = if path & WITH_ECN == 0 {
        None
    } else {
        let [ect0, ect1, ce] = [cursor.word()?, cursor.word()?, cursor.word()?];
        Some(EcnCounts { ect0, ect1, ce })
    };
    let path = PathId::try_from(path & !WITH_ECN).map_err(|_| ParseError::Invalid)?;
    let mut ranges = Vec::with_capacity(count);
    let mut end = largest;
    for number in 0..count {
        if number > 0 {
            let gap = cursor.array().map(u16::from_be_bytes)?;
            end = end
                .checked_sub(u64::from(gap) + 2)
                .ok_or(ParseError::Invalid)?;
        }
        let more = cursor.array().map(u16::from_be_bytes)?;
        let start = end.checked_sub(more.into()).ok_or(ParseError::Invalid)?;
        ranges.push(start..=end);
        end = start;
    }
    Ok(AckBlock {
        path,
        delay,
        ranges,
        ecn,
    })
}

/// The bytes that are left to read.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, ParseError> {
        self.array().map(|[byte]| byte)
    }

    fn word(&mut self) -> Result<u32, ParseError> {
        self.array().map(u32::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::golden::Fields;
    use proptest::prelude::*;

    const PACKETS: [(&str, &str); 2] = [
        ("xnc-original", include_str!("../testdata/xnc-original.txt")),
        ("xnc-coded", include_str!("../testdata/xnc-coded.txt")),
    ];
    const ACKNOWLEDGEMENTS: &str = include_str!("../testdata/xnc-acks.txt");
    const PINGED: &str = include_str!("../testdata/xnc-ping.txt");

    #[test]
    fn packets_that_share_memory_are_independent() {
        let mut memory = PacketMemory::for_packets(9, 9 * 6);
        let parts = |number: u8| [[number; 4].to_vec(), vec![number; 2]];
        let packets = (0..9).map(|number| {
            let [start, end] = parts(number);
            memory.packet(&[&start, &end])
        });
        let mut packets: Vec<PacketBuffer> = packets.collect();
        let shared = |one: &PacketBuffer, next: &PacketBuffer| {
            next.as_ptr() as usize - one.as_ptr() as usize == PacketHeader::LEN + 6
        };
        let sharing = packets[..PacketMemory::SHARERS].windows(2);
        assert!(sharing.into_iter().all(|pair| shared(&pair[0], &pair[1])));
        packets[0].fill(0xff);
        let kept = packets.split_off(1);
        for (number, packet) in (1..).zip(&kept) {
            assert_eq!(packet[..], [number; 6]);
        }
        let header = PacketHeader {
            count: 1,
            transmission: 2,
            start: 3,
        };
        for (number, packet) in (1..).zip(kept) {
            let datagram = packet.into_datagram(header);
            assert_eq!(datagram[..PacketHeader::LEN], header.emit());
            assert_eq!(datagram[PacketHeader::LEN..], [number; 6]);
        }
        // A packet that was not announced.
        assert_eq!(memory.packet(&[&[7; 100]])[..], [7; 100]);
    }

    #[test]
    fn no_more_memory_is_allocated_than_the_packets_have() {
        let sizes = [1000, 1000, 1000, 1000, 1000, 1];
        let mut memory = PacketMemory::for_packets(sizes.len(), sizes.iter().sum());
        for (index, size) in sizes.into_iter().enumerate() {
            let is_first = index % PacketMemory::SHARERS == 0;
            assert_eq!(memory.rest.capacity() == 0, is_first, "packet {index}");
            let _ = memory.packet(&[&vec![0; size]]);
        }
        assert_eq!(memory.rest.capacity(), 0);
    }

    #[test]
    fn packets_are_those_of_the_other_implementation() {
        for (name, text) in PACKETS {
            let fields = Fields::parse(name, text);
            let [count] = fields.array("count");
            let [high, middle, low] = fields.array("start");
            let header = PacketHeader {
                count,
                transmission: u16::from_be_bytes(fields.array("transmission")),
                start: u32::from_be_bytes([0, high, middle, low]),
            };
            let datagram = fields.bytes("datagram");
            assert_eq!(
                Frame::parse(datagram),
                Ok(Frame::Packet(header, fields.bytes("payload"))),
                "{name}"
            );
            assert_eq!(
                [&header.emit(), fields.bytes("payload")].concat(),
                datagram,
                "{name}"
            );
        }
    }

    #[test]
    fn acknowledgements_are_those_of_the_other_implementation() {
        let fields = Fields::parse("xnc-acks", ACKNOWLEDGEMENTS);
        let blocks = vec![
            AckBlock {
                path: PathId::try_from(2).unwrap(),
                delay: Duration::from_micros(1500),
                ranges: vec![70_000..=70_010, 69_990..=69_990, 5_000..=5_001],
                ecn: None,
            },
            AckBlock {
                path: PathId::try_from(7).unwrap(),
                delay: Duration::ZERO,
                ranges: vec![0..=0],
                ecn: Some(EcnCounts {
                    ect0: 1,
                    ect1: 0x0102_0304,
                    ce: u32::MAX,
                }),
            },
        ];
        let datagram = fields.bytes("datagram");
        assert_eq!(Frame::parse(datagram), Ok(Frame::Acks(blocks.clone())));
        assert_eq!(emit_acks(&blocks, datagram.len()), (datagram.to_vec(), 2));
        assert_eq!(
            emit_acks(&blocks, datagram.len() - 1).1,
            1,
            "the second block does not fit"
        );
    }

    #[test]
    fn a_ping_is_that_of_the_other_implementation() {
        let fields = Fields::parse("xnc-ping", PINGED);
        let number = u64::from_be_bytes(fields.array("transmission"));
        assert_eq!(emit_ping(number), fields.bytes("datagram"));
        assert_eq!(
            Frame::parse(fields.bytes("datagram")),
            Ok(Frame::Ping(number))
        );
    }

    #[test]
    fn truncated_and_invalid_frames_are_rejected() {
        let packet = PacketHeader {
            count: 1,
            transmission: 1,
            start: 1,
        }
        .emit();
        let ping = emit_ping(1);
        let fields = Fields::parse("xnc-acks", ACKNOWLEDGEMENTS);
        for whole in [&packet[..], &ping[..9], &fields.bytes("datagram")[..20]] {
            for length in 0..=whole.len() {
                assert_eq!(
                    Frame::parse(&whole[..length]),
                    Err(ParseError::Truncated),
                    "{length} bytes"
                );
            }
        }
        assert_eq!(Frame::parse(&[64; 20]), Err(ParseError::Unknown));
        assert_eq!(Frame::parse(&[0, 3]), Err(ParseError::Unknown));
        assert_eq!(
            Frame::parse(&[&ping[..], &[0]].concat()),
            Err(ParseError::Invalid)
        );
    }

    #[test]
    fn a_range_below_zero_is_rejected() {
        let block = [0, ACKS, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 6];
        assert_eq!(Frame::parse(&block), Err(ParseError::Invalid));
    }

    #[test]
    fn a_path_may_occur_once_in_a_frame() {
        let path = |number: u8| [number, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 9];
        let frame = |paths: &[u8]| {
            let blocks = paths.iter().flat_map(|number| path(*number));
            [0, ACKS].into_iter().chain(blocks).collect::<Vec<u8>>()
        };
        assert!(Frame::parse(&frame(&[0, 1, 2, 3, 4, 5, 6, 7])).is_ok());
        assert_eq!(Frame::parse(&frame(&[0, 1, 0])), Err(ParseError::Invalid));
        assert_eq!(Frame::parse(&frame(&[0; 102])), Err(ParseError::Invalid));
    }

    fn descending(steps: Vec<(u64, u64)>) -> Vec<RangeInclusive<u64>> {
        let mut end = 1 << 40;
        let range = |(gap, more): (u64, u64)| {
            end -= gap + 2;
            let range = end - more..=end;
            end -= more;
            range
        };
        steps.into_iter().map(range).collect()
    }

    proptest! {
        #[test]
        fn emitted_acknowledgements_are_parsed_back(
            path in 0u8..8,
            micros in 0u64..=65_535,
            steps in proptest::collection::vec((0u64..=65_535, 0u64..=65_535), 1..=MAX_RANGES),
            counts in proptest::option::of(any::<(u32, u32, u32)>()),
        ) {
            let block = AckBlock {
                path: PathId::try_from(path).unwrap(),
                delay: Duration::from_micros(micros),
                ranges: descending(steps),
                ecn: counts.map(|(ect0, ect1, ce)| EcnCounts { ect0, ect1, ce }),
            };
            let (datagram, emitted) = emit_acks(std::slice::from_ref(&block), usize::MAX);
            prop_assert_eq!(emitted, 1);
            prop_assert_eq!(Frame::parse(&datagram), Ok(Frame::Acks(vec![block])));
        }

        #[test]
        fn no_datagram_panics(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Frame::parse(&datagram);
        }
    }
}
