//! Tunnel servers, their clients, and the clients' inner addresses.

use crate::rig::{Answer, Caller, Identity, Rig, config};
use axum::http::StatusCode;
use futures_util::future::join_all;
use hawser_controller::TunnelsConfig;
use serde_json::{Value, json};

impl Rig {
    async fn serves(&self, node: &Identity, report: Value) -> Answer {
        let path = format!("/v1/nodes/{}/tunnel-server", node.name);
        self.call(Caller::Node(node), "PUT", &path, Some(report))
            .await
    }

    async fn asks(&self, node: &Identity) -> Answer {
        let path = format!("/v1/nodes/{}/tunnel-client", node.name);
        let report = json!({ "accepts_settings": false });
        self.call(Caller::Node(node), "POST", &path, Some(report))
            .await
    }
}

fn report(host: u8, clients: u32) -> Value {
    json!({ "addresses": [format!("203.0.113.{host}:14752")], "clients": clients, "max_clients": 100, "draining": false })
}

fn names(answer: &Answer, list: &str) -> Vec<String> {
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let items = answer.body[list].as_array().unwrap();
    items
        .iter()
        .map(|item| item["name"].as_str().unwrap().to_owned())
        .collect()
}

fn tunnels() -> TunnelsConfig {
    TunnelsConfig {
        addresses: vec![
            "10.77.0.0/29".parse().unwrap(),
            "fd77::/64".parse().unwrap(),
        ],
        servers: vec!["one".parse().unwrap(), "two".parse().unwrap()],
    }
}

