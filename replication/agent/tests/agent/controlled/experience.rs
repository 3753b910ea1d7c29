//! An application that reports late frames gets help for its flow, and for no other.

use super::rig::{Controlled, sent_code, stage, to};
use super::trigger::trigger;
use crate::support::hawser;
use hawser_agent::Status;
use hawser_agent::status::ExperienceStatus;
use hawser_model::Name;
use hawser_model::resource::{Flow, Mode};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

/// The socket of the egress.
fn socket(controlled: &Controlled) -> PathBuf {
    controlled.rig.file("egress.sock")
}

/// Reports with the command. Returns whether the report was taken, and what the command said.
fn report(controlled: &Controlled, options: &[&str]) -> (bool, String) {
    let mut command = Command::new(hawser());
    command.args(["report", "--socket"]).arg(socket(controlled));
    let output = command.args(options).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.success(), said)
}

/// Returns the code of the policy of a flow at the ingress.
fn code(status: &Status, flow: &Name) -> Option<u8> {
    let policies = &status.controller.as_ref()?.send;
    let mut policies = policies.values();
    policies
        .find(|policy| policy.flow == *flow)
        .map(|policy| policy.code)
}

#[test]
fn reported_late_frames_bring_copies_of_their_flow_alone() {
    let mut controlled = Controlled::new();
    let trigger = || Some(trigger(&controlled.rig.lab));
    let flow = controlled.flow(Mode::Replicate, trigger());
    let other: Name = "other".parse().unwrap();
    let viewer = controlled.rig.lab.addressing().viewer.clone();
    let liar = Flow {
        name: other.clone(),
        select: to(viewer.v6_prefix()),
        ..controlled.flow(Mode::Replicate, trigger())
    };
    for flow in [&flow, &liar] {
        controlled.control.create_flow(flow).unwrap();
    }
    controlled.await_code(0);

    // It does not know the name of its flow, only the addresses and ports of its socket.
    let mut application = BufReader::new(UnixStream::connect(socket(&controlled)).unwrap());
    let mut say = |line: &str| {
        writeln!(application.get_mut(), "{line}").unwrap();
        let mut answer = String::new();
        application.read_line(&mut answer).unwrap();
        answer
    };
    let packet = format!(
        r#"{{"protocol":"udp","source":"{}:14748","destination":"{}:40000"}}"#,
        controlled.rig.lab.source_v4(),
        controlled.rig.lab.viewer_v4(),
    );
    let good = format!(r#"{{"packet":{packet},"frames":30,"late":0}}"#);
    assert_eq!(say(&good), "{\"taken\":\"stage\"}\n");
    for (wrong, reason) in [
        (
            r#"{"flow":"stages","late":3}"#,
            "no flow of this node is called \\\"stages\\\"",
        ),
        (r#"{"flow":"stage","late":"all"}"#, "expected u32"),
        (
            r#"{"packet":{"protocol":"udp","source":"9.9.9.9:1","destination":"9.9.9.8:1"},"late":3}"#,
            "no flow of this node is known to carry packets such as UDP from 9.9.9.9:1 to 9.9.9.8:1",
        ),
    ] {
        let answer = say(wrong);
        assert!(answer.contains(reason), "{wrong}: {answer}");
    }
    let egress = &mut controlled.rig.edges.egress_agent;
    let counted = |status: &Status| {
        let ExperienceStatus { refused, flows, .. } = &status.experience;
        let mut reported = flows
            .get("received")
            .into_iter()
            .flat_map(|flows| flows.values());
        (refused.get("flow"), refused.get("line")) == (Some(&2), Some(&1))
            && reported.any(|flow| flow.flow == "stage" && flow.reports == 1)
    };
    egress.wait_until("counted the reports", counted).unwrap();

    // The one that lies gets what its flow can have.
    let taken = report(
        &controlled,
        &["--flow", "other", "--late", "30", "--of", "30"],
    );
    assert_eq!(taken, (true, String::new()));
    let is_helped = |status: &Status| code(status, &other) == Some(0b11);
    let ingress = &mut controlled.rig.edges.ingress_agent;
    let status = ingress
        .wait_until("replicated the flow", is_helped)
        .unwrap();
    assert_eq!(sent_code(&status), Some(0), "{stage}", stage = stage());

    let options = [
        "--flow",
        "stage",
        "--late",
        "3",
        "--of",
        "30",
        "--stalled-ms",
        "0",
        "--delay-ms",
        "80",
    ];
    assert_eq!(report(&controlled, &options), (true, String::new()));
    controlled.await_code(0b11);
    let egress = &mut controlled.rig.edges.egress_agent;
    let status = egress.wait_until("showed the newest report", |status| {
        let flows = status.experience.flows.get("received");
        let mut flows = flows.into_iter().flat_map(|flows| flows.values());
        flows.any(|flow| flow.flow == "stage" && flow.newest.delay_ms == Some(80))
    });
    let flows = &status.unwrap().experience.flows["received"];
    let stage = flows.values().find(|flow| flow.flow == "stage").unwrap();
    assert_eq!((stage.reports, stage.frames, stage.late), (2, 60, 3));
    let (taken, said) = report(&controlled, &["--flow", "nobody", "--late", "3"]);
    assert!(
        !taken && said.contains("no flow of this node is called \"nobody\""),
        "{said}"
    );
}
