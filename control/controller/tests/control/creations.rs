//! Creations, which clients repeat when the response was lost.

use crate::rig::{Answer, Caller, Rig, flow};
use axum::http::StatusCode;
use axum::http::header::{ETAG, LOCATION, RETRY_AFTER};
use futures_util::future::{join_all, try_join_all};
use hawser_client::OperatorClient;
use serde_json::{Value, json};
use std::time::Duration;

impl Rig {
    async fn audited(&self) -> usize {
        let audit = self.get("/v1/audit?limit=1000").await.body;
        audit["items"].as_array().unwrap().len()
    }

    fn client(&self) -> OperatorClient {
        let controller = format!("https://localhost:{}", self.server.address().port());
        let controllers = [controller.parse().unwrap()];
        OperatorClient::new(&controllers, self.server.authority_pem(), &self.admin).unwrap()
    }
}

fn detail(answer: &Answer) -> &str {
    answer.body["detail"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_creation_succeeds_and_writes_nothing() {
    let rig = Rig::new().await;
    rig.two_nodes(1, flow("single", false)).await;
    let changed = |mut body: Value, key: &str, value: Value| {
        body[key] = value;
        body
    };
    let acme = json!({ "name": "acme", "description": "" });
    let stage = flow("single", false);
    let track = json!({ "name": "sound", "tenant": "acme", "writers": ["in"], "readers": ["out"] });
    let created = rig.post("/v1/tracks", track.clone()).await;
    assert_eq!(created.status, StatusCode::CREATED, "{}", created.body);
    for (list, body, other) in [
        (
            "/v1/tenants",
            &acme,
            changed(acme.clone(), "description", "other".into()),
        ),
        (
            "/v1/flows",
            &stage,
            changed(stage.clone(), "mode", "replicate".into()),
        ),
        (
            "/v1/tracks",
            &track,
            changed(track.clone(), "readers", json!([])),
        ),
    ] {
        let count = rig.audited().await;
        let path = format!("{list}/{}", body["name"].as_str().unwrap());
        let known = rig.get(&path).await;
        for _ in 0..2 {
            let again = rig.post(list, body.clone()).await;
            assert_eq!((again.status, &again.body), (StatusCode::OK, &known.body));
            assert_eq!(again.headers[ETAG], known.headers[ETAG], "{list}");
            assert!(again.headers.contains_key(LOCATION));
        }
        let conflict = rig.post(list, other).await;
        conflict.is_problem(409);
        assert_eq!(conflict.body["type"], "/problems/already-exists");
        assert!(detail(&conflict).contains("other"), "{}", conflict.body);
        assert_eq!(rig.audited().await, count, "{list}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_a_lost_response_is_replaced() {
    let rig = Rig::new().await;
    let body = json!({ "name": "monitor", "scope": "read" });
    assert_eq!(rig.post("/v1/tokens", body.clone()).await.status, 201);
    let again = rig.post("/v1/tokens", body).await;
    again.is_problem(409);
    let advice = "POST /v1/tokens/NAME/secret";
    assert!(detail(&again).contains(advice), "{}", again.body);
    let path = advice
        .trim_start_matches("POST ")
        .replace("NAME", "monitor");
    let replaced = rig.post(&path, json!({})).await;
    assert_eq!(replaced.status, StatusCode::CREATED, "{}", replaced.body);
    let secret = replaced.body["secret"].as_str().unwrap();
    let me = rig.call(Caller::Operator(secret), "GET", "/v1/me", None);
    assert_eq!(me.await.status, StatusCode::OK);

    let wider = json!({ "name": "monitor", "scope": "admin" });
    let refused = rig.post("/v1/tokens", wider).await;
    refused.is_problem(409);
    assert!(!detail(&refused).contains(advice), "{}", refused.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_as_told_is_served() {
    let rig = Rig::with(|config| config.limits.operator_requests_per_s = 2.0).await;
    let answers = join_all((0..100).map(|_| rig.get("/v1/me"))).await;
    let mut answers = answers.into_iter();
    let refused = answers.find(|answer| answer.status != StatusCode::OK);
    let refused = refused.expect("there are more than are served at once");
    refused.is_problem(429);
    let seconds = refused.headers[RETRY_AFTER].to_str().unwrap();
    let advice = format!("wait {seconds} s");
    assert!(detail(&refused).contains(&advice), "{}", refused.body);
    let seconds = seconds.parse().unwrap();
    assert!(seconds <= 5, "{advice}");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(rig.get("/v1/me").await.status, StatusCode::OK);
}

/// There are more than the limit of requests allows at once.
#[tokio::test(flavor = "multi_thread")]
async fn one_token_creates_more_than_a_thousand_flows() {
    const NODES: usize = 4;
    const FLOWS: usize = 1_200;
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    for node in 0..NODES {
        rig.invite(&format!("n{node}")).await;
    }
    let flow = |number: usize| {
        json!({ "name": format!("f{number}"), "tenant": "acme", "mode": "replicate",
            "ingress": format!("n{}", number % NODES), "egress": format!("n{}", (number + 1) % NODES),
            "select": { "destination": format!("10.{}.{}.0/24", number / 250, number % 250) } })
    };
    let (client, numbers) = (rig.client(), Vec::from_iter(0..FLOWS));
    for part in numbers.chunks(16) {
        let flows = part
            .iter()
            .map(|number| serde_json::from_value(flow(*number)).unwrap());
        try_join_all(flows.map(async |flow| client.create_flow(&flow).await))
            .await
            .unwrap();
    }
    assert_eq!(client.flows().all().await.unwrap().len(), FLOWS);
}
