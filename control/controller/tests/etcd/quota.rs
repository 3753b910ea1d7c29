//! etcd rejects writes when its quota is full. A single node must not be able to fill it.

use crate::server::EtcdServer;
use crate::store_suite::controllers::Pair;
use crate::store_suite::in_time;
use etcd_client::{AlarmAction, AlarmOptions, AlarmType};
use hawser_controller::store::{Store, Write};
use serde_json::json;
use std::sync::Arc;

const QUOTA_BYTES: usize = 8 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_tells_without_end_does_not_fill_the_quota() {
    let server = EtcdServer::start_with(&[&format!("--quota-backend-bytes={QUOTA_BYTES}")]);
    let store: Arc<dyn Store> = Arc::new(server.connect("hawser/").await);
    let pair = Pair::start(&store).await;
    pair.leads().await;
    assert_eq!(
        pair.call(0, "POST", "/v1/tenants", Some(json!({ "name": "acme" })))
            .await
            .0,
        201
    );
    let node = pair.register(0, "edge").await;
    pair.register(0, "peer").await;
    let flow = json!({ "name": "stage", "tenant": "acme", "ingress": "edge", "egress": "peer", "mode": "single",
        "select": { "destination": "203.0.113.0/24" } });
    assert_eq!(pair.call(0, "POST", "/v1/flows", Some(flow)).await.0, 201);

    // The longest message that a node can cause.
    let refused = json!({ "kind": "not_applied", "flow": "stage", "reason": "x".repeat(500) });
    let report = json!({ "revision": 0, "observations": vec![refused; 256] });
    for _ in 0..80 {
        let (status, answer) = pair
            .call_as(
                &node,
                0,
                "POST",
                "/v1/nodes/edge/reports",
                Some(report.clone()),
            )
            .await;
        assert!(status == 204 || status == 429, "{status} {answer}");
    }
    let (status, answer) = pair
        .call(0, "POST", "/v1/tenants", Some(json!({ "name": "other" })))
        .await;
    assert_eq!(status, 201, "{answer}");
    let (events, _) = store.list_all("event/").await.expect("read");
    let bytes: usize = events
        .iter()
        .map(|event| event.key.len() + event.value.len())
        .sum();
    assert!(events.len() < 1_200, "{} events", events.len());
    assert!(bytes < 1 << 20, "{bytes} bytes");
    pair.stop().await;
}

/// Does what `etcdctl` does for the words of the error, in their order.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_takes_changes_after_what_the_error_advises() {
    let server = EtcdServer::start_with(&[&format!("--quota-backend-bytes={QUOTA_BYTES}")]);
    let store = server.connect("hawser/").await;
    let write = async || {
        let writes = vec![Write::put("key", vec![7; 512 << 10])];
        store.commit(writes).await
    };
    let error = in_time(async {
        loop {
            if let Err(error) = write().await {
                break error.to_string();
            }
        }
    })
    .await;
    let steps = ["etcdctl compact", "etcdctl defrag", "etcdctl alarm disarm"];
    let places = steps.map(|step| {
        error
            .find(step)
            .unwrap_or_else(|| panic!("{step}: {error}"))
    });
    assert!(places.is_sorted(), "{error}");

    let mut etcd = etcd_client::Client::connect([server.endpoint()], None)
        .await
        .expect("connected");
    let status = etcd.status().await.expect("answered");
    let revision = status.header().expect("a header").revision();
    etcd.compact(revision, None).await.expect("compacted");
    etcd.defragment().await.expect("defragmented");
    assert!(write().await.is_err(), "the alarm is still on");
    let mut of_member = AlarmOptions::new();
    of_member.with_member(status.header().expect("a header").member_id());
    etcd.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(of_member))
        .await
        .expect("disarmed");
    write().await.expect("there is space");
}
