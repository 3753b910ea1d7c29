use super::{
    Coding, Common, ConfigError, DEFAULT_PORT, MTU, Prefix, Shared, Source, Tls, default_interface,
    default_mtu, default_state,
};
use hawser_client::Controller;
use hawser_control::at_most_one_of_each_family;
use hawser_units::ByteSize;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The server's end of tunnels.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// What it has in common with a client.
    pub common: Common,
    /// Where it waits for clients.
    pub listen: Vec<SocketAddr>,
    /// Inner addresses: one prefix of IPv4, one of IPv6, or both. The first address of each is the server's own.
    pub prefixes: Vec<Prefix>,
    /// Whether what leaves by another device than the tunnel's takes that device's address as its source.
    pub nat: bool,
    /// Private destinations, and the machine's own, that clients may reach.
    pub reach: Vec<Prefix>,
    /// Connections of one client at once that the address translation keeps.
    pub most_connections: u32,
    /// Largest packet of the network between here and the clients, bytes.
    pub outer_mtu: u16,
    /// How long a session without any path is kept.
    pub keep: Duration,
    /// How long clients have to go elsewhere when the server ends.
    pub drain: Duration,
    /// Sessions at once.
    pub most_clients: usize,
    /// What all of them may keep of packets together.
    pub memory: ByteSize,
    /// Whether clients that are not listed are let in.
    pub open: bool,
    /// What is said of single clients, by the name in their certificate.
    pub clients: BTreeMap<String, Client>,
    /// The controller that tells clients of this server, and says which of them to let in.
    pub listed: Option<Listed>,
    /// How packets are sent and recovered, here and at the clients.
    pub coding: Coding,
}

/// How a controller lists this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Every instance of the controller.
    pub controllers: Vec<Controller>,
    /// Where clients reach this server, at most one address of each family.
    pub addresses: Vec<SocketAddr>,
    /// Where it is kept whom the controller lets in, for the time without one.
    pub clients_file: PathBuf,
}

/// A client that is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// The inner addresses that it always has, at most one of each family.
    pub addresses: Vec<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tunnel: Spanned<Tunnel>,
    tls: Spanned<Tls>,
    controller: Option<Spanned<ControllerEntry>>,
    #[serde(default)]
    client: Vec<Spanned<ClientEntry>>,
    #[serde(default)]
    coding: Coding,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tunnel {
    /// Letters, digits and dashes.
    name: String,
    /// The TUN device.
    #[serde(default = "default_interface")]
    interface: String,
    /// Largest inner packet where the uplinks have room for it.
    #[serde(default = "default_mtu")]
    mtu_bytes: u16,
    /// Where the server waits for clients.
    #[serde(default = "default_listen", deserialize_with = "super::addresses")]
    listen: Vec<SocketAddr>,
    /// Inner addresses.
    addresses: Vec<Prefix>,
    /// Source NAT for what goes on from here.
    #[serde(default = "yes")]
    nat: bool,
    /// Private destinations, and addresses of this machine, that clients may reach.
    #[serde(default)]
    reach: Vec<Prefix>,
    /// Connections of one client at once that the address translation keeps.
    #[serde(default = "default_most_connections")]
    most_connections: u32,
    /// Largest packet of the network between here and the clients.
    #[serde(default = "default_outer_mtu")]
    outer_mtu_bytes: u16,
    /// How long a session without any path is kept, seconds.
    #[serde(default = "default_keep_s")]
    keep_s: u64,
    /// How long clients have to go elsewhere, seconds.
    #[serde(default = "default_drain_s")]
    drain_s: u64,
    /// Sessions at once.
    #[serde(default = "default_most_clients")]
    most_clients: usize,
    /// Megabytes (10^6) that all of them may keep of packets together; half of the machine's when not given.
    memory_mb: Option<u64>,
    /// Whether clients that are not listed are let in.
    #[serde(default = "yes")]
    open: bool,
    /// Where the status is written, and whom a controller lets in.
    state: Option<PathBuf>,
    /// A loopback address where metrics are served.
    metrics: Option<SocketAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerEntry {
    /// `https://HOST:PORT` of every instance.
    urls: Vec<String>,
    /// Where clients reach this server, with their ports, at most one of each family.
    #[serde(deserialize_with = "super::addresses")]
    addresses: Vec<SocketAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientEntry {
    /// As in its certificate.
    name: String,
    /// The inner addresses that it always has.
    #[serde(default)]
    addresses: Vec<IpAddr>,
}

/// What all sessions may keep together, megabytes.
const MEMORY_MB: RangeInclusive<u64> = 16..=1_000_000;

/// As long as a server may take to end, seconds.
const MOST_DRAIN_S: u64 = 3600;

fn default_listen() -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, DEFAULT_PORT).into()]
}

fn default_outer_mtu() -> u16 {
    1500
}

fn default_keep_s() -> u64 {
    120
}

fn default_drain_s() -> u64 {
    10
}

/// More than a vehicle has; a thousand clients with as many fill a quarter of a large machine's table.
fn default_most_connections() -> u32 {
    4096
}

