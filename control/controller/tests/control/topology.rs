//! The topology: nodes, and the paths that both ends have registered.

use crate::rig::{Caller, Identity, Rig, flow};
use axum::http::StatusCode;
use serde_json::{Value, json};

/// Registers a node with paths: number, own address, address of the other end.
async fn register(rig: &Rig, node: &Identity, paths: &[(u8, &str, &str)]) {
    let end = |(number, local, remote): &(u8, &str, &str)| json!({ "number": number, "interface": format!("p{number}"), "local": local, "remote": remote });
    let paths: Vec<Value> = paths.iter().map(end).collect();
    let path = format!("/v1/nodes/{}/registration", node.name);
    let body = json!({ "version": "1", "paths": paths });
    let answer = rig.call(Caller::Node(node), "PUT", &path, Some(body)).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
}

async fn topology(rig: &Rig, query: &str) -> Value {
    let answer = rig.get(&format!("/v1/topology{query}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_join_the_nodes_that_have_registered_both_ends() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let [ingress, egress, third] = [
        rig.enrol("in").await,
        rig.enrol("out").await,
        rig.enrol("third").await,
    ];
    rig.invite("new").await;
    register(
        &rig,
        &ingress,
        &[
            (1, "192.0.2.1", "192.0.2.2"),
            (2, "10.0.0.1", "203.0.113.9"),
            (3, "10.1.0.1", "10.1.0.9"),
        ],
    )
    .await;
    register(
        &rig,
        &egress,
        &[
            (1, "192.0.2.2", "192.0.2.1"),
            (2, "10.9.0.1", "198.51.100.1"),
        ],
    )
    .await;
    register(
        &rig,
        &third,
        &[(1, "192.0.2.3", "192.0.2.1"), (4, "192.0.2.2", "192.0.2.1")],
    )
    .await;

    let found = topology(&rig, "").await;
    assert_eq!(found["nodes"].as_array().unwrap().len(), 4);
    assert_eq!(found["nodes"][0]["unmatched"], json!([2, 3]));
    assert_eq!(
        (&found["nodes"][1]["name"], &found["nodes"][1]["alive"]),
        (&json!("new"), &json!(false))
    );
    assert_eq!(
        found["nodes"][3]["unmatched"],
        json!([1, 4]),
        "numbers and both addresses have to match"
    );
    assert_eq!(found["paths"].as_array().unwrap().len(), 1, "{found}");
    let path = &found["paths"][0];
    assert_eq!(
        (&path["number"], &path["addresses_match"], &path["flows"]),
        (&json!(1), &json!(true), &json!([]))
    );
    assert_eq!(
        (&path["ends"][0]["node"], &path["ends"][1]["node"]),
        (&json!("in"), &json!("out"))
    );
    assert!(path["ends"][0]["health"].is_null());

    // A flow joins the ends of path 2, whose addresses are translated on the way.
    rig.post("/v1/flows", flow("replicate", true)).await;
    rig.put("/v1/policies/stage", json!({ "code": 0b10 })).await;
    let health = json!({ "number": 2, "up": true, "rtt_us": 12_000, "dropped_by_device": 0 });
    rig.report(&ingress, json!({ "revision": 0, "paths": [health] }))
        .await;
    let found = topology(&rig, "?tenant=acme").await;
    let path = &found["paths"][1];
    assert_eq!(
        (&path["number"], &path["addresses_match"], &path["flows"]),
        (&json!(2), &json!(false), &json!(["stage"]))
    );
    assert_eq!(path["ends"][0]["health"]["rtt_us"], 12_000);
    assert_eq!(
        found["paths"][0]["flows"],
        json!([]),
        "the policy does not take path 1"
    );
    assert_eq!(found["nodes"][0]["unmatched"], json!([3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_shown_with_neighbours_to_its_tenant_only() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let [first, second, third] = [
        rig.enrol("a").await,
        rig.enrol("b").await,
        rig.enrol("c").await,
    ];
    register(&rig, &first, &[(1, "192.0.2.1", "192.0.2.2")]).await;
    register(
        &rig,
        &second,
        &[(1, "192.0.2.2", "192.0.2.1"), (2, "192.0.2.2", "192.0.2.3")],
    )
    .await;
    register(&rig, &third, &[(2, "192.0.2.3", "192.0.2.2")]).await;
    let names = |found: &Value| -> Vec<String> {
        let nodes = found["nodes"].as_array().unwrap();
        nodes
            .iter()
            .map(|node| node["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let found = topology(&rig, "?node=a").await;
    assert_eq!(
        (names(&found), found["paths"].as_array().unwrap().len()),
        (vec!["a".to_owned(), "b".to_owned()], 1)
    );
    assert_eq!(
        topology(&rig, "?node=b").await["paths"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    rig.get("/v1/topology?state=alive").await.is_problem(400);
    rig.tenant("other").await;
    let token = json!({ "name": "eyes", "scope": "read", "tenant": "other" });
    let secret = rig.post("/v1/tokens", token).await.body["secret"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = rig
        .call(Caller::Operator(&secret), "GET", "/v1/topology", None)
        .await;
    assert_eq!(answer.body, json!({ "nodes": [], "paths": [] }));
}
