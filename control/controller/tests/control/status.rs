//! The status of a flow: every condition with each of its reasons.

use crate::rig::{Caller, Identity, Rig, config, flow};
use axum::http::StatusCode;
use serde_json::{Value, json};

/// Returns the status and the reason of a condition of the flow `stage`.
async fn condition(rig: &Rig, kind: &str) -> (String, String) {
    let answer = rig.get("/v1/flows/stage/status").await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let conditions = answer.body["conditions"].as_array().unwrap();
    assert_eq!(conditions.last().unwrap()["type"], "Protected");
    let found = conditions.iter().find(|found| found["type"] == kind);
    let found = found.unwrap_or_else(|| panic!("{kind}: {conditions:?}"));
    assert!(!found["message"].as_str().unwrap().is_empty(), "{found}");
    let text = |key: &str| found[key].as_str().unwrap().to_owned();
    (text("status"), text("reason"))
}

/// Checks conditions, written as `KIND STATUS REASON`.
async fn expect(rig: &Rig, conditions: &[&str]) {
    for wanted in conditions {
        let kind = wanted.split(' ').next().unwrap();
        let (status, reason) = condition(rig, kind).await;
        assert_eq!(format!("{kind} {status} {reason}"), *wanted);
    }
}

/// Registers a node with paths of these numbers.
async fn register(rig: &Rig, node: &Identity, numbers: &[u8]) {
    let end = |number: &u8| json!({ "number": number, "interface": format!("p{number}"), "local": "192.0.2.1", "remote": "192.0.2.2" });
    let paths: Vec<Value> = numbers.iter().map(end).collect();
    let body = json!({ "version": "1", "paths": paths });
    let path = format!("/v1/nodes/{}/registration", node.name);
    let answer = rig.call(Caller::Node(node), "PUT", &path, Some(body)).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

/// Reports as the ingress with these paths: up, and the round-trip time.
async fn report_as_ingress(
    rig: &Rig,
    ingress: &Identity,
    epoch: u32,
    packets: u64,
    paths: &[(bool, Option<u32>)],
) {
    let health: Vec<Value> = (1..)
        .zip(paths)
        .map(|(number, (up, rtt_us))| json!({ "number": number, "up": up, "rtt_us": rtt_us, "dropped_by_device": 0 }))
        .collect();
    let send = json!({ "flow": "stage", "epoch": epoch, "code": 3, "packets": packets, "bytes": 0, "sent_bytes": 0 });
    let report =
        json!({ "revision": revision(rig, ingress).await, "paths": health, "sends": [send] });
    let answer = rig.report(ingress, report).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

/// Reports as the egress with copies that arrived on these paths.
async fn report_as_egress(rig: &Rig, egress: &Identity, arrivals: &[u8]) {
    let paths: Vec<Value> = arrivals
        .iter()
        .map(|number| json!({ "number": number, "arrivals": 9, "first": 5, "only_copy": 1, "missing": 0 }))
        .collect();
    let receive = json!({ "flow": "stage", "packets": 10, "paths": paths });
    let report = json!({ "revision": revision(rig, egress).await, "receives": [receive] });
    let answer = rig.report(egress, report).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

async fn revision(rig: &Rig, node: &Identity) -> u64 {
    let assignment = rig.stream(node).await.next_of("assignment").await;
    assignment["revision"].as_u64().unwrap()
}

const UP: (bool, Option<u32>) = (true, Some(10_000));

#[tokio::test(flavor = "multi_thread")]
async fn unregistered_nodes_and_unmatched_paths_are_named() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let [ingress, egress] = [rig.enrol("in").await, rig.enrol("out").await];
    let mut limited = flow("replicate", false);
    limited["paths"] = json!([3]);
    rig.post("/v1/flows", limited).await;
    expect(
        &rig,
        &[
            "IngressAlive false NeverRegistered",
            "EgressAlive false NeverRegistered",
            "PathsShared false NoPaths",
            "PathsUp unknown NotReported",
            "Assigned unknown NotReported",
            "EgressReady false Waiting",
            "Triggered true Always",
            "Replicating false DefaultRoute",
            "Arriving unknown NotReplicating",
            "Protected false NeverRegistered",
        ],
    )
    .await;
    let answer = rig.get("/v1/flows/stage/status").await;
    let advice = answer.body["conditions"][0]["message"].as_str().unwrap();
    assert!(
        advice.ends_with("start its agent, it is enrolled"),
        "{advice}"
    );
    register(&rig, &ingress, &[1]).await;
    register(&rig, &egress, &[2]).await;
    expect(
        &rig,
        &[
            "IngressAlive true Alive",
            "EgressAlive true Alive",
            "PathsShared false NoCommonPath",
            "Assigned unknown ReportsElsewhere",
            "Protected false NoCommonPath",
        ],
    )
    .await;
    register(&rig, &ingress, &[1, 2]).await;
    expect(&rig, &["PathsShared false PathsExcluded"]).await;
    rig.put("/v1/flows/stage", flow("replicate", false)).await;
    expect(&rig, &["PathsShared false OnePath"]).await;
    register(&rig, &egress, &[1, 2]).await;
    expect(
        &rig,
        &["PathsShared true Shared", "Protected false DefaultRoute"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_is_protected_when_two_live_paths_deliver() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    report_as_egress(&rig, &egress, &[]).await;
    rig.until(async || rig.policy("stage").await["epoch"] == 2)
        .await;
    expect(
        &rig,
        &[
            "EgressReady true Deduplicating",
            "Assigned unknown ReportsElsewhere",
        ],
    )
    .await;

    report_as_ingress(&rig, &ingress, 1, 0, &[(false, None), UP]).await;
    expect(
        &rig,
        &[
            "PathsUp false PathDown",
            "Assigned true Applied",
            "Replicating false Pending",
        ],
    )
    .await;
    report_as_ingress(&rig, &ingress, 2, 0, &[(true, None), UP]).await;
    expect(
        &rig,
        &[
            "PathsUp false NoAnswer",
            "Replicating false NoPackets",
            "Arriving false NoCopies",
            "Protected false NoAnswer",
        ],
    )
    .await;
    report_as_ingress(&rig, &ingress, 2, 10, &[UP, UP]).await;
    report_as_egress(&rig, &egress, &[2]).await;
    expect(
        &rig,
        &[
            "PathsUp true Up",
            "Replicating true Replicated",
            "Arriving false OnSomePaths",
            "Protected false OnSomePaths",
        ],
    )
    .await;
    report_as_egress(&rig, &egress, &[1, 2]).await;
    expect(
        &rig,
        &["Arriving true OnAllPaths", "Protected true Redundant"],
    )
    .await;
    let status = rig.get("/v1/flows/stage/status").await.body;
    assert_eq!(
        (
            &status["paths"][1]["usage"],
            &status["paths"][1]["received"]["first"]
        ),
        (&json!("taken"), &json!(5))
    );
    assert_eq!(status["policy"], rig.policy("stage").await);
    let events = status["events"].as_array().unwrap();
    assert!(events.iter().any(|event| event["kind"] == "flow_received"));
    assert!(events.len() <= 10 && events.iter().all(|event| event["flow"] == "stage"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_path_of_three_that_fails_does_not_end_the_protection() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(3, flow("replicate", false)).await;
    report_as_egress(&rig, &egress, &[1, 2]).await;
    rig.until(async || rig.policy("stage").await["epoch"] == 2)
        .await;
    report_as_ingress(&rig, &ingress, 2, 10, &[UP, UP, (false, None)]).await;
    expect(
        &rig,
        &[
            "PathsUp false PathDown",
            "Arriving false OnSomePaths",
            "Protected true Redundant",
        ],
    )
    .await;
    report_as_ingress(&rig, &ingress, 2, 10, &[UP, (true, None), (false, None)]).await;
    expect(&rig, &["Protected false PathDown"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_nodes_do_not_share_is_the_reason() {
    let rig = Rig::new().await;
    let nodes = rig.two_nodes(2, flow("replicate", false)).await;
    let state = async |node: &Identity, generation: u64, accepts: Value| {
        let other = if node.name == "in" { "out" } else { "in" };
        let pair = json!({ "node": other, "accepts": accepts });
        let keys = json!({ "keys": [{ "generation": generation, "public": "5e".repeat(32) }], "pairs": [pair] });
        let path = format!("/v1/nodes/{}/keys", node.name);
        let answer = rig.call(Caller::Node(node), "PUT", &path, Some(keys)).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    };
    let why = async || {
        for node in &nodes {
            let report = json!({ "revision": revision(&rig, node).await });
            rig.report(node, report).await;
        }
        let status = rig.get("/v1/flows/stage/status").await.body;
        let assigned = &status["conditions"][4];
        format!("{}: {}", assigned["reason"], assigned["message"]).replace('"', "")
    };
    let [ingress, egress] = &nodes;
    assert!(
        why()
            .await
            .starts_with("NoKey: in has registered no public key")
    );
    state(ingress, 10, json!([])).await;
    assert!(
        why()
            .await
            .starts_with("NoKey: out has registered no public key")
    );
    state(egress, 11, json!([])).await;
    assert!(why().await.starts_with("NoKey: out has not confirmed"));
    state(egress, 11, json!([{ "own": 11, "peer": 10 }])).await;
    assert!(why().await.starts_with("NotApplied: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_cannot_carry_out_is_said_until_it_can() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    rig.report(&egress, json!({ "revision": 1 })).await;
    expect(&rig, &["Assigned false Pending"]).await;
    let missing =
        json!({ "kind": "not_applied", "flow": "stage", "reason": "no [[peer]] is called \"in\"" });
    rig.observe(&egress, missing.clone()).await;
    rig.report(
        &egress,
        json!({ "revision": revision(&rig, &egress).await }),
    )
    .await;
    expect(
        &rig,
        &["Assigned false NotApplied", "Protected false NotApplied"],
    )
    .await;
    let status = rig.get("/v1/flows/stage/status").await.body;
    assert!(
        status["conditions"][4]["message"]
            .as_str()
            .unwrap()
            .contains("[[peer]]"),
        "{status}"
    );
    assert!(
        status["conditions"][4]["since_unix_ms"].is_u64(),
        "{status}"
    );

    report_as_egress(&rig, &egress, &[]).await;
    expect(&rig, &["Assigned false AppliedInPart"]).await;
    report_as_ingress(&rig, &ingress, 1, 0, &[UP, UP]).await;
    // The agent was restarted with another file.
    register(&rig, &egress, &[1, 2, 3]).await;
    expect(&rig, &["Assigned true Applied"]).await;
    rig.observe(&egress, missing).await;
    report_as_egress(&rig, &egress, &[]).await;
    expect(&rig, &["Assigned false AppliedInPart"]).await;
    rig.put("/v1/flows/stage", flow("evidence", false)).await;
    expect(&rig, &["Assigned true Applied"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn trigger_operator_and_mode_decide_whether_a_flow_is_helped() {
    let rig = Rig::new().await;
    let [_, egress] = rig.two_nodes(2, flow("replicate", true)).await;
    expect(
        &rig,
        &["Triggered false NotLate", "Protected false NotLate"],
    )
    .await;
    let late = json!({ "kind": "degraded", "flow": "stage", "since_due_us": 1, "silent_us": 1 });
    rig.observe(&egress, late).await;
    expect(&rig, &["Triggered true Degraded"]).await;
    for (code, reason) in [(0, "DefaultRoute"), (1, "OnePath"), (255, "Stopped")] {
        rig.put("/v1/policies/stage", json!({ "code": code })).await;
        let replicating = format!("Replicating false {reason}");
        expect(&rig, &["Triggered true Operator", &replicating]).await;
    }
    rig.delete("/v1/policies/stage").await;
    rig.put("/v1/flows/stage", flow("single", false)).await;
    expect(
        &rig,
        &["Triggered false ModeSingle", "Protected false ModeSingle"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_node_is_the_reason_before_a_waiting_trigger() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.enrol("in").await;
    rig.enrol("out").await;
    rig.post("/v1/flows", flow("replicate", true)).await;
    expect(
        &rig,
        &["Triggered false NotLate", "Protected false NeverRegistered"],
    )
    .await;
    rig.put("/v1/flows/stage", flow("single", false)).await;
    expect(&rig, &["Protected false ModeSingle"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirected_flow_needs_one_path() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("redirect", false)).await;
    report_as_ingress(&rig, &ingress, 1, 0, &[(true, Some(30_000)), UP]).await;
    report_as_egress(&rig, &egress, &[2]).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b10)
        .await;
    report_as_ingress(&rig, &ingress, 2, 10, &[(true, Some(30_000)), UP]).await;
    expect(
        &rig,
        &[
            "Replicating true Redirected",
            "Arriving true OnAllPaths",
            "Protected true Redirected",
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_reporting_is_lost() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    report_as_egress(&rig, &egress, &[]).await;
    report_as_ingress(&rig, &ingress, 1, 0, &[UP, UP]).await;
    // The embedded store ends the leases of nodes when the controller exits.
    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    expect(
        &rig,
        &[
            "IngressAlive false Lost",
            "EgressAlive false Lost",
            "Protected false Lost",
        ],
    )
    .await;
    let status = rig.get("/v1/flows/stage/status").await.body;
    assert!(
        status["conditions"][0]["since_unix_ms"].is_u64(),
        "{status}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_another_tenants_flow_is_hidden() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("replicate", false)).await;
    rig.tenant("other").await;
    let token = rig
        .post(
            "/v1/tokens",
            json!({ "name": "eyes", "scope": "read", "tenant": "other" }),
        )
        .await;
    let secret = token.body["secret"].as_str().unwrap();
    let answer = rig
        .call(
            Caller::Operator(secret),
            "GET",
            "/v1/flows/stage/status",
            None,
        )
        .await;
    answer.is_problem(404);
    rig.get("/v1/flows/none/status").await.is_problem(404);
}

#[test]
fn the_documentation_lists_every_reason() {
    let documentation = include_str!("../../../../docs/controller.md");
    for reason in hawser_model::status::Reason::ALL {
        let cell = format!("`{}`", reason.name());
        assert!(documentation.contains(&cell), "{cell}");
    }
}
