use crate::error::Error;
use crate::identity::Identity;
use hawser_tls::{ServerVerifier, authorities, certificates, digest, provider};
use rustls::client::Resumption;
use rustls::{ClientConfig, version};

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
    let verifier = ServerVerifier::trusting(authorities(authority_pem)?)?;
    let builder = builder()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match proof {
        Proof::None => builder.with_no_client_auth(),
        Proof::Certificate(identity) => {
            let identity =
                hawser_tls::Identity::from_pem(&identity.certificate_pem, &identity.key_pem)?;
            builder
                .with_client_auth_cert(identity.chain(), identity.key())
                .map_err(hawser_tls::Error::from)?
        }
    };
    Ok(with_common_options(config))
}

/// Trusts only the authority whose certificate has this SHA-256 digest. The controller must present
/// it along with its own certificate.
pub(crate) fn pinning(authority_digest: [u8; 32]) -> Result<ClientConfig, Error> {
    Ok(with_common_options(
        builder()?
            .dangerous()
            .with_custom_certificate_verifier(ServerVerifier::pinned(authority_digest))
            .with_no_client_auth(),
    ))
}

/// Returns whether a PEM text has a certificate with this SHA-256 digest.
pub(crate) fn has_digest(pem: &str, wanted: [u8; 32]) -> Result<bool, Error> {
    let certificates = certificates("the authority's certificate", pem)?;
    Ok(certificates.iter().any(|der| digest(der) == wanted))
}

fn builder() -> Result<rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier>, Error> {
    let builder = ClientConfig::builder_with_provider(provider());
    let versions = builder.with_protocol_versions(&[&version::TLS13, &version::TLS12]);
    Ok(versions.map_err(hawser_tls::Error::from)?)
}

fn with_common_options(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    config
}
