//! Assignments, policies and signals that cross each other.

use crate::support;

use hawser_model::node::{Assignment, Observation};
use hawser_model::resource::Mode;
use hawser_node::{Message, PolicyWord};
use hawser_units::{FlowId, Instant, PathSet};
use std::time::Duration;
use support::{Agent, PATHS, assignment, policy, receive, send};

fn flow(number: u16) -> FlowId {
    number.try_into().unwrap()
}

fn started() -> Agent {
    let mut agent = Agent::start(Instant::ZERO, None, PATHS);
    agent.connect();
    agent
}

/// An assignment of one flow to send.
fn of_one(revision: u64, number: u16, epoch: u32) -> Assignment {
    assignment(revision, vec![send(number, policy(0, epoch, 1))], vec![])
}

fn assign(agent: &mut Agent, assignment: Assignment) {
    agent.message(Message::Assignment(assignment));
}

fn epoch(agent: &Agent) -> u32 {
    agent.node.assigned_sends().next().unwrap().policy.epoch
}

#[test]
fn an_overtaken_assignment_does_not_undo_a_policy() {
    for (number, new, expected) in [(4, 8, 9), (4, 10, 10), (5, 1, 1)] {
        let mut agent = started();
        assign(&mut agent, of_one(1, 4, 7));
        agent.message(Message::Policy(policy(0, 9, 1)));
        // Another number belongs to a flow that was deleted and created again.
        assign(&mut agent, of_one(2, number, new));
        assert_eq!(epoch(&agent), expected);
        let word = agent.kernel.word(flow(number)).unwrap();
        assert_eq!(word.epoch, expected);
    }
}

#[test]
fn a_controller_that_restarted_counting_replaces_policies() {
    let mut agent = started();
    assign(&mut agent, of_one(7, 4, 9));
    assign(&mut agent, of_one(1, 4, 2));
    assert_eq!(epoch(&agent), 2);
    assert_eq!(agent.kernel.word(flow(4)).unwrap().epoch, 2);
}

fn of_incarnation(name: &str, revision: u64, epoch: u32) -> Assignment {
    let incarnation = Some(name.to_owned());
    Assignment {
        incarnation,
        ..of_one(revision, 4, epoch)
    }
}

#[test]
fn policies_of_a_store_before_it_was_restored_do_not_win() {
    let mut agent = started();
    assign(&mut agent, of_incarnation("before", 7, 9));
    // Revisions of the restored store have overtaken those that the node knows.
    assign(&mut agent, of_incarnation("restored", 12, 2));
    assert_eq!(epoch(&agent), 2);
    assert_eq!(agent.kernel.word(flow(4)).unwrap().epoch, 2);
    let signal = PolicyWord::from(&policy(0, 3, 0b11));
    agent.kernel.signal(agent.now, flow(4), signal);
    agent.read_signals();
    assert_eq!(epoch(&agent), 3, "a signal of the restored store counts");
    assign(&mut agent, of_incarnation("restored", 13, 2));
    assert_eq!(epoch(&agent), 3, "within an incarnation, epochs count");
}

#[test]
fn restarted_counting_replaces_policies_after_a_failure() {
    let mut agent = started();
    assign(&mut agent, of_one(7, 4, 9));
    agent.kernel.is_failing = true;
    assign(&mut agent, of_one(1, 4, 2));
    assert_eq!(agent.kernel.word(flow(4)).unwrap().epoch, 9);
    agent.kernel.is_failing = false;
    assign(&mut agent, of_one(2, 4, 3));
    assert_eq!(agent.kernel.word(flow(4)).unwrap().epoch, 3);
}

#[test]
fn a_signal_from_before_the_restart_changes_nothing() {
    let mut agent = started();
    assign(&mut agent, of_one(7, 4, 9));
    let signal = PolicyWord::from(&policy(0, 10, 0b11));
    agent.kernel.signal(agent.now, flow(4), signal);
    assign(&mut agent, of_one(1, 4, 1));
    agent.read_signals();
    assert_eq!(epoch(&agent), 1);
    agent.message(Message::Policy(policy(0, 2, 0b10)));
    assert_eq!(
        (epoch(&agent), agent.kernel.word(flow(4)).unwrap().epoch),
        (2, 2)
    );
}

#[test]
fn a_failure_to_set_flows_delays_the_report_that_they_are_set() {
    let mut agent = started();
    agent.kernel.is_failing = true;
    let assigned = assignment(
        3,
        vec![],
        vec![receive(4, Mode::Replicate, policy(1, 1, 1))],
    );
    assign(&mut agent, assigned.clone());
    agent.advance(Duration::from_secs(1));
    assert_eq!(agent.in_flight.as_ref().unwrap().revision, 0);
    agent.acknowledge();
    agent.kernel.is_failing = false;
    assign(&mut agent, assigned);
    agent.advance(Duration::ZERO);
    assert_eq!(agent.in_flight.as_ref().unwrap().revision, 3);
}

