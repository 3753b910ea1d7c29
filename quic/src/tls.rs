//! TLS 1.3 with certificates on both sides.

use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ClientConfig, Resumption, WantsClientCert};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier, version};
use std::sync::Arc;

/// The identity of a node: its certificate, with the intermediate certificates up to the authority,
/// and the private key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The reason that certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The text is not PEM, or not of the expected kind.
    #[error("{what} cannot be read: {reason}")]
    Pem {
        /// The file.
        what: &'static str,
        /// The error in the file.
        reason: String,
    },
    /// A PEM text lacks the expected section.
    #[error("{what}: the file does not contain it")]
    Missing {
        /// The missing section.
        what: &'static str,
    },
    /// TLS rejected the certificate or key.
    #[error("certificate or key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// The authority cannot be used to verify peers.
    #[error("the authority's certificate cannot be used: {0}")]
    Authority(String),
}

impl Identity {
    /// Creates an identity from the PEM texts of the certificate chain, the node's own first, and
    /// of the private key.
    ///
    /// # Errors
    /// If either is missing or not PEM.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, TlsError> {
        let chain = certificates("the certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| TlsError::Pem {
            what: "the private key",
            reason: error.to_string(),
        })?;
        Ok(Identity { chain, key })
    }
}

/// Returns the set of authorities whose signature on a peer's certificate is trusted.
///
/// # Errors
/// If the PEM text has no certificate, or one that is not an authority's.
pub fn authorities(pem: &str) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the authority's certificate", pem)? {
        roots.add(certificate)?;
    }
    Ok(Arc::new(roots))
}

/// Creates a client that presents `identity` and trusts servers of `authorities`.
///
/// # Errors
/// If certificate and key do not match.
pub fn client(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let verified = client_builder()?.with_root_certificates(authorities);
    identified(verified, identity, protocol)
}

/// Creates a client that presents `identity` and trusts the servers that `verifier` accepts.
///
/// # Errors
/// If certificate and key do not match.
pub fn client_verifying(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let verified = client_builder()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    identified(verified, identity, protocol)
}

fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsError> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?)
}

fn identified(
    verified: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let mut config =
        verified.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    let config = QuicClientConfig::try_from(config)
        .expect("the provider has the suite of QUIC's first packets");
    Ok(Arc::new(config))
}

/// Creates a server that presents `identity` and admits clients of `authorities`. It issues no
/// session tickets: a tunnel's connections are few and long, and each must authenticate again.
///
/// # Errors
/// If certificate and key do not match, or there are no authorities.
pub fn server(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicServerConfig>, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider())
        .build()
        .map_err(|error| TlsError::Authority(error.to_string()))?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain.clone(), identity.key.clone_key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.send_tls13_tickets = 0;
    let config = QuicServerConfig::try_from(config)
        .expect("the provider has the suite of QUIC's first packets");
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem {
            what,
            reason: error.to_string(),
        })?;
    if certificates.is_empty() {
        Err(TlsError::Missing { what })
    } else {
        Ok(certificates)
    }
}
