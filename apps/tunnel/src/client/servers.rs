//! Where the tunnel may end: servers by configuration, or those that a controller knows.

use crate::config::{ClientConfig, ServerEntry};
use crate::server::guests::node_client;
use anyhow::Result;
use hawser_client::NodeClient;
use hawser_control::tunnel::Server;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// How long the controller may take before the servers of the configuration are tried.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pause after an attempt that failed.
const PAUSE: Duration = Duration::from_secs(2);

/// Servers that are tried at most: those with the least load.
const MOST: usize = 16;

/// What is known of servers; it changes while a controller answers.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    configured: Vec<ServerEntry>,
    /// None without a controller.
    told: Option<watch::Receiver<Option<Told>>>,
}

/// What a controller said.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    servers: Vec<ServerEntry>,
    /// The inner addresses that this client has at all of them.
    addresses: Vec<IpAddr>,
}

impl Servers {
    /// Asks the controller, if there is one, now and again and again.
    pub(crate) fn watch(config: &ClientConfig) -> Servers {
        let told = (!config.controllers.is_empty()).then(|| {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(keep_asking(config.clone(), sender));
            receiver
        });
        Servers {
            configured: config.servers.clone(),
            told,
        }
    }

    /// The servers to try now; none while nobody has named one.
    pub(crate) async fn get(&self) -> Vec<ServerEntry> {
        let Some(told) = &self.told else {
            return self.configured.clone();
        };
        let mut told = told.clone();
        // The one who asks lives as long as the client.
        let known = timeout(PATIENCE, told.wait_for(Option::is_some)).await;
        let servers = known
            .ok()
            .and_then(Result::ok)
            .and_then(|told| Some(told.as_ref()?.servers.clone()));
        servers
            .filter(|servers| !servers.is_empty())
            .unwrap_or_else(|| self.configured.clone())
    }

    /// The inner addresses that the controller gave this client, if it has.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let told = self.told.as_ref().and_then(|told| told.borrow().clone());
        told.map_or_else(Vec::new, |told| told.addresses)
    }
}

async fn keep_asking(config: ClientConfig, known: watch::Sender<Option<Told>>) {
    let mut client = None;
    let mut fails = false;
    loop {
        let pause = match ask(&config, &mut client).await {
            Ok((told, pause)) => {
                fails = false;
                let news =
                    |known: &mut Option<Told>| known.replace(told.clone()).as_ref() != Some(&told);
                if known.send_if_modified(news) {
                    let servers: Vec<_> = told.servers.iter().map(|server| &server.name).collect();
                    info!(?servers, addresses = ?told.addresses, "the controller knows servers");
                }
                pause
            }
            Err(error) => {
                // Another certificate may help, or another connection.
                client = None;
                if !std::mem::replace(&mut fails, true) {
                    warn!("no news of servers: {error:#}");
                }
                PAUSE
            }
        };
        sleep(pause).await;
    }
}

/// What the controller says, and how long to wait until it is asked again.
async fn ask(config: &ClientConfig, client: &mut Option<NodeClient>) -> Result<(Told, Duration)> {
    let client = match client {
        Some(client) => client,
        None => client.insert(node_client(
            &config.common.credentials,
            &config.controllers,
        )?),
    };
    let answer = client.tunnel_servers().await?;
    let told = Told {
        servers: to_try(answer.servers),
        addresses: answer.addresses,
    };
    Ok((
        told,
        Duration::from_millis(answer.ask_every_ms.into()).max(PAUSE),
    ))
}

/// Those with room, if any has; they come in the order of their load.
fn to_try(mut servers: Vec<Server>) -> Vec<ServerEntry> {
    if servers.iter().any(Server::has_room) {
        servers.retain(Server::has_room);
    }
    let entry = |server: Server| ServerEntry {
        name: server.name.to_string(),
        addresses: server.addresses,
    };
    let mut entries: Vec<_> = servers.into_iter().take(MOST).map(entry).collect();
    // How the load changes is no news.
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(clients: &[(u32, bool)]) -> Vec<String> {
        let server = |(number, (clients, draining)): (usize, &(u32, bool))| Server {
            name: format!("s{number}").parse().unwrap(),
            tenant: "acme".parse().unwrap(),
            addresses: vec![([203, 0, 113, 1], 14752).into()],
            clients: *clients,
            most_clients: 10,
            draining: *draining,
        };
        let servers = clients.iter().enumerate().map(server).collect();
        to_try(servers)
            .into_iter()
            .map(|server| server.name)
            .collect()
    }

    #[test]
    fn full_servers_are_tried_when_there_are_no_others() {
        assert_eq!(
            servers(&[(10, false), (9, false), (0, true), (3, false)]),
            ["s1", "s3"]
        );
        assert_eq!(servers(&[(10, false), (0, true)]), ["s0", "s1"]);
        assert_eq!(servers(&[(1, false); 40]).len(), MOST);
    }
}
