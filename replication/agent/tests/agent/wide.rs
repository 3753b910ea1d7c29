//! Agents that replicate all traffic: the node and its links keep working.

use crate::rig::{Rig, assert_losses, exchange, widen};
use crate::support::TIMEOUT;
use hawser_agent::Status;
use hawser_testbed::edges::{FLOW, Replication, Sender};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::Port;
use hawser_testbed::topology::{End, Stop};
use hawser_testbed::traffic::{self, Endpoints, Family, Kind, Stream};
use hawser_units::PathSet;
use hawser_wire::ip;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

/// The port through which nodes are managed.
const SSH: u16 = 22;

/// The port of name servers.
const DNS: u16 = 53;

/// The flows of IPv4 and IPv6.
const FLOWS: [u16; 2] = [FLOW, FLOW + 1];

fn addresses(end: &End) -> [IpAddr; 2] {
    [end.v4.into(), end.v6.into()]
}

fn replicated(status: &Status) -> [u64; 2] {
    FLOWS.map(|flow| status.send[&flow].packets)
}

fn passed(status: &Status, reason: &str) -> u64 {
    status.not_replicated.get(reason).copied().unwrap_or(0)
}

#[test]
fn a_node_is_reached_while_it_replicates_all_transit() {
    let mut rig = Rig::new();
    widen(&mut rig);
    let reports = rig.under_traffic(|_, _| ());
    assert_losses(&reports, 0, 0);
    let sent = [0, 1].map(|stream: usize| reports[stream].sent);
    let before = rig
        .edges
        .ingress_agent
        .wait_until("counted", |status| replicated(status) == sent)
        .unwrap();
    let link = rig.lab.addressing().source.clone();
    for (near, far) in addresses(&link.near).into_iter().zip(addresses(&link.far)) {
        // Both resolve each other's link-layer address first.
        rig.lab
            .source()
            .ip(&format!("neigh del {far} dev {}", link.near.device))
            .unwrap();
        rig.lab
            .ingress()
            .ip(&format!("neigh del {near} dev {}", link.far.device))
            .unwrap();
        exchange(
            rig.lab.source(),
            rig.lab.ingress(),
            SocketAddr::new(far, SSH),
        );
    }
    let after = rig
        .edges
        .ingress_agent
        .wait_until("saw its own", |status| passed(status, "passed_local") > 10);
    let after = after.unwrap();
    assert!(
        passed(&after, "passed_not_unicast") > passed(&before, "passed_not_unicast"),
        "{after:?}"
    );
    assert_eq!(replicated(&after), replicated(&before));
}

#[test]
fn promiscuous_frames_to_other_hosts_are_not_replicated() {
    const FRAMES: u64 = 50;
    let mut rig = Rig::new();
    widen(&mut rig);
    let link = rig.lab.addressing().source.clone();
    rig.lab
        .ingress()
        .ip(&format!("link set {} promisc on", link.far.device))
        .unwrap();
    let port = rig
        .lab
        .source()
        .run(|| Port::open(&link.near.device).unwrap())
        .unwrap();
    let before = replicated(&rig.edges.ingress().unwrap());
    for (from, to) in addresses(&link.near)
        .into_iter()
        .zip(addresses(&rig.lab.addressing().viewer.far))
    {
        let packet = ip::udp_packet(
            SocketAddr::new(from, 1000),
            SocketAddr::new(to, 2000),
            0,
            b"foreign",
        );
        let protocol: [u8; 2] = if from.is_ipv4() {
            [0x08, 0x00]
        } else {
            [0x86, 0xdd]
        };
        let foreign_mac = [2, 0, 0, 0, 0, 0x99];
        let frame = [&foreign_mac[..], &link.near.mac.0, &protocol, &packet].concat();
        port.sender.send(&vec![frame; FRAMES as usize]).unwrap();
    }
    let has_counted = |status: &Status| passed(status, "passed_foreign_mac") == 2 * FRAMES;
    let after = rig
        .edges
        .ingress_agent
        .wait_until("counted them", has_counted)
        .unwrap();
    assert_eq!(replicated(&after), before);
}

