//! Changes of some fields by merge patches.

use crate::rig::{Answer, Caller, Rig, flow};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

const MERGE_PATCH: &str = "application/merge-patch+json";

impl Rig {
    async fn patch_as(&self, kind: &str, tag: Option<&str>, path: &str, patch: Value) -> Answer {
        let request = Request::builder().method("PATCH").uri(path);
        let mut request = request.header(CONTENT_TYPE, kind);
        if let Some(tag) = tag {
            request = request.header(IF_MATCH, tag);
        }
        let request = request.body(Body::from(patch.to_string())).unwrap();
        Answer::of(self.request(Caller::Operator(&self.admin), request).await).await
    }

    async fn patch(&self, path: &str, patch: Value) -> Answer {
        self.patch_as(MERGE_PATCH, None, path, patch).await
    }

    /// Changes a resource, and checks that it can be read with the tag of the response.
    async fn patched(&self, path: &str, patch: Value) -> Value {
        let answer = self.patch(path, patch).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let read = self.get(path).await;
        assert_eq!(
            (&read.body, &read.headers[ETAG]),
            (&answer.body, &answer.headers[ETAG])
        );
        answer.body
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_changes_the_named_fields_of_a_flow() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("evidence", true)).await;
    let before = rig.get("/v1/flows/stage").await.body;
    let select = json!({ "protocol": 17, "destination_ports": [5000, 5000] });
    let after = rig
        .patched(
            "/v1/flows/stage",
            json!({ "mode": "replicate", "select": select, "trigger": null }),
        )
        .await;
    let mut expected = before.clone();
    expected["mode"] = "replicate".into();
    expected["trigger"] = Value::Null;
    expected["select"]["protocol"] = 17.into();
    expected["select"]["destination_ports"] = json!([5000, 5000]);
    assert_eq!(after, expected);
    assert_eq!(rig.patched("/v1/flows/stage", json!({})).await, expected);
    let events = rig
        .get("/v1/events?flow=stage&kind=flow_changed")
        .await
        .body;
    let events = events["items"].as_array().unwrap().len();
    assert_eq!(events, 1, "an empty patch changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_changes_descriptions() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("evidence", true)).await;
    for path in ["/v1/tenants/acme", "/v1/nodes/in"] {
        let mut expected = rig.get(path).await.body;
        assert_eq!(expected["description"], "");
        expected["description"] = "first floor".into();
        let after = rig
            .patched(path, json!({ "description": "first floor" }))
            .await;
        assert_eq!(after, expected);
    }
    // The certificate and the reports of the node are not concerned.
    let report = rig.report(&ingress, json!({ "revision": 0 })).await;
    assert_eq!(report.status, StatusCode::NO_CONTENT);
    rig.delete("/v1/nodes/in/certificate").await;
    let node = rig.get("/v1/nodes/in").await.body;
    assert_eq!(
        node["description"], "first floor",
        "it outlives a certificate"
    );
    let removed = rig
        .patched("/v1/nodes/in", json!({ "description": null }))
        .await;
    assert_eq!(removed["description"], "");
    let audit = rig.get("/v1/audit?limit=1000").await.body;
    let count = |kind: &str| {
        let entries = audit["items"].as_array().unwrap().iter();
        let changed = entries.filter(|entry| entry["kind"] == kind && entry["action"] == "changed");
        changed.count()
    };
    assert_eq!([count("tenant"), count("node")], [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_patch_that_is_not_valid_changes_nothing() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("evidence", true)).await;
    let paths = ["/v1/flows/stage", "/v1/nodes/in", "/v1/tenants/acme"];
    let mut before = Vec::new();
    for path in paths {
        before.push(rig.get(path).await.body);
    }
    for (path, patch, status) in [
        ("/v1/flows/stage", json!({ "mode": "fastest" }), 422),
        ("/v1/flows/stage", json!({ "colour": "red" }), 422),
        ("/v1/flows/stage", json!({ "name": "other" }), 422),
        (
            "/v1/flows/stage",
            json!({ "ingress": "out", "egress": "in" }),
            422,
        ),
        (
            "/v1/flows/stage",
            json!({ "select": { "destination": "203.0.113.5/24" } }),
            422,
        ),
        ("/v1/flows/stage", json!(["mode", "single"]), 422),
        ("/v1/flows/none", json!({ "mode": "single" }), 404),
        ("/v1/nodes/in", json!({ "alive": false }), 422),
        ("/v1/nodes/in", json!({ "tenant": "other" }), 422),
        (
            "/v1/nodes/in",
            json!({ "description": "x".repeat(1025) }),
            422,
        ),
        ("/v1/nodes/none", json!({ "description": "x" }), 404),
        ("/v1/tenants/acme", json!({ "name": "other" }), 422),
        (
            "/v1/tenants/acme",
            json!({ "description": "x".repeat(1025) }),
            422,
        ),
        ("/v1/tenants/none", json!({ "description": "x" }), 404),
    ] {
        rig.patch(path, patch).await.is_problem(status);
    }
    for (path, before) in paths.iter().zip(before) {
        assert_eq!(rig.get(path).await.body, before);
        let as_json = rig
            .patch_as("application/json", None, path, json!({}))
            .await;
        as_json.is_problem(415);
        let outdated = rig
            .patch_as(MERGE_PATCH, Some("\"1\""), path, json!({}))
            .await;
        outdated.is_problem(412);
    }
}
