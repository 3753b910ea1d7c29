//! The relay's program on single packets: one fixture a line, with its verdict and its counter.

#[path = "support/relayed.rs"]
mod relayed;

use hawser_fanout::{Budget, Frame, Share, SlotIndex, TrackHop, Verdict};
use hawser_kernel::testing::{transit, with_ipv4};
use hawser_media_bpf::relay::{Loss, Reason, Relay, Route, Session, TrackOptions, Upstream};
use hawser_packets::media::{Flags, Header, write_hop};
use hawser_units::{Ecn, Instant};
use hawser_wire::ip;
use relayed::*;
use std::net::{IpAddr, SocketAddr};

const TC_ACT_SHOT: u32 = 2;
const TC_ACT_UNSPEC: u32 = u32::MAX;

/// The loopback device, which a test run's packets arrive on and the clones are sent by.
const LOOPBACK: Route = Route {
    ifindex: 1,
    mtu_bytes: 1500,
    source_mac: [2, 0, 0, 0, 0, 1],
    next_hop_mac: [2, 0, 0, 0, 0, 2],
};

/// A relay of track 0 with two subscribers, one over each protocol.
fn relay() -> Relay {
    let mut relay = Relay::load(1200).unwrap();
    for is_ipv6 in [false, true] {
        let session = upstream_session(is_ipv6);
        relay.listen(session.local).unwrap();
        let upstream = Upstream {
            number: 1,
            hops: [None, None, Some(upstream_hop())],
        };
        relay.set_upstream(&session, Some(&upstream)).unwrap();
    }
    relay.add_track(track(0), &track_options());
    relay.name_track(1, ALIAS, Some(track(0))).unwrap();
    for index in 0..2 {
        add(&mut relay, index);
    }
    relay
}

fn add(relay: &mut Relay, index: usize) {
    relay.add_subscriber(
        slot(index),
        &session(index),
        &Budget::UNLIMITED,
        now(),
        Instant::MAX,
    );
    relay.set_route(slot(index), Some(&LOOPBACK));
    relay.subscribe(track(0), slot(index), &all_layers());
}

/// The frame of a datagram from the upstream.
fn arriving(is_ipv6: bool, datagram: &[u8]) -> Vec<u8> {
    let Session { local, remote } = upstream_session(is_ipv6);
    transit(&ip::udp_packet(remote, local, 1, datagram))
}

fn with(mut datagram: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut datagram);
    datagram
}

/// A datagram whose header was changed by one who has the upstream's hop key.
fn tagged(change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut datagram = first_packet();
    change(&mut datagram);
    write_hop(datagram.first_chunk_mut().unwrap(), &upstream_hop());
    datagram
}

fn first_packet() -> Vec<u8> {
    datagram(&header(object(0, 0, 0), 0, 1), 100)
}

fn counted_since(relay: &Relay, before: &[(Reason, u64)]) -> Vec<(Reason, u64)> {
    let of_track = relay.counts(Some(track(0))).unwrap();
    let of_none = relay.counts(None).unwrap();
    let sums = of_track.iter().zip(&of_none).zip(before);
    let since = sums.map(|((a, b), before)| (a.0, a.1 + b.1 - before.1));
    since.filter(|(_, count)| *count > 0).collect()
}

fn counts(relay: &Relay) -> Vec<(Reason, u64)> {
    let of_track = relay.counts(Some(track(0))).unwrap();
    let of_none = relay.counts(None).unwrap();
    let sums = of_track.iter().zip(&of_none);
    sums.map(|(a, b)| (a.0, a.1 + b.1)).collect()
}

