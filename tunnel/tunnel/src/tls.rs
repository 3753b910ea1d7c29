//! The identities of the ends: certificates from files, or those that a controller issued to its
//! nodes.

use crate::config::Credentials;
use crate::{tcp, version};
use anyhow::{Context, Result, anyhow};
use hawser_io::file::read_tls_key;
use hawser_quic::tls::{self, Identity};
use hawser_tls::{ServerVerifier, Subject};
use noq::Connection;
use noq::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio_rustls::TlsAcceptor;

/// The PEM files of one end.
struct Texts {
    authority: String,
    certificate: String,
    key: String,
}

/// Returns the configuration of a client that presents its certificate and trusts servers of its
/// authority, for QUIC.
pub(crate) fn client(credentials: &Credentials) -> Result<Arc<QuicClientConfig>> {
    let mut config = client_config(credentials, version::PROTOCOL)?;
    config.alpn_protocols.push(version::OF_ANY_VERSION.to_vec());
    Ok(tls::quic_client(config))
}

/// As [`client`], for TCP.
pub(crate) fn tcp_client(credentials: &Credentials) -> Result<Arc<rustls::ClientConfig>> {
    Ok(Arc::new(client_config(credentials, tcp::PROTOCOL)?))
}

fn client_config(credentials: &Credentials, protocol: &[u8]) -> Result<rustls::ClientConfig> {
    let texts = Texts::read(credentials)?;
    let config = || -> Result<_> {
        let identity = Identity::from_pem(&texts.certificate, &texts.key)?;
        let authorities = tls::authorities(&texts.authority)?;
        Ok(match credentials {
            Credentials::Files { .. } => tls::client_config(authorities, &identity, protocol)?,
            // Nodes have no host names.
            Credentials::Node(_) => {
                let verifier = ServerVerifier::nodes(authorities)?;
                tls::client_config_verifying(verifier, &identity, protocol)?
            }
        })
    };
    config().with_context(|| credentials.to_string())
}

/// Returns what is wrong with the clock if this end's own certificate is not valid at its time `now`.
pub(crate) fn wrong_time(credentials: &Credentials, now: SystemTime) -> Option<String> {
    let texts = Texts::read(credentials).ok()?;
    let identity = Identity::from_pem(&texts.certificate, &texts.key).ok()?;
    let own = Subject::of(identity.chain().first()?).ok()?;
    let wrong = own.outside_validity(now)?;
    Some(match now < own.not_before {
        true => {
            format!("{wrong}; with `kill_switch`, put the address of an NTP server into `bypass`")
        }
        false => wrong,
    })
}

/// The configuration of a server that presents its certificate and accepts clients of its authority.
#[derive(Clone)]
pub(crate) struct ServerTls {
    pub(crate) quic: noq::ServerConfig,
    pub(crate) tcp: TlsAcceptor,
}

/// Reads the configuration of a server.
pub(crate) fn server(credentials: &Credentials) -> Result<ServerTls> {
    let texts = Texts::read(credentials)?;
    let config = || -> Result<_> {
        let identity = Identity::from_pem(&texts.certificate, &texts.key)?;
        let authorities = tls::authorities(&texts.authority)?;
        let config =
            |protocol: &[u8]| tls::server_config(Arc::clone(&authorities), &identity, protocol);
        let mut quic = config(version::PROTOCOL)?;
        quic.alpn_protocols.push(version::OF_ANY_VERSION.to_vec());
        Ok(ServerTls {
            quic: noq::ServerConfig::with_crypto(tls::quic_server(quic)),
            tcp: Arc::new(config(tcp::PROTOCOL)?).into(),
        })
    };
    config().with_context(|| credentials.to_string())
}

/// The identity in the peer's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The common name.
    pub(crate) name: String,
    /// The serial number of the certificate, in hexadecimal.
    pub(crate) serial: String,
}

/// Returns the identity of the peer.
///
/// # Errors
///
/// If the peer sent no X.509 certificate, or one without a common name.
pub(crate) fn peer(connection: &Connection) -> Result<Peer> {
    let chain = connection
        .peer_identity()
        .context("the peer sent no certificate")?;
    let chain = chain.downcast::<Vec<CertificateDer<'static>>>();
    let chain = chain.map_err(|_| anyhow!("the peer's certificate is not X.509"))?;
    Peer::of(chain.first().context("the peer sent no certificate")?)
}

impl Peer {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Peer> {
        let Subject { name, serial, .. } = Subject::of(certificate)?;
        Ok(Peer { name, serial })
    }
}

impl Texts {
    fn read(credentials: &Credentials) -> Result<Texts> {
        let read = |name: &str, path: &Path| {
            hawser_io::file::read_text(path)
                .with_context(|| format!("{name}: cannot read {}", path.display()))
        };
        Ok(match credentials {
            Credentials::Files {
                authority,
                certificate,
                key,
            } => Texts {
                authority: read("authority", authority)?,
                certificate: read("certificate", certificate)?,
                key: read_tls_key(key).context("key")?.to_string(),
            },
            Credentials::Node(folder) => hawser_client::Identity::load(folder)
                .context("has the node been enrolled?")?
                .into(),
        })
    }
}

impl From<hawser_client::Identity> for Texts {
    fn from(node: hawser_client::Identity) -> Texts {
        Texts {
            authority: node.authority_pem().to_owned(),
            certificate: node.certificate_pem().to_owned(),
            key: node.key_pem().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_outside_the_certificates_validity_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "car-1");
        params.not_before = rcgen::date_time_ymd(2026, 11, 1);
        params.not_after = rcgen::date_time_ymd(2027, 11, 1);
        let certificate = params.self_signed(&key).unwrap().pem();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            hawser_io::file::replace(&path, text.as_bytes(), 0o600).unwrap();
            path
        };
        let credentials = Credentials::Files {
            authority: write("authority.pem", &certificate),
            certificate: write("certificate.pem", &certificate),
            key: write("key", &key.serialize_pem()),
        };
        let day = |days: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400);
        let wrong = |now| wrong_time(&credentials, now);
        let early = wrong(day(0)).unwrap();
        assert!(early.contains("it says 1970-01-01 00:00 UTC"), "{early}");
        assert!(early.contains("is from 2026-11-01"), "{early}");
        assert_eq!(wrong(day(20_800)), None, "2026-12-13");
        let late = wrong(day(24_106)).unwrap();
        assert!(late.contains("it says 2036-01-01"), "{late}");
    }
}