/// Half of the machine's memory; a gigabyte where that is not known.
fn default_memory_mb() -> u64 {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.strip_suffix("kB"));
    let kilobytes = total.and_then(|total| total.trim().parse::<u64>().ok());
    kilobytes
        .map_or(1000, |kilobytes| kilobytes / 2000)
        .max(*MEMORY_MB.start())
}

fn default_most_clients() -> usize {
    4096
}

fn yes() -> bool {
    true
}

impl ServerConfig {
    /// Reads and checks a file. Paths in it are relative to it.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let source = Source::read(path)?;
        let file: File = source.parse()?;
        let tunnel = file.tunnel.get_ref();
        let shared = Shared {
            name: tunnel.name.clone(),
            interface: tunnel.interface.clone(),
            mtu_bytes: tunnel.mtu_bytes,
            state: tunnel.state.clone().unwrap_or_else(default_state),
            metrics: tunnel.metrics,
        };
        let are_ipv4 = tunnel.addresses.iter().map(|prefix| prefix.is_ipv4());
        if tunnel.addresses.is_empty() || !at_most_one_of_each_family(are_ipv4) {
            return Err(source.wrong(
                &file.tunnel,
                "addresses has a prefix of IPv4, one of IPv6, or one of each",
            ));
        }
        if tunnel
            .addresses
            .iter()
            .any(|prefix| prefix.address(2).is_none())
        {
            return Err(source.wrong(
                &file.tunnel,
                "a prefix in addresses has no room for a client",
            ));
        }
        if tunnel.listen.is_empty() {
            return Err(source.wrong(&file.tunnel, "listen names no address"));
        }
        if !MTU.contains(&tunnel.outer_mtu_bytes) {
            return Err(source.wrong(&file.tunnel, "outer_mtu_bytes is 1280 to 9000"));
        }
        if tunnel.most_connections == 0 {
            return Err(source.wrong(&file.tunnel, "most_connections is at least 1"));
        }
        if tunnel
            .memory_mb
            .is_some_and(|megabytes| !MEMORY_MB.contains(&megabytes))
        {
            return Err(source.wrong(&file.tunnel, "memory_mb is 16 to 1000000"));
        }
        if tunnel.drain_s > MOST_DRAIN_S {
            return Err(source.wrong(
                &file.tunnel,
                format!("drain_s is at most {MOST_DRAIN_S}, an hour"),
            ));
        }
        let listed = match &file.controller {
            Some(entry) => Some(listed(&source, entry, &file.tls, tunnel)?),
            None => None,
        };
        file.coding
            .config()
            .map_err(|error| source.wrong(&file.tunnel, format!("[coding]: {error}")))?;
        Ok(ServerConfig {
            common: super::common(&source, &shared, &file.tunnel, &file.tls)?,
            listen: tunnel.listen.clone(),
            prefixes: tunnel.addresses.clone(),
            nat: tunnel.nat,
            reach: tunnel.reach.clone(),
            most_connections: tunnel.most_connections,
            outer_mtu: tunnel.outer_mtu_bytes,
            keep: super::keep(&source, &file.tunnel, tunnel.keep_s)?,
            drain: Duration::from_secs(tunnel.drain_s),
            most_clients: tunnel.most_clients,
            memory: ByteSize(tunnel.memory_mb.unwrap_or_else(default_memory_mb) * 1_000_000),
            open: tunnel.open,
            listed,
            clients: clients(&source, &file.client, &tunnel.addresses)?,
            coding: file.coding,
        })
    }
}

fn listed(
    source: &Source<'_>,
    entry: &Spanned<ControllerEntry>,
    tls: &Spanned<Tls>,
    tunnel: &Tunnel,
) -> Result<Listed, ConfigError> {
    let ControllerEntry { urls, addresses } = entry.get_ref();
    super::check_addresses(source, entry, addresses)?;
    Ok(Listed {
        controllers: super::controllers(source, entry, urls, tls)?,
        addresses: addresses.clone(),
        clients_file: super::lasting(source, tunnel.state.as_deref(), &tunnel.name)
            .join("clients.json"),
    })
}

fn clients(
    source: &Source<'_>,
    entries: &[Spanned<ClientEntry>],
    prefixes: &[Prefix],
) -> Result<BTreeMap<String, Client>, ConfigError> {
    let mut clients = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for entry in entries {
        let ClientEntry { name, addresses } = entry.get_ref();
        for address in addresses {
            let prefix = prefixes.iter().find(|prefix| prefix.contains(*address));
            // The first two are the network's and the server's.
            if prefix
                .and_then(|prefix| prefix.number(*address))
                .is_none_or(|number| number < 2)
            {
                let message = format!(
                    "{address} is none that a client can have within the prefixes of `addresses`"
                );
                return Err(source.wrong(entry, message));
            }
            if !taken.insert(*address) {
                return Err(source.wrong(entry, format!("{address} is another client's")));
            }
        }
        if !at_most_one_of_each_family(addresses.iter().map(IpAddr::is_ipv4)) {
            return Err(source.wrong(entry, "a client has one address of each family at most"));
        }
        if clients
            .insert(
                name.clone(),
                Client {
                    addresses: addresses.clone(),
                },
            )
            .is_some()
        {
            return Err(source.wrong(entry, format!("there is another client called {name:?}")));
        }
    }
    Ok(clients)
}
