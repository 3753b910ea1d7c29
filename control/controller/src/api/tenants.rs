use super::extract::{Body, PageQuery, Path, Query};
use super::patch::MergePatch;
use crate::access::{Admin, Operator, Read};
use crate::check;
use crate::controller::{About, Controller};
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged, tag};
use crate::problem::Kind;
use crate::record::{emit, key};
use crate::reference;
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::store::{Expect, Revision, Write};
use crate::view::{Versioned, View};
use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use hawser_model::Name;
use hawser_model::answer::Page;
use hawser_model::resource::Tenant;
use std::sync::Arc;

/// The maximum number of things of one kind that an error names.
const MAX_NAMED: usize = 10;

/// The response to the creation of a resource, with its location.
pub(super) type Created<T> = (StatusCode, [(HeaderName, String); 2], Json<T>);

pub(super) fn created<T>(place: String, revision: Revision, what: T) -> Created<T> {
    Creation::New(revision).response(place, what)
}

/// The outcome of a creation, with the revision of the resource. Clients repeat creations whose response
/// was lost.
pub(super) enum Creation {
    New(Revision),
    /// The resource existed with the same content. Nothing was written.
    Before(Revision),
}

impl Creation {
    pub(super) fn response<T>(self, place: String, what: T) -> Created<T> {
        let (status, revision) = match self {
            Creation::New(revision) => (StatusCode::CREATED, revision),
            Creation::Before(revision) => (StatusCode::OK, revision),
        };
        let headers = [(header::LOCATION, place), tag(revision)];
        (status, headers, Json(what))
    }
}
/// List tenants, ordered by name
#[utoipa::path(operation_id = "list_tenants", get, path = "/v1/tenants", tag = "operators", params(PageQuery), security(("token" = [])),
    responses((status = 200, body = Page<Tenant>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<Tenant>>, HandlerError> {
    let view = controller.view();
    let tenants = view
        .tenants
        .range::<str, _>(query.range())
        .filter(|(name, _)| operator.sees(name));
    Ok(Json(query.page(tenants.map(|(name, tenant)| {
        (name, Tenant::clone(&tenant.value))
    }))?))
}

/// Create a tenant
#[utoipa::path(operation_id = "create_tenant", post, path = "/v1/tenants", tag = "operators", request_body = Tenant, security(("token" = [])),
    responses((status = 201, body = Tenant, headers(("ETag" = String, description = "Its revision, for `If-Match`"))),
        (status = 200, body = Tenant, description = "It exists with this content; nothing was changed"), CommonErrors, BodyErrors, ConflictError))]
pub(super) async fn create(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    Body(tenant): Body<Tenant>,
) -> Result<Created<Tenant>, HandlerError> {
    operator.must_see_all()?;
    check::description(&tenant.description).map_err(Refusal::meaningless)?;
    let creation = controller
        .retrying(|| try_create(&controller, &operator, &tenant))
        .await?;
    Ok(creation.response(format!("/v1/tenants/{}", tenant.name), tenant))
}

async fn try_create(
    controller: &Controller,
    operator: &Operator<Admin>,
    tenant: &Tenant,
) -> Result<Creation, HandlerError> {
    let known = controller.view().tenants.get(&tenant.name).cloned();
    if let Some(Versioned { value, revision }) = known {
        if value != *tenant {
            let what = format!(
                "the tenant {} already exists with another description; PATCH /v1/tenants/NAME changes it",
                tenant.name
            );
            return Err(Refusal::conflict(what).kind(Kind::AlreadyExists).into());
        }
        let key = key::of(key::TENANT, &tenant.name);
        controller.still(&operator.checked, key, revision).await?;
        return Ok(Creation::Before(revision));
    }
    let key = key::of(key::TENANT, &tenant.name);
    let writes = vec![Write::put(key, emit(tenant)).when(Expect::Absent)];
    let message = format!("{} created the tenant {}", operator.token.name, tenant.name);
    let about = About::tenant(&tenant.name).by(operator.origin.makes(&tenant.name));
    let revision = controller
        .commit(&operator.checked, writes, about, "tenant_created", message)
        .await?;
    Ok(Creation::New(revision))
}

/// Get a tenant
#[utoipa::path(operation_id = "get_tenant", get, path = "/v1/tenants/{tenant}", tag = "operators", params(("tenant" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Tenant, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, NotFoundError))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Tagged<Tenant>, HandlerError> {
    let view = controller.view();
    let tenant = view
        .tenants
        .get(&name)
        .filter(|_| operator.sees(&name))
        .ok_or_else(|| missing(&name))?;
    Ok(Tagged(tenant.revision, Tenant::clone(&tenant.value)))
}

