//! Even with the widest selectors, packets of the node's own or of its links are not replicated,
//! neither in transit nor locally generated.

use crate::support::*;
use hawser_replication_bpf::{Endpoint, Ports, Rule, Sender, TxStats};
use hawser_shim::DEFAULT_PORT;
use std::collections::BTreeSet;
use std::net::IpAddr;

const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_REDIRECT: u32 = 7;

const TCP: u8 = 6;
const UDP: u8 = 17;

const OWN: [(&str, u8); 4] = [
    ("192.0.2.77", 24),
    ("198.51.100.1", 30),
    ("2001:db8:77::77", 64),
    ("fe80::77", 64),
];

/// A node with the addresses of [`OWN`] that replicates all packets as flow 7 over path 0.
fn node() -> Sender {
    let mut sender = replicating_all(&send_flow(7));
    sender
        .set_own_addresses(&OWN.map(|(address, bits)| (address.parse().unwrap(), bits)))
        .unwrap();
    sender
}

/// A UDP packet from `from`, port 1000, to `to`, port 2000.
fn udp(from: &str, to: &str) -> Vec<u8> {
    with_source(
        if to.contains(':') {
            udp6(to, b"x")
        } else {
            udp4(to, b"x")
        },
        from,
    )
}

fn with_source(mut packet: Vec<u8>, from: &str) -> Vec<u8> {
    match from.parse().unwrap() {
        IpAddr::V4(v4) => with_ipv4(packet, |packet| {
            packet[12..16].copy_from_slice(&v4.octets())
        }),
        IpAddr::V6(v6) => {
            packet[8..24].copy_from_slice(&v6.octets());
            packet
        }
    }
}

/// Returns the packet with these ports.
fn ports(mut packet: Vec<u8>, source: u16, destination: u16) -> Vec<u8> {
    let at = if packet[0] >> 4 == 4 { 20 } else { 40 };
    packet[at..at + 2].copy_from_slice(&source.to_be_bytes());
    packet[at + 2..at + 4].copy_from_slice(&destination.to_be_bytes());
    packet
}

fn tcp(packet: Vec<u8>) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        return with_ipv4(packet, |packet| packet[9] = TCP);
    }
    [&packet[..6], &[TCP], &packet[7..]].concat()
}

/// An ICMPv6 message of one type.
fn icmp6(from: &str, to: &str, hop_limit: u8, kind: u8) -> Vec<u8> {
    let mut packet = udp(from, to);
    (packet[6], packet[7], packet[40]) = (58, hop_limit, kind);
    packet
}

