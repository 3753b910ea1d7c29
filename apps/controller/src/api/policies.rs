use super::extract::{Body, Part, Path, Query};
use super::precondition::{IfMatch, IfMatchHeader, Preconditioned, Tagged, changed};
use super::refusal::{BodyRefused, Conflicting, Failed, Missing, Refusal, Refused};
use crate::access::{Operate, Operator, Read};
use crate::controller::Controller;
use crate::decide::{Asked, Outcome};
use crate::view::At;
use axum::Json;
use axum::extract::State;
use hawser_control::Name;
use hawser_control::answer::Page;
use hawser_control::decide::Decision;
use hawser_control::resource::{Cause, Override, Policy};
use std::sync::Arc;

/// The code that stops a flow.
const STOP: u8 = 0xff;

/// Policies in force, by flow
#[utoipa::path(get, path = "/v1/policies", tag = "operators", params(Part), security(("token" = [])),
    responses((status = 200, body = Page<Policy>), Refused))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Query(part): Query<Part>,
) -> Result<Json<Page<Policy>>, Failed> {
    let view = controller.view();
    let policies = view
        .flows
        .range::<str, _>(part.rest())
        .filter_map(|(name, flow)| {
            let is_seen = operator.sees(&flow.record.as_ref()?.value.flow.tenant);
            let policy = flow.policy.as_ref().filter(|_| is_seen)?;
            Some((name, policy.value.clone()))
        });
    Ok(Json(part.page(policies)?))
}

/// The policy in force for a flow
#[utoipa::path(get, path = "/v1/policies/{flow}", tag = "operators", params(("flow" = Name, Path)), security(("token" = [])),
    responses((status = 200, body = Policy, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), Refused, Missing))]
pub(super) async fn show(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Path(name): Path<Name>,
) -> Result<Tagged<Policy>, Failed> {
    controller.flow_of(&operator, &name)?;
    let policy = controller.view().policy(&name).cloned();
    let At { value, revision } = policy.ok_or_else(|| gone(&name))?;
    Ok(Tagged(revision, value))
}

/// Fix the policy of a flow, until it is released
#[utoipa::path(put, path = "/v1/policies/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), request_body = Override, security(("token" = [])),
    responses((status = 200, body = Policy, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), Refused, BodyRefused, Missing, Conflicting, Preconditioned))]
pub(super) async fn fix(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
    Body(Override { code }): Body<Override>,
) -> Result<Tagged<Policy>, Failed> {
    controller.flow_of(&operator, &name)?;
    let paths = {
        let view = controller.view();
        view.flow(&name)
            .map_or(0, |flow| view.situation(&flow.value.flow).paths.bits())
    };
    if code != STOP && code & !paths != 0 {
        let what = format!(
            "code {code:#04x} has paths that not both nodes have or that the flow may not use; it may use {paths:#04x}"
        );
        return Err(Refusal::meaningless(what).into());
    }
    let by = &operator.token.name;
    let outcome = controller
        .decide(
            &name,
            vec![],
            Some(Asked {
                origin: &operator.origin,
                matching: &matching,
            }),
            &|_, policy| {
                let is_in_force = policy.because == Cause::Operator && policy.code == code;
                Ok((!is_in_force).then(|| Decision::fixed(code)))
            },
            &|policy| {
                (
                    "policy_fixed",
                    format!("{by} fixed {name}: {}", crate::decide::described(policy)),
                )
            },
        )
        .await?;
    answer(&name, outcome)
}

/// Release the policy of a flow that an operator has fixed
#[utoipa::path(delete, path = "/v1/policies/{flow}", tag = "operators", params(("flow" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 200, body = Policy, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), Refused, Missing, Conflicting, Preconditioned))]
pub(super) async fn release(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Operate>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<Tagged<Policy>, Failed> {
    controller.flow_of(&operator, &name)?;
    let by = &operator.token.name;
    let outcome = controller
        .decide(
            &name,
            vec![],
            Some(Asked {
                origin: &operator.origin,
                matching: &matching,
            }),
            &|situation, policy| {
                Ok((policy.because == Cause::Operator).then(|| situation.initial()))
            },
            &|policy| {
                (
                    "policy_released",
                    format!("{by} released {name}: {}", crate::decide::described(policy)),
                )
            },
        )
        .await?;
    answer(&name, outcome)
}

fn answer(name: &Name, outcome: Outcome) -> Result<Tagged<Policy>, Failed> {
    match outcome {
        Outcome::Decided(policy) | Outcome::Stays(policy) => {
            Ok(Tagged(policy.revision, policy.value))
        }
        Outcome::Changed(current) => Err(changed(current).into()),
        Outcome::Void(void) => Err(Refusal::conflict(void.to_string()).into()),
        Outcome::Gone => Err(gone(name).into()),
    }
}

fn gone(name: &Name) -> Refusal {
    Refusal::not_found(format!(
        "there is no flow {name}; GET /v1/flows lists those there are"
    ))
}
