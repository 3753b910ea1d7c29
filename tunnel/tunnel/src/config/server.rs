use super::{
    Coding, Common, ConfigError, DEFAULT_PORT, OUTER_MTU, Prefix, Shared, Source, Tls,
    default_interface, default_mtu, default_state,
};
use hawser_client::Controller;
use hawser_model::at_most_one_of_each_family;
use hawser_units::ByteSize;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use toml::Spanned;

/// The configuration of a tunnel server.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// The settings that client and server share.
    pub common: Common,
    /// The addresses at which it listens for clients.
    pub listen: Vec<SocketAddr>,
    /// The addresses at which it listens for clients whose networks block UDP; empty for none.
    pub listen_tcp: Vec<SocketAddr>,
    /// The prefixes of inner addresses: one of IPv4, one of IPv6, or both. The first address of
    /// each is the server's own.
    pub prefixes: Vec<Prefix>,
    /// Whether packets that leave through other devices than the tunnel's get that device's address
    /// as their source.
    pub nat: bool,
    /// Private destinations, and addresses of this machine, that clients may reach.
    pub allowed_destinations: Vec<Prefix>,
    /// The largest number of concurrent connections of a client in the address translation.
    pub max_connections: u32,
    /// The largest packet of the network towards the clients, in bytes.
    pub outer_mtu: u16,
    /// The time for which a session without a path is kept.
    pub session_timeout: Duration,
    /// The time that clients have to move to another server when this one shuts down.
    pub drain: Duration,
    /// The largest number of sessions.
    pub max_clients: usize,
    /// The memory that all sessions together may use for packets.
    pub memory: ByteSize,
    /// The clients that are admitted, as far as the file decides.
    pub client_list: ClientList,
    /// The controller that lists this server for clients and decides which clients are admitted.
    pub registration: Option<Registration>,
    /// The parameters of the coded transport, here and at the clients.
    pub coding: Coding,
    /// The parameters of the transport that `coding` does not set.
    pub transport: hawser_xnc::Config,
}

/// The registration of this server with a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// All instances of the controller.
    pub controllers: Vec<Controller>,
    /// The addresses at which clients reach this server, at most one of each family.
    pub addresses: Vec<SocketAddr>,
    /// The file with the clients that the controller admits, used while it is unreachable.
    pub clients_file: PathBuf,
}

/// A client with an entry in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Its permanent inner addresses, at most one of each family.
    pub addresses: Vec<IpAddr>,
}

/// The part of the configuration that decides which clients are admitted. A running server replaces
/// it when it reads its file again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientList {
    /// Whether clients without a `[[client]]` entry are admitted.
    pub admit_unlisted: bool,
    /// The clients with an entry, by the name in their certificate.
    pub clients: BTreeMap<String, Client>,
    /// The names of clients that are not admitted in any case.
    pub revoked_clients: BTreeSet<String>,
    /// The certificates that are not accepted.
    pub revoked_certificates: BTreeSet<SerialNumber>,
}

impl ClientList {
    /// Returns whether the client of this name is admitted with any certificate.
    pub fn admits_name(&self, client: &str) -> bool {
        !self.revoked_clients.contains(client)
            && (self.admit_unlisted || self.clients.contains_key(client))
    }

    /// Returns whether the client is admitted with the certificate that has this serial number, in
    /// hexadecimal.
    pub fn admits(&self, client: &str, serial: &str) -> bool {
        // A number that cannot be parsed cannot be in the list.
        let serial = serial.parse::<SerialNumber>();
        let is_revoked = serial.is_ok_and(|serial| self.revoked_certificates.contains(&serial));
        self.admits_name(client) && !is_revoked
    }
}

/// The serial number of a certificate: hexadecimal digits in lower case, without leading zeros.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SerialNumber(String);

