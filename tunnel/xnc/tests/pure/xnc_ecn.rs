//! Congestion marks of the network (ECN): they reach the packets inside.

use hawser_coding::encode;
use hawser_units::{Ecn, Instant, PathId};
use hawser_wire::ip::{Ipv4Header, udp_packet};
use hawser_xnc::{Config, Endpoint, Packet};

fn end() -> (Endpoint, PathId) {
    let path = PathId::all().next().unwrap();
    let mut end = Endpoint::new(Config::default());
    end.add_path(Instant::ZERO, path);
    (end, path)
}

fn packet(number: u8, ecn: Ecn) -> Vec<u8> {
    let address = "10.0.0.1:1".parse().unwrap();
    udp_packet(address, address, ecn.bits(), &[number; 100])
}

fn original(number: u8, packet: &[u8]) -> Vec<u8> {
    [&[1, 0, number, 0, 0, number], packet].concat()
}

/// Returns a datagram that codes these packets, which are numbered from 0 on.
fn coded(transmission: u8, packets: &[&[u8]]) -> Vec<u8> {
    let mut datagram = vec![packets.len() as u8, 0, transmission, 0, 0, 0];
    encode(packets, transmission.into(), &mut datagram);
    datagram
}

/// Checks that a packet is the one that was sent, except for a mark.
fn assert_marked(delivered: &Packet, sent: &[u8]) {
    let (header, _) = Ipv4Header::parse(&delivered.bytes).unwrap();
    assert_eq!(header.tos, Ecn::Ce.bits());
    assert_eq!(delivered.bytes[Ipv4Header::LEN..], sent[Ipv4Header::LEN..]);
}

#[test]
fn a_mark_reaches_packets_whose_senders_support_ecn() {
    let (mut end, path) = end();
    let outers = [None, Some(Ecn::NotEct), Some(Ecn::Ect0), Some(Ecn::Ce)];
    let inners = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];
    let cases = outers
        .iter()
        .flat_map(|outer| inners.map(|inner| (*outer, inner)));
    for (number, (outer, inner)) in (0..).zip(cases) {
        let sent = packet(number, inner);
        end.handle_datagram(Instant::ZERO, path, original(number, &sent), outer)
            .unwrap();
        let delivered = end.poll_packet().unwrap();
        if outer == Some(Ecn::Ce) && inner.is_capable() {
            assert_marked(&delivered, &sent);
        } else {
            assert_eq!(delivered.bytes, sent, "{outer:?} {inner:?}");
        }
    }
    assert_eq!(end.stats().receiver.marked, 3);
}

#[test]
fn a_coded_packets_mark_reaches_the_first_recovered_one() {
    let (mut end, path) = end();
    let sent = [0, 1, 2].map(|number| packet(number, Ecn::Ect1));
    let all: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    let mark = Some(Ecn::Ce);
    // The first packet arrives marked; it has to be decoded with as it was sent.
    for (datagram, ecn) in [
        (original(0, all[0]), mark),
        (coded(3, &all), None),
        (coded(4, &all), mark),
    ] {
        end.handle_datagram(Instant::ZERO, path, datagram.clone(), ecn)
            .unwrap();
    }
    let delivered: Vec<_> = std::iter::from_fn(|| end.poll_packet()).collect();
    assert_eq!(delivered.len(), 3);
    assert_marked(&delivered[0], all[0]);
    assert_marked(
        &delivered[1],
        all[usize::try_from(delivered[1].id).unwrap()],
    );
    assert_eq!(
        delivered[2].bytes,
        all[usize::try_from(delivered[2].id).unwrap()]
    );
}

#[test]
fn a_mark_is_used_up_by_a_packet_that_arrived_before() {
    let (mut end, path) = end();
    let sent = packet(0, Ecn::Ect0);
    let again = [&[1, 0, 7, 0, 0, 0], &sent[..]].concat();
    let next = packet(1, Ecn::Ect0);
    for (datagram, ecn) in [
        (original(0, &sent), None),
        (again, Some(Ecn::Ce)),
        (original(1, &next), None),
    ] {
        end.handle_datagram(Instant::ZERO, path, datagram.clone(), ecn)
            .unwrap();
    }
    let delivered: Vec<_> = std::iter::from_fn(|| end.poll_packet()).collect();
    assert_eq!([&delivered[0].bytes, &delivered[1].bytes], [&sent, &next]);
    assert_eq!(end.stats().receiver.marked, 0);
}
