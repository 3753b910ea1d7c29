use super::{
    Common, ConfigError, MTU, Prefix, Shared, Source, Tls, default_interface, default_mtu,
    default_state,
};
use hawser_client::Controller;
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The client's end of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// What it has in common with a server.
    pub common: Common,
    /// How long a session without any path is kept.
    pub keep: Duration,
    /// Destinations that are routed into the tunnel.
    pub routes: Vec<Prefix>,
    /// Whether what this node forwards into the tunnel takes the tunnel's address as its source.
    pub masquerade: bool,
    /// Networks behind this node to which packets from the tunnel may go.
    pub lan: Vec<Prefix>,
    /// Whether what `routes` covers is kept from leaving past the tunnel, and a family that it has nothing of.
    pub kill_switch: bool,
    /// Destinations that are left out of that.
    pub bare: Vec<Prefix>,
    /// Where the tunnel may end, as long as no controller says it.
    pub servers: Vec<ServerEntry>,
    /// Who knows servers; none: nobody.
    pub controllers: Vec<Controller>,
    /// Where it is kept what uplinks have carried this month.
    pub usage_file: PathBuf,
    /// What it may use.
    pub uplinks: Vec<UplinkRule>,
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEntry {
    /// Its name in its certificate.
    pub name: String,
    /// Where it listens; an uplink uses the first of a family that it has.
    pub addresses: Vec<SocketAddr>,
}

/// Interfaces that the tunnel may use, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UplinkRule {
    /// The name of an interface, or its beginning and `*`.
    pub interface: String,
    /// The address to use on it; none: those that it has.
    pub address: Option<IpAddr>,
    /// Largest packet of the network behind it, if that is less than the interface takes, bytes.
    pub mtu: Option<u16>,
    /// Uplinks of a higher class wait until those of lower classes do not suffice.
    pub cost: u8,
    /// Bytes in both directions that may be used in a month of the calendar.
    pub monthly_cap: Option<u64>,
}

impl UplinkRule {
    /// Whether the rule is about the interface called `name`.
    pub fn matches(&self, name: &str) -> bool {
        match self.interface.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.interface,
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
    server: Vec<Spanned<Server>>,
    #[serde(default)]
    uplink: Vec<Spanned<Uplink>>,
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
    /// How long a session without any path is kept, seconds.
    #[serde(default = "default_keep_s")]
    keep_s: u64,
    /// Destinations that are routed into the tunnel.
    #[serde(default)]
    routes: Vec<Prefix>,
    /// For a node that forwards: sources become the tunnel's address.
    #[serde(default)]
    masquerade: bool,
    /// Networks behind this node to which packets from the tunnel may go.
    #[serde(default)]
    lan: Vec<Prefix>,
    /// What `routes` covers never leaves past the tunnel, nor anything of a family that it has nothing of.
    #[serde(default)]
    kill_switch: bool,
    /// Destinations that may be reached past the tunnel although `kill_switch` is on.
    #[serde(default)]
    bare: Vec<Prefix>,
    /// Where the status is written, and what uplinks with a cap have carried.
    state: Option<PathBuf>,
    /// A loopback address where metrics are served.
    metrics: Option<SocketAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerEntry {
    /// `https://HOST:PORT` of every instance.
    urls: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    /// As in its certificate.
    name: String,
    /// With their ports, at most one of each family.
    #[serde(deserialize_with = "super::addresses")]
    addresses: Vec<SocketAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Uplink {
    /// A name, or its beginning and `*`.
    interface: String,
    /// One of its addresses.
    address: Option<IpAddr>,
    /// Largest packet of the network behind it; as much as the interface takes when not given.
    mtu_bytes: Option<u16>,
    /// Classes from 0; higher ones wait.
    #[serde(default)]
    cost: u8,
    /// Megabytes (10^6) in both directions in a month.
    monthly_cap_mb: Option<u64>,
}

/// The client looks for another server long before.
fn default_keep_s() -> u64 {
    600
}

impl ClientConfig {
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
        if file.server.is_empty() && file.controller.is_none() {
            return Err(source.wrong(
                &file.tunnel,
                "there is no [[server]] to connect to, and no [controller] that knows one",
            ));
        }
        let controllers = match &file.controller {
            Some(entry) => super::controllers(&source, entry, &entry.get_ref().urls, &file.tls)?,
            None => Vec::new(),
        };
        if file.uplink.is_empty() {
            return Err(source.wrong(&file.tunnel, "there is no [[uplink]] to use"));
        }
        if tunnel.kill_switch && tunnel.routes.is_empty() {
            return Err(source.wrong(
                &file.tunnel,
                "kill_switch closes what routes covers, which is nothing",
            ));
        }
        if !tunnel.kill_switch && !tunnel.bare.is_empty() {
            return Err(source.wrong(
                &file.tunnel,
                "bare leaves destinations out of kill_switch, which is off",
            ));
        }
        Ok(ClientConfig {
            common: super::common(&source, &shared, &file.tunnel, &file.tls)?,
            keep: super::keep(&source, &file.tunnel, tunnel.keep_s)?,
            routes: tunnel.routes.clone(),
            masquerade: tunnel.masquerade,
            lan: tunnel.lan.clone(),
            kill_switch: tunnel.kill_switch,
            bare: tunnel.bare.clone(),
            usage_file: super::lasting(&source, tunnel.state.as_deref(), &tunnel.name)
                .join("usage.json"),
            controllers,
            servers: file
                .server
                .iter()
                .map(|entry| server(&source, entry))
                .collect::<Result<_, _>>()?,
            uplinks: file
                .uplink
                .iter()
                .map(|entry| uplink(&source, &tunnel.interface, entry))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn server(source: &Source<'_>, entry: &Spanned<Server>) -> Result<ServerEntry, ConfigError> {
    let Server { name, addresses } = entry.get_ref();
    super::check_addresses(source, entry, addresses)?;
    Ok(ServerEntry {
        name: name.clone(),
        addresses: addresses.clone(),
    })
}

fn uplink(
    source: &Source<'_>,
    tun: &str,
    entry: &Spanned<Uplink>,
) -> Result<UplinkRule, ConfigError> {
    let Uplink {
        interface,
        address,
        mtu_bytes,
        cost,
        monthly_cap_mb,
    } = entry.get_ref();
    let rule = UplinkRule {
        interface: interface.clone(),
        address: *address,
        mtu: *mtu_bytes,
        cost: *cost,
        monthly_cap: monthly_cap_mb.map(|megabytes| megabytes.saturating_mul(1_000_000)),
    };
    if mtu_bytes.is_some_and(|mtu| !MTU.contains(&mtu)) {
        return Err(source.wrong(entry, "mtu_bytes is 1280 to 9000"));
    }
    if rule.matches(tun) || rule.matches("lo") {
        let message =
            format!("{interface:?} is also the tunnel's own device or the loopback device");
        return Err(source.wrong(entry, message));
    }
    Ok(rule)
}