/// Accepts both cases, leading zeros, and colons between bytes, as programs print them.
impl FromStr for SerialNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.replace(':', "").to_ascii_lowercase();
        match !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_hexdigit()) {
            true => Ok(SerialNumber(digits.trim_start_matches('0').to_owned())),
            false => Err(format!(
                "{text:?} is not the serial number of a certificate in hexadecimal, as `openssl x509 -noout -serial` prints it"
            )),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tunnel: Spanned<Tunnel>,
    tls: Spanned<Tls>,
    controller: Option<Spanned<ControllerEntry>>,
    #[serde(default)]
    client: Vec<Spanned<ClientEntry>>,
    coding: Option<Spanned<Coding>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tunnel {
    /// The server's name, as a DNS name of its certificate: letters, digits, dashes, underscores.
    name: String,
    /// The TUN device.
    #[serde(default = "default_interface")]
    interface: String,
    /// The largest packet inside, if the uplinks carry it: 1280 to 1500.
    #[serde(default = "default_mtu")]
    mtu_bytes: u16,
    /// Addresses on which the server accepts clients. Default: `["[::]:14752"]`.
    #[serde(default = "default_listen", deserialize_with = "super::addresses")]
    listen: Vec<SocketAddr>,
    /// Addresses on which it accepts clients whose networks block UDP, such as `["[::]:443"]`, all with the
    /// same port, which a controller tells clients. A client has at most 16 connections there.
    #[serde(default, deserialize_with = "super::addresses")]
    listen_tcp: Vec<SocketAddr>,
    /// Inner addresses, such as `["10.77.0.0/16", "fd77::/64"]`: one prefix of either family or of both.
    /// The first address of each is the server's.
    addresses: Vec<Prefix>,
    /// Packets that leave by another device get that device's address as source (nftables, a table of its
    /// own). This includes flows that had another source before: connection tracking forgets them.
    #[serde(default = "yes")]
    nat: bool,
    /// Private destinations, and addresses of the server's machine, that clients may reach.
    #[serde(default)]
    allowed_destinations: Vec<Prefix>,
    /// Connections of one inner address at once, with `nat`. A client has an address of each family.
    #[serde(default = "default_max_connections")]
    max_connections: u32,
    /// The largest packet of the network between the server and the clients.
    #[serde(default = "default_outer_mtu")]
    outer_mtu_bytes: u16,
    /// The time for which a session without any uplink is kept: 1 to 86400.
    #[serde(default = "default_session_timeout_s")]
    session_timeout_s: u64,
    /// The time that clients have to move to another server when this one exits, at most 3600.
    #[serde(default = "default_drain_s")]
    drain_s: u64,
    /// Sessions at once.
    #[serde(default = "default_max_clients")]
    max_clients: usize,
    /// Megabytes (10^6) that all sessions together use for packets. Default: half of the machine's.
    memory_mb: Option<u64>,
    /// `false`: only the clients of `[[client]]` are admitted. Has to be given with `node` in `[tls]` and
    /// no `[controller]`: without the controller, the server does not know of which tenant a node is, nor
    /// which nodes were revoked. Default: `true`.
    admit_unlisted: Option<bool>,
    /// Names of clients that are not admitted, such as those of stolen vehicles. Read again at SIGHUP.
    #[serde(default)]
    revoked_clients: BTreeSet<String>,
    /// Serial numbers of certificates that are not accepted, as `openssl x509 -noout -serial` prints them.
    /// A client of the same name with another certificate is admitted. Read again at SIGHUP.
    #[serde(default)]
    revoked_certificates: Vec<String>,
    /// The folder of the status. If given, it also holds the list of clients that a controller admits,
    /// instead of `/var/lib/hawser/tunnel`. Default: `/run/hawser/tunnel`.
    state: Option<PathBuf>,
    /// A loopback address with port at which metrics are served to Prometheus over HTTP.
    metrics: Option<SocketAddr>,
    /// The interval of the log's reports on each session and its delays; 0: none in the log, figures by the
    /// minute.
    #[serde(default)]
    report_every_s: u64,
}

/// For a server that a controller lists. Without it, any client with a certificate of the authority is
/// admitted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerEntry {
    /// Every instance of the controller: `["https://HOST:14750", ...]`.
    urls: Vec<String>,
    /// Addresses at which clients reach this server, such as `["203.0.113.1:14752"]`, at most one of each
    /// family.
    #[serde(deserialize_with = "super::addresses")]
    addresses: Vec<SocketAddr>,
}

/// A client with permanent addresses. Servers that list the same addresses assign the same ones.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientEntry {
    /// The name in its certificate.
    name: String,
    /// Its permanent inner addresses, at most one of each family.
    #[serde(default)]
    addresses: Vec<IpAddr>,
}

