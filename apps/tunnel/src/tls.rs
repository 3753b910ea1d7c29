//! The identities of the ends: certificates from files, or those that a controller issued to its
//! nodes.

use crate::config::Credentials;
use crate::join::PROTOCOL;
use anyhow::{Context, Result, anyhow};
use hawser_quic::tls::{self, Identity};
use noq::Connection;
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Files in the folder of an enrolled node: its key and certificate, and the authority that it
/// trusts.
const NODE: &str = "node.pem";
const AUTHORITY: &str = "authority.pem";

/// The PEM files of one end.
struct Texts {
    authority: String,
    certificate: String,
    key: String,
}

/// Returns the TLS configuration of a client that presents its certificate and trusts servers of
/// its authority.
pub(crate) fn client(credentials: &Credentials) -> Result<Arc<QuicClientConfig>> {
    let texts = Texts::read(credentials)?;
    let config = || -> Result<_> {
        let identity = Identity::from_pem(&texts.certificate, &texts.key)?;
        match credentials {
            Credentials::Files { .. } => Ok(tls::client(
                tls::authorities(&texts.authority)?,
                &identity,
                PROTOCOL,
            )?),
            Credentials::Node(_) => client_of_nodes(&texts, &identity),
        }
    };
    config().with_context(|| credentials.to_string())
}

/// Returns the TLS configuration of a server that presents its certificate and accepts clients of
/// its authority.
pub(crate) fn server(credentials: &Credentials) -> Result<Arc<QuicServerConfig>> {
    let texts = Texts::read(credentials)?;
    let config = || -> Result<_> {
        let identity = Identity::from_pem(&texts.certificate, &texts.key)?;
        Ok(tls::server(
            tls::authorities(&texts.authority)?,
            &identity,
            PROTOCOL,
        )?)
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
    let peer = chain.first().and_then(Peer::of);
    peer.context("the peer's certificate has no common name")
}

impl Peer {
    fn of(certificate: &CertificateDer<'_>) -> Option<Peer> {
        let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
        let name = certificate
            .subject()
            .iter_common_name()
            .next()?
            .as_str()
            .ok()?
            .to_owned();
        Some(Peer {
            name,
            serial: hex::encode(certificate.raw_serial()),
        })
    }
}

impl Texts {
    fn read(credentials: &Credentials) -> Result<Texts> {
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(match credentials {
            Credentials::Files {
                authority,
                certificate,
                key,
            } => Texts {
                authority: read(authority)?,
                certificate: read(certificate)?,
                key: read(key)?,
            },
            Credentials::Node(folder) => {
                let node = read(&folder.join(NODE)).context("has the node been enrolled?")?;
                Texts {
                    authority: read(&folder.join(AUTHORITY))?,
                    certificate: node.clone(),
                    key: node,
                }
            }
        })
    }
}

/// Returns the TLS configuration of a client that identifies servers by their node names.
///
/// The certificates that a controller issues to nodes contain no host name and are meant for TLS
/// clients, because nodes are clients of the controller. [`ByNodeName`] therefore checks a server's
/// certificate as a client certificate and compares its common name.
fn client_of_nodes(texts: &Texts, identity: &Identity) -> Result<Arc<QuicClientConfig>> {
    let provider = Arc::new(ring::default_provider());
    let authorities: Arc<RootCertStore> = tls::authorities(&texts.authority)?;
    let nodes = WebPkiClientVerifier::builder_with_provider(authorities, provider).build()?;
    Ok(tls::client_verifying(
        Arc::new(ByNodeName(nodes)),
        identity,
        PROTOCOL,
    )?)
}

/// Accepts a server whose certificate has the node name that the client connects to.
#[derive(Debug)]
struct ByNodeName(Arc<dyn ClientCertVerifier>);

impl ServerCertVerifier for ByNodeName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)?;
        if Peer::of(end_entity).is_some_and(|peer| peer.name == server_name.to_str()) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
