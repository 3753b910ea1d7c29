use super::extract::{Body, PageQuery, Path};
use super::filter::{Filtered, OwnerFilter};
use super::patch::MergePatch;
use super::tenants::{Created, Creation};
use crate::access::{Operate, Operator, Read, Sight};
use crate::check::{self, overlap};
use crate::controller::{About, Controller};
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged};
use crate::problem::Kind;
use crate::record::{FlowRecord, NumberRecord, emit, key};
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
use hawser_model::answer::Page;
use hawser_model::resource::{Cause, Flow, Policy};
use hawser_units::MAX_FLOWS;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// List flows, ordered by name
#[utoipa::path(operation_id = "list_flows", get, path = "/v1/flows", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<Flow>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<Flow>>, HandlerError> {
    let view = controller.view();
    let flows = view
        .flows
        .range::<str, _>(query.range())
        .filter_map(|(name, flow)| {
            let flow = &flow.record.as_ref()?.value.flow;
            let is_wanted = operator.sees(&flow.tenant)
                && filter.admits(&flow.tenant, [&flow.ingress, &flow.egress]);
            is_wanted.then(|| (name, Flow::clone(flow)))
        });
    Ok(Json(query.page(flows)?))
}

/// Get a flow
#[utoipa::path(operation_id = "get_flow", get, path = "/v1/flows/{flow}", tag = "operators", params(("flow" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Flow, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, NotFoundError))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Tagged<Flow>, HandlerError> {
    let record = controller.flow_of(&operator, &name)?;
    Ok(Tagged(
        record.value.changed_in(record.revision),
        record.value.flow,
    ))
}

/// Create a flow between two nodes of a tenant
#[utoipa::path(operation_id = "create_flow", post, path = "/v1/flows", tag = "operators", request_body = Flow, security(("token" = [])),
    responses((status = 201, body = Flow, headers(("ETag" = String, description = "Its revision, for `If-Match`"))),
        (status = 200, body = Flow, description = "It exists with this content; nothing was changed"), CommonErrors, BodyErrors, NotFoundError, ConflictError))]
pub(super) async fn create(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    Body(flow): Body<Flow>,
) -> Result<Created<Flow>, HandlerError> {
    operator.must_be_of(&flow.tenant)?;
    check::flow(&flow).map_err(Refusal::meaningless)?;
    let creation = controller
        .retrying(|| try_create(&controller, &operator, &flow))
        .await?;
    Ok(creation.response(format!("/v1/flows/{}", flow.name), flow))
}

async fn try_create(
    controller: &Controller,
    operator: &Operator<Operate>,
    flow: &Flow,
) -> Result<Creation, HandlerError> {
    let name = &flow.name;
    let known = controller.view().flow(name).cloned();
    if let Some(Versioned { value, revision }) = known {
        check_same(&value.flow, flow)?;
        let key = key::of(key::FLOW, name);
        controller.still(&operator.checked, key, revision).await?;
        return Ok(Creation::Before(value.changed_in(revision)));
    }
    let writes = writes_to_create(&controller.view(), flow)?;
    let message = format!("{} created the flow {name}", operator.token.name);
    let by = operator.origin.makes(name);
    let about = About::tenant(&flow.tenant).flow(name).by(by);
    let revision = controller
        .commit(&operator.checked, writes, about, "flow_created", message)
        .await?;
    Ok(Creation::New(revision))
}

/// Rejects the creation of a flow of which there is another one.
fn check_same(known: &Flow, new: &Flow) -> Result<(), Refusal> {
    let name = &new.name;
    if known.tenant != new.tenant {
        return Err(Refusal::taken(name, &new.tenant));
    }
    if known != new {
        let what = format!(
            "the flow {name} already exists with other content; PUT /v1/flows/NAME changes it"
        );
        return Err(Refusal::conflict(what).kind(Kind::AlreadyExists));
    }
    Ok(())
}