/// The valid memory limits, in megabytes.
const MEMORY_MB: RangeInclusive<u64> = 16..=1_000_000;

/// The longest drain time, in seconds.
const MAX_DRAIN_S: u64 = 3600;

fn default_listen() -> Vec<SocketAddr> {
    vec![(Ipv6Addr::UNSPECIFIED, DEFAULT_PORT).into()]
}

fn default_outer_mtu() -> u16 {
    1500
}

fn default_session_timeout_s() -> u64 {
    120
}

fn default_drain_s() -> u64 {
    10
}

/// More than a vehicle needs. A thousand clients with this many connections fill a quarter of the
/// connection table of a large machine.
fn default_max_connections() -> u32 {
    4096
}

/// Half of the machine's memory; a gigabyte if that is unknown.
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

fn default_max_clients() -> usize {
    4096
}

fn yes() -> bool {
    true
}

impl ServerConfig {
    /// Reads and validates a configuration file. Paths in it are relative to its directory.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let source = Source::read(path)?;
        let file: File = source.parse()?;
        let tunnel = file.tunnel.get_ref();
        check(&source, &file.tunnel)?;
        check_admission(&source, &file)?;
        let registration = match &file.controller {
            Some(entry) => Some(registration(&source, entry, &file.tls, tunnel)?),
            None => None,
        };
        let transport = hawser_xnc::Config::default();
        let coding = coding(&source, file.coding.as_ref(), &transport)?;
        Ok(ServerConfig {
            common: super::common(&source, &tunnel.into(), &file.tunnel, &file.tls)?,
            listen: tunnel.listen.clone(),
            listen_tcp: tunnel.listen_tcp.clone(),
            prefixes: tunnel.addresses.clone(),
            nat: tunnel.nat,
            allowed_destinations: tunnel.allowed_destinations.clone(),
            max_connections: tunnel.max_connections,
            outer_mtu: tunnel.outer_mtu_bytes,
            session_timeout: super::session_timeout(
                &source,
                &file.tunnel,
                tunnel.session_timeout_s,
            )?,
            drain: Duration::from_secs(tunnel.drain_s),
            max_clients: tunnel.max_clients,
            memory: ByteSize(tunnel.memory_mb.unwrap_or_else(default_memory_mb) * 1_000_000),
            client_list: client_list(&source, &file)?,
            registration,
            coding,
            transport,
        })
    }

    /// Returns the TCP port for clients whose networks block UDP.
    pub fn tcp_port(&self) -> Option<u16> {
        self.listen_tcp.first().map(SocketAddr::port)
    }
}

impl From<&Tunnel> for Shared {
    fn from(tunnel: &Tunnel) -> Shared {
        Shared {
            name: tunnel.name.clone(),
            interface: tunnel.interface.clone(),
            mtu_bytes: tunnel.mtu_bytes,
            state: tunnel.state.clone().unwrap_or_else(default_state),
            metrics: tunnel.metrics,
            report_every_s: tunnel.report_every_s,
        }
    }
}

/// Checks the keys of `[tunnel]` that a client does not have.
fn check(source: &Source<'_>, at: &Spanned<Tunnel>) -> Result<(), ConfigError> {
    let tunnel = at.get_ref();
    let mut prefixes = tunnel.addresses.iter();
    let are_ipv4 = prefixes.clone().map(|prefix| prefix.is_ipv4());
    let errors = [
        (
            tunnel.addresses.is_empty() || !at_most_one_of_each_family(are_ipv4),
            "addresses has a prefix of IPv4, one of IPv6, or one of each",
        ),
        (
            prefixes.any(|prefix| prefix.address(2).is_none()),
            "a prefix in addresses has no room for a client",
        ),
        (
            tunnel.listen.is_empty(),
            "listen is empty: it names the addresses at which the server listens",
        ),
        (
            !OUTER_MTU.contains(&tunnel.outer_mtu_bytes),
            "outer_mtu_bytes is 1280 to 9000",
        ),
        (
            tunnel
                .listen_tcp
                .iter()
                .any(|address| address.port() != tunnel.listen_tcp[0].port()),
            "listen_tcp has several ports, but clients are told one",
        ),
        (tunnel.max_connections == 0, "max_connections is at least 1"),
        (
            tunnel
                .memory_mb
                .is_some_and(|memory| !MEMORY_MB.contains(&memory)),
            "memory_mb is 16 to 1000000",
        ),
        (
            tunnel.drain_s > MAX_DRAIN_S,
            "drain_s is at most 3600, an hour",
        ),
    ];
    match errors.into_iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, message)) => Err(source.wrong(at, message)),
        None => Ok(()),
    }
}

