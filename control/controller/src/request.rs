//! The identifier of a request, which is in its response, in its log lines and in the audit log.

use crate::record::random_hex;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::fmt;
use std::sync::Arc;
use tracing::Instrument;

pub(crate) const HEADER: &str = "x-request-id";

/// The identifier of a request. The controller chooses it, because a client could choose the
/// identifier of another request.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(Arc<str>);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Assigns an identifier to a request and its response.
pub(crate) async fn identified(mut request: Request, next: Next) -> Response {
    let id = RequestId(random_hex::<8>().into());
    request.extensions_mut().insert(id.clone());
    let span = tracing::info_span!("request", %id);
    let mut response = next.run(request).instrument(span).await;
    let value = HeaderValue::from_str(&id.0).expect("hexadecimal digits are visible");
    response
        .headers_mut()
        .insert(HeaderName::from_static(HEADER), value);
    response
}