/// Change the description of a tenant
#[utoipa::path(operation_id = "change_tenant", patch, path = "/v1/tenants/{tenant}", tag = "operators", params(("tenant" = Name, Path), IfMatchHeader), request_body(content = MergePatch, content_type = "application/merge-patch+json"), security(("token" = [])),
    responses((status = 200, body = Tenant, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn change(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    matching: IfMatch,
    Path(name): Path<Name>,
    patch: MergePatch,
) -> Result<Tagged<Tenant>, HandlerError> {
    let sight = operator.must_see_all()?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let (controller, operator, matching, name) = (&*controller, &operator, &matching, &name);
    let patch = &patch;
    controller
        .retrying(|| async move {
            let before = controller.view().tenants.get(name).cloned();
            let before = before.ok_or_else(|| missing(name))?;
            matching.check(before.revision)?;
            let changed = patch.applied_to(&before.value)?;
            check_change(name, &changed)?;
            let write = Write::put(key::of(key::TENANT, name), emit(&changed));
            let write = write.when(Expect::Revision(before.revision));
            let about = About::tenant(name).by(operator.origin.changes(name, before.revision));
            let message = format!("{} changed the tenant {name}", operator.token.name);
            let revision = controller
                .commit(
                    &operator.checked,
                    vec![write],
                    about,
                    "tenant_changed",
                    message,
                )
                .await?;
            Ok(Tagged(revision, changed))
        })
        .await
}

fn check_change(name: &Name, changed: &Tenant) -> Result<(), Refusal> {
    if changed.name != *name {
        return Err(Refusal::meaningless(
            "the name of a tenant cannot be changed",
        ));
    }
    check::description(&changed.description).map_err(Refusal::meaningless)
}

/// Delete a tenant that has no nodes, flows and tokens
#[utoipa::path(operation_id = "delete_tenant", delete, path = "/v1/tenants/{tenant}", tag = "operators", params(("tenant" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Deleted"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn delete(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let sight = operator.must_see_all()?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let (controller, operator, matching, name) = (&*controller, &operator, &matching, &name);
    controller
        .retrying(|| async move {
            let (writes, revision) = writes_to_delete(&controller.view(), matching, name)?;
            let about = About::tenant(name).by(operator.origin.removes(name, revision));
            let message = format!("{} deleted the tenant {name}", operator.token.name);
            controller
                .commit(&operator.checked, writes, about, "tenant_deleted", message)
                .await?;
            Ok(StatusCode::NO_CONTENT)
        })
        .await
}

/// Returns the writes that delete a tenant, and the revision of the tenant.
fn writes_to_delete(
    view: &View,
    matching: &Precondition,
    name: &Name,
) -> Result<(Vec<Write>, Revision), Refusal> {
    let tenant = view.tenants.get(name).ok_or_else(|| missing(name))?;
    matching.check(tenant.revision)?;
    let references = references_to(view, name);
    if !references.is_empty() {
        let what = format!(
            "{name} still has {}; delete them first",
            references.join(", ")
        );
        return Err(Refusal::conflict(what).kind(Kind::InUse));
    }
    let writes = reference::remove(view, key::TENANT, name, tenant.revision).to_vec();
    Ok((writes, tenant.revision))
}

/// Describes the flows, nodes and tokens of a tenant, in the order in which they can be deleted. Empty
/// if there is none.
fn references_to(view: &View, tenant: &Name) -> Vec<String> {
    let flows = view.flows.iter().filter(|(_, flow)| {
        let record = flow.record.as_ref();
        record.is_some_and(|record| record.value.flow.tenant == *tenant)
    });
    let tokens = view.tokens.iter();
    let tokens = tokens.filter(|(_, token)| token.value.token.tenant.as_ref() == Some(tenant));
    let flows: Vec<&Name> = flows.map(|(name, _)| name).collect();
    let nodes: Vec<&Name> = view.nodes_of(tenant).collect();
    let tokens: Vec<&Name> = tokens.map(|(name, _)| name).collect();
    [("flow", flows), ("node", nodes), ("token", tokens)]
        .into_iter()
        .filter_map(|(kind, names)| named(kind, &names))
        .collect()
}

/// Describes things of a kind by their names; `None` if there are none.
fn named(kind: &str, names: &[&Name]) -> Option<String> {
    let (first, rest) = names.split_at(names.len().min(MAX_NAMED));
    let first: Vec<&str> = first.iter().map(|name| name.as_str()).collect();
    let first = first.join(", ");
    match (names.len(), rest.len()) {
        (0, _) => None,
        (1, _) => Some(format!("the {kind} {first}")),
        (_, 0) => Some(format!("the {kind}s {first}")),
        (all, more) => Some(format!("{all} {kind}s ({first} and {more} more)")),
    }
}

pub(super) fn missing(name: &Name) -> Refusal {
    Refusal::not_found(format!(
        "there is no tenant {name}; GET /v1/tenants lists all tenants"
    ))
}
