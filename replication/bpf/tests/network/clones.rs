//! Copies that are clones: where a path's device takes no frames from XDP, or XDP does not run on the
//! device that a flow arrives on, the packets are replicated at TC.

use crate::paths::*;
use crate::support::*;
use hawser_replication_bpf::{SendFlow, SendPath, SendPolicy, Sender};
use hawser_shim::{Addresses, Cover, KeySlot, Replica, transparent};
use hawser_testbed::ring::Port;
use hawser_units::{PathSet, PolicyCode};
use hawser_wire::ip;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const FIRST: u64 = 1 << 40;

/// Where transit traffic is replicated.
#[derive(Debug, Clone, Copy)]
enum Transit {
    /// In XDP, and at TC if copies are clones.
    Xdp,
    /// At TC alone.
    Tc,
}

fn attach(sender: &mut Sender, transit: Transit) {
    if let Transit::Xdp = transit {
        sender.attach_transit(number("lan")).unwrap();
    }
    sender.attach_transit_loop(loop_of_lan("trans")).unwrap();
}

/// Makes the devices of the paths with these indices take no frames.
fn take_no_frames(sender: &mut Sender, indices: &[u8]) {
    for index in indices {
        let end = SendPath {
            takes_frames: false,
            is_tunnel: false,
            ..path_end(*index)
        };
        sender.set_path(path(*index), Some(end)).unwrap();
    }
}

/// Asserts that each path has a copy of each packet, and that every byte of it is right.
fn assert_copies(ends: &mut [Port], flow: &SendFlow, first: u64, packets: &[Vec<u8>]) {
    let ring = flow
        .key
        .as_ref()
        .map(|(_, key, _)| ring(Some(key), None))
        .unwrap_or_default();
    for (index, end) in (0..).zip(ends) {
        let frames = receive(end, packets.len());
        for ((sequence, frame), packet) in (first..).zip(&frames).zip(packets) {
            let copy = Replica::parse(frame).unwrap();
            let shim = &copy.shim;
            assert_eq!(copy.encapsulation, encapsulation(index));
            assert_eq!((shim.path, shim.paths.bits()), (path(index), 0b111));
            assert_eq!((shim.sequence, copy.inner), (sequence, &packet[..]));
            assert_eq!(shim.seal.is_some(), flow.key.is_some());
            let datagram = &frame[frame.len() - packet.len() - 28..];
            assert!(ring.accepts(datagram), "path {index}, packet {sequence}");
            if let Addresses::V6 {
                source,
                destination,
            } = copy.encapsulation.addresses
            {
                let ends: [IpAddr; 2] = [source.into(), destination.into()];
                let outer = &frame[frame.len() - packet.len() - 36..];
                let sum = ip::transport_checksum(ends[0], ends[1], ip::UDP, outer);
                assert_eq!(sum, 0, "the UDP checksum over IPv6");
            }
        }
    }
}

fn sealed(cover: Option<Cover>) -> SendFlow {
    SendFlow {
        key: cover.map(|cover| (KeySlot::Zero, seal_key(1), cover)),
        ..send_flow(7)
    }
}

/// Every copy has its own path and tag: copies of a packet share memory until they are written.
#[test]
fn transit_packets_are_cloned_to_every_path() {
    let cases = [
        ("xdp", Transit::Xdp, &[0, 1, 2][..]),
        ("one", Transit::Xdp, &[2]),
        ("tc", Transit::Tc, &[0, 1, 2]),
        ("mixed", Transit::Tc, &[]),
    ];
    for (name, transit, without_frames) in cases {
        in_namespace(&format!("clone-{name}"), || {
            let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
            let mut sender = replicating();
            take_no_frames(&mut sender, without_frames);
            set_policy(&sender, 7, 0b111, 3);
            attach(&mut sender, transit);
            let payload: Vec<u8> = (0..=255).cycle().take(1400 - 28).collect();
            let packets = [
                udp4("203.0.113.9", b"odd"),
                udp6("2001:db8:b::9", b"even"),
                udp4("203.0.113.9", &payload),
            ];
            let once_forwarded = packets.clone().map(|packet| one_hop_on(&packet));
            for cover in [None, Some(Cover::Headers), Some(Cover::Whole)] {
                let flow_row = sealed(cover);
                sender.set_flow(flow(7), &flow_row).unwrap();
                let mut frames = packets.clone().map(|packet| arriving(&packet));
                frames[0].resize(60, 0xee); // a short frame is padded

                lan.sender.send(&frames).unwrap();

                assert_copies(&mut ends, &flow_row, FIRST, &once_forwarded);
            }
            assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 9);
            for index in 0..PATHS {
                let copies = sender.path_stats(flow(7), path(index)).unwrap();
                assert_eq!(copies.packets, 9);
                assert_eq!(sender.device_drops(path(index)).unwrap(), 0);
            }
            assert_eq!(counted(sender.reasons().unwrap()), []);
        });
    }
}

