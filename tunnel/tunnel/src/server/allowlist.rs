//! The clients that a controller admits, and the reports of this server to it.

use super::{Server, reload_certificates};
use crate::config::{Credentials, Registration};
use crate::tls::{Peer, ServerTls};
use anyhow::{Context, Result, bail};
use hawser_client::RenewingClient;
use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::JsonFile;
use hawser_model::tunnel::{Admitted, Client, ServerReport};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The time that an unknown client waits for an answer of the controller.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

/// The interval of reports until the controller sets one, and the minimum interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
const MIN_PAUSE: Duration = Duration::from_millis(500);

/// The clients that the controller admits.
pub(crate) struct Allowlist {
    known: watch::Sender<AdmittedClients>,
    /// The clients that were admitted last, for the next process.
    file: JsonFile,
    damaged_files: Vec<String>,
    /// Notified when a client connects that is not admitted yet.
    unknown: Notify,
}

#[derive(Default)]
struct AdmittedClients {
    digest: Option<String>,
    clients: HashMap<String, Client>,
}

impl AdmittedClients {
    fn of(admitted: Vec<Client>, digest: Option<String>) -> AdmittedClients {
        let clients = admitted
            .into_iter()
            .map(|client| (client.name.to_string(), client))
            .collect();
        AdmittedClients { digest, clients }
    }

    fn admits(&self, peer: &Peer) -> bool {
        self.clients
            .get(&peer.name)
            .is_some_and(|client| client.certificates.contains(&peer.serial))
    }
}

impl Allowlist {
    /// Reads the clients that an earlier process stored, which are admitted until the controller
    /// answers. If the file is damaged, no client is: an earlier list could contain one that was
    /// revoked since.
    pub(crate) fn read(registration: &Registration) -> Result<Allowlist> {
        // Durable for the same reason: a power failure must not bring back the list before.
        let file = JsonFile::at(registration.clients_file.clone(), 0o600).durable();
        let mut damaged_files = Vec::new();
        let clients = file
            .read_or_set_aside(&mut damaged_files)
            .context("the list of admitted clients")?;
        if !damaged_files.is_empty() {
            warn!("no client is admitted until the controller answers");
        }
        let clients = AdmittedClients::of(clients.unwrap_or_default(), None);
        Ok(Allowlist {
            known: watch::Sender::new(clients),
            file,
            damaged_files,
            unknown: Notify::new(),
        })
    }

    /// Returns what is wrong with the file of the earlier process, if it was damaged.
    pub(crate) fn damaged_files(&self) -> &[String] {
        &self.damaged_files
    }

    /// Replaces the list by one from the controller.
    fn replace(&self, clients: Vec<Client>, digest: String) {
        info!(
            clients = clients.len(),
            "list of admitted clients updated by the controller"
        );
        let known = AdmittedClients::of(clients, Some(digest));
        self.known.send_replace(known);
    }

    /// Stores a list for the next process.
    async fn store(&self, clients: Vec<Client>) {
        let file = self.file.clone();
        let stored = spawn_blocking(move || file.write(&clients)).await;
        if let Ok(Err(error)) = stored {
            warn!("after a restart, the list of admitted clients will be the one before: {error}");
        }
    }

    /// Returns whether the client is admitted, as far as is known here.
    pub(super) fn contains(&self, peer: &Peer) -> bool {
        self.known.borrow().admits(peer)
    }

    /// Returns whether the client is admitted. A client that is not known here may have been
    /// enrolled, or may have got another certificate, since the last report, so the controller is
    /// asked again.
    pub(super) async fn admits(&self, peer: &Peer) -> bool {
        let mut known = self.known.subscribe();
        if known.borrow_and_update().admits(peer) {
            return true;
        }
        self.unknown.notify_one();
        matches!(
            timeout(ASK_TIMEOUT, known.wait_for(|known| known.admits(peer))).await,
            Ok(Ok(_))
        )
    }
}

