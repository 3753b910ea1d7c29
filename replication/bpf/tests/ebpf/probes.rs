//! One packet in every n takes the probed paths in addition, and its shim says so.

use crate::support::*;
use hawser_replication_bpf::{SendFlow, SendPolicy, Sender};
use hawser_shim::{Cover, KeySlot, Replica, Shim};
use hawser_units::{PathSet, PolicyCode};

const TC_ACT_REDIRECT: u32 = 7;

/// A sender with paths 0, 2 and 3 over IPv4 and path 1 over IPv6; all packets belong to flow 7.
fn sending() -> Sender {
    let mut sender = sender();
    for index in [2, 3] {
        let there = [203, 0, 113, index].into();
        sender
            .set_path(path(index), Some(send_path(HERE_V4.into(), there)))
            .unwrap();
    }
    let first_sequence = u64::MAX - 5; // it wraps, and does not start with a probe
    sender
        .set_flow(
            flow(7),
            &SendFlow {
                first_sequence,
                ..send_flow(7)
            },
        )
        .unwrap();
    sender
        .select(prefix("0.0.0.0/0"), &[everything_of(7)])
        .unwrap();
    sender
}

fn probe(sender: &Sender, code: u8, probes: u8, probe_every: u16) {
    let probes = PathSet::from_bits(probes);
    let policy = SendPolicy {
        code: PolicyCode(code),
        probes,
        probe_every,
        epoch: 0x1_02fe,
    };
    sender.replace_policy(flow(7), policy).unwrap();
    assert_eq!(sender.policy_in_force(flow(7)), policy);
}

/// The shim of the next packet that passes through this node.
fn transit_shim(sender: &Sender, payload: &[u8]) -> Shim {
    let run = sender
        .run(&transit(&udp4("203.0.113.9", payload)), 1)
        .unwrap();
    assert_eq!(run.action, XDP_REDIRECT);
    Shim::parse(&run.frame[HANDOVER..]).unwrap().0
}

/// The last copy of the next packet that this node sends.
fn local_copy(sender: &Sender) -> Vec<u8> {
    let run = sender
        .run_local(
            &ethernet(THERE_MAC, HERE_MAC, &udp4("203.0.113.9", b"x")),
            1,
        )
        .unwrap();
    assert_eq!(run.action, TC_ACT_REDIRECT);
    run.frame
}

#[test]
fn one_transit_packet_in_n_is_a_probe() {
    let sender = sending();
    for (code, probes, every) in [
        (0b0001, 0b0110, 4),
        (0b0001, 0b1000, 2),
        (0b0110, 0b0011, 16),
    ] {
        probe(&sender, code, probes, every);
        let mut probed = 0;
        for _ in 0..64 {
            let shim = transit_shim(&sender, b"x");
            let is_probe = shim.sequence.is_multiple_of(u64::from(every));
            assert_eq!(
                shim.paths.bits(),
                if is_probe { code | probes } else { code },
                "{shim:?}"
            );
            assert_eq!(shim.epoch, 0xfe, "the low byte");
            probed += u16::from(is_probe);
        }
        assert_eq!(probed, 64 / every);
    }
    assert_eq!(counted(sender.reasons().unwrap()), []);
}

#[test]
fn one_local_packet_in_n_is_a_probe() {
    let mut sender = sending();
    let key = seal_key(1);
    let tagged = SendFlow {
        key: Some((KeySlot::One, key.clone(), Cover::Headers)),
        ..send_flow(7)
    };
    sender.set_flow(flow(7), &tagged).unwrap();
    let ring = ring(None, Some(&key));
    probe(&sender, 0b0001, 0b1100, 8);
    for number in 0..64 {
        let frame = local_copy(&sender);
        assert!(ring.accepts(&frame[14 + 28..]));
        let shim = Replica::parse(&frame).unwrap().shim;
        let (paths, last) = if number % 8 == 0 {
            (0b1101, path(3))
        } else {
            (0b0001, path(0))
        };
        assert_eq!(
            (shim.paths.bits(), shim.path),
            (paths, last),
            "packet {number}"
        );
    }
    let copies = [0, 1, 2, 3].map(|index| sender.path_stats(flow(7), path(index)).unwrap().packets);
    assert_eq!(copies, [64, 0, 8, 8]);
}

/// The probe would need a loop, and there is none: no shim may claim the path.
#[test]
fn local_traffic_does_not_probe_ipv6_without_a_loop() {
    let sender = sending();
    probe(&sender, 0b0001, 0b0010, 2);
    for _ in 0..8 {
        assert_eq!(
            Replica::parse(&local_copy(&sender))
                .unwrap()
                .shim
                .paths
                .bits(),
            0b0001
        );
    }
    assert_eq!(counted(sender.reasons().unwrap()), []);
}

