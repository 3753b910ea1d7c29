use super::extract::{EventsPart, Query};
use super::refusal::{Failed, Refused};
use crate::access::{Operator, Read};
use crate::controller::Controller;
use axum::Json;
use axum::extract::State;
use hawser_control::answer::Page;
use hawser_control::audit::AuditEntry;
use std::sync::Arc;

/// Changes and their authors, oldest first
#[utoipa::path(get, path = "/v1/audit", tag = "operators", params(EventsPart), security(("token" = [])),
    responses((status = 200, body = Page<AuditEntry>), Refused))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(part): Query<EventsPart>,
) -> Result<Json<Page<AuditEntry>>, Failed> {
    let view = controller.view();
    let entries = view
        .audit
        .range(part.rest())
        .filter(|(_, entry)| operator.sees_optional(entry.tenant.as_ref()));
    Ok(Json(part.page(
        entries.map(|(number, entry)| (number, entry.clone())),
    )?))
}
