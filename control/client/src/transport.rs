use crate::error::{Error, credentials};
use hawser_model::answer::{MERGE_PATCH, Problem};
use hawser_units::Line;
use reqwest::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_MATCH, RETRY_AFTER};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, Url};
use rustls::{CertificateError, ClientConfig};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for a whole request, and for the beginning of a stream.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Interval and timeout of HTTP/2 keep-alive pings on a connection that is silent.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Number of times that a creation whose answer is lost, or an operator's request that is one too many, is sent, and
/// the pause between. The controller may demand another pause, up to the maximum.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// Maximum size of an error response that is read.
const MAX_PROBLEM_BYTES: usize = 64 * 1024;

/// The address of a controller: `https://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller(Url);

impl FromStr for Controller {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Address(text.to_owned());
        let url = Url::parse(text).map_err(|_| wrong())?;
        let is_bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
        if url.scheme() == "https" && url.has_host() && is_bare {
            Ok(Controller(url))
        } else {
            Err(wrong())
        }
    }
}

impl Controller {
    /// Returns the socket address, unless the host is a name.
    pub fn address(&self) -> Option<SocketAddr> {
        let host = self
            .0
            .host_str()?
            .trim_start_matches('[')
            .trim_end_matches(']');
        Some(SocketAddr::new(
            host.parse().ok()?,
            self.0.port_or_known_default()?,
        ))
    }

    /// Resolves the host's name. May block while the resolver works.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.0.socket_addrs(|| None)
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

/// Sends requests to the first of several controllers that answers.
#[derive(Debug)]
pub(crate) struct Transport {
    client: Client,
    controllers: Vec<Controller>,
    /// The one that answered last.
    current: AtomicUsize,
    bearer: Option<String>,
}

impl Transport {
    pub(crate) fn new(
        controllers: &[Controller],
        tls: ClientConfig,
        bearer: Option<String>,
    ) -> Result<Self, Error> {
        Transport::by(None, controllers, tls, bearer)
    }

