use crate::access::{Anyone, Peer};
use crate::controller::Controller;
use crate::metrics::Gauges;
use crate::refusal::{CommonErrors, HandlerError, Refusal};
use crate::store::Role;
use crate::view::View;
use axum::Router;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use axum::routing::get;
use hawser_model::access::Caller;
use hawser_model::resource::{Mode, Policy};
use std::collections::BTreeMap;
use std::sync::Arc;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Report that the controller is running
#[utoipa::path(operation_id = "get_health", get, path = "/healthz", tag = "service",
    responses((status = 200, content_type = "text/plain", body = String)))]
pub(super) async fn healthz() -> &'static str {
    "ok\n"
}

/// Report whether the controller is ready: all of the store has been read, changes by others arrive, it takes changes, and
/// there is a leader
#[utoipa::path(operation_id = "get_readiness", get, path = "/readyz", tag = "service",
    responses((status = 200, content_type = "text/plain", body = String),
        (status = 503, content_type = "application/problem+json", body = hawser_model::answer::Problem)))]
pub(super) async fn readyz(State(controller): State<Arc<Controller>>) -> Result<String, Refusal> {
    if *controller.shutdown.borrow() {
        return Err(Refusal::unavailable("the controller is shutting down"));
    }
    if !controller.is_filled() {
        return Err(Refusal::unavailable("the store has not been read yet"));
    }
    if let Some(fault) = controller.view().fault() {
        return Err(Refusal::unavailable(fault));
    }
    if let Some(fault) = controller.outdated() {
        return Err(Refusal::unavailable(fault));
    }
    if let Some(fault) = controller.failed_write() {
        return Err(Refusal::unavailable(format!(
            "the store does not take changes: {fault}"
        )));
    }
    let role = controller.role.borrow().clone();
    match role {
        Role::Leader(leadership) if leadership.holds() => Ok("ready, leader\n".into()),
        Role::Follower {
            leader: Some(leader),
        } => Ok(format!("ready, leader is {leader}\n")),
        _ => Err(Refusal::unavailable(
            "there is no leader at the moment, or the store cannot be reached",
        )),
    }
}

/// Get metrics for Prometheus; requires a token of any scope, or a request from the same host
#[utoipa::path(operation_id = "get_metrics", get, path = "/metrics", tag = "service", security((), ("token" = [])),
    responses((status = 200, content_type = "application/openmetrics-text", body = String), CommonErrors))]
pub(super) async fn metrics(
    State(controller): State<Arc<Controller>>,
    request: Request,
) -> Result<impl IntoResponse, HandlerError> {
    let mut parts = request.into_parts().0;
    let peer = parts.extensions.get::<Peer>();
    if !peer.is_some_and(|peer| peer.address.is_loopback()) {
        let Anyone(caller) = Anyone::from_request_parts(&mut parts, &controller).await?;
        let sees_all = matches!(caller, Caller::Operator(token) if token.tenant.is_none());
        if !sees_all {
            let what = "metrics require an operator of all tenants";
            return Err(Refusal::forbidden(what).into());
        }
    }
    Ok(text(&controller))
}

/// Returns the routes of health and metrics, for a listener without TLS.
pub(crate) fn plain_router(controller: &Arc<Controller>) -> Router {
    let metrics = |State(controller): State<Arc<Controller>>| async move { text(&controller) };
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .layer(from_fn(crate::request::identified))
        .with_state(controller.clone())
}

/// Returns the metrics as text, with its type.
fn text(controller: &Controller) -> ([(HeaderName, &'static str); 1], String) {
    let text = controller.metrics.text(&gauges(controller));
    ([(CONTENT_TYPE, OPENMETRICS)], text)
}

fn gauges(controller: &Controller) -> Gauges {
    let settings_differ = controller.differing_settings().len();
    let view = controller.view();
    let nodes = || view.nodes.values();
    Gauges {
        streams: controller.streams.len(),
        nodes: nodes().filter(|node| node.record.is_some()).count(),
        nodes_alive: nodes().filter(|node| node.alive.is_some()).count(),
        nodes_lost: nodes().filter(|node| node.is_lost()).count(),
        is_leader: controller.role.borrow().leadership().is_some(),
        flows: flows_by_state(&view),
        damaged: view.damaged_len(),
        settings_differ,
    }
}

/// Returns the number of flows of each mode in each state.
fn flows_by_state(view: &View) -> Vec<(&'static str, &'static str, i64)> {
    let mut flows = BTreeMap::new();
    for flow in view.flows.values() {
        let (Some(record), Some(policy)) = (&flow.record, &flow.policy) else {
            continue;
        };
        let mode = mode_name(record.value.flow.mode);
        *flows.entry((mode, state_name(&policy.value))).or_insert(0) += 1;
    }
    flows
        .into_iter()
        .map(|((mode, state), count)| (mode, state, count))
        .collect()
}

fn state_name(policy: &Policy) -> &'static str {
    match policy.code.0.count_ones() {
        0 => "default_route",
        1 => "one_path",
        8 => "stopped",
        _ => "replicated",
    }
}

fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Auto => "auto",
        Mode::Single => "single",
        Mode::Redirect => "redirect",
        Mode::Replicate => "replicate",
        Mode::Successive => "successive",
        Mode::Evidence => "evidence",
    }
}
