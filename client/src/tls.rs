use crate::error::Error;
use crate::identity::Identity;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme, version,
};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Number of sessions cached for resumption: a few for each controller.
const SESSIONS: usize = 16;

/// How the client authenticates itself.
pub(crate) enum Proof<'a> {
    /// No authentication by TLS.
    None,
    /// With a node's certificate.
    Certificate(&'a Identity),
}

/// Trusts only certificates signed by the authority (PEM, one certificate or several).
pub(crate) fn trusting(authority_pem: &str, proof: Proof<'_>) -> Result<ClientConfig, Error> {
    let unusable = |reason: String| credentials("the authority's certificate", reason);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority_pem.as_bytes()) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| unusable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unusable("the file contains no certificate".to_owned()));
    }
    let builder = builder()?.with_root_certificates(roots);
    let config = match proof {
        Proof::None => builder.with_no_client_auth(),
        Proof::Certificate(identity) => {
            let unusable = |reason: String| credentials("the node's certificate or key", reason);
            let chain = CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes())
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| unusable(error.to_string()))?;
            let key = PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes())
                .map_err(|error| unusable(error.to_string()))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable(error.to_string()))?
        }
    };
    Ok(with_common_options(config))
}

/// Trusts only the authority whose certificate has this SHA-256 digest. The controller must present
/// it along with its own certificate.
pub(crate) fn pinning(authority_digest: [u8; 32]) -> Result<ClientConfig, Error> {
    let verifier = Arc::new(Pinned {
        authority_digest,
        provider: provider(),
    });
    Ok(with_common_options(
        builder()?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth(),
    ))
}

/// Returns SHA-256 of the first certificate in a PEM text.
pub(crate) fn digest_of_pem(pem: &str) -> Result<[u8; 32], Error> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| credentials("the authority's certificate", error.to_string()))?;
    Ok(Sha256::digest(&certificate).into())
}

pub(crate) fn credentials(what: &str, reason: String) -> Error {
    Error::Credentials {
        what: what.to_owned(),
        reason,
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .map_err(|error| credentials("TLS", error.to_string()))
}

fn with_common_options(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    config
}

/// Accepts a server whose chain contains the pinned authority and is signed by it.
#[derive(Debug)]
struct Pinned {
    authority_digest: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let is_pinned = |presented: &&CertificateDer<'_>| {
            Sha256::digest(presented)[..] == self.authority_digest
        };
        let authority =
            intermediates
                .iter()
                .find(is_pinned)
                .ok_or(rustls::Error::InvalidCertificate(
                    CertificateError::UnknownIssuer,
                ))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .build()
            .map_err(|error| rustls::Error::General(error.to_string()))?
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
