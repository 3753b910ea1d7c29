use super::extract::{Body, PageQuery, Path, Query};
use super::tenants::{self, Created, created};
use crate::access::{Admin, Anyone, Operator, Sight, scope_name};
use crate::controller::{About, Controller};
use crate::precondition::{IfMatch, IfMatchHeader, Precondition, PreconditionError};
use crate::problem::Kind;
use crate::record::{PreviousSecret, TokenRecord, emit, key, random_hex, sha256_hex};
use crate::reference;
use crate::refusal::{
    BodyErrors, CommonErrors, ConflictError, HandlerError, NotFoundError, Refusal,
};
use crate::store::{Expect, Revision, Write};
use crate::view::{Versioned, View};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_model::access::{Caller, IssuedToken, MAX_TOKEN_S, NewSecret, NewToken, Scope, Token};
use hawser_model::answer::Page;
use std::sync::Arc;

/// List operators' tokens, ordered by name, without their secrets
#[utoipa::path(operation_id = "list_tokens", get, path = "/v1/tokens", tag = "operators", params(PageQuery), security(("token" = [])),
    responses((status = 200, body = Page<Token>), CommonErrors))]
pub(super) async fn list(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    Query(query): Query<PageQuery>,
) -> Result<Json<Page<Token>>, HandlerError> {
    let view = controller.view();
    let tokens = view
        .tokens
        .range::<str, _>(query.range())
        .map(|(name, token)| (name, &token.value.token));
    let seen = tokens.filter(|(_, token)| operator.sees_optional(token.tenant.as_ref()));
    let seen = seen.map(|(name, token)| {
        let used_unix_ms = view.token_used_unix_ms(name);
        let token = Token {
            used_unix_ms,
            ..token.clone()
        };
        (name, token)
    });
    Ok(Json(query.page(seen)?))
}

/// Create a token; its secret is shown only once
#[utoipa::path(operation_id = "create_token", post, path = "/v1/tokens", tag = "operators", request_body = NewToken, security(("token" = [])),
    responses((status = 201, body = IssuedToken, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError))]
pub(super) async fn create(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    Body(new): Body<NewToken>,
) -> Result<Created<IssuedToken>, HandlerError> {
    match &new.tenant {
        None => operator.must_see_all()?,
        Some(tenant) => operator.must_be_of(tenant)?,
    };
    check_validity(new.valid_s)?;
    let issued = issue(Token {
        name: new.name,
        scope: new.scope,
        tenant: new.tenant,
        created_unix_ms: unix_ms(),
        expires_unix_ms: expiry(new.valid_s),
        used_unix_ms: None,
    });
    let revision = controller
        .retrying(|| try_create(&controller, &operator, &issued))
        .await?;
    Ok(created(
        format!("/v1/tokens/{}", issued.token.name),
        revision,
        issued,
    ))
}

async fn try_create(
    controller: &Controller,
    operator: &Operator<Admin>,
    issued: &IssuedToken,
) -> Result<Revision, HandlerError> {
    let Token {
        name,
        scope,
        tenant,
        ..
    } = &issued.token;
    let writes = writes_to_create(&controller.view(), issued)?;
    let (by, scope) = (&operator.token.name, scope_name(*scope));
    let message = format!("{by} created the token {name}, scope {scope}");
    let about = About {
        tenant: tenant.clone(),
        by: Some(operator.origin.makes(name)),
        ..About::default()
    };
    Ok(controller
        .commit(&operator.checked, writes, about, "token_created", message)
        .await?)
}

