//! Filters of lists, names that tenants share, and flows that share packets.

use crate::rig::{Caller, Identity, Rig, flow};
use axum::http::StatusCode;
use serde_json::{Value, json};

/// Returns the names in a list.
async fn names(rig: &Rig, path: &str, key: &str) -> Vec<String> {
    let answer = rig.get(path).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
    let items = answer.body["items"].as_array().unwrap();
    let name = |item: &Value| item[key].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_by_tenant_node_and_state() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("replicate", true)).await;
    rig.invite("spare").await;
    rig.tenant("other").await;
    let list = async |path: &str| names(&rig, path, "name").await;
    assert_eq!(list("/v1/nodes?state=alive").await, ["in", "out"]);
    assert_eq!(list("/v1/nodes?state=never_seen&limit=5").await, ["spare"]);
    assert_eq!(list("/v1/nodes?state=lost").await, [""; 0]);
    assert_eq!(list("/v1/nodes?tenant=other").await, [""; 0]);
    assert_eq!(
        list("/v1/nodes?tenant=acme&after=in").await,
        ["out", "spare"]
    );
    assert_eq!(list("/v1/flows?node=out&tenant=acme").await, ["stage"]);
    assert_eq!(list("/v1/flows?node=spare").await, [""; 0]);
    assert_eq!(list("/v1/tracks?node=in").await, [""; 0]);
    assert_eq!(names(&rig, "/v1/policies?node=in", "flow").await, ["stage"]);
    assert_eq!(names(&rig, "/v1/paths?node=in", "node").await, ["in", "in"]);
    let kinds = names(&rig, "/v1/events?node=in&kind=node_registered", "kind").await;
    assert_eq!(kinds, ["node_registered"]);
    assert_eq!(
        names(&rig, "/v1/events?flow=stage", "kind").await,
        ["flow_created"]
    );
    for wrong in [
        "/v1/nodes?state=tired",
        "/v1/nodes?node=in",
        "/v1/flows?limit=0",
        "/v1/events?after=x",
    ] {
        rig.get(wrong).await.is_problem(400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overlapping_flow_is_rejected_with_the_others_name() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("replicate", true)).await;
    let other = |select: Value| {
        let mut other = flow("evidence", true);
        other["name"] = "other".into();
        other["select"] = select;
        other
    };
    let udp = json!({ "destination": "203.0.113.0/24", "protocol": 17 });
    let refused = rig.post("/v1/flows", other(udp)).await;
    refused.is_problem(409);
    assert_eq!(refused.body["type"], "/problems/overlapping");
    assert!(
        refused.body["detail"]
            .as_str()
            .unwrap()
            .contains("the flow stage"),
        "{}",
        refused.body
    );
    // The longest prefix takes a packet.
    let longer = json!({ "destination": "203.0.113.0/25" });
    assert_eq!(
        rig.post("/v1/flows", other(longer)).await.status,
        StatusCode::CREATED
    );
    let same = json!({ "destination": "203.0.113.0/24" });
    rig.put("/v1/flows/other", other(same))
        .await
        .is_problem(409);
    let host_bits = json!({ "destination": "203.0.113.5/24" });
    rig.put("/v1/flows/other", other(host_bits))
        .await
        .is_problem(422);
    // A flow does not overlap with itself, and another ingress has other packets.
    let mut narrower = flow("replicate", true);
    narrower["select"]["protocol"] = 6.into();
    assert_eq!(
        rig.put("/v1/flows/stage", narrower).await.status,
        StatusCode::OK
    );
    let mut back = other(json!({ "destination": "203.0.113.0/24" }));
    back["name"] = "back".into();
    (back["ingress"], back["egress"]) = ("out".into(), "in".into());
    assert_eq!(
        rig.post("/v1/flows", back).await.status,
        StatusCode::CREATED
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_another_tenant_is_refused_without_its_owner() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("replicate", true)).await;
    rig.tenant("other").await;
    let token = json!({ "name": "other-admin", "scope": "operate", "tenant": "other" });
    let secret = rig.post("/v1/tokens", token).await.body["secret"]
        .as_str()
        .unwrap()
        .to_owned();
    let send = async |path: &str, body: Value| {
        rig.call(Caller::Operator(&secret), "POST", path, Some(body))
            .await
    };
    let mut flow = flow("replicate", true);
    flow["tenant"] = "other".into();
    let node = send("/v1/nodes/in/enrolment", json!({ "tenant": "other" })).await;
    for refused in [node, send("/v1/flows", flow).await] {
        refused.is_problem(409);
        let text = refused.body.to_string();
        assert_eq!(refused.body["type"], "/problems/already-exists");
        assert!(
            text.contains("such as other-") && !text.contains("acme"),
            "{text}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_version_names_the_controller_that_leads() {
    let rig = Rig::new().await;
    rig.until(async || rig.get("/v1/version").await.body["leader"] == "test")
        .await;
    let version = rig.get("/v1/version").await.body;
    assert_eq!(
        (&version["version"], &version["controller"]),
        (&json!(env!("CARGO_PKG_VERSION")), &json!("test"))
    );
    rig.call(Caller::Anonymous, "GET", "/v1/version", None)
        .await
        .is_problem(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transparent_flow_needs_adjacent_nodes() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let [ingress, egress] = [rig.enrol("in").await, rig.enrol("out").await];
    let register = async |node: &Identity, ends: [[&str; 2]; 3]| {
        let end = |(number, [local, remote]): (u8, [&str; 2])| json!({ "number": number, "interface": "p", "local": local, "remote": remote });
        let paths: Vec<Value> = (1..).zip(ends).map(end).collect();
        let path = format!("/v1/nodes/{}/registration", node.name);
        let body = json!({ "version": "1", "paths": paths });
        let answer = rig.call(Caller::Node(node), "PUT", &path, Some(body)).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    };
    register(
        &ingress,
        [
            ["192.0.2.1", "192.0.2.2"],
            ["fd00::1", "fd00::2"],
            ["10.0.0.1", "203.0.113.9"],
        ],
    )
    .await;
    register(
        &egress,
        [
            ["192.0.2.2", "192.0.2.1"],
            ["fd00::2", "fd00::1"],
            ["10.9.0.1", "198.51.100.1"],
        ],
    )
    .await;
    let mut flow = flow("replicate", true);
    flow["transparent"] = true.into();
    for (paths, wrong) in [(json!([]), "path 2"), (json!([1, 3]), "path 3")] {
        flow["paths"] = paths;
        let refused = rig.post("/v1/flows", flow.clone()).await;
        refused.is_problem(422);
        assert!(
            refused.body["detail"].as_str().unwrap().contains(wrong),
            "{}",
            refused.body
        );
    }
    flow["paths"] = json!([1]);
    let made = rig.post("/v1/flows", flow.clone()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.body);
    let sends = rig.stream(&ingress).await.next_of("assignment").await;
    assert_eq!(sends["sends"][0]["transparent"], 0b1);
    let receives = rig.stream(&egress).await.next_of("assignment").await;
    assert_eq!(
        receives["receives"][0]["transparent"]["destination"],
        "203.0.113.0/24"
    );
    flow["paths"] = json!([1, 2]);
    rig.put("/v1/flows/stage", flow).await.is_problem(422);
}
