//! The header `Idempotency-Key`: a repeated POST gets the response of the first one.
//!
//! A key is claimed in the store before the request is carried out, so that any controller knows it.
//! The response is stored afterwards, and may contain a secret: it is encrypted with a key that is
//! derived from the operator's secret and the idempotency key, neither of which is stored.

use super::problem::Kind;
use super::refusal::{HandlerError, Refusal};
use crate::access::Bearer;
use crate::controller::Controller;
use crate::record::{IdempotencyRecord, decode, emit, key, sha256_hex};
use crate::store::{Error, Expect, Revision, Write};
use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes256Gcm, Key, KeyInit, Nonce, Tag};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, ETAG, LOCATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hawser_control::answer::IDEMPOTENCY_KEY;
use hawser_io::clock::unix_ms;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tracing::Instrument;

/// The maximum number of keys that are kept for each token, and for all.
const MAX_EACH: usize = 1_000;
const MAX_ALL: usize = 5_000;

/// The maximum length of a key, characters.
const MAX_KEY_CHARS: usize = 128;

/// The maximum size of a response that is stored, bytes.
const MAX_RESPONSE_BYTES: usize = 8 * 1024;

/// The headers of a response that are stored.
const HEADERS: [HeaderName; 3] = [CONTENT_TYPE, ETAG, LOCATION];

const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;

/// Carries out a request of an operator at most once for each key.
pub(super) async fn once(
    State(controller): State<Arc<Controller>>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST || !request.headers().contains_key(IDEMPOTENCY_KEY) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    // A request without a valid token is refused where all of them are.
    let Some(bearer) = controller.bearer(&parts) else {
        return next.run(Request::from_parts(parts, body)).await;
    };
    match repeatable(controller, bearer, parts, body, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn repeatable(
    controller: Arc<Controller>,
    bearer: Bearer,
    parts: Parts,
    body: Body,
    next: Next,
) -> Result<Response, HandlerError> {
    let body = to_bytes(body, controller.config.limits.body_bytes).await;
    let body = body.map_err(|_| {
        let what = "the body is too large, or was not received completely";
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what)
    })?;
    let claim = Claim::of(&bearer, &parts, &body)?;
    let request = Request::from_parts(parts, Body::from(body));
    // The request is carried out even if the client does not wait for it: a key that was claimed in
    // vain could not be used again.
    let (answer, answered) = oneshot::channel();
    let tasks = controller.tasks.clone();
    let work = async move {
        // The client may have gone.
        let _ = answer.send(controller.run_once(&claim, request, next).await);
    };
    tasks.spawn(work.in_current_span());
    let ended = "the controller is shutting down; send the request again with the same key";
    answered.await.map_err(|_| Refusal::unavailable(ended))?
}

/// A request that is to be carried out at most once.
struct Claim {
    /// The token's part of the keys in the store.
    prefix: String,
    store_key: String,
    request_sha256: String,
    cipher: Aes256Gcm,
}

/// The state of a key in the store.
enum Claimed {
    /// It was claimed by this request, in this revision.
    New(Revision),
    Before(IdempotencyRecord),
}

/// A response in the store.
#[derive(Serialize, Deserialize)]
struct Stored {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Claim {
    fn of(bearer: &Bearer, parts: &Parts, body: &[u8]) -> Result<Claim, Refusal> {
        let key = key_of(&parts.headers)?;
        let prefix = format!("{}{}/", key::IDEMPOTENCY, bearer.token);
        let mut digest = Sha256::new();
        digest.update(parts.uri.path_and_query().map_or("", |path| path.as_str()));
        digest.update(b"\n");
        digest.update(body);
        // No part contains a line feed except the last.
        let secret = format!("hawser idempotency\n{}\n{key}", bearer.secret);
        Ok(Claim {
            store_key: format!("{prefix}{}", sha256_hex(key)),
            prefix,
            request_sha256: hex::encode(digest.finalize()),
            cipher: Aes256Gcm::new(&Key::<Aes256Gcm>::from(<[u8; 32]>::from(Sha256::digest(
                secret,
            )))),
        })
    }

    /// Returns the response to a request whose key is known.
    fn response_to_repetition(&self, record: &IdempotencyRecord) -> Result<Response, Refusal> {
        if record.request_sha256 != self.request_sha256 {
            let what = "this Idempotency-Key was used for another request; use a new one";
            return Err(Refusal::meaningless(what).kind(Kind::KeyReused));
        }
        let stored = record
            .response
            .as_ref()
            .and_then(|sealed| self.open(sealed));
        let response = stored.and_then(Stored::into_response);
        response.ok_or_else(|| {
            let what = "the first request with this Idempotency-Key is not complete, or its response is not available; \
                        repeat it in some seconds, or read whether it was carried out";
            Refusal::conflict(what).kind(Kind::OutcomeUnknown)
        })
    }

    /// Encrypts a response. The result is hexadecimal: nonce, text and tag.
    fn seal(&self, stored: &Stored) -> Option<String> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).ok()?;
        let mut text = emit(stored);
        let nonce = Nonce::from(nonce);
        let key = self.store_key.as_bytes();
        let tag = self
            .cipher
            .encrypt_in_place_detached(&nonce, key, &mut text);
        let parts = [&nonce[..], &text, &tag.ok()?];
        Some(hex::encode(parts.concat()))
    }

    /// Decrypts a response. Returns `None` if the operator's secret is another one than that of the
    /// first request.
    fn open(&self, sealed: &str) -> Option<Stored> {
        let bytes = hex::decode(sealed).ok()?;
        let (nonce, rest) = bytes.split_at_checked(NONCE_BYTES)?;
        let (text, tag) = rest.split_at_checked(rest.len().checked_sub(TAG_BYTES)?)?;
        let nonce: [u8; NONCE_BYTES] = nonce.try_into().ok()?;
        let tag: [u8; TAG_BYTES] = tag.try_into().ok()?;
        let (mut text, key) = (text.to_vec(), self.store_key.as_bytes());
        let opened = self.cipher.decrypt_in_place_detached(
            &Nonce::from(nonce),
            key,
            &mut text,
            &Tag::from(tag),
        );
        opened.ok()?;
        decode(&text).ok()
    }
}

