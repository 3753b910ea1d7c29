//! Replication of packets in transit at an ingress edge, up to the broadcast: selection, policies,
//! and packets that are not replicated.

use crate::support::*;
use hawser_replication_bpf::{Ports, Rule, SendFlow, Sender, SenderOptions, TxStats};
use hawser_shim::{Cover, KeySlot, Shim};
use hawser_units::FlowId;
use hawser_wire::ip;
use std::time::{Duration, Instant};

/// The largest packet for a path with an MTU of 1,500 bytes over IPv4, and over IPv6.
const FITS_V4: usize = 1500 - 20 - 8 - 28;
const FITS_V6: usize = 1500 - 40 - 8 - 28;

/// A sender that replicates all packets to `to` as flow 7, label 7, over path 0.
fn replicating(to: &str) -> Sender {
    let mut sender = sender();
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    sender.select(prefix(to), &[everything_of(7)]).unwrap();
    set_policy(&sender, 7, 0b01, 3);
    sender
}

/// The label of the flow that a packet is replicated as; `None` if it is not replicated.
fn selected(sender: &Sender, packet: &[u8]) -> Option<FlowId> {
    let run = sender.run(&transit(packet), 1).unwrap();
    match run.action {
        XDP_REDIRECT => Some(Shim::parse(&run.frame[HANDOVER..]).unwrap().0.flow),
        XDP_PASS => {
            assert_eq!(run.frame, transit(packet));
            None
        }
        action => panic!("action {action}"),
    }
}

#[test]
fn a_packet_of_a_flow_leaves_its_shim_in_front() {
    let mut sender = replicating("0.0.0.0/0");
    sender.select(prefix("::/0"), &[everything_of(7)]).unwrap();
    for (sequence, packet) in
        (1 << 40..).zip([udp4("203.0.113.9", b"four"), udp6("2001:db8:b::9", b"six")])
    {
        let run = sender.run(&transit(&packet), 1).unwrap();

        assert_eq!(run.action, XDP_REDIRECT);
        let (shim, inner) = Shim::parse(&run.frame[HANDOVER..]).unwrap();
        assert_eq!(inner, one_hop_on(&packet));
        assert_eq!(
            (shim.paths.bits(), shim.epoch, shim.flow),
            (0b01, 3, flow(7))
        );
        assert_eq!((shim.sequence, shim.seal), (sequence, None));
        assert_eq!(
            run.frame[2..4],
            7u16.to_ne_bytes(),
            "the index in the sender's table"
        );
    }
    assert_eq!(counted(sender.reasons().unwrap()), []);
    let bytes = (udp4("203.0.113.9", b"four").len() + udp6("2001:db8:b::9", b"six").len()) as u64;
    assert_eq!(
        sender.flow_stats(flow(7)).unwrap(),
        TxStats { packets: 2, bytes }
    );
}

#[test]
fn the_packet_is_summed_once_when_a_path_is_over_ipv6() {
    let sender = replicating("0.0.0.0/0");
    let packet = udp4("203.0.113.9", &[0x77; 701]);
    for (code, summed) in [(0b01, false), (0b10, true), (0b11, true)] {
        set_policy(&sender, 7, code, 1);
        let run = sender.run(&transit(&packet), 1).unwrap();
        let sum = u16::from_ne_bytes((!ip::checksum(&one_hop_on(&packet))).to_be_bytes());
        let expected = if summed { u32::from(sum) } else { 0 };
        assert_eq!(run.frame[4..8], expected.to_ne_bytes(), "code {code}");
    }
}

#[test]
fn the_time_of_sending_goes_with_the_clock() {
    let sender = replicating("0.0.0.0/0");
    let sent = || {
        let run = sender.run(&transit(&udp4("203.0.113.9", b"x")), 1).unwrap();
        Shim::parse(&run.frame[HANDOVER..]).unwrap().0.sent_micros
    };
    const TICK_MAX: u64 = 10_000; // us; the time is read once per tick
    let start = Instant::now();
    let first = sent();
    let between = Instant::now();
    while between.elapsed() < Duration::from_millis(50) {}
    let elapsed = sent() - first;
    assert!(first >= sender_options().clock_offset_micros);
    assert!(
        (50_000 - TICK_MAX..=start.elapsed().as_micros() as u64 + TICK_MAX).contains(&elapsed),
        "{elapsed} us"
    );
}

