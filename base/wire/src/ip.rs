//! The parts of IPv4, IPv6, UDP and ECN that encapsulation needs, and packets for tests.

use siphasher::sip::SipHasher13;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Protocol number of UDP.
pub const UDP: u8 = 17;

const TCP: u8 = 6;

/// The ECN field of a ToS byte or traffic class (RFC 3168).
pub const ECN_MASK: u8 = 0b11;

/// The ECN field "congestion experienced" (RFC 3168).
pub const CE: u8 = 0b11;

/// An error in a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The packet is shorter than its headers say.
    #[error("the packet is truncated")]
    Truncated,
    /// The first nibble is neither 4 nor 6, or not the one expected.
    #[error("IP version {0} is not the one expected")]
    Version(u8),
    /// The packet has IPv4 options.
    #[error("the packet has IPv4 options")]
    Options,
    /// The packet is a fragment.
    #[error("the packet is a fragment")]
    Fragment,
    /// The checksum of the IPv4 header or of UDP is wrong.
    #[error("the checksum is wrong")]
    Checksum,
}

/// An IPv4 header without options, of a packet that is not a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv4Header {
    /// DSCP and ECN.
    pub tos: u8,
    /// The length of header and payload in bytes.
    pub total_length: u16,
    /// Has no meaning if `dont_fragment` is set (RFC 6864).
    pub identification: u16,
    /// Whether routers must not fragment the packet, and reply with ICMP if it is too long.
    pub dont_fragment: bool,
    /// The number of hops left.
    pub ttl: u8,
    /// The protocol of the payload.
    pub protocol: u8,
    /// The sender.
    pub source: Ipv4Addr,
    /// The receiver.
    pub destination: Ipv4Addr,
}

impl Ipv4Header {
    /// The length on the wire in bytes.
    pub const LEN: usize = 20;

    /// Parses the header. Returns it with its payload, without the padding of the link layer.
    pub fn parse(packet: &[u8]) -> Result<(Ipv4Header, &[u8]), HeaderError> {
        let header = packet
            .first_chunk::<{ Ipv4Header::LEN }>()
            .ok_or(HeaderError::Truncated)?;
        let [
            version_ihl,
            tos,
            l0,
            l1,
            i0,
            i1,
            f0,
            f1,
            ttl,
            protocol,
            _,
            _,
            s0,
            s1,
            s2,
            s3,
            d0,
            d1,
            d2,
            d3,
        ] = *header;

        if version_ihl >> 4 != 4 {
            return Err(HeaderError::Version(version_ihl >> 4));
        }
        if version_ihl & 0xf != 5 {
            return Err(HeaderError::Options);
        }
        if checksum(header) != 0 {
            return Err(HeaderError::Checksum);
        }
        if u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
            return Err(HeaderError::Fragment);
        }
        let header = Ipv4Header {
            tos,
            total_length: u16::from_be_bytes([l0, l1]),
            identification: u16::from_be_bytes([i0, i1]),
            dont_fragment: f0 & 0x40 != 0,
            ttl,
            protocol,
            source: [s0, s1, s2, s3].into(),
            destination: [d0, d1, d2, d3].into(),
        };
        let payload = packet
            .get(Self::LEN..usize::from(header.total_length))
            .ok_or(HeaderError::Truncated)?;
        Ok((header, payload))
    }

    /// Returns the bytes on the wire, including the checksum.
    pub fn emit(&self) -> [u8; Ipv4Header::LEN] {
        let mut bytes = [0; Ipv4Header::LEN];
        bytes[0] = 0x45;
        bytes[1] = self.tos;
        bytes[2..4].copy_from_slice(&self.total_length.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.identification.to_be_bytes());
        bytes[6] = if self.dont_fragment { 0x40 } else { 0 };
        bytes[8] = self.ttl;
        bytes[9] = self.protocol;
        bytes[12..16].copy_from_slice(&self.source.octets());
        bytes[16..20].copy_from_slice(&self.destination.octets());
        let sum = checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    }
}

/// An IPv6 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ipv6Header {
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// The flow label, of 20 bits.
    pub flow_label: u32,
    /// The length of everything after the header in bytes.
    pub payload_length: u16,
    /// The protocol of the payload.
    pub next_header: u8,
    /// The number of hops left.
    pub hop_limit: u8,
    /// The sender.
    pub source: Ipv6Addr,
    /// The receiver.
    pub destination: Ipv6Addr,
}

impl Ipv6Header {
    /// The length on the wire in bytes.
    pub const LEN: usize = 40;

