//! The controller's own certificate authority: its files, the server's certificate, the nodes'
//! certificates.
//!
//! `authority.pem` may hold several certificates, all of which are trusted. The one to which
//! `authority.key` belongs issues certificates. [`rotation`] replaces it.

pub(crate) mod rotation;

use crate::record::{Issued, sha256_hex};
use anyhow::{Context, Result};
use hawser_io::clock::{Period, unix_ms};
use hawser_io::file;
use hawser_model::Name;
use hawser_model::access::TrustedAuthority;
use hawser_tls::{Subject, UndatedClients, certificates, provider};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKey, PublicKeyData, SerialNumber,
};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use time::macros::datetime;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, X509Certificate};

const CERTIFICATE_FILE: &str = "authority.pem";
const KEY_FILE: &str = "authority.key";

/// The validity of the authority, ten years.
const AUTHORITY_DAYS: i64 = 3650;

/// A date at which this program did not exist yet: a clock before it is wrong.
const RELEASED: OffsetDateTime = datetime!(2026-11-01 0:00 UTC);

/// The validity of the server's certificate. The server replaces it long before it expires.
const SERVER_DAYS: i64 = 90;

/// The tolerated clock skew: certificates are valid from this long before they are issued.
const MAX_CLOCK_SKEW: Duration = Duration::minutes(5);

/// The minimum ratio of a certificate's lifetime to that skew. It reduces the skew of short-lived
/// certificates, so that two thirds of their validity period end well after they are issued.
const MIN_LIFE_TO_SKEW: i32 = 10;

/// The certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    /// All trusted certificates, the issuer's first.
    trusted: Vec<CertificateDer<'static>>,
    /// The same, PEM.
    pem: String,
}

/// A node's new certificate.
pub(crate) struct NodeCertificate {
    pub(crate) pem: String,
    pub(crate) issued: Issued,
    pub(crate) renew_unix_ms: u64,
}

/// A key for which a certificate is requested. Names and purposes in the request are ignored.
pub(crate) struct SigningRequest(PublicKey);

impl SigningRequest {
    /// Parses a certificate signing request (PEM) and verifies that it is signed by its own key.
    pub(crate) fn parse(csr_pem: &str) -> Result<SigningRequest, BadRequest> {
        let request = CertificateSigningRequestParams::from_pem(csr_pem)?;
        Ok(SigningRequest(request.public_key))
    }

    /// Returns the SHA-256 digest of the key (SubjectPublicKeyInfo), hexadecimal.
    pub(crate) fn key_sha256(&self) -> String {
        sha256_hex(self.0.subject_public_key_info())
    }
}

/// The node that a connection's certificate names. TLS has verified the authority's signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    pub(crate) node: Name,
    /// The serial number, hexadecimal.
    pub(crate) serial: String,
}

impl Presented {
    /// Reads a client's certificate. Returns `None` if it names no node.
    pub fn of(der: &CertificateDer<'_>) -> Option<Presented> {
        let Subject { name, serial, .. } = Subject::of(der).ok()?;
        let node = name.parse().ok()?;
        Some(Presented { node, serial })
    }
}

