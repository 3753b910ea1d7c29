//! Paths that do not deliver are detected from the packets, and pruned.

use super::rig::{Controlled, received_code, sent_code};
use crate::rig::assert_losses;
use hawser_model::resource::Mode;
use hawser_testbed::traffic::Family;

/// Cuts the second path while packets are in flight, and waits until the flow no longer uses it.
fn leaves_a_path_that_was_cut(mode: Mode) {
    let mut controlled = Controlled::with_flow(mode, None);
    let reports = controlled.rig.under_traffic(|edges, lab| {
        lab.network().ip("link set in2 nomaster").unwrap();
        let left = |status: &hawser_agent::Status| sent_code(status) == Some(0b1);
        edges
            .ingress_agent
            .wait_until("left the path", left)
            .unwrap();
        let has_policy = |status: &hawser_agent::Status| received_code(status) == Some(0b1);
        let status = edges
            .egress_agent
            .wait_until("received the policy", has_policy)
            .unwrap();
        let judged = status
            .controller
            .unwrap()
            .receive
            .into_values()
            .next()
            .unwrap();
        assert_eq!(judged.policy.reason, "judged");
    });
    let of_the_flow: Vec<_> = reports
        .into_iter()
        .filter(|report| report.stream.family == Family::Ipv4)
        .collect();
    assert_losses(&of_the_flow, 0, 0);
}

/// Cuts the path on which the flow begins, and waits until it takes the other one.
#[test]
fn auto_takes_another_path_when_its_first_is_cut() {
    let mut controlled = Controlled::new();
    let flow = controlled.flow(Mode::Auto, None);
    controlled.control.create_flow(&flow).unwrap();
    controlled.await_code(0b1);
    controlled.rig.under_traffic(|edges, lab| {
        lab.network().ip("link set in1 nomaster").unwrap();
        let takes_other =
            |status: &hawser_agent::Status| sent_code(status).is_some_and(|code| code & 0b10 != 0);
        edges
            .ingress_agent
            .wait_until("took the other path", takes_other)
            .unwrap();
    });
}

#[test]
fn algorithm_1_leaves_a_path_that_was_cut() {
    leaves_a_path_that_was_cut(Mode::Successive);
}

#[test]
fn evidence_leaves_a_path_that_was_cut() {
    leaves_a_path_that_was_cut(Mode::Evidence);
}
