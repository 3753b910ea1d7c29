//! Tracks, and who gets their secrets.

use crate::rig::{Answer, Caller, Identity, Rig, config};
use axum::http::StatusCode;
use hawser_controller::Config;
use serde_json::{Value, json};

impl Rig {
    /// Asks for the secret of the track `stage`.
    async fn key(&self, node: &Identity) -> Answer {
        self.uses(node, json!({ "role": "reader" })).await
    }

    /// Says what a program of a node does with the track `stage`.
    async fn uses(&self, node: &Identity, what: Value) -> Answer {
        let path = format!("/v1/nodes/{}/tracks/stage", node.name);
        self.call(Caller::Node(node), "POST", &path, Some(what))
            .await
    }

    /// Says that a program of a node serves the track `stage`.
    async fn announces(&self, node: &Identity, role: &str, address: &str, viewers: u32) -> Answer {
        let serves = json!({ "address": address, "viewers": viewers, "max_viewers": 10 });
        self.uses(node, json!({ "role": role, "serves": serves }))
            .await
    }

    /// Returns who serves the track `stage`, as operators see it.
    async fn sources(&self) -> Vec<(String, String)> {
        let answer = self.get("/v1/tracks/stage/sources").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        places(&answer.body["items"])
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

/// Returns the node and the address of each source.
fn places(sources: &Value) -> Vec<(String, String)> {
    let text = |source: &Value, key: &str| source[key].as_str().unwrap().to_owned();
    let sources = sources.as_array().unwrap().iter();
    sources
        .map(|source| (text(source, "node"), text(source, "address")))
        .collect()
}

fn is(found: &[(String, String)], expected: &[(&str, &str)]) -> bool {
    let found = found.iter().map(|(node, at)| (node.as_str(), at.as_str()));
    found.eq(expected.iter().copied())
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
    let what = json!({ "role": "reader" });
    rig.call(Caller::Node(&wall), "POST", path, Some(what.clone()))
        .await
        .is_problem(403);
    rig.post(path, what.clone()).await.is_problem(401);
    rig.call(Caller::Anonymous, "POST", path, Some(what))
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

/// Starts with a track that car writes, wall relays and desk reads.
async fn with_relay(config: impl FnOnce(&mut Config)) -> (Rig, [Identity; 3]) {
    let rig = Rig::with(config).await;
    rig.tenant("acme").await;
    let nodes = [
        rig.enrol("car").await,
        rig.enrol("desk").await,
        rig.enrol("wall").await,
    ];
    let mut track = track(&["car"], &["desk"]);
    track["relays"] = json!(["wall"]);
    let answer = rig.post("/v1/tracks", track).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    (rig, nodes)
}

#[tokio::test(flavor = "multi_thread")]
async fn viewers_and_relays_learn_who_serves_the_track() {
    let (rig, [car, desk, wall]) = with_relay(|_| {}).await;
    assert_eq!(rig.sources().await, []);
    // Requests of the tests come from this address.
    let publisher = ("car", "192.0.2.1:14748");
    let relay = ("wall", "198.51.100.7:14755");
    let own = rig.announces(&car, "writer", "[::]:14748", 0).await;
    assert_eq!(own.body["sources"], json!([]));
    let of_relay = rig.announces(&wall, "relay", relay.1, 3).await;
    assert!(is(&places(&of_relay.body["sources"]), &[publisher]));
    let of_viewer = rig.key(&desk).await;
    assert!(is(&places(&of_viewer.body["sources"]), &[relay, publisher]));
    assert!(is(&rig.sources().await, &[publisher, relay]));
    // A relay that is full comes last.
    rig.announces(&wall, "relay", relay.1, 10).await;
    let of_viewer = rig.key(&desk).await;
    assert!(is(&places(&of_viewer.body["sources"]), &[publisher, relay]));
    // The second relay of a node is another one, and one that has lost the stream says so.
    let second = ("wall", "198.51.100.7:14756");
    rig.announces(&wall, "relay", second.1, 0).await;
    assert!(is(&rig.sources().await, &[publisher, relay, second]));
    rig.uses(&wall, json!({ "role": "relay" })).await;
    let withdrawn = json!({ "address": relay.1, "viewers": 0, "max_viewers": 0 });
    rig.uses(&wall, json!({ "role": "relay", "serves": withdrawn }))
        .await;
    assert!(is(&rig.sources().await, &[publisher, second]));
    let withdrawn = json!({ "address": second.1, "viewers": 0, "max_viewers": 0 });
    rig.uses(&wall, json!({ "role": "relay", "serves": withdrawn }))
        .await;
    assert!(is(&rig.sources().await, &[publisher]));
    // Those who may no longer serve the track are not named, whatever they have said.
    rig.announces(&wall, "relay", relay.1, 0).await;
    rig.change_track(&["car"], &["desk"]).await;
    assert!(is(&rig.sources().await, &[publisher]));
    rig.announces(&wall, "relay", relay.1, 0)
        .await
        .is_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_writers_and_relays_serve_a_track_and_at_an_address() {
    let (rig, [car, desk, wall]) = with_relay(|_| {}).await;
    let address = "192.0.2.7:14748";
    for (node, role) in [
        (&desk, "writer"),
        (&desk, "relay"),
        (&desk, "reader"),
        (&wall, "writer"),
        (&car, "reader"),
    ] {
        rig.announces(node, role, address, 0).await.is_problem(403);
    }
    for wrong in ["192.0.2.7", "relay.example:1", "224.0.0.1:1", "192.0.2.7:0"] {
        rig.announces(&car, "writer", wrong, 0)
            .await
            .is_problem(422);
    }
    assert_eq!(rig.sources().await, []);
    // A writer may relay its track, too.
    rig.announces(&car, "writer", address, 0).await;
    rig.announces(&car, "relay", "192.0.2.7:14755", 0).await;
    let both = [("car", address), ("car", "192.0.2.7:14755")];
    assert!(is(&rig.sources().await, &both));
    // Operators of other tenants see nothing.
    rig.tenant("other").await;
    let token = json!({ "name": "theirs", "scope": "read", "tenant": "other" });
    let token = rig.post("/v1/tokens", token).await;
    let theirs = Caller::Operator(token.body["secret"].as_str().unwrap());
    rig.call(theirs, "GET", "/v1/tracks/stage/sources", None)
        .await
        .is_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_says_nothing_any_more_serves_nothing() {
    let (rig, [car, ..]) = with_relay(|config| {
        config.nodes.report_every_ms = 100;
        config.nodes.lease_s = 5;
    })
    .await;
    rig.announces(&car, "writer", "192.0.2.7:14748", 0).await;
    assert_eq!(rig.sources().await.len(), 1);
    rig.until(async || rig.sources().await.is_empty()).await;
    rig.announces(&car, "writer", "192.0.2.7:14748", 0).await;
    assert_eq!(rig.sources().await.len(), 1);
    // Nor does a restart keep it, because it may end meanwhile.
    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    assert_eq!(rig.sources().await, []);
}