/// The error for a certificate signing request that is rejected.
#[derive(Debug, thiserror::Error)]
#[error("the certificate signing request cannot be used: {0}")]
pub(crate) struct BadRequest(#[from] rcgen::Error);

impl Authority {
    /// Opens the authority whose files are in `state`. Creates it at the first start.
    pub(crate) fn open(state: &Path) -> Result<Authority> {
        create_directory(state)?;
        let (certificate, key) = (state.join(CERTIFICATE_FILE), state.join(KEY_FILE));
        // The certificate is written last: while it is missing, the authority has never been used.
        if !certificate.exists() {
            let (certificate_pem, key_pem) = make()?;
            write_private(&key, &key_pem)?;
            write_private(&certificate, &certificate_pem)?;
            tracing::info!(certificate = %certificate.display(), "authority created; back up its key, all nodes depend on it");
        }
        let pem = fs::read_to_string(&certificate)
            .with_context(|| format!("cannot read {}", certificate.display()))?;
        Authority::of(&pem, &file::read_secret(&key)?).with_context(|| {
            format!(
                "{} and {} are not a valid authority",
                certificate.display(),
                key.display()
            )
        })
    }

    fn of(pem: &str, key_pem: &str) -> Result<Authority> {
        let key = KeyPair::from_pem(key_pem)?;
        let mut trusted = certificates("the authority's certificate", pem)?;
        let issuer = trusted.iter().position(|der| belongs(&key, der));
        let issuer = issuer.context("the key does not belong to any of the certificates")?;
        // Operators see the issuer first.
        trusted[..=issuer].rotate_right(1);
        let der = trusted[0].clone();
        Ok(Authority {
            issuer: Issuer::from_ca_cert_der(&der, key)?,
            pem: trusted.iter().map(pem_of).collect(),
            der,
            trusted,
        })
    }

    /// Returns the certificates to trust, the issuer's first, PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the SHA-256 digest of the issuer's certificate (DER), hexadecimal.
    pub(crate) fn digest(&self) -> String {
        sha256_hex(&self.der)
    }

    /// Returns whether the certificate with this digest is trusted.
    pub(crate) fn trusts(&self, digest: &[u8]) -> bool {
        let mut trusted = self.trusted.iter();
        trusted.any(|der| sha256_hex(der).as_bytes() == digest)
    }

    /// Issues a key and a certificate for this server. Returns them with the period after which to
    /// replace them.
    pub(crate) fn server(&self, names: &[String]) -> Result<(rustls::sign::CertifiedKey, Period)> {
        let mut params = CertificateParams::new(with_local_names(names))
            .context("`names` contains a value that is neither a host name nor an IP address")?;
        params.distinguished_name = common_name("hawser controller");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let now = OffsetDateTime::now_utc();
        params.not_before = now - MAX_CLOCK_SKEW;
        params.not_after = now + Duration::days(SERVER_DAYS);
        let renewal = now + Duration::days(SERVER_DAYS * 2 / 3);
        let serves = Period::new(params.not_before.into(), renewal.into());
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&key)?;
        let chain = vec![certificate.der().clone(), self.der.clone()];
        Ok((rustls::sign::CertifiedKey::new(chain, key), serves))
    }

    /// Returns a verifier that accepts clients without a certificate and with one that a trusted
    /// authority has issued. [`crate::access`] compares the dates.
    pub(crate) fn verifier(&self) -> Result<Arc<dyn ClientCertVerifier>> {
        let roots = Arc::new(self.roots()?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
        let verifier = verifier.allow_unauthenticated().build()?;
        Ok(UndatedClients::of(verifier))
    }

    /// Returns the trusted authorities.
    pub(crate) fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in &self.trusted {
            roots.add(certificate.clone())?;
        }
        Ok(roots)
    }

    /// Returns the trusted authorities as operators see them, the one that issues certificates first.
    pub(crate) fn authorities(&self) -> Vec<TrustedAuthority> {
        let authority = |(index, der): (usize, &CertificateDer<'_>)| TrustedAuthority {
            sha256: sha256_hex(der),
            issues: index == 0,
            expires_unix_ms: expires_unix_ms(der),
        };
        self.trusted.iter().enumerate().map(authority).collect()
    }

    /// Issues a certificate for the key of a request, with the node's name.
    pub(crate) fn sign(
        &self,
        request: &SigningRequest,
        node: &Name,
        life: std::time::Duration,
    ) -> Result<NodeCertificate, BadRequest> {
        let serial = new_serial();
        let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        let life = Duration::try_from(life).unwrap_or(Duration::MAX);
        let params = node_params(node, &serial, life);
        let certificate = params.signed_by(&request.0, &self.issuer)?;
        let issued = Issued {
            serial: hex::encode(serial),
            expires_unix_ms: unix_ms() + life_ms,
            run_time_s: None,
        };
        Ok(NodeCertificate {
            pem: certificate.pem(),
            issued,
            renew_unix_ms: unix_ms() + life_ms * 2 / 3,
        })
    }
}

