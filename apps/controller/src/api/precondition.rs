//! `ETag` and `If-Match` (RFC 9110, sections 8.8.3 and 13.1.1): no change overwrites another one that its author has not seen.
//!
//! A tag is the revision of the last change on request; reports of nodes do not change it, nor does the removal of expired
//! tokens. The handler compares it with the revision that it has read, and the store's transaction expects that revision.

use super::refusal::Refusal;
use crate::controller::Controller;
use crate::store::Revision;
use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::openapi::RefOr;
use utoipa::openapi::response::Response as Documented;
use utoipa::{IntoParams, IntoResponses};

/// The revisions on which a request may build.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum IfMatch {
    /// Any: no header, or `*`.
    Any,
    /// One of these.
    OneOf(Vec<Revision>),
}

impl IfMatch {
    fn parse<'a>(values: impl Iterator<Item = &'a str>) -> Result<IfMatch, Refusal> {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(IfMatch::Any);
        }
        let mut revisions = Vec::new();
        for value in values {
            let mut rest = value.trim();
            if rest == "*" {
                return Ok(IfMatch::Any);
            }
            loop {
                let (tag, behind) = first_tag(rest).ok_or_else(|| {
                    let what = "`If-Match` is the ETag of an answer with its quotation marks, or *";
                    Refusal::new(StatusCode::BAD_REQUEST, what)
                })?;
                revisions.extend(tag);
                if behind.is_empty() {
                    break;
                }
                rest = behind.strip_prefix(',').unwrap_or(behind).trim_start();
            }
        }
        Ok(IfMatch::OneOf(revisions))
    }

    pub(crate) fn matches(&self, current: Revision) -> bool {
        match self {
            IfMatch::Any => true,
            IfMatch::OneOf(revisions) => revisions.contains(&current),
        }
    }

    /// Refuses a request that builds on another revision.
    pub(crate) fn check(&self, current: Revision) -> Result<(), Refusal> {
        if self.matches(current) {
            Ok(())
        } else {
            Err(changed(current))
        }
    }
}

/// The first tag of a list, and what is behind it: nothing, or a comma first. A weak tag, or one that is no revision, matches
/// nothing.
fn first_tag(list: &str) -> Option<(Option<Revision>, &str)> {
    let (is_weak, strong) = list
        .strip_prefix("W/")
        .map_or((false, list), |strong| (true, strong));
    let (opaque, behind) = strong.strip_prefix('"')?.split_once('"')?;
    let behind = behind.trim_start();
    let ends = behind.is_empty() || behind.starts_with(',');
    ends.then(|| (opaque.parse().ok().filter(|_| !is_weak), behind))
}

/// The refusal of a request that builds on another revision than the current one.
pub(crate) fn changed(current: Revision) -> Refusal {
    let what = format!(
        "it was changed since it was read, its ETag is \"{current}\" now; read it again and decide whether the change still fits"
    );
    Refusal::new(StatusCode::PRECONDITION_FAILED, what)
}

impl FromRequestParts<Arc<Controller>> for IfMatch {
    type Rejection = Refusal;

    async fn from_request_parts(
        parts: &mut Parts,
        controller: &Arc<Controller>,
    ) -> Result<Self, Refusal> {
        let values = parts.headers.get_all(IF_MATCH).iter();
        let found = IfMatch::parse(values.map(|value| value.to_str().unwrap_or("")))?;
        if let IfMatch::OneOf(revisions) = &found
            && let Some(newest) = revisions.iter().max()
        {
            controller.catch_up_with(*newest).await?;
        }
        Ok(found)
    }
}

impl Controller {
    /// Waits until the view has a revision that another controller has answered with, if the store has reached it.
    async fn catch_up_with(&self, told: Revision) -> Result<(), Refusal> {
        if told <= self.view().complete {
            return Ok(());
        }
        let now = self.store.list_all(crate::record::key::LEADER).await;
        let (_, now) = now
            .map_err(|error| Refusal::unavailable(format!("the store does not answer: {error}")))?;
        if told <= now {
            self.shown(told).await;
        }
        Ok(())
    }
}

/// An answer with its tag.
pub(crate) struct Tagged<T>(pub(crate) Revision, pub(crate) T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        ([tag(self.0)], Json(self.1)).into_response()
    }
}

/// The header that names a revision.
pub(crate) fn tag(revision: Revision) -> (HeaderName, String) {
    (ETAG, format!("\"{revision}\""))
}

/// The header, for the document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "the document is made of it")]
pub(crate) struct IfMatchHeader {
    /// The ETag of the answer on which the request builds; after another change it is refused with 412. Absent or `*`: any
    /// state.
    #[param(rename = "If-Match", required = false, value_type = String, example = "\"57\"")]
    if_match: Option<String>,
}

/// The answer to a request whose `If-Match` does not hold.
pub(crate) struct Preconditioned;

impl IntoResponses for Preconditioned {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        super::refusal::documented(&[(
            412,
            "It was changed since the answer whose ETag `If-Match` names",
        )])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<IfMatch, u16> {
        IfMatch::parse(values.iter().copied()).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn tags_are_understood_as_the_standard_has_them() {
        assert_eq!(parse(&[]), Ok(IfMatch::Any));
        assert_eq!(parse(&["*"]), Ok(IfMatch::Any));
        assert_eq!(parse(&["\"5\""]), Ok(IfMatch::OneOf(vec![5])));
        assert_eq!(
            parse(&["\"5\", \"6\"", "\"7\""]),
            Ok(IfMatch::OneOf(vec![5, 6, 7]))
        );
        assert_eq!(
            parse(&["W/\"5\""]),
            Ok(IfMatch::OneOf(vec![])),
            "a weak tag matches nothing"
        );
        assert_eq!(parse(&["\"another's\""]), Ok(IfMatch::OneOf(vec![])));
        assert_eq!(
            parse(&["W/\"a,b\", \"5\""]),
            Ok(IfMatch::OneOf(vec![5])),
            "commas may be in tags"
        );
        for wrong in ["", "5", "\"5", "5\"", "\"5\"6\"", "\"5\",", "*, \"5\""] {
            assert_eq!(parse(&[wrong]), Err(400), "{wrong}");
        }
    }
}
