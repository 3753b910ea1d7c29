//! Error responses (RFC 9457), which say what to do.

use crate::controller::Controller;
use crate::problem::Kind;
use crate::store::{Error, Revision};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hawser_model::Name;
use hawser_model::answer::Problem;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;
use utoipa::openapi::response::{Response as Documented, ResponseBuilder};
use utoipa::openapi::{ContentBuilder, Ref, RefOr};
use utoipa::{IntoResponses, PartialSchema, ToSchema};

/// The number of attempts at a change while others change the same resource.
const ATTEMPTS: usize = 16;

/// The response to a request that is rejected.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) kind: Kind,
    pub(crate) detail: String,
    pub(crate) retry_after_s: Option<u64>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Refusal {
        Refusal {
            status,
            kind: Kind::of(status),
            detail: detail.into(),
            retry_after_s: None,
        }
    }

    /// Returns the refusal with a more specific kind than that of its status.
    pub(crate) fn kind(self, kind: Kind) -> Refusal {
        Refusal { kind, ..self }
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

    pub(crate) fn missing_node(name: &Name) -> Refusal {
        let what = "GET /v1/nodes lists all nodes, POST /v1/nodes/NAME/enrolment creates one";
        Refusal::not_found(format!("there is no node {name}; {what}"))
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::CONFLICT, detail)
    }

    /// Returns the refusal of a name that a resource of another tenant has, without saying which.
    pub(crate) fn taken(name: &Name, tenant: &Name) -> Refusal {
        let what = format!(
            "the name {name} is taken: all tenants share the names; choose another, such as {tenant}-{name}"
        );
        Refusal::conflict(what).kind(Kind::AlreadyExists)
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
        let title = self.status.canonical_reason().unwrap_or("CommonErrors");
        let problem = Problem {
            kind: self.kind.reference(),
            title: title.to_owned(),
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

/// The error of a handler.
#[derive(Debug)]
pub(crate) enum HandlerError {
    Refused(Refusal),
    Store(Error),
}

impl From<Refusal> for HandlerError {
    fn from(refusal: Refusal) -> Self {
        HandlerError::Refused(refusal)
    }
}

impl From<Error> for HandlerError {
    fn from(error: Error) -> Self {
        HandlerError::Store(error)
    }
}

impl IntoResponse for HandlerError {
    fn into_response(self) -> Response {
        let error = match self {
            HandlerError::Refused(refusal) => return refusal.into_response(),
            HandlerError::Store(error) => error,
        };
        match error {
            Error::Conflict { .. } => Refusal::conflict(
                "another request is changing the same resource; read it and try again",
            )
            .kind(Kind::Contended),
            Error::Invalid(what) => Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what),
            Error::LeaseGone(_) | Error::Compacted(_) | Error::Unavailable(_) => {
                tracing::error!("request to the store failed: {error}");
                Refusal::unavailable(format!(
                    "the controller's store is not available, try again: {error}"
                ))
            }
        }
        .into_response()
    }
}

impl Controller {
    /// Retries a change until nothing that it has read was changed concurrently.
    pub(crate) async fn retrying<T, F: Future<Output = Result<T, HandlerError>>>(
        &self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, HandlerError> {
        for _ in 1..ATTEMPTS {
            match attempt().await {
                Err(HandlerError::Store(Error::Conflict { found, .. })) => {
                    self.catch_up(found).await
                }
                outcome => return outcome,
            }
        }
        attempt().await
    }

    /// Waits until the view contains the change that a commit conflicted with.
    pub(crate) async fn catch_up(&self, found: Option<Revision>) {
        match found {
            Some(revision) => self.wait_until_applied(revision).await,
            // The key was deleted, so there is no revision to wait for.
            None => {
                let _ =
                    tokio::time::timeout(Duration::from_millis(50), self.changes().changed()).await;
            }
        }
    }
}

/// The documented errors of all requests.
pub(crate) struct CommonErrors;

/// The documented errors of requests with a body.
pub(crate) struct BodyErrors;

/// The documented error of requests for a resource by its name.
pub(crate) struct NotFoundError;

/// The documented error of requests that change something.
pub(crate) struct ConflictError;

impl IntoResponses for CommonErrors {
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
            (
                503,
                "The store cannot be reached or is too slow; Retry-After says when to try again",
            ),
        ])
    }
}

impl IntoResponses for BodyErrors {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[
            (413, "The body is too large"),
            (415, "The body is not declared as the documented type"),
            (422, "The body contains an invalid value"),
        ])
    }
}

impl IntoResponses for NotFoundError {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[(
            404,
            "The resource does not exist, or belongs to another tenant",
        )])
    }
}

impl IntoResponses for ConflictError {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        documented(&[(
            409,
            "The resource already exists, or others still refer to it",
        )])
    }
}

pub(crate) fn documented(statuses: &[(u16, &str)]) -> BTreeMap<String, RefOr<Documented>> {
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

/// Returns the schema of all error responses.
pub(crate) fn problem_schema() -> (String, RefOr<utoipa::openapi::Schema>) {
    (Problem::name().into_owned(), Problem::schema())
}