fn writes_to_create(view: &View, issued: &IssuedToken) -> Result<Vec<Write>, Refusal> {
    let Token { name, tenant, .. } = &issued.token;
    if let Some(known) = view.tokens.get(name) {
        let known = &known.value.token;
        let is_same = (known.scope, &known.tenant) == (issued.token.scope, tenant);
        let what = if is_same {
            "with this scope; if the response with its secret was lost, POST /v1/tokens/NAME/secret gives it a new one"
        } else {
            "with another scope or tenant; choose another name"
        };
        let what = format!("the token {name} already exists {what}");
        return Err(Refusal::conflict(what).kind(Kind::AlreadyExists));
    }
    let mut writes = vec![TokenRecord::put(issued).when(Expect::Absent)];
    if let Some(tenant) = tenant {
        let known = view
            .tenants
            .get(tenant)
            .ok_or_else(|| tenants::missing(tenant))?;
        writes.extend(reference::refer(key::TENANT, tenant, known.revision, name));
    }
    Ok(writes)
}

/// Delete a token; it can no longer be used
#[utoipa::path(operation_id = "delete_token", delete, path = "/v1/tokens/{token}", tag = "operators", params(("token" = Name, Path), IfMatchHeader), security(("token" = [])),
    responses((status = 204, description = "Deleted"), CommonErrors, NotFoundError, ConflictError, PreconditionError))]
pub(super) async fn delete(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    matching: IfMatch,
    Path(name): Path<Name>,
) -> Result<StatusCode, HandlerError> {
    let sight = sight_of_token(&controller.view(), &operator, &name)?;
    let matching = matching
        .known_to(&controller, &operator.checked, sight)
        .await?;
    let (writes, token) = writes_to_delete(&controller.view(), &operator, &matching, &name)?;
    let message = format!("{} deleted the token {name}", operator.token.name);
    let about = About {
        tenant: token.value.token.tenant.clone(),
        by: Some(operator.origin.removes(&name, token.revision)),
        ..About::default()
    };
    controller
        .commit(&operator.checked, writes, about, "token_deleted", message)
        .await?;
    controller.token_uses.forget(&name);
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the writes that delete a token, and the token.
fn writes_to_delete(
    view: &View,
    operator: &Operator<Admin>,
    matching: &Precondition,
    name: &Name,
) -> Result<(Vec<Write>, Versioned<TokenRecord>), Refusal> {
    let token = seen_token(view, operator, name)?;
    matching.check(token.revision)?;
    let delete = Write::delete(key::of(key::TOKEN, name)).when(Expect::Revision(token.revision));
    let mut writes = vec![delete, Write::delete(key::of(key::TOKEN_USE, name))];
    if is_admin(&token.value.token) {
        writes.push(check_of_another_admin(view, name)?);
    }
    Ok((writes, token.clone()))
}

fn seen_token<'a>(
    view: &'a View,
    operator: &Operator<Admin>,
    name: &Name,
) -> Result<&'a Versioned<TokenRecord>, Refusal> {
    let token = view.tokens.get(name);
    let token = token.filter(|token| operator.sees_optional(token.value.token.tenant.as_ref()));
    token.ok_or_else(|| missing(name))
}

/// Rejects access to a token that the operator may not see.
fn sight_of_token(view: &View, operator: &Operator<Admin>, name: &Name) -> Result<Sight, Refusal> {
    let sight = operator.sight(view.tokens.get(name), |token| {
        token.value.token.tenant.as_ref()
    });
    sight.ok_or_else(|| missing(name))
}

fn missing(name: &Name) -> Refusal {
    Refusal::not_found(format!(
        "there is no token {name}; GET /v1/tokens lists all tokens"
    ))
}

/// Replace the secret of a token; the new one is shown only once
///
/// The present secret stays valid for `overlap_s`, but not beyond the token's present end. Without `valid_s` the token
/// keeps its end.
#[utoipa::path(operation_id = "rotate_token", post, path = "/v1/tokens/{token}/secret", tag = "operators", params(("token" = Name, Path)), request_body = NewSecret, security(("token" = [])),
    responses((status = 201, body = IssuedToken, headers(("ETag" = String, description = "Its revision, for `If-Match`"))), CommonErrors, BodyErrors, NotFoundError, ConflictError))]