#[test]
fn the_shim_names_the_key_and_the_cover_of_its_tag() {
    let mut sender = replicating("0.0.0.0/0");
    for (slot, cover, flags) in [
        (KeySlot::Zero, Cover::Headers, 0x21),
        (KeySlot::One, Cover::Headers, 0x23),
        (KeySlot::Zero, Cover::Whole, 0x25),
        (KeySlot::One, Cover::Whole, 0x27),
    ] {
        let key = Some((slot, seal_key(1), cover));
        sender
            .set_flow(
                flow(7),
                &SendFlow {
                    key,
                    ..send_flow(7)
                },
            )
            .unwrap();
        let run = sender.run(&transit(&udp4("203.0.113.9", b"x")), 1).unwrap();
        assert_eq!(run.frame[HANDOVER], flags);
    }
}

#[test]
fn the_longest_prefix_decides_alone() {
    let mut sender = sender();
    for index in 0..6 {
        sender.set_flow(flow(index), &send_flow(index)).unwrap();
        set_policy(&sender, index, 1, 0);
    }
    let tcp_only = Rule {
        protocol: Some(6),
        ..everything_of(2)
    };
    for (to, rule) in [
        ("203.0.0.0/16", everything_of(0)),
        ("203.0.113.0/24", everything_of(1)),
        ("203.0.113.128/25", tcp_only),
        ("203.0.113.200/32", everything_of(3)),
        ("2001:db8::/32", everything_of(4)),
        ("2001:db8:b::9/128", everything_of(5)),
    ] {
        sender.select(prefix(to), &[rule]).unwrap();
    }
    for (to, label) in [
        ("203.0.0.1", Some(0)),
        ("203.0.112.255", Some(0)),
        ("203.0.113.1", Some(1)),
        ("203.0.113.129", None), // for TCP only, and shorter prefixes are not considered
        ("203.0.113.200", Some(3)),
        ("203.1.0.1", None),
    ] {
        assert_eq!(selected(&sender, &udp4(to, b"x")), label.map(flow), "{to}");
    }
    for (to, label) in [
        ("2001:db8:b::8", Some(4)),
        ("2001:db8:b::9", Some(5)),
        ("2001:db9::1", None),
        ("::ffff:203.0.113.1", Some(1)), // mapped: the same address
    ] {
        assert_eq!(selected(&sender, &udp6(to, b"x")), label.map(flow), "{to}");
    }
    sender.select(prefix("203.0.113.200/32"), &[]).unwrap();
    sender.select(prefix("203.0.113.200/32"), &[]).unwrap();
    assert_eq!(selected(&sender, &udp4("203.0.113.200", b"x")), None);
}

#[test]
fn the_first_of_sixteen_rules_that_matches_wins() {
    let mut sender = sender();
    let ports = |from: u16, to: u16| {
        Some(Ports {
            source: 0..=0xffff,
            destination: from..=to,
        })
    };
    let mut rules: Vec<Rule> = (0..14)
        .map(|index| Rule {
            flow: flow(index),
            protocol: Some(17),
            ports: ports(2000 + 10 * index, 2000 + 10 * index),
        })
        .collect();
    rules.push(Rule {
        flow: flow(14),
        protocol: Some(17),
        ports: ports(2000, 2100),
    });
    rules.push(Rule {
        flow: flow(15),
        protocol: Some(6),
        ports: None,
    });
    for index in 0..16 {
        sender.set_flow(flow(index), &send_flow(index)).unwrap();
        set_policy(&sender, index, 1, 0);
    }
    sender.select(prefix("203.0.113.0/24"), &rules).unwrap();
    let to_port = |port: u16| {
        let mut packet = udp4("203.0.113.9", b"x");
        packet[22..24].copy_from_slice(&port.to_be_bytes());
        packet
    };
    for (port, label) in [
        (1999, None),
        (2000, Some(0)),
        (2010, Some(1)),
        (2130, Some(13)),
        (2005, Some(14)),
        (2100, Some(10)),
        (2099, Some(14)),
        (2101, None),
    ] {
        assert_eq!(
            selected(&sender, &to_port(port)),
            label.map(flow),
            "port {port}"
        );
    }
    let tcp = with_ipv4(to_port(2000), |packet| packet[9] = 6);
    assert_eq!(selected(&sender, &tcp), Some(flow(15)));
    let icmp = with_ipv4(to_port(2000), |packet| packet[9] = 1);
    assert_eq!(selected(&sender, &icmp), None);
}

