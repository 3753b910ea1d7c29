//! The relay between namespaces: what a publisher's socket sends arrives at subscribers' sockets.

#[path = "support/relayed.rs"]
mod relayed;

use hawser_fanout::{Budget, Frame, Rate, Selection, Verdict};
use hawser_io::udp;
use hawser_media_bpf::relay::{Reason, Relay, TrackOptions};
use hawser_packets::media::{Header, ObjectId, Packet, write_hop};
use hawser_units::{Bitrate, ByteSize, Ecn};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Ipv4Tos, Ipv6TClass, UdpGsoSegment};
use relayed::*;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

/// Receives the next datagram of a subscriber, which comes from the relay.
fn receive(socket: &UdpSocket, index: usize) -> Vec<u8> {
    let mut buffer = [0; 2000];
    let (bytes, from) = socket
        .recv_from(&mut buffer)
        .unwrap_or_else(|error| panic!("subscriber {index}: {error}"));
    assert_eq!(from, session(index).local);
    buffer[..bytes].to_vec()
}

/// Sends the packets of an object, as one train or one by one, and checks that each subscriber
/// receives them.
fn send_and_receive(
    publisher: &UdpSocket,
    packets: &[Vec<u8>],
    as_train: bool,
    sockets: &[UdpSocket],
) {
    if as_train {
        train(publisher, packets);
    } else {
        for packet in packets {
            publisher.send(packet).unwrap();
        }
    }
    for (index, socket) in sockets.iter().enumerate() {
        for packet in packets {
            assert_eq!(receive(socket, index), relayed::relayed(packet));
        }
    }
}

/// Receivers verify the checksums of what did not come with a device's promise to complete them.
#[test]
fn every_subscriber_receives_each_packet_with_any_offload() {
    const PACKETS: u16 = 12;
    let offloads = [
        ("none", true, true),
        ("sender", false, true),
        ("relay", true, false),
        ("both", false, false),
    ];
    for (name, sender, relay_device) in offloads {
        in_network(&format!("fanout-{name}"), 20, |network| {
            let offload = |on| [("tx", on)];
            network
                .peers
                .offloads("publisher", &offload(sender))
                .unwrap();
            network
                .relay
                .offloads("lan", &offload(relay_device))
                .unwrap();
            let relay = network.relay();
            let sockets = network.subscribers();
            let mut number = 0;
            for is_ipv6 in [false, true] {
                let publisher = network.publisher(is_ipv6);
                for as_train in [false, true] {
                    number += 1;
                    let packet = |index| {
                        let bytes = if index + 1 == PACKETS { 700 } else { 1200 };
                        datagram(&header(object(number, 0, 0), index, PACKETS), bytes)
                    };
                    let packets: Vec<_> = (0..PACKETS).map(packet).collect();
                    send_and_receive(&publisher, &packets, as_train, &sockets);
                }
            }
            let packets = u64::from(PACKETS) * 4;
            assert_eq!(
                counted(relay.counts(Some(track(0))).unwrap()),
                [(Reason::Forwarded, packets)]
            );
            assert_eq!(counted(relay.counts(None).unwrap()), []);
            for index in 0..20 {
                let stats = relay.slot_stats(slot(index));
                assert_eq!((stats.packets, stats.lost), (packets, [0; 6]), "{index}");
            }
        });
    }
}

/// Waits until nothing more can be on its way to a subscriber, and returns what arrived.
fn drain(socket: &UdpSocket, index: usize, publisher: &UdpSocket) -> Vec<Header> {
    // Packets stay in order, so nothing comes after an object that everybody is sent.
    let last = object(u32::MAX - 1, index as u32, 0);
    publisher.send(&datagram(&header(last, 0, 1), 100)).unwrap();
    let mut headers = Vec::new();
    loop {
        let header = Packet::parse(&receive(socket, index)).unwrap().header;
        match header.id.object {
            object if object == last => return headers,
            // The end of what another subscriber was sent.
            object if object.group == last.group => {}
            _ => headers.push(header),
        }
    }
}

fn train(publisher: &UdpSocket, packets: &[Vec<u8>]) {
    setsockopt(publisher, UdpGsoSegment, &(packets[0].len() as i32)).unwrap();
    publisher.send(&packets.concat()).unwrap();
    setsockopt(publisher, UdpGsoSegment, &0).unwrap();
}

