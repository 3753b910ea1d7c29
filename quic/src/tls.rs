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

/// Who a node is: its certificate, with the ones between it and the authority, and the private key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not PEM, or not of what it should be.
    #[error("{what} cannot be read: {reason}")]
    Pem {
        /// Which of the files.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A PEM text without what it should have.
    #[error("{what}: there is none in the file")]
    Missing {
        /// What is not there.
        what: &'static str,
    },
    /// Refused by TLS.
    #[error("certificate or key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
    /// Refused as verifier of peers.
    #[error("the authority's certificate cannot be used: {0}")]
    Authority(String),
}

impl Identity {
    /// From the PEM texts of the certificate chain, the node's own first, and of the private key.
    ///
    /// # Errors
    /// When either is not there or not PEM.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, TlsError> {
        let chain = certificates("the certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| TlsError::Pem {
            what: "the private key",
            reason: error.to_string(),
        })?;
        Ok(Identity { chain, key })
    }
}

/// Authorities whose signature on a peer's certificate is trusted, and no others.
///
/// # Errors
/// When the PEM text has no certificate or one that cannot be one of an authority.
pub fn authorities(pem: &str) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the authority's certificate", pem)? {
        roots.add(certificate)?;
    }
    Ok(Arc::new(roots))
}

/// A client that shows `identity` and trusts servers of `authorities`.
///
/// # Errors
/// When certificate and key do not belong together.
pub fn client(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let verified = client_builder()?.with_root_certificates(authorities);
    identified(verified, identity, protocol)
}

/// A client that shows `identity` and trusts the servers that `verifier` accepts.
///
/// # Errors
/// When certificate and key do not belong together.
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

/// A server that shows `identity` and lets in clients of `authorities`. It hands out no session tickets: a tunnel's
/// connections are few and long, and each proves anew who is there.
///
/// # Errors
/// When certificate and key do not belong together, or the authorities are none.
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
