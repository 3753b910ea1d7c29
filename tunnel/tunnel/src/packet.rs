//! Parses the parts of inner packets that the tunnel needs.

pub(crate) mod mss;
mod rtp;

use crate::config::FrameBoundary;
use hawser_units::{Ecn, Instant};
use hawser_wire::ip::{self, UDP};
use hawser_xnc::Hint;
use rtp::Streams;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Protocols whose header starts with the ports: TCP, UDP, DCCP, SCTP and UDP-Lite.
const PROTOCOLS_WITH_PORTS: [u8; 5] = [TCP, UDP, 33, 132, 136];
const TCP: u8 = 6;

/// Returns the source address of an IP packet; none if it is not an IP packet.
pub(crate) fn source(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 12, 8)
}

/// Returns the destination address of an IP packet; none if it is not an IP packet.
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 16, 24)
}

/// Classifies the packets of a session by flow.
#[derive(Debug)]
pub(crate) struct Flows {
    /// Keyed randomly, so that an attacker cannot construct flows that share a queue.
    hasher: RandomState,
    /// Streams that are or may be videos, to detect the ends of frames.
    streams: Option<Streams>,
}

impl Flows {
    pub(crate) fn new(frame_boundary: FrameBoundary) -> Flows {
        Flows {
            hasher: RandomState::new(),
            streams: (frame_boundary == FrameBoundary::Rtp).then(Streams::default),
        }
    }

    /// Returns the scheduling hints for a packet to be sent.
    pub(crate) fn hint(&mut self, now: Instant, packet: &[u8]) -> Hint {
        let Some(Transport { protocol, start }) = transport(packet) else {
            return Hint::default();
        };
        let addresses = if packet[0] >> 4 == 4 {
            &packet[12..20]
        } else {
            &packet[8..40]
        };
        let transport = start
            .filter(|_| PROTOCOLS_WITH_PORTS.contains(&protocol))
            .and_then(|start| packet.get(start..));
        let ports = transport.and_then(|transport| transport.first_chunk::<4>());
        let flow_hash = self.hasher.hash_one((addresses, protocol, ports));
        let payload = transport
            .filter(|_| protocol == UDP)
            .and_then(|transport| transport.get(8..));
        let end_of_frame = self.streams.as_mut().zip(payload);
        let end_of_frame = end_of_frame
            .is_some_and(|(streams, payload)| streams.ends_frame(now, flow_hash, payload));
        let class = ip::traffic_class(packet).unwrap_or_default();
        Hint {
            end_of_frame,
            flow_hash,
            urgent: class >> 2 >= MIN_URGENT_DSCP,
            ecn: Ecn::from_octet(class),
        }
    }
}

/// CS5. At and above it are voice (VOICE-ADMIT, EF; RFC 5865, RFC 3246) and network control (CS6,
/// CS7; RFC 4594).
pub(crate) const MIN_URGENT_DSCP: u8 = 40;

fn address(packet: &[u8], in_ipv4: usize, in_ipv6: usize) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let octets: [u8; 4] = packet[in_ipv4..in_ipv4 + 4].try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        6 if packet.len() >= 40 => {
            let octets: [u8; 16] = packet[in_ipv6..in_ipv6 + 16].try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

/// The transport protocol of an IP packet.
struct Transport {
    protocol: u8,
    /// The offset of the transport header; none in a fragment, so that all fragments belong to one
    /// flow.
    start: Option<usize>,
}

/// IPv6 extension headers (RFC 8200, section 4), and how many of them are skipped at most.
const EXTENSION_HEADERS: [u8; 3] = [0, 43, 60];
const FRAGMENT: u8 = 44;
const MAX_EXTENSION_HEADERS: usize = 8;

fn transport(packet: &[u8]) -> Option<Transport> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let is_fragment = packet[6] & 0x3f != 0 || packet[7] != 0;
            let start = (!is_fragment).then_some(usize::from(packet[0] & 0xf) * 4);
            Some(Transport {
                protocol: packet[9],
                start,
            })
        }
        6 if packet.len() >= 40 => Some(transport_over_ipv6(packet)),
        _ => None,
    }
}

