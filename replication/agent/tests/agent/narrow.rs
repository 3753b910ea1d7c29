//! A path whose second hop carries smaller packets than its first: the router's ICMP error reduces the
//! MTU of that path alone, and without one, requests without replies do.

use crate::rig::{Rig, assert_losses, brings_copies};
use hawser_agent::Status;
use hawser_testbed::edges::{Replication, Sender};
use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_testbed::traffic::Kind;
use hawser_units::PathSet;

const RATE_PPS: u32 = 500;

/// The second hop of path 2 carries packets of up to 1400 bytes.
const NARROW_MTU: u16 = 1400;

/// Packets of this payload fit path 1 with the outer headers, and the second hop of path 2 only
/// without them.
const LARGE_PAYLOAD: usize = 1340;

/// Makes the network of path 2 a router.
pub(crate) fn route_path_2(lab: &Lab) {
    let second = lab.paths().nth(1).unwrap();
    let (inward, outward) = (network_ingress(second), network_egress(second));
    let network = lab.network();
    network.sysctl("net.ipv4.ip_forward", "1").unwrap();
    let router = format!(
        "link set {inward} nomaster\nlink set {outward} nomaster\nlink set {outward} mtu {NARROW_MTU}\n\
         addr add 10.3.1.254/32 dev {inward}\naddr add 10.3.2.254/32 dev {outward}\n\
         route add 10.1.2.1/32 dev {inward}\nroute add 10.1.2.2/32 dev {outward}"
    );
    network.ip(&router).unwrap();
    let edges = [
        (lab.ingress(), "10.1.2.1", "10.1.2.2", "10.3.1.254"),
        (lab.egress(), "10.1.2.2", "10.1.2.1", "10.3.2.254"),
    ];
    for (edge, own, other, router) in edges {
        let routed = format!(
            "addr del {own}/30 dev path2\naddr add {own}/32 dev path2\nroute add {router}/32 dev path2\n\
             route add {other}/32 via {router} dev path2"
        );
        edge.ip(&routed).unwrap();
    }
    lab.egress()
        .ip(&format!("link set path2 mtu {NARROW_MTU}"))
        .unwrap();
}

fn assert_narrowed(sender: Sender) {
    let replication = Replication {
        sender,
        ..Replication::on(PathSet::from_bits(0b11))
    };
    let mut rig = Rig::prepared(&replication, route_path_2);
    let large = rig.under_traffic_of(
        sender,
        Kind::UdpConnected,
        (RATE_PPS, LARGE_PAYLOAD),
        |edges, _| {
            let is_narrow = |status: &Status| {
                let path = &status.paths[&2];
                path.up
                    && path.mtu_bytes == Some(NARROW_MTU)
                    && path.mtu_learned
                    && path.too_large > 100
            };
            let agent = &mut edges.ingress_agent;
            let status = agent.wait_until("learned the MTU", is_narrow).unwrap();
            let wide = &status.paths[&1];
            assert_eq!((wide.mtu_bytes, wide.too_large), (Some(1500), 0));
            assert!(!status.not_replicated.contains_key("passed_oversize"));
            let what = &status.paths[&2].changed.as_ref().unwrap().what;
            assert!(what.contains("MTU 1400 instead of 1500"), "{what}");
            assert!(agent.log().contains(what), "{}", agent.log());
            brings_copies(edges, 1);
        },
    );
    assert_losses(&large, 0, 0);
    let small = rig.under_traffic_of(sender, Kind::UdpConnected, (RATE_PPS, 200), |edges, _| {
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&small, 0, 0);
}

#[test]
fn transit_copies_too_large_for_a_router_take_the_other_path() {
    assert_narrowed(Sender::Source);
}

#[test]
fn local_copies_too_large_for_a_router_take_the_other_path() {
    assert_narrowed(Sender::Ingress);
}

/// As with an interface of the other node that has a smaller MTU, or a tunnel on the way: no router
/// tells.
#[test]
fn a_path_that_drops_large_packets_gets_a_smaller_mtu() {
    let mut rig = Rig::new();
    rig.lab.egress().ip("link set path2 mtu 1300").unwrap();
    let is_narrow = |status: &Status| {
        let path = &status.paths[&2];
        path.up && path.mtu_bytes == Some(1228) && path.mtu_learned
    };
    let agent = &mut rig.edges.ingress_agent;
    let status = agent.wait_until("reduced the MTU", is_narrow).unwrap();
    assert_eq!(status.paths[&1].mtu_bytes, Some(1500));
    let what = &status.paths[&2].changed.as_ref().unwrap().what;
    assert!(
        what.contains("packets of 1500 bytes do not arrive"),
        "{what}"
    );
    let reports = rig.under_traffic(|edges, _| {
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
}