#[test]
fn both_ends_of_both_port_ranges_count() {
    let mut sender = sender();
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    set_policy(&sender, 7, 1, 0);
    let ports = Ports {
        source: 1000..=1001,
        destination: 2000..=2001,
    };
    let rule = Rule {
        flow: flow(7),
        protocol: None,
        ports: Some(ports),
    };
    sender
        .select(prefix("203.0.113.0/24"), std::slice::from_ref(&rule))
        .unwrap();
    sender.select(prefix("2001:db8::/32"), &[rule]).unwrap();
    for (source, destination, matches) in [
        (1000, 2000, true),
        (1001, 2001, true),
        (999, 2000, false),
        (1002, 2000, false),
        (1000, 1999, false),
        (1000, 2002, false),
        (2000, 1000, false),
    ] {
        let (source, destination): (u16, u16) = (source, destination);
        let with_ports = |mut packet: Vec<u8>, at: usize| {
            packet[at..at + 2].copy_from_slice(&source.to_be_bytes());
            packet[at + 2..at + 4].copy_from_slice(&destination.to_be_bytes());
            packet
        };
        let expected = matches.then_some(flow(7));
        let packet = with_ports(udp4("203.0.113.9", b"x"), 20);
        assert_eq!(
            selected(&sender, &packet),
            expected,
            "{source} {destination}"
        );
        let packet = with_ports(udp6("2001:db8::9", b"x"), 40);
        assert_eq!(
            selected(&sender, &packet),
            expected,
            "{source} {destination}"
        );
        let options = with_options(&with_ports(udp4("203.0.113.9", b"x"), 20));
        assert_eq!(
            selected(&sender, &options),
            expected,
            "{source} {destination} behind options"
        );
    }
}

#[test]
fn policy_codes_of_the_paper() {
    let sender = replicating("203.0.113.0/24");
    let packet = udp4("203.0.113.9", b"x");
    for code in [0x01, 0x02, 0x03] {
        set_policy(&sender, 7, code, u32::from(code));
        let run = sender.run(&transit(&packet), 1).unwrap();
        let shim = Shim::parse(&run.frame[HANDOVER..]).unwrap().0;
        assert_eq!(
            (run.action, shim.paths.bits(), shim.epoch),
            (XDP_REDIRECT, code, code)
        );
    }
    for code in [0x00, 0xff] {
        set_policy(&sender, 7, code, 9);
        let run = sender.run(&transit(&packet), 1).unwrap();
        assert_eq!(
            (run.action, run.frame),
            (XDP_PASS, transit(&packet)),
            "code {code:#x}"
        );
    }
    assert_eq!(counted(sender.reasons().unwrap()), []);
    assert_eq!(sender.flow_stats(flow(7)).unwrap().packets, 3);
}

#[test]
fn a_policy_of_unknown_paths_takes_the_default_route() {
    let mut sender = replicating("203.0.113.0/24");
    let packet = udp4("203.0.113.9", b"x");
    let untouched = |sender: &Sender| {
        let run = sender.run(&transit(&packet), 1).unwrap();
        run.action == XDP_PASS && run.frame == transit(&packet)
    };
    set_policy(&sender, 7, 0b1100, 1);
    assert!(untouched(&sender));
    assert_eq!(sender.inner_mtu_bytes(flow(7)).unwrap(), None);

    set_policy(&sender, 7, 0b0101, 2);
    assert!(!untouched(&sender), "one of the two is");
    sender.set_path(path(0), None).unwrap();
    assert!(untouched(&sender), "the policy's last path was removed");
    sender
        .set_path(path(2), Some(send_path(HERE_V6.into(), THERE_V6.into())))
        .unwrap();
    assert!(!untouched(&sender));
    assert_eq!(
        sender.inner_mtu_bytes(flow(7)).unwrap(),
        Some(FITS_V6 as u16)
    );
    assert_eq!(counted(sender.reasons().unwrap()), [("passed_no_path", 2)]);
}

