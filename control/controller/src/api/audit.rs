use super::extract::{NumberedPageQuery, Query};
use crate::access::{Operator, Read};
use crate::controller::Controller;
use crate::refusal::{CommonErrors, HandlerError};
use axum::Json;
use axum::extract::State;
use hawser_model::answer::Page;
use hawser_model::audit::AuditEntry;
use std::sync::Arc;

/// List changes and their authors, oldest first
#[utoipa::path(operation_id = "list_audit", get, path = "/v1/audit", tag = "operators", params(NumberedPageQuery), security(("token" = [])),
    responses((status = 200, body = Page<AuditEntry>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(query): Query<NumberedPageQuery>,
) -> Result<Json<Page<AuditEntry>>, HandlerError> {
    let view = controller.view();
    let entries = view
        .audit
        .range(query.range())
        .filter(|(_, entry)| operator.sees_optional(entry.tenant.as_ref()));
    Ok(Json(query.page(
        entries.map(|(number, entry)| (number, entry.clone())),
    )?))
}
