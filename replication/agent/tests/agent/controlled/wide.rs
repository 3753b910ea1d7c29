use super::rig::{Controlled, state, to};
use crate::rig::exchange;
use hawser_agent::Status;
use hawser_model::resource::{Flow, Mode};
use hawser_testbed::edges::Controller as _;
use hawser_testbed::topology::Edge;
use std::fs;
use std::net::SocketAddr;

/// The port through which nodes are managed.
const SSH: u16 = 22;

#[test]
fn replicating_everything_cuts_no_node_off() {
    let mut controlled = Controlled::new();
    let everything = Flow {
        select: to("0.0.0.0/0".to_owned()),
        ..controlled.flow(Mode::Replicate, None)
    };
    // Includes the traffic of the ingress edge to its controller.
    let by = controlled.control.node(Edge::Ingress).device.clone();
    let agent = &mut controlled.rig.edges.ingress_agent;
    assert!(agent.terminate().unwrap().success());
    let file = agent.configuration_file();
    let text = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        text.replacen("transit = ", &format!("local = [{by:?}]\ntransit = "), 1),
    )
    .unwrap();
    agent.start_again().unwrap();
    controlled.await_connection();
    controlled.control.create_flow(&everything).unwrap();
    controlled.await_code(0b11);

    let rig = &mut controlled.rig;
    let own = rig.lab.addressing().source.far.v4;
    exchange(
        rig.lab.source(),
        rig.lab.ingress(),
        SocketAddr::new(own.into(), SSH),
    );
    let passed = |status: &Status, reason: &str| {
        status
            .not_replicated
            .get(reason)
            .is_some_and(|count| *count > 0)
    };
    let spared =
        |status: &Status| passed(status, "passed_local") && passed(status, "passed_management");
    rig.edges
        .ingress_agent
        .wait_until("did not replicate its own traffic", spared)
        .unwrap();

    // It starts with its last assignment, and must still reach its controller.
    assert!(rig.edges.ingress_agent.terminate().unwrap().success());
    rig.edges.ingress_agent.start_again().unwrap();
    let connected = rig
        .edges
        .ingress_agent
        .wait_until("connected", |status| state(status) == "connected");
    assert!(connected.unwrap().send.len() == 1);
    controlled.fix(0b01);
    controlled.await_code(0b01);
}