#[test]
#[should_panic(expected = "a path of the options")]
fn a_path_that_is_not_in_the_options_has_no_program() {
    sender()
        .set_path(
            path(SENDER_PATHS as u8),
            Some(send_path(HERE_V4.into(), THERE_V4.into())),
        )
        .unwrap();
}

#[test]
fn a_direction_that_was_not_announced_has_no_program() {
    let sender = Sender::load(&SenderOptions {
        transit: false,
        ..sender_options()
    })
    .unwrap();
    assert!(sender.run(&transit(&udp4("203.0.113.9", b"x")), 1).is_err());
}

#[test]
fn the_largest_packet_fits_a_path_of_the_policy_exactly() {
    let mut sender = replicating("0.0.0.0/0");
    sender.select(prefix("::/0"), &[everything_of(7)]).unwrap();
    let v4 = |bytes: usize| udp4("203.0.113.9", &vec![1; bytes - 28]);
    let v6 = |bytes: usize| udp6("2001:db8:b::9", &vec![1; bytes - 48]);
    let mut oversize = 0;
    // The smallest MTU of the policy's paths, and the largest.
    for (code, fits, fits_one) in [
        (0b01, FITS_V4, FITS_V4),
        (0b10, FITS_V6, FITS_V6),
        (0b11, FITS_V6, FITS_V4),
    ] {
        set_policy(&sender, 7, code, 1);
        assert_eq!(sender.inner_mtu_bytes(flow(7)).unwrap(), Some(fits as u16));
        for bytes in [fits, fits_one] {
            assert_eq!(selected(&sender, &v4(bytes)), Some(flow(7)));
            assert_eq!(selected(&sender, &v6(bytes)), Some(flow(7)));
        }
        assert_eq!(selected(&sender, &v4(fits_one + 1)), None);
        assert_eq!(selected(&sender, &v6(fits_one + 1)), None);
        oversize += 2;
        assert_eq!(
            counted(sender.reasons().unwrap()),
            [("passed_oversize", oversize)]
        );
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
    assert_eq!(sender.inner_mtu_bytes(flow(7)).unwrap(), Some(1500));
    let transparent = |bytes| {
        sender
            .run(&transit(&with_id(v4(bytes), 1)), 1)
            .unwrap()
            .action
    };
    assert_eq!(transparent(1500), XDP_REDIRECT, "nothing is added to it");
    assert_eq!(transparent(1501), XDP_PASS);
}

#[test]
fn packets_that_cannot_be_replicated_pass_and_are_counted() {
    let packet = udp4("203.0.113.9", b"0123456789");
    let six = udp6("2001:db8:b::9", b"0123456789");
    let of_flow = transit(&packet);
    let malformed = Some("passed_malformed");
    let mut jumbo = six.clone();
    jumbo[4..6].fill(0);
    let mut too_long = six.clone();
    too_long[5] += 1;
    let ipv4 = |change: fn(&mut [u8])| transit(&with_ipv4(packet.clone(), change));
    let fixtures: Vec<(&str, Vec<u8>, Option<&str>)> = vec![
        (
            "ARP",
            [&[0xff; 6][..], &THERE_MAC, &[8, 6], &[0; 46]].concat(),
            None,
        ),
        ("not of a flow", transit(&udp4("192.0.2.1", b"x")), None),
        ("neighbour discovery", transit(&udp6("ff02::1", b"x")), None),
        (
            "VLAN",
            [&of_flow[..12], &[0x81, 0, 0, 5], &of_flow[12..]].concat(),
            Some("passed_vlan"),
        ),
        ("TTL 1", ipv4(|packet| packet[8] = 1), Some("passed_ttl")),
        ("TTL 0", ipv4(|packet| packet[8] = 0), Some("passed_ttl")),
        (
            "hop limit 1",
            patched(&transit(&six), 14 + 7, 1),
            Some("passed_ttl"),
        ),
        (
            "header length 16",
            ipv4(|packet| packet[0] = 0x44),
            malformed,
        ),
        (
            "header longer than the packet",
            patched(&of_flow, 14, 0x4f),
            malformed,
        ),
        (
            "length 1 more than the frame's",
            ipv4(|packet| packet[3] += 1),
            malformed,
        ),
        (
            "length less than the header",
            ipv4(|packet| packet[3] = 19),
            malformed,
        ),
        ("length 0", ipv4(|packet| packet[3] = 0), malformed),
        (
            "version 6 as IPv4",
            ipv4(|packet| packet[0] = 0x65),
            malformed,
        ),
        (
            "IPv6, 1 longer than there is",
            transit(&too_long),
            malformed,
        ),
        ("jumbogram", transit(&jumbo), malformed),
    ];
    let mut sender = replicating("203.0.113.0/24");
    sender
        .select(prefix("2001:db8::/32"), &[everything_of(7)])
        .unwrap();
    for (name, frame, reason) in fixtures {
        let before = sender.reasons().unwrap();
        let run = sender.run(&frame, 1).unwrap();
        assert_eq!((run.action, run.frame), (XDP_PASS, frame), "{name}");
        let expected: Vec<_> = reason.map(|reason| (reason, 1)).into_iter().collect();
        assert_eq!(
            counted_since(&before, sender.reasons().unwrap()),
            expected,
            "{name}"
        );
        assert_eq!(
            sender.flow_stats(flow(7)).unwrap(),
            TxStats::default(),
            "{name}"
        );
    }
}

#[test]
fn a_frame_cut_anywhere_passes_untouched() {
    for packet in [udp4("203.0.113.9", b"0123"), udp6("2001:db8:b::9", b"0123")] {
        let mut sender = replicating("203.0.113.0/24");
        sender
            .select(prefix("2001:db8::/32"), &[everything_of(7)])
            .unwrap();
        let frame = transit(&packet);
        for length in 14..frame.len() {
            let run = sender.run(&frame[..length], 1).unwrap();
            assert_eq!(
                (run.action, &run.frame[..]),
                (XDP_PASS, &frame[..length]),
                "{length} bytes"
            );
        }
        assert_eq!(
            counted(sender.reasons().unwrap()),
            [("passed_malformed", packet.len() as u64)]
        );
    }
}

#[test]
fn fragments_belong_to_flows_that_are_selected_without_ports() {
    let four = udp4("203.0.113.9", b"0123456789");
    let six = udp6("2001:db8:b::9", b"0123456789");
    let fragment6 = |offset_and_more: u16| {
        let mut packet = six[..40].to_vec();
        (packet[5], packet[6]) = (packet[5] + 8, 44);
        packet.extend([17, 0]);
        packet.extend(offset_and_more.to_be_bytes());
        packet.extend([0, 0, 0, 1]);
        packet.extend(&six[40..]);
        packet
    };
    let fragments = [
        (
            "IPv4, first",
            with_ipv4(four.clone(), |packet| packet[6] = 0x20),
        ),
        (
            "IPv4, middle",
            with_ipv4(four.clone(), |packet| (packet[6], packet[7]) = (0x20, 9)),
        ),
        ("IPv4, last", with_ipv4(four, |packet| packet[7] = 9)),
        ("IPv6, first", fragment6(1)),
        ("IPv6, last", fragment6(72)),
    ];
    let mut sender = sender();
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    set_policy(&sender, 7, 1, 0);
    for (name, packet) in fragments {
        let before = sender.reasons().unwrap();
        let reasons = |sender: &Sender| counted_since(&before, sender.reasons().unwrap());
        let ports = Some(Ports {
            source: 0..=0xffff,
            destination: 0..=0xffff,
        });
        let select = |sender: &mut Sender, rules: &[Rule]| {
            sender.select(prefix("203.0.113.0/24"), rules).unwrap();
            sender.select(prefix("2001:db8::/32"), rules).unwrap();
        };
        select(
            &mut sender,
            &[Rule {
                protocol: Some(6),
                ports: ports.clone(),
                ..everything_of(7)
            }],
        );
        assert_eq!(selected(&sender, &packet), None, "{name}: another protocol");
        assert_eq!(reasons(&sender), [], "{name}: not of this flow");
        select(
            &mut sender,
            &[Rule {
                protocol: Some(17),
                ports,
                ..everything_of(7)
            }],
        );
        assert_eq!(selected(&sender, &packet), None, "{name}: with ports");
        assert_eq!(reasons(&sender), [("passed_fragment", 1)], "{name}");
        select(
            &mut sender,
            &[Rule {
                protocol: Some(17),
                ..everything_of(7)
            }],
        );
        assert_eq!(
            selected(&sender, &packet),
            Some(flow(7)),
            "{name}: without ports"
        );
    }
}

#[test]
fn padding_is_not_replicated() {
    let sender = replicating("0.0.0.0/0");
    let packet = udp4("203.0.113.9", b"x");
    let padded = [&transit(&packet)[..], &[0; 17]].concat();
    let run = sender.run(&padded, 1).unwrap();
    assert_eq!(
        Shim::parse(&run.frame[HANDOVER..]).unwrap().1,
        one_hop_on(&packet)
    );
}

#[test]
fn transparent_flows_are_left_as_they_are_but_for_the_hop() {
    let mut sender = replicating("0.0.0.0/0");
    sender.select(prefix("::/0"), &[everything_of(7)]).unwrap();
    sender
        .set_flow(
            flow(7),
            &SendFlow {
                transparent: true,
                ..send_flow(7)
            },
        )
        .unwrap();
    let packet = with_id(udp4("203.0.113.9", b"x"), 5);
    let run = sender.run(&transit(&packet), 1).unwrap();
    // The path's program writes the Ethernet header.
    assert_eq!(
        (run.action, &run.frame[14..]),
        (XDP_REDIRECT, &one_hop_on(&packet)[..])
    );
    let reasons = || counted(sender.reasons().unwrap());
    assert_eq!(reasons(), []);

    let unidentifiable = [
        ("ID 0", with_id(packet.clone(), 0)),
        ("IPv6", udp6("2001:db8:b::9", b"x")),
        (
            "first fragment",
            with_ipv4(packet.clone(), |packet| packet[6] = 0x20),
        ),
        ("last fragment", with_ipv4(packet, |packet| packet[7] = 1)),
    ];
    for (count, (name, packet)) in (1..).zip(unidentifiable) {
        assert_eq!(selected(&sender, &packet), None, "{name}");
        assert_eq!(reasons(), [("passed_not_identifiable", count)], "{name}");
    }
}

#[test]
fn sequence_numbers_count_packets_of_a_flow_and_wrap() {
    let mut sender = sender();
    for index in [7, 8] {
        let first_sequence = u64::MAX - 1;
        sender
            .set_flow(
                flow(index),
                &SendFlow {
                    first_sequence,
                    ..send_flow(index)
                },
            )
            .unwrap();
        set_policy(&sender, index, 1, 0);
    }
    sender
        .select(prefix("203.0.113.0/24"), &[everything_of(7)])
        .unwrap();
    sender
        .select(prefix("192.0.2.0/24"), &[everything_of(8)])
        .unwrap();
    let sequence = |sender: &Sender, to| {
        let run = sender.run(&transit(&udp4(to, b"x")), 1).unwrap();
        Shim::parse(&run.frame[HANDOVER..]).unwrap().0.sequence
    };
    assert_eq!(
        [(); 3].map(|()| sequence(&sender, "203.0.113.9")),
        [u64::MAX - 1, u64::MAX, 0]
    );
    assert_eq!(sequence(&sender, "192.0.2.9"), u64::MAX - 1);
    sender
        .update_flow(
            flow(7),
            &SendFlow {
                first_sequence: 77,
                ..send_flow(7)
            },
        )
        .unwrap();
    assert_eq!(
        sequence(&sender, "203.0.113.9"),
        1,
        "an updated flow continues"
    );
    sender
        .set_flow(
            flow(7),
            &SendFlow {
                first_sequence: 77,
                ..send_flow(7)
            },
        )
        .unwrap();
    assert_eq!(
        sequence(&sender, "203.0.113.9"),
        77,
        "a flow that is set starts a new session"
    );
}

fn patched(frame: &[u8], at: usize, to: u8) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at] = to;
    frame
}

