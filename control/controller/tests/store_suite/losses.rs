//! Nodes that stop reporting while controllers stop and start.

use super::controllers::Pair;
use super::{Subject, in_time};
use hawser_controller::Config;
use hawser_controller::store::{Store, Write};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// So long that a busy machine renews it in time.
fn short_lease(config: &mut Config) {
    config.nodes.lease_s = 5;
    config.nodes.report_every_ms = 500;
}

async fn start(state: TempDir, store: &Arc<dyn Store>) -> Pair {
    let pair = Pair::start_in(state, store, short_lease).await;
    pair.leads().await;
    pair
}

async fn with_a_node(store: &Arc<dyn Store>) -> Pair {
    let pair = start(TempDir::new().expect("a directory"), store).await;
    let (status, _) = pair
        .call(0, "POST", "/v1/tenants", Some(json!({ "name": "acme" })))
        .await;
    assert_eq!(status, 201);
    pair.register(0, "edge").await;
    pair
}

async fn losses(pair: &Pair, node: &str) -> usize {
    let (status, events) = pair.call(0, "GET", "/v1/events?limit=1000", None).await;
    assert_eq!(status, 200);
    let is_loss = |event: &&Value| event["kind"] == "node_lost" && event["node"] == node;
    events["items"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(is_loss)
        .count()
}

async fn is_lost(pair: &Pair, node: &str) {
    in_time(async {
        while losses(pair, node).await == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

async fn lease_is_over(store: &Arc<dyn Store>, node: &str) {
    in_time(async {
        while store
            .get(&format!("alive/{node}"))
            .await
            .expect("read")
            .is_some()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

pub(crate) async fn a_node_lost_without_a_controller_is_reported_once(subject: &impl Subject) {
    let store = subject.store();
    let pair = with_a_node(&store).await;
    let state = pair.stop().await;
    lease_is_over(&store, "edge").await;

    let pair = start(state, &store).await;
    let (_, node) = pair.call(0, "GET", "/v1/nodes/edge", None).await;
    assert_eq!(node["alive"], false);
    assert!(node["seen_unix_ms"].is_u64(), "{node}");
    is_lost(&pair, "edge").await;

    // A node that is lost later measures the time, across another change of controllers.
    pair.register(1, "clock").await;
    let pair = start(pair.stop().await, &store).await;
    is_lost(&pair, "clock").await;
    assert_eq!(losses(&pair, "edge").await, 1);
    pair.stop().await;
}

pub(crate) async fn a_node_that_is_lost_when_the_leader_ends_is_reported_once(
    subject: &impl Subject,
) {
    let store = subject.store();
    let mut pair = with_a_node(&store).await;
    pair.stop_leader().await;
    lease_is_over(&store, "edge").await;
    is_lost(&pair, "edge").await;
    pair.leads().await;
    pair.register(0, "clock").await;
    is_lost(&pair, "clock").await;
    assert_eq!(losses(&pair, "edge").await, 1);
    pair.stop().await;
}

pub(crate) async fn a_node_that_moves_to_another_controller_is_not_lost(subject: &impl Subject) {
    let store = subject.store();
    let pair = start(TempDir::new().expect("a directory"), &store).await;
    let tenant = Some(json!({ "name": "acme" }));
    assert_eq!(pair.call(0, "POST", "/v1/tenants", tenant).await.0, 201);
    let moving = pair.register(0, "moving").await;
    pair.register(0, "silent").await;
    let report = async || {
        let report = Some(json!({ "revision": 0 }));
        let path = "/v1/nodes/moving/reports";
        assert_eq!(pair.call_as(&moving, 1, "POST", path, report).await.0, 204);
    };
    // The loss of the other node, at the same time, measures the time.
    in_time(async {
        while losses(&pair, "silent").await == 0 {
            report().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let (_, node) = pair.call(0, "GET", "/v1/nodes/moving", None).await;
    assert_eq!(node["alive"], true);
    assert_eq!(losses(&pair, "moving").await, 0);
    pair.stop().await;
}

pub(crate) async fn a_node_whose_announcement_was_interrupted_is_lost(subject: &impl Subject) {
    let store = subject.store();
    let pair = with_a_node(&store).await;
    is_lost(&pair, "edge").await;
    // The request that wrote this ended before it noted the node.
    let alive = json!({ "controller": "one", "since_unix_ms": 1 });
    let seen = json!({ "at_unix_ms": 1, "is_alive": true });
    let writes = [("alive", alive), ("seen", seen)]
        .map(|(kind, value)| Write::put(format!("{kind}/edge"), value.to_string().into_bytes()));
    store.commit(writes.into()).await.expect("written");
    in_time(async {
        while losses(&pair, "edge").await < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let (_, node) = pair.call(1, "GET", "/v1/nodes/edge", None).await;
    assert_eq!(node["alive"], false);
    pair.stop().await;
}
