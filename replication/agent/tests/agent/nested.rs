//! Packets in packets: TCP in VXLAN between hosts behind the edges.

use crate::modes::restart;
use crate::rig::{Rig, exchange};
use hawser_agent::Status;
use hawser_testbed::edges::{FLOW, Replication};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{End, Lab};
use hawser_units::PathSet;

/// The packets that TCP needs at least for what [`exchange`] sends.
const PACKETS: u64 = 30;

const SOURCE: &str = "172.31.0.1";
const VIEWER: &str = "172.31.0.2";

/// Connects the source and the viewer by VXLAN. With the offloads of their devices, they hand over trains
/// of inner packets whose checksums are not complete.
fn connect(lab: &Lab) {
    let (source, viewer) = (&lab.addressing().source, &lab.addressing().viewer);
    let join = |namespace: &Namespace, own: &End, other: &End, inner: &str| {
        let on = [("tx", true), ("tso", true), ("gso", true), ("gro", true)];
        namespace.offloads(&own.device, &on).unwrap();
        let batch = format!(
            "link add vx0 mtu 1300 type vxlan id 7 local {} remote {} dstport 4789 dev {}\n\
             addr add {inner}/24 dev vx0\nlink set vx0 up",
            own.v4, other.v4, own.device
        );
        namespace.ip(&batch).unwrap();
    };
    join(lab.source(), &source.near, &viewer.far, SOURCE);
    join(lab.viewer(), &viewer.far, &source.near, VIEWER);
}

#[test]
fn tcp_in_vxlan_is_replicated_in_every_mode() {
    let replication = Replication {
        both_ways: true,
        ..Replication::on(PathSet::from_bits(0b11))
    };
    let mut rig = Rig::replicating(&replication);
    connect(&rig.lab);
    let cases = [
        ("native", ["generic_xdp = false"; 2]),
        ("generic", ["generic_xdp = true"; 2]),
        ("mixed", ["generic_xdp = true", ""]),
    ];
    for ((name, lines), port) in cases.into_iter().zip(5000..) {
        restart(&mut rig.edges, lines);
        let copies = |status: &Status| [1, 2].map(|path| status.receive[&FLOW][&path].packets);
        let before = copies(&rig.edges.egress().unwrap());
        let to = format!("{SOURCE}:{port}").parse().unwrap();
        exchange(rig.lab.viewer(), rig.lab.source(), to);
        let all_arrived = |status: &Status| {
            let mut counts = copies(status).into_iter().zip(before);
            counts.all(|(now, before)| now >= before + PACKETS)
        };
        let seen = rig.edges.egress_agent.wait_until("saw copies", all_arrived);
        let status = seen.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        assert!(status.not_deduplicated.is_empty(), "{name}: {status:?}");
        let status = rig.edges.ingress().unwrap();
        assert!(status.not_replicated.is_empty(), "{name}: {status:?}");
    }
}
