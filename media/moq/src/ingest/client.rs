//! The connection to a server of MoQ.

use crate::certificate::client_config;
use crate::server::versions;
use crate::transport::{ALPN, Transport, TransportError, alpn};
use crate::trust::Trust;
use moq_net::origin;
use noq::Endpoint;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::lookup_host;
use tokio::time::timeout;
use url::Url;
use web_transport_proto::ConnectRequest;

/// The URL of a server of MoQ: `https://HOST:PORT/PATH?QUERY` (WebTransport) or `moqt://...` (QUIC). The
/// query may have a token, and is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SourceUrl(Url);

/// A URL is not one of a server of MoQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the URL of a MoQ server is https://HOST:PORT (WebTransport) or moqt://HOST:PORT (QUIC)")]
pub struct InvalidUrl;

/// The reason why there is no session with a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot look up {0}")]
    Name(String, #[source] std::io::Error),
    #[error("{0} has no address")]
    NoAddress(String),
    #[error("cannot open a socket")]
    Socket(#[source] std::io::Error),
    #[error("TLS cannot be used")]
    Tls(#[from] rustls::Error),
    #[error("cannot connect")]
    Connect(#[from] noq::ConnectError),
    #[error("the connection failed")]
    Connection(#[from] noq::ConnectionError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("the server supports none of the supported versions of MoQ")]
    Version,
    #[error("the server refuses the session")]
    Session(#[from] moq_net::Error),
    #[error("the server did not answer in time")]
    TimedOut,
}

/// A session with a server.
pub(super) struct Session {
    pub(super) session: moq_net::Session,
    pub(super) driver: moq_net::Driver<Transport>,
    /// It ends the connection when it is dropped.
    pub(super) endpoint: Endpoint,
}

/// The time within which a connection becomes a session.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The port of a URL without one.
const PORT: u16 = 443;

impl SourceUrl {
    /// Adds a token to the query.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.0.query_pairs_mut().append_pair("token", token);
        self
    }

    fn host(&self) -> &str {
        let host = self.0.host_str().unwrap_or_default();
        // IPv6 addresses are in brackets.
        host.trim_matches(['[', ']'])
    }

    fn port(&self) -> u16 {
        self.0.port().unwrap_or(PORT)
    }

    fn is_web_transport(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the path with the query.
    fn target(&self) -> String {
        match self.0.query() {
            Some(query) => format!("{}?{query}", self.0.path()),
            None => self.0.path().to_owned(),
        }
    }

    async fn addresses(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let (host, port) = (self.host(), self.port());
        let found = lookup_host((host, port)).await;
        let found: Vec<_> = found
            .map_err(|error| ConnectError::Name(host.to_owned(), error))?
            .collect();
        match found.is_empty() {
            true => Err(ConnectError::NoAddress(host.to_owned())),
            false => Ok(found),
        }
    }
}

impl std::str::FromStr for SourceUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let url: Url = text.parse().map_err(|_| InvalidUrl)?;
        let has_user = !url.username().is_empty() || url.password().is_some();
        let is_right = matches!(url.scheme(), "https" | "moqt")
            && url.host_str().is_some_and(|host| !host.is_empty())
            && !has_user
            && url.fragment().is_none();
        is_right.then_some(SourceUrl(url)).ok_or(InvalidUrl)
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = self.0.clone();
        shown.set_query(None);
        write!(f, "{shown}")
    }
}

impl fmt::Debug for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SourceUrl({self})")
    }
}

/// Connects to the first address of the server that answers. Its announcements are added to the origin.
pub(super) async fn connect(
    url: &SourceUrl,
    trust: &Trust,
    origin: &origin::Producer,
) -> Result<Session, ConnectError> {
    let mut failed = ConnectError::TimedOut;
    for address in url.addresses().await? {
        let connected = timeout(HANDSHAKE, connect_to(address, url, trust, origin)).await;
        match connected {
            Ok(Ok(session)) => return Ok(session),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = ConnectError::TimedOut,
        }
    }
    Err(failed)
}

async fn connect_to(
    address: SocketAddr,
    url: &SourceUrl,
    trust: &Trust,
    origin: &origin::Producer,
) -> Result<Session, ConnectError> {
    let versions = versions();
    let protocols = match url.is_web_transport() {
        true => vec![ALPN],
        false => versions.alpns(),
    };
    let local: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let endpoint = Endpoint::client((local, 0).into()).map_err(ConnectError::Socket)?;
    let config = client_config(trust, &protocols)?;
    let connection = endpoint.connect_with(config, address, url.host())?.await?;
    let mut client = moq_net::Client::new()
        .with_subscriber(origin.clone())
        .with_versions(versions.clone());
    let transport = if url.is_web_transport() {
        let offered = versions.alpns().into_iter().map(str::to_owned);
        let request = ConnectRequest::new(url.0.clone()).with_protocols(offered);
        Transport::web_transport(connection, request).await?
    } else {
        client = client.with_path(url.target()).with_authority(url.host());
        alpn(&connection).ok_or(ConnectError::Version)?;
        Transport::raw(connection).ok_or(ConnectError::Version)?
    };
    let (session, driver) = client.connect(Instant::now(), transport).await?;
    Ok(Session {
        session,
        driver,
        endpoint,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_does_not_print_its_query() {
        let url: SourceUrl = "https://relay.example/a?token=0123456789abcdef"
            .parse()
            .unwrap();
        assert_eq!(url.to_string(), "https://relay.example/a");
        assert_eq!(format!("{url:?}"), "SourceUrl(https://relay.example/a)");
        assert_eq!((url.host(), url.port()), ("relay.example", 443));
        assert_eq!(url.target(), "/a?token=0123456789abcdef");
    }

    #[test]
    fn a_token_is_added_to_the_query() {
        let url: SourceUrl = "moqt://[2001:db8::1]:4443".parse().unwrap();
        let url = url.with_token("0123456789abcdef");
        assert_eq!((url.host(), url.port()), ("2001:db8::1", 4443));
        assert!(
            url.target().ends_with("?token=0123456789abcdef"),
            "{}",
            url.target()
        );
    }

    #[test]
    fn other_urls_are_refused() {
        for wrong in [
            "relay.example:443",
            "http://relay.example",
            "https://",
            "moqt:",
            "https://user@relay.example",
            "https://relay.example/#part",
        ] {
            assert_eq!(wrong.parse::<SourceUrl>(), Err(InvalidUrl), "{wrong}");
        }
    }
}