/// Checks that the file says which nodes of a controller are admitted: its authority issues certificates to the nodes
/// of all tenants, and only the controller knows which of them it has revoked since.
fn check_admission(source: &Source<'_>, file: &File) -> Result<(), ConfigError> {
    let tunnel = file.tunnel.get_ref();
    let is_open = file.controller.is_none() && tunnel.admit_unlisted.is_none();
    if file.tls.get_ref().node.is_some() && is_open {
        return Err(source.wrong(
            &file.tunnel,
            "[tls] node stands for all nodes of a controller, of every tenant, and those that it has revoked: add [controller], which \
             decides who is admitted, or set admit_unlisted: false admits those of [[client]] only, true all until their certificates expire",
        ));
    }
    Ok(())
}

fn coding(
    source: &Source<'_>,
    entry: Option<&Spanned<Coding>>,
    transport: &hawser_xnc::Config,
) -> Result<Coding, ConfigError> {
    let Some(entry) = entry else {
        return Ok(Coding::default());
    };
    let checked = entry.get_ref().config(transport);
    checked.map_err(|error| source.wrong(entry, error.to_string()))?;
    Ok(entry.get_ref().clone())
}

fn registration(
    source: &Source<'_>,
    entry: &Spanned<ControllerEntry>,
    tls: &Spanned<Tls>,
    tunnel: &Tunnel,
) -> Result<Registration, ConfigError> {
    let ControllerEntry { urls, addresses } = entry.get_ref();
    super::check_addresses(source, entry, addresses)?;
    Ok(Registration {
        controllers: super::controllers(source, entry, urls, tls)?,
        addresses: addresses.clone(),
        clients_file: super::persistent_state(source, tunnel.state.as_deref(), &tunnel.name)
            .join("clients.json"),
    })
}

fn client_list(source: &Source<'_>, file: &File) -> Result<ClientList, ConfigError> {
    let tunnel = file.tunnel.get_ref();
    let revoked_clients = &tunnel.revoked_clients;
    let is_revoked =
        |entry: &&Spanned<ClientEntry>| revoked_clients.contains(&entry.get_ref().name);
    if let Some(entry) = file.client.iter().find(is_revoked) {
        let name = &entry.get_ref().name;
        let message = format!(
            "{name:?} is also in revoked_clients, which takes precedence: remove one of the two"
        );
        return Err(source.wrong(entry, message));
    }
    let serials = tunnel.revoked_certificates.iter();
    Ok(ClientList {
        admit_unlisted: tunnel.admit_unlisted.unwrap_or(true),
        clients: clients(source, &file.client, &tunnel.addresses)?,
        revoked_clients: revoked_clients.clone(),
        revoked_certificates: serials
            .map(|serial| serial.parse())
            .collect::<Result<_, _>>()
            .map_err(|message: String| source.wrong(&file.tunnel, message))?,
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
            check_address(*address, prefixes).map_err(|message| source.wrong(entry, message))?;
            if !taken.insert(*address) {
                return Err(source.wrong(entry, format!("{address} is assigned to another client")));
            }
        }
        if !at_most_one_of_each_family(addresses.iter().map(IpAddr::is_ipv4)) {
            return Err(source.wrong(entry, "a client has at most one address of each family"));
        }
        let addresses = addresses.clone();
        if clients.insert(name.clone(), Client { addresses }).is_some() {
            return Err(source.wrong(entry, format!("there is another client named {name:?}")));
        }
    }
    Ok(clients)
}

/// Checks that a client can have the address. The first two addresses of a prefix are those of the
/// network and the server.
fn check_address(address: IpAddr, prefixes: &[Prefix]) -> Result<(), String> {
    let prefix = prefixes.iter().find(|prefix| prefix.contains(address));
    match prefix.and_then(|prefix| prefix.number(address)) {
        Some(2..) => Ok(()),
        _ => Err(format!(
            "{address} is not an address that a client can have: it has to be in a prefix of `addresses`, from the third address on"
        )),
    }
}