/// Over IPv4 alone, packets need no loop.
#[test]
fn transit_packets_over_ipv4_are_cloned_without_a_detour() {
    in_namespace("direct", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut exit = Port::open("far-trans").unwrap();
        let mut sender = replicating();
        take_no_frames(&mut sender, &[0]);
        set_policy(&sender, 7, 0b101, 3);
        attach(&mut sender, Transit::Xdp);
        let packet = udp6("2001:db8:b::9", b"x");
        lan.sender.send(&[arriving(&packet)]).unwrap();
        for index in [0, 2] {
            let frame = receive(&mut ends[index], 1).remove(0);
            assert_eq!(Replica::parse(&frame).unwrap().inner, one_hop_on(&packet));
        }
        assert_eq!(exit.receiver.receive(|_| ()), 0);
    });
}

/// The kernel makes no room in a packet that fills the largest buffer.
#[test]
fn a_packet_that_the_kernel_refuses_is_passed_for_that_reason() {
    in_namespace("refused", || {
        for device in ["lan", "far-lan"] {
            run(&format!("ip link set {device} mtu 65535"));
        }
        let lan = Port::open("far-lan").unwrap();
        let mut sender = replicating();
        let end = SendPath {
            takes_frames: false,
            is_tunnel: false,
            mtu_bytes: u16::MAX,
            ..path_end(0)
        };
        sender.set_path(path(0), Some(end)).unwrap();
        attach(&mut sender, Transit::Tc);
        let packet = udp4("203.0.113.9", &[7; 20_000]);
        lan.sender.send(&[arriving(&packet)]).unwrap();
        let reasons = || counted(sender.reasons().unwrap());
        wait_until("the packet is counted", || !reasons().is_empty());
        assert_eq!(reasons(), [("passed_refused", 1)]);
    });
}

/// The trains of a local sender take the loop, at whose exit XDP leaves them to TC.
#[test]
fn local_trains_are_cloned_at_the_exit_of_the_loop() {
    for (name, without_frames) in [("all", &[0, 1, 2][..]), ("first", &[0])] {
        in_namespace(&format!("train-{name}"), || {
            let mut ends = far_ends();
            let _exit_polls = Port::open("far-lan").unwrap();
            let mut sender = replicating();
            take_no_frames(&mut sender, without_frames);
            let flow_row = sealed(Some(Cover::Whole));
            sender.set_flow(flow(7), &flow_row).unwrap();
            set_policy(&sender, 7, 0b111, 3);
            sender.attach_loop(loop_of_lan("loop")).unwrap();
            sender.attach_local(number("lan")).unwrap();
            let socket = UdpSocket::bind("192.0.2.1:1000").unwrap();
            setsockopt(&socket, UdpGsoSegment, &500).unwrap();
            let train: Vec<u8> = (0..4).flat_map(|number| [number; 500]).collect();

            socket.send_to(&train, "203.0.113.9:2000").unwrap();

            for end in &mut ends {
                for (number, frame) in (0..).zip(receive(end, 4)) {
                    let copy = Replica::parse(&frame).unwrap();
                    assert_eq!(copy.shim.sequence, FIRST + u64::from(number));
                    assert_eq!(copy.inner[28..], [number; 500]);
                    let (header, segment) = ip::Ipv4Header::parse(copy.inner).unwrap();
                    let (from, to) = (header.source.into(), header.destination.into());
                    let sum = ip::transport_checksum(from, to, ip::UDP, segment);
                    assert_eq!(sum, 0, "the checksum of segment {number}");
                    let datagram = &frame[frame.len() - copy.inner.len() - 28..];
                    assert!(ring(Some(&seal_key(1)), None).accepts(datagram));
                }
            }
            assert_eq!(counted(sender.reasons().unwrap()), []);
        });
    }
}