#[test]
fn packets_are_refused_passed_or_forwarded() {
    let relay = relay();
    let long = datagram(&header(object(0, 0, 0), 0, 1), 1201);
    let other_port = |datagram: &[u8]| {
        let Session { mut local, remote } = upstream_session(false);
        local.set_port(PORT + 1);
        transit(&ip::udp_packet(remote, local, 1, datagram))
    };
    let from = |address: &str, datagram: &[u8]| {
        let local = upstream_session(false).local;
        transit(&ip::udp_packet(
            address.parse().unwrap(),
            local,
            1,
            datagram,
        ))
    };
    let elsewhere = {
        let remote = upstream_session(false).remote;
        transit(&ip::udp_packet(
            remote,
            (LAN_V4, PORT).into(),
            1,
            &first_packet(),
        ))
    };
    let plain = arriving(false, &first_packet());
    let changed = |change: fn(&mut [u8])| with(plain.clone(), change);
    let padded = [&plain[..], &[0; 3]].concat();
    let cut = plain[..plain.len() - 1].to_vec();
    let fragment = transit(&with_ipv4(plain[14..].to_vec(), |ip| ip[6] |= 0x20));
    let vlan = [&plain[..12], &[0x81, 0, 0, 5], &plain[12..]].concat();
    let options = {
        // A header of 24 bytes, of which the last four are no operation.
        let mut packet = [&plain[14..34], &[1; 4], &plain[34..]].concat();
        packet[0] = 0x46;
        let length = (packet.len() as u16).to_be_bytes();
        transit(&with_ipv4(packet, |ip| ip[2..4].copy_from_slice(&length)))
    };
    let own = relayed::relayed(&first_packet());
    let fixtures: Vec<(&str, Vec<u8>, u32, Option<Reason>)> = vec![
        // Passed without being counted: not to the relay.
        (
            "other port",
            other_port(&first_packet()),
            TC_ACT_UNSPEC,
            None,
        ),
        ("other address", elsewhere, TC_ACT_UNSPEC, None),
        ("TCP", changed(|frame| frame[23] = 6), TC_ACT_UNSPEC, None),
        (
            "ARP",
            changed(|frame| frame[12..14].copy_from_slice(&[8, 6])),
            TC_ACT_UNSPEC,
            None,
        ),
        ("fragment", fragment, TC_ACT_UNSPEC, None),
        ("VLAN", vlan, TC_ACT_UNSPEC, None),
        ("longer than the frame", cut, TC_ACT_UNSPEC, None),
        // Passed: not media.
        (
            "session",
            arriving(false, &[0x41, 4, 0, 0]),
            TC_ACT_UNSPEC,
            Some(Reason::Passed),
        ),
        (
            "empty",
            arriving(false, &[]),
            TC_ACT_UNSPEC,
            Some(Reason::Passed),
        ),
        (
            "version 2",
            arriving(true, &tagged(|packet| packet[0] = 2)),
            TC_ACT_UNSPEC,
            Some(Reason::Passed),
        ),
        // Refused.
        (
            "unknown address",
            from("10.9.0.3:5000", &first_packet()),
            TC_ACT_SHOT,
            Some(Reason::NoUpstream),
        ),
        (
            "unknown port",
            from("10.9.0.2:5001", &first_packet()),
            TC_ACT_SHOT,
            Some(Reason::NoUpstream),
        ),
        ("padding", padded, TC_ACT_SHOT, Some(Reason::Malformed)),
        (
            "UDP shorter than IP",
            changed(|frame| frame[39] -= 1),
            TC_ACT_SHOT,
            Some(Reason::Malformed),
        ),
        ("IP options", options, TC_ACT_SHOT, Some(Reason::Malformed)),
        (
            "52 bytes",
            arriving(false, &first_packet()[..52]),
            TC_ACT_SHOT,
            Some(Reason::Truncated),
        ),
        (
            "1 byte",
            arriving(true, &[1]),
            TC_ACT_SHOT,
            Some(Reason::Truncated),
        ),
        (
            "1201 bytes",
            arriving(false, &long),
            TC_ACT_SHOT,
            Some(Reason::Oversize),
        ),
        (
            "flag",
            arriving(false, &tagged(|packet| packet[1] = 8)),
            TC_ACT_SHOT,
            Some(Reason::Header),
        ),
        (
            "layer",
            arriving(true, &tagged(|packet| packet[3] = 8)),
            TC_ACT_SHOT,
            Some(Reason::Header),
        ),
        (
            "index",
            arriving(true, &tagged(|packet| packet[17] = 1)),
            TC_ACT_SHOT,
            Some(Reason::Header),
        ),
        (
            "hop key",
            arriving(true, &own),
            TC_ACT_SHOT,
            Some(Reason::HopKey),
        ),
        (
            "tag",
            arriving(true, &with(first_packet(), |packet| packet[35] ^= 1)),
            TC_ACT_SHOT,
            Some(Reason::Tag),
        ),
        (
            "forged",
            arriving(false, &with(first_packet(), |packet| packet[2] ^= 1)),
            TC_ACT_SHOT,
            Some(Reason::Tag),
        ),
        (
            "alias",
            arriving(false, &tagged(|packet| packet[7] ^= 1)),
            TC_ACT_SHOT,
            Some(Reason::NoTrack),
        ),
        (
            "8193 packets",
            arriving(false, &tagged(|packet| packet[18] = 0x40)),
            TC_ACT_SHOT,
            Some(Reason::TooManyPackets),
        ),
    ];
    for (name, frame, action, reason) in fixtures {
        let before = counts(&relay);
        let run = relay.run(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (action, frame), "{name}");
        let expected: Vec<_> = reason.map(|reason| (reason, 1)).into_iter().collect();
        assert_eq!(counted_since(&relay, &before), expected, "{name}");
    }
    for index in 0..2 {
        assert_eq!(relay.slot_stats(slot(index)), Default::default());
    }
    for (is_ipv6, reason) in [(false, Reason::Forwarded), (true, Reason::Duplicate)] {
        let before = counts(&relay);
        relay.run(&arriving(is_ipv6, &first_packet()), 1).unwrap();
        assert_eq!(counted_since(&relay, &before), [(reason, 1)]);
        assert_eq!(relay.slot_stats(slot(0)).packets, 1);
    }
}

