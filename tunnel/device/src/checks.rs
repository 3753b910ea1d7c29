//! The checks of packets from and to the kernel, for the property tests and for `fuzz/`.

use crate::offload::Offload;
use crate::{coalesce, split::split};
use hawser_wire::ip;
use std::net::SocketAddr;

/// Splits a packet from the kernel, the first bytes of which are its header, and merges packets to
/// the kernel.
///
/// # Panics
/// If the results are not within their bounds, or not the same after merging and splitting.
pub fn check(read: &[u8], written: &[Vec<u8>]) {
    if let Some((header, packet)) = read.split_first_chunk()
        && let Some(offload) = Offload::parse(*header)
    {
        check_split(offload, packet);
    }
    check_merged(written, true);
    check_merged(written, false);
}

/// Returns packets that are merged: trains of TCP and UDP in both families.
pub fn trains() -> Vec<Vec<u8>> {
    let kinds = [(false, false), (false, true), (true, false), (true, true)];
    let train = |(is_v6, is_tcp)| (1..4).map(move |number| packet(is_v6, is_tcp, number, 100));
    kinds.into_iter().flat_map(train).collect()
}

/// A UDP packet, or a TCP segment without options that follows number `number - 1` of its flow.
pub(super) fn packet(is_v6: bool, is_tcp: bool, number: u8, payload: usize) -> Vec<u8> {
    let [source, destination] = if is_v6 {
        ["[fd00::1]:1", "[fd00::2]:2"]
    } else {
        ["10.0.0.1:1", "10.0.0.2:2"]
    };
    let [source, destination]: [SocketAddr; 2] =
        [source, destination].map(|address| address.parse().unwrap());
    let payload = vec![number; payload];
    if !is_tcp {
        return ip::udp_packet(source, destination, 0, &payload);
    }
    // The rest of a TCP header is 12 bytes longer than that of UDP.
    let mut packet = ip::udp_packet(source, destination, 0, &[&[0u8; 12][..], &payload].concat());
    let start = if is_v6 { 40 } else { 20 };
    packet[if is_v6 { 6 } else { 9 }] = 6;
    if !is_v6 {
        packet[10..12].fill(0);
        let sum = ip::checksum(&packet[..start]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let segment = &mut packet[start..];
    let sequence = u32::from(number) * payload.len() as u32;
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..20].copy_from_slice(&[0, 0, 0, 7, 5 << 4, 0x10, 1, 0, 0, 0, 0, 0]);
    let sum = ip::transport_checksum(source.ip(), destination.ip(), 6, segment);
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Returns length and last bytes of each packet, sorted: flows may overtake each other, and
/// splitting numbers the identification of IPv4.
pub(super) fn tails<P: AsRef<[u8]>>(packets: &[P]) -> Vec<(usize, Vec<u8>)> {
    let tail = |packet: &P| {
        let packet = packet.as_ref();
        let at = packet.len().saturating_sub(8);
        (packet.len(), packet[at..].to_vec())
    };
    let mut tails: Vec<_> = packets.iter().map(tail).collect();
    tails.sort();
    tails
}

pub(super) fn check_merged(packets: &[Vec<u8>], with_udp: bool) {
    let groups = coalesce::group(packets, with_udp);
    let mut members: Vec<usize> = groups.iter().flat_map(|group| group.members()).collect();
    members.sort_unstable();
    assert_eq!(members, (0..packets.len()).collect::<Vec<_>>());
    let mut back = Vec::new();
    for group in &groups {
        let Some((offload, mut gso)) = group.headers(packets) else {
            back.push(packets[group.first].clone().into());
            continue;
        };
        let headers = gso.len();
        for index in group.members() {
            gso.extend_from_slice(&packets[index][headers..]);
        }
        assert!(gso.len() <= 65_535);
        assert_eq!(Offload::parse(offload.emit()), Some(offload));
        assert!(split(offload, &gso, &mut back).is_ok());
    }
    assert_eq!(tails(&back), tails(packets));
}

pub(super) fn check_split(offload: Offload, packet: &[u8]) {
    let mut packets = Vec::new();
    if split(offload, packet, &mut packets).is_ok() {
        assert!(packets.len() <= packet.len().max(1));
        assert!(packets.iter().all(|piece| piece.len() <= packet.len()));
        assert!(offload.gso.is_some() || packets.len() == 1);
    }
}
