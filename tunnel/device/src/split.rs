//! Splits a GSO packet, as the kernel passes it to a device with segmentation offload, into
//! packets.

use crate::checksum::{finish, sum, sum_of};
use crate::offload::{Gso, Kind, Offload};
use hawser_xnc::frame::{PacketBuffer, PacketMemory};

/// The error for a packet from the kernel that is inconsistent with its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the kernel handed over a packet that is inconsistent with its offload header")]
pub struct Malformed;

const TCP_FIN_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;

/// Splits `packet` and appends the resulting packets, with their checksums, to `packets`.
pub(super) fn split(
    offload: Offload,
    packet: &[u8],
    packets: &mut Vec<PacketBuffer>,
) -> Result<(), Malformed> {
    let Some(gso) = offload.gso else {
        let mut packet = PacketBuffer::from(packet);
        if let Some((start, offset)) = offload.checksum {
            complete(&mut packet, start, offset)?;
        }
        packets.push(packet);
        return Ok(());
    };
    let (start, _) = offload.checksum.ok_or(Malformed)?;
    split_gso(gso, start, packet, packets)
}

/// Splits a GSO packet whose transport header begins at `start`.
fn split_gso(
    gso: Gso,
    start: usize,
    packet: &[u8],
    packets: &mut Vec<PacketBuffer>,
) -> Result<(), Malformed> {
    let template = Template::of(gso, packet, start)?;
    let (headers, payload) = packet.split_at_checked(template.headers).ok_or(Malformed)?;
    if gso.payload == 0 {
        return Err(Malformed);
    }
    let pieces = payload.chunks(gso.payload);
    let bytes = pieces.len() * headers.len() + payload.len();
    let mut memory = PacketMemory::for_packets(pieces.len(), bytes);
    let mut pieces = pieces.enumerate().peekable();
    while let Some((index, piece)) = pieces.next() {
        let position = Position {
            index,
            offset: index * gso.payload,
            last: pieces.peek().is_none(),
        };
        let mut packet = memory.packet(&[headers, piece]);
        template.finish(&mut packet, position)?;
        packets.push(packet);
    }
    Ok(())
}

/// Completes the checksum of the bytes from `start` on; its field already holds the sum of the
/// pseudo-header.
fn complete(packet: &mut [u8], start: usize, offset: usize) -> Result<(), Malformed> {
    let segment = packet.get_mut(start..).ok_or(Malformed)?;
    let checksum = never_zero(finish(sum(segment)));
    segment
        .get_mut(offset..offset + 2)
        .ok_or(Malformed)?
        .copy_from_slice(&checksum);
    Ok(())
}

/// Replaces zero, which means no checksum in UDP. For TCP, the two zeros of this arithmetic are
/// equivalent.
fn never_zero(checksum: [u8; 2]) -> [u8; 2] {
    if checksum == [0; 2] {
        [0xff; 2]
    } else {
        checksum
    }
}

/// The properties that all segments of a GSO packet share.
struct Template {
    kind: Kind,
    is_ipv4: bool,
    /// Offset of the TCP or UDP header.
    transport: usize,
    headers: usize,
    /// Sum of addresses and protocol.
    pseudo_header: u64,
    identification: u16,
    sequence: u32,
    flags: u8,
}

#[derive(Clone, Copy)]
struct Position {
    index: usize,
    /// Payload bytes before this segment.
    offset: usize,
    last: bool,
}

impl Template {
    fn of(gso: Gso, packet: &[u8], transport: usize) -> Result<Template, Malformed> {
        let is_ipv4 = match packet.first().ok_or(Malformed)? >> 4 {
            4 => true,
            6 => false,
            _ => return Err(Malformed),
        };
        let (smallest, addresses) = if is_ipv4 { (20, 12..20) } else { (40, 8..40) };
        if transport < smallest {
            return Err(Malformed);
        }
        let segment = packet.get(transport..).ok_or(Malformed)?;
        let (protocol, length, sequence, flags) = match gso.kind {
            Kind::Udp => (17, 8, 0, 0),
            Kind::Tcp4 | Kind::Tcp6 => {
                let fixed = segment.first_chunk::<20>().ok_or(Malformed)?;
                let sequence = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
                (6, usize::from(fixed[12] >> 4) * 4, sequence, fixed[13])
            }
        };
        // The data offset of TCP (RFC 9293, section 3.1) may be less than its fixed header.
        let fixed_length = if protocol == 6 { 20 } else { 8 };
        if segment.len() < length || length < fixed_length {
            return Err(Malformed);
        }
        Ok(Template {
            kind: gso.kind,
            is_ipv4,
            transport,
            headers: transport + length,
            pseudo_header: sum(packet.get(addresses).ok_or(Malformed)?) + sum_of(protocol),
            identification: u16::from_be_bytes([packet[4], packet[5]]),
            sequence,
            flags,
        })
    }

    /// Fills the header fields that differ between segments, and the checksums.
    fn finish(&self, packet: &mut [u8], position: Position) -> Result<(), Malformed> {
        let length = |bytes: usize| u16::try_from(bytes).map_err(|_| Malformed);
        let whole = packet.len();
        let (network, segment) = packet.split_at_mut(self.transport);
        if self.is_ipv4 {
            self.finish_ipv4(network, length(whole)?, position.index);
        } else {
            network[4..6].copy_from_slice(&length(whole - 40)?.to_be_bytes());
        }
        let segment_length = length(segment.len())?;
        let checksum_at = match self.kind {
            Kind::Udp => {
                segment[4..6].copy_from_slice(&segment_length.to_be_bytes());
                6
            }
            Kind::Tcp4 | Kind::Tcp6 => {
                let sequence = self.sequence.wrapping_add(position.offset as u32);
                segment[4..8].copy_from_slice(&sequence.to_be_bytes());
                let only_last = if position.last { 0 } else { TCP_FIN_PSH };
                let only_first = if position.index == 0 { 0 } else { TCP_CWR };
                segment[13] = self.flags & !only_last & !only_first;
                16
            }
        };
        segment[checksum_at..checksum_at + 2].fill(0);
        let checksum = never_zero(finish(
            self.pseudo_header + sum_of(segment_length) + sum(segment),
        ));
        segment[checksum_at..checksum_at + 2].copy_from_slice(&checksum);
        Ok(())
    }
    fn finish_ipv4(&self, header: &mut [u8], length: u16, index: usize) {
        // The kernel's own segmentation also increments the identification.
        let identification = self.identification.wrapping_add(index as u16);
        header[2..4].copy_from_slice(&length.to_be_bytes());
        header[4..6].copy_from_slice(&identification.to_be_bytes());
        header[10..12].fill(0);
        let checksum = finish(sum(header));
        header[10..12].copy_from_slice(&checksum);
    }
}