/// Wherever it is in their order, a device that is down costs the other paths nothing.
#[test]
fn a_device_that_is_down_takes_no_copies_from_the_others() {
    for down in [0, 2] {
        in_namespace(&format!("down{down}"), || {
            let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
            let mut sender = replicating();
            take_no_frames(&mut sender, &[0, 1, 2]);
            set_policy(&sender, 7, 0b111, 3);
            sender.attach_loop(loop_of_lan("loop")).unwrap();
            sender.attach_local(number("lan")).unwrap();
            attach(&mut sender, Transit::Xdp);
            let device = format!("wan{down}");
            let set = ["link", "set", &device, "down"];
            assert!(Command::new("ip").args(set).status().unwrap().success());
            let socket = UdpSocket::bind("192.0.2.1:1000").unwrap();

            lan.sender
                .send(&vec![arriving(&udp4("203.0.113.9", b"transit")); 3])
                .unwrap();
            socket.send_to(b"local", "203.0.113.9:2000").unwrap();

            let left = (0..PATHS).filter(|index| *index != down);
            for index in left {
                let frames = receive(&mut ends[usize::from(index)], 4);
                let local = |frame: &&Vec<u8>| frame.ends_with(b"local");
                assert_eq!(frames.iter().filter(local).count(), 1);
            }
        });
    }
}

/// Runs a program with words as arguments.
fn run(command: &str) {
    let mut words = command.split(' ');
    let mut program = Command::new(words.next().unwrap());
    assert!(program.args(words).status().unwrap().success(), "{command}");
}

/// The last copy of a packet is the packet itself, which is redirected, and the others are clones.
#[test]
fn refused_copies_are_counted_by_path_and_reason() {
    const PACKETS: u64 = 20;
    let down = "ip link set wanN down";
    let gone = "ip link del wanN";
    let slow = "tc qdisc add dev wanN root tbf rate 8kbit burst 2000 limit 2000";
    let cases = [
        ("clone-down", 0, down, "dropped_by_queue", false),
        ("last-down", 2, down, "dropped_by_queue", false),
        ("clone-gone", 0, gone, "dropped_clone_failed", false),
        ("clone-slow", 0, slow, "dropped_by_queue", false),
        ("last-slow", 2, slow, "dropped_by_queue", false),
        ("clear-slow", 2, slow, "dropped_by_queue", true),
    ];
    for (name, at, obstacle, reason, transparent) in cases {
        in_namespace(name, || {
            let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
            let mut sender = replicating();
            take_no_frames(&mut sender, &[0, 2]);
            let flow_row = SendFlow {
                transparent,
                ..send_flow(7)
            };
            sender.set_flow(flow(7), &flow_row).unwrap();
            set_policy(&sender, 7, 0b101, 3);
            attach(&mut sender, Transit::Tc);
            run(&obstacle.replace('N', &at.to_string()));
            let packet = with_id(udp4("203.0.113.9", &[7; 1000]), 7);

            lan.sender
                .send(&vec![arriving(&packet); PACKETS as usize])
                .unwrap();

            receive(&mut ends[2 - usize::from(at)], PACKETS as usize);
            // The queue takes the first packets.
            let least = if obstacle == slow {
                PACKETS / 2
            } else {
                PACKETS
            };
            wait_until(name, || {
                let lost = counted(sender.lost_copies(path(at)).unwrap());
                let drops = sender.device_drops(path(at)).unwrap();
                (least..=PACKETS).contains(&drops) && lost == [(reason, drops)]
            });
            let other = path(2 - at);
            assert_eq!(counted(sender.lost_copies(other).unwrap()), [], "{name}");
            assert_eq!(sender.device_drops(other).unwrap(), 0, "{name}");
        });
    }
}

/// While copies are between the programs that count them, they seem to be missing.
#[test]
fn drops_of_a_device_are_never_fewer_than_before() {
    in_namespace("monotone", || {
        let lan = Port::open("far-lan").unwrap();
        let ends = far_ends();
        let mut sender = replicating();
        set_policy(&sender, 7, 0b101, 3);
        attach(&mut sender, Transit::Xdp);
        let frames = vec![arriving(&udp4("203.0.113.9", &[7; 1000])); 64];
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    lan.sender.send(&frames).unwrap();
                }
            });
            let mut before = 0;
            for _ in 0..300 {
                let drops = sender.device_drops(path(0)).unwrap();
                assert!(drops >= before, "{drops} after {before}");
                before = drops;
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(ends);
    });
}

