//! Tracks, and who gets their secrets.

use crate::rig::{Answer, Caller, Identity, Rig};
use axum::http::StatusCode;
use serde_json::{Value, json};

impl Rig {
    /// Asks for the secret of the track `stage`.
    async fn key(&self, node: &Identity) -> Answer {
        let path = format!("/v1/nodes/{}/tracks/stage", node.name);
        self.call(Caller::Node(node), "GET", &path, None).await
    }

    /// Returns the number of the secret and the secret, which the node must get.
    async fn secret(&self, node: &Identity) -> (u64, String) {
        let answer = self.key(node).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let secret = answer.body["secret"].as_str().unwrap().to_owned();
        assert!(secret.len() == 64 && secret.bytes().all(|digit| digit.is_ascii_hexdigit()));
        (answer.body["number"].as_u64().unwrap(), secret)
    }

    async fn change_track(&self, writers: &[&str], readers: &[&str]) -> Answer {
        self.put("/v1/tracks/stage", track(writers, readers)).await
    }
}

fn track(writers: &[&str], readers: &[&str]) -> Value {
    json!({ "name": "stage", "tenant": "acme", "writers": writers, "readers": readers })
}

/// Starts with the nodes car, desk and wall, and a track that car writes and desk reads.
async fn with_track() -> (Rig, [Identity; 3]) {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let nodes = [
        rig.enrol("car").await,
        rig.enrol("desk").await,
        rig.enrol("wall").await,
    ];
    let answer = rig.post("/v1/tracks", track(&["car"], &["desk"])).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    (rig, nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_and_readers_get_the_secret_and_nobody_else() {
    let (rig, [car, desk, wall]) = with_track().await;
    assert_eq!(rig.key(&car).await.body["role"], "writer");
    assert_eq!(rig.key(&desk).await.body["role"], "reader");
    assert_eq!(rig.secret(&car).await, rig.secret(&desk).await);
    rig.key(&wall).await.is_problem(404);
    // Not by another node's path, nor by an operator, nor anonymously.
    let path = "/v1/nodes/desk/tracks/stage";
    rig.call(Caller::Node(&wall), "GET", path, None)
        .await
        .is_problem(403);
    rig.get(path).await.is_problem(401);
    rig.call(Caller::Anonymous, "GET", path, None)
        .await
        .is_problem(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_gets_what_it_needs_of_the_secret_and_no_more() {
    let (rig, [car, _, wall]) = with_track().await;
    let (number, secret) = rig.secret(&car).await;
    let mut changed = track(&["car"], &["desk"]);
    changed["relays"] = json!(["wall"]);
    let answer = rig.put("/v1/tracks/stage", changed.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(rig.key(&wall).await.body["role"], "relay");
    let (of_relay, access) = rig.secret(&wall).await;
    assert_eq!(of_relay, number);
    let bytes: [u8; 32] = hex::decode(&secret).unwrap().try_into().unwrap();
    assert_eq!(access, hex::encode(*hawser_wire::secret::access(&bytes)));
    // One who may no longer watch must not know the secret any more, even if it relays from now on.
    let mut limited = track(&["car"], &[]);
    limited["relays"] = json!(["wall", "desk"]);
    let answer = rig.put("/v1/tracks/stage", limited).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(rig.secret(&car).await.0, number + 1);
    // One who may do more from now on needs no other secret.
    let mut extended = track(&["car"], &["wall"]);
    extended["relays"] = json!(["desk"]);
    rig.put("/v1/tracks/stage", extended).await;
    assert_eq!(rig.secret(&wall).await, rig.secret(&car).await);
    assert_eq!(rig.secret(&car).await.0, number + 1);
    let mut twice = track(&["car"], &["desk"]);
    twice["relays"] = json!(["desk"]);
    rig.put("/v1/tracks/stage", twice).await.is_problem(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_tracks_of_their_tenant_without_secrets() {
    let (rig, [car, ..]) = with_track().await;
    let (_, secret) = rig.secret(&car).await;
    rig.post("/v1/tracks/stage/rekey", json!(null)).await;
    let (_, later) = rig.secret(&car).await;
    for path in ["/v1/tracks", "/v1/tracks/stage", "/v1/events", "/v1/audit"] {
        let answer = rig.get(path).await;
        assert_eq!(answer.status, StatusCode::OK);
        let text = answer.body.to_string();
        assert!(text.contains("stage"), "{path}: {text}");
        assert!(!text.contains(&secret) && !text.contains(&later), "{path}");
    }
    rig.tenant("other").await;
    let token = json!({ "name": "theirs", "scope": "operate", "tenant": "other" });
    let token = rig.post("/v1/tokens", token).await;
    let theirs = Caller::Operator(token.body["secret"].as_str().unwrap());
    let list = rig.call(theirs.clone(), "GET", "/v1/tracks", None).await;
    assert_eq!(list.body["items"], json!([]));
    for (method, body) in [
        ("GET", None),
        ("PUT", Some(track(&["car"], &[]))),
        ("DELETE", None),
    ] {
        rig.call(theirs.clone(), method, "/v1/tracks/stage", body)
            .await
            .is_problem(404);
    }
    rig.call(theirs, "POST", "/v1/tracks/stage/rekey", None)
        .await
        .is_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_is_replaced_when_a_node_may_no_longer_have_it() {
    let (rig, [car, desk, wall]) = with_track().await;
    let (first, secret) = rig.secret(&car).await;
    // One who is added gets the secret in force.
    let answer = rig.change_track(&["car"], &["desk", "wall"]).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    assert_eq!(rig.secret(&wall).await, (first, secret.clone()));
    // One who changes its role keeps it.
    rig.change_track(&["car", "wall"], &["desk"]).await;
    assert_eq!(rig.secret(&wall).await, (first, secret.clone()));
    // One who is removed does not get the next one.
    rig.change_track(&["car", "wall"], &[]).await;
    let (second, replaced) = rig.secret(&car).await;
    assert!(second > first && replaced != secret);
    rig.key(&desk).await.is_problem(404);
    // Nor does one whose certificate is revoked.
    let revoked = rig.delete("/v1/nodes/wall/certificate").await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT, "{}", revoked.body);
    let (third, last) = rig.secret(&car).await;
    assert!(third > second && last != replaced);
    rig.key(&wall).await.is_problem(403);
    let rekeyed = rig.post("/v1/tracks/stage/rekey", json!(null)).await;
    assert_eq!(rekeyed.status, StatusCode::NO_CONTENT, "{}", rekeyed.body);
    assert_eq!(rig.secret(&car).await.0, third + 1);
    // Nor do those who had a node's certificates before it was enrolled again.
    let again = rig.enrol("car").await;
    rig.key(&car).await.is_problem(403);
    assert_eq!(rig.secret(&again).await.0, third + 2);
    // The first certificate of a node replaces nothing: nobody had another one.
    rig.enrol("wall").await;
    assert_eq!(rig.secret(&again).await.0, third + 2);
    let car = again;
    let deleted = rig.delete("/v1/tracks/stage").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    rig.key(&car).await.is_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_track_and_its_nodes_stay_together() {
    let (rig, _) = with_track().await;
    let refused = rig.delete("/v1/nodes/desk").await;
    refused.is_problem(409);
    assert!(refused.body["detail"].as_str().unwrap().contains("stage"));
    rig.change_track(&["car"], &[]).await;
    let deleted = rig.delete("/v1/nodes/desk").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT, "{}", deleted.body);
    // Neither nodes that there are not, nor those of others.
    rig.change_track(&["car"], &["desk"]).await.is_problem(404);
    rig.tenant("other").await;
    let theirs = json!({ "name": "theirs", "tenant": "other", "writers": ["car"] });
    rig.post("/v1/tracks", theirs).await.is_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_track_that_makes_no_sense_is_refused() {
    let (rig, _) = with_track().await;
    rig.post("/v1/tracks", track(&["car"], &[]))
        .await
        .is_problem(409);
    rig.change_track(&[], &["desk"]).await.is_problem(422);
    rig.change_track(&["car"], &["car"]).await.is_problem(422);
    let many: Vec<String> = (0..300).map(|number| format!("n{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    rig.change_track(&["car"], &many).await.is_problem(422);
    let new = rig.change_track(&["car"], &many[..41]).await;
    new.is_problem(422);
    assert!(new.body["detail"].as_str().unwrap().contains("at most 40"));
    let elsewhere = json!({ "name": "stage", "tenant": "other", "writers": ["car"] });
    rig.put("/v1/tracks/stage", elsewhere).await.is_problem(422);
}
