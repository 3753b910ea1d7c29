//! Repeated requests with the same `Idempotency-Key`.

use crate::rig::{Answer, Caller, Rig, config};
use crate::store_with_delay::SlowStore;
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::{Request, StatusCode};
use hawser_controller::Server;
use hawser_controller::store::{Store, Write};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;

impl Rig {
    async fn post_with_key(&self, token: &str, key: &str, path: &str, body: &Value) -> Answer {
        let request = Request::builder().method("POST").uri(path);
        let request = request.header(CONTENT_TYPE, "application/json");
        let request = request.header("Idempotency-Key", key);
        let request = request.body(Body::from(body.to_string())).unwrap();
        Answer::of(self.request(Caller::Operator(token), request).await).await
    }

    async fn keyed(&self, key: &str, path: &str, body: &Value) -> Answer {
        self.post_with_key(&self.admin, key, path, body).await
    }

    async fn audited(&self) -> usize {
        let audit = self.get("/v1/audit?limit=1000").await.body;
        audit["items"].as_array().unwrap().len()
    }
}

async fn on_slow_store() -> (Rig, std::sync::Arc<SlowStore>) {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let server = Server::start_on(store.clone(), config(&directory));
    (Rig::of(server.await.unwrap(), directory).await, store)
}

fn stored(key: &str) -> String {
    format!("idempotency/admin/{}", hex::encode(Sha256::digest(key)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_the_first_response_and_does_nothing() {
    let (rig, store) = on_slow_store().await;
    let flow = json!({ "name": "stage", "tenant": "acme", "ingress": "in", "egress": "out", "mode": "evidence",
        "select": { "destination": "203.0.113.0/24" } });
    let token = json!({ "name": "monitor", "scope": "read" });
    for (path, body) in [
        ("/v1/tenants", json!({ "name": "acme" })),
        ("/v1/nodes/in/enrolment", json!({ "tenant": "acme" })),
        ("/v1/nodes/out/enrolment", json!({ "tenant": "acme" })),
        ("/v1/flows", flow),
        ("/v1/tokens", token),
        ("/v1/tokens/monitor/secret", json!({})),
    ] {
        let first = rig.keyed(path, path, &body).await;
        assert!(first.status.is_success(), "{path}: {}", first.body);
        let count = rig.audited().await;
        for _ in 0..2 {
            let again = rig.keyed(path, path, &body).await;
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            for header in [CONTENT_TYPE, ETAG, LOCATION] {
                let values = [&again, &first].map(|answer| answer.headers.get(&header));
                assert_eq!(values[0], values[1], "{path} {header}");
            }
        }
        assert_eq!(rig.audited().await, count, "{path}");
        for secret in ["token", "secret"] {
            let Some(secret) = first.body[secret].as_str() else {
                continue;
            };
            for entry in store.list_all("").await.unwrap().0 {
                let value = String::from_utf8_lossy(&entry.value).into_owned();
                assert!(!value.contains(secret), "{}", entry.key);
            }
        }
    }
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_belongs_to_one_request_of_one_token() {
    let rig = Rig::new().await;
    let other = rig.post("/v1/tokens", json!({ "name": "other", "scope": "admin" }));
    let other = other.await.body["secret"].as_str().unwrap().to_owned();
    let [acme, test] = ["acme", "test"].map(|name| json!({ "name": name }));
    let first = rig.keyed("one", "/v1/tenants", &acme).await;
    assert_eq!(first.status, StatusCode::CREATED);
    for (path, body) in [("/v1/tenants", &test), ("/v1/tenants?limit=1", &acme)] {
        let another = rig.keyed("one", path, body).await;
        another.is_problem(422);
        assert_eq!(another.body["type"], "/problems/key-reused");
    }
    let of_other = rig.post_with_key(&other, "one", "/v1/tenants", &test).await;
    assert_eq!(of_other.status, StatusCode::CREATED, "{}", of_other.body);

    // A request that was refused has changed nothing, and may succeed later.
    let nodes = "/v1/nodes/edge/enrolment";
    let body = json!({ "tenant": "later" });
    rig.keyed("two", nodes, &body).await.is_problem(404);
    rig.tenant("later").await;
    assert_eq!(
        rig.keyed("two", nodes, &body).await.status,
        StatusCode::CREATED
    );

    for wrong in ["", "with space", &"x".repeat(129)] {
        rig.keyed(wrong, "/v1/tenants", &acme).await.is_problem(400);
    }
    let unknown = rig
        .post_with_key("wrong", "one", "/v1/tenants", &acme)
        .await;
    unknown.is_problem(401);
    let rotated = rig.post("/v1/tokens/other/secret", json!({})).await.body;
    let rotated = rotated["secret"].as_str().unwrap();
    let with_new_secret = rig
        .post_with_key(rotated, "one", "/v1/tenants", &test)
        .await;
    with_new_secret.is_problem(409);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_client_has_gone_is_carried_out_once() {
    let (rig, store) = on_slow_store().await;
    let body = json!({ "name": "acme" });
    store.slow_down(Duration::from_millis(300));
    let request = rig.keyed("key", "/v1/tenants", &body);
    // The client gives up when the key has been claimed.
    let claimed = async {
        while store.get(&stored("key")).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        _ = request => panic!("the store is slow"),
        () = claimed => {}
    }
    let meanwhile = rig.keyed("key", "/v1/tenants", &body).await;
    meanwhile.is_problem(409);
    assert_eq!(meanwhile.body["type"], "/problems/outcome-unknown");
    store.slow_down(Duration::ZERO);
    rig.until(async || rig.keyed("key", "/v1/tenants", &body).await.status == StatusCode::CREATED)
        .await;
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_bounded_and_kept_for_a_day() {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let record = |at_unix_ms: u64| {
        let record = json!({ "at_unix_ms": at_unix_ms, "request_sha256": "00", "response": null });
        record.to_string().into_bytes()
    };
    let writes =
        (0..1000).map(|n| Write::put(format!("idempotency/admin/{n:064}"), record(u64::MAX / 2)));
    let writes: Vec<Write> = writes.collect();
    for part in writes.chunks(100) {
        store.commit(part.to_vec()).await.unwrap();
    }
    let server = Server::start_on(store.clone(), config(&directory)).await;
    let rig = Rig::of(server.unwrap(), directory).await;
    let body = json!({ "name": "acme" });
    rig.keyed("new", "/v1/tenants", &body).await.is_problem(429);
    rig.tenant("without-key").await;

    // One that was kept for longer does not count any more, and is removed.
    let expired = vec![Write::put(stored("old"), record(1))];
    store.commit(expired).await.unwrap();
    let answer = rig.keyed("old", "/v1/tenants", &body).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    let expired = format!("idempotency/admin/{:064}", 7);
    store
        .commit(vec![Write::put(&expired, record(1))])
        .await
        .unwrap();
    let directory = rig.stop().await;
    let server = Server::start_on(store.clone(), config(&directory)).await;
    let rig = Rig::of(server.unwrap(), directory).await;
    rig.until(async || store.get(&expired).await.unwrap().is_none())
        .await;
    rig.stop().await;
}
