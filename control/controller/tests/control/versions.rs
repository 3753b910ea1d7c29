//! Nodes, operators and stores of other versions.

use crate::rig::{Rig, config, flow};
use hawser_controller::Server;
use hawser_controller::store::{Embedded, Store, Write};
use serde_json::json;
use std::path::Path;

/// Writes a record into the database of a stopped controller.
async fn write(directory: &Path, key: &str, value: &str) {
    let store = Embedded::open(directory.join("database")).unwrap();
    let write = Write::put(key, value.as_bytes());
    store.commit(vec![write]).await.unwrap();
}

#[tokio::test]
async fn a_request_for_another_version_is_refused_with_both_versions() {
    let rig = Rig::new().await;
    let answer = rig.get("/v2/nodes").await;
    answer.is_problem(404);
    let detail = answer.body["detail"].as_str().unwrap();
    for version in ["v2", hawser_model::API] {
        assert!(detail.contains(version), "{detail}");
    }
    for path in ["/v1/none", "/video", "/v"] {
        let answer = rig.get(path).await;
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains("no such resource"), "{detail}");
    }
}

#[tokio::test]
async fn an_unknown_field_is_rejected_from_operators() {
    let rig = Rig::new().await;
    let tenant = json!({ "name": "other", "describtion": "roads" });
    let answer = rig.post("/v1/tenants", tenant).await;
    answer.is_problem(422);
    let detail = answer.body["detail"].as_str().unwrap();
    assert!(detail.contains("`describtion`"), "{detail}");
}

#[tokio::test]
async fn a_controller_does_not_start_on_a_store_of_another_format() {
    let directory = Rig::new().await.stop().await;
    let other = r#"{ "format": 1000, "version": "9.1.0" }"#;
    write(directory.path(), "format", other).await;
    let error = Server::start(config(&directory)).await.err().unwrap();
    let error = format!("{error:#}");
    for part in ["format 1000 of Hawser 9.1.0", env!("CARGO_PKG_VERSION")] {
        assert!(error.contains(part), "{error}");
    }
    assert!(error.contains("docs/upgrade.md"), "{error}");
}

#[tokio::test]
async fn a_controller_does_not_start_on_a_record_that_it_cannot_read() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("replicate", true)).await;
    let directory = rig.stop().await;
    let damaged = r#"{ "flow": { "mode": "telepathy" } }"#;
    write(directory.path(), "flow/stage", damaged).await;
    let error = Server::start(config(&directory)).await.err().unwrap();
    assert!(error.to_string().contains("flow/stage"), "{error:#}");
}
