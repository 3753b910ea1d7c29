//! Merges packets of one flow into GSO packets, so that the kernel handles them at once; the
//! inverse of splitting.
//!
//! Packets are merged only if the receiver cannot tell the difference: consecutive segments of a
//! TCP connection that differ only in their payload, and datagrams of one flow and one size. Each
//! packet keeps its boundaries. A packet whose checksum is wrong is not merged, because the kernel
//! assumes that the checksum of a GSO packet is right.

use crate::checksum::{finish, fold, sum, sum_of};
use crate::offload::{Gso, Kind, Offload};

/// Maximum number of packets in a GSO packet: the kernel's limit for UDP before 6.9.
const MAX_PACKETS: usize = 64;

/// Maximum size of a GSO packet, including the IP header.
const MAX_BYTES: usize = 65_535;

const TCP: u8 = 6;
const UDP: u8 = 17;
const TCP_ACK: u8 = 0x10;
const TCP_PSH: u8 = 0x08;

/// Packets that are written together.
pub(super) struct Group {
    /// Index of the first packet, which is the only one if nothing was merged.
    pub(super) first: usize,
    /// Indices of the other packets, in order.
    rest: Vec<usize>,
    /// The state for merging further packets; `None` if the packet cannot be merged.
    joinable: Option<Joinable>,
}

/// The state that decides whether the next packet fits.
struct Joinable {
    shape: Shape,
    /// Payload bytes of every packet but the last.
    payload: usize,
    bytes: usize,
    next_sequence: u32,
    /// Whether the last packet was short or had PSH set.
    ended: bool,
    /// Whether the first packet's checksum was verified.
    first_verified: bool,
}

/// The layout of a packet that can be merged.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    is_ipv4: bool,
    protocol: u8,
    transport: usize,
    headers: usize,
}

impl Shape {
    fn of(packet: &[u8]) -> Option<Shape> {
        let number = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        let (is_ipv4, transport, protocol, length) = match packet.first()? >> 4 {
            // No options, no fragments.
            4 if packet.len() >= 20
                && packet[0] == 0x45
                && packet[6] & 0x3f == 0
                && packet[7] == 0 =>
            {
                (true, 20, packet[9], number(2))
            }
            6 if packet.len() >= 40 => (false, 40, packet[6], 40 + number(4)),
            _ => return None,
        };
        let headers = transport + transport_header(protocol, &packet[transport..])?;
        let whole = length == packet.len() && headers < packet.len();
        whole.then_some(Shape {
            is_ipv4,
            protocol,
            transport,
            headers,
        })
    }

    fn payload(self, packet: &[u8]) -> usize {
        packet.len() - self.headers
    }

    fn sequence(self, packet: &[u8]) -> u32 {
        let at = self.transport + 4;
        u32::from_be_bytes([packet[at], packet[at + 1], packet[at + 2], packet[at + 3]])
    }

    fn pushes(self, packet: &[u8]) -> bool {
        self.protocol == TCP && packet[self.transport + 13] & TCP_PSH != 0
    }

    /// Returns whether two packets of this shape belong to one flow.
    fn same_flow(self, one: &[u8], other: &[u8]) -> bool {
        let addresses = if self.is_ipv4 { 12..20 } else { 8..40 };
        let ports = self.transport..self.transport + 4;
        one[addresses.clone()] == other[addresses] && one[ports.clone()] == other[ports]
    }

    /// Returns whether two packets of one flow differ only in fields that splitting sets.
    fn same_headers(self, one: &[u8], other: &[u8]) -> bool {
        let same = |range: std::ops::Range<usize>| one[range.clone()] == other[range];
        // ToS, fragment flags, time to live; or traffic class, flow label, hop limit.
        let network = if self.is_ipv4 {
            same(1..2) && same(6..9)
        } else {
            same(0..4) && same(7..8)
        };
        let at = self.transport;
        // Acknowledgement, data offset, window, options.
        let transport = self.protocol == UDP || (same(at + 8..at + 13) && same(at + 14..at + 16));
        network && transport && (self.protocol == UDP || same(at + 18..self.headers))
    }

    /// Sets the length and the checksum of the IP header for a packet of so many bytes.
    fn set_length(self, headers: &mut [u8], bytes: usize) {
        if self.is_ipv4 {
            headers[2..4].copy_from_slice(&length(bytes));
            headers[10..12].fill(0);
            let checksum = finish(sum(&headers[..self.transport]));
            headers[10..12].copy_from_slice(&checksum);
        } else {
            headers[4..6].copy_from_slice(&length(bytes - 40));
        }
    }

    fn pseudo_header(self, packet: &[u8]) -> u64 {
        let addresses = if self.is_ipv4 {
            &packet[12..20]
        } else {
            &packet[8..40]
        };
        sum(addresses) + sum_of(self.protocol.into())
    }

    fn checksum_is_right(self, packet: &[u8]) -> bool {
        let segment = &packet[self.transport..];
        let sum = self.pseudo_header(packet) + sum_of(segment.len() as u16) + sum(segment);
        finish(sum) == [0; 2]
            && (!self.is_ipv4 || finish(crate::checksum::sum(&packet[..20])) == [0; 2])
    }
}

/// Returns the length of the header of a segment or datagram that can be merged.
fn transport_header(protocol: u8, segment: &[u8]) -> Option<usize> {
    match protocol {
        TCP => {
            let header = segment.first_chunk::<20>()?;
            let only_data = header[13] & !TCP_PSH == TCP_ACK;
            only_data
                .then_some(usize::from(header[12] >> 4) * 4)
                .filter(|length| *length >= 20)
        }
        UDP => {
            let header = segment.first_chunk::<8>()?;
            let has_checksum = header[6..8] != [0; 2];
            let whole = usize::from(u16::from_be_bytes([header[4], header[5]]));
            (has_checksum && whole == segment.len()).then_some(8)
        }
        _ => None,
    }
}