    /// Parses the header. Returns it with its payload, without the padding of the link layer.
    pub fn parse(packet: &[u8]) -> Result<(Ipv6Header, &[u8]), HeaderError> {
        let (header, rest) = packet
            .split_first_chunk::<{ Ipv6Header::LEN }>()
            .ok_or(HeaderError::Truncated)?;
        let [
            w0,
            w1,
            w2,
            w3,
            l0,
            l1,
            next_header,
            hop_limit,
            addresses @ ..,
        ] = *header;
        let first_word = u32::from_be_bytes([w0, w1, w2, w3]);
        let (source, destination) = addresses.split_at(16);
        let address =
            |octets: &[u8]| Ipv6Addr::from(<[u8; 16]>::try_from(octets).expect("half of 32 bytes"));

        if w0 >> 4 != 6 {
            return Err(HeaderError::Version(w0 >> 4));
        }
        let header = Ipv6Header {
            traffic_class: w0 << 4 | w1 >> 4,
            flow_label: first_word & 0xf_ffff,
            payload_length: u16::from_be_bytes([l0, l1]),
            next_header,
            hop_limit,
            source: address(source),
            destination: address(destination),
        };
        let payload = rest
            .get(..usize::from(header.payload_length))
            .ok_or(HeaderError::Truncated)?;
        Ok((header, payload))
    }

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; Ipv6Header::LEN] {
        let first_word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        let mut bytes = [0; Ipv6Header::LEN];
        bytes[..4].copy_from_slice(&first_word.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.payload_length.to_be_bytes());
        bytes[6] = self.next_header;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.source.octets());
        bytes[24..40].copy_from_slice(&self.destination.octets());
        bytes
    }
}

/// A UDP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpHeader {
    /// The sender's port.
    pub source_port: u16,
    /// The receiver's port.
    pub destination_port: u16,
    /// The length of header and payload in bytes.
    pub length: u16,
    /// The checksum; zero if there is none, which only IPv4 allows.
    pub checksum: u16,
}

impl UdpHeader {
    /// The length on the wire in bytes.
    pub const LEN: usize = 8;

    /// Parses the header. Returns it with its payload.
    pub fn parse(segment: &[u8]) -> Result<(UdpHeader, &[u8]), HeaderError> {
        let [s0, s1, d0, d1, l0, l1, c0, c1] =
            *segment.first_chunk().ok_or(HeaderError::Truncated)?;
        let header = UdpHeader {
            source_port: u16::from_be_bytes([s0, s1]),
            destination_port: u16::from_be_bytes([d0, d1]),
            length: u16::from_be_bytes([l0, l1]),
            checksum: u16::from_be_bytes([c0, c1]),
        };
        let payload = segment
            .get(Self::LEN..usize::from(header.length))
            .ok_or(HeaderError::Truncated)?;
        Ok((header, payload))
    }

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; UdpHeader::LEN] {
        let [s0, s1] = self.source_port.to_be_bytes();
        let [d0, d1] = self.destination_port.to_be_bytes();
        let [l0, l1] = self.length.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}

/// Returns the internet checksum (RFC 1071). It is zero over bytes that include their own correct
/// checksum.
pub fn checksum(bytes: &[u8]) -> u16 {
    fold(sum(bytes))
}

/// Returns the checksum of a TCP, UDP or ICMPv6 segment with its pseudo-header (RFC 793, RFC 8200
/// section 8.1).
///
/// A UDP sender replaces a result of zero by 0xffff. Over a segment that includes its own correct
/// checksum, the result is zero.
pub fn transport_checksum(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    segment: &[u8],
) -> u16 {
    let address = |address| match address {
        IpAddr::V4(v4) => sum(&v4.octets()),
        IpAddr::V6(v6) => sum(&v6.octets()),
    };
    fold(
        address(source)
            + address(destination)
            + u64::from(protocol)
            + segment.len() as u64
            + sum(segment),
    )
}

/// Returns the ToS byte or traffic class of an IPv4 or IPv6 packet.
pub fn traffic_class(packet: &[u8]) -> Result<u8, HeaderError> {
    match *packet {
        [first, second, ..] => match first >> 4 {
            4 => Ok(second),
            6 => Ok(first << 4 | second >> 4),
            version => Err(HeaderError::Version(version)),
        },
        _ => Err(HeaderError::Truncated),
    }
}

/// Returns a number that is the same for all packets of a flow: a hash of the addresses, the protocol
/// and, for TCP and UDP, the ports. Ports of fragments and behind IPv6 extension headers do not
/// count. All packets that are not IP are one flow.
pub fn flow_hash(packet: &[u8]) -> u64 {
    let mut key = [0; 37];
    if let Some((addresses, protocol, ports)) = flow_fields(packet) {
        key[..addresses.len()].copy_from_slice(addresses);
        key[32..36].copy_from_slice(&ports);
        key[36] = protocol;
    }
    SipHasher13::new().hash(&key)
}

