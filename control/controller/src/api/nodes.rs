use super::enrol::put_node;
use super::enrolments::enrolment_name;
use super::extract::{Body, PageQuery, Path};
use super::filter::{Filtered, NodeFilter, OwnerFilter};
use super::patch::MergePatch;
use crate::access::{Operate, Operator, Read, Sight};
use crate::check;
use crate::controller::{About, Controller};
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged};
use crate::problem::Kind;
use crate::record::{EnrolmentRecord, NodeRecord, key, random_hex, sha256_hex};
use crate::reference;
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::store::{Expect, Revision, Write};
use crate::view::{NodeView, Versioned, View};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::access::{Enrolment, EnrolmentToken, NewEnrolment};
use hawser_model::answer::Page;
use hawser_model::node::Reported;
use hawser_model::resource::{Node, Path as NodePath};
use serde::{Deserialize, Serialize};
use std::ops::Bound;
use std::sync::Arc;

/// The maximum validity of an enrolment token, seconds: 30 days.
const MAX_VALID_S: u32 = 30 * 24 * 3600;

/// The maximum number of unused tokens per node.
const MAX_UNUSED: usize = 16;

/// The records of a node that go with it: its statements about itself, and its settings.
const RECORDS: [&str; 8] = [
    key::REGISTRATION,
    key::SEEN,
    key::ALIVE,
    key::HEALTH,
    key::TUNNEL,
    key::TUNNEL_CLIENT,
    key::TUNNEL_SETTINGS,
    key::KEYS,
];

/// List nodes, ordered by name
#[utoipa::path(operation_id = "list_nodes", get, path = "/v1/nodes", tag = "operators", params(PageQuery, NodeFilter), security(("token" = [])),
    responses((status = 200, body = Page<Node>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, NodeFilter>,
) -> Result<Json<Page<Node>>, HandlerError> {
    let view = controller.view();
    let resources = seen_nodes(&view, &operator, query.range()).map(|(name, node, record)| {
        let seen = controller.seen_unix_ms(name);
        (name, node.resource(name, record, seen))
    });
    Ok(Json(
        query.page(resources.filter(|(_, node)| filter.admits(node)))?,
    ))
}

/// Returns the nodes in a range that the operator may see.
fn seen_nodes<'a, N>(
    view: &'a View,
    operator: &'a Operator<N>,
    range: (Bound<&'a str>, Bound<&'a str>),
) -> impl Iterator<Item = (&'a Name, &'a NodeView, &'a NodeRecord)> {
    let known = view
        .nodes
        .range::<str, _>(range)
        .filter_map(|(name, node)| Some((name, node, &node.record.as_ref()?.value)));
    known.filter(|(_, _, record)| operator.sees(&record.tenant))
}

/// Get a node
#[utoipa::path(operation_id = "get_node", get, path = "/v1/nodes/{node}", tag = "operators", params(("node" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Node, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, NotFoundError))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Tagged<Node>, HandlerError> {
    show_node(&controller, &operator, &name)
}

fn show_node<N>(
    controller: &Controller,
    operator: &Operator<N>,
    name: &Name,
) -> Result<Tagged<Node>, HandlerError> {
    let seen = controller.seen_unix_ms(name);
    let view = controller.view();
    let (node, record) = view.node(name).ok_or_else(|| Refusal::missing_node(name))?;
    if !operator.sees(&record.value.tenant) {
        return Err(Refusal::missing_node(name).into());
    }
    Ok(Tagged(
        record.value.changed_in(record.revision),
        node.resource(name, &record.value, seen),
    ))
}

/// The fields of a node that an operator may change.
#[derive(Serialize, Deserialize)]
struct Changeable {
    #[serde(default)]
    description: String,
}

