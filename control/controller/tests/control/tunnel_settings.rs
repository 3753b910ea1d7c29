//! The settings of tunnel clients: what operators set, and what clients get and say.

use crate::rig::{Answer, Caller, Identity, Rig, config};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

const OF_CAR: &str = "/v1/nodes/car/tunnel-settings";

impl Rig {
    /// Asks for tunnel servers with a report about settings.
    async fn asks_with(&self, node: &Identity, report: Value) -> Answer {
        let path = format!("/v1/nodes/{}/tunnel-client", node.name);
        self.call(Caller::Node(node), "POST", &path, Some(report))
            .await
    }

    /// Returns the settings for a client, and their revision.
    async fn given(&self, node: &Identity) -> (Value, Value) {
        let answer = self.asks_with(node, applied(Value::Null)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let given = &answer.body["settings"];
        (given["settings"].clone(), given["revision"].clone())
    }

    /// Returns the state of the settings of the only client, and the reason.
    async fn state(&self) -> (Value, Value) {
        let list = self.get("/v1/tunnel-clients").await;
        let items = list.body["items"].as_array().unwrap();
        assert_eq!(items.len(), 1, "{}", list.body);
        (items[0]["state"].clone(), items[0]["reason"].clone())
    }

    async fn set_if(&self, path: &str, tag: &str, body: Value) -> Answer {
        let request = Request::put(path)
            .header(CONTENT_TYPE, "application/json")
            .header(IF_MATCH, tag)
            .body(Body::from(body.to_string()))
            .unwrap();
        Answer::of(self.request(Caller::Operator(&self.admin), request).await).await
    }

    async fn kinds(&self) -> Vec<Value> {
        let events = self.get("/v1/events?limit=1000").await;
        let events = events.body["items"].as_array().unwrap().clone();
        events.iter().map(|event| event["kind"].clone()).collect()
    }
}

/// The report of a client that accepts settings and has applied those of that revision.
fn applied(revision: Value) -> Value {
    json!({ "accepts_settings": true, "applied": revision })
}

fn cost(interface: &str, cost: u8) -> Value {
    json!({ "interface": interface, "cost": cost })
}

fn uplinks(uplinks: &[Value]) -> Value {
    json!({ "uplink": uplinks })
}

async fn with_car() -> (Rig, Identity) {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let car = rig.enrol("car").await;
    (rig, car)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_settings_of_its_node() {
    let (rig, car) = with_car().await;
    let (none, before) = rig.given(&car).await;
    assert_eq!(none, json!({}));
    let settings = json!({ "uplink": [{ "interface": "wwan*", "cost": 1, "mtu_bytes": 1400, "monthly_cap_mb": 5000 }],
        "search_every_s": 600, "report_every_s": 10 });
    let set = rig.put(OF_CAR, settings.clone()).await;
    assert_eq!(set.status, StatusCode::OK, "{}", set.body);
    let (given, revision) = rig.given(&car).await;
    assert_eq!(given, settings);
    assert_eq!(set.headers[ETAG], format!("\"{revision}\""));
    assert!(revision.as_u64() > before.as_u64());
    // Other nodes do not get them.
    let van = rig.enrol("van").await;
    assert_eq!(rig.given(&van).await.0, json!({}));

    // They persist across a restart of the controller.
    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    assert_eq!(rig.given(&car).await, (settings, revision.clone()));
    // A removal is a later state.
    let answer = rig.delete(OF_CAR).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    assert_eq!(rig.get(OF_CAR).await.body, json!({}));
    let (given, removed) = rig.given(&car).await;
    assert_eq!(given, json!({}));
    assert!(removed.as_u64() > revision.as_u64());
    // So is another node of the name, which has no settings.
    rig.put(OF_CAR, uplinks(&[cost("wwan*", 1)])).await;
    let (_, last) = rig.given(&car).await;
    rig.delete("/v1/nodes/car").await;
    let car = rig.enrol("car").await;
    let (given, another) = rig.given(&car).await;
    assert_eq!(given, json!({}));
    assert!(another.as_u64() > last.as_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_sees_what_has_become_of_the_settings() {
    let (rig, car) = with_car().await;
    rig.put(OF_CAR, uplinks(&[cost("wwan*", 1)])).await;
    assert_eq!(rig.state().await, (json!("pending"), Value::Null));
    let (_, first) = rig.given(&car).await;
    assert_eq!(rig.state().await, (json!("pending"), Value::Null));
    rig.asks_with(&car, applied(first.clone())).await;
    assert_eq!(rig.state().await, (json!("applied"), Value::Null));

    rig.put(OF_CAR, uplinks(&[cost("wwan*", 2)])).await;
    assert_eq!(rig.state().await, (json!("pending"), Value::Null));
    let answer = rig.asks_with(&car, applied(first.clone())).await;
    let second = answer.body["settings"]["revision"].clone();
    let mut refuses = applied(first);
    refuses["refused"] = json!({ "revision": second, "reason": "above the limit" });
    for _ in 0..2 {
        rig.asks_with(&car, refuses.clone()).await;
        assert_eq!(
            rig.state().await,
            (json!("refused"), json!("above the limit"))
        );
    }
    let kinds = rig.kinds().await;
    let refusals = kinds
        .iter()
        .filter(|kind| *kind == "tunnel_settings_refused");
    assert_eq!(refusals.count(), 1, "a refusal is one event");

    let closed = json!({ "accepts_settings": false });
    rig.asks_with(&car, closed).await;
    assert_eq!(rig.state().await, (json!("not_accepted"), Value::Null));

    // A later node of the name inherits neither settings nor state.
    rig.delete("/v1/nodes/car").await;
    let car = rig.enrol("car").await;
    assert_eq!(rig.get("/v1/tunnel-clients").await.body["items"], json!([]));
    assert_eq!(rig.given(&car).await.0, json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_the_tenants_and_clients_report_themselves() {
    let (rig, car) = with_car().await;
    let van = rig.enrol("van").await;
    let set = uplinks(&[cost("wwan*", 1)]);
    rig.put(OF_CAR, set.clone()).await;
    rig.tenant("other").await;
    let token = async |name: &str, scope: &str, tenant: &str| {
        let token = json!({ "name": name, "scope": scope, "tenant": tenant });
        let answer = rig.post("/v1/tokens", token).await;
        answer.body["secret"].as_str().unwrap().to_owned()
    };
    let theirs = token("theirs", "operate", "other").await;
    let reader = token("reader", "read", "acme").await;
    let operator = token("operator", "operate", "acme").await;
    for (method, body) in [("GET", None), ("PUT", Some(&set)), ("DELETE", None)] {
        let call = async |caller| rig.call(caller, method, OF_CAR, body.cloned()).await;
        call(Caller::Operator(&theirs)).await.is_problem(404);
        call(Caller::Anonymous).await.is_problem(401);
        // A node gets what is meant for it with its servers.
        call(Caller::Node(&car)).await.is_problem(401);
        if method != "GET" {
            call(Caller::Operator(&reader)).await.is_problem(403);
        }
    }
    let call = async |caller, body| rig.call(caller, "PUT", OF_CAR, Some(body)).await;
    let answer = call(Caller::Operator(&operator), set.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let list = rig
        .call(Caller::Operator(&theirs), "GET", "/v1/tunnel-clients", None)
        .await;
    assert_eq!(list.body["items"], json!([]));
    let path = "/v1/nodes/car/tunnel-client";
    let report = Some(applied(Value::Null));
    rig.call(Caller::Node(&van), "POST", path, report)
        .await
        .is_problem(403);
    let nothing = "/v1/nodes/none/tunnel-settings";
    rig.put(nothing, set.clone()).await.is_problem(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused() {
    let (rig, car) = with_car().await;
    let many = vec![cost("wwan0", 1); 17];
    for (wrong, word) in [
        (uplinks(&[cost("", 1)]), "is not the name of an interface"),
        (
            uplinks(&[cost("w*n", 1)]),
            "is not the name of an interface",
        ),
        (
            uplinks(&[cost("abcdefghijklmnop", 1)]),
            "is not the name of an interface",
        ),
        (uplinks(&many), "at most 16"),
        (uplinks(&[json!({ "interface": "a", "cost": 256 })]), "256"),
        (uplinks(&[json!({ "interface": "a", "price": 1 })]), "price"),
        (json!({ "search_every_s": 1 }), "search_every_s"),
        (json!({ "report_every_s": 86_401 }), "report_every_s"),
        (
            uplinks(&[json!({ "interface": "a", "mtu_bytes": 500 })]),
            "mtu_bytes",
        ),
        (
            uplinks(&[json!({ "interface": "a", "monthly_cap_mb": 0 })]),
            "monthly_cap_mb",
        ),
        // Keys that only the client's file may have.
        (json!({ "lan": ["0.0.0.0/0"] }), "`lan`"),
        (json!({ "kill_switch": false }), "`kill_switch`"),
    ] {
        let answer = rig.put(OF_CAR, wrong.clone()).await;
        answer.is_problem(422);
        let detail = answer.body["detail"].as_str().unwrap();
        assert!(detail.contains(word), "{detail}");
    }
    assert_eq!(rig.get(OF_CAR).await.body, json!({}));
    let mut report = applied(Value::Null);
    report["refused"] = json!({ "revision": 1, "reason": "x".repeat(501) });
    rig.asks_with(&car, report).await.is_problem(422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_overwrites_no_other_one_and_is_in_the_audit_log() {
    let (rig, _) = with_car().await;
    let set = |value: u8| uplinks(&[cost("wwan*", value)]);
    let unset = rig.get(OF_CAR).await;
    assert_eq!(unset.headers[ETAG], "\"0\"");
    let first = rig.set_if(OF_CAR, "\"0\"", set(1)).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.body);
    let tag = first.headers[ETAG].to_str().unwrap().to_owned();
    assert_eq!(rig.get(OF_CAR).await.headers[ETAG], *tag);
    rig.set_if(OF_CAR, "\"0\"", set(2)).await.is_problem(412);
    let second = rig.set_if(OF_CAR, &tag, set(2)).await;
    assert_eq!(second.status, StatusCode::OK, "{}", second.body);
    // The same settings again are no change.
    let again = rig.put(OF_CAR, set(2)).await;
    assert_eq!(again.headers[ETAG], second.headers[ETAG]);
    rig.set_if(OF_CAR, &tag, set(3)).await.is_problem(412);
    // Neither is a removal of none.
    for _ in 0..2 {
        rig.delete(OF_CAR).await;
        assert_eq!(rig.get(OF_CAR).await.body, json!({}));
    }

    let audit = rig.get("/v1/audit?limit=1000").await;
    let entries = audit.body["items"].as_array().unwrap().iter();
    let entries = entries.filter(|entry| entry["kind"] == "tunnel_settings");
    let actions: Vec<_> = entries
        .map(|entry| (entry["name"].clone(), entry["action"].clone()))
        .collect();
    let of = |action: &str| (json!("car"), json!(action));
    assert_eq!(actions, [of("changed"), of("changed"), of("deleted")]);
}
