//! Transparent flows that the controller assigns.

use super::rig::Controlled;
use crate::rig::assert_losses;
use hawser_agent::{Status, generate_key};
use hawser_control::resource::{Flow, Mode};
use hawser_testbed::traffic::Family;
use std::fs;

/// The egress has another key than the ingress, so that it would reject every tagged copy.
#[test]
fn copies_of_a_transparent_flow_are_sent_as_they_are_and_deduplicated() {
    let mut controlled = Controlled::new();
    let agent = &mut controlled.rig.edges.egress_agent;
    assert!(agent.terminate().unwrap().success());
    generate_key(&controlled.rig.directory.path().join("other.key")).unwrap();
    let file = agent.configuration_file();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("pair.key"), "{text}");
    fs::write(&file, text.replace("pair.key", "other.key")).unwrap();
    agent.start_again().unwrap();
    controlled.await_connection();

    let flow = Flow {
        transparent: true,
        ..controlled.flow(Mode::Replicate, None)
    };
    controlled.control.create_flow(&flow).unwrap();
    controlled.await_code(0b11);
    let reports = controlled.rig.under_traffic(|edges, lab| {
        edges
            .egress_agent
            .wait_until("dropped second copies", |status| duplicates(status) > 100)
            .unwrap();
        lab.network().ip("link set in2 nomaster").unwrap();
    });
    let of_the_flow: Vec<_> = reports
        .into_iter()
        .filter(|report| report.stream.family == Family::Ipv4)
        .collect();
    assert_losses(&of_the_flow, 0, 0);
}

/// Returns the number of second copies that were dropped.
fn duplicates(status: &Status) -> u64 {
    let paths = status.receive.values().flat_map(|flow| flow.values());
    paths.map(|path| path.duplicates).sum()
}
