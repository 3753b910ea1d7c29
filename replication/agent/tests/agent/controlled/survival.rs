//! Traffic continues when the controller and its agents fail.

use super::rig::{Controlled, received_code, sent_code, stage, state};
use crate::rig::{Edges, IN_FLIGHT, assert_losses, unplugged};
use crate::support::wait;
use hawser_model::resource::{Flow, Mode, Path, PathHealth};
use hawser_testbed::edges::Controller as _;
use hawser_testbed::topology::Edge;
use hawser_testbed::traffic::{Family, StreamReport};
use hawser_testing::Control;
use hawser_units::PolicyCode;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Starts two connected agents, and returns the flow that the test creates under traffic.
fn before_the_flow() -> (Controlled, Flow) {
    let mut controlled = Controlled::new();
    controlled.await_connection();
    let flow = controlled.flow(Mode::Replicate, None);
    (controlled, flow)
}

/// Returns the reports of the stream that belongs to the flow.
fn of_the_flow(reports: &[StreamReport]) -> Vec<StreamReport> {
    reports
        .iter()
        .filter(|report| report.stream.family == Family::Ipv4)
        .cloned()
        .collect()
}

/// Waits until copies arrive on both paths.
fn await_copies(edges: &mut Edges) {
    let copies = |edges: &Edges| {
        let receive = edges.egress().unwrap().receive;
        let flow = receive.values().next().unwrap();
        [1, 2].map(|path| flow[&path].packets)
    };
    let before = copies(edges);
    wait("copies by both paths", || {
        let now = copies(edges);
        (0..2)
            .all(|path| now[path] > before[path] + 100)
            .then_some(())
    });
}

