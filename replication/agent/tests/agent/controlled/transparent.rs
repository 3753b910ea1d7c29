//! Transparent flows that the controller assigns.

use super::rig::{Controlled, with_key_file};
use crate::rig::assert_losses;
use hawser_agent::{Status, generate_key};
use hawser_model::resource::{Flow, Mode};
use hawser_testbed::traffic::Family;

/// The egress has another key file than the ingress, so that it would reject every tagged copy.
#[test]
fn transparent_copies_are_unchanged_and_deduplicated() {
    let mut controlled = Controlled::new();
    controlled.await_connection();
    for key in ["ingress.key", "egress.key"] {
        generate_key(&controlled.rig.file(key)).unwrap();
    }
    let edges = &mut controlled.rig.edges;
    edges
        .egress_agent
        .reconfigure(with_key_file("ingress", "egress.key"))
        .unwrap();
    edges
        .ingress_agent
        .reconfigure(with_key_file("egress", "ingress.key"))
        .unwrap();

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