#[test]
fn a_node_stays_managed_while_it_replicates_everything() {
    let replication = Replication {
        sender: Sender::Ingress,
        ..Replication::on(PathSet::from_bits(0b11))
    };
    let mut rig = Rig::replicating(&replication);
    widen(&mut rig);
    let link = rig.lab.addressing().paths[0].clone();
    let before = replicated(&rig.edges.ingress().unwrap());
    for near in addresses(&link.near) {
        // The node's link-layer address is resolved, and it replies to a global address.
        rig.lab
            .egress()
            .ip(&format!("neigh del {near} dev {}", link.far.device))
            .unwrap();
        exchange(
            rig.lab.egress(),
            rig.lab.ingress(),
            SocketAddr::new(near, SSH),
        );
    }
    let managed = |status: &Status| passed(status, "passed_management") > 10;
    let after = rig
        .edges
        .ingress_agent
        .wait_until("saw its own", managed)
        .unwrap();
    assert_eq!(replicated(&after), before);

    let ends = Endpoints {
        source: rig.lab.ingress().clone(),
        ..Endpoints::from(&rig.lab)
    };
    let stream = |family| Stream {
        kind: Kind::UdpConnected,
        family,
        packets: 1000,
        rate_pps: 2000,
        payload_bytes: 200,
    };
    let streams = [Family::Ipv4, Family::Ipv6].map(stream);
    let reports = traffic::run(
        &ends,
        &streams,
        Duration::from_millis(300),
        &Stop::default(),
    )
    .unwrap();
    assert_losses(&reports, 0, 0);
    let expected = before.map(|packets| packets + 1000);
    let after = rig
        .edges
        .ingress_agent
        .wait_until("replicated", |status| replicated(status) == expected);
    assert!(
        after
            .unwrap()
            .send
            .values()
            .all(|flow| flow.copies.values().all(|path| path.packets >= 1000))
    );
}

#[test]
fn only_forwarded_name_queries_are_replicated() {
    const QUESTIONS: u64 = 50;
    let replication = Replication {
        sender: Sender::Ingress,
        ..Replication::on(PathSet::from_bits(0b11))
    };
    let mut rig = Rig::replicating(&replication);
    widen(&mut rig);
    let (host, node) = (rig.lab.source().clone(), rig.lab.ingress().clone());
    for (index, server) in addresses(&rig.lab.addressing().viewer.far)
        .into_iter()
        .enumerate()
    {
        let server = SocketAddr::new(server, DNS);
        let answering = rig
            .lab
            .viewer()
            .run(|| UdpSocket::bind(server).unwrap())
            .unwrap();
        answering.set_read_timeout(Some(TIMEOUT)).unwrap();
        let ask = |asking: &Namespace| {
            let any = if server.is_ipv4() {
                "0.0.0.0:0"
            } else {
                "[::]:0"
            };
            let asker = asking.run(|| UdpSocket::bind(any).unwrap()).unwrap();
            for _ in 0..QUESTIONS {
                asker.send_to(b"?", server).unwrap();
                answering.recv(&mut [0]).unwrap();
            }
        };
        let agent = &mut rig.edges.ingress_agent;
        let before = agent.status().unwrap();
        ask(&host);
        let forwarded =
            |status: &Status| replicated(status)[index] == replicated(&before)[index] + QUESTIONS;
        let between = agent
            .wait_until("replicated what it forwards", forwarded)
            .unwrap();
        ask(&node);
        let passed_by = |status: &Status| {
            // The agent measures its paths at the same time.
            passed(status, "passed_management") >= passed(&between, "passed_management") + QUESTIONS
        };
        let after = agent.wait_until("passed its own", passed_by).unwrap();
        assert_eq!(replicated(&after), replicated(&between));
    }
}
