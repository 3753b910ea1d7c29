//! Removal of outdated state: of deleted nodes in the memory of controllers, and of expired tokens
//! in the store.

use super::controllers::Pair;
use super::{Subject, until};
use hawser_controller::store::Write;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) async fn a_node_inherits_nothing_that_another_controller_keeps(subject: &impl Subject) {
    let store = subject.store();
    let state = TempDir::new().expect("a directory");
    let pair = Pair::start_in(state, &store, |config| {
        // Enough for an enrolment of the node and its first report, but not for more while the test
        // runs.
        config.limits.max_node_events = 20;
        config.limits.node_changes_per_s = 1e-3;
    })
    .await;
    assert_eq!(
        pair.call(1, "POST", "/v1/tenants", Some(json!({ "name": "acme" })))
            .await
            .0,
        201
    );
    let before = pair.enrol(1, "edge").await;
    let (status, answer) = pair
        .call_as(
            &before,
            1,
            "POST",
            "/v1/nodes/edge/reports",
            Some(json!({ "revision": 0 })),
        )
        .await;
    assert_eq!(status, 204, "{answer}");
    assert_eq!(pair.call(1, "GET", "/v1/reports/edge", None).await.0, 200);
    let mut registrations = 0;
    while pair
        .registers(&before, 1, "edge", &format!("{registrations}"))
        .await
        == 204
    {
        registrations += 1;
    }
    assert!((1..20).contains(&registrations), "{registrations}");

    // The other controller deletes the node and creates one of the same name.
    until(async || pair.call(0, "DELETE", "/v1/nodes/edge", None).await.0 == 204).await;
    let after = pair.enrol(0, "edge").await;
    until(async || pair.call_as(&after, 1, "GET", "/v1/me", None).await.0 == 200).await;
    let (status, report) = pair.call(1, "GET", "/v1/reports/edge", None).await;
    assert_eq!(status, 404, "{report}");
    let (_, node) = pair.call(1, "GET", "/v1/nodes/edge", None).await;
    assert_eq!(
        (&node["alive"], &node["seen_unix_ms"]),
        (&json!(false), &Value::Null),
        "{node}"
    );
    assert_eq!(
        pair.registers(&after, 1, "edge", "1").await,
        204,
        "its budget is its own"
    );
    let (_, node) = pair.call(1, "GET", "/v1/nodes/edge", None).await;
    assert_eq!(node["alive"], true, "{node}");
    pair.stop().await;
}

pub(crate) async fn an_expired_token_stays_until_others_need_its_place(subject: &impl Subject) {
    let store = subject.store();
    let expired = |id: usize| json!({ "id": id.to_string(), "secret_sha256": "00", "created_unix_ms": 0, "expires_unix_ms": id + 1, "used": null });
    let expired: Vec<Value> = (0..32).map(expired).collect();
    let node =
        json!({ "tenant": "acme", "signal_key": null, "certificates": [], "enrolments": expired });
    let writes = vec![
        Write::put(
            "tenant/acme",
            json!({ "name": "acme" }).to_string().into_bytes(),
        ),
        Write::put("node/edge", node.to_string().into_bytes()),
    ];
    let tag = format!("\"{}\"", store.commit(writes).await.expect("written"));
    let pair = Pair::start(&store).await;
    pair.leads().await;
    for whom in [0, 1] {
        assert_eq!(pair.tag(whom, "/v1/nodes/edge").await, tag);
    }
    let path = "/v1/nodes/edge/enrolment";
    let tenant = json!({ "tenant": "acme" });
    let (status, answer) = pair.call(0, "POST", path, Some(tenant)).await;
    assert_eq!(status, 201, "{answer}");
    let node = store.get("node/edge").await.expect("read").expect("held");
    let node: Value = serde_json::from_slice(&node.value).expect("JSON");
    let left = node["enrolments"].as_array().expect("a list");
    assert_eq!((left.len(), &left[0]["id"]), (32, &json!("1")));
    let (path, tag) = ("/v1/nodes/edge", pair.tag(0, "/v1/nodes/edge").await);
    assert_eq!(pair.call_for(&tag, 0, "DELETE", path).await, 204);
    pair.stop().await;
}