/// Returns whether a certificate is for that key.
fn belongs(key: &KeyPair, der: &CertificateDer<'_>) -> bool {
    let parsed = X509Certificate::from_der(der);
    parsed.is_ok_and(|(_, parsed)| {
        parsed.public_key().subject_public_key.data.as_ref() == key.public_key_raw()
    })
}

/// Returns when a certificate expires, milliseconds since 1970.
fn expires_unix_ms(der: &CertificateDer<'_>) -> u64 {
    let parsed = X509Certificate::from_der(der);
    let seconds = parsed.map_or(0, |(_, parsed)| parsed.validity().not_after.timestamp());
    u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
}

/// Returns a certificate as PEM.
fn pem_of(der: &CertificateDer<'_>) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der.as_ref()), config)
}

fn create_directory(state: &Path) -> Result<()> {
    file::create_folder(state, 0o700).with_context(|| {
        format!(
            "cannot create {} (set by `state` in the configuration)",
            state.display()
        )
    })
}

/// Atomically writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, text: &str) -> Result<()> {
    file::replace_durably(path, text.as_bytes(), 0o600)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the names of a server's certificate, which always include those of the own host.
fn with_local_names(names: &[String]) -> Vec<String> {
    let mut all = ["localhost", "127.0.0.1", "::1"]
        .map(str::to_owned)
        .to_vec();
    let others = names.iter().filter(|name| !all.contains(name));
    let others: Vec<String> = others.cloned().collect();
    all.extend(others);
    all
}

fn new_serial() -> [u8; 16] {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("every Linux has random bytes");
    // The serial number is positive and has no leading zero byte, which would be dropped.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    bytes
}

fn node_params(node: &Name, serial: &[u8], life: Duration) -> CertificateParams {
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(node.as_str());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    params.serial_number = Some(SerialNumber::from_slice(serial));
    params.not_before = now - MAX_CLOCK_SKEW.min(life / MIN_LIFE_TO_SKEW);
    params.not_after = now + life;
    params
}

fn make() -> Result<(String, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(hawser_tls::AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Nodes trust it whenever it was made: at the first start of a machine without a battery, the
    // clock may show any date.
    params.not_before = OffsetDateTime::UNIX_EPOCH;
    params.not_after = OffsetDateTime::now_utc().max(RELEASED) + Duration::days(AUTHORITY_DAYS);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::pem::PemObject;

    const LIFE: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

    fn request() -> String {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::new(vec!["another".to_owned()]).unwrap();
        params.distinguished_name = common_name("another");
        params.serialize_request(&key).unwrap().pem().unwrap()
    }

    fn authority() -> Authority {
        let (certificate, key) = make().unwrap();
        Authority::of(&certificate, &key).unwrap()
    }

    #[test]
    fn a_certificate_has_the_tokens_name() {
        let node: Name = "edge-1".parse().unwrap();
        let certificate = authority()
            .sign(&SigningRequest::parse(&request()).unwrap(), &node, LIFE)
            .unwrap();
        let der = CertificateDer::from_pem_slice(certificate.pem.as_bytes()).unwrap();
        assert_eq!(
            Presented::of(&der),
            Some(Presented {
                node,
                serial: certificate.issued.serial
            })
        );
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        assert!(parsed.subject_alternative_name().unwrap().is_none());
        assert!(!parsed.is_ca());
    }

    #[test]
    fn a_request_without_a_valid_signature_is_rejected() {
        let authority = authority();
        let good = request();
        // The last characters belong to the signature.
        let place = good.find("-----END").unwrap() - 12;
        let other = if good.as_bytes()[place] == b'A' {
            "B"
        } else {
            "A"
        };
        let forged = format!("{}{other}{}", &good[..place], &good[place + 1..]);
        for text in ["", authority.pem(), &forged] {
            assert!(SigningRequest::parse(text).is_err(), "{text}");
        }
    }
}
