//! The time of a node's last report, and the detection of its loss, across restarts of the
//! controller.

use crate::rig::{Identity, Rig, config};
use crate::store_with_delay::SlowStore;
use axum::http::StatusCode;
use hawser_controller::{Config, Server};
use serde_json::json;
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn short_lease(directory: &TempDir) -> Config {
    let mut config = config(directory);
    // So long that a busy machine reports in time.
    config.nodes.lease_s = 5;
    config.nodes.report_every_ms = 500;
    config.limits.node_requests_per_s = 1e6;
    config
}

async fn lost(rig: &Rig, node: &str) -> usize {
    let events = rig.get("/v1/events?limit=1000").await.body;
    let is_lost =
        |event: &&serde_json::Value| event["kind"] == "node_lost" && event["node"] == node;
    events["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_lost)
        .count()
}

async fn reports(rig: &Rig, node: &Identity) {
    assert_eq!(
        rig.report(node, json!({ "revision": 0 })).await.status,
        StatusCode::NO_CONTENT
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_died_with_its_controller_is_lost_once() {
    let directory = tempfile::tempdir().unwrap();
    let rig = Rig::start(short_lease(&directory), directory).await;
    rig.tenant("acme").await;
    let [dead, back] = [rig.enrol("dead").await, rig.enrol("back").await];
    rig.invite("never").await;
    rig.register(&dead, 1).await;
    rig.register(&back, 1).await;
    reports(&rig, &dead).await;
    let seen = rig.get("/v1/nodes/dead").await.body["seen_unix_ms"].clone();
    assert!(seen.is_u64(), "{seen}");

    let directory = rig.stop().await;
    let rig = Rig::start(short_lease(&directory), directory).await;
    reports(&rig, &back).await;
    let node = rig.get("/v1/nodes/dead").await.body;
    assert_eq!(
        (&node["alive"], &node["seen_unix_ms"]),
        (&json!(false), &seen),
        "it was seen"
    );
    rig.until(async || {
        reports(&rig, &back).await;
        lost(&rig, "dead").await == 1
    })
    .await;
    assert_eq!(lost(&rig, "back").await, 0, "it came back in time");

    // The other node is lost now; by then, the loss of the first node would have been reported a
    // second time.
    let directory = rig.stop().await;
    let rig = Rig::start(short_lease(&directory), directory).await;
    rig.until(async || lost(&rig, "back").await == 1).await;
    assert_eq!(lost(&rig, "dead").await, 1);
    assert_eq!(rig.get("/v1/nodes/dead").await.body["seen_unix_ms"], seen);
    let never = rig.get("/v1/nodes/never").await.body;
    assert!(
        never["seen_unix_ms"].is_null() && lost(&rig, "never").await == 0,
        "{never}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_made_again_was_never_seen() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    rig.register(&node, 2).await;
    assert_eq!(
        rig.delete("/v1/nodes/in").await.status,
        StatusCode::NO_CONTENT
    );
    rig.invite("in").await;
    let again = rig.get("/v1/nodes/in").await.body;
    assert_eq!(
        (&again["alive"], &again["seen_unix_ms"], &again["paths"]),
        (&json!(false), &json!(null), &json!([]))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_the_lease_of_their_controller() {
    const NODES: usize = 20;
    let directory = tempfile::tempdir().unwrap();
    let (store, config) = (SlowStore::open(&directory), short_lease(&directory));
    let lease = Duration::from_secs(config.nodes.lease_s.into());
    let server = Server::start_on(store.clone(), config).await.unwrap();
    let rig = Rig::of(server, directory).await;
    rig.tenant("acme").await;
    let mut nodes = Vec::new();
    for index in 0..NODES {
        let node = rig.enrol(&format!("edge-{index}")).await;
        rig.register(&node, 1).await;
        nodes.push(node);
    }
    let end = Instant::now() + 2 * lease;
    while Instant::now() < end {
        for node in &nodes {
            reports(&rig, node).await;
        }
        tokio::time::sleep(lease / 8).await;
    }
    let alive = rig.get("/v1/nodes?state=alive").await.body;
    assert_eq!(alive["items"].as_array().unwrap().len(), NODES);
    assert_eq!(
        store.leases.lock().len(),
        2,
        "the leadership's and the controller's"
    );
    rig.stop().await;
}
