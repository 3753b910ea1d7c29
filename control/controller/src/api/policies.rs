use super::extract::{Body, PageQuery, Path};
use super::filter::{Filtered, OwnerFilter};
use crate::access::{Operate, Operator, Read};
use crate::controller::Controller;
use crate::decide::{Choose, OperatorRequest, Outcome, described};
use crate::precondition::{
    IfMatch, IfMatchHeader, Precondition, PreconditionError, Tagged, changed,
};
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::view::Versioned;
use axum::Json;
use axum::extract::State;
use hawser_model::Name;
use hawser_model::answer::Page;
use hawser_model::decide::{Decision, Ignored, Situation};
use hawser_model::resource::{Cause, Override, Policy};
use hawser_units::{PathSet, PolicyCode};
use std::sync::Arc;

/// List the policies in force, ordered by flow
#[utoipa::path(operation_id = "list_policies", get, path = "/v1/policies", tag = "operators", params(PageQuery, OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Page<Policy>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered {
        page: query,
        filter,
    }: Filtered<PageQuery, OwnerFilter>,
) -> Result<Json<Page<Policy>>, HandlerError> {
    let view = controller.view();
    let policies = view
        .flows
        .range::<str, _>(query.range())
        .filter_map(|(name, flow)| {
            let owner = &flow.record.as_ref()?.value.flow;
            let is_wanted = operator.sees(&owner.tenant)
                && filter.admits(&owner.tenant, [&owner.ingress, &owner.egress]);
            let policy = flow.policy.as_ref().filter(|_| is_wanted)?;
            Some((name, policy.value.clone()))
        });
    Ok(Json(query.page(policies)?))
}

/// Get the policy in force for a flow
#[utoipa::path(operation_id = "get_policy", get, path = "/v1/policies/{flow}", tag = "operators", params(("flow" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Policy, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, NotFoundError))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Tagged<Policy>, HandlerError> {
    controller.flow_of(&operator, &name)?;
    let policy = controller.view().policy(&name).cloned();
    let Versioned { value, revision } = policy.ok_or_else(|| gone(&name))?;
    Ok(Tagged(revision, value))
}

/// Fix the paths of a flow until they are released
#[utoipa::path(operation_id = "fix_policy", put, path = "/v1/policies/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), request_body = Override, security(("token" = [])),
    responses((status = 200, body = Policy, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn override_policy(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
    Body(Override { code }): Body<Override>,
) -> Result<Tagged<Policy>, HandlerError> {
    let sight = controller.sight_of_flow(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller.flow_of(&operator, &name)?;
    controller.check_code(&name, code)?;
    let choose = |_: Situation<'_>, policy: &Policy| -> Result<_, Ignored> {
        let is_in_force = policy.reason == Cause::Operator && policy.code == code;
        Ok((!is_in_force).then(|| Decision::fixed(code)))
    };
    let kind = "policy_fixed";
    decide(&controller, &operator, &matching, &name, &choose, kind).await
}

/// Return the choice of a flow's paths to the controller
#[utoipa::path(operation_id = "release_policy", delete, path = "/v1/policies/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 200, body = Policy, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn release(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<Tagged<Policy>, HandlerError> {
    let sight = controller.sight_of_flow(&operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    controller.flow_of(&operator, &name)?;
    let choose = |situation: Situation<'_>, policy: &Policy| -> Result<_, Ignored> {
        Ok((policy.reason == Cause::Operator).then(|| situation.initial()))
    };
    let kind = "policy_released";
    decide(&controller, &operator, &matching, &name, &choose, kind).await
}

/// Carries out what an operator chose for the flow `name`; `policy_<verb>` is the kind of its event.
async fn decide(
    controller: &Controller,
    operator: &Operator<Operate>,
    matching: &Precondition,
    name: &Name,
    choose: &Choose<'_>,
    kind: &'static str,
) -> Result<Tagged<Policy>, HandlerError> {
    let (by, verb) = (&operator.token.name, kind.trim_start_matches("policy_"));
    let describe = |policy: &Policy| (kind, format!("{by} {verb} {name}: {}", described(policy)));
    let request = Some(OperatorRequest::new(&operator.origin, matching));
    let checked = &operator.checked;
    let outcome = controller.decide(checked, name, vec![], request, choose, &describe);
    answer(name, outcome.await?)
}

impl Controller {
    /// Rejects a code with paths that the flow cannot take.
    fn check_code(&self, flow: &Name, code: PolicyCode) -> Result<(), Refusal> {
        let view = self.view();
        let paths = view
            .flow(flow)
            .map_or(0, |flow| view.situation(&flow.value.flow).paths.bits());
        if code == PolicyCode::STOP || code.0 & !paths == 0 {
            return Ok(());
        }
        let unusable = numbers(PathSet::from_bits(code.0 & !paths));
        let usable = match numbers(PathSet::from_bits(paths)) {
            none if none.is_empty() => "no path".to_owned(),
            usable => format!("path {usable}"),
        };
        Err(Refusal::meaningless(format!(
            "the flow cannot take path {unusable}, which a node does not have or `paths` of the flow leaves out; it may take {usable}"
        )))
    }
}

/// Formats the numbers of paths.
fn numbers(paths: PathSet) -> String {
    let numbers: Vec<_> = paths.iter().map(|path| path.number().to_string()).collect();
    numbers.join(", ")
}

fn answer(name: &Name, outcome: Outcome) -> Result<Tagged<Policy>, HandlerError> {
    match outcome {
        Outcome::Decided(policy) | Outcome::Unchanged(policy) => {
            Ok(Tagged(policy.revision, policy.value))
        }
        Outcome::PreconditionFailed(current) => Err(changed(current).into()),
        Outcome::Ignored(ignored) => Err(Refusal::conflict(ignored.to_string()).into()),
        Outcome::NoSuchFlow => Err(gone(name).into()),
    }
}

fn gone(name: &Name) -> Refusal {
    Refusal::not_found(format!(
        "there is no flow {name}; GET /v1/flows lists all flows"
    ))
}