/// Every bit that the hop tag covers, and of the tag.
#[test]
fn no_bit_of_a_header_can_be_changed() {
    let relay = relay();
    for bit in 8..Header::LEN * 8 {
        let forged = with(first_packet(), |packet| packet[bit / 8] ^= 1 << (bit % 8));
        relay.run(&arriving(bit % 2 == 0, &forged), 1).unwrap();
    }
    assert_eq!(relay.slot_stats(slot(0)), Default::default());
    assert_eq!(relay.newest(track(0)), None, "nothing was kept");
    let refused: u64 = counts(&relay).iter().map(|(_, count)| count).sum();
    assert_eq!(refused, Header::LEN as u64 * 8 - 8);
}

#[test]
fn a_copy_for_the_socket_has_its_headers_and_our_tag() {
    let mut relay = relay();
    relay.set_track(
        track(0),
        &TrackOptions {
            copy: true,
            ..track_options()
        },
    );
    for (number, is_ipv6) in [(0, false), (1, true)] {
        let sent = datagram(&header(object(0, number, 0), 0, 1), 333);
        for reason in [Reason::Forwarded, Reason::Duplicate] {
            let before = counts(&relay);
            let run = relay.run(&arriving(is_ipv6, &sent), 1).unwrap();
            assert_eq!(run.action, TC_ACT_UNSPEC);
            let expected = arriving(is_ipv6, &relayed::relayed(&sent));
            assert_eq!(run.frame, expected, "checksums included");
            assert_eq!(counted_since(&relay, &before), [(reason, 1)]);
        }
    }
    assert_eq!(relay.slot_stats(slot(1)).packets, 2);
}

#[test]
fn packets_may_keep_the_tag_of_the_upstream() {
    let mut relay = relay();
    relay.set_track(
        track(0),
        &TrackOptions {
            hop: TrackHop::Upstreams,
            copy: true,
            arrivals: false,
        },
    );
    let frame = arriving(false, &first_packet());
    assert_eq!(relay.run(&frame, 1).unwrap().frame, frame);
    assert_eq!(relay.slot_stats(slot(0)).packets, 1);
}

