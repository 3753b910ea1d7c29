//! Two controllers on one store, called without a port.

use super::PATIENCE;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Method, Request};
use hawser_controller::store::Store;
use hawser_controller::{Config, Peer, Server, api};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tower::ServiceExt;

pub(crate) struct Pair {
    controllers: Vec<(Server, Router)>,
    token: String,
    _state: TempDir,
}

impl Pair {
    pub(crate) async fn start(store: &Arc<dyn Store>) -> Pair {
        Pair::start_with(store, |_| ()).await
    }

    /// They share a state directory, so they have one authority.
    pub(crate) async fn start_with(store: &Arc<dyn Store>, change: impl Fn(&mut Config)) -> Pair {
        let state = TempDir::new().expect("a directory");
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
            let server = Server::start_on(store.clone(), config).await.expect("started");
            let router = api::router(server.controller());
            controllers.push((server, router));
        }
        let token = std::fs::read_to_string(controllers[0].0.first_token_file()).expect("made");
        Pair { controllers, token: token.trim().to_owned(), _state: state }
    }

    /// What the first operator's request to one of them is answered with.
    pub(crate) async fn call(
        &self,
        whom: usize,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let mut request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("a method"))
            .uri(path)
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
            .expect("a request");
        let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        request.extensions_mut().insert(Peer { address, presented: None });
        let router = &self.controllers[whom % self.controllers.len()].1;
        let response = router.clone().oneshot(request).await.expect("it never fails");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("it comes");
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    pub(crate) async fn stop(self) {
        for (server, router) in self.controllers {
            drop(router);
            tokio::time::timeout(PATIENCE + Duration::from_secs(10), server.stop()).await.expect("it ends");
        }
    }
}
