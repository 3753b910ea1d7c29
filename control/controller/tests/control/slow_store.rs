//! A store that does not respond in time.

use crate::rig::{Rig, config};
use crate::store_with_delay::SlowStore;
use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use hawser_controller::store::{Embedded, Store};
use hawser_controller::{Config, Server};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

#[tokio::test]
async fn a_slow_store_is_not_the_fault_of_the_client() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory);
    // Longer than any other request takes on a busy machine.
    config.limits.request_timeout_s = 6;
    let store = SlowStore::open(&directory);
    let server = Server::start_on(store.clone(), config).await.unwrap();
    let rig = Rig::of(server, directory).await;
    store.slow_down(Duration::MAX);
    let answer = rig.post("/v1/tenants", json!({ "name": "acme" })).await;
    answer.is_problem(503);
    assert!(answer.headers.contains_key(RETRY_AFTER));
    let metrics = rig.get("/metrics").await.body;
    let slow = r#"hawser_controller_refused_total{reason="slow_store"} 1"#;
    assert!(metrics.as_str().unwrap().contains(slow));
    store.slow_down(Duration::ZERO);
    rig.stop().await;
}

#[tokio::test]
async fn a_controller_whose_store_takes_no_changes_is_not_ready() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(&directory);
    let store = SlowStore::open(&directory);
    let server = Server::start_on(store.clone(), config).await.unwrap();
    let rig = Rig::of(server, directory).await;
    rig.until(async || rig.get("/readyz").await.status == StatusCode::OK)
        .await;
    store.fail(Some("no space left on device"));
    let refused = rig.post("/v1/tenants", json!({ "name": "acme" })).await;
    refused.is_problem(503);
    let ready = rig.get("/readyz").await;
    ready.is_problem(503);
    assert!(ready.body["detail"].to_string().contains("no space left"));
    let metrics = rig.get("/metrics").await.body;
    let metrics = metrics.as_str().unwrap();
    assert!(metrics.contains("hawser_controller_failed_writes_total "));
    assert!(!metrics.contains("hawser_controller_failed_writes_total 0"));

    store.fail(None);
    rig.post("/v1/tenants", json!({ "name": "acme" })).await;
    assert_eq!(rig.get("/readyz").await.status, StatusCode::OK);
    rig.stop().await;
}

#[tokio::test]
async fn an_unstored_report_shows_that_the_store_is_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let server = Server::start_on(store.clone(), config(&directory)).await;
    let rig = Rig::of(server.unwrap(), directory).await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let report = async |rtt_us: u32| {
        let health = json!({ "number": 1, "up": true, "rtt_us": rtt_us, "dropped_by_device": 0 });
        rig.report(&node, json!({ "revision": 0, "paths": [health] }))
            .await
            .status
    };
    assert_eq!(report(1_000).await, StatusCode::NO_CONTENT);
    store.fail(Some("no space left on device"));
    assert_eq!(report(9_000).await, StatusCode::SERVICE_UNAVAILABLE);
    rig.get("/readyz").await.is_problem(503);
    // Values under a lease do not go to the disk.
    store.fail(None);
    assert_eq!(report(9_000).await, StatusCode::NO_CONTENT);
    rig.get("/readyz").await.is_problem(503);
    rig.tenant("other").await;
    assert_eq!(rig.get("/readyz").await.status, StatusCode::OK);
    rig.stop().await;
}

#[tokio::test]
async fn controllers_of_one_store_notice_that_their_settings_differ() {
    let directory = tempfile::tempdir().unwrap();
    let database = Embedded::open(directory.path().join("database")).unwrap();
    let store: Arc<dyn Store> = Arc::new(database);
    let leader = Server::start_on(store.clone(), config(&directory))
        .await
        .unwrap();
    let leader = Rig::of(leader, directory).await;
    let mut differing = Config {
        name: Some("other".to_owned()),
        ..config(&leader.directory)
    };
    differing.nodes.lease_s += 1;
    differing.max_events += 1;
    // Not common: each controller has a limit of its own.
    differing.limits.connections += 1;
    let other = Server::start_on(store, differing).await.unwrap();
    let other = Rig::of(other, tempfile::tempdir().unwrap()).await;
    let differ = async |rig: &Rig, count: usize| {
        let metrics = rig.get("/metrics").await.body;
        let line = format!("hawser_controller_settings_differ {count}\n");
        metrics.as_str().unwrap().contains(&line)
    };
    other.until(async || differ(&other, 2).await).await;
    assert!(differ(&leader, 0).await);
    other.stop().await;
    leader.stop().await;
}
