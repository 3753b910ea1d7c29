//! Copies are really forwarded: frames arrive on one device and are captured at the far end of
//! every path.

use crate::paths::*;
use crate::support::*;
use hawser_replication_bpf::{Loop, SendFlow, SendPath, SendPolicy, Sender};
use hawser_shim::{Cover, KeySlot, Replica, transparent};
use hawser_testbed::ring::Port;
use hawser_units::{PathSet, PolicyCode};
use hawser_wire::ip;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use std::collections::{HashMap, HashSet};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

#[test]
fn transit_packets_leave_by_every_path_of_their_policy() {
    in_namespace("transit", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut sender = replicating();
        let key = seal_key(1);
        let tagged = SendFlow {
            key: Some((KeySlot::One, key.clone(), Cover::Whole)),
            ..send_flow(7)
        };
        sender.set_flow(flow(7), &tagged).unwrap();
        set_policy(&sender, 7, 0b111, 3);
        sender
            .attach_transit(if_nametoindex("lan").unwrap())
            .unwrap();
        let payload: Vec<u8> = (0..=255).cycle().take(1400 - 28).collect();
        let packets = [
            udp4("203.0.113.9", b"odd"),
            udp6("2001:db8:b::9", b"even"),
            udp4("203.0.113.9", &payload),
        ];

        lan.sender
            .send(&packets.clone().map(|packet| arriving(&packet)))
            .unwrap();

        for (index, end) in (0..).zip(&mut ends) {
            for (sequence, (frame, packet)) in
                (1 << 40..).zip(receive(end, packets.len()).iter().zip(&packets))
            {
                let copy = Replica::parse(frame).unwrap();
                assert_eq!(copy.encapsulation, encapsulation(index));
                assert_eq!(
                    (copy.shim.path, copy.shim.paths.bits()),
                    (path(index), 0b111)
                );
                assert_eq!((copy.shim.flow, copy.shim.sequence), (flow(7), sequence));
                assert_eq!(copy.inner, one_hop_on(packet));
                let datagram = &frame[frame.len() - copy.inner.len() - 28..];
                assert!(ring(None, Some(&key)).accepts(datagram));
            }
            assert_eq!(sender.path_stats(flow(7), path(index)).unwrap().packets, 3);
        }
        assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 3);
        assert_eq!(counted(sender.reasons().unwrap()), []);
    });
}

/// One packet in four takes the probed paths in addition, and the tagged shims of all its copies
/// say so.
#[test]
fn probes_leave_by_the_probed_paths() {
    const PACKETS: usize = 32;
    in_namespace("probes", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut sender = replicating();
        let key = seal_key(1);
        let tagged = SendFlow {
            key: Some((KeySlot::Zero, key.clone(), Cover::Whole)),
            ..send_flow(7)
        };
        sender.set_flow(flow(7), &tagged).unwrap();
        let probes = PathSet::from_bits(0b110);
        let policy = SendPolicy {
            code: PolicyCode(0b001),
            probes,
            probe_every: 4,
            epoch: 3,
        };
        sender.replace_policy(flow(7), policy).unwrap();
        sender
            .attach_transit(if_nametoindex("lan").unwrap())
            .unwrap();

        lan.sender
            .send(&vec![arriving(&udp4("203.0.113.9", b"x")); PACKETS])
            .unwrap();

        let ring = ring(Some(&key), None);
        for (index, end) in (0..).zip(&mut ends) {
            let copies = if index == 0 { PACKETS } else { PACKETS / 4 };
            for frame in receive(end, copies) {
                let copy = Replica::parse(&frame).unwrap();
                let is_probe = copy.shim.sequence.is_multiple_of(4);
                assert_eq!(copy.shim.paths.bits(), if is_probe { 0b111 } else { 0b001 });
                assert!(copy.shim.paths.contains(path(index)));
                assert!(ring.accepts(&frame[frame.len() - copy.inner.len() - 28..]));
            }
            assert_eq!(
                sender.path_stats(flow(7), path(index)).unwrap().packets,
                copies as u64
            );
        }
        assert_eq!(
            [0, 1, 2].map(|index| sender.device_drops(path(index)).unwrap()),
            [0; 3]
        );
    });
}

