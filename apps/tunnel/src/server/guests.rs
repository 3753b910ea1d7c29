//! Whom a controller lets in, and what it is told of this server.

use super::Server;
use crate::config::{Credentials, Listed};
use crate::join::CloseCode;
use crate::tls::Peer;
use anyhow::{Context, Result, bail};
use hawser_client::{Identity, NodeClient};
use hawser_control::tunnel::{Admitted, Client, ServerReport};
use hawser_io::file;
use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// How long a client waits for the controller to be asked about it.
const ASKING: Duration = Duration::from_secs(2);

/// How often the controller is told, until it says how often it wants to be, and at most.
const REPORT_EVERY: Duration = Duration::from_secs(5);
const LEAST_PAUSE: Duration = Duration::from_millis(500);

/// The clients that the controller lets in.
pub(crate) struct Guests {
    known: watch::Sender<Known>,
    /// Somebody came who is not known.
    stranger: Notify,
}

#[derive(Default)]
struct Known {
    digest: Option<String>,
    clients: HashMap<String, Client>,
}

impl Known {
    fn of(admitted: Vec<Client>, digest: Option<String>) -> Known {
        let clients = admitted
            .into_iter()
            .map(|client| (client.name.to_string(), client))
            .collect();
        Known { digest, clients }
    }

    fn admits(&self, peer: &Peer) -> bool {
        self.clients
            .get(&peer.name)
            .is_some_and(|client| client.certificates.contains(&peer.serial))
    }
}

impl Guests {
    /// Those whom an earlier process knew, until the controller answers.
    pub(crate) fn read(listed: &Listed) -> Result<Guests> {
        let file = &listed.clients_file;
        let clients: Vec<Client> = match fs::read(file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} does not say whom the controller lets in",
                    file.display()
                )
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        Ok(Guests {
            known: watch::Sender::new(Known::of(clients, None)),
            stranger: Notify::new(),
        })
    }

    /// Whether the client's certificate is in force, as far as is known.
    pub(super) fn knows(&self, peer: &Peer) -> bool {
        self.known.borrow().admits(peer)
    }

    /// Whether the client is let in. Who is not known may have been enrolled, or have got another certificate, since the
    /// controller was last asked.
    pub(super) async fn admits(&self, peer: &Peer) -> bool {
        let mut known = self.known.subscribe();
        if known.borrow_and_update().admits(peer) {
            return true;
        }
        self.stranger.notify_one();
        matches!(
            timeout(ASKING, known.wait_for(|known| known.admits(peer))).await,
            Ok(Ok(_))
        )
    }
}

/// Tells the controller of this server, again and again, and does what it says.
pub(super) async fn keep_listed(server: Arc<Server>, guests: Arc<Guests>, listed: Listed) {
    let mut draining = server.draining.subscribe();
    let mut client = None;
    let mut fails = false;
    server.follow(&guests);
    loop {
        let pause = match report(&server, &guests, &listed, &mut client).await {
            Ok(pause) => {
                if std::mem::replace(&mut fails, false) {
                    info!("the controller answers again");
                }
                pause
            }
            Err(error) => {
                // Another certificate may help, or another connection.
                client = None;
                if !std::mem::replace(&mut fails, true) {
                    warn!(
                        "the controller is not told of this server; those it let in last are let in: {error:#}"
                    );
                }
                REPORT_EVERY
            }
        };
        sleep(LEAST_PAUSE).await;
        tokio::select! {
            () = sleep(pause.saturating_sub(LEAST_PAUSE)) => {}
            () = guests.stranger.notified() => {}
            Ok(()) = draining.changed() => {}
        }
    }
}

/// Says how the server is; returns how long to wait until the next time.
async fn report(
    server: &Server,
    guests: &Guests,
    listed: &Listed,
    client: &mut Option<NodeClient>,
) -> Result<Duration> {
    let client = match client {
        Some(client) => client,
        None => client.insert(node_client(
            &server.config.common.credentials,
            &listed.controllers,
        )?),
    };
    let count = |clients: usize| u32::try_from(clients).unwrap_or(u32::MAX);
    let report = ServerReport {
        addresses: listed.addresses.clone(),
        clients: count(server.registry.count()),
        most_clients: count(server.config.most_clients),
        draining: *server.draining.borrow(),
        known: guests.known.borrow().digest.clone(),
    };
    let Admitted {
        report_every_ms,
        digest,
        clients,
    } = client.serve_tunnels(&report).await?;
    if let Some(clients) = clients {
        info!(
            clients = clients.len(),
            "the controller says whom to let in"
        );
        if let Err(error) = keep(&listed.clients_file, &clients) {
            warn!("whom the controller lets in will be forgotten: {error:#}");
        }
        guests.known.send_replace(Known::of(clients, Some(digest)));
        server.follow(guests);
    }
    Ok(Duration::from_millis(report_every_ms.into()))
}

/// What a node asks a controller with.
pub(crate) fn node_client(
    credentials: &Credentials,
    controllers: &[hawser_client::Controller],
) -> Result<NodeClient> {
    let Credentials::Node(folder) = credentials else {
        bail!("a controller knows enrolled nodes only")
    };
    Ok(NodeClient::new(controllers, &Identity::load(folder)?)?)
}

fn keep(path: &Path, clients: &[Client]) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    file::replace(path, &serde_json::to_vec(clients)?, 0o600)
        .with_context(|| format!("cannot write {}", path.display()))
}

impl Server {
    /// Gives clients the addresses that the controller gave them, ends sessions of those whom it does not let in any more,
    /// and closes connections whose certificates are not in force any more; a client with another one may join again.
    fn follow(&self, guests: &Guests) {
        let known = guests.known.borrow();
        self.registry.assign(known.clients.values());
        // Nothing is known yet of anybody.
        if known.digest.is_none() && known.clients.is_empty() {
            return;
        }
        for open in self.registry.sessions() {
            if !known.clients.contains_key(&open.client) {
                warn!(
                    client = open.client,
                    "the controller does not let it in any more"
                );
                open.handle.stop(CloseCode::Refused);
                continue;
            }
            let closed = open.close_unless(|peer| known.admits(peer));
            if closed > 0 {
                warn!(
                    client = open.client,
                    closed, "a certificate is not in force any more"
                );
            }
        }
    }
}
