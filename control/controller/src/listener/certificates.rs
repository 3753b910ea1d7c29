//! The certificates of the server: the one of its own authority, and one from outside for browsers.

use crate::config::TlsConfig;
use anyhow::{Context, Result};
use hawser_io::file::read_text;
use hawser_tls::Identity;
use parking_lot::RwLock;
use rustls::client::verify_server_name;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, RootCertStore};
use std::sync::Arc;

/// The certificates, which can be replaced at run time.
#[derive(Debug)]
pub(super) struct Certificates {
    own: RwLock<Arc<CertifiedKey>>,
    /// The names of the trusted authorities, by which clients ask for the own certificate.
    authorities: Vec<Vec<u8>>,
    outside: RwLock<Option<Arc<CertifiedKey>>>,
}

impl Certificates {
    pub(super) fn new(own: CertifiedKey, trusted: &RootCertStore) -> Self {
        Certificates {
            own: RwLock::new(Arc::new(own)),
            authorities: trusted.subjects().iter().map(encoded).collect(),
            outside: RwLock::default(),
        }
    }

    pub(super) fn set_own(&self, own: CertifiedKey) {
        *self.own.write() = Arc::new(own);
    }

    pub(super) fn set_outside(&self, outside: CertifiedKey) {
        *self.outside.write() = Some(Arc::new(outside));
    }

    /// Returns the certificate from outside for a client that asks for one of its names, unless the
    /// client names an authority of this controller as one that it trusts.
    fn outside_for(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let outside = self.outside.read().clone()?;
        let named = hello.certificate_authorities().unwrap_or_default();
        if named
            .iter()
            .any(|name| self.authorities.contains(&encoded(name)))
        {
            return None;
        }
        let name = ServerName::try_from(hello.server_name()?).ok()?;
        let certificate = ParsedCertificate::try_from(outside.cert.first()?).ok()?;
        verify_server_name(&certificate, &name).ok()?;
        Some(outside)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let outside = self.outside_for(&hello);
        Some(outside.unwrap_or_else(|| self.own.read().clone()))
    }
}

fn encoded(name: &DistinguishedName) -> Vec<u8> {
    name.as_ref().to_vec()
}

/// The files of the certificate from outside, as last read.
pub(super) struct OutsideFiles {
    config: TlsConfig,
    read: Option<[String; 2]>,
}

impl OutsideFiles {
    pub(super) fn new(config: TlsConfig) -> Self {
        OutsideFiles { config, read: None }
    }

    /// Reads the files. Returns `None` if they have not changed since the last call.
    ///
    /// # Errors
    /// If a file cannot be read, or certificate and key cannot be used together.
    pub(super) fn read(&mut self) -> Result<Option<CertifiedKey>> {
        let TlsConfig { certificate, key } = &self.config;
        let read = |file: &std::path::Path| {
            read_text(file).with_context(|| format!("cannot read {}", file.display()))
        };
        let texts = [read(certificate)?, read(key)?];
        if self.read.as_ref() == Some(&texts) {
            return Ok(None);
        }
        let [chain, private] = self.read.insert(texts);
        let usable = || -> Result<CertifiedKey> {
            let identity = Identity::from_pem(chain, private)?;
            let key = any_supported_type(&identity.key())?;
            let certified = CertifiedKey::new(identity.chain(), key);
            certified.keys_match()?;
            Ok(certified)
        };
        let usable = usable().with_context(|| {
            let files = [certificate, key].map(|file| file.display().to_string());
            format!("{} cannot be used for TLS", files.join(" and "))
        })?;
        Ok(Some(usable))
    }
}