/// Change the description of a node
#[utoipa::path(operation_id = "change_node", patch, path = "/v1/nodes/{node}", tag = "operators", params(("node" = Name, Path), IfMatchHeader), request_body(content = MergePatch, content_type = "application/merge-patch+json"), security(("token" = [])),
    responses((status = 200, body = Node, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn change(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
    patch: MergePatch,
) -> Result<Tagged<Node>, HandlerError> {
    let sight = controller.sight_of_node(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .retrying(|| try_change(&controller, &operator, &matching, &name, &patch))
        .await?;
    show_node(&controller, &operator, &name)
}

async fn try_change(
    controller: &Controller,
    operator: &Operator<Operate>,
    matching: &Precondition,
    name: &Name,
    patch: &MergePatch,
) -> Result<(), HandlerError> {
    let Versioned { value, revision } = controller.node_of(operator, name)?;
    let changed_in = value.changed_in(revision);
    matching.check(changed_in)?;
    let description = value.description.clone();
    let Changeable { description } = patch.applied_to(&Changeable { description })?;
    check::description(&description).map_err(Refusal::meaningless)?;
    let by = operator.origin.changes(name, changed_in);
    let about = About::tenant(&value.tenant).node(name).by(by);
    let node = NodeRecord {
        description,
        ..value
    };
    let write = put_node(name, node, Expect::Revision(revision));
    let message = format!("{} changed the node {name}", operator.token.name);
    controller
        .commit(
            &operator.checked,
            vec![write],
            about,
            "node_changed",
            message,
        )
        .await?;
    Ok(())
}

/// Revoke a node's certificate and delete the node
#[utoipa::path(operation_id = "delete_node", delete, path = "/v1/nodes/{node}", tag = "operators", params(("node" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Deleted"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn delete(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let sight = controller.sight_of_node(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let (controller, operator, matching, name) = (&*controller, &operator, &matching, &name);
    controller
        .retrying(|| async move {
            let record = controller.node_of(operator, name)?;
            let changed_in = record.value.changed_in(record.revision);
            matching.check(changed_in)?;
            let writes = writes_to_delete(&controller.view(), name, record.revision)?;
            let message = format!("{} deleted the node {name}", operator.token.name);
            let by = operator.origin.removes(name, changed_in);
            let about = About::tenant(&record.value.tenant).node(name).by(by);
            controller
                .commit(&operator.checked, writes, about, "node_deleted", message)
                .await?;
            Ok(StatusCode::NO_CONTENT)
        })
        .await
}

/// Returns the writes that delete a node. They include all statements of the node about itself and its
/// settings, so that a later node of the same name does not inherit them.
fn writes_to_delete(view: &View, name: &Name, revision: Revision) -> Result<Vec<Write>, Refusal> {
    let node = view
        .nodes
        .get(name)
        .ok_or_else(|| Refusal::missing_node(name))?;
    check_flows(name, node)?;
    check_tracks(view, name)?;
    // Numbers beyond the limit of a commit stay; their records contain only the last epoch.
    let numbers = node
        .numbers
        .keys()
        .take(80)
        .map(|number| key::number(name, *number));
    let inner = view.inner_of(name).map(key::inner);
    let records = RECORDS.iter().map(|kind| key::of(kind, name));
    let mut writes = reference::remove(view, key::NODE, name, revision).to_vec();
    writes.extend(records.chain(numbers).chain(inner).map(Write::delete));
    Ok(writes)
}

/// Rejects the deletion of a node to which flows refer.
fn check_flows(name: &Name, node: &NodeView) -> Result<(), Refusal> {
    let flows: Vec<&Name> = node.sends.union(&node.receives).collect();
    let Some(flow) = flows.first() else {
        return Ok(());
    };
    let what = format!(
        "{name} is the ingress or egress of {} flows, such as {flow}; delete them first",
        flows.len()
    );
    Err(Refusal::conflict(what).kind(Kind::InUse))
}

/// Rejects the deletion of a node that tracks name.
fn check_tracks(view: &View, name: &Name) -> Result<(), Refusal> {
    let Some((track, _)) = view.tracks_of(name).next() else {
        return Ok(());
    };
    let what = format!(
        "{name} is a writer or reader of {} tracks, such as {track}; remove it from them first",
        view.tracks_of(name).count()
    );
    Err(Refusal::conflict(what).kind(Kind::InUse))
}

/// Create a one-time token with which a node gets its certificate
///
/// The node is created if it does not exist. A node that has a certificate keeps it until the token
/// is used.
#[utoipa::path(operation_id = "create_enrolment", post, path = "/v1/nodes/{node}/enrolment", tag = "operators", params(("node" = Name, Path)), security(("token" = [])),
    request_body = NewEnrolment,
    responses((status = 201, body = Enrolment), CommonErrors, BodyErrors, NotFoundError, ConflictError))]
pub(super) async fn create_enrolment(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    Path(name): Path<Name>,
    Body(new): Body<NewEnrolment>,
) -> Result<(StatusCode, Json<Enrolment>), HandlerError> {
    operator.must_be_of(&new.tenant)?;
    if !(1..=MAX_VALID_S).contains(&new.valid_s) {
        return Err(Refusal::meaningless(format!("valid_s must be 1 to {MAX_VALID_S}")).into());
    }
    let token = controller.new_token(name);
    let record = unused(&token, new.valid_s);
    controller
        .retrying(|| try_enrolment(&controller, &operator, &token.node, &new.tenant, &record))
        .await?;
    let enrolment = Enrolment {
        token: token.text(),
        node: token.node,
        id: token.id,
        expires_unix_ms: record.expires_unix_ms,
    };
    Ok((StatusCode::CREATED, Json(enrolment)))
}

