//! TLS 1.3 with certificates on both sides, for QUIC and for TCP.

pub use hawser_tls::{Error as TlsError, Identity, authorities};

use hawser_tls::provider;
use noq_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ClientConfig, Resumption, WantsClientCert};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use rustls::{ConfigBuilder, RootCertStore, WantsVerifier, version};
use std::sync::Arc;

/// Creates a QUIC client that presents `identity` and trusts servers of `authorities`.
///
/// # Errors
/// If certificate and key do not match.
pub fn client(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicClientConfig>, TlsError> {
    client_config(authorities, identity, protocol).map(quic_client)
}

/// As [`client`], for TCP.
///
/// # Errors
/// As those of [`client`].
pub fn client_config(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let verified = client_builder()?.with_root_certificates(authorities);
    identified(verified, identity, protocol)
}

/// Creates a client, for TCP, that presents `identity` and trusts the servers that `verifier`
/// accepts.
///
/// # Errors
/// If certificate and key do not match.
pub fn client_config_verifying(
    verifier: Arc<dyn ServerCertVerifier>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let verified = client_builder()?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    identified(verified, identity, protocol)
}

/// Returns the configuration for QUIC of a client.
pub fn quic_client(config: ClientConfig) -> Arc<QuicClientConfig> {
    let config = QuicClientConfig::try_from(config)
        .expect("the provider has the suite of QUIC's first packets");
    Arc::new(config)
}

fn client_builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, TlsError> {
    Ok(ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?)
}

fn identified(
    verified: ConfigBuilder<ClientConfig, WantsClientCert>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let mut config = verified.with_client_auth_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Creates a QUIC server that presents `identity` and admits clients of `authorities`. It issues no
/// session tickets: a tunnel's connections are few and long, and each must authenticate again.
///
/// # Errors
/// If certificate and key do not match, or there are no authorities.
pub fn server(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<Arc<QuicServerConfig>, TlsError> {
    server_config(authorities, identity, protocol).map(quic_server)
}

/// Returns the configuration for QUIC of a server.
pub fn quic_server(config: ServerConfig) -> Arc<QuicServerConfig> {
    let config = QuicServerConfig::try_from(config)
        .expect("the provider has the suite of QUIC's first packets");
    Arc::new(config)
}

/// As [`server`], for TCP.
///
/// # Errors
/// As those of [`server`].
pub fn server_config(
    authorities: Arc<RootCertStore>,
    identity: &Identity,
    protocol: &[u8],
) -> Result<ServerConfig, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider())
        .build()
        .map_err(|error| TlsError::Authority(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.send_tls13_tickets = 0;
    Ok(config)
}
