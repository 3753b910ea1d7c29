//! The version of the protocol between clients and servers. Both ends need the same one.

use crate::join::CloseCode;
use hawser_units::Line;
use noq::crypto::rustls::HandshakeData;
use noq::{Connection, ConnectionError};
use std::time::Duration;
use tokio::time::timeout;

/// The version of this end.
const VERSION: &str = "1";

/// The protocol's name in TLS (ALPN), with the version.
pub(crate) const PROTOCOL: &[u8] = b"hawser-tunnel/1";

/// The protocol on which ends of different versions agree, only to learn that.
pub(crate) const OF_ANY_VERSION: &[u8] = b"hawser-tunnel";

/// The time limit for the version of a server.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The largest version of a server that is shown, in bytes.
const MAX_SHOWN_BYTES: usize = 20;

/// Client and server have different versions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the server has {server} of the tunnel's protocol, and this client version {VERSION}: install the same Hawser at both"
)]
pub(crate) struct OtherVersion {
    server: String,
}

/// Returns whether both ends have this version.
pub(crate) fn is_shared(connection: &Connection) -> bool {
    let data = connection.handshake_data();
    let data = data.and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(PROTOCOL))
}

/// Closes a connection of a client that has another version, and tells it this one.
pub(crate) fn refuse(connection: &Connection) {
    connection.close((CloseCode::Version as u32).into(), VERSION.as_bytes());
}

/// Checks that a server has this version.
///
/// # Errors
/// Those name the version of the server, if it tells it.
pub(crate) async fn check(connection: &Connection) -> Result<(), OtherVersion> {
    if is_shared(connection) {
        return Ok(());
    }
    let reason = timeout(TIME_LIMIT, connection.closed()).await;
    Err(OtherVersion::of(reason.ok()))
}

impl OtherVersion {
    /// `reason` is that for which the server has closed the connection.
    fn of(reason: Option<ConnectionError>) -> OtherVersion {
        let told = match reason {
            Some(ConnectionError::ApplicationClosed(close)) => {
                String::from_utf8(close.reason.into()).ok()
            }
            _ => None,
        };
        let version = told.map(|version| Line::within(&version, MAX_SHOWN_BYTES));
        OtherVersion {
            server: version.map_or("another version".to_owned(), |version| {
                format!("version {version}")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Credentials;
    use hawser_quic::tls::{self, Identity};
    use noq::{ApplicationClose, ClientConfig, Endpoint, ServerConfig};
    use rcgen::{CertificateParams, DnType, KeyPair};
    use std::path::Path;

    /// Returns a certificate that is its own authority, and its key.
    fn certificate() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["one".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "one");
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// Accepts a client as a server of version 2 does.
    async fn accept(endpoint: &Endpoint) {
        let connection = endpoint.accept().await.unwrap().await.unwrap();
        assert!(!is_shared(&connection));
        connection.close((CloseCode::Version as u32).into(), b"2");
        endpoint.wait_all_draining().await;
    }

    fn credentials(folder: &Path, certificate: &str, key: &str) -> Credentials {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            hawser_io::file::replace(&path, text.as_bytes(), 0o600).unwrap();
            path
        };
        Credentials::Files {
            authority: write("authority.pem", certificate),
            certificate: write("certificate.pem", certificate),
            key: write("key", key),
        }
    }

    #[tokio::test]
    async fn a_client_learns_the_version_of_a_server() {
        let (certificate, key) = certificate();
        let identity = Identity::from_pem(&certificate, &key).unwrap();
        let authorities = tls::authorities(&certificate).unwrap();
        let server = tls::server(authorities, &identity, OF_ANY_VERSION).unwrap();
        let loopback = "127.0.0.1:0".parse().unwrap();
        let server = Endpoint::server(ServerConfig::with_crypto(server), loopback).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let credentials = credentials(folder.path(), &certificate, &key);
        let config = ClientConfig::new(crate::tls::client(&credentials).unwrap());
        let client = Endpoint::client(loopback).unwrap();
        let address = server.local_addr().unwrap();
        let checked = async {
            let connecting = client.connect_with(config, address, "one").unwrap();
            check(&connecting.await.unwrap()).await
        };
        let (checked, ()) = tokio::join!(checked, accept(&server));
        let server = "version 2".to_owned();
        assert_eq!(checked, Err(OtherVersion { server }));
    }

    #[test]
    fn the_protocol_has_the_version() {
        let expected = [OF_ANY_VERSION, b"/", VERSION.as_bytes()].concat();
        assert_eq!(PROTOCOL, expected);
    }

    #[test]
    fn an_error_names_the_versions_of_both_ends() {
        let told = |version: &[u8]| {
            let close = ApplicationClose {
                error_code: (CloseCode::Version as u32).into(),
                reason: version.to_vec().into(),
            };
            let reason = ConnectionError::ApplicationClosed(close);
            OtherVersion::of(Some(reason)).to_string()
        };
        for (version, expected) in [
            (&b"2"[..], "the server has version 2 of"),
            (b"\x1b[2K", r"the server has version \u{1b}[2K of"),
            (b"\xff", "the server has another version of"),
        ] {
            let error = told(version);
            assert!(error.starts_with(expected), "{error}");
            assert!(error.contains("this client version 1"), "{error}");
        }
        let silent = OtherVersion::of(None).to_string();
        assert!(
            silent.starts_with("the server has another version"),
            "{silent}"
        );
    }
}
