//! Two controllers on one store, called directly.

use super::{TIMEOUT, until};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, ETAG, IF_MATCH};
use axum::http::{Method, Request};
use axum::response::Response;
use hawser_controller::store::Store;
use hawser_controller::{Config, Peer, Presented, Server, api};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tempfile::TempDir;
use tower::ServiceExt;

pub(crate) struct Pair {
    controllers: Vec<(Server, Router)>,
    token: String,
    state: TempDir,
}

impl Pair {
    pub(crate) async fn start(store: &Arc<dyn Store>) -> Pair {
        Pair::start_in(TempDir::new().expect("a directory"), store, |_| ()).await
    }

    /// They share a state directory, so they have the same authority.
    pub(crate) async fn start_in(
        state: TempDir,
        store: &Arc<dyn Store>,
        change: impl Fn(&mut Config),
    ) -> Pair {
        let mut controllers = Vec::new();
        for name in ["one", "two"] {
            let mut config = Config {
                listen: (Ipv4Addr::LOCALHOST, 0).into(),
                state: state.path().to_owned(),
                name: Some(name.to_owned()),
                ..Config::default()
            };
            config.limits.operator_requests_per_s = 1e6;
            change(&mut config);
            let server = Server::start_on(store.clone(), config)
                .await
                .expect("started");
            let router = api::router(server.controller());
            controllers.push((server, router));
        }
        let token = std::fs::read_to_string(controllers[0].0.first_token_file()).expect("made");
        Pair {
            controllers,
            token: token.trim().to_owned(),
            state,
        }
    }

    /// Sends a request of the first operator to one of them.
    pub(crate) async fn call(
        &self,
        whom: usize,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        answer(self.send(whom, None, None, method, path, body).await).await
    }

    /// Returns the status of a request with that tag in `If-Match`.
    pub(crate) async fn call_for(&self, tag: &str, whom: usize, method: &str, path: &str) -> u16 {
        self.send(whom, None, Some(tag), method, path, None)
            .await
            .status()
            .as_u16()
    }

    /// Returns the tag of the response to a GET.
    pub(crate) async fn tag(&self, whom: usize, path: &str) -> String {
        let response = self.send(whom, None, None, "GET", path, None).await;
        response.headers()[ETAG]
            .to_str()
            .expect("visible")
            .to_owned()
    }

    /// Sends a request of a node to one of them.
    pub(crate) async fn call_as(
        &self,
        node: &Presented,
        whom: usize,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        answer(self.send(whom, Some(node), None, method, path, body).await).await
    }

    async fn send(
        &self,
        whom: usize,
        node: Option<&Presented>,
        tag: Option<&str>,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Response {
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("a method"))
            .uri(path)
            .header(CONTENT_TYPE, "application/json")
            .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
            .expect("a request");
        if node.is_none() {
            let bearer = format!("Bearer {}", self.token).parse().expect("visible");
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        if let Some(tag) = tag {
            request
                .headers_mut()
                .insert(IF_MATCH, tag.parse().expect("visible"));
        }
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        request.extensions_mut().insert(Peer {
            address,
            presented: node.cloned(),
        });
        let router = &self.controllers[whom % self.controllers.len()].1;
        router
            .clone()
            .oneshot(request)
            .await
            .expect("it never fails")
    }

    /// Enrols a node of the tenant acme and registers it with one of them.
    pub(crate) async fn register(&self, whom: usize, node: &str) -> Presented {
        let presented = self.enrol(whom, node).await;
        assert_eq!(self.registers(&presented, whom, node, "1").await, 204);
        presented
    }

    /// Returns the status of a node's registration with one of them.
    pub(crate) async fn registers(
        &self,
        by: &Presented,
        whom: usize,
        node: &str,
        version: &str,
    ) -> u16 {
        let registration = Some(json!({ "version": version, "paths": [] }));
        let path = format!("/v1/nodes/{node}/registration");
        self.call_as(by, whom, "PUT", &path, registration).await.0
    }

    /// Enrols a node of the tenant acme with one of them.
    pub(crate) async fn enrol(&self, whom: usize, node: &str) -> Presented {
        let path = format!("/v1/nodes/{node}/enrolment");
        let (status, invitation) = self
            .call(whom, "POST", &path, Some(json!({ "tenant": "acme" })))
            .await;
        assert_eq!(status, 201, "{invitation}");
        let key = KeyPair::generate().expect("a key");
        let csr = CertificateParams::default()
            .serialize_request(&key)
            .expect("signed")
            .pem()
            .expect("text");
        let enrol = json!({ "token": invitation["token"], "csr": csr });
        let (status, enrolled) = self.call(whom, "POST", "/v1/enrol", Some(enrol)).await;
        assert_eq!(status, 201, "{enrolled}");
        let pem = enrolled["certificate"].as_str().expect("text");
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate");
        Presented::of(&der).expect("of the authority")
    }

    /// Waits until one of them is the leader.
    pub(crate) async fn leads(&self) {
        until(async || self.controllers.iter().any(|(server, _)| server.leads())).await;
    }

    /// Stops the leader.
    pub(crate) async fn stop_leader(&mut self) {
        self.leads().await;
        let leader = self
            .controllers
            .iter()
            .position(|(server, _)| server.leads())
            .expect("it has just led");
        let (server, router) = self.controllers.remove(leader);
        drop(router);
        tokio::time::timeout(TIMEOUT, server.stop())
            .await
            .expect("it ends");
    }

    /// Stops both and returns their directory.
    pub(crate) async fn stop(self) -> TempDir {
        for (server, router) in self.controllers {
            drop(router);
            tokio::time::timeout(TIMEOUT, server.stop())
                .await
                .expect("it ends");
        }
        self.state
    }
}

async fn answer(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), usize::MAX)
        .await
        .expect("it comes");
    (status, serde_json::from_slice(&body).unwrap_or_default())
}
