//! The little of an inner packet that a tunnel looks at.

use crate::config::Borders;
use hawser_xnc::Hint;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const UDP: u8 = 17;

/// Who sent an IP packet; none for what is no IP packet.
pub(crate) fn source(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 12, 8)
}

/// Whom an IP packet is for; none for what is no IP packet.
pub(crate) fn destination(packet: &[u8]) -> Option<IpAddr> {
    address(packet, 16, 24)
}

/// What is known of a packet that is to be sent.
pub(crate) fn hint(packet: &[u8], borders: Borders) -> Hint {
    let Some((transport, protocol)) = transport(packet) else { return Hint::default() };
    let addresses = if packet[0] >> 4 == 4 { 12..20 } else { 8..40 };
    // Ports of TCP and UDP; of other protocols something that does no harm.
    let ports = packet.get(transport..transport + 4).unwrap_or_default();
    let words = packet[addresses].chunks(4).chain([ports]);
    let flow_hash = words.fold(u64::from(protocol), |hash, word| {
        let word = word.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    let border =
        borders == Borders::Rtp && protocol == UDP && packet.get(transport + 8..).is_some_and(ends_rtp_frame);
    Hint { border, flow_hash, urgent: dscp(packet) >= FIRST_URGENT }
}

/// CS5, above which are voice (VOICE-ADMIT, EF; RFC 5865, RFC 3246) and what keeps networks running (CS6, CS7; RFC 4594).
const FIRST_URGENT: u8 = 40;

/// The class that the sender gave an IP packet (RFC 2474).
fn dscp(packet: &[u8]) -> u8 {
    let [first, second, ..] = *packet else { return 0 };
    if first >> 4 == 4 { second >> 2 } else { (first & 0xf) << 2 | second >> 6 }
}

/// Whether a datagram looks like RTP (RFC 3550) with its marker set: version 2 and no packet of RTCP, whose types are
/// those of RTP with marker between 72 and 76.
fn ends_rtp_frame(payload: &[u8]) -> bool {
    let [first, second, ..] = *payload else { return false };
    payload.len() >= 12 && first >> 6 == 2 && second & 0x80 != 0 && !(72..=76).contains(&(second & 0x7f))
}

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

/// Where the transport header starts, and its protocol; for a fragment after the first there is none.
fn transport(packet: &[u8]) -> Option<(usize, u8)> {
    match packet.first()? >> 4 {
        4 if packet.len() >= 20 => {
            let later_fragment = packet[6] & 0x1f != 0 || packet[7] != 0;
            Some((if later_fragment { packet.len() } else { usize::from(packet[0] & 0xf) * 4 }, packet[9]))
        }
        6 if packet.len() >= 40 => Some((40, packet[6])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(source: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, source, 10, 0, 0, 2];
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

    #[test]
    fn what_is_cut_short_has_neither_address_nor_flow() {
        for packet in [udp(1, &[]), [&[0x60], &[0; 39][..]].concat()] {
            for length in 0..packet.len() {
                let cut = &packet[..length];
                assert!(source(cut).is_none() || length >= 20);
                hint(cut, Borders::Rtp);
            }
        }
    }

    #[test]
    fn flows_are_told_apart() {
        let hash = |packet: &[u8]| hint(packet, Borders::None).flow_hash;
        assert_eq!(hash(&udp(1, &[1])), hash(&udp(1, &[2])));
        assert_ne!(hash(&udp(1, &[1])), hash(&udp(3, &[1])));
    }

    #[test]
    fn what_its_sender_marked_is_urgent() {
        let is_urgent = |packet: &[u8]| hint(packet, Borders::Rtp).urgent;
        for (dscp, urgent) in [(0, false), (34, false), (39, false), (40, true), (46, true), (48, true)] {
            let mut packet = udp(1, &[]);
            packet[1] = dscp << 2 | 1;
            assert_eq!(is_urgent(&packet), urgent, "DSCP {dscp} over IPv4");
            let mut packet = vec![0; 40];
            (packet[0], packet[1]) = (0x60 | dscp >> 2, dscp << 6 | 0x1f);
            assert_eq!(is_urgent(&packet), urgent, "DSCP {dscp} over IPv6");
        }
    }

    #[test]
    fn the_marker_of_rtp_ends_a_frame() {
        let rtp = |second: u8| udp(1, &[&[0x80, second][..], &[0; 10]].concat());
        assert!(hint(&rtp(0x80 | 96), Borders::Rtp).border);
        assert!(!hint(&rtp(0x80 | 96), Borders::None).border);
        assert!(!hint(&rtp(96), Borders::Rtp).border);
        assert!(!hint(&rtp(200), Borders::Rtp).border, "a report of RTCP");
    }
}
