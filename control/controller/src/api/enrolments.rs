use super::enrol::put_node;
use super::extract::{PageQuery, Path, Query};
use crate::access::{Operate, Operator, Read};
use crate::controller::{About, Controller};
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError};
use crate::record::{EnrolmentRecord, NodeRecord};
use crate::refusal::{CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal};
use crate::store::Expect;
use crate::view::Versioned;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::access::ListedEnrolment;
use hawser_model::answer::Page;
use std::ops::Bound;
use std::sync::Arc;

/// List enrolment tokens, used and unused, ordered by node, without their secrets
#[utoipa::path(operation_id = "list_enrolments", get, path = "/v1/enrolments", tag = "operators", params(PageQuery), security(("token" = [])),
    responses((status = 200, body = Page<ListedEnrolment>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<ListedEnrolment>>, HandlerError> {
    let after = query
        .after()
        .map(|after| after.split_once('/').unwrap_or((after, "")));
    let view = controller.view();
    let from = after.map_or(Bound::Unbounded, |(node, _)| Bound::Included(node));
    let nodes = view.nodes.range::<str, _>((from, Bound::Unbounded));
    let seen = nodes.filter_map(|(name, node)| Some((name, &node.record.as_ref()?.value)));
    let seen = seen.filter(|(_, record)| operator.sees(&record.tenant));
    let tokens = seen.flat_map(|(name, record)| listed(name, record));
    let rest = tokens.skip_while(|token| {
        after.is_some_and(|after| (token.node.as_str(), token.id.as_str()) <= after)
    });
    Ok(Json(query.page(rest.map(|token| {
        (enrolment_name(&token.node, &token.id), token)
    }))?))
}

/// Withdraw an enrolment token; it can no longer be used
#[utoipa::path(operation_id = "withdraw_enrolment", delete, path = "/v1/nodes/{node}/enrolment/{id}", tag = "operators",
    params(("node" = Name, Path), ("id" = String, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Withdrawn"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn withdraw(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path((name, id)): Path<(Name, String)>,
) -> Result<StatusCode, HandlerError> {
    let sight = controller.sight_of_node(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .retrying(|| try_withdraw(&controller, &operator, &matching, &name, &id))
        .await
}

async fn try_withdraw(
    controller: &Controller,
    operator: &Operator<Operate>,
    matching: &Precondition,
    name: &Name,
    id: &str,
) -> Result<StatusCode, HandlerError> {
    let Versioned {
        value: mut record,
        revision,
    } = controller.node_of(operator, name)?;
    let changed_in = record.changed_in(revision);
    matching.check(changed_in)?;
    withdraw_from(&mut record, name, id)?;
    let removal = operator
        .origin
        .removes(enrolment_name(name, id), changed_in);
    let about = About::tenant(&record.tenant).node(name).by(removal);
    let by = &operator.token.name;
    let message = format!("{by} withdrew the token {id} to enrol {name}");
    let writes = vec![put_node(name, record, Expect::Revision(revision))];
    controller
        .commit(
            &operator.checked,
            writes,
            about,
            "enrolment_withdrawn",
            message,
        )
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

fn withdraw_from(record: &mut NodeRecord, name: &Name, id: &str) -> Result<(), Refusal> {
    let before = record.enrolments.len();
    record.enrolments.retain(|enrolment| enrolment.id != id);
    if record.enrolments.len() == before {
        let what = format!("{name} has no such token; GET /v1/enrolments lists all tokens");
        return Err(Refusal::not_found(what));
    }
    Ok(())
}

/// Returns `NODE/ID`, the name of an enrolment token in lists and in the audit log.
pub(super) fn enrolment_name(node: &Name, id: &str) -> String {
    format!("{node}/{id}")
}

fn listed(node: &Name, record: &NodeRecord) -> Vec<ListedEnrolment> {
    let now = unix_ms();
    let current = record
        .enrolments
        .iter()
        .filter(|enrolment| now < enrolment.expires_unix_ms);
    let listed = |enrolment: &EnrolmentRecord| ListedEnrolment {
        node: node.clone(),
        tenant: record.tenant.clone(),
        id: enrolment.id.clone(),
        created_unix_ms: enrolment.created_unix_ms,
        expires_unix_ms: enrolment.expires_unix_ms,
        used_unix_ms: enrolment.used.as_ref().map(|used| used.at_unix_ms),
    };
    let mut tokens: Vec<_> = current.map(listed).collect();
    tokens.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    tokens
}
