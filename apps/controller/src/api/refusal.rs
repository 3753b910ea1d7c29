//! Why a request was not granted: RFC 9457, with what to do.

use crate::controller::Controller;
use crate::store::{Error, Revision};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hawser_control::answer::Problem;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use utoipa::openapi::response::{Response as Documented, ResponseBuilder};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

/// How often a change is tried when others change the same.
const ATTEMPTS: usize = 16;

/// A request that is not granted.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    pub(crate) retry_after_s: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Refusal {
        Refusal {
            status,
            detail: detail.into(),
            retry_after_s: None,
        }
    }

    pub(crate) fn unauthorized(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::FORBIDDEN, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, detail)
    }

    pub(crate) fn meaningless(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Refusal {
        Refusal {
            retry_after_s: Some(1),
            ..Refusal::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let problem = Problem {
            kind: Problem::blank(),
            title: self
                .status
                .canonical_reason()
                .unwrap_or("Refused")
                .to_owned(),
            status: self.status.as_u16(),
            detail: self.detail,
        };
        let body = serde_json::to_vec(&problem).expect("a problem is text");
        let mut response = (self.status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// What a handler fails with.
#[derive(Debug)]
pub(crate) enum Failed {
    Refused(Refusal),
    Store(Error),
}

impl From<Refusal> for Failed {
    fn from(refusal: Refusal) -> Self {
        Failed::Refused(refusal)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed::Store(error)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let error = match self {
            Failed::Refused(refusal) => return refusal.into_response(),
            Failed::Store(error) => error,
        };
        match error {
            Error::Conflict { .. } => {
                Refusal::conflict("somebody else is changing the same; look at it and try again")
            }
            Error::Invalid(what) => Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what),
            Error::LeaseGone(_) | Error::Compacted(_) | Error::Unavailable(_) => {
                tracing::error!("the store: {error}");
                Refusal::unavailable(format!(
                    "the controller's store does not answer, try again: {error}"
                ))
            }
        }
        .into_response()
    }
}

impl Controller {
    /// Tries until nobody else has changed what was read for it.
    pub(crate) async fn retrying<T, F: Future<Output = Result<T, Failed>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Failed> {
        for _ in 1..ATTEMPTS {
            match attempt().await {
                Err(Failed::Store(Error::Conflict { found, .. })) => self.caught_up(found).await,
                outcome => return outcome,
            }
        }
        attempt().await
    }

    /// Waits until the view has what a commit collided with.
    pub(crate) async fn caught_up(&self, found: Option<Revision>) {
        match found {
            Some(revision) => self.shown(revision).await,
            // Deleted, so there is no revision to wait for.
            None => {
                let _ =
                    tokio::time::timeout(Duration::from_millis(50), self.changes().changed()).await;
            }
        }
    }
}

/// What every request may be answered with.
pub(crate) struct Refused;

/// What a request with a body may be answered with.
pub(crate) struct BodyRefused;

/// What a request for something by its name may be answered with.
pub(crate) struct Missing;

/// What a request that changes something may be answered with.
pub(crate) struct Conflicting;

impl IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[
            (400, "The request is not well-formed"),
            (401, "No token or certificate, or a wrong one"),
            (403, "The token or certificate does not allow it"),
            (408, "The request took too long to arrive"),
            (
                429,
                "Too many requests, or too many failed authentications; Retry-After says when to try again",
            ),
            (503, "The store cannot be reached; try again"),
        ])
    }
}

impl IntoResponses for BodyRefused {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[
            (413, "The body is too large"),
            (415, "The body is not declared as application/json"),
            (422, "The body says something that cannot be"),
        ])
    }
}

impl IntoResponses for Missing {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[(404, "There is no such thing, or it is another tenant's")])
    }
}

impl IntoResponses for Conflicting {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[(
            409,
            "It is there already, or still needed by something else",
        )])
    }
}

pub(super) fn documented(statuses: &[(u16, &str)]) -> BTreeMap<String, RefOr<Documented>> {
    let schema = RefOr::<utoipa::openapi::Schema>::Ref(Ref::from_schema_name(Problem::name()));
    let response = |description: &str| {
        let content = ContentBuilder::new().schema(Some(schema.clone())).build();
        ResponseBuilder::new()
            .description(description)
            .content("application/problem+json", content)
            .build()
    };
    statuses
        .iter()
        .map(|(status, description)| (status.to_string(), response(description).into()))
        .collect()
}

/// The schema that all of these refer to.
pub(crate) fn problem_schema() -> (String, RefOr<utoipa::openapi::Schema>) {
    (Problem::name().into_owned(), Problem::schema())
}
