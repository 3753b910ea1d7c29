//! The status of a flow, computed from the view and the nodes' last reports when it is requested.

use super::extract::Path;
use crate::access::{Operator, Read};
use crate::controller::Controller;
use crate::record::FlowRecord;
use crate::refusal::{CommonErrors, HandlerError, NotFoundError, Refusal};
use crate::view::{Versioned, View};
use axum::Json;
use axum::extract::State;
use hawser_model::Name;
use hawser_model::resource::{Event, Flow};
use hawser_model::status::{End, Facts, FlowStatus, Reported};
use std::sync::Arc;

/// Get the status of a flow: whether it is protected, and the reasons
#[utoipa::path(operation_id = "get_flow_status", get, path = "/v1/flows/{flow}/status", tag = "operators", params(("flow" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = FlowStatus), CommonErrors, NotFoundError))]
pub(super) async fn flow_status(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Json<FlowStatus>, HandlerError> {
    let record = controller.flow_of(&operator, &name)?;
    let status = controller.flow_status(&record);
    Ok(Json(status.ok_or_else(|| {
        Refusal::not_found(format!("there is no flow {name}; it was just deleted"))
    })?))
}

impl Controller {
    /// Returns the status of a flow; `None` if it was deleted in the meantime.
    fn flow_status(&self, record: &Versioned<FlowRecord>) -> Option<FlowStatus> {
        let flow = &record.value.flow;
        let view = self.view();
        let policy = &view.policy(&flow.name)?.value;
        let situation = view.situation(flow);
        let facts = Facts {
            flow,
            changed_in: record.value.changed_in(record.revision),
            policy,
            usable: situation.paths,
            received: situation.egress_ready,
            health: situation.health,
            ingress: self.end(&view, flow, [&flow.ingress, &flow.egress]),
            egress: self.end(&view, flow, [&flow.egress, &flow.ingress]),
            events: events_about(&view, flow),
        };
        Some(FlowStatus {
            conditions: facts.conditions(),
            paths: facts.paths(),
            events: facts.latest_events(FlowStatus::MAX_EVENTS),
            policy: policy.clone(),
            flow: Flow::clone(flow),
        })
    }

    /// Returns what is known of one of a flow's nodes, of which the other one is `peer`.
    fn end<'a>(&self, view: &'a View, flow: &Flow, [node, peer]: [&'a Name; 2]) -> End<'a> {
        let found = view.nodes.get(node);
        let registration = found.and_then(|found| found.registration.as_ref());
        let seen = found.and_then(|found| found.seen.as_ref());
        let record = found.and_then(|found| found.record.as_ref());
        End {
            node,
            is_enrolled: record.is_some_and(|record| !record.value.certificates.is_empty()),
            paths: registration.map(|registration| registration.value.paths.as_slice()),
            has_uplinks: registration
                .is_some_and(|registration| !registration.value.uplinks.is_empty()),
            missing_key: view.missing_key(node, peer, *node == flow.ingress),
            alive_since_unix_ms: found
                .and_then(|found| found.alive.as_ref())
                .map(|alive| alive.value.since_unix_ms),
            seen_unix_ms: self
                .seen_unix_ms(node)
                .max(seen.map(|seen| seen.value.at_unix_ms)),
            report: self.part_of_report(node, &flow.name),
        }
    }

    /// Returns the part of a node's last report that concerns a flow.
    fn part_of_report(&self, node: &Name, flow: &Name) -> Option<Reported> {
        let reports = self.reports();
        let report = &reports.get(node)?.report;
        let send = report.sends.iter().find(|part| part.flow == *flow);
        let receive = report.receives.iter().find(|part| part.flow == *flow);
        Some(Reported {
            revision: report.revision,
            send: send.cloned(),
            receive: receive.cloned(),
        })
    }
}

/// Returns the events about a flow, and about its nodes but no flow, oldest first.
fn events_about<'a>(view: &'a View, flow: &Flow) -> Vec<&'a Event> {
    let is_node = |event: &Event| {
        let node = event.node.as_ref();
        event.flow.is_none() && (node == Some(&flow.ingress) || node == Some(&flow.egress))
    };
    view.events
        .range(..)
        .map(|(_, event)| event)
        .filter(|event| event.flow.as_ref() == Some(&flow.name) || is_node(event))
        .collect()
}