fn count(relay: &Relay, reason: Reason) -> u64 {
    let rows = [Some(track(0)), None].map(|track| relay.counts(track).unwrap());
    rows.iter()
        .flatten()
        .filter(|(counted, _)| *counted == reason)
        .map(|(_, count)| count)
        .sum()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn packets_of(id: ObjectId, count: u16, bytes: usize) -> Vec<Vec<u8>> {
    let packet = |index| datagram(&header(id, index, count), bytes);
    (0..count).map(packet).collect()
}

#[test]
fn trains_of_different_packets_are_dropped() {
    in_network("not-split", 4, |network| {
        let relay = network.relay();
        let sockets = network.subscribers();
        let publisher = network.publisher(false);

        let two_objects = [
            packets_of(object(0, 0, 0), 3, 400),
            packets_of(object(0, 0, 1), 3, 400),
        ]
        .concat();
        let forged = {
            let mut packets = packets_of(object(0, 1, 0), 4, 400);
            packets[2][30] ^= 1;
            packets
        };
        let partly_seen = packets_of(object(0, 2, 0), 4, 400);
        publisher.send(&partly_seen[1]).unwrap();
        let end_too_short = {
            let mut packets = packets_of(object(0, 3, 0), 3, 400);
            packets[2].truncate(52);
            packets
        };
        let with_a_gap = {
            let mut packets = packets_of(object(0, 4, 0), 4, 400);
            packets.remove(1);
            packets
        };
        for packets in [
            &two_objects,
            &forged,
            &partly_seen,
            &end_too_short,
            &with_a_gap,
        ] {
            train(&publisher, packets);
        }
        for (index, socket) in sockets.iter().enumerate() {
            let ids: Vec<_> = drain(socket, index, &publisher)
                .into_iter()
                .map(|header| (header.id.object.object, header.id.index))
                .collect();
            assert_eq!(ids, [(2, 1)], "subscriber {index}");
        }
        assert_eq!(count(&relay, Reason::NotSplit), 6 + 4 + 4 + 3 + 3);
    });
}

#[test]
fn what_an_attacker_sends_is_refused_and_reaches_nobody() {
    const ROUNDS: u32 = 50;
    in_network("attack", 4, |network| {
        let relay = network.relay();
        let sockets = network.subscribers();
        let publisher = network.publisher(false);
        let elsewhere = network
            .peers
            .run(|| UdpSocket::bind((WAN[1], 0)))
            .unwrap()
            .unwrap();
        elsewhere.connect((WAN[0], PORT)).unwrap();
        for number in 0..ROUNDS {
            let sent = datagram(&header(object(0, number, 0), 0, 1), 200);
            let mut forged = datagram(&header(object(9, number, 0), 0, 1), 200);
            forged[28] ^= 1;
            let mut untracked = sent.clone();
            untracked[4] ^= 1;
            write_hop(untracked.first_chunk_mut().unwrap(), &upstream_hop());
            elsewhere.send(&sent).unwrap(); // captured, from another port
            publisher.send(&forged).unwrap();
            publisher.send(&sent[..50]).unwrap();
            publisher.send(&[&sent[..], &[0; 1100]].concat()).unwrap();
            publisher.send(&untracked).unwrap();
            publisher.send(&sent).unwrap();
            publisher.send(&sent).unwrap(); // replayed
        }
        for (index, socket) in sockets.iter().enumerate() {
            let headers = drain(socket, index, &publisher);
            let numbers: Vec<u32> = headers
                .iter()
                .map(|header| header.id.object.object)
                .collect();
            assert_eq!(numbers, (0..ROUNDS).collect::<Vec<_>>());
        }
        for reason in [
            Reason::NoUpstream,
            Reason::Tag,
            Reason::Truncated,
            Reason::Oversize,
            Reason::NoTrack,
            Reason::Duplicate,
        ] {
            assert_eq!(count(&relay, reason), u64::from(ROUNDS), "{reason:?}");
        }
    });
}

/// Frames of a base and an enhancement.
#[test]
fn a_congested_subscriber_gets_its_bases_others_everything() {
    const FRAMES: u32 = 60;
    const PACKETS: u16 = 4;
    in_network("congested", 4, |network| {
        let mut relay = network.relay();
        let mut registrations = relay.registrations().unwrap();
        // Room for one frame, and then for nothing; bases may go into debt.
        let total = Rate::new(Bitrate::from_bps(8_000), ByteSize(6_000));
        let mut budget = Budget::of(total);
        budget.levels[0].floor = -1_000_000;
        relay.set_budget(slot(2), &budget);
        let sockets = network.subscribers();
        let publisher = network.publisher(false);
        for number in 0..FRAMES {
            for layer in [0, 1] {
                // Each frame is a group of its own.
                train(
                    &publisher,
                    &packets_of(object(number, 0, layer), PACKETS, 1000),
                );
            }
        }
        for (index, socket) in sockets.iter().enumerate() {
            let headers = drain(socket, index, &publisher);
            let of_layer = |layer| {
                let of = headers
                    .iter()
                    .filter(|header| header.id.object.layer == layer);
                of.count() as u32
            };
            assert_eq!(
                of_layer(0),
                FRAMES * u32::from(PACKETS),
                "subscriber {index}"
            );
            let enhanced = of_layer(1);
            if index == 2 {
                assert!(enhanced.is_multiple_of(PACKETS.into()), "objects are whole");
                assert!(
                    enhanced < FRAMES * u32::from(PACKETS),
                    "it has no room for all"
                );
                let stats = relay.slot_stats(slot(2));
                let dropped = stats.objects[Verdict::Tokens as usize] as u32;
                assert_eq!(enhanced / u32::from(PACKETS) + dropped, FRAMES);
            } else {
                assert_eq!(enhanced, FRAMES * u32::from(PACKETS), "subscriber {index}");
            }
        }
        let dropped = registrations
            .drain()
            .into_iter()
            .filter(|object| object.ended && object.dropped.contains(slot(2)));
        let stats = relay.slot_stats(slot(2));
        assert_eq!(
            dropped.count() as u64,
            stats.objects[Verdict::Tokens as usize]
        );
    });
}

#[test]
fn the_way_of_each_subscriber_has_marks_of_its_own() {
    in_network("marks", 4, |network| {
        let _relay = network.relay();
        let bind = || {
            (0..4)
                .map(|index| udp::UdpSocket::bind(remote(index)).unwrap())
                .collect()
        };
        let mut sockets: Vec<udp::UdpSocket> = network.peers.run(bind).unwrap();
        let marks = [Ecn::Ect1, Ecn::Ce, Ecn::Ect0, Ecn::NotEct];
        for is_ipv6 in [false, true] {
            let publisher = network.publisher(is_ipv6);
            for (number, ecn) in (0..).zip(marks) {
                let class = i32::from(ecn.bits());
                if is_ipv6 {
                    setsockopt(&publisher, Ipv6TClass, &class).unwrap();
                } else {
                    setsockopt(&publisher, Ipv4Tos, &class).unwrap();
                }
                train(
                    &publisher,
                    &packets_of(object(is_ipv6.into(), number, 0), 2, 500),
                );
            }
        }
        for (index, socket) in sockets.iter_mut().enumerate() {
            let mut arrived = Vec::new();
            while arrived.len() < 4 * marks.len() {
                socket.wait(Some(Duration::from_secs(60))).unwrap();
                let any = socket
                    .receive(|datagram| arrived.push(datagram.ecn))
                    .unwrap();
                assert!(any, "subscriber {index} received {arrived:?}");
            }
            assert!(
                arrived.iter().all(|ecn| *ecn == Ecn::Ect0),
                "subscriber {index} received {arrived:?}"
            );
        }
    });
}

#[test]
fn the_socket_gets_a_copy_of_each_packet_and_message() {
    in_network("copy", 4, |network| {
        let mut relay = network.relay();
        let options = TrackOptions {
            copy: true,
            ..track_options()
        };
        relay.set_track(track(0), &options);
        let sockets = network.subscribers();
        for is_ipv6 in [false, true] {
            let own = UdpSocket::bind(upstream_session(is_ipv6).local).unwrap();
            own.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let next = || {
                let mut buffer = [0; 2000];
                let (bytes, from) = own.recv_from(&mut buffer).unwrap();
                assert_eq!(from, upstream_session(is_ipv6).remote);
                buffer[..bytes].to_vec()
            };
            let publisher = network.publisher(is_ipv6);
            let group = u32::from(is_ipv6);
            let alone = datagram(&header(object(group, 0, 0), 0, 1), 900);
            publisher.send(&[0x41, 5, 0, 0]).unwrap();
            publisher.send(&alone).unwrap();
            publisher.send(&alone).unwrap();
            assert_eq!(next(), [0x41, 5, 0, 0]);
            assert_eq!(
                [next(), next()],
                [relayed::relayed(&alone), relayed::relayed(&alone)]
            );
            let packets = packets_of(object(group, 1, 0), 5, 900);
            train(&publisher, &packets);
            for packet in &packets {
                assert_eq!(next(), relayed::relayed(packet));
            }
            for (index, socket) in sockets.iter().enumerate() {
                for packet in std::iter::once(&alone).chain(&packets) {
                    assert_eq!(receive(socket, index), relayed::relayed(packet));
                }
            }
        }
        assert_eq!(count(&relay, Reason::LostCopies), 0);
    });
}

/// One thread sends frames as fast as it can, while subscribers join: what comes after the frame
/// that the program says they joined at is complete.
#[test]
fn who_joins_misses_nothing_from_the_frame_that_it_joined_at() {
    const FRAMES: u32 = 3000;
    in_network("join", 8, |network| {
        let mut relay = network.relay();
        for index in 0..8 {
            relay.unsubscribe(track(0), slot(index));
        }
        let sockets = network.subscribers();
        let publisher = network.publisher(false);
        let sender = publisher.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..FRAMES {
                    for layer in [0, 1] {
                        let sent = datagram(&header(object(7, number, layer), 0, 1), 60);
                        sender.send(&sent).unwrap();
                    }
                    if number % 16 == 0 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                }
            });
            for index in 0..8 {
                let reached = Frame {
                    group: 7,
                    object: index as u32 * 200,
                };
                wait_for("frames are sent", || {
                    relay.newest(track(0)) >= Some(reached)
                });
                relay.subscribe(
                    track(0),
                    slot(index),
                    &Selection {
                        layers: 2,
                        join: Frame::FIRST,
                    },
                );
                wait_for("the subscriber joined", || {
                    relay.joined(track(0), slot(index)).is_some()
                });
            }
        });
        for (index, socket) in sockets.iter().enumerate() {
            let joined = relay.joined(track(0), slot(index)).unwrap();
            assert_eq!(joined.group, 7);
            let ids: Vec<_> = drain(socket, index, &publisher)
                .into_iter()
                .map(|header| (header.id.object.object, header.id.object.layer))
                .collect();
            let expected: Vec<_> = (joined.object..FRAMES)
                .flat_map(|number| [(number, 0), (number, 1)])
                .collect();
            assert!(
                ids == expected,
                "subscriber {index} joined at {joined:?}: {} of {}",
                ids.len(),
                expected.len()
            );
        }
    });
}

