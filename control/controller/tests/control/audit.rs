//! The audit log, the budgets of nodes, and the identifiers of requests.

use crate::rig::{Answer, Caller, Identity, Rig, config, flow, key_and_request};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeSet;

fn items(answer: &Answer) -> &Vec<Value> {
    answer.body["items"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", answer.body))
}

/// Returns `kind action name` of each entry; for an enrolment token only the node of its name.
fn summaries(entries: &[Value]) -> Vec<String> {
    let word = |entry: &Value, key: &str| {
        entry[key]
            .as_str()
            .unwrap()
            .split('/')
            .next()
            .unwrap()
            .to_owned()
    };
    entries
        .iter()
        .map(|e| {
            format!(
                "{} {} {}",
                word(e, "kind"),
                word(e, "action"),
                word(e, "name")
            )
        })
        .collect()
}

fn request_id(answer: &Answer) -> String {
    answer.headers["x-request-id"].to_str().unwrap().to_owned()
}

/// Observations that need no decision.
fn silent(count: usize) -> Value {
    let silent = json!({ "kind": "path_silent", "flow": "stage", "path": 1 });
    json!({ "revision": 0, "observations": vec![silent; count] })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_audited_with_actor_and_request() {
    let rig = Rig::new().await;
    let [ingress, _] = rig.two_nodes(2, flow("replicate", true)).await;
    let csr = json!({ "csr": key_and_request().1 });
    let renewed = rig
        .call(
            Caller::Node(&ingress),
            "POST",
            "/v1/nodes/in/certificate",
            Some(csr),
        )
        .await;
    assert_eq!(renewed.status, StatusCode::CREATED, "{}", renewed.body);
    rig.post(
        "/v1/tokens",
        json!({ "name": "eyes", "scope": "read", "tenant": "acme" }),
    )
    .await;
    let mut changed = rig.get("/v1/flows/stage").await.body;
    changed["mode"] = "evidence".into();
    let change = rig.put("/v1/flows/stage", changed).await;
    rig.put("/v1/policies/stage", json!({ "code": 1 })).await;
    rig.delete("/v1/policies/stage").await;
    rig.delete("/v1/flows/stage").await;
    rig.delete("/v1/nodes/in/certificate").await;
    rig.delete("/v1/nodes/in").await;
    rig.delete("/v1/tokens/eyes").await;
    rig.delete("/v1/flows/stage").await.is_problem(404);

    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    let audit = rig.get("/v1/audit?limit=1000").await;
    let entries = items(&audit);
    assert_eq!(
        summaries(entries),
        [
            "token created admin",
            "tenant created acme",
            "enrolment created in",
            "node enrolled in",
            "enrolment created out",
            "node enrolled out",
            "flow created stage",
            "certificate renewed in",
            "token created eyes",
            "flow changed stage",
            "policy fixed stage",
            "policy released stage",
            "flow deleted stage",
            "certificate revoked in",
            "node deleted in",
            "token deleted eyes",
        ]
    );
    let actor = |role: &str, name: &str| json!({ "role": role, "name": name });
    assert_eq!(
        (&entries[0]["actor"], &entries[0]["address"]),
        (&actor("controller", "test"), &Value::Null)
    );
    assert_eq!(entries[3]["actor"], actor("node", "in"));
    assert_eq!(entries[9]["actor"], actor("operator", "admin"));
    assert_eq!(entries[9]["address"], "192.0.2.1");
    assert_eq!(entries[9]["request"], request_id(&change));
    assert_eq!(entries[7]["request"], request_id(&renewed));

    // Each change of the flow starts from the revision of the previous one.
    assert_eq!(
        (&entries[6]["before"], &entries[6]["after"]),
        (&Value::Null, &entries[6]["number"])
    );
    assert_eq!(entries[9]["before"], entries[6]["after"]);
    assert_eq!(entries[12]["before"], entries[9]["after"]);
    assert_eq!(entries[12]["after"], Value::Null);

    let rest = rig
        .get(&format!(
            "/v1/audit?after={}&limit=2",
            entries[11]["number"]
        ))
        .await;
    assert_eq!(
        summaries(items(&rest)),
        ["flow deleted stage", "certificate revoked in"]
    );
    assert_eq!(rest.body["next"], entries[13]["number"].to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_names_each_enrolment_token() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let mut names = Vec::new();
    for _ in 0..2 {
        let token = rig.invite("in").await;
        names.push(format!("in/{}", token.split('.').nth(2).unwrap()));
    }
    let withdrawn = rig
        .delete(&format!(
            "/v1/nodes/{}",
            names[0].replace('/', "/enrolment/")
        ))
        .await;
    assert_eq!(
        withdrawn.status,
        StatusCode::NO_CONTENT,
        "{}",
        withdrawn.body
    );

    let audit = rig.get("/v1/audit").await;
    let [.., first, second, removal] = &items(&audit)[..] else {
        panic!("{}", audit.body)
    };
    for (entry, name) in [
        (first, &names[0]),
        (second, &names[1]),
        (removal, &names[0]),
    ] {
        assert_eq!(
            (&entry["kind"], &entry["name"]),
            (&json!("enrolment"), &json!(name))
        );
    }
    assert_eq!(
        (&first["action"], &first["before"], &first["after"]),
        (&json!("created"), &Value::Null, &first["number"])
    );
    assert_eq!(removal["action"], "withdrawn");
    assert_eq!(
        (&removal["before"], &removal["after"]),
        (&second["after"], &Value::Null)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_one_tenant_sees_the_audit_of_that_tenant() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    rig.tenant("other").await;
    let token = json!({ "name": "eyes", "scope": "read", "tenant": "acme" });
    let secret = rig.post("/v1/tokens", token).await.body["secret"]
        .as_str()
        .unwrap()
        .to_owned();
    let audit = rig
        .call(Caller::Operator(&secret), "GET", "/v1/audit", None)
        .await;
    assert_eq!(
        summaries(items(&audit)),
        ["tenant created acme", "token created eyes"]
    );
    rig.call(Caller::Anonymous, "GET", "/v1/audit", None)
        .await
        .is_problem(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_the_audit_or_in_events() {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let token = rig.invite("in").await;
    let (key, csr) = key_and_request();
    let body = json!({ "token": token, "csr": csr });
    let enrolled = rig
        .call(Caller::Anonymous, "POST", "/v1/enrol", Some(body))
        .await;
    let node = Identity::of(&key, &enrolled.body);
    let bearer = rig
        .post("/v1/tokens", json!({ "name": "eyes", "scope": "read" }))
        .await;
    let signal_key = rig.stream(&node).await.next_of("assignment").await["signal_key"].clone();
    let parts: Vec<&str> = token.split('.').collect();
    for list in ["/v1/audit?limit=1000", "/v1/events?limit=1000"] {
        let text = rig.get(list).await.body.to_string();
        for secret in [
            parts[3],
            &rig.admin,
            bearer.body["secret"].as_str().unwrap(),
            signal_key.as_str().unwrap(),
        ] {
            assert!(
                !text.contains(secret.trim_start_matches("hawser-")),
                "{list} has a secret"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_tells_above_its_budget_is_counted_and_said_once() {
    let rig = Rig::with(|config| {
        config.limits.max_node_events = 100;
        config.limits.node_events_per_s = 1e-3;
    })
    .await;
    let [ingress, egress] = rig.two_nodes(2, flow("evidence", true)).await;
    let audited = rig.get("/v1/audit").await.body;
    for _ in 0..45 {
        assert_eq!(
            rig.report(&egress, silent(256)).await.status,
            StatusCode::NO_CONTENT
        );
    }
    let events = rig.get("/v1/events?limit=1000").await;
    let count = |kind: &str| {
        items(&events)
            .iter()
            .filter(|event| event["kind"] == kind)
            .count()
    };
    assert_eq!((count("path_silent"), count("node_over_budget")), (100, 1));
    assert_eq!(
        count("token_created"),
        1,
        "what operators did is there as well"
    );
    let metrics = rig.get("/metrics").await.body;
    let withheld = format!(
        "hawser_controller_refused_total{{reason=\"node_events\"}} {}",
        45 * 256 - 100
    );
    assert!(
        metrics.as_str().unwrap().contains(&withheld),
        "{withheld} in\n{metrics}"
    );
    assert_eq!(rig.get("/v1/audit").await.body, audited);

    // Another node has its own budget.
    let applied =
        json!({ "kind": "applied", "flow": "stage", "epoch": 1, "code": 0, "by_signal": false });
    rig.observe(&ingress, applied).await;
    assert!(
        rig.get("/v1/events?limit=1000")
            .await
            .body
            .to_string()
            .contains("policy_applied")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_registers_without_end_must_wait() {
    let rig = Rig::with(|config| {
        config.limits.max_node_events = 20;
        config.limits.node_changes_per_s = 1e-3;
    })
    .await;
    rig.tenant("acme").await;
    let node = rig.enrol("in").await;
    let mut refused = None;
    for round in 0..30 {
        let body = json!({ "version": format!("{round}"), "paths": [] });
        let answer = rig
            .call(
                Caller::Node(&node),
                "PUT",
                "/v1/nodes/in/registration",
                Some(body),
            )
            .await;
        if answer.status != StatusCode::NO_CONTENT {
            refused = Some(answer);
        }
    }
    let refused = refused.expect("thirty are more than twenty");
    refused.is_problem(429);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(
        rig.report(&node, json!({ "revision": 0 })).await.status,
        StatusCode::NO_CONTENT
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_names_its_request() {
    let rig = Rig::new().await;
    let answers = [
        rig.get("/v1/flows").await,
        rig.get("/v1/flows").await,
        rig.get("/v1/flows/none").await,
        rig.get("/nowhere").await,
        rig.call(Caller::Anonymous, "GET", "/v1/flows", None).await,
        rig.call(Caller::Anonymous, "PATCH", "/v1/flows", None)
            .await,
        rig.call(Caller::Anonymous, "GET", "/healthz", None).await,
        rig.post("/v1/tenants", json!([])).await,
    ];
    let ids: BTreeSet<String> = answers.iter().map(request_id).collect();
    assert_eq!(ids.len(), answers.len(), "no two requests have one name");
    assert!(
        ids.iter()
            .all(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())),
        "{ids:?}"
    );
}