/// Groups `packets`, preserving the order within a flow. `with_udp`: the kernel accepts GSO packets
/// of UDP.
pub(super) fn group<P: AsRef<[u8]>>(packets: &[P], with_udp: bool) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, packet) in packets.iter().enumerate() {
        let packet = packet.as_ref();
        let shape = Shape::of(packet).filter(|shape| with_udp || shape.protocol == TCP);
        let Some(shape) = shape else {
            if with_udp && is_udp(packet) {
                // Packets of the flow that come later must not be merged into a group before this
                // one.
                groups.iter_mut().for_each(Group::end);
            }
            groups.push(Group::begin(index, None));
            continue;
        };
        let latest = groups.iter_mut().rev().find(|group| {
            group.has_shape(shape) && shape.same_flow(packets[group.first].as_ref(), packet)
        });
        if let Some(group) = latest
            && group.takes(packets[group.first].as_ref(), packet)
        {
            group.rest.push(index);
            continue;
        }
        groups.push(Group::begin(index, Some(Joinable::of(shape, packet))));
    }
    groups
}

fn is_udp(packet: &[u8]) -> bool {
    let protocol = if packet.first().is_some_and(|first| first >> 4 == 4) {
        packet.get(9)
    } else {
        packet.get(6)
    };
    protocol == Some(&UDP)
}

impl Joinable {
    /// Returns the state after the first packet of a group.
    fn of(shape: Shape, packet: &[u8]) -> Joinable {
        let payload = shape.payload(packet);
        Joinable {
            shape,
            payload,
            bytes: packet.len(),
            next_sequence: shape.sequence(packet).wrapping_add(payload as u32),
            ended: shape.pushes(packet),
            first_verified: false,
        }
    }
}

impl Group {
    fn begin(first: usize, joinable: Option<Joinable>) -> Group {
        Group {
            first,
            rest: Vec::new(),
            joinable,
        }
    }

    /// Lets no further packet join.
    fn end(&mut self) {
        if let Some(joinable) = &mut self.joinable {
            joinable.ended = true;
        }
    }

    fn has_shape(&self, shape: Shape) -> bool {
        let joinable = self.joinable.as_ref();
        joinable.is_some_and(|joinable| joinable.shape == shape)
    }

    /// Returns the indices of all its packets.
    pub(super) fn members(&self) -> impl Iterator<Item = usize> {
        std::iter::once(self.first).chain(self.rest.iter().copied())
    }

    /// Adds `packet` to the state of the group if it fits, and returns whether it does.
    fn takes(&mut self, first: &[u8], packet: &[u8]) -> bool {
        let Some(joinable) = &mut self.joinable else {
            return false;
        };
        let shape = joinable.shape;
        let payload = shape.payload(packet);
        let fits = !joinable.ended
            && payload <= joinable.payload
            && self.rest.len() + 1 < MAX_PACKETS
            && joinable.bytes + payload <= MAX_BYTES
            && (shape.protocol == UDP || shape.sequence(packet) == joinable.next_sequence)
            && shape.same_headers(first, packet)
            && shape.checksum_is_right(packet);
        if !fits {
            return false;
        }
        if !joinable.first_verified && !shape.checksum_is_right(first) {
            joinable.ended = true;
            return false;
        }
        joinable.first_verified = true;
        joinable.bytes += payload;
        joinable.next_sequence = joinable.next_sequence.wrapping_add(payload as u32);
        joinable.ended = payload < joinable.payload || shape.pushes(packet);
        true
    }

    /// Returns the offload header and the headers of the GSO packet; `None` for a packet that is
    /// written unmerged.
    pub(super) fn headers<P: AsRef<[u8]>>(&self, packets: &[P]) -> Option<(Offload, Vec<u8>)> {
        let joinable = self.joinable.as_ref()?;
        let last = packets[*self.rest.last()?].as_ref();
        let Shape {
            is_ipv4,
            protocol,
            transport,
            headers,
        } = joinable.shape;
        let first = packets[self.first].as_ref();
        let mut bytes = first[..headers].to_vec();
        joinable.shape.set_length(&mut bytes, joinable.bytes);
        let segment = joinable.bytes - transport;
        let (kind, checksum_at) = match (protocol, is_ipv4) {
            (UDP, _) => {
                bytes[transport + 4..transport + 6].copy_from_slice(&length(segment));
                (Kind::Udp, 6)
            }
            (_, is_ipv4) => {
                bytes[transport + 13] |= last[transport + 13] & TCP_PSH;
                (if is_ipv4 { Kind::Tcp4 } else { Kind::Tcp6 }, 16)
            }
        };
        let pseudo_header = fold(joinable.shape.pseudo_header(first) + sum_of(segment as u16));
        bytes[transport + checksum_at..transport + checksum_at + 2].copy_from_slice(&pseudo_header);
        let gso = Gso {
            kind,
            headers,
            payload: joinable.payload,
        };
        let offload = Offload {
            gso: Some(gso),
            checksum: Some((transport, checksum_at)),
        };
        Some((offload, bytes))
    }
}

fn length(bytes: usize) -> [u8; 2] {
    u16::try_from(bytes)
        .expect("the size is limited")
        .to_be_bytes()
}