#[test]
fn a_flow_waits_for_its_egress_and_loses_nothing() {
    let (controlled, flow) = before_the_flow();
    let Controlled {
        mut rig, control, ..
    } = controlled;
    let reports = rig.under_traffic(|edges, _| {
        let egress = Pid::from_raw(edges.egress().unwrap().pid.try_into().unwrap());
        kill(egress, Signal::SIGSTOP).unwrap();
        control
            .ask(async |client| client.create_flow(&flow).await)
            .unwrap();
        let has_it = |status: &hawser_agent::Status| sent_code(status) == Some(0);
        edges
            .ingress_agent
            .wait_until("took the default route", has_it)
            .unwrap();
        kill(egress, Signal::SIGCONT).unwrap();
        let is_replicated = |status: &hawser_agent::Status| received_code(status) == Some(0b11);
        edges
            .egress_agent
            .wait_until("received the policy", is_replicated)
            .unwrap();
        await_copies(edges);
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_killed_controlled_ingress_leaves_the_default_route() {
    let Controlled { mut rig, .. } = Controlled::with_flow(Mode::Replicate, None);
    let reports = rig.under_traffic(|edges, _| {
        await_copies(edges);
        edges.ingress_agent.kill().unwrap();
    });
    assert_losses(&reports, IN_FLIGHT, 0);
}

#[test]
fn a_controller_may_be_killed_and_come_back() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    controlled.kill_controller();
    let reports = controlled.rig.under_traffic(|edges, _| await_copies(edges));
    assert_losses(&reports, 0, 0);
    controlled.start_controller_again();
    controlled.await_code(0b11);
    controlled.fix(0b10);
    controlled.await_code(0b10);
}

#[test]
fn agents_start_by_the_last_policy_without_a_controller() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    controlled.fix(0b10);
    controlled.await_code(0b10);
    controlled.fix(0b11);
    controlled.await_code(0b11);
    controlled.await_saved(|saved| saved.sends[0].policy.code == PolicyCode(0b11));
    controlled.kill_controller();
    let reports = controlled.rig.under_traffic(|edges, _| {
        await_copies(edges);
        edges.egress_agent.kill().unwrap();
        edges.egress_agent.start_again().unwrap();
        edges.ingress_agent.kill().unwrap();
        edges.ingress_agent.start_again().unwrap();
        assert_eq!(sent_code(&edges.ingress().unwrap()), Some(0b11));
        await_copies(edges);
    });
    assert_losses(&reports, 2 * IN_FLIGHT, 2 * IN_FLIGHT);
    // Later decisions of the controller have greater epochs.
    controlled.start_controller_again();
    controlled.fix(0b1);
    controlled.await_code(0b1);
}

#[test]
fn a_flow_that_is_deleted_takes_the_default_route() {
    let Controlled {
        mut rig, control, ..
    } = Controlled::with_flow(Mode::Replicate, None);
    let reports = rig.under_traffic(|edges, _| {
        await_copies(edges);
        control
            .ask(async |client| client.delete_flow(&stage()).await)
            .unwrap();
        edges
            .ingress_agent
            .wait_until("forgot the flow", |status| status.send.is_empty())
            .unwrap();
        edges
            .egress_agent
            .wait_until("forgot the flow", |status| status.receive.is_empty())
            .unwrap();
    });
    assert_losses(&reports, 0, 0);
}

/// Returns the health of a node's path, as known to the controller.
fn health(control: &Control, node: Edge, number: u8) -> Option<PathHealth> {
    let paths = control
        .ask(async |client| client.paths().all().await)
        .unwrap();
    let is_wanted = |path: &Path| path.node.as_str() == node.name() && path.end.number == number;
    paths.into_iter().find(is_wanted)?.health
}

#[test]
fn a_lost_interface_is_reported_and_costs_nothing() {
    let (controlled, flow) = before_the_flow();
    let Controlled {
        mut rig, control, ..
    } = controlled;
    let up = |edge, wanted| health(&control, edge, 2).filter(|health| health.up == wanted);
    // The interface is also missing while the egress gets its first flow.
    let mut begin = Some(|| {
        drop(
            control
                .ask(async |client| client.create_flow(&flow).await)
                .unwrap(),
        )
    });
    let reports = rig.under_traffic(|edges, lab| {
        for edge in [Edge::Egress, Edge::Ingress] {
            wait("a report of the path", || up(edge, true));
            unplugged(lab, edge, || {
                wait("a report of the path that is down", || up(edge, false));
                begin.take().into_iter().for_each(|begin| begin());
                let goes_on = |status: &hawser_agent::Status| received_code(status) == Some(0b11);
                edges
                    .egress_agent
                    .wait_until("received the flow", goes_on)
                    .unwrap();
            });
            wait("a report of the path that is back", || up(edge, true));
            await_copies(edges);
        }
    });
    assert_losses(&of_the_flow(&reports), 0, 0);
}

#[test]
fn a_lost_next_hop_is_reported_and_costs_nothing() {
    let Controlled {
        mut rig, control, ..
    } = Controlled::with_flow(Mode::Replicate, None);
    let health = |number| health(&control, Edge::Ingress, number);
    let round_trip = |number| health(number).and_then(|health| health.rtt_us);
    wait("the round-trip times", || round_trip(1).zip(round_trip(2)));
    let reports = rig.under_traffic(|edges, lab| {
        await_copies(edges);
        lab.network().ip("link set in2 nomaster").unwrap();
        wait("a report of the silent path", || {
            health(2).filter(|health| health.rtt_us.is_none())
        });
        lab.ingress().ip("link set path2 down").unwrap();
        wait("a report of the path that is down", || {
            health(2).filter(|health| !health.up)
        });
        assert!(health(1).is_some_and(|health| health.up && health.rtt_us.is_some()));
    });
    assert_losses(&of_the_flow(&reports), 0, 0);
}

#[test]
fn a_revoked_node_keeps_policies_until_enrolled_again() {
    let Controlled {
        mut rig, control, ..
    } = Controlled::with_flow(Mode::Replicate, None);
    let ingress = "ingress".parse().unwrap();
    control
        .ask(async |client| client.revoke_node(&ingress).await)
        .unwrap();
    let status = rig
        .edges
        .ingress_agent
        .wait_until("was refused", |status| state(status) == "refused")
        .unwrap();
    assert_eq!(sent_code(&status), Some(0b11));
    rig.edges
        .ingress_agent
        .wait_until_logged("THE CONTROLLER REFUSES THIS NODE")
        .unwrap();
    control
        .enrol("ingress", &rig.file("identity").join("ingress"))
        .unwrap();
    rig.edges
        .ingress_agent
        .wait_until("came back", |status| state(status) == "connected")
        .unwrap();
    let has_flow = |status: &hawser_agent::Status| !status.receive.is_empty();
    rig.edges
        .egress_agent
        .wait_until("accepts its packets again", has_flow)
        .unwrap();
    let reports = rig.under_traffic(|edges, _| await_copies(edges));
    assert_losses(&of_the_flow(&reports), 0, 0);
}