/// A veth accepts redirected frames only while its far end polls, and none while it is down.
#[test]
fn copies_that_a_device_drops_are_counted() {
    in_namespace("refused", || {
        let lan = Port::open("far-lan").unwrap();
        let mut end = Port::open("far-wan0").unwrap();
        let mut sender = replicating();
        set_policy(&sender, 7, 0b011, 3);
        sender
            .attach_transit(if_nametoindex("lan").unwrap())
            .unwrap();

        lan.sender
            .send(&vec![arriving(&udp4("203.0.113.9", b"x")); 3])
            .unwrap();

        receive(&mut end, 3);
        wait_until("the other copies are counted", || {
            [0, 1].map(|index| sender.device_drops(path(index)).unwrap()) == [0, 3]
        });
    });
}

#[test]
fn transparent_packets_leave_with_their_path_in_the_tos_byte() {
    in_namespace("transparent", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut sender = replicating();
        sender
            .set_flow(
                flow(7),
                &SendFlow {
                    transparent: true,
                    ..send_flow(7)
                },
            )
            .unwrap();
        set_policy(&sender, 7, 0b101, 3);
        sender
            .attach_transit(if_nametoindex("lan").unwrap())
            .unwrap();
        let packet = with_tos(with_id(udp4("203.0.113.9", &[7; 1472]), 7), 0xb9);

        lan.sender.send(&[arriving(&packet)]).unwrap();

        for index in [0, 2] {
            let end = &mut ends[usize::from(index)];
            let expected = with_tos(one_hop_on(&packet), transparent::tos(path(index), 0xb9));
            let SendPath {
                source_mac,
                next_hop_mac,
                ..
            } = path_end(index);
            assert_eq!(
                receive(end, 1),
                [ethernet(next_hop_mac, source_mac, &expected)]
            );
        }
    });
}

/// Policies change as fast as they can while traffic flows: each packet leaves under one policy, by
/// all of its paths.
#[test]
fn a_policy_changes_at_once() {
    const PACKETS: usize = 20_000;
    const BATCH: usize = 16;
    const CODES: [u8; 4] = [0b001, 0b100, 0b101, 0b111];
    in_namespace("policy", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut sender = replicating();
        sender
            .attach_transit(if_nametoindex("lan").unwrap())
            .unwrap();
        let policies = CODES.map(|code| (code, code * 3));
        let set = |sender: &Sender, (code, epoch): (u8, u8)| {
            set_policy(sender, 7, code, u32::from(epoch));
        };
        set(&sender, policies[0]);
        let packet = arriving(&udp4("203.0.113.9", b"x"));
        let (sent, captured) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut copies: HashMap<u64, (u8, u8)> = HashMap::new();
        let mut received = 0u64;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for batch in 0..PACKETS / BATCH {
                    // No more packets in flight than devices and captures can hold.
                    while batch * BATCH > captured.load(Ordering::Acquire) + 2 * BATCH {
                        std::thread::yield_now();
                    }
                    lan.sender.send(&vec![packet.clone(); BATCH]).unwrap();
                }
                sent.store(true, Ordering::Release);
            });
            let mut changes = policies.into_iter().cycle();
            let deadline = Instant::now() + TIMEOUT;
            loop {
                let last_round = sent.load(Ordering::Acquire);
                if !last_round {
                    set(&sender, changes.next().unwrap());
                }
                for (index, end) in ends.iter_mut().enumerate() {
                    end.receiver.receive(|frame| {
                        let frame = frame.unwrap().to_vec();
                        let shim = Replica::parse(&frame).unwrap().shim;
                        let paths = shim.paths.bits();
                        assert!(policies.contains(&(paths, shim.epoch)), "{shim:?}");
                        assert!(shim.paths.contains(shim.path) && shim.path == path(index as u8));
                        let (known, seen) = copies.entry(shim.sequence).or_insert((paths, 0));
                        assert_eq!(*known, paths, "one packet under two policies");
                        assert_eq!(*seen & 1 << index, 0, "two copies on one path");
                        *seen |= 1 << index;
                        received += 1;
                    });
                }
                captured.store(copies.len(), Ordering::Release);
                let expected: u64 = (0..PATHS)
                    .map(|index| sender.path_stats(flow(7), path(index)).unwrap().packets)
                    .sum();
                if last_round && received == expected {
                    break;
                }
                assert!(
                    Instant::now() < deadline,
                    "{received} of {expected} copies arrived"
                );
            }
        });
        assert_eq!(copies.len(), PACKETS);
        assert!(
            copies.values().all(|(paths, seen)| paths == seen),
            "a packet missed a path"
        );
        let codes: HashSet<u8> = copies.values().map(|(paths, _)| *paths).collect();
        assert!(
            codes.len() > 1,
            "the policy never changed while traffic flowed"
        );
    });
}

