//! A controller with the embedded store, and its clients.

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use futures_util::StreamExt;
use hawser_controller::{Config, Peer, Presented, Server, api};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;

/// A timeout longer than any operation takes on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) directory: tempfile::TempDir,
    router: Router,
    pub(crate) admin: String,
}

/// The caller of a request.
#[derive(Clone)]
pub(crate) enum Caller<'a> {
    Anonymous,
    Operator(&'a str),
    Node(&'a Identity),
}

/// A node's identity after its enrolment.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) key: String,
    pub(crate) certificate: String,
    pub(crate) presented: Presented,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

pub(crate) fn config(directory: &tempfile::TempDir) -> Config {
    Config {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        state: directory.path().to_owned(),
        name: Some("test".into()),
        ..Config::default()
    }
}

impl Rig {
    pub(crate) async fn new() -> Rig {
        Rig::with(|_| ()).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(&directory);
        change(&mut config);
        Rig::start(config, directory).await
    }

    pub(crate) async fn start(config: Config, directory: tempfile::TempDir) -> Rig {
        let server = Server::start(config).await.unwrap();
        Rig::of(server, directory).await
    }

    /// Waits until a controller that has just been started is ready.
    pub(crate) async fn of(server: Server, directory: tempfile::TempDir) -> Rig {
        let rig = Rig::unready(server, directory);
        rig.until(async || rig.get("/readyz").await.status == StatusCode::OK)
            .await;
        rig
    }

    pub(crate) fn unready(server: Server, directory: tempfile::TempDir) -> Rig {
        let admin = std::fs::read_to_string(server.first_token_file())
            .unwrap()
            .trim()
            .to_owned();
        Rig {
            router: api::router(server.controller()),
            server,
            directory,
            admin,
        }
    }

    /// Stops the controller and returns its directory.
    pub(crate) async fn stop(self) -> tempfile::TempDir {
        let Rig {
            server,
            directory,
            router,
            ..
        } = self;
        drop(router);
        tokio::time::timeout(TIMEOUT, server.stop()).await.unwrap();
        directory
    }

    pub(crate) async fn until(&self, condition: impl AsyncFn() -> bool) {
        let wait = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .expect("the condition holds within the time");
    }

    pub(crate) async fn request(
        &self,
        caller: Caller<'_>,
        mut request: Request<Body>,
    ) -> axum::response::Response {
        let mut peer = Peer {
            address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
            presented: None,
        };
        match caller {
            Caller::Anonymous => {}
            Caller::Operator(token) => {
                request
                    .headers_mut()
                    .insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
            }
            Caller::Node(identity) => peer.presented = Some(identity.presented.clone()),
        }
        request.extensions_mut().insert(peer);
        self.router.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn call(
        &self,
        caller: Caller<'_>,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Answer {
        let builder = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path);
        let request = match body {
            Some(body) => builder
                .header(CONTENT_TYPE, "application/json")
                .body(Body::from(body.to_string())),
            None => builder.body(Body::empty()),
        };
        Answer::of(self.request(caller, request.unwrap()).await).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(Caller::Operator(&self.admin), "GET", path, None)
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Caller::Operator(&self.admin), "POST", path, Some(body))
            .await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.call(Caller::Operator(&self.admin), "PUT", path, Some(body))
            .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.call(Caller::Operator(&self.admin), "DELETE", path, None)
            .await
    }

    pub(crate) async fn tenant(&self, name: &str) {
        assert_eq!(
            self.post("/v1/tenants", json!({ "name": name }))
                .await
                .status,
            StatusCode::CREATED
        );
    }

    /// Returns a one-time token for a node of the tenant acme.
    pub(crate) async fn invite(&self, node: &str) -> String {
        let answer = self
            .post(
                &format!("/v1/nodes/{node}/enrolment"),
                json!({ "tenant": "acme" }),
            )
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        answer.body["token"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn enrol(&self, node: &str) -> Identity {
        let token = self.invite(node).await;
        let (key, csr) = key_and_request();
        let answer = self
            .call(
                Caller::Anonymous,
                "POST",
                "/v1/enrol",
                Some(json!({ "token": token, "csr": csr })),
            )
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        Identity::of(&key, &answer.body)
    }

    /// Creates two nodes of the tenant acme with that number of paths, and a flow between them.
    pub(crate) async fn two_nodes(&self, paths: u8, flow: Value) -> [Identity; 2] {
        self.tenant("acme").await;
        let nodes = [self.enrol("in").await, self.enrol("out").await];
        for node in &nodes {
            self.register(node, paths).await;
        }
        let answer = self.post("/v1/flows", flow).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
        nodes
    }

    pub(crate) async fn register(&self, node: &Identity, paths: u8) {
        self.register_with(node, paths, None).await;
    }

    /// Registers a node with an address for in-band signals.
    pub(crate) async fn register_with(
        &self,
        node: &Identity,
        paths: u8,
        signals: Option<SocketAddr>,
    ) {
        let end = |number: u8| json!({ "number": number, "interface": format!("p{number}"), "local": "192.0.2.1", "remote": "192.0.2.2" });
        let registration = json!({ "version": "1", "signals": signals, "paths": (1..=paths).map(end).collect::<Vec<_>>() });
        let path = format!("/v1/nodes/{}/registration", node.name);
        let answer = self
            .call(Caller::Node(node), "PUT", &path, Some(registration))
            .await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }

    pub(crate) async fn report(&self, node: &Identity, report: Value) -> Answer {
        let path = format!("/v1/nodes/{}/reports", node.name);
        self.call(Caller::Node(node), "POST", &path, Some(report))
            .await
    }

    pub(crate) async fn observe(&self, node: &Identity, observation: Value) {
        let answer = self
            .report(
                node,
                json!({ "revision": 0, "observations": [observation] }),
            )
            .await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }

    /// Reports as the egress of `stage` that it deduplicates the flow's copies under the assignment
    /// of that revision.
    pub(crate) async fn receive_by(&self, egress: &Identity, revision: u64) {
        let stage = json!({ "flow": "stage", "packets": 0, "paths": [] });
        let answer = self
            .report(egress, json!({ "revision": revision, "receives": [stage] }))
            .await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.body);
    }

    /// Reports as the egress of `stage` that its current assignment is in force.
    pub(crate) async fn receive(&self, egress: &Identity) {
        let assignment = self.stream(egress).await.next_of("assignment").await;
        assert_eq!(assignment["receives"][0]["flow"], "stage", "{assignment}");
        self.receive_by(egress, assignment["revision"].as_u64().unwrap())
            .await;
    }

    pub(crate) async fn stream(&self, node: &Identity) -> Events {
        let request = Request::get(format!("/v1/nodes/{}/stream", node.name))
            .body(Body::empty())
            .unwrap();
        let response = self.request(Caller::Node(node), request).await;
        assert_eq!(response.status(), StatusCode::OK);
        Events {
            body: response.into_body().into_data_stream(),
            text: String::new(),
            id: 0,
        }
    }

    /// Returns the stream of the events after that number.
    pub(crate) async fn events(&self, after: u64) -> Events {
        self.events_of(&format!("/v1/events/stream?after={after}"))
            .await
    }

    /// Returns the stream of events at that path.
    pub(crate) async fn events_of(&self, path: &str) -> Events {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = self.request(Caller::Operator(&self.admin), request).await;
        assert_eq!(response.status(), StatusCode::OK);
        Events {
            body: response.into_body().into_data_stream(),
            text: String::new(),
            id: 0,
        }
    }

    pub(crate) async fn policy(&self, flow: &str) -> Value {
        let answer = self.get(&format!("/v1/policies/{flow}")).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.body
    }
}

impl Answer {
    pub(crate) async fn of(response: axum::response::Response) -> Answer {
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| text());
        Answer {
            status: parts.status,
            headers: parts.headers,
            body,
        }
    }

    /// Checks that this is a problem according to RFC 9457 with a detail that says what to do.
    pub(crate) fn is_problem(&self, status: u16) {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        assert_eq!(self.headers[CONTENT_TYPE], "application/problem+json");
        assert_eq!(self.body["status"], status);
        let kind = self.body["type"].as_str().unwrap_or_default();
        assert!(kind.starts_with("/problems/"), "{}", self.body);
        assert!(
            self.body["detail"]
                .as_str()
                .is_some_and(|detail| detail.len() > 10),
            "{}",
            self.body
        );
    }
}