/// The same packets come over two paths on two CPUs.
#[test]
fn each_packet_of_two_upstreams_is_sent_once() {
    const OBJECTS: u32 = 1500;
    in_network("two-upstreams", 4, |network| {
        let relay = network.relay();
        let sockets = network.subscribers();
        let publishers = [false, true].map(|is_ipv6| network.publisher(is_ipv6));
        std::thread::scope(|scope| {
            for publisher in &publishers {
                scope.spawn(move || {
                    for number in 0..OBJECTS {
                        for packet in packets_of(object(0, number, 0), 3, 60) {
                            publisher.send(&packet).unwrap();
                        }
                    }
                });
            }
        });
        for (index, socket) in sockets.iter().enumerate() {
            let mut ids: Vec<_> = drain(socket, index, &publishers[0])
                .into_iter()
                .map(|header| (header.id.object.object, header.id.index))
                .collect();
            ids.sort_unstable();
            let expected: Vec<_> = (0..OBJECTS)
                .flat_map(|number| [0, 1, 2].map(|packet| (number, packet)))
                .collect();
            assert!(ids == expected, "subscriber {index}: {}", ids.len());
        }
        let packets = u64::from(OBJECTS) * 3;
        let others = count(&relay, Reason::Duplicate) + count(&relay, Reason::Outdated);
        assert_eq!(others, packets);
        assert_eq!(count(&relay, Reason::Contended), 0);
    });
}