/// Skips the extension headers of an IPv6 packet.
fn transport_over_ipv6(packet: &[u8]) -> Transport {
    let (mut protocol, mut start) = (packet[6], 40);
    for _ in 0..MAX_EXTENSION_HEADERS {
        let is_extension = EXTENSION_HEADERS.contains(&protocol);
        let Some(header) = packet
            .get(start..start + 8)
            .filter(|_| is_extension || protocol == FRAGMENT)
        else {
            break;
        };
        protocol = header[0];
        if !is_extension {
            return Transport {
                protocol,
                start: None,
            };
        }
        start += 8 * (usize::from(header[1]) + 1);
    }
    Transport {
        protocol,
        start: Some(start),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check_packet;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    fn udp(source: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![
            0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, source, 10, 0, 0, 2,
        ];
        packet.extend([0x10, 0, 0x20, 0, 0, 0, 0, 0]);
        packet.extend(payload);
        packet
    }

    #[test]
    fn addresses_of_both_families() {
        let packet = udp(1, &[]);
        assert_eq!(source(&packet), Some([10, 0, 0, 1].into()));
        assert_eq!(destination(&packet), Some([10, 0, 0, 2].into()));
        let mut packet = vec![0; 40];
        packet[0] = 0x60;
        packet[23] = 1;
        packet[39] = 2;
        assert_eq!(source(&packet), Some("::1".parse().unwrap()));
        assert_eq!(destination(&packet), Some("::2".parse().unwrap()));
    }

    fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        packet.extend([0xfd; 32]);
        packet.extend(rest);
        packet
    }

    #[test]
    fn what_is_cut_short_has_neither_address_nor_flow() {
        let mut flows = Flows::new(FrameBoundary::Rtp);
        let options = ipv6(0, &[43, 0, 0, 0, 0, 0, 0, 0, UDP, 255, 0, 0, 0, 0, 0, 0]);
        for packet in [udp(1, &[]), options, ipv6(UDP, &[0x80; 30])] {
            for length in 0..packet.len() {
                let cut = &packet[..length];
                assert!(source(cut).is_none() || length >= 20);
                flows.hint(Instant::ZERO, cut);
            }
        }
    }

    #[test]
    fn flows_are_told_apart() {
        let mut flows = Flows::new(FrameBoundary::None);
        let mut hash = |packet: &[u8]| flows.hint(Instant::ZERO, packet).flow_hash;
        assert_eq!(hash(&udp(1, &[1])), hash(&udp(1, &[2])));
        assert_ne!(hash(&udp(1, &[1])), hash(&udp(3, &[1])));
        let ports = |last: u8| [0x10, 0, 0x20, last, 0, 0, 0, 0];
        assert_ne!(hash(&ipv6(UDP, &ports(1))), hash(&ipv6(UDP, &ports(2))));
        assert_ne!(hash(&ipv6(UDP, &ports(1))), hash(&ipv6(6, &ports(1))));
        let behind_options =
            |last: u8| ipv6(0, &[&[UDP, 0, 0, 0, 0, 0, 0, 0][..], &ports(last)].concat());
        assert_ne!(hash(&behind_options(1)), hash(&behind_options(2)));
        let echo = |number: u8| ipv6(58, &[128, 0, 0, 0, 0, 1, 0, number]);
        assert_eq!(hash(&echo(1)), hash(&echo(2)), "by their addresses");
        let mut labelled = ipv6(UDP, &ports(1));
        labelled[3] = 7;
        assert_eq!(
            hash(&labelled),
            hash(&ipv6(UDP, &ports(1))),
            "whatever the flow label says"
        );
        let other = Flows::new(FrameBoundary::None)
            .hint(Instant::ZERO, &udp(1, &[]))
            .flow_hash;
        assert_ne!(
            hash(&udp(1, &[])),
            other,
            "outsiders cannot predict which flows share a queue"
        );
    }

    #[test]
    fn all_fragments_are_of_one_flow() {
        let mut flows = Flows::new(FrameBoundary::Rtp);
        let mut hash = |packet: &[u8]| flows.hint(Instant::ZERO, packet).flow_hash;
        let fragment = |flags: u8, offset: u8, payload: &[u8]| {
            let mut packet = udp(1, payload);
            (packet[6], packet[7]) = (flags, offset);
            packet
        };
        let mut later = fragment(0, 3, &[]);
        later[20..24].fill(0xee);
        assert_eq!(hash(&fragment(0x20, 0, &[])), hash(&later));
        let of_ipv6 =
            |offset: u8, port: u8| ipv6(44, &[UDP, 0, 0, offset, 0, 0, 0, 1, port, 0, 0, 0]);
        assert_eq!(hash(&of_ipv6(1, 1)), hash(&of_ipv6(8, 2)));
    }

    #[test]
    fn urgent_marks_and_ecn_support_are_known() {
        let mut flows = Flows::new(FrameBoundary::Rtp);
        let mut of = |packet: &[u8]| {
            let hint = flows.hint(Instant::ZERO, packet);
            (hint.urgent, hint.ecn)
        };
        for (dscp, urgent) in [
            (0, false),
            (34, false),
            (39, false),
            (40, true),
            (46, true),
            (48, true),
        ] {
            for ecn in 0..4 {
                let mut packet = udp(1, &[]);
                packet[1] = dscp << 2 | ecn;
                assert_eq!(
                    of(&packet),
                    (urgent, Ecn::from_octet(ecn)),
                    "DSCP {dscp}, ECN {ecn} over IPv4"
                );
                let mut packet = vec![0; 40];
                (packet[0], packet[1]) = (0x60 | dscp >> 2, dscp << 6 | ecn << 4 | 0xf);
                assert_eq!(
                    of(&packet),
                    (urgent, Ecn::from_octet(ecn)),
                    "DSCP {dscp}, ECN {ecn} over IPv6"
                );
            }
        }
    }

    #[test]
    fn the_marker_of_rtp_ends_a_frame() {
        let ends = |frame_boundary| {
            let mut flows = Flows::new(frame_boundary);
            let rtp = |number: u8| {
                udp(
                    1,
                    &[0x80, 0x80 | 96, 0, number, 0, 0, 0, number, 0, 0, 0, 1],
                )
            };
            (0..20)
                .filter(|number| flows.hint(Instant::ZERO, &rtp(*number)).end_of_frame)
                .count()
        };
        assert_eq!(ends(FrameBoundary::Rtp), 13);
        assert_eq!(ends(FrameBoundary::None), 0);
    }

    proptest! {
        #[test]
        fn any_packets_have_addresses_and_a_flow_or_neither(
            packets in vec((0..16u8, vec(any::<u8>(), 0..120)), 1..10),
        ) {
            let mut flows = Flows::new(FrameBoundary::Rtp);
            for (version, mut packet) in packets {
                check_packet(&mut flows, &packet);
                if let Some(first) = packet.first_mut() {
                    *first = if version < 8 { 0x60 } else { 0x40 | version & 0xf };
                }
                check_packet(&mut flows, &packet);
            }
        }

        #[test]
        fn any_extension_headers_have_a_flow(
            headers in vec((select(vec![0u8, 43, 60, FRAGMENT, UDP]), 0..4u8), 0..12),
            length in any::<Index>(),
        ) {
            let mut rest = Vec::new();
            for (next, length) in headers {
                rest.extend([next, length, 0, 0, 0, 0, 0, 0]);
                rest.resize(rest.len() + 8 * usize::from(length), 0x80);
            }
            let packet = ipv6(0, &rest);
            let mut flows = Flows::new(FrameBoundary::Rtp);
            check_packet(&mut flows, &packet);
            check_packet(&mut flows, &packet[..length.index(packet.len() + 1)]);
        }

        #[test]
        fn a_changed_video_is_rejected_or_ends_frames_at_markers(
            changes in vec((0..12usize, any::<u8>()), 0..60),
        ) {
            let mut flows = Flows::new(FrameBoundary::Rtp);
            for number in 0..60u8 {
                let mut rtp = [0x80, 0x80 | 96, 0, number, 0, 0, 0, number, 0, 0, 0, 1];
                let change = changes.get(usize::from(number)).filter(|_| number % 4 == 3);
                if let Some((at, byte)) = change {
                    rtp[*at] = *byte;
                }
                let hint = flows.hint(Instant::ZERO, &udp(1, &rtp));
                prop_assert!(!hint.end_of_frame || rtp[1] & 0x80 != 0);
            }
        }
    }
}