#[test]
fn transparent_packets_are_cloned_and_not_replicated_again() {
    in_namespace("transparent", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut sender = replicating();
        take_no_frames(&mut sender, &[0]);
        let transparent_flow = SendFlow {
            transparent: true,
            ..send_flow(7)
        };
        sender.set_flow(flow(7), &transparent_flow).unwrap();
        set_policy(&sender, 7, 0b101, 3);
        attach(&mut sender, Transit::Xdp);
        for index in [0, 2] {
            sender.attach_local(path_end(index).ifindex).unwrap();
        }
        let packet = with_tos(with_id(udp4("203.0.113.9", &[7; 1472]), 7), 0xb9);

        lan.sender.send(&[arriving(&packet)]).unwrap();

        for index in [0, 2] {
            let copy = with_tos(one_hop_on(&packet), transparent::tos(path(index), 0xb9));
            let end = path_end(index);
            let expected = ethernet(end.next_hop_mac, end.source_mac, &copy);
            assert_eq!(receive(&mut ends[usize::from(index)], 1), [expected]);
        }
        assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 1);
    });
}

/// A probed path whose device takes no frames makes clones of all packets of the flow: one program
/// numbers them.
#[test]
fn probes_of_a_path_without_frames_are_cloned() {
    const PACKETS: usize = 16;
    in_namespace("probed", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let mut sender = replicating();
        take_no_frames(&mut sender, &[1]);
        let policy = SendPolicy {
            code: PolicyCode(0b001),
            probes: PathSet::from_bits(0b010),
            probe_every: 4,
            epoch: 3,
        };
        sender.replace_policy(flow(7), policy).unwrap();
        attach(&mut sender, Transit::Xdp);
        lan.sender
            .send(&vec![arriving(&udp4("203.0.113.9", b"x")); PACKETS])
            .unwrap();
        let mut sequences = |index: usize, copies| -> Vec<u64> {
            let frames = receive(&mut ends[index], copies);
            let copies = frames.iter().map(|frame| Replica::parse(frame).unwrap());
            copies.map(|copy| copy.shim.sequence - FIRST).collect()
        };
        assert_eq!(sequences(0, PACKETS), (0..16).collect::<Vec<_>>());
        assert_eq!(sequences(1, PACKETS / 4), [0, 4, 8, 12]);
    });
}

/// A packet that is not replicated at the exit of a loop is forwarded by the kernel, once.
#[test]
fn transit_that_the_loop_does_not_replicate_is_forwarded() {
    in_namespace("onward", || {
        let (lan, mut ends) = (Port::open("far-lan").unwrap(), far_ends());
        let [_, _, last] = &mut ends[..] else {
            unreachable!("three paths")
        };
        for command in [
            "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.lan.rp_filter=0",
            "ip addr add 198.51.100.65/26 dev wan2",
            "ip neigh add 198.51.100.66 lladdr 02:00:00:00:00:66 dev wan2",
            "ip route add 203.0.113.0/24 via 198.51.100.66",
        ] {
            run(command);
        }
        let mut sender = replicating();
        take_no_frames(&mut sender, &[0, 1]);
        set_policy(&sender, 7, 0b011, 3);
        attach(&mut sender, Transit::Xdp);
        // Too large with the outer headers over IPv6, for which it takes the loop.
        let ends = ["192.0.2.7:1000", "203.0.113.9:2000"].map(|end| end.parse().unwrap());
        let packet = ip::udp_packet(ends[0], ends[1], 0, &[7; 1460]);

        lan.sender.send(&[arriving(&packet)]).unwrap();

        let forwarded = receive(last, 1).remove(0);
        assert_eq!(forwarded[14..], one_hop_on(&packet));
        assert_eq!(counted(sender.reasons().unwrap()), [("passed_oversize", 1)]);
    });
}

/// At TC, a tag is seen even if the device has taken it out of the frame, and frames to other hosts
/// are recognized.
#[test]
fn other_frames_are_left_alone_at_tc() {
    in_namespace("alone", || {
        let lan = Port::open("far-lan").unwrap();
        let mut sender = replicating();
        attach(&mut sender, Transit::Tc);
        let frame = arriving(&udp4("203.0.113.9", b"x"));
        let mut tagged = frame.clone();
        tagged.splice(12..12, [0x81, 0x00, 0, 10]);
        let mut foreign = frame.clone();
        foreign[5] = 0x77;
        let expiring = with_ipv4(udp4("203.0.113.9", b"x"), |packet| packet[8] = 1);
        let frames = [tagged, foreign, arriving(&expiring)];
        lan.sender.send(&frames).unwrap();
        let expected = [
            ("passed_ttl", 1),
            ("passed_vlan", 1),
            ("passed_foreign_mac", 1),
        ];
        wait_until("all frames are counted", || {
            counted(sender.reasons().unwrap()) == expected
        });
        assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 0);
    });
}
