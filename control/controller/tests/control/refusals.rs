//! Requests that are refused: they cost the store nothing, their clients see the response, and its advice
//! works.

use crate::rig::{Answer, Caller, Identity, Rig, config, flow, key_and_request};
use crate::store_with_delay::SlowStore;
use axum::body::{Body, Bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, IF_MATCH};
use axum::http::{Request, StatusCode};
use futures_util::future::join_all;
use futures_util::stream;
use hawser_controller::{Config, Server};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::Arc;

const JSON: &str = "application/json";

async fn on_counting_store(change: impl FnOnce(&mut Config)) -> (Rig, Arc<SlowStore>) {
    let directory = tempfile::tempdir().unwrap();
    let store = SlowStore::open(&directory);
    let mut config = config(&directory);
    change(&mut config);
    let server = Server::start_on(store.clone(), config).await.unwrap();
    (Rig::of(server, directory).await, store)
}

impl Rig {
    async fn token(&self, body: Value) -> String {
        let answer = self.post("/v1/tokens", body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["secret"].as_str().unwrap().to_owned()
    }
}

/// A request of a hostile client.
struct Attack<'a> {
    status: u16,
    caller: Caller<'a>,
    method: &'a str,
    path: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    body: Content,
}

#[derive(Clone)]
enum Content {
    Empty,
    Text(String),
    /// A body without a declared size.
    Chunked(usize),
    /// A body that never ends.
    Endless,
}

fn attack<'a>(
    status: u16,
    caller: Caller<'a>,
    method: &'a str,
    path: &'a str,
    body: impl Into<Option<Value>>,
) -> Attack<'a> {
    let body = body.into();
    let text = body.map(|body: Value| Content::Text(body.to_string()));
    Attack {
        status,
        caller,
        method,
        path,
        headers: vec![(CONTENT_TYPE.as_str(), JSON)],
        body: text.unwrap_or(Content::Empty),
    }
}

impl<'a> Attack<'a> {
    fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value));
        self
    }

    fn sending(self, body: Content) -> Self {
        Attack { body, ..self }
    }

    async fn send(&self, rig: &Rig) -> Answer {
        let mut request = Request::builder().method(self.method).uri(self.path);
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        let body = match self.body.clone() {
            Content::Empty => Body::empty(),
            Content::Text(text) => Body::from(text),
            Content::Chunked(bytes) => {
                let chunk = Ok::<_, Infallible>(Bytes::from(vec![b' '; bytes]));
                Body::from_stream(stream::iter([chunk]))
            }
            Content::Endless => Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()),
        };
        let request = request.body(body).unwrap();
        Answer::of(rig.request(self.caller.clone(), request).await).await
    }
}

/// The callers that have some rights, of which none suffices.
struct Callers {
    admin: String,
    reader: String,
    operator: String,
    of_zenith: String,
    deleted: String,
    expired: String,
    ingress: Identity,
    revoked: Identity,
    unused: String,
    used: String,
}

impl Callers {
    async fn new(rig: &Rig) -> Callers {
        let token = |name: &str, scope: &str| json!({ "name": name, "scope": scope });
        let [ingress, _] = rig.two_nodes(2, flow("evidence", false)).await;
        rig.tenant("zenith").await;
        let sound = json!({ "name": "sound", "tenant": "acme", "writers": ["in"] });
        assert_eq!(rig.post("/v1/tracks", sound).await.status, 201);
        let deleted = rig.token(token("deleted", "admin")).await;
        rig.delete("/v1/tokens/deleted").await;
        let short = json!({ "name": "expired", "scope": "admin", "valid_s": 1 });
        let expired = rig.token(short).await;
        let revoked = rig.enrol("revoked").await;
        rig.delete("/v1/nodes/revoked/certificate").await;
        let used = rig.invite("used").await;
        let csr = key_and_request().1;
        let enrol = Some(json!({ "token": used, "csr": csr }));
        rig.call(Caller::Anonymous, "POST", "/v1/enrol", enrol)
            .await;
        rig.until(async || {
            let caller = Caller::Operator(&expired);
            rig.call(caller, "GET", "/v1/me", None).await.status == StatusCode::UNAUTHORIZED
        })
        .await;
        Callers {
            admin: rig.admin.clone(),
            reader: rig.token(token("reader", "read")).await,
            operator: rig.token(token("operator", "operate")).await,
            of_zenith: rig
                .token(json!({ "name": "of-zenith", "scope": "admin", "tenant": "zenith" }))
                .await,
            deleted,
            expired,
            ingress,
            revoked,
            unused: rig.invite("unused").await,
            used,
        }
    }