/// Inserts four bytes of no-operation options after the IPv4 header.
fn with_options(packet: &[u8]) -> Vec<u8> {
    let longer = [&packet[..20], &[1; 4], &packet[20..]].concat();
    with_ipv4(longer, |packet| {
        packet[0] = 0x46;
        packet[3] += 4;
    })
}

/// Puts extension headers in front of the UDP header of a packet: each is its protocol and its bytes,
/// of which the first is replaced.
fn with_extensions(packet: &[u8], extensions: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut out = packet[..40].to_vec();
    let protocols = extensions.iter().map(|(protocol, _)| *protocol);
    let mut next = protocols.chain([packet[6]]);
    out[6] = next.next().unwrap();
    for (_, bytes) in extensions {
        out.push(next.next().unwrap());
        out.extend(&bytes[1..]);
    }
    out.extend(&packet[40..]);
    let length = (out.len() - 40) as u16;
    out[4..6].copy_from_slice(&length.to_be_bytes());
    out
}

/// Hop-by-hop options, destination options, a routing header and one of authentication.
fn extensions() -> [(u8, Vec<u8>); 4] {
    let options = |units: u8| [&[0, units][..], &vec![0; 6 + 8 * usize::from(units)]].concat();
    let authentication = [&[0, 4][..], &[0; 22]].concat();
    [
        (0, options(0)),
        (60, options(2)),
        (43, options(1)),
        (51, authentication),
    ]
}

