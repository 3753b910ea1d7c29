//! Requests with preconditions on the state that they change.

use crate::rig::{Answer, Caller, Rig, flow};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use hawser_client::OperatorClient;
use hawser_model::resource::{Flow, Mode};
use serde_json::{Value, json};
use std::net::Ipv4Addr;

impl Rig {
    /// Sends a request of the first operator with that tag in `If-Match`.
    async fn call_for(&self, tag: &str, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(IF_MATCH, tag);
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let request = request
            .header(CONTENT_TYPE, "application/json")
            .body(body)
            .unwrap();
        Answer::of(self.request(Caller::Operator(&self.admin), request).await).await
    }

    async fn tag(&self, path: &str) -> String {
        tag(&self.get(path).await)
    }
}

fn tag(answer: &Answer) -> String {
    assert!(answer.status.is_success(), "{}", answer.body);
    answer.headers[ETAG].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_of_two_changes_from_one_read_is_refused() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("evidence", true)).await;
    let read = rig.get("/v1/flows/stage").await;
    let change = |mode: &str| {
        let mut changed = read.body.clone();
        changed["mode"] = mode.into();
        changed
    };
    let first = rig
        .call_for(
            &tag(&read),
            "PUT",
            "/v1/flows/stage",
            Some(&change("redirect")),
        )
        .await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.body);
    assert_ne!(tag(&first), tag(&read));
    let second = rig
        .call_for(
            &tag(&read),
            "PUT",
            "/v1/flows/stage",
            Some(&change("replicate")),
        )
        .await;
    second.is_problem(412);
    assert!(
        second.body["detail"]
            .as_str()
            .unwrap()
            .contains(&tag(&first)),
        "{}",
        second.body
    );
    let now = rig.get("/v1/flows/stage").await;
    assert_eq!(
        (tag(&now), &now.body["mode"]),
        (tag(&first), &json!("redirect"))
    );

    let again = rig
        .call_for(
            &tag(&now),
            "PUT",
            "/v1/flows/stage",
            Some(&change("replicate")),
        )
        .await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.body);
    assert_eq!(
        rig.call_for("*", "PUT", "/v1/flows/stage", Some(&change("single")))
            .await
            .status,
        StatusCode::OK
    );
    assert_eq!(
        rig.put("/v1/flows/stage", change("redirect")).await.status,
        StatusCode::OK
    );
    for (wrong, status) in [
        ("redirect", 400),
        ("W/\"1\"", 412),
        ("\"18446744073709551615\"", 412),
    ] {
        rig.call_for(wrong, "PUT", "/v1/flows/stage", Some(&change("single")))
            .await
            .is_problem(status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_changes_at_once_from_one_read_one_is_made() {
    let rig = Rig::new().await;
    let [_, egress] = rig.two_nodes(2, flow("evidence", true)).await;
    for round in 0..10 {
        let read = rig.get("/v1/flows/stage").await;
        let tag = tag(&read);
        let changes = (0..8).map(|number| {
            let mut changed = read.body.clone();
            changed["trigger"]["late_after_ms"] = (1000 * (round + 1) + number).into();
            let (rig, tag) = (&rig, &tag);
            async move {
                rig.call_for(tag, "PUT", "/v1/flows/stage", Some(&changed))
                    .await
                    .status
                    .as_u16()
            }
        });
        // Reports of a node do not change the tag.
        let silent = json!({ "kind": "path_silent", "flow": "stage", "path": 1 });
        let (statuses, ()) = tokio::join!(join_all(changes), rig.observe(&egress, silent));
        let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
        assert_eq!((count(200), count(412)), (1, 7), "{statuses:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_changeable_resource_checks_its_tag() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("evidence", true)).await;
    rig.post("/v1/tokens", json!({ "name": "eyes", "scope": "read" }))
        .await;
    let policy = rig.tag("/v1/policies/stage").await;
    let fixed = rig
        .call_for(
            &policy,
            "PUT",
            "/v1/policies/stage",
            Some(&json!({ "code": 1 })),
        )
        .await;
    assert_eq!(fixed.status, StatusCode::OK, "{}", fixed.body);
    rig.call_for(
        &policy,
        "PUT",
        "/v1/policies/stage",
        Some(&json!({ "code": 2 })),
    )
    .await
    .is_problem(412);
    rig.call_for(&policy, "DELETE", "/v1/policies/stage", None)
        .await
        .is_problem(412);
    assert_eq!(rig.policy("stage").await["code"], 1);
    let released = rig
        .call_for(&tag(&fixed), "DELETE", "/v1/policies/stage", None)
        .await;
    assert_eq!(tag(&released), rig.tag("/v1/policies/stage").await);

    let certificate = "/v1/nodes/in/certificate";
    rig.call_for("\"1\"", "DELETE", certificate, None)
        .await
        .is_problem(412);
    let node = rig.tag("/v1/nodes/in").await;
    assert_eq!(
        rig.call_for(&node, "DELETE", certificate, None)
            .await
            .status,
        StatusCode::NO_CONTENT
    );
    rig.call_for(&node, "DELETE", certificate, None)
        .await
        .is_problem(412);

    for path in [
        "/v1/flows/stage",
        "/v1/nodes/in",
        "/v1/nodes/out",
        "/v1/tenants/acme",
    ] {
        rig.call_for("\"1\"", "DELETE", path, None)
            .await
            .is_problem(412);
        let now = rig.tag(path).await;
        assert_eq!(
            rig.call_for(&now, "DELETE", path, None).await.status,
            StatusCode::NO_CONTENT,
            "{path}"
        );
    }
    rig.call_for("\"1\"", "DELETE", "/v1/tokens/eyes", None)
        .await
        .is_problem(412);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_egress_does_for_a_flow_changes_no_tag() {
    let rig = Rig::new().await;
    let [_, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    let before = rig.get("/v1/flows/stage").await;
    rig.receive(&egress).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b11)
        .await;
    assert_eq!(rig.tag("/v1/flows/stage").await, tag(&before));
    let mut changed = before.body.clone();
    changed["mode"] = "evidence".into();
    let answer = rig
        .call_for(&tag(&before), "PUT", "/v1/flows/stage", Some(&changed))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_tells_of_tags() {
    let rig = Rig::new().await;
    let document = rig.get("/openapi.json").await.body;
    for (path, reads, changes) in [
        ("/v1/flows/{flow}", true, &["put", "delete"][..]),
        ("/v1/policies/{flow}", true, &["put", "delete"]),
        ("/v1/nodes/{node}", true, &["delete"]),
        ("/v1/tenants/{tenant}", true, &["delete"]),
        ("/v1/nodes/{node}/certificate", false, &["delete"]),
        ("/v1/tokens/{token}", false, &["delete"]),
    ] {
        let operations = &document["paths"][path];
        assert!(
            !reads || operations["get"]["responses"]["200"]["headers"]["ETag"].is_object(),
            "{path}"
        );
        for method in changes {
            let operation = &operations[method];
            let mut parameters = operation["parameters"].as_array().unwrap().iter();
            assert!(
                parameters.any(|p| p["name"] == "If-Match" && p["in"] == "header"),
                "{method} {path}"
            );
            assert!(operation["responses"]["412"].is_object(), "{method} {path}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_replaces_a_flow_only_in_the_state_that_it_has_read() {
    let rig = Rig::new().await;
    rig.two_nodes(2, flow("evidence", true)).await;
    let controller = format!("https://{}", rig.server.address()).parse().unwrap();
    let client =
        OperatorClient::new(&[controller], rig.server.authority_pem(), &rig.admin).unwrap();
    let read = client.tagged_flow(&"stage".parse().unwrap()).await.unwrap();
    let change = |mode| Flow {
        mode,
        ..read.value.clone()
    };
    client
        .replace_flow(&change(Mode::Redirect), &read.tag)
        .await
        .unwrap();
    let refused = client
        .replace_flow(&change(Mode::Replicate), &read.tag)
        .await
        .unwrap_err();
    assert_eq!(refused.status(), Some(412), "{refused}");
    let audit = client.audit(0).all().await.unwrap();
    let last = audit.last().unwrap();
    assert_eq!(
        (&*last.kind, &*last.action, &*last.name),
        ("flow", "changed", "stage")
    );
    assert_eq!(last.address, Some(Ipv4Addr::LOCALHOST.into()));
}