/// Returns the addresses, the protocol and the ports of an IP packet.
fn flow_fields(packet: &[u8]) -> Option<(&[u8], u8, [u8; 4])> {
    let first = *packet.first()?;
    let (addresses, protocol, header, is_fragment) = match first >> 4 {
        4 => {
            let fragment = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?);
            let length = usize::from(first & 0xf) * 4;
            (
                packet.get(12..20)?,
                packet[9],
                length,
                fragment & 0x3fff != 0,
            )
        }
        6 => (packet.get(8..40)?, packet[6], Ipv6Header::LEN, false),
        _ => return None,
    };
    let has_ports = !is_fragment && matches!(protocol, TCP | UDP);
    let ports = packet.get(header..).and_then(<[u8]>::first_chunk);
    let ports = ports.copied().filter(|_| has_ports).unwrap_or_default();
    Some((addresses, protocol, ports))
}

/// Marks an IP packet with CE and updates the checksum of its IPv4 header (RFC 1624). Returns
/// `false` and leaves the packet unchanged if it is not ECN-capable (RFC 3168) or not an IP packet.
pub fn mark_congestion(packet: &mut [u8]) -> bool {
    if traffic_class(packet).is_ok_and(|class| class & ECN_MASK != 0) {
        match *packet {
            [first, tos, .., _] if first >> 4 == 4 && packet.len() >= Ipv4Header::LEN => {
                let (old, new) = ([first, tos], [first, tos | CE]);
                let before = u16::from_be_bytes([packet[10], packet[11]]);
                let [old, new] = [old, new].map(u16::from_be_bytes);
                let after = updated_checksum(before, old, new);
                packet[1] = tos | CE;
                packet[10..12].copy_from_slice(&after.to_be_bytes());
                return true;
            }
            [first, ..] if first >> 4 == 6 && packet.len() >= Ipv6Header::LEN => {
                packet[1] |= CE << 4;
                return true;
            }
            _ => {}
        }
    }
    false
}

/// Returns the ECN field of a decapsulated packet, or `None` if the packet must be dropped.
///
/// Follows RFC 6040, section 4.2, except that an outer ECT(1) does not replace an inner ECT(0): no
/// network marks packets that way, and RFC 9331 has since made ECT(1) the identifier of another
/// queue.
pub fn decapsulated_ecn(outer: u8, inner: u8) -> Option<u8> {
    match (outer & ECN_MASK, inner & ECN_MASK) {
        (CE, 0) => None,
        (CE, _) => Some(CE),
        (_, inner) => Some(inner),
    }
}

/// Returns a whole UDP packet with correct checksums, hop limit 64 and, over IPv4, don't-fragment
/// and ID 0.
///
/// # Panics
///
/// Panics if the addresses are of different families, or if the payload is too long for a packet.
pub fn udp_packet(
    source: SocketAddr,
    destination: SocketAddr,
    traffic_class: u8,
    payload: &[u8],
) -> Vec<u8> {
    let length = u16::try_from(UdpHeader::LEN + payload.len()).expect("the payload fits a packet");
    let (from, to) = (source.ip(), destination.ip());
    let ip = header_of_udp(from, to, traffic_class, length).expect("the payload fits a packet");
    let mut udp = UdpHeader {
        source_port: source.port(),
        destination_port: destination.port(),
        length,
        checksum: 0,
    };
    udp.checksum = udp_checksum(from, to, &[&udp.emit()[..], payload].concat());
    [&ip[..], &udp.emit(), payload].concat()
}

/// Returns the IP header before a UDP segment of `length` bytes: hop limit 64 and, over IPv4,
/// don't-fragment and ID 0. `None` if the packet would be too long.
///
/// # Panics
///
/// Panics if the addresses are of different families.
pub fn header_of_udp(
    source: IpAddr,
    destination: IpAddr,
    traffic_class: u8,
    length: u16,
) -> Option<Vec<u8>> {
    const HOP_LIMIT: u8 = 64;
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let header = Ipv4Header {
                tos: traffic_class,
                total_length: length.checked_add(Ipv4Header::LEN as u16)?,
                identification: 0,
                dont_fragment: true,
                ttl: HOP_LIMIT,
                protocol: UDP,
                source,
                destination,
            };
            Some(header.emit().to_vec())
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = Ipv6Header {
                traffic_class,
                flow_label: 0,
                payload_length: length,
                next_header: UDP,
                hop_limit: HOP_LIMIT,
                source,
                destination,
            };
            Some(header.emit().to_vec())
        }
        _ => panic!("{source} and {destination} are of different families"),
    }
}

