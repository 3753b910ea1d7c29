//! Paths that the controller makes of the uplinks of two nodes.

use crate::rig::{Caller, Identity, Rig, flow};
use axum::http::StatusCode;
use serde_json::{Value, json};

/// The address of an uplink of a node.
fn address(interface: usize, node: usize) -> String {
    format!("10.{interface}.0.{node}")
}

fn uplink(interface: usize, node: usize) -> Value {
    json!({ "interface": format!("wan{interface}"), "address": address(interface, node) })
}

/// Registers a node with uplinks and paths.
async fn register(
    rig: &Rig,
    node: &Identity,
    uplinks: Vec<Value>,
    paths: Vec<Value>,
) -> StatusCode {
    let path = format!("/v1/nodes/{}/registration", node.name);
    let body = json!({ "version": "1", "paths": paths, "uplinks": uplinks });
    rig.call(Caller::Node(node), "PUT", &path, Some(body))
        .await
        .status
}

/// Reports the pairs of addresses on which the other node answers.
async fn reach(rig: &Rig, node: &Identity, pairs: &[(String, String)]) {
    let ends = |(local, remote): &(String, String)| json!({ "local": local, "remote": remote });
    let reached: Vec<Value> = pairs.iter().map(ends).collect();
    let answer = rig
        .report(node, json!({ "revision": 0, "reached": reached }))
        .await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

/// Reports on both nodes that uplinks with the same number answer.
async fn reach_straight(rig: &Rig, [one, other]: [&Identity; 2], interfaces: &[usize]) {
    for (node, own, far) in [(one, 1, 2), (other, 2, 1)] {
        let interfaces = interfaces.iter();
        let pairs: Vec<_> = interfaces
            .map(|at| (address(*at, own), address(*at, far)))
            .collect();
        reach(rig, node, &pairs).await;
    }
}

/// Waits for the next assignment that has this many discovered paths, and returns them.
async fn await_paths(rig: &Rig, node: &Identity, count: usize) -> Vec<Value> {
    let mut stream = rig.stream(node).await;
    loop {
        let assignment = stream.next_of("assignment").await;
        let paths = assignment["discovery"]["paths"].as_array();
        let paths = paths.cloned().unwrap_or_default();
        if paths.len() == count {
            return paths;
        }
    }
}

async fn with_flow() -> (Rig, Identity, Identity) {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let (ingress, egress) = (rig.enrol("in").await, rig.enrol("out").await);
    let answer = rig.post("/v1/flows", flow("replicate", true)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    (rig, ingress, egress)
}

#[tokio::test(flavor = "multi_thread")]
async fn uplinks_that_answer_become_paths_beside_those_of_the_files() {
    let (rig, ingress, egress) = with_flow().await;
    let written = |number: u8, far: u8| json!({ "number": number, "interface": "wan9", "local": "192.0.2.1", "remote": format!("192.0.2.{far}") });
    let uplinks = |node: usize| vec![uplink(0, node), uplink(1, node), uplink(9, node)];
    register(&rig, &ingress, uplinks(1), vec![written(1, 9)]).await;
    register(&rig, &egress, uplinks(2), vec![]).await;
    reach_straight(&rig, [&ingress, &egress], &[0, 1, 9]).await;
    let paths = await_paths(&rig, &ingress, 2).await;
    let first = json!({ "number": 2, "peer": "out", "interface": "wan0", "local": "10.0.0.1", "remote": "10.0.0.2" });
    assert_eq!(paths[0], first, "path 1 and wan9 are those of the file");
    assert_eq!(
        (&paths[1]["number"], &paths[1]["interface"]),
        (&json!(3), &json!("wan1"))
    );
    let paths = await_paths(&rig, &egress, 2).await;
    assert_eq!(
        (&paths[0]["local"], &paths[0]["remote"]),
        (&json!("10.0.0.2"), &json!("10.0.0.1"))
    );

    let topology = rig.get("/v1/topology").await.body;
    let candidates = topology["candidates"].as_array().unwrap();
    let reasons = |text: &str| {
        let reasons = candidates
            .iter()
            .filter(|candidate| candidate["reason"] == text);
        reasons.count()
    };
    // wan9 of the ingress is not an uplink: it carries a path of the file.
    assert_eq!(
        (candidates.len(), reasons("no answer at in and out")),
        (4, 4),
        "{topology}"
    );

    // Without the flow, the paths go.
    rig.call(
        Caller::Operator(&rig.admin),
        "DELETE",
        "/v1/flows/stage",
        None,
    )
    .await;
    assert!(await_paths(&rig, &ingress, 0).await.is_empty());
    for node in ["in", "out"] {
        let path = format!("/v1/nodes/{node}");
        let answer = rig
            .call(Caller::Operator(&rig.admin), "DELETE", &path, None)
            .await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_takes_a_found_path_when_both_nodes_have_it() {
    let (rig, ingress, egress) = with_flow().await;
    register(&rig, &ingress, vec![uplink(0, 1)], vec![]).await;
    register(&rig, &egress, vec![uplink(0, 2)], vec![]).await;
    reach_straight(&rig, [&ingress, &egress], &[0]).await;
    await_paths(&rig, &ingress, 1).await;
    let end = |own: usize, far: usize| json!({ "number": 1, "interface": "wan0", "local": address(0, own), "remote": address(0, far), "discovered": true });
    let fix = async || {
        rig.put("/v1/policies/stage", json!({ "code": 1 }))
            .await
            .status
    };
    register(&rig, &ingress, vec![uplink(0, 1)], vec![end(1, 2)]).await;
    assert_eq!(
        fix().await,
        StatusCode::UNPROCESSABLE_ENTITY,
        "the egress does not have it yet"
    );
    register(&rig, &egress, vec![uplink(0, 2)], vec![end(2, 1)]).await;
    assert_eq!(fix().await, StatusCode::OK);

    // The node says that it has the path, but the uplink is gone.
    register(&rig, &ingress, vec![], vec![end(1, 2)]).await;
    assert!(await_paths(&rig, &egress, 0).await.is_empty());
    assert_eq!(fix().await, StatusCode::UNPROCESSABLE_ENTITY);
    let events = rig.get("/v1/events?kind=path_withdrawn").await.body;
    let message = events["items"][0]["message"].as_str().unwrap();
    assert!(
        message.ends_with("in has no uplink wan0 with an IPv4 address"),
        "{message}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn uplinks_answers_and_candidates_are_bounded() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let hub = rig.enrol("hub").await;
    let eight = |node: usize| (0..8).map(|at| uplink(at, node)).collect::<Vec<_>>();
    for number in 0..3 {
        let edge = rig.enrol(&format!("edge-{number}")).await;
        assert_eq!(
            register(&rig, &edge, eight(2 + number), vec![]).await,
            StatusCode::NO_CONTENT
        );
        let mut flow = flow("replicate", true);
        flow["name"] = json!(format!("flow-{number}"));
        flow["ingress"] = json!(edge.name);
        flow["egress"] = json!("hub");
        assert_eq!(
            rig.post("/v1/flows", flow).await.status,
            StatusCode::CREATED
        );
    }
    register(&rig, &hub, eight(1), vec![]).await;
    let assignment = rig.stream(&hub).await.next_of("assignment").await;
    let candidates = assignment["discovery"]["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 64);

    let many = (0..17).map(|at| uplink(at, 1)).collect();
    let twice = vec![uplink(0, 1), uplink(0, 2)];
    let group = vec![json!({ "interface": "wan0", "address": "224.0.0.1" })];
    let nameless = vec![json!({ "interface": "", "address": "10.0.0.1" })];
    for uplinks in [many, twice, group, nameless] {
        let status = register(&rig, &hub, uplinks, vec![]).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    let reached: Vec<Value> = (0..65)
        .map(|at| json!({ "local": "10.0.0.1", "remote": address(at, 2) }))
        .collect();
    let answer = rig
        .report(&hub, json!({ "revision": 0, "reached": reached }))
        .await;
    answer.is_problem(422);
}