#[test]
fn extension_headers_do_not_hide_protocol_and_ports() {
    let ports = Some(Ports {
        source: 0..=65535,
        destination: 2000..=2000,
    });
    for (protocol, ports) in [(Some(17), None), (Some(17), ports.clone()), (None, ports)] {
        let mut sender = replicating("0.0.0.0/0");
        let rule_has_ports = ports.is_some();
        let rule = Rule {
            flow: flow(7),
            protocol,
            ports,
        };
        sender.select(prefix("::/0"), &[rule]).unwrap();
        let plain = udp6("2001:db8:b::9", b"six");
        for count in 0..=4 {
            let packet = with_extensions(&plain, &extensions()[..count]);
            let run = sender.run(&transit(&packet), 1).unwrap();
            assert_eq!(run.action, XDP_REDIRECT, "{count} headers");
            let inner = Shim::parse(&run.frame[HANDOVER..]).unwrap().1;
            assert_eq!(inner, one_hop_on(&packet));
        }
        if rule_has_ports {
            let mut other = udp6("2001:db8:b::9", b"six");
            other[43] = 0; // another destination port
            let other = with_extensions(&other, &extensions());
            assert_eq!(selected(&sender, &other), None);
        }
        assert_eq!(counted(sender.reasons().unwrap()), []);
    }
}

