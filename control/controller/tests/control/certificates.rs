//! Certificates of nodes that have expired by a date which may be wrong.

use crate::rig::{Answer, Caller, Identity, Rig, config, key_and_request};
use axum::http::StatusCode;
use hawser_controller::Server;
use hawser_controller::store::{Embedded, Store, Write};
use serde_json::json;
use std::sync::Arc;

async fn renew(rig: &Rig, node: &Identity) -> Answer {
    let csr = key_and_request().1;
    let path = format!("/v1/nodes/{}/certificate", node.name);
    let body = Some(json!({ "csr": csr }));
    rig.call(Caller::Node(node), "POST", &path, body).await
}

#[tokio::test]
async fn an_expired_certificate_can_only_be_renewed() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(&directory);
    // A second.
    config.nodes.certificate_days = 1.0 / 86_400.0;
    // It asks until its certificate has expired.
    config.limits.node_requests_per_s = 1e6;
    let store: Arc<dyn Store> = Arc::new(Embedded::open(directory.path().join("own")).unwrap());
    let server = Server::start_on(store.clone(), config).await.unwrap();
    let rig = Rig::of(server, directory).await;
    rig.tenant("acme").await;
    let [first, other] = [rig.enrol("in").await, rig.enrol("out").await];
    let me = async || rig.call(Caller::Node(&first), "GET", "/v1/me", None).await;
    rig.until(async || {
        let refused = me().await;
        let detail = refused.body["detail"].to_string();
        refused.status == StatusCode::UNAUTHORIZED && detail.contains("has expired")
    })
    .await;

    let renewed = renew(&rig, &first).await;
    assert_eq!(renewed.status, StatusCode::CREATED, "{}", renewed.body);
    let revoked = rig.delete("/v1/nodes/out/certificate").await;
    assert!(revoked.status.is_success(), "{}", revoked.body);
    assert_eq!(renew(&rig, &other).await.status, StatusCode::FORBIDDEN);

    let run_time = json!({ "total_s": 9, "marks": [] }).to_string();
    let write = Write::put("run_time", run_time.into_bytes());
    store.commit(vec![write]).await.unwrap();
    rig.tenant("later").await;
    assert_eq!(renew(&rig, &first).await.status, StatusCode::UNAUTHORIZED);
}
