//! Each interface is used in the mode that works for it, and all kinds of packets survive in every
//! mode, with the offloads of senders on and off, and through stacked devices.

use crate::rig::{Edges, Rig, assert_losses, await_copies, egress_copies};
use hawser_testbed::edges::{Replication, Sender};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{End, Lab, Stop, network_egress, network_ingress};
use hawser_testbed::traffic::{self, Endpoints, Stream};
use hawser_units::PathSet;
use std::fs;
use std::time::Duration;

const PACKETS: u64 = 300;
const RATE_PPS: u32 = 500;
const PAYLOAD_BYTES: usize = 300;
const GRACE: Duration = Duration::from_millis(300);

fn replication(sender: Sender) -> Replication {
    Replication {
        sender,
        ..Replication::on(PathSet::from_bits(0b11))
    }
}

/// Restarts both agents with these lines in `[node]`, the ingress and the egress. The egress is first: while
/// it is away for long, an ingress leaves its paths out.
pub(crate) fn restart(edges: &mut Edges, [ingress, egress]: [&str; 2]) {
    for (agent, line) in [
        (&mut edges.egress_agent, egress),
        (&mut edges.ingress_agent, ingress),
    ] {
        agent.terminate().unwrap();
        let file = agent.configuration_file();
        let text = fs::read_to_string(&file).unwrap();
        let others = text
            .lines()
            .filter(|line| !line.starts_with("generic_xdp"))
            .collect::<Vec<_>>()
            .join("\n");
        let text = others.replace("[node]\n", &format!("[node]\n{line}\n"));
        fs::write(&file, text).unwrap();
        agent.start_again().unwrap();
    }
}

/// Sends all kinds of packets, and asserts that each arrives once and unaltered.
fn assert_all_arrive(lab: &Lab, sender: Sender, what: &str) {
    let source = match sender {
        Sender::Source => lab.source(),
        Sender::Ingress => lab.ingress(),
    };
    let ends = Endpoints {
        source: source.clone(),
        ..Endpoints::from(lab)
    };
    let streams = Stream::of_every_kind(PACKETS, RATE_PPS, PAYLOAD_BYTES);
    let reports = traffic::run(&ends, &streams, GRACE, &Stop::default()).unwrap();
    for report in reports {
        let is_whole = report.is_complete() && report.duplicates == 0;
        assert!(is_whole, "{what}: {report:?}");
    }
}

/// Returns the copies that arrived at the egress edge on each path.
fn copies(edges: &Edges) -> Vec<u64> {
    let status = edges.egress().unwrap();
    let on = |path| {
        status
            .receive
            .values()
            .map(move |paths| paths[path].packets)
    };
    [1, 2].iter().map(|path| on(path).sum()).collect()
}

fn assert_matrix(sender: Sender, prepare: impl FnOnce(&Lab)) {
    let mut rig = Rig::prepared(&replication(sender), prepare);
    let cases = [
        ("best", None),
        ("native", Some(["generic_xdp = false"; 2])),
        ("generic", Some(["generic_xdp = true"; 2])),
        ("mixed", Some(["generic_xdp = true", ""])),
    ];
    for (name, lines) in cases {
        if let Some(lines) = lines {
            restart(&mut rig.edges, lines);
        }
        assert_all_arrive(&rig.lab, sender, name);
        let edges = &mut rig.edges;
        let wanted = 10 * PACKETS; // TCP joins records
        let all_arrived = |status: &hawser_agent::Status| {
            let on = |path| {
                status
                    .receive
                    .values()
                    .map(move |paths| paths[path].packets)
            };
            [1, 2].iter().all(|path| on(path).sum::<u64>() >= wanted)
        };
        let seen = edges.egress_agent.wait_until("saw all copies", all_arrived);
        seen.unwrap_or_else(|error| panic!("{name}: {error:#}: {:?}", copies(edges)));
    }
}

#[test]
fn all_transit_packets_arrive_in_every_mode() {
    assert_matrix(Sender::Source, |_| ());
}

#[test]
fn all_local_packets_arrive_in_every_mode() {
    assert_matrix(Sender::Ingress, |_| ());
}