pub(super) async fn rotate(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Admin>,
    Path(name): Path<Name>,
    Body(new): Body<NewSecret>,
) -> Result<Created<IssuedToken>, HandlerError> {
    check_validity(new.valid_s)?;
    if new.overlap_s > NewSecret::MAX_OVERLAP_S {
        return Err(Refusal::meaningless("`overlap_s` must be at most 2592000, 30 days").into());
    }
    let (controller, operator, name, new) = (&*controller, &operator, &name, &new);
    let (issued, revision) = controller
        .retrying(|| try_rotate(controller, operator, name, new))
        .await?;
    Ok(created(format!("/v1/tokens/{name}"), revision, issued))
}

async fn try_rotate(
    controller: &Controller,
    operator: &Operator<Admin>,
    name: &Name,
    new: &NewSecret,
) -> Result<(IssuedToken, Revision), HandlerError> {
    let Versioned {
        value: mut record,
        revision,
    } = seen_token(&controller.view(), operator, name)?.clone();
    let (end, has_ended) = (record.token.expires_unix_ms, record.is_expired());
    if new.valid_s.is_some() {
        record.token.expires_unix_ms = expiry(new.valid_s);
    } else if has_ended {
        let what = "the token has expired; `valid_s` says how long it is to be valid again";
        return Err(Refusal::conflict(what).into());
    }
    let issued = issue(record.token.clone());
    let before = std::mem::replace(&mut record.secret_sha256, sha256_hex(&issued.secret));
    let until = expiry(Some(new.overlap_s)).unwrap_or(0);
    record.previous = (new.overlap_s > 0 && !has_ended).then(|| PreviousSecret {
        secret_sha256: before,
        until_unix_ms: end.map_or(until, |end| end.min(until)),
    });
    let write = Write::put(key::of(key::TOKEN, name), emit(&record));
    let message = format!(
        "{} replaced the secret of the token {name}",
        operator.token.name
    );
    let about = About {
        tenant: record.token.tenant.clone(),
        by: Some(operator.origin.changes(name, revision)),
        ..About::default()
    };
    let writes = vec![write.when(Expect::Revision(revision))];
    let revision = controller
        .commit(&operator.checked, writes, about, "token_rotated", message)
        .await?;
    Ok((issued, revision))
}

fn check_validity(valid_s: Option<u32>) -> Result<(), Refusal> {
    match valid_s {
        Some(valid_s) if !(1..=MAX_TOKEN_S).contains(&valid_s) => Err(Refusal::meaningless(
            "`valid_s` must be 1 to 315360000, ten years, or absent for a token that does not expire",
        )),
        _ => Ok(()),
    }
}

/// Returns the end of a validity that begins now, milliseconds since 1970.
fn expiry(valid_s: Option<u32>) -> Option<u64> {
    valid_s.map(|valid_s| unix_ms() + u64::from(valid_s) * 1000)
}

/// Returns whether the token can create tokens of all tenants.
fn is_admin(token: &Token) -> bool {
    token.scope == Scope::Admin && token.tenant.is_none()
}

/// Returns a check that another token that can create tokens of all tenants is not deleted
/// concurrently.
fn check_of_another_admin(view: &View, name: &Name) -> Result<Write, Refusal> {
    let mut others = view.tokens.iter().filter(|(other, token)| {
        *other != name && is_admin(&token.value.token) && !token.value.is_expired()
    });
    let what = "this is the last token that can create others; create another one with the scope admin first";
    let (other, token) = others.next().ok_or_else(|| Refusal::conflict(what))?;
    let read = Expect::Revision(token.revision);
    Ok(Write::check(key::of(key::TOKEN, other), read))
}

/// Get the identity of the caller as the controller sees it
#[utoipa::path(operation_id = "get_caller", get, path = "/v1/me", tag = "operators", tag = "nodes", security(("token" = []), ("certificate" = [])),
    responses((status = 200, body = Caller), CommonErrors))]
pub(super) async fn me(Anyone(caller): Anyone) -> Json<Caller> {
    Json(caller)
}

/// Adds a new secret to a token.
pub(crate) fn issue(token: Token) -> IssuedToken {
    IssuedToken {
        token,
        secret: format!("hawser-{}", random_hex::<32>()),
    }
}