    /// As [`Transport::new`], with connections that are bound to an interface if one is given.
    pub(crate) fn by(
        interface: Option<&str>,
        controllers: &[Controller],
        tls: ClientConfig,
        bearer: Option<String>,
    ) -> Result<Self, Error> {
        if controllers.is_empty() {
            return Err(Error::NoController);
        }
        let mut client = Client::builder();
        if let Some(interface) = interface {
            client = client.interface(interface);
        }
        let client = client
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .http2_keep_alive_timeout(KEEP_ALIVE)
            .http2_keep_alive_while_idle(true)
            .tcp_nodelay(true)
            .user_agent(concat!("hawser/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| credentials("TLS", causes(&error)))?;
        Ok(Transport {
            client,
            controllers: controllers.to_vec(),
            current: AtomicUsize::new(0),
            bearer,
        })
    }

    /// Sends a request whose answer is JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, Error> {
        let (response, controller) = self.send(method, path, body).await?;
        parse(response, &controller).await
    }

    /// Gets a resource with its tag.
    pub(crate) async fn tagged<T: DeserializeOwned>(&self, path: &str) -> Result<Tagged<T>, Error> {
        let (response, controller) = self.send(Method::GET, path, NOTHING).await?;
        let tag = response
            .headers()
            .get(ETAG)
            .cloned()
            .ok_or_else(|| Error::Answer {
                controller: controller.to_string(),
                reason: "it has no ETag".to_owned(),
            })?;
        Ok(Tagged {
            value: parse(response, &controller).await?,
            tag: Tag(tag),
        })
    }

    /// Replaces a resource if it still has the tag.
    pub(crate) async fn replace<T: DeserializeOwned>(
        &self,
        path: &str,
        tag: &Tag,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        let (response, controller) = self
            .send_for(Method::PUT, path, Some(tag.header()), Some(body))
            .await?;
        parse(response, &controller).await
    }

    /// Creates a resource. The request is repeated if its answer is lost: creations are recognised by
    /// the name, and the controller answers a repetition with what there is.
    pub(crate) async fn create<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<T, Error> {
        let mut attempt = 1;
        loop {
            match self.json(Method::POST, path, Some(body)).await {
                Err(Error::Interrupted { .. }) if attempt < ATTEMPTS => {}
                outcome => return outcome,
            }
            attempt += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Changes a resource by a merge patch (RFC 7396) if it still has the tag.
    pub(crate) async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        tag: &Tag,
        patch: &Value,
    ) -> Result<T, Error> {
        let (response, controller) = self
            .send_for(Method::PATCH, path, Some(tag.header()), Some(patch))
            .await?;
        parse(response, &controller).await
    }

    /// Sends a request of whose answer only the success matters.
    pub(crate) async fn done(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<(), Error> {
        let (response, controller) = self.send(method, path, body).await?;
        // Reading the whole body lets the connection be reused for the next request.
        with_timeout(&controller, response.bytes()).await.map(drop)
    }

    /// Tries one controller after the other until one accepts the request. Once a controller has
    /// accepted it, no other is tried: the first may already have carried it out.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<(Response, Controller), Error> {
        self.send_for(method, path, None, body).await
    }

    /// As [`Transport::send`], with one more header. An operator's request that is one too many is repeated when
    /// the controller allows it.
    async fn send_for(
        &self,
        method: Method,
        path: &str,
        header: Option<(HeaderName, HeaderValue)>,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<(Response, Controller), Error> {
        let mut attempt = 1;
        loop {
            let sent = self.send_once(&method, path, header.as_ref(), body).await;
            let (response, controller) = sent?;
            let pause = too_many(&response);
            match pause.filter(|_| self.bearer.is_some() && attempt < ATTEMPTS) {
                Some(pause) => tokio::time::sleep(pause).await,
                None if response.status().is_success() => return Ok((response, controller)),
                None => return Err(rejection(response).await),
            }
            attempt += 1;
        }
    }

    /// Returns the response of the first controller that accepts the request, whatever its status.
    async fn send_once(
        &self,
        method: &Method,
        path: &str,
        header: Option<&(HeaderName, HeaderValue)>,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<(Response, Controller), Error> {
        let first = self.current.load(Ordering::Relaxed);
        let mut reasons = Vec::new();
        for offset in 0..self.controllers.len() {
            let index = (first + offset) % self.controllers.len();
            let controller = &self.controllers[index];
            let is_last = offset + 1 == self.controllers.len();
            let request = self.request(controller, method, path, header.cloned(), body);
            match self.attempt(index, request, is_last).await {
                Ok(outcome) => return outcome.map(|response| (response, controller.clone())),
                Err(reason) => reasons.push(format!("{controller}: {reason}")),
            }
        }
        Err(Error::Unreachable(reasons.join("; ")))
    }

    /// Sends a request to one controller and returns the outcome. Fails with the reason if the
    /// controller has not accepted the request, so that the next one is to be tried.
    async fn attempt(
        &self,
        index: usize,
        request: RequestBuilder,
        is_last: bool,
    ) -> Result<Result<Response, Error>, String> {
        let reason = match tokio::time::timeout(ANSWER_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => {
                let status = response.status();
                if status == StatusCode::SERVICE_UNAVAILABLE && !is_last {
                    return Err(rejection(response).await.to_string());
                }
                self.current.store(index, Ordering::Relaxed);
                return Ok(Ok(response));
            }
            Ok(Err(error)) if error.is_connect() => return Err(causes(&error)),
            Ok(Err(error)) => causes(&error),
            Err(_) => format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()),
        };
        self.current.store(index + 1, Ordering::Relaxed);
        Ok(Err(Error::Interrupted {
            controller: self.controllers[index].to_string(),
            reason,
        }))
    }

    fn request(
        &self,
        controller: &Controller,
        method: &Method,
        path: &str,
        header: Option<(HeaderName, HeaderValue)>,
        body: Option<&(impl Serialize + Sync)>,
    ) -> RequestBuilder {
        let url = format!("{}{}", controller.0, &path[1..]);
        let mut request = self.client.request(method.clone(), url);
        if let Some(bearer) = &self.bearer {
            request = request.bearer_auth(bearer);
        }
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        if let Some(body) = body {
            if method == Method::PATCH {
                request = request.header(CONTENT_TYPE, MERGE_PATCH);
            }
            // This keeps a type that was given.
            request = request.json(body);
        }
        request
    }
}

/// A resource and its tag.
#[derive(Debug, Clone)]
pub struct Tagged<T> {
    /// The resource when it was read.
    pub value: T,
    /// The tag of that version.
    pub tag: Tag,
}

/// Identifies a version of a resource (its ETag). A change with a tag is rejected with the status
/// 412 if the resource has been changed since it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(HeaderValue);

impl Tag {
    fn header(&self) -> (HeaderName, HeaderValue) {
        (IF_MATCH, self.0.clone())
    }
}

async fn parse<T: DeserializeOwned>(
    response: Response,
    controller: &Controller,
) -> Result<T, Error> {
    let text = with_timeout(controller, response.bytes()).await?;
    serde_json::from_slice(&text).map_err(|error| Error::Answer {
        controller: controller.to_string(),
        reason: error.to_string(),
    })
}

/// The body of a request without one.
pub(crate) const NOTHING: Option<&()> = None;

async fn with_timeout<T>(
    controller: &Controller,
    answer: impl Future<Output = reqwest::Result<T>>,
) -> Result<T, Error> {
    let reason = match tokio::time::timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => causes(&error),
        Err(_) => format!(
            "its answer was not complete within {} s",
            ANSWER_TIMEOUT.as_secs()
        ),
    };
    Err(Error::Interrupted {
        controller: controller.to_string(),
        reason,
    })
}

/// Returns the pause that a response demands because there were too many requests, if it is a short one.
fn too_many(response: &Response) -> Option<Duration> {
    let pause = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    let pause = Duration::from_secs(pause.parse().ok()?);
    let is_short = response.status() == StatusCode::TOO_MANY_REQUESTS && pause <= MAX_PAUSE;
    is_short.then_some(pause)
}

/// Returns the error that an unsuccessful response contains.
async fn rejection(mut response: Response) -> Error {
    let status = response.status();
    let mut text = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            text.extend_from_slice(&chunk);
            if text.len() > MAX_PROBLEM_BYTES {
                break;
            }
        }
    };
    // On a timeout, the text read so far is used.
    let _ = tokio::time::timeout(ANSWER_TIMEOUT, read).await;
    let unnamed = || Problem {
        kind: Problem::blank(),
        title: status.canonical_reason().unwrap_or_default().to_owned(),
        status: 0,
        detail: String::new(),
    };
    let mut problem: Problem = serde_json::from_slice(&text).unwrap_or_else(|_| unnamed());
    problem.status = status.as_u16();
    Error::Rejected(problem)
}

/// Returns the innermost cause of an error: the outermost says only that sending failed.
pub(crate) fn causes(error: &reqwest::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let text = in_words(innermost).unwrap_or_else(|| innermost.to_string());
    Line::new(&text).into_string()
}

/// Returns what is wrong and what to do, if a connection failed by TLS or was cut.
fn in_words(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref() {
        return Some(of_tls(error));
    }
    let error: &io::Error = error.downcast_ref()?;
    if let Some(words) = error.get_ref().and_then(|inner| in_words(inner)) {
        return Some(words);
    }
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => {
            Some("the connection was cut".to_owned())
        }
        _ => None,
    }
}