#[test]
fn a_packet_that_does_not_fit_a_probed_path_takes_the_others() {
    let mut sender = sending();
    let narrow = hawser_replication_bpf::SendPath {
        mtu_bytes: 600,
        ..send_path(HERE_V4.into(), THERE_V4.into())
    };
    sender.set_path(path(3), Some(narrow)).unwrap();
    probe(&sender, 0b0001, 0b1000, 2);
    let fits = 600 - 56 - 28;
    for (bytes, probed) in [(fits, 4), (fits + 1, 0)] {
        let shims = (0..8).map(|_| transit_shim(&sender, &vec![0; bytes]));
        let probes = shims.filter(|shim| shim.paths.bits() == 0b1001).count();
        assert_eq!(probes, probed, "{bytes} bytes");
    }
    assert_eq!(counted(sender.reasons().unwrap()), []);
}

#[test]
fn a_packet_that_does_not_fit_a_path_takes_the_others() {
    let mut sender = sending();
    for (index, mtu_bytes) in [(2, 1000), (3, 600)] {
        let narrow = hawser_replication_bpf::SendPath {
            mtu_bytes,
            ..send_path(HERE_V4.into(), [203, 0, 113, index].into())
        };
        sender.set_path(path(index), Some(narrow)).unwrap();
    }
    set_policy(&sender, 7, 0b1100, 3);
    let bytes = |mtu: usize| vec![0; mtu - 56 - 28];
    for (mtu, paths) in [(600, 0b1100), (601, 0b0100), (1000, 0b0100)] {
        assert_eq!(transit_shim(&sender, &bytes(mtu)).paths.bits(), paths);
    }
    let too_large = |index| sender.too_large(path(index)).unwrap();
    assert_eq!([2, 3].map(too_large), [0, 2]);
    assert_eq!(counted(sender.reasons().unwrap()), []);
    let packet = transit(&udp4("203.0.113.9", &bytes(1001)));
    assert_eq!(sender.run(&packet, 1).unwrap().action, XDP_PASS);
    assert_eq!(counted(sender.reasons().unwrap()), [("passed_oversize", 1)]);
    assert_eq!([2, 3].map(too_large), [0, 2], "the kernel handles it");
}

#[test]
fn a_path_that_is_not_configured_is_not_claimed() {
    let mut sender = sending();
    probe(&sender, 0b0001, 0b1_1000, 2);
    let both = |sender: &Sender| {
        [(); 2]
            .map(|()| transit_shim(sender, b"x").paths.bits())
            .iter()
            .sum::<u8>()
    };
    assert_eq!(both(&sender), 0b0001 + 0b1001);
    sender.set_path(path(3), None).unwrap();
    assert_eq!(both(&sender), 0b0001 + 0b0001);
    sender
        .set_path(path(4), Some(send_path(HERE_V4.into(), THERE_V4.into())))
        .unwrap();
    assert_eq!(both(&sender), 0b0001 + 0b1_0001);
}

#[test]
fn flows_that_are_off_or_transparent_are_not_probed() {
    let mut sender = sending();
    let packet = transit(&with_id(udp4("203.0.113.9", b"x"), 9));
    for code in [0x00, 0xff] {
        probe(&sender, code, 0b1000, 2);
        for _ in 0..4 {
            assert_eq!(sender.run(&packet, 1).unwrap().action, XDP_PASS);
        }
    }
    sender
        .set_flow(
            flow(7),
            &SendFlow {
                transparent: true,
                ..send_flow(7)
            },
        )
        .unwrap();
    probe(&sender, 0b0001, 0b1000, 2);
    let runs = [(); 4].map(|()| sender.run(&packet, 1).unwrap());
    assert!(
        runs.iter()
            .all(|run| run.action == XDP_REDIRECT && run.frame == runs[0].frame)
    );
}

#[test]
fn the_newer_policy_stays() {
    let sender = sending();
    let policy = |epoch| SendPolicy {
        code: PolicyCode(1),
        epoch,
        ..SendPolicy::default()
    };
    for (epoch, applied) in [
        (0, false),
        (5, true),
        (5, false),
        (4, false),
        (6, true),
        (u32::MAX, true),
        (0, false),
    ] {
        assert_eq!(
            sender.set_policy(flow(7), policy(epoch)).unwrap(),
            applied,
            "{epoch}"
        );
    }
    assert_eq!(sender.policy_in_force(flow(7)).epoch, u32::MAX);
    sender.replace_policy(flow(7), policy(3)).unwrap();
    assert_eq!(sender.policy_in_force(flow(7)), policy(3));
    assert!(
        sender
            .set_policy(
                flow(7),
                SendPolicy {
                    probe_every: 3,
                    ..policy(9)
                }
            )
            .is_err()
    );
}