/// With offloads, senders hand over trains and leave their checksums to a device that never
/// completes them.
#[test]
fn transit_trains_without_checksums_arrive_in_every_mode() {
    assert_matrix(Sender::Source, |lab| {
        let on = [("tx", true), ("tso", true), ("gso", true), ("gro", true)];
        let source = &lab.addressing().source;
        lab.source().offloads(&source.near.device, &on).unwrap();
        lab.ingress().offloads(&source.far.device, &on).unwrap();
        for path in lab.paths() {
            let link = lab.path(path);
            lab.ingress().offloads(&link.near.device, &on).unwrap();
            lab.egress().offloads(&link.far.device, &on).unwrap();
        }
    });
}

/// Replaces the device of an end by a macvlan device on it.
fn stack(namespace: &Namespace, own: &End, other: &End) {
    let device = &own.device;
    let batch = format!(
        "link set {device} down\naddr flush dev {device}\nlink set {device} name under\n\
         link set under address 02:00:00:00:99:01 up\n\
         link add link under name {device} address {mac} type macvlan mode bridge\nlink set {device} up\n\
         addr add {v4}/30 dev {device}\naddr add {v6}/64 dev {device} nodad\n\
         neigh replace {other_v4} lladdr {other_mac} nud permanent dev {device}\n\
         neigh replace {other_v6} lladdr {other_mac} nud permanent dev {device}",
        mac = own.mac,
        v4 = own.v4,
        v6 = own.v6,
        other_v4 = other.v4,
        other_v6 = other.v6,
        other_mac = other.mac,
    );
    namespace.ip(&batch).unwrap();
}

/// Path 2 is on macvlan devices, which have no native XDP and take no frames.
fn stack_path_2(lab: &Lab) {
    let link = lab.path(lab.paths().nth(1).unwrap());
    stack(lab.ingress(), &link.near, &link.far);
    stack(lab.egress(), &link.far, &link.near);
}

fn assert_through_macvlan(sender: Sender) {
    let mut rig = Rig::prepared(&replication(sender), stack_path_2);
    for mode in ["best", "generic"] {
        if mode == "generic" {
            restart(&mut rig.edges, ["generic_xdp = true"; 2]);
        }
        assert_all_arrive(&rig.lab, sender, mode);
        let both = |status: &hawser_agent::Status| {
            let flows = status.receive.values();
            flows
                .flat_map(|paths| paths.values())
                .all(|path| path.packets >= 5 * PACKETS)
        };
        let seen = rig.edges.egress_agent.wait_until("saw all copies", both);
        seen.unwrap_or_else(|error| panic!("{error:#}: {:?}", copies(&rig.edges)));
    }
    let status = rig.edges.ingress().unwrap();
    assert_eq!(status.modes["path2"]["send"].mode, "generic");
}

#[test]
fn transit_packets_arrive_through_macvlan_devices() {
    assert_through_macvlan(Sender::Source);
}

#[test]
fn local_packets_arrive_through_macvlan_devices() {
    assert_through_macvlan(Sender::Ingress);
}

/// Traffic comes by a macvlan device, as trains if the sender has offloads.
#[test]
fn transit_on_a_macvlan_device_is_replicated_at_tc() {
    let mut rig = Rig::prepared(&replication(Sender::Source), |lab| {
        let source = &lab.addressing().source;
        stack(lab.ingress(), &source.far, &source.near);
        let addresses = format!(
            "addr flush dev {device}\naddr add {v4}/{length} dev {device}\naddr add {v6}/64 dev {device} nodad",
            device = source.far.device,
            v4 = source.far.v4,
            v6 = source.far.v6,
            length = source.v4_length,
        );
        lab.ingress().ip(&addresses).unwrap();
        let on = [("tx", true), ("tso", true), ("gso", true)];
        lab.source().offloads(&source.near.device, &on).unwrap();
    });
    let device = rig.lab.addressing().source.far.device.clone();
    assert_all_arrive(&rig.lab, Sender::Source, "macvlan");
    let replicated = |status: &hawser_agent::Status| {
        let sent: u64 = status.send.values().map(|flow| flow.packets).sum();
        sent >= 10 * PACKETS
    };
    let agent = &mut rig.edges.ingress_agent;
    agent.wait_until("replicated all", replicated).unwrap();
    let mode = &agent.status().unwrap().modes[&device]["replicate"];
    assert_eq!(
        (mode.mode.as_str(), mode.reason.as_str()),
        ("generic", "its driver has no native XDP")
    );
}