#[test]
fn packets_whose_protocol_is_not_found_are_counted() {
    let mut sender = replicating("0.0.0.0/0");
    let rule = Rule {
        flow: flow(7),
        protocol: Some(17),
        ports: None,
    };
    sender.select(prefix("::/0"), &[rule]).unwrap();
    let plain = udp6("2001:db8:b::9", b"six");
    let many = vec![extensions()[0].clone(); 9];
    let mut cut_off = with_extensions(&plain, &extensions()[..2]);
    cut_off[41] = 255;
    for packet in [with_extensions(&plain, &many), cut_off] {
        let run = sender.run(&transit(&packet), 1).unwrap();
        assert_eq!((run.action, run.frame), (XDP_PASS, transit(&packet)));
    }
    assert_eq!(
        counted(sender.reasons().unwrap()),
        [("passed_extensions", 2)]
    );
    let eight = vec![extensions()[0].clone(); 8];
    let run = sender.run(&transit(&with_extensions(&plain, &eight)), 1);
    assert_eq!(run.unwrap().action, XDP_REDIRECT);
    // A fragment behind another header: only the first one has ports.
    let fragment = (44, vec![0, 0, 0, 1, 0, 0, 0, 1]);
    let packet = with_extensions(&plain, &[extensions()[0].clone(), fragment]);
    let run = sender.run(&transit(&packet), 1).unwrap();
    assert_eq!(run.action, XDP_REDIRECT, "selected by the protocol");
}
