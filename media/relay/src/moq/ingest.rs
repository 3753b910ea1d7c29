//! A broadcast that is received over Media over QUIC. The relay receives it as from a publisher, which has
//! an address of the loopback interface.

use super::read;
use crate::config::{BroadcastConfig, FromMoq, MoqSource, MoqTrust, Upstream};
use crate::status::{MoqSourceStatus, counts};
use anyhow::{Context, Result};
use hawser_io::file::{read_secret, read_tls_key};
use hawser_moq::{
    Config, Ingest, IngestConfig, IngestSource, ServerStats, SourceUrl, Token, Trust,
};
use hawser_objects::{AccessSecret, Seed};
use hawser_tls::{Identity, authorities, system_authorities};
use std::net::SocketAddr;

/// The part of a relay that receives a broadcast over MoQ.
pub(crate) struct MoqIngest {
    ingest: Ingest,
    name: String,
    url: Option<String>,
}

impl MoqIngest {
    /// Begins to receive a broadcast over MoQ. `hop_salt` and `seed` are random.
    ///
    /// # Errors
    /// If a file cannot be read, or an address is not free.
    pub(crate) fn open(
        of: &BroadcastConfig,
        access: AccessSecret,
        hop_salt: [u8; 16],
        seed: Seed,
    ) -> Result<Option<Self>> {
        let Upstream::Moq(from) = &of.upstream else {
            return Ok(None);
        };
        let source = source(from).with_context(|| format!("MoQ of broadcast {}", of.name))?;
        let url = match &source {
            IngestSource::Server { url, .. } => Some(url.to_string()),
            IngestSource::Publisher(_) => None,
        };
        let ingest = Ingest::open(IngestConfig {
            from: source,
            access,
            hop_salt,
            seed,
        })?;
        match (&url, ingest.listens_at()) {
            (_, Some(listen)) => tracing::info!(
                broadcast = of.name, %listen, name = from.name,
                certificate = ingest.fingerprint(), "waiting for MoQ publishers"
            ),
            (url, None) => tracing::info!(
                broadcast = of.name,
                url,
                name = from.name,
                "the broadcast is taken over MoQ"
            ),
        }
        Ok(Some(MoqIngest {
            ingest,
            name: from.name.clone(),
            url,
        }))
    }

    /// Returns the address at which the relay reaches it as a publisher.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.ingest.address()
    }

    /// Replaces the secret.
    pub(crate) fn set_access(&self, access: AccessSecret) {
        self.ingest.set_access(access);
    }

    pub(crate) fn status(&self) -> MoqSourceStatus {
        let stats = self.ingest.stats();
        let server: ServerStats = self.ingest.server_stats().unwrap_or_default();
        MoqSourceStatus {
            name: self.name.clone(),
            url: self.url.clone(),
            listen: self.ingest.listens_at(),
            certificate_sha256: self.ingest.fingerprint(),
            is_connected: stats.is_connected,
            is_announced: stats.is_announced,
            failures: stats.failures,
            objects: stats.objects,
            packets: stats.packets,
            lost_packets: stats.lost_packets,
            objects_dropped: counts([
                ("full", stats.full),
                ("incomplete", stats.incomplete),
                ("invalid", stats.invalid),
                ("late", stats.late),
                ("stale", stats.stale),
                ("too_long", stats.too_long),
                ("too_many", stats.too_many),
                ("wrong_track", stats.wrong_track),
            ]),
            catalogs_refused: counts([
                ("forged", stats.catalog_forged),
                ("invalid", stats.catalog_invalid),
                ("too_long", stats.catalog_too_long),
            ]),
            refused: counts([
                ("datagram", stats.refused_datagrams),
                ("failed", server.failed),
                ("full", server.full),
                ("handshakes", server.handshakes),
                ("unauthorised", server.unauthorised),
                ("wrong_path", server.wrong_path),
            ]),
        }
    }
}

/// The maximum number of connections of publishers: that of a restarted one, and its previous one.
const PUBLISHERS: usize = 4;

/// Reads the files that the configuration names.
///
/// # Errors
/// If one of them cannot be read or used.
pub(crate) fn source(from: &FromMoq) -> Result<IngestSource> {
    let token = from.token.as_ref().map(|file| -> Result<(String, Token)> {
        let text = read_secret(file)?.trim().to_owned();
        let token = text.parse().with_context(|| file.display().to_string())?;
        Ok((text, token))
    });
    let token = token.transpose()?;
    Ok(match &from.source {
        MoqSource::Server { url, trust } => {
            let url: SourceUrl = url.0.parse()?;
            let trust = match trust {
                MoqTrust::System => Trust::Authorities(system_authorities()?),
                MoqTrust::Authorities(file) => {
                    let roots = authorities(&read(file)?);
                    Trust::Authorities(roots.with_context(|| file.display().to_string())?)
                }
                MoqTrust::Certificate(digest) => Trust::Certificate(*digest),
            };
            IngestSource::Server {
                url: match &token {
                    Some((text, _)) => url.with_token(text),
                    None => url,
                },
                name: from.name.clone(),
                trust,
            }
        }
        MoqSource::Publishers { listen, identity } => {
            let identity = identity.as_ref().map(|[chain, key]| -> Result<Identity> {
                let files = || format!("{} and {}", chain.display(), key.display());
                Identity::from_pem(&read(chain)?, &read_tls_key(key)?).with_context(files)
            });
            IngestSource::Publisher(Config {
                identity: identity.transpose()?,
                token: token.map(|(_, token)| token),
                sessions: PUBLISHERS,
                ..Config::new(*listen, &from.name)
            })
        }
    })
}
