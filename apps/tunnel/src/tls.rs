//! Who the ends are: certificates from files, or those that a controller gave to its nodes.

use crate::config::Credentials;
use crate::join::PROTOCOL;
use anyhow::{Context, Result, anyhow};
use hawser_quic::tls::{self, Identity};
use noq::Connection;
use noq::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// TLS of a client that shows its certificate and trusts servers of its authority.
pub(crate) fn client(credentials: &Credentials) -> Result<Arc<QuicClientConfig>> {
    let (authorities, identity) = load(credentials)?;
    Ok(tls::client(authorities, &identity, PROTOCOL)?)
}

/// TLS of a server that shows its certificate and lets in clients of its authority.
pub(crate) fn server(credentials: &Credentials) -> Result<Arc<QuicServerConfig>> {
    let (authorities, identity) = load(credentials)?;
    Ok(tls::server(authorities, &identity, PROTOCOL)?)
}

fn load(credentials: &Credentials) -> Result<(Arc<RootCertStore>, Identity)> {
    let read = |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    match credentials {
        Credentials::Files { authority, certificate, key } => {
            let authorities = tls::authorities(&read(authority)?)
                .with_context(|| format!("{} cannot be used", authority.display()))?;
            let identity = Identity::from_pem(&read(certificate)?, &read(key)?)
                .with_context(|| format!("{} or {} cannot be used", certificate.display(), key.display()))?;
            Ok((authorities, identity))
        }
        Credentials::Node(_) => anyhow::bail!("node certificates"),
    }
}

/// The name of the other end: the common name of its certificate.
pub(crate) fn peer_name(connection: &Connection) -> Result<String> {
    let chain = connection.peer_identity().context("the other end showed no certificate")?;
    let chain = chain.downcast::<Vec<CertificateDer<'static>>>().map_err(|_| anyhow!("a certificate of another kind"))?;
    let first = chain.first().context("the other end showed no certificate")?;
    let (_, certificate) = X509Certificate::from_der(first).context("the other end's certificate")?;
    let name = certificate.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    Ok(name.context("the other end's certificate names nobody: it has no common name")?.to_owned())
}
