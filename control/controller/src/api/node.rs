use super::extract::{Message, Path};
use crate::access::Certified;
use crate::check;
use crate::controller::{About, Controller};
use crate::observe;
use crate::push;
use crate::record::{HealthRecord, emit, key};
use crate::refusal::{BodyErrors, CommonErrors, HandlerError, Refusal};
use crate::store::{Expect, Write};
use crate::view::View;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Sse};
use futures_util::future::try_join_all;
use hawser_model::Name;
use hawser_model::node::{Registration, Report, StreamData};
use hawser_model::resource::Flow;
use std::sync::Arc;

/// Register the node's agent version and paths; the first request on every connection
#[utoipa::path(operation_id = "register_node", put, path = "/v1/nodes/{node}/registration", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = Registration,
    responses((status = 204, description = "Registered"), CommonErrors, BodyErrors))]
pub(super) async fn register(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Message(registration): Message<Registration>,
) -> Result<StatusCode, HandlerError> {
    caller.must_be(&node)?;
    check::registration(&registration).map_err(Refusal::meaningless)?;
    controller
        .retrying(|| try_register(&controller, &caller, &node, &registration))
        .await?;
    controller.note_alive(&caller).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stores a registration, unless it is the known one.
async fn try_register(
    controller: &Controller,
    caller: &Certified,
    node: &Name,
    new: &Registration,
) -> Result<(), HandlerError> {
    let Some(read) = unless_registered(&controller.view(), node, new) else {
        return Ok(());
    };
    controller.may_change(node)?;
    let write = Write::put(key::of(key::REGISTRATION, node), emit(new)).when(read);
    let message = format!(
        "node {node} registered with {} paths, version {}",
        new.paths.len(),
        new.version
    );
    let about = About::tenant(&caller.tenant).node(node);
    let writes = vec![controller.certificate_check(&caller.node)?, write];
    controller
        .commit(&caller.checked, writes, about, "node_registered", message)
        .await?;
    Ok(())
}

/// Returns the state of a node's registration. Returns `None` if it is equal to the new one.
fn unless_registered(view: &View, node: &Name, new: &Registration) -> Option<Expect> {
    let known = view
        .nodes
        .get(node)
        .and_then(|node| node.registration.as_ref());
    match known {
        None => Some(Expect::Absent),
        Some(known) => (known.value != *new).then_some(Expect::Revision(known.revision)),
    }
}

/// Stream the events `assignment`, `policy`, `ping`, and `end` before the controller closes it
#[utoipa::path(operation_id = "stream_node", get, path = "/v1/nodes/{node}/stream", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])),
    responses((status = 200, content_type = "text/event-stream", body = StreamData, description = "Events `assignment` and `policy`, whose data is this; events `ping` and `end`"), CommonErrors))]
pub(super) async fn stream(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
) -> Result<impl IntoResponse, HandlerError> {
    caller.must_be(&node)?;
    Ok(Sse::new(push::stream(controller, caller.node)))
}

/// Report observations and counters, and that the node is alive
#[utoipa::path(operation_id = "report_node", post, path = "/v1/nodes/{node}/reports", tag = "nodes", params(("node" = Name, Path)), security(("certificate" = [])), request_body = Report,
    responses((status = 204, description = "Accepted"), CommonErrors, BodyErrors))]
pub(super) async fn report(
    State(controller): State<Arc<Controller>>,
    caller: Certified,
    Path(node): Path<Name>,
    Message(mut report): Message<Report>,
) -> Result<StatusCode, HandlerError> {
    caller.must_be(&node)?;
    check::report(&report).map_err(Refusal::meaningless)?;
    controller.is_own(&node, &report)?;
    controller.note_alive(&caller).await?;
    controller
        .on_received_report(&caller.checked, &report)
        .await?;
    let observations = std::mem::take(&mut report.observations);
    controller.complete_paths(&node, &mut report);
    let health = HealthRecord {
        paths: report.paths.clone(),
        reached: report.reached.clone(),
    };
    controller.on_path_health(&caller, health).await?;
    controller.keep_report(&caller.node, report);
    try_join_all(
        observations
            .into_iter()
            .map(|observation| controller.on_observation(&caller, observation)),
    )
    .await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Controller {
    /// Adds the paths of the previous report to one without paths: nothing changed, so they are
    /// still valid.
    fn complete_paths(&self, node: &Name, report: &mut Report) {
        if report.paths.is_empty()
            && let Some(before) = self.reports().get(node)
        {
            report.paths.clone_from(&before.report.paths);
        }
    }

    /// Rejects a report about other nodes' flows. A flow that was deleted in the meantime is
    /// accepted.
    fn is_own(&self, node: &Name, report: &Report) -> Result<(), Refusal> {
        let view = self.view();
        let sends = report.sends.iter().map(|send| (&send.flow, Some(true)));
        let receives = report
            .receives
            .iter()
            .map(|receive| (&receive.flow, Some(false)));
        let observations = report.observations.iter().filter_map(observe::about);
        for (name, at_ingress) in sends.chain(receives).chain(observations) {
            let Some(flow) = view.flow(name).map(|record| &record.value.flow) else {
                continue;
            };
            if !is_end(flow, node, at_ingress) {
                self.metrics.refused("foreign_flow");
                return Err(Refusal::forbidden(format!(
                    "{node} must not report about {name}, of which it is not the right end"
                )));
            }
        }
        Ok(())
    }
}

/// Returns whether the node is the ingress (`true`), the egress (`false`) or either of a flow.
fn is_end(flow: &Flow, node: &Name, at_ingress: Option<bool>) -> bool {
    match at_ingress {
        Some(true) => flow.ingress == *node,
        Some(false) => flow.egress == *node,
        None => flow.ingress == *node || flow.egress == *node,
    }
}