fn of_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(reason) => of_certificate(reason),
        rustls::Error::InvalidMessage(_) => {
            "no TLS is spoken there: is it the port of the controller's `listen`?".to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!("it refused the connection: {alert:?}"),
        _ => error.to_string(),
    }
}

fn of_certificate(reason: &CertificateError) -> String {
    match reason {
        // Authorities of controllers have the same name, and so another one's signature is a wrong one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is not of the authority that is trusted here: is it another controller, or has it a new \
             authority?"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is not for this name or address"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired, or the clock of this machine is wrong"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet, or the clock of this machine is wrong"
        }
        CertificateError::Other(reason) => {
            return format!("its certificate is not one of a controller: {reason}");
        }
        _ => return format!("its certificate cannot be used: {reason}"),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::{InvalidMessage, OtherError};
    use std::sync::Arc;

    #[test]
    fn a_failure_of_tls_is_said_in_words() {
        let tls = |error: rustls::Error| io::Error::new(ErrorKind::InvalidData, error);
        let certificate = |reason: CertificateError| tls(reason.into());
        for (error, words) in [
            (
                certificate(CertificateError::UnknownIssuer),
                "not of the authority",
            ),
            (
                certificate(CertificateError::BadSignature),
                "not of the authority",
            ),
            (
                certificate(CertificateError::NotValidForName),
                "not for this name",
            ),
            (
                certificate(CertificateError::Expired),
                "the clock of this machine",
            ),
            (
                certificate(CertificateError::NotValidYet),
                "the clock of this machine",
            ),
            (
                tls(InvalidMessage::InvalidContentType.into()),
                "no TLS is spoken",
            ),
            (
                io::Error::other(tls(InvalidMessage::InvalidCcs.into())),
                "no TLS is spoken",
            ),
            (ErrorKind::UnexpectedEof.into(), "was cut"),
            (
                io::Error::new(ErrorKind::UnexpectedEof, "see https://"),
                "was cut",
            ),
        ] {
            let said = in_words(&error).unwrap();
            assert!(said.contains(words), "{error}: {said}");
        }
        let other = CertificateError::Other(OtherError(Arc::new(io::Error::other("of a CA"))));
        let said = in_words(&certificate(other)).unwrap();
        assert_eq!(said, "its certificate is not one of a controller: of a CA");
        assert_eq!(in_words(&io::Error::other("another reason")), None);
    }
}