/// Packets that must not be replicated because of their destination or source, with the reason.
fn unroutable() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let (here4, here6) = ("192.0.2.1", "2001:db8:a::1");
    vec![
        ("own address", udp(here4, "192.0.2.77"), "passed_local"),
        (
            "own address on another link",
            udp(here4, "198.51.100.1"),
            "passed_local",
        ),
        (
            "broadcast of a link",
            udp(here4, "192.0.2.255"),
            "passed_not_unicast",
        ),
        (
            "broadcast of another link",
            udp(here4, "198.51.100.3"),
            "passed_not_unicast",
        ),
        (
            "limited broadcast",
            udp(here4, "255.255.255.255"),
            "passed_not_unicast",
        ),
        ("unspecified", udp(here4, "0.0.0.0"), "passed_not_unicast"),
        (
            "multicast, first",
            udp(here4, "224.0.0.1"),
            "passed_not_unicast",
        ),
        (
            "multicast, last",
            udp(here4, "239.255.255.255"),
            "passed_not_unicast",
        ),
        ("loopback", udp(here4, "127.1.2.3"), "passed_link_local"),
        (
            "link-local",
            udp(here4, "169.254.169.254"),
            "passed_link_local",
        ),
        (
            "from link-local",
            udp("169.254.1.1", "203.0.113.9"),
            "passed_link_local",
        ),
        (
            "from loopback",
            udp("127.0.0.1", "203.0.113.9"),
            "passed_link_local",
        ),
        (
            "from multicast",
            udp("224.0.0.1", "203.0.113.9"),
            "passed_not_unicast",
        ),
        (
            "from broadcast",
            udp("255.255.255.255", "203.0.113.9"),
            "passed_not_unicast",
        ),
        (
            "from nowhere",
            udp("0.0.0.0", "203.0.113.9"),
            "passed_not_unicast",
        ),
        (
            "own address, v6",
            udp(here6, "2001:db8:77::77"),
            "passed_local",
        ),
        (
            "own link-local address",
            udp(here6, "fe80::77"),
            "passed_local",
        ),
        (
            "routers' anycast address",
            udp(here6, "2001:db8:77::"),
            "passed_local",
        ),
        ("all nodes", udp(here6, "ff02::1"), "passed_not_unicast"),
        (
            "multicast of global scope",
            udp(here6, "ff0e::1"),
            "passed_not_unicast",
        ),
        ("unspecified, v6", udp(here6, "::"), "passed_not_unicast"),
        ("loopback, v6", udp(here6, "::1"), "passed_link_local"),
        ("link-local, v6", udp(here6, "fe80::9"), "passed_link_local"),
        (
            "link-local, last",
            udp(here6, "febf:ffff::1"),
            "passed_link_local",
        ),
        (
            "from link-local, v6",
            udp("fe80::9", "2001:db8:b::9"),
            "passed_link_local",
        ),
        (
            "from loopback, v6",
            udp("::1", "2001:db8:b::9"),
            "passed_link_local",
        ),
        (
            "from multicast, v6",
            udp("ff02::1", "2001:db8:b::9"),
            "passed_not_unicast",
        ),
        (
            "from nowhere, v6",
            udp("::", "2001:db8:b::9"),
            "passed_not_unicast",
        ),
        (
            "router solicitation",
            icmp6(here6, "2001:db8:b::9", 255, 133),
            "passed_link_local",
        ),
        (
            "neighbour solicitation",
            icmp6(here6, "2001:db8:b::9", 255, 135),
            "passed_link_local",
        ),
        (
            "neighbour advertisement",
            icmp6(here6, "2001:db8:b::9", 255, 136),
            "passed_link_local",
        ),
        (
            "redirect",
            icmp6(here6, "2001:db8:b::9", 255, 137),
            "passed_link_local",
        ),
        (
            "solicitation of the node",
            icmp6(here6, "2001:db8:77::77", 255, 135),
            "passed_local",
        ),
        (
            "solicitation by multicast",
            icmp6(here6, "ff02::1:ff00:77", 255, 135),
            "passed_not_unicast",
        ),
    ]
}

/// Packets next to the excluded ranges, which must be replicated.
fn routable() -> Vec<(&'static str, Vec<u8>)> {
    let (here4, here6) = ("192.0.2.1", "2001:db8:a::1");
    vec![
        ("a neighbour", udp(here4, "192.0.2.78")),
        ("the network's own address", udp(here4, "192.0.2.0")),
        ("broadcast of no link here", udp(here4, "192.0.3.255")),
        ("below loopback", udp(here4, "126.255.255.255")),
        ("above loopback", udp(here4, "128.0.0.0")),
        ("below link-local", udp(here4, "169.253.255.255")),
        ("above link-local", udp(here4, "169.255.0.0")),
        ("below multicast", udp(here4, "223.255.255.255")),
        ("above multicast", udp(here4, "240.0.0.0")),
        ("below broadcast", udp(here4, "255.255.255.254")),
        (
            "from below multicast",
            udp("223.255.255.255", "203.0.113.9"),
        ),
        ("from above link-local", udp("169.255.0.0", "203.0.113.9")),
        ("a neighbour, v6", udp(here6, "2001:db8:77::78")),
        ("below link-local, v6", udp(here6, "fe7f:ffff::1")),
        ("above link-local, v6", udp(here6, "fec0::1")),
        ("below multicast, v6", udp(here6, "feff::1")),
        ("above loopback, v6", udp(here6, "::2")),
        ("from above loopback, v6", udp("::2", "2001:db8:b::9")),
        ("from above link-local, v6", udp("fec0::1", "2001:db8:b::9")),
        (
            "echo request of 255 hops",
            icmp6(here6, "2001:db8:b::9", 255, 128),
        ),
        (
            "hop limit below 255",
            icmp6(here6, "2001:db8:b::9", 254, 135),
        ),
        (
            "to the port of replicas alone",
            ports(udp(here4, "203.0.113.9"), 1000, DEFAULT_PORT),
        ),
        (
            "from the port of replicas alone",
            ports(udp(here4, "203.0.113.9"), DEFAULT_PORT, 2000),
        ),
        (
            "TCP by the ports of replicas",
            tcp(ports(udp(here4, "203.0.113.9"), DEFAULT_PORT, DEFAULT_PORT)),
        ),
    ]
}

