//! The settings of tunnel clients: what operators set, and what clients get and say.

use crate::rig::{Answer, Caller, Identity, Rig, config, key_and_request};
use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

const OF_TENANT: &str = "/v1/tenants/acme/tunnel-settings";
const OF_NODE: &str = "/v1/nodes/car/tunnel-settings";

impl Rig {
    /// Asks for tunnel servers with a report about settings.
    async fn asks_with(&self, node: &Identity, report: Value) -> Answer {
        let path = format!("/v1/nodes/{}/tunnel-client", node.name);
        self.call(Caller::Node(node), "POST", &path, Some(report))
            .await
    }

    /// Returns the settings for a client, and their digest.
    async fn given(&self, node: &Identity) -> (Value, Value) {
        let answer = self.asks_with(node, applied(Value::Null)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        let given = &answer.body["settings"];
        (given["settings"].clone(), given["digest"].clone())
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

/// The report of a client that accepts settings and has applied those with that digest.
fn applied(digest: Value) -> Value {
    json!({ "accepts_settings": true, "applied": digest })
}

fn cost(interface: &str, cost: u8) -> Value {
    json!({ "interface": interface, "cost": cost })
}

fn uplinks(uplinks: &[Value]) -> Value {
    json!({ "uplinks": uplinks })
}

async fn with_car() -> (Rig, Identity) {
    let rig = Rig::new().await;
    rig.tenant("acme").await;
    let car = rig.enrol("car").await;
    (rig, car)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_the_settings_of_its_node_before_those_of_its_tenant() {
    let (rig, car) = with_car().await;
    let (none, of_none) = rig.given(&car).await;
    assert_eq!(none, json!({}));
    let of_tenant = json!({ "uplinks": [{ "interface": "wwan*", "cost": 1, "mtu_bytes": 1400, "monthly_cap_mb": 5000 }],
        "search_every_s": 600, "report_every_s": 10 });
    let answer = rig.put(OF_TENANT, of_tenant.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    let (given, digest) = rig.given(&car).await;
    assert_eq!(given, of_tenant);
    assert_ne!(digest, of_none);
    let mut of_node = uplinks(&[cost("wwan0", 2)]);
    of_node["search_every_s"] = json!(0);
    rig.put(OF_NODE, of_node.clone()).await;
    let both = json!({ "uplinks": [of_node["uplinks"][0], of_tenant["uplinks"][0]],
        "search_every_s": 0, "report_every_s": 10 });
    assert_eq!(rig.given(&car).await.0, both);
    // Other nodes, and those of other tenants, do not get them.
    let van = rig.enrol("van").await;
    assert_eq!(rig.given(&van).await.0, of_tenant);
    rig.tenant("other").await;
    let token = json!({ "tenant": "other" });
    let token = rig.post("/v1/nodes/theirs/enrolment", token).await;
    let (key, csr) = key_and_request();
    let enrol = json!({ "token": token.body["token"], "csr": csr });
    let enrolled = rig
        .call(Caller::Anonymous, "POST", "/v1/enrol", Some(enrol))
        .await;
    let theirs = Identity::of(&key, &enrolled.body);
    assert_eq!(rig.given(&theirs).await.0, json!({}));

    // They persist across a restart of the controller.
    let directory = rig.stop().await;
    let rig = Rig::start(config(&directory), directory).await;
    assert_eq!(rig.given(&car).await.0, both);
    for path in [OF_NODE, OF_TENANT] {
        let answer = rig.delete(path).await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
        assert_eq!(rig.get(path).await.body, json!({}));
    }
    assert_eq!(rig.given(&car).await, (json!({}), of_none));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_sees_what_has_become_of_the_settings() {
    let (rig, car) = with_car().await;
    rig.put(OF_NODE, uplinks(&[cost("wwan*", 1)])).await;
    assert_eq!(rig.state().await, (json!("pending"), Value::Null));
    let (_, first) = rig.given(&car).await;
    assert_eq!(rig.state().await, (json!("pending"), Value::Null));
    rig.asks_with(&car, applied(first.clone())).await;
    assert_eq!(rig.state().await, (json!("applied"), Value::Null));

    rig.put(OF_NODE, uplinks(&[cost("wwan*", 2)])).await;
    assert_eq!(rig.state().await, (json!("pending"), Value::Null));
    let answer = rig.asks_with(&car, applied(first.clone())).await;
    let second = answer.body["settings"]["digest"].clone();
    let mut refuses = applied(first);
    refuses["refused"] = json!({ "digest": second, "reason": "above the limit" });
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

    // Of settings in force, the client says which have no effect.
    let mut partly = applied(rig.given(&car).await.1);
    partly["unmatched"] = json!(["wwan*"]);
    rig.asks_with(&car, partly).await;
    let list = rig.get("/v1/tunnel-clients").await;
    assert_eq!(list.body["items"][0]["state"], "applied", "{}", list.body);
    assert_eq!(list.body["items"][0]["unmatched"], json!(["wwan*"]));
    rig.put(OF_NODE, uplinks(&[cost("wwan*", 3)])).await;
    let list = rig.get("/v1/tunnel-clients").await;
    let pending = &list.body["items"][0];
    assert_eq!(
        (&pending["state"], &pending["unmatched"]),
        (&json!("pending"), &Value::Null)
    );

    // A later node of the name inherits neither settings nor state.
    rig.delete("/v1/nodes/car").await;
    let car = rig.enrol("car").await;
    assert_eq!(rig.get("/v1/tunnel-clients").await.body["items"], json!([]));
    assert_eq!(rig.given(&car).await.0, json!({}));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_learns_from_which_state_of_the_store_its_settings_are() {
    let (rig, car) = with_car().await;
    let as_of = async || {
        let answer = rig.asks_with(&car, applied(Value::Null)).await;
        let as_of = &answer.body["settings"]["as_of"];
        let incarnation = as_of["incarnation"].as_str().unwrap().to_owned();
        (incarnation, as_of["revision"].as_u64().unwrap())
    };
    let before = as_of().await;
    let set = rig.put(OF_NODE, uplinks(&[cost("wwan*", 1)])).await;
    let tag = set.headers[ETAG].to_str().unwrap().trim_matches('"');
    let after = as_of().await;
    assert_eq!(after.0, before.0);
    assert!(after.1 >= tag.parse().unwrap() && after.1 > before.1);
    // A removal leaves no record, and is a later state nevertheless.
    rig.delete(OF_NODE).await;
    assert!(as_of().await.1 > after.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_for_operators_of_the_tenant_and_a_client_speaks_of_itself_alone() {
    let (rig, car) = with_car().await;
    let van = rig.enrol("van").await;
    let set = uplinks(&[cost("wwan*", 1)]);
    rig.put(OF_TENANT, set.clone()).await;
    rig.put(OF_NODE, set.clone()).await;
    rig.tenant("other").await;
    let token = async |name: &str, scope: &str, tenant: &str| {
        let token = json!({ "name": name, "scope": scope, "tenant": tenant });
        let answer = rig.post("/v1/tokens", token).await;
        answer.body["secret"].as_str().unwrap().to_owned()
    };
    let theirs = token("theirs", "operate", "other").await;
    let reader = token("reader", "read", "acme").await;
    let operator = token("operator", "operate", "acme").await;
    for path in [OF_TENANT, OF_NODE] {
        for (method, body) in [("GET", None), ("PUT", Some(&set)), ("DELETE", None)] {
            let call = async |caller| rig.call(caller, method, path, body.cloned()).await;
            call(Caller::Operator(&theirs)).await.is_problem(404);
            call(Caller::Anonymous).await.is_problem(401);
            // A node gets what is meant for it with its servers.
            call(Caller::Node(&car)).await.is_problem(401);
            if method != "GET" {
                call(Caller::Operator(&reader)).await.is_problem(403);
            }
        }
        let call = async |caller, body| rig.call(caller, "PUT", path, Some(body)).await;
        let answer = call(Caller::Operator(&operator), set.clone()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    }
    let list = rig
        .call(Caller::Operator(&theirs), "GET", "/v1/tunnel-clients", None)
        .await;
    assert_eq!(list.body["items"], json!([]));
    let path = "/v1/nodes/car/tunnel-client";
    let report = Some(applied(Value::Null));
    rig.call(Caller::Node(&van), "POST", path, report)
        .await
        .is_problem(403);
    for nothing in [
        "/v1/tenants/none/tunnel-settings",
        "/v1/nodes/none/tunnel-settings",
    ] {
        rig.put(nothing, set.clone()).await.is_problem(404);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_settings_are_listed_in_pages_and_by_owner() {
    let (rig, _) = with_car().await;
    rig.enrol("bus").await;
    rig.tenant("other").await;
    let of = |value: u8| uplinks(&[cost("wwan*", value)]);
    let other = "/v1/tenants/other/tunnel-settings";
    let bus = "/v1/nodes/bus/tunnel-settings";
    for (path, value) in [(OF_TENANT, 1), (OF_NODE, 2), (other, 3), (bus, 4)] {
        rig.put(path, of(value)).await;
    }
    let expected = [
        json!({ "tenant": "acme", "node": "bus", "settings": of(4) }),
        json!({ "tenant": "acme", "node": "car", "settings": of(2) }),
        json!({ "tenant": "acme", "settings": of(1) }),
        json!({ "tenant": "other", "settings": of(3) }),
    ];
    let list = async |query: &str| rig.get(&format!("/v1/tunnel-settings{query}")).await.body;
    assert_eq!(list("").await["items"], json!(expected));
    let (mut query, mut paged) = ("?limit=1".to_owned(), Vec::new());
    loop {
        let page = list(&query).await;
        paged.extend(page["items"].as_array().unwrap().clone());
        let Some(next) = page["next"].as_str() else {
            break;
        };
        query = format!("?limit=1&after={}", next.replace('/', "%2F"));
    }
    assert_eq!(paged, expected);
    assert_eq!(list("?tenant=other").await["items"], json!(expected[3..]));
    assert_eq!(list("?node=car").await["items"], json!(expected[1..2]));

    let token = json!({ "name": "theirs", "scope": "read", "tenant": "other" });
    let token = rig.post("/v1/tokens", token).await;
    let theirs = Caller::Operator(token.body["secret"].as_str().unwrap());
    let list = rig.call(theirs, "GET", "/v1/tunnel-settings", None).await;
    assert_eq!(list.body["items"], json!(expected[3..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_sense_is_refused() {
    let (rig, car) = with_car().await;
    let many = vec![cost("wwan0", 1); 17];
    for (wrong, word) in [
        (uplinks(&[cost("", 1)]), "uplinks.interface"),
        (uplinks(&[cost("w*n", 1)]), "uplinks.interface"),
        (uplinks(&[cost("abcdefghijklmnop", 1)]), "uplinks.interface"),
        (uplinks(&many), "at most 16"),
        (uplinks(&[json!({ "interface": "a", "cost": 256 })]), "256"),
        (uplinks(&[json!({ "interface": "a", "price": 1 })]), "price"),
        (json!({ "search_every_s": 1 }), "search_every_s"),
        (json!({ "report_every_s": 86_401 }), "report_every_s"),
        (
            uplinks(&[json!({ "interface": "a", "mtu_bytes": 500 })]),
            "uplinks.mtu_bytes",
        ),
        (
            uplinks(&[json!({ "interface": "a", "monthly_cap_mb": 0 })]),
            "uplinks.monthly_cap_mb",
        ),
        // What only the client's file may say.
        (json!({ "lan": ["0.0.0.0/0"] }), "`lan`"),
        (json!({ "kill_switch": false }), "`kill_switch`"),
    ] {
        for path in [OF_TENANT, OF_NODE] {
            let answer = rig.put(path, wrong.clone()).await;
            answer.is_problem(422);
            let detail = answer.body["detail"].as_str().unwrap();
            assert!(detail.contains(word), "{detail}");
        }
    }
    assert_eq!(rig.get(OF_TENANT).await.body, json!({}));
    let long = "x".repeat(501);
    for (digest, reason) in [(&*long, "why"), ("5e", &*long)] {
        let mut report = applied(Value::Null);
        report["refused"] = json!({ "digest": digest, "reason": reason });
        rig.asks_with(&car, report).await.is_problem(422);
    }
    for unmatched in [vec!["wwan*"; 33], vec!["abcdefghijklmnopq"]] {
        let mut report = applied(Value::Null);
        report["unmatched"] = json!(unmatched);
        rig.asks_with(&car, report).await.is_problem(422);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_overwrites_no_other_one_and_is_in_the_audit_log() {
    let (rig, _) = with_car().await;
    let set = |value: u8| uplinks(&[cost("wwan*", value)]);
    for (path, name) in [(OF_TENANT, "tenants/acme"), (OF_NODE, "nodes/car")] {
        let unset = rig.get(path).await;
        assert_eq!(unset.headers[ETAG], "\"0\"");
        let first = rig.set_if(path, "\"0\"", set(1)).await;
        assert_eq!(first.status, StatusCode::OK, "{}", first.body);
        let tag = first.headers[ETAG].to_str().unwrap().to_owned();
        assert_eq!(rig.get(path).await.headers[ETAG], *tag);
        rig.set_if(path, "\"0\"", set(2)).await.is_problem(412);
        let second = rig.set_if(path, &tag, set(2)).await;
        assert_eq!(second.status, StatusCode::OK, "{}", second.body);
        // The same settings again are no change.
        let again = rig.put(path, set(2)).await;
        assert_eq!(again.headers[ETAG], second.headers[ETAG]);
        rig.set_if(path, &tag, set(3)).await.is_problem(412);
        rig.delete(path).await;
        let unset = rig.get(path).await;
        assert_eq!(
            (unset.headers[ETAG].to_str().unwrap(), unset.body),
            ("\"0\"", json!({}))
        );

        let audit = rig.get("/v1/audit?limit=1000").await;
        let entries = audit.body["items"].as_array().unwrap().iter();
        let entries = entries.filter(|entry| entry["name"] == name);
        let actions: Vec<_> = entries
            .map(|entry| (entry["kind"].clone(), entry["action"].clone()))
            .collect();
        let of = |action: &str| (json!("tunnel_settings"), json!(action));
        assert_eq!(actions, [of("changed"), of("changed"), of("deleted")]);
    }
    // With their tenant, settings are gone.
    rig.put(OF_TENANT, set(1)).await;
    rig.delete("/v1/nodes/car").await;
    let deleted = rig.delete("/v1/tenants/acme").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT, "{}", deleted.body);
    rig.tenant("acme").await;
    assert_eq!(rig.get(OF_TENANT).await.body, json!({}));
}
