//! The servers to choose from: those of the configuration, or those that a controller names.

use super::settings::Inbox;
use crate::config::{ClientConfig, ServerEntry};
use crate::server::allowlist::node_client;
use anyhow::Result;
use hawser_client::RenewingClient;
use hawser_io::failures::{Change, Failures};
use hawser_model::tunnel;
use hawser_uplinks::{Server, Uplink};
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{info, warn};

/// The time limit for the controller's first answer; then the servers of the configuration are
/// tried.
const CONTROLLER_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause after a failed request.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// The time after which the cheapest uplink is tried again for requests, while another one works.
const RETURN_AFTER: Duration = Duration::from_secs(600);

/// The largest number of servers to try: those with the least load.
const MAX_SERVERS: usize = 16;

/// The known servers, updated while a controller answers.
#[derive(Debug, Clone)]
pub(crate) struct Servers {
    configured: Vec<Server>,
    /// None until the controller has answered or [`CONTROLLER_TIMEOUT`] is over.
    list: watch::Receiver<Option<ServerList>>,
}

/// The answer of a controller.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct ServerList {
    servers: Vec<Server>,
    /// This client's inner addresses, the same at all servers.
    addresses: Vec<IpAddr>,
}

impl Servers {
    /// Starts to poll the controller, if there is one, over the uplinks. Its settings go into the
    /// inbox.
    pub(crate) fn watch(
        config: &ClientConfig,
        uplinks: watch::Receiver<Vec<Uplink>>,
        settings: Inbox,
    ) -> Servers {
        let server = |entry: &ServerEntry| Server {
            name: entry.name.clone(),
            addresses: entry.addresses.clone(),
            tcp_port: entry.tcp_port,
        };
        let without_controller = config.controllers.is_empty().then(ServerList::default);
        let (known, list) = watch::channel(without_controller);
        if !config.controllers.is_empty() {
            tokio::spawn(give_up_waiting(known.clone()));
            tokio::spawn(poll_controller(config.clone(), uplinks, known, settings));
        }
        Servers {
            configured: config.servers.iter().map(server).collect(),
            list,
        }
    }

    /// Waits for a change of the list.
    pub(crate) async fn changed(&mut self) {
        if self.list.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Returns the servers to try now; none before they are known.
    pub(crate) fn get(&self) -> Option<Vec<Server>> {
        let list = self.list.borrow();
        let servers = &list.as_ref()?.servers;
        Some(if servers.is_empty() {
            self.configured.clone()
        } else {
            servers.clone()
        })
    }

    /// Returns the inner addresses that the controller assigned to this client, if any.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let list = self.list.borrow();
        list.as_ref()
            .map_or_else(Vec::new, |list| list.addresses.clone())
    }
}

/// Makes the configured servers known if the controller has not answered in time.
async fn give_up_waiting(known: watch::Sender<Option<ServerList>>) {
    sleep(CONTROLLER_TIMEOUT).await;
    known.send_if_modified(|known| {
        let is_silent = known.is_none();
        known.get_or_insert_default();
        is_silent
    });
}