#[test]
fn arrivals_are_recorded_with_what_an_acknowledgement_needs() {
    let mut relay = relay();
    let options = TrackOptions {
        arrivals: true,
        ..track_options()
    };
    relay.set_track(track(0), &options);
    let mut arrivals = relay.arrivals().unwrap();
    let before = now();
    let sent = datagram(&header(object(3, 4, 2), 5, 9), 333);
    let marked = with(arriving(false, &sent), |frame| frame[15] |= 3);
    let marked = transit(&with_ipv4(marked[14..].to_vec(), |_| ()));
    relay.run(&marked, 1).unwrap();
    relay.run(&arriving(true, &sent), 1).unwrap();
    let [first, second] = arrivals.drain()[..] else {
        panic!("two records")
    };
    assert!(before <= first.at && first.at <= second.at && second.at <= now());
    assert_eq!((first.upstream, first.track), (1, track(0)));
    let frame = Frame {
        group: 3,
        object: 4,
    };
    assert_eq!((first.frame, first.layer), (frame, 2));
    assert_eq!((first.index, first.packets), (5, 1));
    assert_eq!((first.bytes, first.datagram_bytes), (333, 333));
    assert_eq!((first.ecn, second.ecn), (Ecn::Ce, Ecn::Ect1));
    assert_eq!(
        [first.outcome, second.outcome],
        [Reason::Forwarded, Reason::Duplicate]
    );
}

#[test]
fn what_does_not_reach_a_subscriber_is_counted() {
    let mut relay = relay();
    add(&mut relay, 2);
    let too_long = Route {
        mtu_bytes: 1227,
        ..LOOPBACK
    };
    let gone = Route {
        ifindex: 0x7fff_ffff,
        ..LOOPBACK
    };
    let cases: [(&str, Option<Route>, Option<Loss>); 4] = [
        ("a route", Some(LOOPBACK), None),
        ("no route", None, Some(Loss::NoRoute)),
        (
            "a packet that is too long",
            Some(too_long),
            Some(Loss::TooBig),
        ),
        ("no device", Some(gone), Some(Loss::Device)),
    ];
    for ((name, route, loss), number) in cases.into_iter().zip(0..) {
        relay.set_route(slot(0), route.as_ref());
        let before = relay.slot_stats(slot(0));
        let sent = datagram(&header(object(0, number, 0), 0, 1), 1200);
        relay.run(&arriving(false, &sent), 1).unwrap();
        let stats = relay.slot_stats(slot(0));
        for of in Loss::ALL {
            let lost = stats.lost[of as usize] - before.lost[of as usize];
            assert_eq!(lost, u64::from(loss == Some(of)), "{name}");
        }
        let sent = stats.packets - before.packets;
        assert_eq!(sent, u64::from(loss.is_none()), "{name}");
        let charged = stats.bytes - before.bytes;
        assert_eq!(charged, sent * 1228, "{name}");
        assert_eq!(relay.slot_stats(slot(2)).packets, u64::from(number) + 1);
    }
    // Without a checksum, which is possible over IPv4 only.
    let sent = datagram(&header(object(1, 0, 0), 0, 1), 100);
    let bare = with(arriving(false, &sent), |frame| frame[40..42].fill(0));
    relay.run(&bare, 1).unwrap();
    let stats = relay.slot_stats(slot(1));
    assert_eq!(stats.lost[Loss::NoChecksum as usize], 1);
    assert_eq!(relay.slot_stats(slot(2)).packets, 5);
    // A slot that expires within an object.
    let packet = |index| arriving(false, &datagram(&header(object(2, 0, 0), index, 2), 100));
    relay.run(&packet(0), 1).unwrap();
    relay.renew(slot(2), now());
    relay.run(&packet(1), 1).unwrap();
    let stats = relay.slot_stats(slot(2));
    assert_eq!((stats.packets, stats.lost[Loss::Expired as usize]), (6, 1));
    assert_eq!(stats.objects[Verdict::Served as usize], 6);
}

/// Half of the refinements, in a relay of which the second subscriber gets everything.
fn relay_of_half() -> Relay {
    let mut relay = relay();
    let budget = Budget {
        least_priority: 1,
        share: Share::of(0.5),
        ..Budget::UNLIMITED
    };
    relay.set_budget(slot(0), &budget);
    relay
}

