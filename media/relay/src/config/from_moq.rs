//! A broadcast that is received over Media over QUIC.

use hawser_io::config::{ConfigError, Source};
use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// The source of a broadcast that is received over Media over QUIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FromMoq {
    /// The name of the broadcast there.
    pub name: String,
    /// The file with the token: that the relay presents, or that publishers present.
    pub token: Option<PathBuf>,
    /// A server, or publishers that connect.
    pub source: MoqSource,
}

/// A server of Media over QUIC that has a broadcast, or publishers that connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoqSource {
    /// A server.
    Server {
        /// Its URL.
        url: SecretUrl,
        /// How its certificate is verified.
        trust: MoqTrust,
    },
    /// Publishers.
    Publishers {
        /// The address at which they connect.
        listen: SocketAddr,
        /// The files with the certificate and its key, PEM; `None`: one that the relay makes.
        identity: Option<[PathBuf; 2]>,
    },
}

/// How the certificate of a server is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoqTrust {
    /// By the authorities that the system trusts.
    System,
    /// By the authorities of a PEM file.
    Authorities(PathBuf),
    /// It has this SHA-256 digest.
    Certificate([u8; 32]),
}

/// A URL whose query may have a token, which is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(pub String);

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.split(['?', '#']).next().unwrap_or_default();
        write!(f, "SecretUrl({shown})")
    }
}

/// Instead of `upstream`: the broadcast comes over Media over QUIC.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    /// `https://HOST:PORT` (WebTransport) or `moqt://HOST:PORT` (QUIC) of a server that has the broadcast,
    /// with path and query if it wants them.
    url: Option<Spanned<String>>,
    /// The PEM file with the authorities that may sign the server's certificate. Default: those of the
    /// system.
    authorities: Option<Spanned<PathBuf>>,
    /// Instead of `authorities`: the fingerprint of the server's certificate.
    certificate_sha256: Option<Spanned<String>>,
    /// Instead of `url`: the address and port at which publishers connect (QUIC, UDP). Any other than a
    /// loopback address needs a `token`.
    pub(super) listen: Option<Spanned<SocketAddr>>,
    /// With `listen`: as in `[broadcast.moq]`.
    certificate: Option<Spanned<PathBuf>>,
    /// With `listen`: as in `[broadcast.moq]`.
    certificate_key: Option<Spanned<PathBuf>>,
    /// The name of the broadcast at the server, or of what publishers publish. Default: that of the
    /// broadcast.
    name: Option<Spanned<String>>,
    /// The file with the token that the relay adds to the query of `url`, or that publishers present.
    token: Option<PathBuf>,
}

impl Table {
    pub(super) fn parsed(
        spanned: Spanned<Self>,
        broadcast: &str,
        source: &Source<'_>,
    ) -> Result<FromMoq, ConfigError> {
        if !cfg!(feature = "moq") {
            return Err(source.wrong(&spanned, "this program was built without MoQ"));
        }
        let file = spanned.get_ref();
        let from = match (&file.url, &file.listen) {
            (Some(url), None) => file.server(url, source)?,
            (None, Some(listen)) => file.publishers(listen, source)?,
            _ => {
                let message =
                    "either url (of a server that has the broadcast) or listen (for publishers)";
                return Err(source.wrong(&spanned, message));
            }
        };
        let name = match &file.name {
            Some(name) => {
                // Servers of others have paths.
                let is_right = name.get_ref().split('/').all(|part| !part.is_empty());
                if !is_right {
                    return Err(source.wrong(name, "a name has no empty parts between slashes"));
                }
                name.get_ref().clone()
            }
            None => broadcast.to_owned(),
        };
        let token = file.token.as_ref();
        Ok(FromMoq {
            name,
            token: token.map(|token| source.directory().join(token)),
            source: from,
        })
    }

    fn server(&self, url: &Spanned<String>, source: &Source<'_>) -> Result<MoqSource, ConfigError> {
        if let Some(file) = self.certificate.as_ref().or(self.certificate_key.as_ref()) {
            let message =
                "belongs to listen; a server is verified by authorities or certificate_sha256";
            return Err(source.wrong(file, message));
        }
        check_url(url.get_ref()).map_err(|message| source.wrong(url, message))?;
        let trust = match (&self.authorities, &self.certificate_sha256) {
            (None, None) => MoqTrust::System,
            (Some(file), None) => MoqTrust::Authorities(source.directory().join(file.get_ref())),
            (None, Some(text)) => {
                let mut digest = [0; 32];
                hex::decode_to_slice(text.get_ref(), &mut digest)
                    .map_err(|_| source.wrong(text, "a fingerprint has 64 hexadecimal digits"))?;
                MoqTrust::Certificate(digest)
            }
            (Some(_), Some(text)) => {
                let message = "a server is verified either by authorities or by certificate_sha256";
                return Err(source.wrong(text, message));
            }
        };
        Ok(MoqSource::Server {
            url: SecretUrl(url.get_ref().clone()),
            trust,
        })
    }

    fn publishers(
        &self,
        listen: &Spanned<SocketAddr>,
        source: &Source<'_>,
    ) -> Result<MoqSource, ConfigError> {
        if let Some(file) = &self.authorities {
            return Err(source.wrong(file, "belongs to url: publishers have a token"));
        }
        if let Some(text) = &self.certificate_sha256 {
            return Err(source.wrong(text, "belongs to url: publishers have a token"));
        }
        if !listen.get_ref().ip().is_loopback() && self.token.is_none() {
            let message = "publishers of other machines need a token: name its file with token";
            return Err(source.wrong(listen, message));
        }
        let identity = match (&self.certificate, &self.certificate_key) {
            (Some(chain), Some(key)) => {
                Some([chain, key].map(|file| source.directory().join(file.get_ref())))
            }
            (None, None) => None,
            (Some(file), None) | (None, Some(file)) => {
                let message = "certificate and certificate_key belong together";
                return Err(source.wrong(file, message));
            }
        };
        Ok(MoqSource::Publishers {
            listen: *listen.get_ref(),
            identity,
        })
    }
}

#[cfg(feature = "moq")]
fn check_url(url: &str) -> Result<(), String> {
    let url: Result<hawser_moq::SourceUrl, _> = url.parse();
    url.map(drop).map_err(|error| error.to_string())
}

/// The program has no MoQ, and the configuration was refused before.
#[cfg(not(feature = "moq"))]
fn check_url(_: &str) -> Result<(), String> {
    Ok(())
}
