//! The resources that operators can read and change, and the requests that are rejected.

use crate::rig::{Caller, Rig, flow};
use axum::body::Body;
use axum::http::header::{ALLOW, CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_can_be_seen_changed_and_removed() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.invite("in").await;
    rig.invite("out").await;
    let made = rig.post("/v1/flows", flow("evidence", true)).await;
    assert_eq!(
        (made.status, &made.headers[LOCATION]),
        (StatusCode::CREATED, &"/v1/flows/stage".parse().unwrap())
    );
    assert_eq!(rig.get("/v1/flows/stage").await.body, made.body);
    assert_eq!(rig.policy("stage").await["epoch"], 1);
    assert_eq!(rig.get("/v1/nodes/in").await.body["alive"], false);

    let mut changed = made.body.clone();
    changed["mode"] = "replicate".into();
    assert_eq!(
        rig.put("/v1/flows/stage", changed.clone()).await.status,
        StatusCode::OK
    );
    assert_eq!(rig.get("/v1/flows/stage").await.body, changed);
    assert_eq!(rig.policy("stage").await["epoch"], 2);
    changed["egress"] = "in".into();
    rig.put("/v1/flows/stage", changed).await.is_problem(422);

    rig.post("/v1/flows", flow("evidence", true))
        .await
        .is_problem(409);
    rig.delete("/v1/nodes/in").await.is_problem(409);
    let in_use = rig.delete("/v1/tenants/acme").await;
    in_use.is_problem(409);
    let why = "acme still has the flow stage, the nodes in, out; delete them first";
    assert_eq!(in_use.body["detail"], why);
    for path in [
        "/v1/flows/stage",
        "/v1/nodes/in",
        "/v1/nodes/out",
        "/v1/tenants/acme",
    ] {
        assert_eq!(
            rig.delete(path).await.status,
            StatusCode::NO_CONTENT,
            "{path}"
        );
        rig.get(path).await.is_problem(404);
    }
    let events = rig.get("/v1/events?limit=1000").await.body;
    let kinds: Vec<&str> = events["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["kind"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "token_created",
            "tenant_created",
            "enrolment_created",
            "enrolment_created",
            "flow_created",
            "flow_changed",
            "flow_deleted",
            "node_deleted",
            "node_deleted",
            "tenant_deleted"
        ]
    );
    assert!(
        events["items"][4]["message"]
            .as_str()
            .unwrap()
            .starts_with("admin "),
        "events name who did it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_come_in_pages_that_miss_nothing() {
    let rig = Rig::new().await;
    for number in 0..7 {
        rig.tenant(&format!("t{number}")).await;
    }
    let mut seen: Vec<Value> = Vec::new();
    let mut path = "/v1/tenants?limit=3".to_owned();
    loop {
        let page = rig.get(&path).await.body;
        assert!(page["items"].as_array().unwrap().len() <= 3);
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|tenant| tenant["name"].clone()),
        );
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/v1/tenants?limit=3&after={next}");
    }
    assert_eq!(
        seen,
        (0..7)
            .map(|number| json!(format!("t{number}")))
            .collect::<Vec<_>>()
    );
    for list in [
        "tenants", "nodes", "paths", "flows", "policies", "reports", "events", "audit", "tokens",
    ] {
        assert_eq!(
            rig.get(&format!("/v1/{list}?limit=2")).await.status,
            StatusCode::OK,
            "{list}"
        );
        rig.get(&format!("/v1/{list}?limit=0"))
            .await
            .is_problem(400);
        rig.get(&format!("/v1/{list}?limit=x"))
            .await
            .is_problem(400);
        rig.get(&format!("/v1/{list}?limti=1"))
            .await
            .is_problem(400);
    }
    assert_eq!(
        rig.get("/v1/tenants?after=t3~").await.body["items"][0]["name"],
        "t4"
    );
    for number in ["x", "-1", "18446744073709551616"] {
        rig.get(&format!("/v1/events?after={number}"))
            .await
            .is_problem(400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_what_its_scope_and_tenant_allow() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.tenant("other").await;
    rig.invite("in").await;
    rig.post("/v1/nodes/theirs/enrolment", json!({ "tenant": "other" }))
        .await;
    let token = async |name: &str, scope: &str, tenant: Option<&str>| {
        let answer = rig
            .post(
                "/v1/tokens",
                json!({ "name": name, "scope": scope, "tenant": tenant }),
            )
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["secret"].as_str().unwrap().to_owned()
    };
    let reader = token("reader", "read", None).await;
    let acme = token("acme-operator", "operate", Some("acme")).await;
    let call = async |token: &str, method: &str, path: &str, body: Option<Value>| {
        rig.call(Caller::Operator(token), method, path, body).await
    };

    assert_eq!(
        call(&reader, "GET", "/v1/nodes", None).await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    call(&reader, "POST", "/v1/flows", Some(flow("single", false)))
        .await
        .is_problem(403);
    call(&reader, "DELETE", "/v1/nodes/in", None)
        .await
        .is_problem(403);
    call(
        &acme,
        "POST",
        "/v1/tokens",
        Some(json!({ "name": "x", "scope": "read" })),
    )
    .await
    .is_problem(403);
    assert_eq!(
        call(&acme, "GET", "/v1/nodes", None).await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    call(&acme, "GET", "/v1/nodes/theirs", None)
        .await
        .is_problem(404);
    call(&acme, "DELETE", "/v1/nodes/theirs", None)
        .await
        .is_problem(404);
    call(
        &acme,
        "POST",
        "/v1/nodes/x/enrolment",
        Some(json!({ "tenant": "other" })),
    )
    .await
    .is_problem(403);
    let events = call(&acme, "GET", "/v1/events", None).await.body;
    assert!(
        events["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|event| event["tenant"] == "acme")
    );
    assert_eq!(
        call(&acme, "GET", "/v1/me", None).await.body["tenant"],
        "acme"
    );

    assert_eq!(
        rig.delete("/v1/tokens/reader").await.status,
        StatusCode::NO_CONTENT
    );
    call(&reader, "GET", "/v1/nodes", None)
        .await
        .is_problem(401);
    rig.delete("/v1/tokens/admin").await.is_problem(409);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_says_what_to_do() {
    let rig = Rig::with(|config| config.limits.body_bytes = 4096).await;
    let admin = Caller::Operator(&rig.admin);
    let send = async |content: Option<&str>, body: Vec<u8>| {
        let mut request = Request::post("/v1/tenants");
        if let Some(content) = content {
            request = request.header(CONTENT_TYPE, content);
        }
        let response = rig
            .request(admin.clone(), request.body(Body::from(body)).unwrap())
            .await;
        let kind = response.headers()[CONTENT_TYPE].clone();
        assert_eq!(kind, "application/problem+json");
        response.status().as_u16()
    };
    assert_eq!(send(None, b"{}".into()).await, 415);
    assert_eq!(send(Some("text/plain"), b"{}".into()).await, 415);
    assert_eq!(send(Some("application/json"), b"{".into()).await, 400);
    assert_eq!(
        send(
            Some("application/json; charset=utf-8"),
            b"{\"name\": \"-\"}".into()
        )
        .await,
        422
    );
    assert_eq!(
        send(
            Some("application/json"),
            b"{\"name\": \"a\", \"unknown\": 1}".into()
        )
        .await,
        422
    );
    assert_eq!(send(Some("application/json"), b"[\"a\"]".into()).await, 422);
    assert_eq!(send(Some("application/json"), vec![b' '; 5000]).await, 413);
    assert_eq!(send(Some("application/json"), vec![0xff; 10]).await, 400);

    rig.get("/v1/nothing").await.is_problem(404);
    rig.get("/").await.is_problem(404);
    rig.get("/v1/flows/no%2Fname").await.is_problem(400);
    rig.get("/v1/flows/%ff").await.is_problem(400);
    let wrong_method = rig.call(admin.clone(), "PATCH", "/v1/flows", None).await;
    wrong_method.is_problem(405);
    assert_eq!(wrong_method.headers[ALLOW], "GET,HEAD,POST");
    let anonymous = rig.call(Caller::Anonymous, "GET", "/v1/flows", None).await;
    anonymous.is_problem(401);
    assert!(anonymous.headers.contains_key(WWW_AUTHENTICATE));
    rig.call(admin.clone(), "GET", "/v1/nodes/in/stream", None)
        .await
        .is_problem(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_and_requests_are_limited_by_who_makes_them() {
    let rig = Rig::with(|config| config.limits.operator_requests_per_s = 1.0).await;
    // As many as any machine sends faster than the limits grow.
    let refused = async |token: &str| {
        loop {
            let caller = Caller::Operator(token);
            let answer = rig.call(caller, "GET", "/v1/flows", None).await;
            if answer.status == StatusCode::TOO_MANY_REQUESTS {
                return answer;
            }
        }
    };
    let last = refused("wrong").await;
    last.is_problem(429);
    assert!(last.headers.contains_key(RETRY_AFTER));
    assert_eq!(
        rig.get("/v1/flows").await.status,
        StatusCode::OK,
        "what is right is not locked out"
    );
    refused(&rig.admin).await.is_problem(429);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_describes_the_routes_that_there_are() {
    let rig = Rig::new().await;
    let document = rig.get("/openapi.json").await.body;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(rig.get("/docs/").await.status, StatusCode::OK);
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 20);
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(
                operation["summary"].is_string(),
                "{method} {path} says what it is for"
            );
            let path = path.replace(['{', '}'], "");
            let answer = rig
                .call(Caller::Anonymous, &method.to_uppercase(), &path, None)
                .await;
            assert!(
                !matches!(answer.status.as_u16(), 404 | 405),
                "{method} {path}: {}",
                answer.status
            );
            let documented = operation["responses"].as_object().unwrap();
            assert!(
                documented.contains_key(answer.status.as_str()),
                "{method} {path}: {}",
                answer.status
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_tell_how_it_is() {
    let rig = Rig::new().await;
    let [_, egress] = rig.two_nodes(2, flow("replicate", false)).await;
    rig.receive(&egress).await;
    rig.until(async || rig.policy("stage").await["code"] == 0b11)
        .await;
    assert_eq!(
        rig.call(Caller::Anonymous, "GET", "/healthz", None)
            .await
            .status,
        StatusCode::OK
    );
    rig.call(Caller::Anonymous, "GET", "/metrics", None)
        .await
        .is_problem(401);
    let metrics = rig.get("/metrics").await.body.as_str().unwrap().to_owned();
    for line in [
        "hawser_controller_nodes_alive 2",
        "hawser_controller_is_leader 1",
        r#"hawser_controller_flows{mode="replicate",state="replicated"} 1"#,
        r#"hawser_controller_refused_total{reason="no_token"} 1"#,
        r#"hawser_controller_requests_total{method="POST",route="/v1/flows",status="201"} 1"#,
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
}