impl Identity {
    pub(crate) fn of(key: &str, answer: &Value) -> Identity {
        let certificate = answer["certificate"].as_str().unwrap().to_owned();
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
        let name = answer["node"].as_str().unwrap().to_owned();
        Identity {
            name,
            key: key.to_owned(),
            certificate,
            presented: Presented::of(&der).unwrap(),
        }
    }
}

pub(crate) fn key_and_request() -> (String, String) {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let request = CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    (key.serialize_pem(), request.pem().unwrap())
}

/// Returns a TLS connector that trusts a controller's authority and presents no certificate.
pub(crate) fn connector(authority_pem: &str, protocol: &[u8]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(authority_pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// Returns the flow `stage` between two nodes.
pub(crate) fn flow(mode: &str, is_triggered: bool) -> Value {
    let mut flow = json!({ "name": "stage", "tenant": "acme", "ingress": "in", "egress": "out", "mode": mode,
        "select": { "destination": "203.0.113.0/24" } });
    if is_triggered {
        flow["trigger"] = json!({ "select": { "destination": "198.51.100.0/24" } });
    }
    flow
}

/// A reader of server-sent events.
pub(crate) struct Events {
    body: BodyDataStream,
    text: String,
    /// The identifier of the last event that had one.
    pub(crate) id: u64,
}

impl Events {
    /// Returns the next event and its data; `None` when the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    event
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .unwrap_or("")
                        .trim()
                };
                self.id = field("id:").parse().unwrap_or(self.id);
                let (kind, data) = (field("event:").to_owned(), field("data:"));
                let data = serde_json::from_str(data).unwrap_or_else(|_| data.into());
                self.text = rest.to_owned();
                return Some((kind, data));
            }
            let more = tokio::time::timeout(TIMEOUT, self.body.next())
                .await
                .expect("something comes in time")?;
            self.text
                .push_str(std::str::from_utf8(&more.unwrap()).unwrap());
        }
    }

    /// Returns the data of the next event of that kind.
    pub(crate) async fn next_of(&mut self, kind: &str) -> Value {
        let wait = async {
            loop {
                let (found, data) = self.next().await.expect("the stream goes on");
                if found == kind {
                    return data;
                }
            }
        };
        tokio::time::timeout(TIMEOUT, wait)
            .await
            .expect("it comes within the time")
    }
}