#[test]
fn flows_that_could_not_be_set_are_set_again_ever_more_rarely() {
    let mut agent = started();
    agent.kernel.is_failing = true;
    let received = receive(4, Mode::Replicate, policy(1, 1, 1));
    assign(&mut agent, assignment(3, vec![], vec![received]));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let before = agent.now;
        let failures = agent.kernel.failures;
        while agent.kernel.failures == failures {
            agent.advance(Duration::from_millis(500));
            agent.acknowledge();
        }
        pauses.push(agent.now.saturating_since(before).as_secs());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    agent.kernel.is_failing = false;
    agent.advance(Duration::from_secs(60));
    assert_eq!(agent.kernel.received(), [flow(4)]);
    agent.acknowledge();
    agent.advance(Duration::from_secs(5));
    assert_eq!(agent.in_flight.as_ref().unwrap().revision, 3);
}

#[test]
fn copies_of_a_removed_flow_are_deduplicated_for_a_while() {
    let mut agent = started();
    let received = |number| receive(number, Mode::Replicate, policy(number, 1, 1));
    assign(
        &mut agent,
        assignment(1, vec![], vec![received(3), received(4)]),
    );
    assign(&mut agent, assignment(2, vec![], vec![received(4)]));
    assert_eq!(agent.kernel.received(), [flow(3), flow(4)]);
    agent.advance(Duration::from_millis(4_999));
    assert_eq!(agent.kernel.received(), [flow(3), flow(4)]);
    agent.advance(Duration::from_millis(1));
    assert_eq!(agent.kernel.received(), [flow(4)]);
}

#[test]
fn a_policy_with_an_unknown_path_is_applied_and_reported() {
    let mut agent = started();
    assign(&mut agent, of_one(1, 4, 1));
    agent.message(Message::Policy(policy(0, 2, 0b101)));
    assert_eq!(epoch(&agent), 2);
    let reason = "this node has no path 3; the flow uses the other paths".to_owned();
    let refused = Observation::NotApplied {
        flow: support::name(0),
        reason,
    };
    assert!(agent.made.contains(&refused), "{:?}", agent.made);
    agent.set_paths(PathSet::from_bits(0b111));
    assert!(agent.node.refused().is_empty());
}

#[test]
fn the_first_copy_under_a_policy_is_reported() {
    let mut agent = started();
    assign(&mut agent, of_one(1, 4, 1));
    let path_2 = |count: u64| move |_, path| if u8::from(path) == 1 { count } else { 9 };
    agent.now += Duration::from_secs(1);
    agent.node.handle_copies(agent.now, path_2(7));
    agent.message(Message::Policy(policy(0, 2, 0b11)));
    for (millis, copies) in [(1, 7), (3, 8), (1, 9)] {
        agent.now += Duration::from_millis(millis);
        agent.node.handle_copies(agent.now, path_2(copies));
    }
    agent.advance(Duration::ZERO);
    let first: Vec<_> = (agent.made.iter())
        .filter(|made| matches!(made, Observation::FirstReplica { .. }))
        .collect();
    let expected = [(1, 1_000_000), (2, 4_000)].map(|(epoch, after_us)| {
        let flow = support::name(0);
        Observation::FirstReplica {
            flow,
            epoch,
            after_us,
        }
    });
    assert_eq!(first, expected.iter().collect::<Vec<_>>());
}

#[test]
fn rejected_signals_are_reported_once_by_reason() {
    let mut agent = started();
    assign(&mut agent, of_one(1, 4, 5));
    for epoch in [5, 4] {
        let signal = PolicyWord::from(&policy(0, epoch, 1));
        agent.kernel.signal(agent.now, flow(4), signal);
    }
    agent.read_signals();
    agent.node.handle_rejected_signals(agent.now, [("tag", 3)]);
    agent.node.handle_rejected_signals(agent.now, [("tag", 5)]);
    agent.advance(Duration::ZERO);
    let reported = &agent.in_flight.as_ref().unwrap().observations;
    let refused: Vec<_> = (reported.iter())
        .filter_map(|observation| match observation {
            Observation::SignalRefused { reason, count } => Some((reason.as_str(), *count)),
            _ => None,
        })
        .collect();
    assert_eq!(refused, [("tag", 5), ("epoch", 1)]);
}

#[test]
fn a_lost_report_is_repeated_over_the_next_connection() {
    let mut agent = started();
    assign(&mut agent, of_one(1, 4, 5));
    agent.advance(Duration::ZERO);
    let lost = agent.in_flight.clone().unwrap().observations;
    assert!(!lost.is_empty());
    agent.disconnect();
    agent.advance(Duration::from_secs(10));
    assert_eq!(agent.in_flight, None);
    agent.connect();
    agent.advance(Duration::ZERO);
    let repeated = agent.in_flight.clone().unwrap().observations;
    assert_eq!(repeated[..lost.len()], lost);
}