/// Change a flow; its policy is reset unless an operator has fixed it
///
/// Its tenant and its nodes cannot be changed: delete the flow and create it again.
#[utoipa::path(operation_id = "replace_flow", put, path = "/v1/flows/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), request_body = Flow, security(("token" = [])),
    responses((status = 200, body = Flow, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn change(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
    Body(flow): Body<Flow>,
) -> Result<Tagged<Flow>, HandlerError> {
    let sight = controller.sight_of_flow(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let replaced = |_: &Flow| Ok(flow.clone());
    controller
        .retrying(|| try_change(&controller, &operator, &matching, &name, &replaced))
        .await
}

/// Change some fields of a flow; its policy is reset unless an operator has fixed it
///
/// Its tenant and its nodes cannot be changed: delete the flow and create it again.
#[utoipa::path(operation_id = "change_flow", patch, path = "/v1/flows/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), request_body(content = MergePatch, content_type = "application/merge-patch+json"), security(("token" = [])),
    responses((status = 200, body = Flow, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn patch(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
    patch: MergePatch,
) -> Result<Tagged<Flow>, HandlerError> {
    let sight = controller.sight_of_flow(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let patched = |before: &Flow| patch.applied_to(before);
    controller
        .retrying(|| try_change(&controller, &operator, &matching, &name, &patched))
        .await
}

async fn try_change(
    controller: &Controller,
    operator: &Operator<Operate>,
    matching: &Precondition,
    name: &Name,
    changed: &impl Fn(&Flow) -> Result<Flow, Refusal>,
) -> Result<Tagged<Flow>, HandlerError> {
    let before = controller.flow_of(operator, name)?;
    let changed_in = before.value.changed_in(before.revision);
    let new = changed(&before.value.flow)?;
    // A flow that is wrong in itself is refused before the precondition (RFC 9110, section 13.2.1).
    check::flow(&new).map_err(Refusal::meaningless)?;
    matching.check(changed_in)?;
    check_unchangeable(&before.value.flow, &new)?;
    if new == before.value.flow {
        let key = key::of(key::FLOW, name);
        controller
            .still(&operator.checked, key, before.revision)
            .await?;
        return Ok(Tagged(changed_in, new));
    }
    let writes = {
        let view = controller.view();
        if new.select != before.value.flow.select {
            check_overlap(&view, &new)?;
        }
        check_adjacent(&view, &new)?;
        writes_to_change(&view, &new, &before)
    };
    let message = format!("{} changed the flow {name}", operator.token.name);
    let by = operator.origin.changes(name, changed_in);
    let about = About::tenant(&new.tenant).flow(name).by(by);
    let revision = controller
        .commit(&operator.checked, writes, about, "flow_changed", message)
        .await?;
    Ok(Tagged(revision, new))
}

/// Rejects a change of the fields that cannot be changed.
fn check_unchangeable(old: &Flow, new: &Flow) -> Result<(), Refusal> {
    if (&new.name, &new.tenant, &new.ingress, &new.egress)
        == (&old.name, &old.tenant, &old.ingress, &old.egress)
    {
        return Ok(());
    }
    let what = "name, tenant, ingress and egress of a flow cannot be changed; delete it and create another";
    Err(Refusal::meaningless(what))
}

fn writes_to_change(view: &View, new: &Flow, before: &Versioned<FlowRecord>) -> Vec<Write> {
    let mut writes = Vec::new();
    if let Some(policy) = view.policy(&new.name)
        && policy.value.reason != Cause::Operator
    {
        let next =
            view.situation(new)
                .initial()
                .into_policy(Some(&policy.value), &new.name, unix_ms());
        let read = Expect::Revision(policy.revision);
        writes.push(Write::put(key::of(key::POLICY, &new.name), emit(&next)).when(read));
    }
    let record = FlowRecord {
        flow: new.clone(),
        changed_in: None,
        ..before.value.clone()
    };
    writes.push(
        Write::put(key::of(key::FLOW, &new.name), emit(&record))
            .when(Expect::Revision(before.revision)),
    );
    writes
}

/// Delete a flow; its packets take the default route
#[utoipa::path(operation_id = "delete_flow", delete, path = "/v1/flows/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Deleted"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn delete(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let sight = controller.sight_of_flow(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller
        .retrying(|| try_delete(&controller, &operator, &matching, &name))
        .await
}

async fn try_delete(
    controller: &Controller,
    operator: &Operator<Operate>,
    matching: &Precondition,
    name: &Name,
) -> Result<StatusCode, HandlerError> {
    let record = controller.flow_of(operator, name)?;
    let changed_in = record.value.changed_in(record.revision);
    matching.check(changed_in)?;
    let writes = writes_to_delete(&controller.view(), &record);
    let message = format!("{} deleted the flow {name}", operator.token.name);
    let by = operator.origin.removes(name, changed_in);
    let about = About::tenant(&record.value.flow.tenant).flow(name).by(by);
    controller
        .commit(&operator.checked, writes, about, "flow_deleted", message)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the writes that delete a flow and its policy, and free its number at both nodes.
fn writes_to_delete(view: &View, record: &Versioned<FlowRecord>) -> Vec<Write> {
    let FlowRecord { flow, number, .. } = &record.value;
    let read = Expect::Revision(record.revision);
    let mut writes = vec![Write::delete(key::of(key::FLOW, &flow.name)).when(read)];
    if let Some(policy) = view.policy(&flow.name) {
        let read = Expect::Revision(policy.revision);
        writes.push(Write::delete(key::of(key::POLICY, &flow.name)).when(read));
        let freed = emit(&NumberRecord {
            flow: None,
            epoch: policy.value.epoch,
        });
        writes.extend(
            [&flow.ingress, &flow.egress]
                .map(|node| Write::put(key::number(node, *number), freed.clone())),
        );
    }
    writes
}

/// Returns the writes that create a flow with its number at both nodes and its first policy.
fn writes_to_create(view: &View, flow: &Flow) -> Result<Vec<Write>, Refusal> {
    let name = &flow.name;
    check_overlap(view, flow)?;
    check_adjacent(view, flow)?;
    let references = references(view, flow)?;
    let free = free_number(view, flow)?;
    let mut writes = free.taken_by(flow).to_vec();
    let initial = view.situation(flow).initial();
    let first = Policy {
        epoch: free.epoch + 1,
        ..initial.into_policy(None, name, unix_ms())
    };
    // The policy precedes the flow, so that no reader sees a flow without a policy.
    writes.push(Write::put(key::of(key::POLICY, name), emit(&first)).when(Expect::Absent));
    let record = FlowRecord {
        flow: flow.clone(),
        number: free.number,
        received: false,
        changed_in: None,
    };
    writes.push(Write::put(key::of(key::FLOW, name), emit(&record)).when(Expect::Absent));
    writes.extend(references);
    Ok(writes)
}

/// Rejects a flow whose packets another flow of the same ingress may take. The kernel searches the
/// longest prefix first, so flows may share packets if their prefixes have different lengths.
fn check_overlap(view: &View, flow: &Flow) -> Result<(), Refusal> {
    let ingress = view.nodes.get(&flow.ingress);
    let others = ingress.iter().flat_map(|node| &node.sends);
    for other in others.filter(|other| **other != flow.name) {
        let Some(record) = view.flow(other) else {
            continue;
        };
        if overlap(&flow.select, &record.value.flow.select) {
            let what = format!(
                "the flow {other} of {} selects some of the same packets under the same destination; select other ports or \
                 protocols, or a destination prefix of another length, of which the longest one takes a packet",
                flow.ingress
            );
            return Err(Refusal::conflict(what).kind(Kind::Overlapping));
        }
    }
    Ok(())
}

/// Rejects a transparent flow that may take a path whose ends, as registered, cannot be on one
/// link of IPv4. What only the nodes know, they check themselves.
fn check_adjacent(view: &View, flow: &Flow) -> Result<(), Refusal> {
    if !flow.transparent {
        return Ok(());
    }
    let ends = |node: &Name| {
        view.nodes
            .get(node)
            .map_or(vec![], |found| found.paths(node))
    };
    let egress = ends(&flow.egress);
    for path in ends(&flow.ingress) {
        let number = path.end.number;
        let is_used = flow.paths.is_empty() || flow.paths.contains(&number);
        let other = egress.iter().find(|other| other.end.number == number);
        let Some(other) = other.filter(|_| is_used) else {
            continue;
        };
        let (here, there) = (&path.end, &other.end);
        let is_one_link = (here.local, here.remote) == (there.remote, there.local);
        if !here.local.is_ipv4() || !is_one_link {
            return Err(Refusal::meaningless(format!(
                "a transparent flow needs adjacent nodes: path {number} is not of IPv4, or its ends do not name each other's \
                 address; leave it out with `paths`"
            )));
        }
    }
    Ok(())
}

/// Returns the references of a flow to its nodes.
fn references(view: &View, flow: &Flow) -> Result<Vec<Write>, Refusal> {
    let mut references = Vec::new();
    for node in [&flow.ingress, &flow.egress] {
        let revision = end_revision(view, flow, node)?;
        references.extend(reference::refer(key::NODE, node, revision, &flow.name));
    }
    Ok(references)
}

/// Returns the revision of a node that a flow begins or ends at.
fn end_revision(view: &View, flow: &Flow, node: &Name) -> Result<Revision, Refusal> {
    let record = view
        .node(node)
        .map(|(_, record)| record)
        .filter(|record| record.value.tenant == flow.tenant);
    let record = record.ok_or_else(|| {
        Refusal::not_found(format!(
            "the tenant {} has no node {node}; enrol it first: POST /v1/nodes/NAME/enrolment",
            flow.tenant
        ))
    })?;
    Ok(record.revision)
}

/// A flow number that is free at both nodes of a flow.
struct FreeNumber {
    number: u16,
    /// The expected states of its records at the ingress and at the egress.
    expected: [Expect; 2],
    /// The last epoch under the number.
    epoch: u32,
}

fn free_number(view: &View, flow: &Flow) -> Result<FreeNumber, Refusal> {
    let nodes = [&flow.ingress, &flow.egress].map(|node| view.nodes.get(node));
    let mut hasher = DefaultHasher::new();
    flow.name.hash(&mut hasher);
    // Each flow starts the search at a different number, so that concurrently created flows rarely
    // choose the same one.
    let first = usize::try_from(hasher.finish() % MAX_FLOWS as u64).unwrap_or(0);
    let mut numbers = (0..MAX_FLOWS)
        .map(|offset| (first + offset) % MAX_FLOWS)
        .filter_map(|number| u16::try_from(number).ok());
    let free = numbers.find_map(|number| FreeNumber::of(number, nodes));
    free.ok_or_else(|| {
        Refusal::conflict(format!(
            "{} and {} have no common free flow number; a node has at most {MAX_FLOWS} flows",
            flow.ingress, flow.egress
        ))
    })
}

impl FreeNumber {
    /// Returns the number unless a flow of one of the nodes has it.
    fn of(number: u16, nodes: [Option<&NodeView>; 2]) -> Option<FreeNumber> {
        let found = nodes.map(|node| node?.numbers.get(&number));
        let known = || found.iter().flatten();
        if known().any(|known| known.value.flow.is_some()) {
            return None;
        }
        let expect = |known: &Versioned<NumberRecord>| Expect::Revision(known.revision);
        Some(FreeNumber {
            number,
            expected: found.map(|known| known.map_or(Expect::Absent, expect)),
            epoch: known().map(|known| known.value.epoch).max().unwrap_or(0),
        })
    }

    /// Returns the writes by which a flow takes the number at both nodes.
    fn taken_by(&self, flow: &Flow) -> [Write; 2] {
        let taken = emit(&NumberRecord {
            flow: Some(flow.name.clone()),
            epoch: 0,
        });
        let take = |node: &Name, expect| {
            Write::put(key::number(node, self.number), taken.clone()).when(expect)
        };
        let [at_ingress, at_egress] = self.expected;
        [
            take(&flow.ingress, at_ingress),
            take(&flow.egress, at_egress),
        ]
    }
}

impl Controller {
    /// Returns a flow that the operator may see.
    pub(super) fn flow_of<N>(
        &self,
        operator: &Operator<N>,
        name: &Name,
    ) -> Result<Versioned<FlowRecord>, Refusal> {
        let view = self.view();
        let record = view
            .flow(name)
            .filter(|record| operator.sees(&record.value.flow.tenant));
        record.cloned().ok_or_else(|| missing(name))
    }

    /// Rejects access to a flow that the operator may not see.
    pub(super) fn sight_of_flow<N>(
        &self,
        operator: &Operator<N>,
        name: &Name,
    ) -> Result<Sight, Refusal> {
        let view = self.view();
        let sight = operator.sight(view.flow(name), |record| Some(&record.value.flow.tenant));
        sight.ok_or_else(|| missing(name))
    }
}

fn missing(name: &Name) -> Refusal {
    Refusal::not_found(format!(
        "there is no flow {name}; GET /v1/flows lists all flows"
    ))
}