async fn with_prefixes() -> Rig {
    let rig = Rig::with(|config| config.tunnels = tunnels()).await;
    rig.tenant("acme").await;
    rig
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_live_servers_by_load() {
    let rig = with_prefixes().await;
    let [one, two, car] = [
        rig.enrol("one").await,
        rig.enrol("two").await,
        rig.enrol("car").await,
    ];
    assert_eq!(
        names(&rig.asks(&car).await, "servers"),
        Vec::<String>::new()
    );

    rig.serves(&one, report(1, 50)).await;
    rig.serves(&two, report(2, 10)).await;
    assert_eq!(names(&rig.asks(&car).await, "servers"), ["two", "one"]);
    rig.serves(&two, report(2, 60)).await;
    let servers = rig.asks(&car).await;
    assert_eq!(names(&servers, "servers"), ["one", "two"]);
    assert_eq!(
        servers.body["servers"][1]["addresses"],
        json!(["203.0.113.2:14752"])
    );
    assert_eq!(
        names(&rig.get("/v1/tunnel-servers").await, "items"),
        ["one", "two"]
    );

    // Nodes of other tenants cannot see them.
    rig.tenant("other").await;
    let token = rig
        .post(
            "/v1/tokens",
            json!({ "name": "o", "scope": "read", "tenant": "other" }),
        )
        .await;
    let other = token.body["secret"].as_str().unwrap();
    let seen = rig
        .call(Caller::Operator(other), "GET", "/v1/tunnel-servers", None)
        .await;
    assert_eq!(names(&seen, "items"), Vec::<String>::new());

    rig.delete("/v1/nodes/one").await;
    assert_eq!(names(&rig.asks(&car).await, "servers"), ["two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing_any_more_is_none() {
    let rig = Rig::with(|config| {
        config.nodes.report_every_ms = 100;
        config.nodes.lease_s = 5;
        config.tunnels = tunnels();
    })
    .await;
    rig.tenant("acme").await;
    let [one, car] = [rig.enrol("one").await, rig.enrol("car").await];
    rig.serves(&one, report(1, 0)).await;
    assert_eq!(names(&rig.asks(&car).await, "servers"), ["one"]);
    rig.until(async || names(&rig.get("/v1/tunnel-servers").await, "items").is_empty())
        .await;
    assert_eq!(
        names(&rig.asks(&car).await, "servers"),
        Vec::<String>::new()
    );
    rig.serves(&one, report(1, 0)).await;
    assert_eq!(names(&rig.asks(&car).await, "servers"), ["one"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_lets_in_those_whose_certificates_are_in_force() {
    let rig = with_prefixes().await;
    let [one, car] = [rig.enrol("one").await, rig.enrol("car").await];
    let admitted = rig.serves(&one, report(1, 0)).await;
    assert_eq!(names(&admitted, "clients"), ["car", "one"]);
    assert_eq!(admitted.body["clients"][0]["addresses"], json!([]));

    let known = |answer: &Answer| {
        let mut report = report(1, 0);
        report["known"] = answer.body["digest"].clone();
        report
    };
    assert_eq!(
        rig.serves(&one, known(&admitted)).await.body["clients"],
        Value::Null,
        "it has not changed"
    );
    let addresses = rig.asks(&car).await.body["addresses"].clone();
    let later = rig.serves(&one, known(&admitted)).await;
    assert_eq!(later.body["clients"][0]["addresses"], addresses);

    rig.delete("/v1/nodes/car/certificate").await;
    assert_eq!(
        names(&rig.serves(&one, known(&later)).await, "clients"),
        ["one"]
    );
    rig.asks(&car).await.is_problem(403);
}

#[tokio::test(flavor = "multi_thread")]
async fn inner_addresses_stay_and_are_one_node_s_each() {
    let rig = with_prefixes().await;
    let mut nodes = Vec::new();
    for number in 0..5 {
        nodes.push(rig.enrol(&format!("car-{number}")).await);
    }
    let answers = join_all(nodes.iter().map(|node| rig.asks(node))).await;
    let mut given: Vec<String> = answers
        .iter()
        .map(|answer| answer.body["addresses"].to_string())
        .collect();
    for (node, answer) in nodes.iter().zip(&answers) {
        assert_eq!(
            rig.asks(node).await.body["addresses"],
            answer.body["addresses"]
        );
    }
    given.sort();
    assert_eq!(
        given,
        (2..=6)
            .map(|host| format!("[\"10.77.0.{host}\",\"fd77::{host}\"]"))
            .collect::<Vec<_>>()
    );

    let more = rig.enrol("more").await;
    rig.asks(&more).await.is_problem(409);
    rig.delete("/v1/nodes/car-3").await;
    assert_eq!(
        rig.asks(&more).await.body["addresses"],
        answers[3].body["addresses"]
    );

    // The addresses persist across a restart of the controller.
    let directory = rig.stop().await;
    let mut config = config(&directory);
    config.tunnels = tunnels();
    let rig = Rig::start(config, directory).await;
    assert_eq!(
        rig.asks(&nodes[0]).await.body["addresses"],
        answers[0].body["addresses"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_speak_of_their_own_tunnels_alone_and_sense() {
    let rig = with_prefixes().await;
    let [one, car] = [rig.enrol("one").await, rig.enrol("car").await];
    let path = "/v1/nodes/one/tunnel-server";
    rig.call(Caller::Node(&car), "PUT", path, Some(report(1, 0)))
        .await
        .is_problem(403);
    rig.call(Caller::Anonymous, "PUT", path, Some(report(1, 0)))
        .await
        .is_problem(401);
    rig.call(
        Caller::Node(&car),
        "POST",
        "/v1/nodes/one/tunnel-client",
        Some(json!({ "accepts_settings": false })),
    )
    .await
    .is_problem(403);
    // All traffic of other nodes would pass through it.
    rig.serves(&car, report(3, 0)).await.is_problem(403);
    for addresses in [
        json!([]),
        json!(["203.0.113.1:1", "203.0.113.2:1"]),
        json!(["203.0.113.1"]),
    ] {
        let mut report = report(1, 0);
        report["addresses"] = addresses;
        rig.serves(&one, report).await.is_problem(422);
    }
}
