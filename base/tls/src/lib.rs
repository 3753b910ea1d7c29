//! Identities and trust for TLS, with or without QUIC: PEM texts, what a certificate says, and
//! verifiers of servers. All cryptography is that of [`provider`].
//!
//! ```
//! use hawser_tls::{Error, authorities};
//!
//! assert!(matches!(authorities(""), Err(Error::Missing { .. })));
//! ```

mod certificate;
mod verifier;

pub use certificate::{Subject, digest, host_name};
pub use verifier::{ServerVerifier, UndatedClients};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{DistinguishedName, RootCertStore};
use std::sync::Arc;

/// The reason that certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not PEM, or not of the expected kind.
    #[error("{what} cannot be read: {reason}")]
    Pem {
        /// The expected content.
        what: &'static str,
        /// The error in the text.
        reason: String,
    },
    /// A PEM text lacks the expected section.
    #[error("{what}: the file does not contain it")]
    Missing {
        /// The missing section.
        what: &'static str,
    },
    /// A certificate is not X.509.
    #[error("the certificate cannot be read: {0}")]
    Certificate(String),
    /// A certificate has no common name.
    #[error("the certificate has no common name")]
    NoName,
    /// TLS rejected the certificate or key.
    #[error("certificate or key cannot be used: {0}")]
    Unusable(rustls::Error),
    /// The authority cannot be used to verify peers.
    #[error("the authority's certificate cannot be used: {0}")]
    Authority(String),
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Error::Unusable(error)
    }
}

/// The identity of a node: its certificate, with the intermediate certificates up to the authority,
/// and the private key.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// Creates an identity from the PEM texts of the certificate chain, the node's own first, and
    /// of the private key.
    ///
    /// # Errors
    /// If either is missing or not PEM.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, Error> {
        let chain = certificates("the certificate", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| Error::Pem {
            what: "the private key",
            reason: error.to_string(),
        })?;
        Ok(Identity { chain, key })
    }

    /// Returns the certificate chain, the node's own certificate first.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    /// Returns the private key.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

/// The common name of the authority that a controller makes for itself.
pub const AUTHORITY_NAME: &str = "hawser authority";

/// Returns the subject of such an authority: its common name alone, encoded (X.501).
pub(crate) fn authority_subject() -> DistinguishedName {
    const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
    const SET: u8 = 0x31;
    const SEQUENCE: u8 = 0x30;
    const UTF8: u8 = 0x0c;
    let tagged = |tag: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).expect("the name is short");
        [&[tag, length], content].concat()
    };
    let text = tagged(UTF8, AUTHORITY_NAME.as_bytes());
    let attribute = tagged(SEQUENCE, &[&COMMON_NAME, &text[..]].concat());
    DistinguishedName::in_sequence(&tagged(SET, &attribute))
}

/// Returns the implementation of cryptography.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the set of authorities whose signature on a peer's certificate is trusted.
///
/// # Errors
/// If the PEM text has no certificate, or one that is not an authority's.
pub fn authorities(pem: &str) -> Result<Arc<RootCertStore>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("the authority's certificate", pem)? {
        roots.add(certificate)?;
    }
    Ok(Arc::new(roots))
}

/// The files in which distributions have the authorities that they trust.
const SYSTEM_AUTHORITIES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// Returns the authorities that the system trusts.
///
/// # Errors
/// If the system has no file of them.
pub fn system_authorities() -> Result<Arc<RootCertStore>, Error> {
    let what = "the file with the system's authorities (/etc/ssl/certs/ca-certificates.crt)";
    let mut texts = SYSTEM_AUTHORITIES.iter().map(std::fs::read_to_string);
    let text = texts.find_map(Result::ok).ok_or(Error::Missing { what })?;
    let mut roots = RootCertStore::empty();
    // Some systems have one that this implementation does not take.
    roots.add_parsable_certificates(certificates(what, &text)?);
    Ok(Arc::new(roots))
}

/// Returns the certificates of a PEM text. `what` they are is used in errors.
///
/// # Errors
/// If the text has none, or is not PEM.
pub fn certificates(what: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| Error::Pem {
            what,
            reason: error.to_string(),
        })?;
    if certificates.is_empty() {
        Err(Error::Missing { what })
    } else {
        Ok(certificates)
    }
}