/// A GSO packet of a local sender leaves as packets with their own checksums.
#[test]
fn local_gso_packets_are_segmented_by_the_loop_and_replicated() {
    in_namespace("train", || {
        let mut ends = far_ends();
        let _exit_polls = Port::open("far-lan").unwrap();
        let mut sender = replicating();
        set_policy(&sender, 7, 0b111, 3);
        let [device, entry, exit] =
            ["lan", "loop", "far-loop"].map(|name| if_nametoindex(name).unwrap());
        sender.attach_local(device).unwrap();
        let socket = UdpSocket::bind("192.0.2.1:1000").unwrap();
        setsockopt(&socket, UdpGsoSegment, &500).unwrap();
        let train: Vec<u8> = (0..4).flat_map(|number| [number; 500]).collect();

        socket.send_to(&train, "203.0.113.9:2000").unwrap();
        assert_eq!(
            counted(sender.reasons().unwrap()),
            [("passed_gso", 1)],
            "there is no loop yet"
        );
        sender
            .attach_loop(Loop {
                device,
                entry,
                exit,
            })
            .unwrap();
        socket.send_to(&train, "203.0.113.9:2000").unwrap();

        for end in &mut ends {
            let frames = receive(end, 4);
            for (number, frame) in (0..).zip(&frames) {
                let copy = Replica::parse(frame).unwrap();
                assert_eq!(copy.shim.sequence, (1 << 40) + u64::from(number));
                assert_eq!(copy.inner[28..], [number; 500]);
                let (header, segment) = ip::Ipv4Header::parse(copy.inner).unwrap();
                let sum = ip::transport_checksum(
                    header.source.into(),
                    header.destination.into(),
                    ip::UDP,
                    segment,
                );
                assert_eq!(sum, 0, "segment {number} has no right checksum");
            }
        }
    });
}

/// Probes of a path over IPv6 need the loop too; it then takes all packets of the flow and numbers
/// them.
#[test]
fn local_packets_probe_a_path_over_ipv6_by_the_loop() {
    const PACKETS: usize = 16;
    in_namespace("local-probe", || {
        let mut ends = far_ends();
        let _exit_polls = Port::open("far-lan").unwrap();
        let mut sender = replicating();
        let probes = PathSet::from_bits(0b010);
        let policy = SendPolicy {
            code: PolicyCode(0b001),
            probes,
            probe_every: 4,
            epoch: 3,
        };
        sender.replace_policy(flow(7), policy).unwrap();
        let [device, entry, exit] =
            ["lan", "loop", "far-loop"].map(|name| if_nametoindex(name).unwrap());
        sender.attach_local(device).unwrap();
        sender
            .attach_loop(Loop {
                device,
                entry,
                exit,
            })
            .unwrap();
        let socket = UdpSocket::bind("192.0.2.1:1000").unwrap();
        for _ in 0..PACKETS {
            socket.send_to(b"local", "203.0.113.9:2000").unwrap();
        }
        let mut sequences = |index: usize, copies| -> Vec<u64> {
            let frames = receive(&mut ends[index], copies);
            frames
                .iter()
                .map(|frame| Replica::parse(frame).unwrap().shim.sequence - (1 << 40))
                .collect()
        };
        assert_eq!(sequences(0, PACKETS), (0..16).collect::<Vec<_>>());
        assert_eq!(sequences(1, PACKETS / 4), [0, 4, 8, 12]);
        assert_eq!(counted(sender.reasons().unwrap()), []);
    });
}

/// At TC, every path gets its clone, and the sender's checksum, which its device was to complete,
/// is right.
#[test]
fn local_packets_leave_by_every_path_over_ipv4() {
    in_namespace("local", || {
        let mut ends = far_ends();
        let mut sender = replicating();
        set_policy(&sender, 7, 0b101, 3);
        sender.attach_local(if_nametoindex("lan").unwrap()).unwrap();
        for index in [0, 2] {
            // The paths' devices have the program too: a replica must not be replicated again.
            sender.attach_local(path_end(index).ifindex).unwrap();
        }
        let socket = UdpSocket::bind("192.0.2.1:1000").unwrap();
        socket.send_to(b"local", "203.0.113.9:2000").unwrap();
        for index in [0, 2] {
            let frames = receive(&mut ends[usize::from(index)], 1);
            let copy = Replica::parse(&frames[0]).unwrap();
            assert_eq!(
                (copy.encapsulation, copy.shim.path),
                (encapsulation(index), path(index))
            );
            assert_eq!(&copy.inner[28..], b"local");
        }
        assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 1);
        assert_eq!(counted(sender.reasons().unwrap()), []);
    });
}