fn key_of(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = values.next().and_then(|value| value.to_str().ok());
    let is_valid = |key: &&str| {
        (1..=MAX_KEY_CHARS).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let key = key.filter(is_valid).filter(|_| values.next().is_none());
    key.ok_or_else(|| {
        let what =
            format!("`Idempotency-Key` must be one to {MAX_KEY_CHARS} visible ASCII characters, such as a UUID");
        Refusal::new(StatusCode::BAD_REQUEST, what)
    })
}

impl Stored {
    fn of(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Option<Stored> {
        let text = |name: &HeaderName| {
            let value = headers.get(name)?.to_str().ok()?;
            Some((name.to_string(), value.to_owned()))
        };
        Some(Stored {
            status: status.as_u16(),
            headers: HEADERS.iter().filter_map(text).collect(),
            body: String::from_utf8(body.to_vec()).ok()?,
        })
    }

    fn into_response(self) -> Option<Response> {
        let status = StatusCode::from_u16(self.status).ok()?;
        let mut response = (status, self.body).into_response();
        response.headers_mut().remove(CONTENT_TYPE);
        for (name, value) in self.headers {
            let name = HeaderName::try_from(name).ok()?;
            let value = HeaderValue::try_from(value).ok()?;
            response.headers_mut().insert(name, value);
        }
        Some(response)
    }
}

impl Controller {
    /// Carries out a request unless its key is known, and returns the response.
    async fn run_once(
        &self,
        claim: &Claim,
        request: Request,
        next: Next,
    ) -> Result<Response, HandlerError> {
        match self.claim(claim).await? {
            Claimed::New(revision) => {
                let response = next.run(request).await;
                Ok(self.settle(claim, revision, response).await)
            }
            Claimed::Before(record) => Ok(claim.response_to_repetition(&record)?),
        }
    }

    /// Claims a key, unless it was claimed before and is still kept.
    async fn claim(&self, claim: &Claim) -> Result<Claimed, HandlerError> {
        let record = IdempotencyRecord {
            at_unix_ms: unix_ms(),
            request_sha256: claim.request_sha256.clone(),
            response: None,
        };
        let known = self.store.get(&claim.store_key).await?;
        let mut read = Expect::Absent;
        if let Some(known) = known {
            match decode::<IdempotencyRecord>(&known.value) {
                Ok(before) if !before.is_expired(record.at_unix_ms) => {
                    return Ok(Claimed::Before(before));
                }
                // One that cannot be read belongs to a later version.
                Err(error) => return Err(Error::Unavailable(error.to_string()).into()),
                Ok(_) => read = Expect::Revision(known.revision),
            }
        } else {
            self.has_room(claim)?;
        }
        let write = Write::put(&claim.store_key, emit(&record)).when(read);
        match self.store.commit(vec![write]).await {
            Ok(revision) => Ok(Claimed::New(revision)),
            // Another request with this key was faster.
            Err(Error::Conflict { .. }) => Ok(Claimed::Before(record)),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a new key if too many are kept.
    fn has_room(&self, claim: &Claim) -> Result<(), Refusal> {
        let view = self.view();
        let prefix: Arc<str> = claim.prefix.as_str().into();
        let own = view.idempotency.range(prefix..);
        let own = own.take_while(|(key, _)| key.starts_with(&claim.prefix));
        if own.count() < MAX_EACH && view.idempotency.len() < MAX_ALL {
            return Ok(());
        }
        self.metrics.refused("idempotency_keys");
        let what = "requests with an Idempotency-Key within a day; send this one without";
        Err(Refusal::too_many(what, Duration::from_secs(60)))
    }

    /// Stores the response to a request with a key. A key of a request that changed nothing is
    /// given up; one whose outcome is unknown stays claimed.
    async fn settle(&self, claim: &Claim, revision: Revision, response: Response) -> Response {
        let (parts, body) = response.into_parts();
        let body = match to_bytes(body, usize::MAX).await {
            Ok(body) => body,
            Err(error) => {
                tracing::error!("a response cannot be read: {error}");
                return Refusal::unavailable("the response was lost; send the request again")
                    .into_response();
            }
        };
        let status = parts.status;
        let write = if status.is_success() {
            let stored = Stored::of(status, &parts.headers, &body);
            let stored = stored.filter(|stored| stored.body.len() <= MAX_RESPONSE_BYTES);
            Some(Write::put(
                &claim.store_key,
                emit(&IdempotencyRecord {
                    at_unix_ms: unix_ms(),
                    request_sha256: claim.request_sha256.clone(),
                    response: stored.and_then(|stored| claim.seal(&stored)),
                }),
            ))
        } else if status.is_server_error() {
            None
        } else {
            Some(Write::delete(&claim.store_key))
        };
        if let Some(write) = write {
            let write = write.when(Expect::Revision(revision));
            if let Err(error) = self.store.commit(vec![write]).await {
                tracing::warn!("cannot store the response to a request with a key: {error}");
            }
        }
        Response::from_parts(parts, Body::from(body))
    }
}

/// Describes the header in the OpenAPI document, for every POST of an operator.
pub(super) fn describe(document: &mut Value) {
    let header = json!({
        "name": IDEMPOTENCY_KEY, "in": "header", "required": false,
        "description": "Names this request, such as by a UUID. A repetition with the same key and body within 24 hours gets the response of the first request, and nothing is done twice. 422 if the key was used for another request, 409 while the response to the first is not known.",
        "schema": { "type": "string", "minLength": 1, "maxLength": MAX_KEY_CHARS, "pattern": "^[!-~]+$" },
    });
    let Some(paths) = document["paths"].as_object_mut() else {
        return;
    };
    for item in paths.values_mut() {
        let Some(operation) = item.get_mut("post").and_then(Value::as_object_mut) else {
            continue;
        };
        let is_of_operator = operation.get("tags").and_then(Value::as_array);
        if !is_of_operator.is_some_and(|tags| tags.contains(&"operators".into())) {
            continue;
        }
        let parameters = operation.entry("parameters").or_insert(json!([]));
        if let Value::Array(parameters) = parameters {
            parameters.push(header.clone());
        }
        let responses = operation
            .get_mut("responses")
            .and_then(Value::as_object_mut);
        let Some(responses) = responses else { continue };
        let Some(mut error) = responses.get("400").cloned() else {
            continue;
        };
        for (status, description) in [
            (
                "409",
                "The response to the first request with this Idempotency-Key is not known",
            ),
            ("413", "The body is too large"),
            ("422", "The Idempotency-Key was used for another request"),
        ] {
            error["description"] = description.into();
            responses.entry(status).or_insert(error.clone());
        }
    }
}