/// Polls the controller outside the tunnel, by one uplink after the other until it answers, and after
/// them by the routing table: another interface may lead to it, or only the tunnel. The first uplink
/// is tried again when the uplinks change, and after [`RETURN_AFTER`].
async fn poll_controller(
    config: ClientConfig,
    mut uplinks: watch::Receiver<Vec<Uplink>>,
    known: watch::Sender<Option<ServerList>>,
    settings: Inbox,
) {
    let mut client = match node_client(&config.common.credentials, &config.controllers) {
        Ok(client) => client,
        Err(error) => return warn!("{error:#}"),
    };
    let mut interface = None;
    let mut bound_at: Option<Instant> = None;
    let mut failures = Failures::default();
    loop {
        let have_changed = uplinks.has_changed().unwrap_or(false);
        if have_changed || bound_at.is_none_or(|at| at.elapsed() > RETURN_AFTER) {
            bound_at = Some(Instant::now());
            let first = next_interface(&uplinks.borrow_and_update(), None);
            if interface != first {
                interface = first;
                client.bind(interface.clone());
            }
        }
        let (pause, outcome) = match query(&mut client, &settings).await {
            Ok(answer) => {
                let list = ServerList {
                    servers: to_try(answer.servers),
                    addresses: answer.addresses,
                };
                update(&known, &list);
                settings.handle(answer.settings).await;
                let pause = Duration::from_millis(answer.ask_every_ms.into());
                (pause.max(RETRY_PAUSE), Ok(()))
            }
            Err(error) => {
                let by = interface.as_deref().unwrap_or("any interface");
                let error = error.context(format!("over {by}"));
                interface = next_interface(&uplinks.borrow(), interface.as_deref());
                client.bind(interface.clone());
                bound_at = Some(Instant::now());
                (RETRY_PAUSE, Err(error))
            }
        };
        if let Some(Change::Failed(error)) = failures.record(outcome) {
            warn!("cannot get the list of servers from the controller: {error:#}");
        }
        sleep(pause).await;
    }
}

/// Returns the interface to bind to after `last`: the uplinks, the cheapest first, and after the last
/// one none, which leaves the choice to the routing table.
fn next_interface(uplinks: &[Uplink], last: Option<&str>) -> Option<String> {
    let mut uplinks: Vec<_> = uplinks.iter().collect();
    uplinks.sort_by_key(|uplink| uplink.cost);
    let next = match last {
        None => uplinks.first(),
        Some(last) => {
            let mut rest = uplinks.iter().skip_while(|uplink| uplink.interface != last);
            rest.nth(1)
        }
    };
    next.map(|uplink| uplink.interface.clone())
}

/// Makes an answer of the controller known, and logs it if it is a new one.
fn update(known: &watch::Sender<Option<ServerList>>, list: &ServerList) {
    let news = |known: &mut Option<ServerList>| known.replace(list.clone()).as_ref() != Some(list);
    if known.send_if_modified(news) {
        let servers: Vec<_> = list.servers.iter().map(|server| &server.name).collect();
        info!(?servers, addresses = ?list.addresses, "list of servers updated by the controller");
    }
}

/// Queries the controller.
async fn query(client: &mut RenewingClient, settings: &Inbox) -> Result<tunnel::Servers> {
    let report = settings.report();
    let answer = client.client().await?.tunnel_servers(&report).await?;
    client.answered();
    Ok(answer)
}

/// Returns the servers with room, or all of them if none has room. `servers` are sorted by load.
fn to_try(mut servers: Vec<tunnel::Server>) -> Vec<Server> {
    if servers.iter().any(tunnel::Server::has_room) {
        servers.retain(tunnel::Server::has_room);
    }
    let entry = |server: tunnel::Server| Server {
        name: server.name.to_string(),
        addresses: server.addresses,
        tcp_port: server.tcp_port,
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
        let server = |(number, (clients, draining)): (usize, &(u32, bool))| tunnel::Server {
            name: format!("s{number}").parse().unwrap(),
            tenant: "acme".parse().unwrap(),
            addresses: vec![([203, 0, 113, 1], 14752).into()],
            tcp_port: None,
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
    fn the_controller_is_asked_by_uplinks_then_by_routes() {
        let uplinks = [("eth0", 1), ("wlan0", 0), ("wwan0", 1)].map(|(interface, cost)| Uplink {
            interface: interface.to_owned(),
            ipv4: None,
            ipv6: Vec::new(),
            others: Vec::new(),
            mtu: 1500,
            cost,
            monthly_cap: None,
        });
        let mut last: Option<String> = None;
        for expected in [
            Some("wlan0"),
            Some("eth0"),
            Some("wwan0"),
            None,
            Some("wlan0"),
        ] {
            last = next_interface(&uplinks, last.as_deref());
            assert_eq!(last.as_deref(), expected);
        }
        assert_eq!(next_interface(&uplinks, Some("gone0")), None);
        assert_eq!(next_interface(&[], None), None);
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