/// Adds a token to a node.
async fn try_enrolment(
    controller: &Controller,
    operator: &Operator<Operate>,
    name: &Name,
    tenant: &Name,
    enrolment: &EnrolmentRecord,
) -> Result<(), HandlerError> {
    let writes = controller.with_token(name, tenant, enrolment.clone())?;
    let message = format!(
        "{} created the token {} to enrol {name}",
        operator.token.name, enrolment.id
    );
    let by = operator.origin.makes(enrolment_name(name, &enrolment.id));
    let about = About::tenant(tenant).node(name).by(by);
    controller
        .commit(
            &operator.checked,
            writes,
            about,
            "enrolment_created",
            message,
        )
        .await?;
    Ok(())
}

/// Returns the record of a token that is valid from now on.
fn unused(token: &EnrolmentToken, valid_s: u32) -> EnrolmentRecord {
    let created_unix_ms = unix_ms();
    EnrolmentRecord {
        id: token.id.clone(),
        secret_sha256: sha256_hex(&token.secret),
        created_unix_ms,
        expires_unix_ms: created_unix_ms + u64::from(valid_s) * 1000,
        used: None,
    }
}

/// Revoke a node's certificates and enrolment tokens; open streams end immediately
///
/// The tracks that the node may publish, watch or relay get new secrets, and the nodes that share a flow
/// with it drop the keys that they share with it.
#[utoipa::path(operation_id = "revoke_node", delete, path = "/v1/nodes/{node}/certificate", tag = "operators", params(("node" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Revoked"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn revoke(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let sight = controller.sight_of_node(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let (controller, operator, matching, name) = (&*controller, &operator, &matching, &name);
    controller
        .retrying(|| async move {
            let Versioned { value, revision } = controller.node_of(operator, name)?;
            let changed_in = value.changed_in(revision);
            matching.check(changed_in)?;
            let tenant = value.tenant.clone();
            // Without its public keys, its peers refuse its packets.
            let writes = vec![
                put_node(name, value.revoked(), Expect::Revision(revision)),
                Write::delete(key::of(key::KEYS, name)),
            ];
            let message = format!("{} revoked the certificate of {name}", operator.token.name);
            let by = operator.origin.removes(name, changed_in);
            let about = About::tenant(&tenant).node(name).by(by);
            controller
                .commit(
                    &operator.checked,
                    writes,
                    about,
                    "certificate_revoked",
                    message,
                )
                .await?;
            Ok(())
        })
        .await?;
    let by = operator.token.name.as_str();
    controller
        .rekey_tracks_of(name, &operator.checked, &operator.origin, by)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List paths, ordered by node and number
#[utoipa::path(operation_id = "list_paths", get, path = "/v1/paths", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<NodePath>), CommonErrors))]
pub(super) async fn paths(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<NodePath>>, HandlerError> {
    let after = query.after().map(PathKey::of);
    let view = controller.view();
    let from = after
        .as_ref()
        .map_or(Bound::Unbounded, |after| Bound::Included(after.node));
    let nodes = seen_nodes(&view, &operator, (from, Bound::Unbounded))
        .filter(|(name, _, record)| filter.admits(&record.tenant, [*name]));
    let paths = nodes.flat_map(|(name, node, _)| node.paths(name));
    let rest = paths.skip_while(|path| {
        let key = PathKey {
            node: path.node.as_str(),
            number: path.end.number,
        };
        after.as_ref().is_some_and(|after| key <= *after)
    });
    let rest = rest.map(|path| (format!("{}/{}", path.node, path.end.number), path));
    Ok(Json(query.page(rest)?))
}

/// The position after which a list of paths continues: `NODE/NUMBER`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct PathKey<'a> {
    node: &'a str,
    number: u8,
}

impl PathKey<'_> {
    fn of(text: &str) -> PathKey<'_> {
        let (node, number) = text.split_once('/').unwrap_or((text, ""));
        PathKey {
            node,
            number: number.parse().unwrap_or(0),
        }
    }
}

