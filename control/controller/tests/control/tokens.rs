//! Expiry, last use and rotation of operators' tokens.

use crate::rig::{Caller, Rig};
use axum::http::StatusCode;
use serde_json::{Value, json};

/// Returns the status of a request with this secret.
async fn status(rig: &Rig, secret: &Value) -> StatusCode {
    let caller = Caller::Operator(secret.as_str().unwrap());
    rig.call(caller, "GET", "/v1/me", None).await.status
}

async fn listed(rig: &Rig, name: &str) -> Value {
    let tokens = rig.get("/v1/tokens").await.body;
    let mut tokens = tokens["items"].as_array().unwrap().iter();
    tokens.find(|token| token["name"] == name).unwrap().clone()
}

#[tokio::test]
async fn a_new_secret_makes_an_expired_token_valid() {
    let rig = Rig::new().await;
    let new = json!({ "name": "ci", "scope": "read", "valid_s": 1 });
    let issued = rig.post("/v1/tokens", new).await.body;
    assert!(issued["expires_unix_ms"].as_u64() > issued["created_unix_ms"].as_u64());
    rig.until(async || status(&rig, &issued["secret"]).await == StatusCode::UNAUTHORIZED)
        .await;
    let caller = Caller::Operator(issued["secret"].as_str().unwrap());
    let answer = rig.call(caller, "GET", "/v1/me", None).await;
    assert!(answer.body["detail"].to_string().contains("expired"));

    let refused = rig.post("/v1/tokens/ci/secret", json!({})).await;
    refused.is_problem(409);
    assert!(refused.body["detail"].to_string().contains("valid_s"));
    let new = json!({ "valid_s": 3600, "overlap_s": 3600 });
    let again = rig.post("/v1/tokens/ci/secret", new).await;
    assert_eq!(again.status, StatusCode::CREATED, "{}", again.body);
    assert_eq!(status(&rig, &again.body["secret"]).await, StatusCode::OK);
    assert_eq!(
        status(&rig, &issued["secret"]).await,
        StatusCode::UNAUTHORIZED,
        "an overlap does not revive an expired secret"
    );
    for wrong in [json!({ "valid_s": 0 }), json!({ "overlap_s": 2_592_001 })] {
        rig.post("/v1/tokens/ci/secret", wrong)
            .await
            .is_problem(422);
    }
}

#[tokio::test]
async fn a_token_keeps_its_end_when_its_secret_is_replaced() {
    let rig = Rig::new().await;
    let new = json!({ "name": "ci", "scope": "read", "valid_s": 3600 });
    let issued = rig.post("/v1/tokens", new).await.body;
    let again = rig.post("/v1/tokens/ci/secret", json!({})).await.body;
    assert_eq!(again["expires_unix_ms"], issued["expires_unix_ms"]);

    let short = json!({ "valid_s": 2 });
    let short = rig.post("/v1/tokens/ci/secret", short).await.body;
    let new = json!({ "valid_s": 3600, "overlap_s": 3600 });
    let long = rig.post("/v1/tokens/ci/secret", new).await.body;
    rig.until(async || status(&rig, &short["secret"]).await == StatusCode::UNAUTHORIZED)
        .await;
    assert_eq!(status(&rig, &long["secret"]).await, StatusCode::OK);
}

#[tokio::test]
async fn a_replaced_secret_is_valid_for_its_overlap_only() {
    let rig = Rig::new().await;
    let new = json!({ "name": "ci", "scope": "read" });
    let first = rig.post("/v1/tokens", new).await.body["secret"].clone();
    let second = rig
        .post("/v1/tokens/ci/secret", json!({ "overlap_s": 3600 }))
        .await;
    let second = second.body["secret"].clone();
    for secret in [&first, &second] {
        assert_eq!(status(&rig, secret).await, StatusCode::OK);
    }
    let third = rig.post("/v1/tokens/ci/secret", json!({ "overlap_s": 1 }));
    let third = third.await.body["secret"].clone();
    assert_eq!(status(&rig, &first).await, StatusCode::UNAUTHORIZED);
    rig.until(async || status(&rig, &second).await == StatusCode::UNAUTHORIZED)
        .await;
    assert_eq!(status(&rig, &third).await, StatusCode::OK);
    let audit = rig.get("/v1/audit").await.body;
    let rotations = audit["items"].as_array().unwrap().iter();
    let rotations =
        rotations.filter(|entry| entry["kind"] == "token" && entry["action"] == "rotated");
    assert_eq!(rotations.count(), 2);
}

#[tokio::test]
async fn the_last_use_of_a_token_is_listed_and_deleted_with_it() {
    let rig = Rig::new().await;
    let new = json!({ "name": "ci", "scope": "read" });
    let issued = rig.post("/v1/tokens", new.clone()).await.body;
    assert!(listed(&rig, "ci").await.get("used_unix_ms").is_none());
    assert_eq!(status(&rig, &issued["secret"]).await, StatusCode::OK);
    rig.until(async || listed(&rig, "ci").await["used_unix_ms"].is_u64())
        .await;
    let used = listed(&rig, "ci").await["used_unix_ms"].clone();
    assert!(used.as_u64() >= issued["created_unix_ms"].as_u64());
    assert_eq!(status(&rig, &issued["secret"]).await, StatusCode::OK);
    assert_eq!(
        listed(&rig, "ci").await["used_unix_ms"],
        used,
        "written rarely"
    );
    rig.delete("/v1/tokens/ci").await;
    rig.post("/v1/tokens", new).await;
    assert!(listed(&rig, "ci").await.get("used_unix_ms").is_none());
}
