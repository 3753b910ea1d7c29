//! What comes with a request, or a refusal that says what is wrong with it.

use super::refusal::Refusal;
use crate::controller::Controller;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use hawser_control::answer::Page;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::error::Category;
use std::ops::Bound;
use std::sync::Arc;

/// The body, JSON.
pub(crate) struct Body<T>(pub(crate) T);

/// What the path names.
pub(crate) struct Path<T>(pub(crate) T);

/// What follows the question mark.
pub(crate) struct Query<T>(pub(crate) T);

/// Which part of a list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// How many at most.
    #[serde(default = "limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: u16,
    /// Those after this one: `next` of the page before.
    #[param(required = false, value_type = String)]
    after: Option<String>,
}

/// Which part of a list of what happened.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsPart {
    /// How many at most.
    #[serde(default = "limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: u16,
    /// Those after the one of this number: `next` of the page before.
    #[param(required = false, value_type = u64)]
    after: Option<u64>,
}

const fn limit() -> u16 {
    100
}

impl Part {
    /// After what the list goes on. Whatever it is, there is a place for it in the order.
    pub(crate) fn rest(&self) -> (Bound<&str>, Bound<&str>) {
        (
            self.after
                .as_deref()
                .map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        )
    }

    /// As it was given.
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// A page of the rest of a list.
    pub(crate) fn page<K: ToString, T>(
        &self,
        rest: impl Iterator<Item = (K, T)>,
    ) -> Result<Page<T>, Refusal> {
        page(self.limit, rest)
    }
}

impl EventsPart {
    /// After what the list goes on.
    pub(crate) fn rest(&self) -> (Bound<u64>, Bound<u64>) {
        (
            self.after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        )
    }

    /// A page of the rest of a list.
    pub(crate) fn page<T>(&self, rest: impl Iterator<Item = (u64, T)>) -> Result<Page<T>, Refusal> {
        page(self.limit, rest)
    }
}

fn page<K: ToString, T>(
    limit: u16,
    rest: impl Iterator<Item = (K, T)>,
) -> Result<Page<T>, Refusal> {
    if !(1..=1000).contains(&limit) {
        return Err(bad("`limit` is 1 to 1000"));
    }
    let limit = usize::from(limit);
    let mut rest = rest.peekable();
    let mut items = Vec::new();
    let mut last = None;
    while items.len() < limit
        && let Some((key, item)) = rest.next()
    {
        items.push(item);
        last = Some(key);
    }
    let next = last
        .filter(|_| rest.peek().is_some())
        .map(|key| key.to_string());
    Ok(Page { items, next })
}

fn bad(detail: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, detail)
}

impl<T: DeserializeOwned + Serialize> FromRequest<Arc<Controller>> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, controller: &Arc<Controller>) -> Result<Self, Refusal> {
        if !is_json(request.headers()) {
            let what = "send the body as `Content-Type: application/json`";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
        }
        let bytes = Bytes::from_request(request, controller).await.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let what = "the body has more bytes than are taken here; docs/controller.md has the limits";
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what)
            }
            _ => bad(format!("the body did not arrive: {}", error.body_text())),
        })?;
        let body = serde_json::from_slice(&bytes).map_err(|error| match error.classify() {
            Category::Data => Refusal::meaningless(format!("the body: {error}")),
            _ => bad(format!("the body is not JSON: {error}")),
        })?;
        let is_positional = bytes.contains(&b'[') && {
            let given = serde_json::from_slice(&bytes).unwrap_or_default();
            serde_json::to_value(&body)
                .is_ok_and(|understood| has_list_for_object(&given, &understood))
        };
        match is_positional {
            true => Err(Refusal::meaningless(
                "the body: a list where an object with named fields belongs",
            )),
            false => Ok(Body(body)),
        }
    }
}

/// Whether a list was understood as an object's fields in the order in which they are declared, as serde does: no document
/// describes that order.
fn has_list_for_object(given: &Value, understood: &Value) -> bool {
    match (given, understood) {
        (Value::Array(_), Value::Object(_)) => true,
        (Value::Array(given), Value::Array(understood)) => given
            .iter()
            .zip(understood)
            .any(|(given, understood)| has_list_for_object(given, understood)),
        (Value::Object(given), Value::Object(understood)) => given.iter().any(|(key, given)| {
            understood
                .get(key)
                .is_some_and(|understood| has_list_for_object(given, understood))
        }),
        _ => false,
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or("");
    kind.split(';')
        .next()
        .unwrap_or("")
        .trim()
        .eq_ignore_ascii_case("application/json")
}

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<Controller>> for Path<T> {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Path(path)),
            Err(error) => Err(bad(error.body_text())),
        }
    }
}

impl<T: DeserializeOwned> FromRequestParts<Arc<Controller>> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Query(query)),
            Err(error) => Err(bad(error.body_text())),
        }
    }
}