/// Returns the [`transport_checksum`] of a UDP segment, as it is sent.
pub fn udp_checksum(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u16 {
    match transport_checksum(source, destination, UDP, segment) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, odd) = bytes.as_chunks::<2>();
    let words: u64 = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)))
        .sum();
    words + odd.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// Returns a checksum of the Internet after a change of one of its words (RFC 1624, equation 3).
pub fn updated_checksum(checksum: u16, old: u16, new: u16) -> u16 {
    fold(u64::from(!checksum) + u64::from(!old) + u64::from(new))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_checksum_is_the_one_of_rfc_1071() {
        assert_eq!(
            checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]),
            !0xddf2
        );
        assert_eq!(checksum(&[0x12]), !0x1200);
        assert_eq!(checksum(&[0xff; 2]), 0);
    }

    #[test]
    fn a_mark_reaches_only_ecn_capable_senders() {
        let [not_ect, ect1, ect0] = [0b00, 0b01, 0b10];
        assert_eq!(decapsulated_ecn(CE, not_ect), None);
        for inner in [ect1, ect0, CE] {
            assert_eq!(decapsulated_ecn(CE, inner), Some(CE));
        }
        for outer in [not_ect, ect1, ect0] {
            for inner in [not_ect, ect1, ect0, CE] {
                assert_eq!(decapsulated_ecn(outer, inner), Some(inner));
            }
        }
    }

    #[test]
    fn congestion_is_marked_if_the_sender_is_ecn_capable() {
        for [source, destination] in [["10.0.0.1:1", "10.0.0.2:2"], ["[fd00::1]:1", "[fd00::2]:2"]]
        {
            let packet = |class| {
                udp_packet(
                    source.parse().unwrap(),
                    destination.parse().unwrap(),
                    class,
                    b"payload",
                )
            };
            for ecn in [0b01, 0b10, CE] {
                let mut marked = packet(0b1011_1000 | ecn);
                assert!(mark_congestion(&mut marked));
                assert_eq!(marked, packet(0b1011_1000 | CE), "{source} {ecn}");
            }
            let mut not_ect = packet(0b1011_1000);
            assert!(!mark_congestion(&mut not_ect));
            assert_eq!(not_ect, packet(0b1011_1000));
            for length in 0..packet(1).len().min(20) {
                let mut cut = packet(1)[..length].to_vec();
                assert!(!mark_congestion(&mut cut));
                assert_eq!(cut, packet(1)[..length]);
            }
        }
    }

    proptest! {
        #[test]
        fn a_marked_header_keeps_a_right_checksum(mut header in any::<[u8; 20]>(), ecn in 1u8..4) {
            (header[0], header[1]) = (0x45, header[1] & !ECN_MASK | ecn);
            header[10..12].fill(0);
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(mark_congestion(&mut header));
            prop_assert_eq!(checksum(&header), 0);
            prop_assert_eq!(header[1] & ECN_MASK, CE);
        }
    }

    proptest! {
        #[test]
        fn a_mark_changes_nothing_but_the_ecn_field_and_the_checksum(packet: Vec<u8>, version in 3u8..8) {
            let mut packet = packet;
            if let Some(first) = packet.first_mut() {
                *first = version << 4 | *first & 0xf;
            }
            let mut marked = packet.clone();
            let minimum = match version {
                4 => Some(Ipv4Header::LEN),
                6 => Some(Ipv6Header::LEN),
                _ => None,
            };
            let is_capable = traffic_class(&packet).is_ok_and(|class| class & ECN_MASK != 0);
            let is_marked = mark_congestion(&mut marked);
            prop_assert_eq!(is_marked, is_capable && minimum.is_some_and(|minimum| packet.len() >= minimum));
            if is_marked {
                prop_assert_eq!(traffic_class(&marked), traffic_class(&packet).map(|class| class | CE));
                // A header that was right stays right, and one that was wrong stays as wrong: the
                // sum over it does not change.
                if version == 4 {
                    prop_assert_eq!(checksum(&marked[..20]), checksum(&packet[..20]));
                    marked[10..12].copy_from_slice(&packet[10..12]);
                }
                marked[..2].copy_from_slice(&packet[..2]);
            }
            prop_assert_eq!(marked, packet);
        }

        #[test]
        fn a_flow_is_told_by_addresses_protocol_and_ports(
            hosts: [[u8; 4]; 2],
            ports: [u16; 2],
            bit in 0u32..32,
            payload: Vec<u8>,
        ) {
            let packet = |[source, destination]: [[u8; 4]; 2], [from, to]: [u16; 2], class, payload: &[u8]| {
                udp_packet((source, from).into(), (destination, to).into(), class, payload)
            };
            let flow = flow_hash(&packet(hosts, ports, 0, b"first"));
            prop_assert_eq!(flow_hash(&packet(hosts, ports, CE, &payload)), flow);

            let host = (u32::from_be_bytes(hosts[1]) ^ 1 << bit).to_be_bytes();
            prop_assert_ne!(flow_hash(&packet([hosts[0], host], ports, 0, b"first")), flow);
            let port = ports[0] ^ 1 << (bit % 16);
            prop_assert_ne!(flow_hash(&packet(hosts, [port, ports[1]], 0, b"first")), flow);
            let mut other = packet(hosts, ports, 0, b"first");
            other[9] = TCP;
            prop_assert_ne!(flow_hash(&other), flow);
        }

        #[test]
        fn fragments_of_a_packet_are_one_flow(hosts: [[u8; 4]; 2], payloads: [Vec<u8>; 2], offset in 1u16..0x2000) {
            let [source, destination] = hosts.map(IpAddr::from);
            let hash = |payload: &[u8], fragment: u16| {
                let mut packet = udp_packet((source, 1).into(), (destination, 2).into(), 0, b"payload");
                packet.splice(20.., payload.iter().copied());
                packet[6..8].copy_from_slice(&fragment.to_be_bytes());
                flow_hash(&packet)
            };
            const MORE: u16 = 0x2000;
            prop_assert_eq!(hash(&payloads[0], MORE), hash(&payloads[1], offset));
        }
    }

    #[test]
    fn packets_that_are_not_whole_and_plain_are_rejected() {
        let packet = udp_packet(
            "10.0.0.1:1".parse().unwrap(),
            "10.0.0.2:2".parse().unwrap(),
            0,
            b"payload",
        );
        let with = |at: usize, byte: u8| {
            let mut changed = packet.clone();
            changed[at] = byte;
            changed[10..12].fill(0);
            let sum = checksum(&changed[..20]);
            changed[10..12].copy_from_slice(&sum.to_be_bytes());
            changed
        };
        assert!(Ipv4Header::parse(&packet).is_ok());
        assert_eq!(
            Ipv4Header::parse(&packet[..34]),
            Err(HeaderError::Truncated)
        );
        assert_eq!(
            Ipv4Header::parse(&with(0, 0x65)),
            Err(HeaderError::Version(6))
        );
        assert_eq!(Ipv4Header::parse(&with(0, 0x46)), Err(HeaderError::Options));
        assert_eq!(
            Ipv4Header::parse(&with(6, 0x20)),
            Err(HeaderError::Fragment)
        );
        assert_eq!(
            Ipv4Header::parse(&with(7, 0x01)),
            Err(HeaderError::Fragment)
        );
        assert_eq!(Ipv6Header::parse(&packet), Err(HeaderError::Truncated));
        assert_eq!(traffic_class(&packet[..1]), Err(HeaderError::Truncated));
    }

    proptest! {
        #[test]
        fn emitted_packets_are_parsed_back(
            addresses in prop_oneof![
                any::<[[u8; 4]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
                any::<[[u8; 16]; 2]>().prop_map(|pair| pair.map(IpAddr::from)),
            ],
            ports: [u16; 2],
            class: u8,
            payload: Vec<u8>,
            padding: [u8; 3],
        ) {
            let [source, destination] = addresses;
            let mut packet = udp_packet((source, ports[0]).into(), (destination, ports[1]).into(), class, &payload);
            packet.extend_from_slice(&padding);

            let segment = match source {
                IpAddr::V4(_) => Ipv4Header::parse(&packet).unwrap().1,
                IpAddr::V6(_) => Ipv6Header::parse(&packet).unwrap().1,
            };
            let (udp, parsed) = UdpHeader::parse(segment).unwrap();

            prop_assert_eq!(traffic_class(&packet), Ok(class));
            prop_assert_eq!((udp.source_port, udp.destination_port), (ports[0], ports[1]));
            prop_assert_eq!(parsed, &payload[..]);
            prop_assert_eq!(transport_checksum(source, destination, UDP, segment), 0);
        }

        #[test]
        fn garbage_never_panics(packet: Vec<u8>) {
            let _ = Ipv4Header::parse(&packet);
            let _ = Ipv6Header::parse(&packet);
            let _ = UdpHeader::parse(&packet);
            let _ = traffic_class(&packet);
            let _ = flow_hash(&packet);
        }
    }
}