/// List the latest reports of the nodes that report to this controller
#[utoipa::path(operation_id = "list_reports", get, path = "/v1/reports", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<Reported>), CommonErrors))]
pub(super) async fn reports(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<Reported>>, HandlerError> {
    let view = controller.view();
    let nodes = seen_nodes(&view, &operator, query.range())
        .filter(|(name, _, record)| filter.admits(&record.tenant, [*name]));
    let reports = controller.reports();
    Ok(Json(query.page(nodes.filter_map(|(name, ..)| {
        Some((name, reports.get(name)?.clone()))
    }))?))
}

/// Get the latest report of a node
#[utoipa::path(operation_id = "get_report", get, path = "/v1/reports/{node}", tag = "operators", params(("node" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Reported), CommonErrors, NotFoundError))]
pub(super) async fn latest_report(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Json<Reported>, HandlerError> {
    controller.node_of(&operator, &name)?;
    let report = controller.reports().get(&name).cloned();
    Ok(Json(report.ok_or_else(|| {
        Refusal::not_found(format!("{name} has not reported to this controller"))
    })?))
}

impl Controller {
    fn new_token(&self, node: Name) -> EnrolmentToken {
        EnrolmentToken {
            node,
            id: random_hex::<8>(),
            secret: random_hex::<32>(),
            authority_sha256: self.authority.digest(),
        }
    }

    /// Returns the writes that add a token to a node, or create the node if it does not exist.
    fn with_token(
        &self,
        name: &Name,
        tenant: &Name,
        enrolment: EnrolmentRecord,
    ) -> Result<Vec<Write>, Refusal> {
        let view = self.view();
        let revision = tenant_revision(&view, tenant)?;
        let Some((_, known)) = view.node(name) else {
            let max = self.config.limits.tenant_nodes;
            if view.nodes_of(tenant).count() >= max {
                return Err(Refusal::conflict(format!(
                    "the tenant {tenant} has {max} nodes, as many as `limits.tenant_nodes` allows; delete some first"
                )));
            }
            return writes_to_create(name, (tenant, revision), enrolment);
        };
        if known.value.tenant != *tenant {
            return Err(Refusal::taken(name, tenant));
        }
        let (node, read) = (known.value.clone(), Expect::Revision(known.revision));
        Ok(vec![put_with_token(name, node, enrolment, read)?])
    }

    /// Returns a node that the operator may see.
    pub(super) fn node_of<N>(
        &self,
        operator: &Operator<N>,
        name: &Name,
    ) -> Result<Versioned<NodeRecord>, Refusal> {
        let view = self.view();
        let record = view
            .node(name)
            .map(|(_, record)| record)
            .filter(|record| operator.sees(&record.value.tenant));
        record.cloned().ok_or_else(|| Refusal::missing_node(name))
    }

    /// Rejects access to a node that the operator may not see.
    pub(super) fn sight_of_node<N>(
        &self,
        operator: &Operator<N>,
        name: &Name,
    ) -> Result<Sight, Refusal> {
        let view = self.view();
        let record = view.node(name).map(|(_, record)| record);
        let sight = operator.sight(record, |record| Some(&record.value.tenant));
        sight.ok_or_else(|| Refusal::missing_node(name))
    }
}

fn tenant_revision(view: &View, tenant: &Name) -> Result<Revision, Refusal> {
    let known = view.tenants.get(tenant).ok_or_else(|| {
        Refusal::not_found(format!(
            "there is no tenant {tenant}; create it first: POST /v1/tenants"
        ))
    })?;
    Ok(known.revision)
}

/// Returns the writes that create a node with a token. The revision is that of the tenant.
fn writes_to_create(
    name: &Name,
    (tenant, revision): (&Name, Revision),
    enrolment: EnrolmentRecord,
) -> Result<Vec<Write>, Refusal> {
    let node = NodeRecord::of(tenant.clone());
    let mut writes = vec![put_with_token(name, node, enrolment, Expect::Absent)?];
    writes.extend(reference::refer(key::TENANT, tenant, revision, name));
    Ok(writes)
}

/// Returns the write of a node with one more token, unless it has too many unused ones.
fn put_with_token(
    name: &Name,
    mut node: NodeRecord,
    enrolment: EnrolmentRecord,
    read: Expect,
) -> Result<Write, Refusal> {
    if node.usable_tokens() >= MAX_UNUSED {
        return Err(Refusal::conflict(format!(
            "{name} has {MAX_UNUSED} unused tokens; withdraw some: \
             DELETE /v1/nodes/NAME/enrolment/ID, GET /v1/enrolments lists them"
        )));
    }
    node.add_token(enrolment);
    Ok(put_node(name, node, read))
}
