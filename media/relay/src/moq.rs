//! A broadcast over Media over QUIC, beside the relay's own viewers.

mod ingest;

pub(crate) use ingest::{MoqIngest, source};

use crate::config::{BroadcastConfig, MoqConfig};
use crate::status::{MoqStatus, counts};
use anyhow::{Context, Result};
use hawser_audience::{Broadcast, WholeObjects};
use hawser_io::file::{read_secret, read_text, read_tls_key};
use hawser_moq::{Config, Contents, Egress, Server, Token};
use hawser_page::Page;
use hawser_tls::Identity;
use std::net::SocketAddr;
use std::path::Path;

/// The server of a broadcast, and the objects that it is given.
pub(crate) struct Moq {
    server: Server,
    egress: Egress,
    whole: WholeObjects,
    name: String,
}

impl Moq {
    /// Opens the server of a broadcast, if the configuration has one.
    ///
    /// # Errors
    /// If a file cannot be read, or the address is not free.
    pub(crate) fn open(of: &BroadcastConfig) -> Result<Option<Self>> {
        let Some(moq) = &of.moq else {
            return Ok(None);
        };
        let config = config(of, moq).with_context(|| format!("MoQ of broadcast {}", of.name))?;
        let (server, egress) = Server::open(config)?;
        tracing::info!(
            broadcast = of.name, listen = %server.local_address(), name = moq.name,
            certificate = server.fingerprint(), "MoQ clients are served"
        );
        Ok(Some(Moq {
            server,
            egress,
            whole: WholeObjects::default(),
            name: moq.name.clone(),
        }))
    }

    /// Sends clients the objects that the relay has received.
    pub(crate) fn take(&mut self, broadcast: &Broadcast) {
        let objects = self.whole.take(broadcast);
        if !objects.is_empty() {
            // Another incarnation reuses the names of objects.
            self.announce(broadcast);
        }
        for object in objects {
            self.egress.publish(&object);
        }
    }

    /// Sends clients the publisher's announcement, if it has changed.
    pub(crate) fn announce(&mut self, broadcast: &Broadcast) {
        if let Some(announced) = broadcast.announced() {
            let contents = Contents {
                announced: announced.to_vec(),
                epochs: broadcast.epochs().to_vec(),
                relays: broadcast.relays(),
            };
            self.egress.announce(&contents, broadcast.access());
        }
    }

    pub(crate) fn status(&self) -> MoqStatus {
        let server = self.server.stats();
        let egress = self.egress.stats();
        MoqStatus {
            listen: self.server.local_address(),
            name: self.name.clone(),
            certificate_sha256: self.server.fingerprint(),
            clients: server.sessions,
            objects: egress.objects,
            objects_dropped: counts([
                ("incomplete", self.whole.incomplete()),
                ("late", egress.late),
                ("too_long", egress.too_long),
                ("unknown_track", egress.unknown_track),
            ]),
            cached_bytes: server.cached_bytes,
            offered_groups: server.offered_groups,
            sent_groups: server.sent_groups,
            groups_dropped: counts([("cut", server.cut_groups), ("stale", server.stale_groups)]),
            refused: counts([
                ("failed", server.failed),
                ("full", server.full),
                ("handshakes", server.handshakes),
                ("unauthorised", server.unauthorised),
                ("wrong_path", server.wrong_path),
            ]),
        }
    }
}

/// Serves the viewer's page, which shows these broadcasts.
///
/// # Errors
/// If the page is not built or the address is not free.
pub(crate) fn serve_page<'a>(
    address: SocketAddr,
    shown: impl Iterator<Item = &'a Moq>,
) -> Result<()> {
    let shown = shown.map(|moq| moq.server.entrance().clone());
    let page = Page::serve_in_thread(address, None, shown.collect()).context("web")?;
    tracing::info!(page = %format!("http://{}/#key=SECRET", page.address), "browsers of this machine are served");
    Ok(())
}

/// Reads the files that the configuration names.
///
/// # Errors
/// If one of them cannot be read or used.
pub(crate) fn config(of: &BroadcastConfig, moq: &MoqConfig) -> Result<Config> {
    let identity = match &moq.identity {
        Some([chain, key]) => {
            let identity = Identity::from_pem(&read(chain)?, &read_tls_key(key)?);
            let files = || format!("{} and {}", chain.display(), key.display());
            Some(identity.with_context(files)?)
        }
        None => None,
    };
    let token = match &moq.token {
        Some(file) => {
            let token: Result<Token, _> = read_secret(file)?.trim().parse();
            Some(token.with_context(|| file.display().to_string())?)
        }
        None => None,
    };
    Ok(Config {
        identity,
        token,
        sessions: moq.clients,
        cache_bytes: of.cache_bytes as u64,
        cache_age: of.cache,
        ..Config::new(moq.listen, &moq.name)
    })
}

fn read(file: &Path) -> Result<String> {
    read_text(file).with_context(|| format!("cannot read {}", file.display()))
}
