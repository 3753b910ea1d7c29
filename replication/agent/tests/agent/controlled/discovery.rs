//! The controller makes paths of the uplinks of both nodes, of which no file has a path.

use super::rig::{Controlled, lab, received_code, sent_code, stage};
use crate::rig::{Edges, assert_losses, plug, unplug};
use crate::support::wait;
use hawser_agent::Status;
use hawser_model::resource::{Event, Mode};
use hawser_model::topology::{Topology, TopologyPath};
use hawser_testbed::topology::{Edge, Lab};
use hawser_testbed::traffic::{Family, StreamReport};
use hawser_testing::Control;
use std::net::IpAddr;

fn topology(control: &Control) -> Topology {
    let asked = control.ask(async |client| client.topology(None, None).await);
    asked.unwrap()
}

/// Returns the path whose ends are the devices of this path of the lab.
fn path_over(control: &Control, device: &str) -> Option<TopologyPath> {
    let mut paths = topology(control).paths.into_iter();
    paths.find(|path| path.ends.iter().all(|end| end.end.interface == device))
}

/// Waits until a path over these devices is used by the flow at both edges. Returns its number.
fn await_path(control: &Control, edges: &mut Edges, device: &str) -> u8 {
    let path = wait(device, || path_over(control, device));
    assert!(path.addresses_match && path.ends.iter().all(|end| end.end.discovered));
    let number = path.number;
    let has = |code: Option<u8>| code.is_some_and(|code| code & 1 << (number - 1) != 0);
    await_code(
        edges,
        |status| has(sent_code(status)),
        |status| has(received_code(status)),
    );
    number
}

fn await_code(
    edges: &mut Edges,
    sent: impl Fn(&Status) -> bool,
    received: impl Fn(&Status) -> bool,
) {
    let Edges {
        ingress_agent,
        egress_agent,
    } = edges;
    ingress_agent.wait_until("took the policy", sent).unwrap();
    egress_agent
        .wait_until("knew the policy", received)
        .unwrap();
}

/// Returns the number of copies that arrived on a path.
fn copies(edges: &Edges, number: u8) -> u64 {
    let receive = edges.egress().unwrap().receive;
    let paths = receive.values().next();
    let path = paths.and_then(|paths| paths.get(&number));
    path.map_or(0, |path| path.packets)
}

fn brings_copies(edges: &Edges, number: u8) {
    let before = copies(edges, number);
    wait("copies", || {
        (copies(edges, number) > before + 100).then_some(())
    });
}

fn events(control: &Control, kind: &str) -> Vec<Event> {
    let events = control.events().unwrap().into_iter();
    events.filter(|event| event.kind == kind).collect()
}

fn of_the_flow(reports: Vec<StreamReport>) -> Vec<StreamReport> {
    let reports = reports.into_iter();
    reports
        .filter(|report| report.stream.family == Family::Ipv4)
        .collect()
}

/// Starts a replicated flow between nodes without paths in their files.
fn with_flow(lab: Lab) -> Controlled {
    let mut controlled = Controlled::discovering(lab);
    controlled.await_connection();
    let flow = controlled.flow(Mode::Replicate, None);
    let created = controlled
        .control
        .ask(async |client| client.create_flow(&flow).await);
    created.unwrap();
    controlled
}

#[test]
fn uplinks_become_paths_and_are_withdrawn_when_they_go() {
    let lab = lab(3);
    unplug(&lab, Edge::Ingress, 3);
    let Controlled {
        mut rig, control, ..
    } = with_flow(lab);
    let [first, second] =
        ["path1", "path2"].map(|device| await_path(&control, &mut rig.edges, device));
    let spare = topology(&control).candidates;
    let crossed = spare.iter().find(|candidate| {
        let interfaces = candidate.ends.iter().map(|end| &*end.uplink.interface);
        interfaces.eq(["path1", "path2"]) && candidate.ends[0].uplink.address.is_ipv4()
    });
    assert_eq!(crossed.unwrap().reason, "no answer at egress and ingress");

    let reports = rig.under_traffic(|edges, lab| {
        [first, second]
            .iter()
            .for_each(|path| brings_copies(edges, *path));
        plug(lab, Edge::Ingress, 3);
        let third = await_path(&control, edges, "path3");
        brings_copies(edges, third);

        unplug(lab, Edge::Ingress, 2);
        let bit = 1 << (second - 1);
        let lacks = |code: Option<u8>| code.is_some_and(|code| code & bit == 0);
        await_code(
            edges,
            |status| lacks(sent_code(status)),
            |status| lacks(received_code(status)),
        );
        wait("the path to be removed", || {
            path_over(&control, "path2").is_none().then_some(())
        });
        let withdrawn = events(&control, "path_withdrawn");
        let why = "is withdrawn: ingress has no uplink path2 with an IPv4 address";
        assert!(withdrawn[0].message.contains(why), "{withdrawn:?}");
        let forgot = |status: &Status| !status.paths.contains_key(&second);
        edges
            .egress_agent
            .wait_until("forgot the path", forgot)
            .unwrap();
        [first, third]
            .iter()
            .for_each(|path| brings_copies(edges, *path));

        plug(lab, Edge::Ingress, 2);
        let again = await_path(&control, edges, "path2");
        brings_copies(edges, again);
    });
    assert_losses(&of_the_flow(reports), 0, 0);
    assert_eq!(events(&control, "not_applied"), []);
}

#[test]
fn a_path_follows_addresses_and_outlives_a_restart() {
    let mut controlled = with_flow(lab(2));
    let [first, second] = ["path1", "path2"]
        .map(|device| await_path(&controlled.control, &mut controlled.rig.edges, device));
    let reports = controlled.rig.under_traffic(|edges, lab| {
        [first, second]
            .iter()
            .for_each(|path| brings_copies(edges, *path));
        lab.ingress().ip("route add 10.1.2.0/24 dev path2").unwrap();
        lab.egress()
            .ip("addr del 10.1.2.2/30 dev path2\naddr add 10.1.2.77/24 dev path2")
            .unwrap();
        let moved = wait("the event", || {
            events(&controlled.control, "path_moved").pop()
        });
        assert!(moved.message.contains("path2 10.1.2.77"), "{moved:?}");
        [first, second]
            .iter()
            .for_each(|path| brings_copies(edges, *path));
    });
    assert_losses(&of_the_flow(reports), 0, 0);
    let kept = path_over(&controlled.control, "path2").unwrap();
    assert_eq!((kept.number, kept.flows), (second, vec![stage()]));

    let moved: IpAddr = [10, 1, 2, 77].into();
    controlled.await_saved(|saved| {
        let mut paths = saved.discovery.paths.iter();
        paths.any(|path| path.number == second && path.way.ends.remote == moved)
    });
    controlled.kill_controller();
    let edges = &mut controlled.rig.edges;
    edges.ingress_agent.kill().unwrap();
    edges.ingress_agent.start_again().unwrap();
    let reports = controlled.rig.under_traffic(|edges, _| {
        [first, second]
            .iter()
            .for_each(|path| brings_copies(edges, *path));
    });
    assert_losses(&of_the_flow(reports), 0, 0);
}
