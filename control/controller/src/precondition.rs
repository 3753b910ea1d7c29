//! `ETag` and `If-Match` (RFC 9110, sections 8.8.3 and 13.1.1): no change overwrites another one
//! that its author has not seen.
//!
//! A tag is the revision of the last requested change; reports of nodes and the removal of expired
//! tokens do not change it. The handler compares it with the revision that it has read, and the
//! store's transaction expects that revision.

use crate::access::Sight;
use crate::controller::Controller;
use crate::limit::Checked;
use crate::record::key;
use crate::refusal::Refusal;
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

/// The revisions that a request accepts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Precondition {
    /// Any revision: no header, or `*`.
    Any,
    /// One of these revisions.
    OneOf(Vec<Revision>),
}

impl Precondition {
    fn parse<'a>(values: impl Iterator<Item = &'a str>) -> Result<Precondition, Refusal> {
        let mut values = values.peekable();
        if values.peek().is_none() {
            return Ok(Precondition::Any);
        }
        let mut revisions = Vec::new();
        for value in values.map(str::trim) {
            if value == "*" {
                return Ok(Precondition::Any);
            }
            revisions.extend(revisions_in(value)?);
        }
        Ok(Precondition::OneOf(revisions))
    }

    pub(crate) fn matches(&self, current: Revision) -> bool {
        match self {
            Precondition::Any => true,
            Precondition::OneOf(revisions) => revisions.contains(&current),
        }
    }

    /// Rejects a request that is based on another revision.
    pub(crate) fn check(&self, current: Revision) -> Result<(), Refusal> {
        if self.matches(current) {
            Ok(())
        } else {
            Err(changed(current))
        }
    }
}

/// Returns the revisions in a list of tags.
fn revisions_in(list: &str) -> Result<Vec<Revision>, Refusal> {
    let mut revisions = Vec::new();
    let mut rest = list;
    loop {
        let (tag, rest_of_list) = first_tag(rest).ok_or_else(|| {
            let what = "`If-Match` must be the ETag of a response with its quotation marks, or *";
            Refusal::new(StatusCode::BAD_REQUEST, what)
        })?;
        revisions.extend(tag);
        if rest_of_list.is_empty() {
            return Ok(revisions);
        }
        rest = rest_of_list
            .strip_prefix(',')
            .unwrap_or(rest_of_list)
            .trim_start();
    }
}

/// Splits a list after its first tag. The rest is empty or begins with a comma. The tag is `None`
/// if it is weak or not a revision, and then matches nothing.
fn first_tag(list: &str) -> Option<(Option<Revision>, &str)> {
    let (is_weak, strong) = list
        .strip_prefix("W/")
        .map_or((false, list), |strong| (true, strong));
    let (opaque, rest_of_list) = strong.strip_prefix('"')?.split_once('"')?;
    let rest_of_list = rest_of_list.trim_start();
    let ends = rest_of_list.is_empty() || rest_of_list.starts_with(',');
    ends.then(|| (opaque.parse().ok().filter(|_| !is_weak), rest_of_list))
}

/// Returns the refusal of a request that is based on another revision than the current one.
pub(crate) fn changed(current: Revision) -> Refusal {
    let what = format!(
        "it has changed since it was read, its ETag is now \"{current}\"; read it again and check whether your change still applies"
    );
    Refusal::new(StatusCode::PRECONDITION_FAILED, what)
}

/// The header `If-Match` of a request.
#[derive(Debug)]
pub(crate) struct IfMatch(Precondition);

impl FromRequestParts<Arc<Controller>> for IfMatch {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<Controller>) -> Result<Self, Refusal> {
        let values = parts.headers.get_all(IF_MATCH).iter();
        let values = values.map(|value| value.to_str().unwrap_or(""));
        Precondition::parse(values).map(IfMatch)
    }
}

impl IfMatch {
    /// Returns the precondition when the view contains the revisions that it names: they may come from
    /// another controller. The store is asked only for those who may see the resource.
    pub(crate) async fn known_to(
        self,
        controller: &Controller,
        checked: &Checked,
        _sight: Sight,
    ) -> Result<Precondition, Refusal> {
        if let Precondition::OneOf(revisions) = &self.0
            && let Some(newest) = revisions.iter().max()
        {
            controller.catch_up_with(checked, *newest).await?;
        }
        Ok(self.0)
    }
}

impl Controller {
    /// Waits until the view contains a revision, if the store has reached it.
    async fn catch_up_with(&self, checked: &Checked, revision: Revision) -> Result<(), Refusal> {
        if revision <= self.view().complete {
            return Ok(());
        }
        let now = self.store(checked).list_all(key::LEADER).await;
        let (_, now) = now.map_err(|error| {
            Refusal::unavailable(format!("the store does not respond: {error}"))
        })?;
        if revision <= now {
            self.wait_until_applied(revision).await;
        }
        Ok(())
    }
}

/// A response with its ETag.
pub(crate) struct Tagged<T>(pub(crate) Revision, pub(crate) T);

impl<T: Serialize> IntoResponse for Tagged<T> {
    fn into_response(self) -> Response {
        ([tag(self.0)], Json(self.1)).into_response()
    }
}

/// Returns the `ETag` header of a revision.
pub(crate) fn tag(revision: Revision) -> (HeaderName, String) {
    (ETAG, format!("\"{revision}\""))
}

/// The request header, for the OpenAPI document.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "only used to generate the OpenAPI document")]
pub(crate) struct IfMatchHeader {
    /// The ETag of the response that the request is based on. If the resource has changed since,
    /// the request is rejected with 412. Absent or `*`: any state.
    #[param(rename = "If-Match", required = false, value_type = String, example = "\"57\"")]
    if_match: Option<String>,
}

/// The documented response to a request whose `If-Match` does not match.
pub(crate) struct PreconditionError;

impl IntoResponses for PreconditionError {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        crate::refusal::documented(&[(
            412,
            "The resource has changed since the ETag in `If-Match`",
        )])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(values: &[&str]) -> Result<Precondition, u16> {
        Precondition::parse(values.iter().copied()).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn tags_are_parsed_as_in_rfc_9110() {
        assert_eq!(parse(&[]), Ok(Precondition::Any));
        assert_eq!(parse(&["*"]), Ok(Precondition::Any));
        assert_eq!(parse(&["\"5\""]), Ok(Precondition::OneOf(vec![5])));
        assert_eq!(
            parse(&["\"5\", \"6\"", "\"7\""]),
            Ok(Precondition::OneOf(vec![5, 6, 7]))
        );
        assert_eq!(
            parse(&["W/\"5\""]),
            Ok(Precondition::OneOf(vec![])),
            "a weak tag matches nothing"
        );
        assert_eq!(parse(&["\"another's\""]), Ok(Precondition::OneOf(vec![])));
        assert_eq!(
            parse(&["W/\"a,b\", \"5\""]),
            Ok(Precondition::OneOf(vec![5])),
            "commas may be in tags"
        );
        for wrong in ["", "5", "\"5", "5\"", "\"5\"6\"", "\"5\",", "*, \"5\""] {
            assert_eq!(parse(&[wrong]), Err(400), "{wrong}");
        }
    }
}