/// Reports this server to the controller regularly, and applies its answers.
pub(super) async fn report_regularly(
    server: Arc<Server>,
    allowlist: Arc<Allowlist>,
    registration: Registration,
    tls: watch::Sender<ServerTls>,
) {
    let mut draining = server.draining.subscribe();
    let credentials = &server.config.common.credentials;
    let mut client = match node_client(credentials, &registration.controllers) {
        Ok(client) => client,
        Err(error) => return warn!("{error:#}"),
    };
    let mut expires = None;
    let mut failures = Failures::default();
    server.apply_allowlist(&allowlist);
    loop {
        let outcome = report(&server, &allowlist, &registration, &mut client).await;
        let presented = client.expires().or(expires);
        if std::mem::replace(&mut expires, presented) != presented {
            // The server presents the certificate to its clients too.
            reload_certificates(&server, &tls);
        }
        if outcome.is_err() {
            client.forget();
        }
        let pause = *outcome.as_ref().unwrap_or(&REPORT_INTERVAL);
        match failures.record(outcome) {
            Some(Change::Failed(error)) => warn!(
                "cannot report to the controller, the clients that it admitted last stay admitted: {error:#}"
            ),
            Some(Change::Recovered) => info!("the controller is reachable again"),
            None => {}
        }
        sleep(MIN_PAUSE).await;
        tokio::select! {
            () = sleep(pause.saturating_sub(MIN_PAUSE)) => {}
            () = allowlist.unknown.notified() => {}
            Ok(()) = draining.changed() => {}
        }
    }
}

/// Sends one report; returns the time until the next one.
async fn report(
    server: &Server,
    allowlist: &Allowlist,
    registration: &Registration,
    client: &mut RenewingClient,
) -> Result<Duration> {
    let report = server_report(server, allowlist, registration);
    let Admitted {
        report_every_ms,
        digest,
        clients,
    } = client.client().await?.serve_tunnels(&report).await?;
    client.answered();
    if let Some(clients) = clients {
        allowlist.replace(clients.clone(), digest);
        // Before the list is stored: sessions of revoked clients do not last as long as the disk is busy.
        server.apply_allowlist(allowlist);
        allowlist.store(clients).await;
    }
    Ok(Duration::from_millis(report_every_ms.into()))
}

fn server_report(
    server: &Server,
    allowlist: &Allowlist,
    registration: &Registration,
) -> ServerReport {
    let count = |clients: usize| u32::try_from(clients).unwrap_or(u32::MAX);
    ServerReport {
        addresses: registration.addresses.clone(),
        tcp_port: server.config.tcp_port(),
        clients: count(server.registry.count()),
        max_clients: count(server.config.max_clients),
        draining: *server.draining.borrow(),
        known: allowlist.known.borrow().digest.clone(),
    }
}

/// Returns the client by which a node talks to a controller. It renews the node's certificate.
pub(crate) fn node_client(
    credentials: &Credentials,
    controllers: &[hawser_client::Controller],
) -> Result<RenewingClient> {
    let Credentials::Node(folder) = credentials else {
        bail!("a controller accepts enrolled nodes only: [tls] has to name one's folder as `node`")
    };
    Ok(RenewingClient::new(folder, controllers))
}

impl Server {
    /// Assigns the addresses that the controller chose, and ends what it does not admit any more.
    fn apply_allowlist(&self, allowlist: &Allowlist) {
        let known = allowlist.known.borrow();
        self.registry.assign(known.clients.values());
        // No list has been received yet.
        if known.digest.is_none() && known.clients.is_empty() {
            return;
        }
        let admits_name = |client: &str| known.clients.contains_key(client);
        self.end_revoked("the controller", admits_name, |peer| known.admits(peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_server_starts_with_a_damaged_list_and_admits_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let registration = Registration {
            controllers: Vec::new(),
            addresses: Vec::new(),
            clients_file: folder.path().join("clients.json"),
        };
        let valid = r#"[{"name":"car-1","certificates":["0a"],"addresses":["fd77::2"]}]"#;
        for (text, is_valid) in [(valid, true), (&valid[..40], false), ("", false)] {
            fs::write(&registration.clients_file, text).unwrap();
            let allowlist = Allowlist::read(&registration).unwrap();
            let peer = Peer {
                name: "car-1".to_owned(),
                serial: "0a".to_owned(),
            };
            assert_eq!(allowlist.contains(&peer), is_valid, "{text}");
            assert_eq!(allowlist.damaged_files().is_empty(), is_valid, "{text}");
        }
    }
}