#[test]
fn a_subscriber_is_sent_a_layer_of_a_share_of_the_groups() {
    let relay = relay_of_half();
    let mut registrations = relay.registrations().unwrap();
    for (group, layer) in (0..16).flat_map(|group| [(group, 0), (group, 1), (group, 2)]) {
        let sent = datagram(&header(object(group, 0, layer), 0, 1), 100);
        relay.run(&arriving(false, &sent), 1).unwrap();
    }
    let registered = registrations.drain();
    let groups = |index: usize, layer: u8| -> Vec<u32> {
        let of_layer = registered.iter().filter(|r| r.object.layer == layer);
        let served = of_layer.filter(|r| r.served.contains(slot(index)));
        served.map(|r| r.object.group).collect()
    };
    let all: Vec<u32> = (0..16).collect();
    assert_eq!(groups(0, 0), all);
    assert_eq!(groups(0, 1), [0, 2, 4, 6, 8, 10, 12, 14]);
    assert!(groups(0, 2).is_empty());
    assert!((0..3).all(|layer| groups(1, layer) == all));
    let stats = relay.slot_stats(slot(0));
    let objects = [
        Verdict::Served,
        Verdict::Thinned,
        Verdict::Priority,
        Verdict::Broken,
    ];
    let objects = objects.map(|verdict| stats.objects[verdict as usize]);
    assert_eq!(objects, [24, 8, 8, 8]);
}

#[test]
fn packets_that_decode_alone_are_thinned_one_by_one() {
    let relay = relay_of_half();
    let mut registrations = relay.registrations().unwrap();
    let alone = |group: u32, layer: u8, index: u16| Header {
        flags: Flags {
            packets_alone: true,
            ..Flags::default()
        },
        ..header(object(group, 0, layer), index, 20)
    };
    for (group, layer) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for index in 0..20 {
            let sent = datagram(&alone(group, layer, index), 100);
            relay.run(&arriving(false, &sent), 1).unwrap();
        }
    }
    let registered = registrations.drain();
    assert!(registered.iter().all(|r| r.served.contains(slot(0))));
    let [some, all] = [0, 1].map(|index| relay.slot_stats(slot(index)));
    // All of both bases.
    assert_eq!((some.packets, all.packets), (60, 80));
    assert_eq!(some.lost[Loss::Thinned as usize], 20);
    assert_eq!(some.bytes, 60 * 128);
}

#[test]
fn every_slot_can_be_used() {
    let mut relay = relay();
    let mut registrations = relay.registrations().unwrap();
    for index in 2..1024 {
        add(&mut relay, index);
    }
    let sent = datagram(&header(object(0, 0, 0), 0, 1), 60);
    relay.run(&arriving(false, &sent), 1).unwrap();
    for slot in SlotIndex::all() {
        assert_eq!(relay.slot_stats(slot).packets, 1, "{slot:?}");
    }
    let [registration] = registrations.drain()[..] else {
        panic!("one record")
    };
    assert_eq!(registration.served.iter().count(), 1024);
}

/// A device may have summed up all bytes of a packet; the kernel then checks that the program kept
/// the sum right.
#[test]
fn a_sum_that_a_device_computed_stays_right() {
    for (subscribers, copy) in [(1, false), (2, false), (2, true), (4, true)] {
        for is_ipv6 in [false, true] {
            let mut relay = relay();
            for index in 2..subscribers {
                add(&mut relay, index);
            }
            if subscribers == 1 {
                let other = usize::from(!is_ipv6);
                relay.remove_subscriber(slot(other));
            }
            let options = TrackOptions {
                copy,
                ..track_options()
            };
            relay.set_track(track(0), &options);
            let run = relay.run_with_sum(&arriving(is_ipv6, &first_packet()));
            assert!(run.is_ok(), "{subscribers} {copy} {is_ipv6}: {run:?}");
            assert_eq!(relay.slot_stats(slot(usize::from(is_ipv6))).packets, 1);
        }
    }
}

#[test]
fn addresses_of_both_protocols_can_be_unlistened() {
    let relay = relay();
    for is_ipv6 in [false, true] {
        let local: SocketAddr = upstream_session(is_ipv6).local;
        assert!(matches!(local.ip(), IpAddr::V4(_)) != is_ipv6);
        relay.unlisten(local).unwrap();
        let run = relay.run(&arriving(is_ipv6, &first_packet()), 1).unwrap();
        assert_eq!(run.action, TC_ACT_UNSPEC);
    }
    assert!(counted(counts(&relay)).is_empty());
}
