//! The servers to choose from: those of the configuration, or those that a controller names.

use crate::config::{ClientConfig, ServerEntry};
use crate::server::allowlist::node_client;
use anyhow::Result;
use hawser_client::NodeClient;
use hawser_control::tunnel::Server;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The time limit for the controller's first answer; then the servers of the configuration are
/// tried.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause after a failed request.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The largest number of servers to try: those with the least load.
const MAX_SERVERS: usize = 16;

/// The known servers, updated while a controller answers.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    configured: Vec<ServerEntry>,
    /// None without a controller.
    from_controller: Option<watch::Receiver<Option<ServerList>>>,
}

/// The answer of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ServerList {
    servers: Vec<ServerEntry>,
    /// This client's inner addresses, the same at all servers.
    addresses: Vec<IpAddr>,
}

impl Servers {
    /// Starts to poll the controller, if there is one.
    pub(crate) fn watch(config: &ClientConfig) -> Servers {
        let from_controller = (!config.controllers.is_empty()).then(|| {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(poll_controller(config.clone(), sender));
            receiver
        });
        Servers {
            configured: config.servers.clone(),
            from_controller,
        }
    }

    /// Returns the servers to try now; empty if none are known.
    pub(crate) async fn get(&self) -> Vec<ServerEntry> {
        let Some(from_controller) = &self.from_controller else {
            return self.configured.clone();
        };
        let mut list = from_controller.clone();
        // The polling task runs as long as the client.
        let known = timeout(CONTROLLER_TIMEOUT, list.wait_for(Option::is_some)).await;
        let servers = known
            .ok()
            .and_then(Result::ok)
            .and_then(|list| Some(list.as_ref()?.servers.clone()));
        servers
            .filter(|servers| !servers.is_empty())
            .unwrap_or_else(|| self.configured.clone())
    }

    /// Returns the inner addresses that the controller assigned to this client, if any.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let list = self
            .from_controller
            .as_ref()
            .and_then(|list| list.borrow().clone());
        list.map_or_else(Vec::new, |list| list.addresses)
    }
}

async fn poll_controller(config: ClientConfig, known: watch::Sender<Option<ServerList>>) {
    let mut client = None;
    let mut failing = false;
    loop {
        let pause = match query(&config, &mut client).await {
            Ok((list, pause)) => {
                failing = false;
                let news = |known: &mut Option<ServerList>| {
                    known.replace(list.clone()).as_ref() != Some(&list)
                };
                if known.send_if_modified(news) {
                    let servers: Vec<_> = list.servers.iter().map(|server| &server.name).collect();
                    info!(?servers, addresses = ?list.addresses, "list of servers updated by the controller");
                }
                pause
            }
            Err(error) => {
                // A new certificate or a new connection may help.
                client = None;
                if !std::mem::replace(&mut failing, true) {
                    warn!("cannot get the list of servers from the controller: {error:#}");
                }
                RETRY_PAUSE
            }
        };
        sleep(pause).await;
    }
}

/// Queries the controller; returns its answer and the time until the next query.
async fn query(
    config: &ClientConfig,
    client: &mut Option<NodeClient>,
) -> Result<(ServerList, Duration)> {
    let client = match client {
        Some(client) => client,
        None => client.insert(node_client(
            &config.common.credentials,
            &config.controllers,
        )?),
    };
    let answer = client.tunnel_servers().await?;
    let list = ServerList {
        servers: to_try(answer.servers),
        addresses: answer.addresses,
    };
    Ok((
        list,
        Duration::from_millis(answer.ask_every_ms.into()).max(RETRY_PAUSE),
    ))
}

/// Returns the servers with room, or all of them if none has room. `servers` are sorted by load.
fn to_try(mut servers: Vec<Server>) -> Vec<ServerEntry> {
    if servers.iter().any(Server::has_room) {
        servers.retain(Server::has_room);
    }
    let entry = |server: Server| ServerEntry {
        name: server.name.to_string(),
        addresses: server.addresses,
    };
    let mut entries: Vec<_> = servers.into_iter().take(MAX_SERVERS).map(entry).collect();
    // Sorted by name, so that changes of the load alone do not count as a new list.
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
            max_clients: 10,
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
        assert_eq!(servers(&[(1, false); 40]).len(), MAX_SERVERS);
    }
}
