//! Extraction of the parts of a request. The refusal of an invalid request says what is wrong with
//! it.

use crate::controller::Controller;
use crate::refusal::Refusal;
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use hawser_model::answer::Page;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Deserializer;
use serde_json::de::SliceRead;
use serde_json::error::Category;
use std::ops::Bound;
use std::sync::Arc;

/// The media type of all bodies except patches.
const JSON: &str = "application/json";

/// The body of an operator's request, as JSON. An unknown field is an error.
pub(crate) struct Body<T>(pub(crate) T);

/// The body of a node's request, as JSON.
pub(crate) struct Message<T>(pub(crate) T);

/// The parameters in the path.
pub(crate) struct Path<T>(pub(crate) T);

/// The query parameters.
pub(crate) struct Query<T>(pub(crate) T);

/// The query parameters of a list: a page of it.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageQuery {
    /// The maximum number of items.
    #[serde(default = "limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: u16,
    /// Only items after this one: `next` of the previous page.
    #[param(required = false, value_type = String)]
    after: Option<String>,
}

/// The query parameters of a chronological list: a page of it.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NumberedPageQuery {
    /// The maximum number of items.
    #[serde(default = "limit")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: u16,
    /// Only entries after the one with this number: `next` of the previous page.
    #[param(required = false, value_type = u64)]
    after: Option<u64>,
}

const fn limit() -> u16 {
    100
}

impl PageQuery {
    /// Returns the keys of the rest of the list. `after` need not exist in the list.
    pub(crate) fn range(&self) -> (Bound<&str>, Bound<&str>) {
        (
            self.after
                .as_deref()
                .map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        )
    }

    /// Returns `after` as given.
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Returns a page from the rest of a list.
    pub(crate) fn page<K: ToString, T>(
        &self,
        rest: impl Iterator<Item = (K, T)>,
    ) -> Result<Page<T>, Refusal> {
        page(self.limit, rest)
    }
}

impl NumberedPageQuery {
    /// Returns `after` as given.
    pub(crate) fn after(&self) -> Option<u64> {
        self.after
    }

    /// Returns the numbers of the rest of the list.
    pub(crate) fn range(&self) -> (Bound<u64>, Bound<u64>) {
        (
            self.after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        )
    }

    /// Returns a page from the rest of a list.
    pub(crate) fn page<T>(&self, rest: impl Iterator<Item = (u64, T)>) -> Result<Page<T>, Refusal> {
        page(self.limit, rest)
    }
}

fn page<K: ToString, T>(
    limit: u16,
    rest: impl Iterator<Item = (K, T)>,
) -> Result<Page<T>, Refusal> {
    if !(1..=1000).contains(&limit) {
        return Err(bad("`limit` must be 1 to 1000"));
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

impl<T: DeserializeOwned> FromRequest<Arc<Controller>> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, controller: &Arc<Controller>) -> Result<Self, Refusal> {
        let bytes = declared(JSON, request, controller).await?;
        strict(&bytes).map(Body)
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Controller>> for Message<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, controller: &Arc<Controller>) -> Result<Self, Refusal> {
        let bytes = declared(JSON, request, controller).await?;
        parsed(&bytes, |input| hawser_model::named(input)).map(Message)
    }
}

/// Reads a body that is declared as that kind.
pub(super) async fn declared(
    kind: &str,
    request: Request,
    controller: &Arc<Controller>,
) -> Result<Bytes, Refusal> {
    if !is_declared(kind, request.headers()) {
        let what = format!("send the body as `Content-Type: {kind}`");
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what));
    }
    let bytes = Bytes::from_request(request, controller).await;
    bytes.map_err(|error| match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => bad(format!("cannot read the body: {}", error.body_text())),
    })
}

/// Returns the refusal of a body that is larger than its resource allows.
pub(super) fn too_large() -> Refusal {
    let what = "the body is too large; docs/controller.md lists the limits";
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what)
}

/// Parses a body all of whose fields have to be known.
pub(super) fn strict<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    parsed(bytes, |input| hawser_model::strict(input))
}

/// Parses a body with `parse`.
pub(super) fn parsed<T>(
    bytes: &[u8],
    parse: impl FnOnce(&mut Deserializer<SliceRead<'_>>) -> Result<T, serde_json::Error>,
) -> Result<T, Refusal> {
    let mut input = Deserializer::from_slice(bytes);
    let body = parse(&mut input).and_then(|body| input.end().map(|()| body));
    body.map_err(|error| match error.classify() {
        Category::Data => Refusal::meaningless(format!("the body is invalid: {error}")),
        _ => bad(format!("the body is not JSON: {error}")),
    })
}

fn is_declared(kind: &str, headers: &HeaderMap) -> bool {
    let declared = headers
        .get(CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or("");
    declared
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .eq_ignore_ascii_case(kind)
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