/// Without XDP too, the copies on the other path are all that is needed.
#[test]
fn no_packet_is_lost_when_a_path_goes_down_in_generic_mode() {
    let mut rig = Rig::replicating(&replication(Sender::Ingress));
    restart(&mut rig.edges, ["generic_xdp = true"; 2]);
    let reports = rig.under_local_trains(|edges, lab| {
        lab.ingress().ip("link set path2 down").unwrap();
        let is_down = |status: &hawser_agent::Status| !status.paths[&2].up;
        edges.ingress_agent.wait_until("saw it", is_down).unwrap();
        lab.ingress().ip("link set path2 up").unwrap();
        let is_up = |status: &hawser_agent::Status| status.paths[&2].up;
        edges.ingress_agent.wait_until("saw it", is_up).unwrap();
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
    });
    assert_losses(&reports, 0, 0);
}

/// When the far end of a path stops polling, its device takes no more frames: the agent notices and
/// sends clones.
#[test]
fn an_agent_clones_when_a_device_stops_taking_frames() {
    let mut rig = Rig::new();
    let mode = |status: &hawser_agent::Status| status.modes["path2"]["send"].mode.clone();
    assert_eq!(mode(&rig.edges.ingress().unwrap()), "native");
    let second = rig.lab.paths().nth(1).unwrap();
    let far = [network_ingress(second), network_egress(second)];
    rig.lab
        .network()
        .offloads(&far[0], &[("gro", false)])
        .unwrap();
    let agent = &mut rig.edges.ingress_agent;
    let changed = |status: &hawser_agent::Status| mode(status) == "generic";
    agent.wait_until("changed to clones", changed).unwrap();
    let reports =
        rig.under_traffic(|edges, _| (1..=2).for_each(|path| await_copies(edges, path, 0)));
    assert_losses(&reports, 0, 0);
}

/// Joins the edges of path 2 directly, without the network between them.
fn join_path_2(lab: &Lab) {
    let link = lab.path(lab.paths().nth(1).unwrap());
    let (near, far) = (&link.near, &link.far);
    let device = &near.device;
    lab.ingress().ip(&format!("link del {device}")).unwrap();
    lab.egress().ip(&format!("link del {device}")).unwrap();
    let pair = format!(
        "link add {device} address {} type veth peer name {device} address {} netns {}",
        near.mac,
        far.mac,
        lab.egress().name()
    );
    lab.ingress().ip(&pair).unwrap();
    for (namespace, own, other) in [(lab.ingress(), near, far), (lab.egress(), far, near)] {
        let addresses = format!(
            "link set {device} up\naddr add {}/30 dev {device}\n\
             neigh replace {} lladdr {} nud permanent dev {device}",
            own.v4, other.v4, other.mac
        );
        namespace.ip(&addresses).unwrap();
    }
}

#[test]
fn a_veth_warns_that_generic_xdp_sees_no_clones() {
    let mut rig = Rig::replicating(&replication(Sender::Ingress));
    join_path_2(&rig.lab);
    restart(&mut rig.edges, ["generic_xdp = true"; 2]);
    let agent = &mut rig.edges.egress_agent;
    let mode = &agent.status().unwrap().modes["path2"]["deduplicate"];
    assert_eq!(mode.mode, "generic");
    let warning = mode.warning.as_ref().unwrap();
    assert!(warning.contains("remove `generic_xdp`"), "{warning}");
    assert!(agent.log().contains(warning.as_str()), "{}", agent.log());

    restart(&mut rig.edges, [""; 2]);
    let reports = rig.under_local_trains(|edges, _| {
        (1..=2).for_each(|path| await_copies(edges, path, 0));
    });
    assert_losses(&reports, 0, 0);
}
