//! Public keys of nodes: who gets them, who may state them, and what withdraws them.

use crate::rig::{Answer, Caller, Identity, Rig, flow};
use axum::http::StatusCode;
use serde_json::{Value, json};

fn key(generation: u64, digit: &str) -> Value {
    json!({ "generation": generation, "public": digit.repeat(64) })
}

async fn state(rig: &Rig, node: &Identity, keys: Value) -> Answer {
    let path = format!("/v1/nodes/{}/keys", node.name);
    rig.call(Caller::Node(node), "PUT", &path, Some(keys)).await
}

async fn states(rig: &Rig, node: &Identity, keys: Value) {
    let answer = state(rig, node, keys).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

/// Returns the keys in the assignment of a node.
async fn assigned(rig: &Rig, node: &Identity) -> Value {
    let assignment = rig.stream(node).await.next_of("assignment").await;
    assignment["keys"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_nodes_that_share_a_flow_get_a_public_key() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    let other = rig.enrol("other").await;
    let pairs = json!([{ "node": "out", "accepts": [{ "own": 7, "peer": 8 }], "sends": null }, { "node": "other" }]);
    states(
        &rig,
        &ingress,
        json!({ "keys": [key(7, "5")], "pairs": pairs }),
    )
    .await;
    let keys = assigned(&rig, &egress).await;
    assert_eq!(keys["peers"].as_array().unwrap().len(), 1, "{keys}");
    let peer = &keys["peers"][0];
    assert_eq!(
        (&peer["node"], &peer["keys"]),
        (&json!("in"), &json!([key(7, "5")]))
    );
    assert_eq!(peer["pair"]["accepts"], json!([{ "own": 7, "peer": 8 }]));
    let incarnation = peer["incarnation"].as_str().unwrap();
    assert_eq!(incarnation.len(), 32);
    assert_eq!(assigned(&rig, &ingress).await["incarnation"], incarnation);
    let keys = assigned(&rig, &other).await;
    assert_eq!(keys["peers"], json!([]));
    let node = rig.get("/v1/nodes/in").await.body;
    assert_eq!(node["keys"], json!([key(7, "5")]));
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_keys_reach_peers_and_revoked_ones_are_withdrawn() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    let mut stream = rig.stream(&egress).await;
    let keys_of = |assignment: Value| assignment["keys"]["peers"][0]["keys"].clone();
    assert_eq!(keys_of(stream.next_of("assignment").await), json!([]));
    states(&rig, &ingress, json!({ "keys": [key(7, "5")] })).await;
    while keys_of(stream.next_of("assignment").await) != json!([key(7, "5")]) {}
    rig.delete("/v1/nodes/in/certificate").await;
    while keys_of(stream.next_of("assignment").await) != json!([]) {}
    state(&rig, &ingress, json!({ "keys": [key(7, "5")] }))
        .await
        .is_problem(403);

    // The same key of a node that was enrolled again belongs to another incarnation.
    let before = assigned(&rig, &egress).await["peers"][0]["incarnation"].clone();
    let ingress = rig.enrol("in").await;
    states(&rig, &ingress, json!({ "keys": [key(7, "5")] })).await;
    let after = assigned(&rig, &egress).await["peers"][0].clone();
    assert_eq!(after["keys"], json!([key(7, "5")]));
    assert_ne!(after["incarnation"], before);

    rig.delete("/v1/flows/stage").await;
    assert_eq!(assigned(&rig, &egress).await["peers"], json!([]));
    rig.delete("/v1/nodes/in").await;
    let ingress = rig.enrol("in").await;
    assert_eq!(rig.get("/v1/nodes/in").await.body["keys"], json!([]));
    assert_eq!(assigned(&rig, &ingress).await["least_generation"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_enrolment_keeps_key_and_incarnation() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    states(&rig, &ingress, json!({ "keys": [key(7, "5")] })).await;
    let before = assigned(&rig, &egress).await;
    rig.enrol("in").await;
    assert_eq!(assigned(&rig, &egress).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_makes_a_node_replace_its_key() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("replicate", false)).await;
    rig.post("/v1/nodes/in/rekey", json!({}))
        .await
        .is_problem(409);
    rig.post("/v1/nodes/nobody/rekey", json!({}))
        .await
        .is_problem(404);
    states(&rig, &ingress, json!({ "keys": [key(7, "5")] })).await;
    let rekeyed = rig.post("/v1/nodes/in/rekey", json!({})).await;
    assert_eq!(rekeyed.status, StatusCode::NO_CONTENT);
    assert_eq!(assigned(&rig, &ingress).await["least_generation"], 8);
    states(
        &rig,
        &ingress,
        json!({ "keys": [key(7, "5"), key(12, "6")] }),
    )
    .await;
    states(&rig, &ingress, json!({ "keys": [key(12, "6")] })).await;
    // A node that was installed again with a wrong clock has to make a newer key.
    states(&rig, &ingress, json!({ "keys": [key(3, "7")] })).await;
    assert_eq!(assigned(&rig, &ingress).await["least_generation"], 12);
    let events = rig.get("/v1/events?kind=node_keys_changed").await.body;
    assert_eq!(events["items"].as_array().unwrap().len(), 4, "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_states_only_its_own_keys_and_only_valid_ones() {
    let rig = Rig::new().await;
    let [ingress, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    let keys = json!({ "keys": [key(7, "5")] });
    rig.call(
        Caller::Node(&egress),
        "PUT",
        "/v1/nodes/in/keys",
        Some(keys.clone()),
    )
    .await
    .is_problem(403);
    rig.call(Caller::Anonymous, "PUT", "/v1/nodes/in/keys", Some(keys))
        .await
        .is_problem(401);
    let twice = json!([{ "node": "out" }, { "node": "out" }]);
    let three = json!([{ "own": 1, "peer": 1 }, { "own": 2, "peer": 1 }, { "own": 3, "peer": 1 }]);
    for wrong in [
        json!({ "keys": [] }),
        json!({ "keys": [key(7, "5"), key(8, "6"), key(9, "7")] }),
        json!({ "keys": [key(7, "5"), key(9, "6")] }),
        json!({ "keys": [key(8, "5"), key(7, "6")] }),
        json!({ "keys": [key(7, "g")] }),
        json!({ "keys": [{ "generation": 7, "public": "5e" }] }),
        json!({ "keys": [key(7, "5")], "pairs": twice }),
        json!({ "keys": [key(7, "5")], "pairs": [{ "node": "out", "accepts": three }] }),
    ] {
        state(&rig, &ingress, wrong).await.is_problem(422);
    }
}