/// Asserts that a frame passes unchanged, counted only for this reason.
fn assert_passes(sender: &Sender, name: &str, frame: &[u8], reason: Option<&str>) {
    let before = sender.reasons().unwrap();
    let run = sender.run(frame, 1).unwrap();
    assert_eq!((run.action, &run.frame[..]), (XDP_PASS, frame), "{name}");
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

#[test]
fn unroutable_packets_in_transit_pass_unchanged() {
    let sender = node();
    for (name, packet, reason) in unroutable() {
        assert_passes(&sender, name, &transit(&packet), Some(reason));
    }
    for (name, packet) in routable() {
        assert_eq!(
            sender.run(&transit(&packet), 1).unwrap().action,
            XDP_REDIRECT,
            "{name}"
        );
    }
}

#[test]
fn unroutable_packets_of_the_node_pass_unchanged() {
    let sender = node();
    let sent = |packet: &[u8]| ethernet([2, 0, 0, 0, 0, 9], HERE_MAC, packet);
    for (name, packet, reason) in unroutable() {
        let before = sender.reasons().unwrap();
        let run = sender.run_local(&sent(&packet), 1).unwrap();
        assert_eq!(
            (run.action, run.frame),
            (TC_ACT_UNSPEC, sent(&packet)),
            "{name}"
        );
        assert_eq!(
            counted_since(&before, sender.reasons().unwrap()),
            [(reason, 1)],
            "{name}"
        );
    }
    assert_eq!(sender.flow_stats(flow(7)).unwrap(), TxStats::default());
    for (name, packet) in routable() {
        assert_eq!(
            sender.run_local(&sent(&packet), 1).unwrap().action,
            TC_ACT_REDIRECT,
            "{name}"
        );
    }
}

#[test]
fn a_frame_to_another_link_layer_address_passes_untouched() {
    let sender = node();
    assert!(
        sender.detects_foreign_frames(),
        "this kernel is older than Linux 6.2"
    );
    let foreign = Some("passed_foreign_mac");
    for packet in [udp4("203.0.113.9", b"x"), udp6("2001:db8:b::9", b"x")] {
        for (name, mac, reason) in [
            ("another host's", THERE_MAC, foreign),
            (
                "its first bytes are the device's",
                [0, 0, 0, 0, 0, 1],
                foreign,
            ),
            (
                "its last bytes are the device's",
                [2, 0, 0, 0, 0, 0],
                foreign,
            ),
            ("broadcast", [0xff; 6], foreign),
            ("multicast", [0x01, 0, 0x5e, 0, 0, 1], foreign),
        ] {
            assert_passes(&sender, name, &ethernet(mac, HERE_MAC, &packet), reason);
        }
    }
    let arp = [&[0xff; 6][..], &THERE_MAC, &[8, 6], &[0; 46]].concat();
    assert_passes(&sender, "ARP", &arp, None);
}

#[test]
fn replicas_are_replicated_only_where_a_rule_names_ports() {
    let mut sender = node();
    let replicas = [udp4("203.0.113.9", b"x"), udp6("2001:db8:b::9", b"x")]
        .map(|packet| transit(&ports(packet, DEFAULT_PORT, DEFAULT_PORT)));
    for replica in &replicas {
        assert_passes(&sender, "a replica", replica, Some("passed_replica"));
    }
    let ports = Some(Ports {
        source: 0..=u16::MAX,
        destination: DEFAULT_PORT..=DEFAULT_PORT,
    });
    let rule = Rule {
        protocol: Some(UDP),
        ports,
        ..everything_of(7)
    };
    for everything in ["0.0.0.0/0", "::/0"] {
        sender
            .select(prefix(everything), std::slice::from_ref(&rule))
            .unwrap();
    }
    for replica in &replicas {
        assert_eq!(sender.run(replica, 1).unwrap().action, XDP_REDIRECT);
    }
}

#[test]
fn changes_of_own_addresses_take_effect() {
    let mut sender = node();
    let mut passes = |own: &[(&str, u8)], packet: &[u8]| {
        let own: Vec<_> = own
            .iter()
            .map(|(address, bits)| (address.parse().unwrap(), *bits))
            .collect();
        sender.set_own_addresses(&own).unwrap();
        sender.run(&transit(packet), 1).unwrap().action == XDP_PASS
    };
    for (address, packet) in [
        (("203.0.113.9", 32), udp4("203.0.113.9", b"x")),
        (("2001:db8:b::9", 128), udp6("2001:db8:b::9", b"x")),
    ] {
        assert!(!passes(&[], &packet));
        assert!(passes(&[address], &packet));
        assert!(passes(&[address, ("192.0.2.1", 24)], &packet));
        assert!(!passes(&[("192.0.2.1", 24)], &packet));
    }
}

#[test]
fn excluded_destinations_stay_excluded_when_selected() {
    for (selected, packet, reason) in [
        ("192.0.2.77/32", udp4("192.0.2.77", b"x"), "passed_local"),
        (
            "239.1.2.3/32",
            udp4("239.1.2.3", b"x"),
            "passed_not_unicast",
        ),
        (
            "2001:db8:77::77/128",
            udp6("2001:db8:77::77", b"x"),
            "passed_local",
        ),
        ("fe80::9/128", udp6("fe80::9", b"x"), "passed_link_local"),
        (
            "::ffff:192.0.2.77/128",
            udp4("192.0.2.77", b"x"),
            "passed_local",
        ),
    ] {
        let mut sender = node();
        for everything in ["0.0.0.0/0", "::/0"] {
            sender.select(prefix(everything), &[]).unwrap();
        }
        assert_passes(&sender, selected, &transit(&packet), None);
        sender
            .select(prefix(selected), &[everything_of(7)])
            .unwrap();
        assert_passes(&sender, selected, &transit(&packet), Some(reason));
        sender.select(prefix(selected), &[]).unwrap();
        assert_passes(&sender, selected, &transit(&packet), None);
    }
}

#[test]
fn a_selector_of_all_ipv6_does_not_match_ipv4() {
    let mut sender = node();
    sender.select(prefix("0.0.0.0/0"), &[]).unwrap();
    assert_passes(&sender, "IPv4", &transit(&udp4("203.0.113.9", b"x")), None);
    assert_passes(
        &sender,
        "own address",
        &transit(&udp4("192.0.2.77", b"x")),
        None,
    );
    assert_eq!(
        sender
            .run(&transit(&udp6("2001:db8:b::9", b"x")), 1)
            .unwrap()
            .action,
        XDP_REDIRECT
    );
}

#[test]
fn the_node_stays_manageable_when_all_its_traffic_is_selected() {
    let mut sender = node();
    sender.set_management_ports(&[22, 443]).unwrap();
    let endpoint = |address: &str, protocol| Endpoint {
        address: address.parse().unwrap(),
        protocol,
    };
    let own = [
        endpoint("203.0.113.9:14750", TCP),
        endpoint("[2001:db8:b::9]:14751", UDP),
    ];
    sender.set_own_endpoints(BTreeSet::from(own)).unwrap();
    let (v4, v6) = (udp4("203.0.113.9", b"x"), udp6("2001:db8:b::9", b"x"));
    let is_replicated = |sender: &Sender, packet: &[u8]| {
        let before = sender.reasons().unwrap();
        let run = sender
            .run_local(&ethernet([2, 0, 0, 0, 0, 9], HERE_MAC, packet), 1)
            .unwrap();
        let reasons = counted_since(&before, sender.reasons().unwrap());
        match run.action {
            TC_ACT_REDIRECT => assert_eq!(reasons, []),
            _ => assert_eq!(
                (run.action, &reasons[..]),
                (TC_ACT_UNSPEC, &[("passed_management", 1)][..])
            ),
        }
        run.action == TC_ACT_REDIRECT
    };
    for (name, packet, expected) in [
        ("from SSH", tcp(ports(v4.clone(), 22, 50000)), false),
        ("from SSH, v6", tcp(ports(v6.clone(), 22, 50000)), false),
        (
            "from the other port",
            tcp(ports(v4.clone(), 443, 50000)),
            false,
        ),
        ("to SSH", tcp(ports(v4.clone(), 50000, 22)), true),
        ("UDP from that port", ports(v4.clone(), 22, 50000), true),
        ("no port at all", tcp(ports(v4.clone(), 0, 0)), true),
        (
            "to the controller",
            tcp(ports(v4.clone(), 50000, 14750)),
            false,
        ),
        ("UDP to its port", ports(v4.clone(), 50000, 14750), true),
        (
            "to another port of it",
            tcp(ports(v4.clone(), 50000, 14751)),
            true,
        ),
        (
            "to that port of another",
            tcp(ports(udp4("203.0.113.8", b"x"), 50000, 14750)),
            true,
        ),
        ("a measurement", ports(v6.clone(), 14751, 14751), false),
        (
            "TCP to its port",
            tcp(ports(v6.clone(), 14751, 14751)),
            true,
        ),
    ] {
        assert_eq!(is_replicated(&sender, &packet), expected, "{name}");
    }
    let from_ssh = Ports {
        source: 22..=22,
        destination: 0..=u16::MAX,
    };
    let rule = Rule {
        protocol: Some(TCP),
        ports: Some(from_ssh),
        ..everything_of(7)
    };
    sender
        .select(prefix("203.0.113.0/24"), &[rule, everything_of(7)])
        .unwrap();
    assert!(
        is_replicated(&sender, &tcp(ports(v4.clone(), 22, 50000))),
        "the rule names the source port"
    );
    assert!(
        !is_replicated(&sender, &tcp(ports(v4.clone(), 443, 50000))),
        "the rule does not name this port"
    );
    sender.set_own_endpoints(BTreeSet::new()).unwrap();
    assert!(
        is_replicated(&sender, &tcp(ports(v4, 50000, 14750))),
        "the endpoint was removed"
    );
}

#[test]
fn dns_and_dhcp_are_replicated_only_where_a_rule_names_them() {
    let mut sender = node();
    let (v4, v6) = (udp4("203.0.113.9", b"x"), udp6("2001:db8:b::9", b"x"));
    let service = |port| {
        [
            ports(v4.clone(), 50000, port),
            ports(v6.clone(), 50000, port),
        ]
    };
    let names = [53, 853]
        .into_iter()
        .flat_map(|port| service(port).into_iter().chain(service(port).map(tcp)));
    let leases = [67, 68, 546, 547].into_iter().flat_map(service);
    let questions: Vec<_> = names.chain(leases).collect();
    let action = |sender: &Sender, packet: &[u8]| {
        sender
            .run_local(&ethernet([2, 0, 0, 0, 0, 9], HERE_MAC, packet), 1)
            .unwrap()
            .action
    };
    for packet in &questions {
        let before = sender.reasons().unwrap();
        assert_eq!(action(&sender, packet), TC_ACT_UNSPEC, "{packet:02x?}");
        assert_eq!(
            counted_since(&before, sender.reasons().unwrap()),
            [("passed_management", 1)],
            "{packet:02x?}"
        );
        assert_eq!(
            sender.run(&transit(packet), 1).unwrap().action,
            XDP_REDIRECT,
            "another host's: {packet:02x?}"
        );
    }
    for (name, packet) in [
        ("an answer", ports(v4.clone(), 53, 50000)),
        ("TCP to a DHCP port", tcp(ports(v4.clone(), 50000, 67))),
        ("the port beside", ports(v4.clone(), 50000, 54)),
    ] {
        assert_eq!(action(&sender, &packet), TC_ACT_REDIRECT, "{name}");
    }
    let some = |ports: std::ops::RangeInclusive<u16>, source| match source {
        true => Ports {
            source: ports,
            destination: 0..=u16::MAX,
        },
        false => Ports {
            source: 0..=u16::MAX,
            destination: ports,
        },
    };
    for (ports, expected) in [
        (some(1..=1000, false), TC_ACT_REDIRECT),
        (some(50000..=50000, true), TC_ACT_UNSPEC),
        (some(0..=u16::MAX, true), TC_ACT_UNSPEC),
    ] {
        let rules = [UDP, TCP].map(|protocol| Rule {
            protocol: Some(protocol),
            ports: Some(ports.clone()),
            ..everything_of(7)
        });
        for everything in ["0.0.0.0/0", "::/0"] {
            sender.select(prefix(everything), &rules).unwrap();
        }
        for packet in &questions {
            assert_eq!(
                action(&sender, packet),
                expected,
                "{ports:?}: {packet:02x?}"
            );
        }
    }
    for narrow in ["203.0.0.0/8", "2001:db8::/32"] {
        sender.select(prefix(narrow), &[everything_of(7)]).unwrap();
    }
    for packet in &questions {
        assert_eq!(
            action(&sender, packet),
            TC_ACT_REDIRECT,
            "a name server behind the peer: {packet:02x?}"
        );
    }
}
