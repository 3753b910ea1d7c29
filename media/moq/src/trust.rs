use rustls::RootCertStore;
use std::fmt;
use std::sync::Arc;

/// How the certificate of a server is verified.
#[derive(Clone)]
pub enum Trust {
    /// It is one of the host of the URL, signed by one of these authorities.
    Authorities(Arc<RootCertStore>),
    /// It has this SHA-256 digest.
    Certificate([u8; 32]),
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trust::Authorities(roots) => write!(f, "Authorities({})", roots.len()),
            Trust::Certificate(digest) => write!(f, "Certificate({})", hex::encode(digest)),
        }
    }
}