    /// Attacks by clients without a valid identity, or with too few rights.
    fn without_rights(&self) -> Vec<Attack<'_>> {
        use Caller::{Anonymous, Node, Operator};
        let read = || Operator(&self.reader);
        let zenith = || Operator(&self.of_zenith);
        let stage = || flow("single", false);
        let tenant = || json!({ "name": "more" });
        let token = || json!({ "name": "more", "scope": "admin" });
        let enrolment = || json!({ "tenant": "acme" });
        vec![
            attack(401, Anonymous, "POST", "/v1/flows", stage()),
            attack(401, Operator("guessed"), "POST", "/v1/flows", stage()),
            attack(
                401,
                Operator(&self.deleted),
                "POST",
                "/v1/tenants",
                tenant(),
            ),
            attack(
                401,
                Operator(&self.expired),
                "POST",
                "/v1/tenants",
                tenant(),
            ),
            attack(401, Anonymous, "DELETE", "/v1/flows/stage", None)
                .with(AUTHORIZATION.as_str(), "Basic YTpi"),
            attack(403, read(), "POST", "/v1/flows", json!({})),
            attack(403, read(), "POST", "/v1/flows", json!({})).with("idempotency-key", "k1"),
            attack(403, read(), "PUT", "/v1/flows/stage", stage()),
            attack(
                403,
                read(),
                "PATCH",
                "/v1/flows/stage",
                json!({ "mode": "single" }),
            )
            .with(CONTENT_TYPE.as_str(), "application/merge-patch+json"),
            attack(403, read(), "DELETE", "/v1/flows/stage", None),
            attack(
                403,
                read(),
                "PUT",
                "/v1/policies/stage",
                json!({ "code": 1 }),
            ),
            attack(403, read(), "POST", "/v1/nodes/in/enrolment", enrolment()),
            attack(403, read(), "POST", "/v1/nodes/in/rekey", None),
            attack(403, read(), "POST", "/v1/tokens/reader/secret", json!({})),
            attack(403, Operator(&self.operator), "POST", "/v1/tokens", token()),
            attack(
                403,
                Operator(&self.operator),
                "POST",
                "/v1/tenants",
                tenant(),
            ),
            attack(403, zenith(), "POST", "/v1/flows", stage()),
            attack(403, zenith(), "POST", "/v1/tokens", token()),
            attack(404, zenith(), "DELETE", "/v1/flows/stage", None),
            attack(
                401,
                Anonymous,
                "POST",
                "/v1/nodes/in/reports",
                json!({ "revision": 0 }),
            ),
            attack(
                403,
                Node(&self.revoked),
                "POST",
                "/v1/nodes/revoked/reports",
                json!({}),
            ),
            attack(
                403,
                Node(&self.ingress),
                "POST",
                "/v1/nodes/out/reports",
                json!({ "revision": 0 }),
            ),
            attack(
                403,
                Node(&self.ingress),
                "PUT",
                "/v1/nodes/in/tunnel-server",
                json!({
                    "addresses": ["192.0.2.1:4433"], "clients": 0, "max_clients": 1, "draining": false,
                }),
            ),
        ]
    }

    /// Attacks on resources of another tenant with a tag that no controller knows yet.
    fn with_a_tag_of_the_future(&self) -> Vec<Attack<'_>> {
        let resources = [
            (404, "/v1/flows/stage"),
            (404, "/v1/policies/stage"),
            (404, "/v1/tracks/sound"),
            (404, "/v1/nodes/in"),
            (404, "/v1/nodes/in/certificate"),
            (404, "/v1/nodes/in/enrolment/0123456789abcdef"),
            (404, "/v1/nodes/in/tunnel-settings"),
            (404, "/v1/tokens/reader"),
            (403, "/v1/tenants/acme"),
        ];
        let attacks = resources.into_iter().map(|(status, path)| {
            let caller = Caller::Operator(&self.of_zenith);
            let attack = attack(status, caller, "DELETE", path, None);
            attack.with(IF_MATCH.as_str(), "\"99999999999\"")
        });
        attacks.collect()
    }

    /// Attacks with requests that are wrong in themselves.
    fn malformed(&self) -> Vec<Attack<'_>> {
        use Caller::{Anonymous, Operator};
        let admin = || Operator(&self.admin);
        let flows = "/v1/flows";
        let large = || Content::Text("x".repeat(300_000));
        let enrol = |token: &str, csr: &str| json!({ "token": token, "csr": csr });
        let csr = key_and_request().1;
        let parts: Vec<_> = self.unused.split('.').collect();
        let forged = |secret: &str, authority: &str| {
            [parts[0], parts[1], parts[2], secret, authority].join(".")
        };
        let zeros = "0".repeat(64);
        vec![
            attack(404, admin(), "POST", "/v1/nothing", json!({})),
            attack(404, Anonymous, "POST", "/v1/flows/stage/more", json!({}))
                .with("idempotency-key", "k2"),
            attack(405, admin(), "PATCH", flows, json!({})),
            attack(405, Anonymous, "XYZZY", flows, json!({})),
            attack(413, Anonymous, "POST", flows, None)
                .sending(large())
                .with(CONTENT_LENGTH.as_str(), "300000"),
            attack(413, admin(), "POST", flows, None).sending(Content::Chunked(300_000)),
            attack(413, Anonymous, "POST", "/v1/enrol", None)
                .sending(large())
                .with(CONTENT_LENGTH.as_str(), "300000"),
            attack(408, admin(), "POST", flows, None).sending(Content::Endless),
            attack(400, admin(), "POST", flows, None).sending(Content::Text("{".into())),
            attack(422, admin(), "POST", flows, json!({ "name": 5 })),
            attack(
                422,
                admin(),
                "POST",
                "/v1/tenants",
                json!({ "name": "more", "colour": "red" }),
            ),
            attack(415, admin(), "POST", flows, json!({}))
                .with(CONTENT_TYPE.as_str(), "text/plain"),
            attack(400, admin(), "DELETE", "/v1/flows/stage", None).with(IF_MATCH.as_str(), "5"),
            attack(422, admin(), "PUT", "/v1/flows/stage", json!([]))
                .with(IF_MATCH.as_str(), "\"999999999\""),
            attack(400, admin(), "GET", "/v1/flows?colour=red", None),
            attack(409, admin(), "POST", flows, flow("single", false)),
            attack(403, Anonymous, "POST", "/v1/enrol", enrol("garbage", &csr)),
            attack(
                403,
                Anonymous,
                "POST",
                "/v1/enrol",
                enrol(&forged(&zeros, parts[4]), &csr),
            ),
            attack(
                403,
                Anonymous,
                "POST",
                "/v1/enrol",
                enrol(&forged(parts[3], &zeros), &csr),
            ),
            attack(
                422,
                Anonymous,
                "POST",
                "/v1/enrol",
                enrol(&self.unused, "no request"),
            ),
            attack(403, Anonymous, "POST", "/v1/enrol", enrol(&self.used, &csr)),
            attack(
                403,
                Anonymous,
                "POST",
                "/v1/enrol",
                json!({ "token": self.unused, "csr": csr, "node": "in" }),
            ),
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_cost_the_store_nothing() {
    let (rig, store) = on_counting_store(|config| {
        config.limits.request_timeout_s = 10;
        config.limits.failures_per_minute = 1e6;
        // The nodes never report: nothing is to be written about that.
        config.nodes.lease_s = 3_600;
    })
    .await;
    let callers = Callers::new(&rig).await;
    let mut attacks = callers.without_rights();
    attacks.extend(callers.with_a_tag_of_the_future());
    attacks.extend(callers.malformed());
    assert!(attacks.len() >= 45, "{}", attacks.len());
    // Uses of the administrator's token are written once in an hour.
    rig.until(async || rig.get("/v1/tokens").await.body["items"][0]["used_unix_ms"].is_u64())
        .await;
    store.uses.lock().clear();
    let sent = attacks.iter().flat_map(|attack| [attack; 3]);
    let sent = sent.map(async |attack| (attack, attack.send(&rig).await));
    for (attack, answer) in join_all(sent).await {
        let (method, path, body) = (attack.method, attack.path, &answer.body);
        assert_eq!(answer.status, attack.status, "{method} {path}: {body}");
    }
    assert_eq!(*store.uses.lock(), Vec::<String>::new());
    rig.stop().await;
}
