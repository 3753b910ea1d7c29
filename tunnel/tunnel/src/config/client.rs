use super::{
    Common, ConfigError, Prefix, Shared, Source, Tls, default_interface, default_mtu, default_state,
};
use hawser_client::Controller;
use hawser_io::interface::name_matches;
use hawser_model::tunnel::{TunnelSettings, UplinkSettings};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The configuration of a tunnel client.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientConfig {
    /// The settings that client and server share.
    pub common: Common,
    /// The time for which a session without a path is kept.
    pub session_timeout: Duration,
    /// The time after which larger packets are tried again over an uplink that carried only smaller
    /// ones.
    pub mtu_retry: Duration,
    /// Destinations that are routed into the tunnel.
    pub routes: Vec<Prefix>,
    /// Whether packets that this node forwards into the tunnel get the tunnel's address as their
    /// source.
    pub masquerade: bool,
    /// Networks behind this node that packets from the tunnel may reach.
    pub lan: Vec<Prefix>,
    /// Whether packets to `routes`, and all packets of a family without routes, are kept from
    /// leaving outside the tunnel.
    pub kill_switch: bool,
    /// Destinations that are excluded from `routes` and from the kill switch.
    pub bypass: Vec<Prefix>,
    /// The firewall marks of packets that are excluded from the kill switch.
    pub bypass_marks: Vec<u32>,
    /// The number of the routing table for `routes`; none for the main one.
    pub table: Option<u32>,
    /// The name servers to use while the tunnel is up.
    pub dns: Vec<IpAddr>,
    /// The domains in which names without a dot are searched.
    pub dns_domains: Vec<String>,
    /// The interval at which a nearer server is searched while a session works; none for not at
    /// all.
    pub search_every: Option<Duration>,
    /// The servers to use as long as no controller has named any.
    pub servers: Vec<ServerEntry>,
    /// The controllers that know servers; empty if there are none.
    pub controllers: Vec<Controller>,
    /// Whether the controllers may change settings.
    pub accepts_settings: bool,
    /// The file with the settings that a controller gave last.
    pub settings_file: PathBuf,
    /// The file with the bytes that the uplinks have used this month.
    pub usage_file: PathBuf,
    /// The file with the sizes of packets that the networks of uplinks carried.
    pub sizes_file: PathBuf,
    /// The interfaces that may be used.
    pub uplinks: Vec<UplinkRule>,
    /// The parameters of the transport that the server does not set.
    pub transport: hawser_xnc::Config,
}

impl ClientConfig {
    /// Returns the destinations that are routed into the tunnel: `routes` without `bypass`, and without
    /// multicast and broadcast, which the tunnel does not carry: what lies between them is reserved. The
    /// kernel has routes of its own for multicast of IPv6.
    pub fn inside(&self) -> Vec<Prefix> {
        let local = Prefix::around(Ipv4Addr::new(224, 0, 0, 0).into(), 3);
        let outside = [&self.bypass[..], &[local]].concat();
        let routes = self.routes.iter();
        let inside: BTreeSet<_> = routes.flat_map(|route| route.without(&outside)).collect();
        inside.into_iter().collect()
    }

    /// Returns the name servers that are asked through the tunnel, whatever network an uplink is in.
    pub fn name_servers_inside(&self) -> impl Iterator<Item = IpAddr> {
        let is_routed = |server: &IpAddr| {
            let mut routes = self.routes.iter();
            let is_bypassed = self.bypass.iter().any(|prefix| prefix.contains(*server));
            routes.any(|route| route.contains(*server)) && !is_bypassed
        };
        self.dns.iter().copied().filter(is_routed)
    }
}

/// A tunnel server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerEntry {
    /// The name in its certificate.
    pub name: String,
    /// Its addresses; an uplink uses the first one whose family it has.
    pub addresses: Vec<SocketAddr>,
    /// The TCP port at the same addresses, for networks that block UDP.
    pub tcp_port: Option<u16>,
}

/// At least one. If several match an interface, the first one applies.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UplinkRule {
    /// The settings that an operator of a controller may change, and the interfaces.
    #[serde(flatten)]
    pub settings: UplinkSettings,
    /// The local address to use. Default: those that the interface has.
    pub address: Option<IpAddr>,
}

impl UplinkRule {
    /// Returns whether the rule applies to the interface `name`.
    pub fn matches(&self, name: &str) -> bool {
        name_matches(&self.settings.interface, name)
    }
}

/// The firewall mark of the tunnel's own packets. Other processes need CAP_NET_ADMIN or CAP_NET_RAW
/// to set it.
pub(crate) const MARK: u32 = 14752;

/// The valid times after which larger packets are tried again, in seconds: longer than a trial.
const MTU_RETRY_S: RangeInclusive<u64> = 20..=86_400;

/// `linux/rtnetlink.h`: `RT_TABLE_MAIN` and `RT_TABLE_LOCAL`.
const MAIN_TABLE: u32 = 254;
const LOCAL_TABLE: u32 = 255;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    tunnel: Spanned<Tunnel>,
    tls: Spanned<Tls>,
    controller: Option<Spanned<ControllerEntry>>,
    #[serde(default)]
    server: Vec<Spanned<Server>>,
    #[serde(default)]
    uplink: Vec<Spanned<UplinkRule>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tunnel {
    /// The client's name, as the common name of its certificate: letters, digits, dashes, underscores.
    name: String,
    /// The TUN device.
    #[serde(default = "default_interface")]
    interface: String,
    /// The largest packet inside, if the uplinks carry it: 1280 to 1500.
    #[serde(default = "default_mtu")]
    mtu_bytes: u16,
    /// The time for which a session without any working uplink is kept. Other servers are tried after one
    /// second.
    #[serde(default = "default_session_timeout_s")]
    session_timeout_s: u64,
    /// The time after which larger packets are tried again over an uplink that carried only smaller ones:
    /// 20 to 86400.
    #[serde(default = "default_mtu_retry_s")]
    mtu_retry_s: u64,
    /// The interval at which a nearer server is searched while the session works: 10 to 86400; 0: never.
    /// Default: `0`.
    search_every_s: Option<u32>,
    /// Destinations that are routed into the tunnel, such as `"0.0.0.0/0"`.
    #[serde(default)]
    routes: Vec<Prefix>,
    /// Packets that are forwarded into the tunnel get the tunnel's address as source; a server drops other
    /// sources. This includes flows that were outside the tunnel before: connection tracking forgets them.
    #[serde(default)]
    masquerade: bool,
    /// Networks behind this node to which packets from the tunnel may go.
    #[serde(default)]
    lan: Vec<Prefix>,
    /// Packets to destinations in `routes`, and of a family without any route, never leave outside the
    /// tunnel.
    #[serde(default)]
    kill_switch: bool,
    /// Destinations that stay outside the tunnel: they are left out of `routes`, and `kill_switch` does not
    /// block them.
    #[serde(default)]
    bypass: Vec<Prefix>,
    /// Firewall marks, such as `0x10`, of packets that `kill_switch` does not block; 0 stands for packets
    /// without a mark.
    #[serde(default)]
    bypass_marks: Vec<u32>,
    /// The number of the routing table for `routes`. Default: the main table.
    table: Option<u32>,
    /// Addresses of up to three name servers for all names while the tunnel is up.
    #[serde(default)]
    dns: Vec<IpAddr>,
    /// Domains in which names without a dot are searched meanwhile.
    #[serde(default)]
    dns_domains: Vec<String>,
    /// The folder of the status. If given, it also holds `usage.json`, `settings.json` and `sizes.json`,
    /// instead of `/var/lib/hawser/tunnel`. Default: `/run/hawser/tunnel`.
    state: Option<PathBuf>,
    /// A loopback address with port at which metrics are served to Prometheus over HTTP.
    metrics: Option<SocketAddr>,
    /// The interval of the log's report on the session and its delays; 0: none in the log, figures by the
    /// minute. Default: `60`.
    report_every_s: Option<u32>,
}

/// For servers that a controller knows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerEntry {
    /// Every instance of the controller: `["https://HOST:14750", ...]`.
    urls: Vec<String>,
    /// Whether operators of the controller may change settings of uplinks, and intervals.
    #[serde(default)]
    settings: bool,
}

/// At least one, unless there is a `[controller]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server {
    /// The name in its certificate.
    name: String,
    /// Addresses with ports, such as `["203.0.113.1:14752"]`, at most one of each family. An uplink prefers
    /// the first of a family that it has. Host names are refused: they could only be resolved outside the
    /// tunnel, before it is up.
    #[serde(deserialize_with = "super::addresses")]
    addresses: Vec<SocketAddr>,
    /// The TCP port at these addresses, such as 443, for networks that block UDP.
    tcp_port: Option<NonZeroU16>,
}

/// Long, because the client looks for another server much earlier.
fn default_session_timeout_s() -> u64 {
    600
}

/// `PMTU_RAISE_TIMER` of RFC 8899, section 5.1.1.
fn default_mtu_retry_s() -> u64 {
    600
}

/// The default interval of log lines about the session, in seconds.
const REPORT_EVERY_S: u32 = 60;

impl ClientConfig {
    /// Reads and validates a configuration file. Paths in it are relative to its directory.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let source = Source::read(path)?;
        let file: File = source.parse()?;
        let tunnel = file.tunnel.get_ref();
        if file.server.is_empty() && file.controller.is_none() {
            return Err(source.wrong(
                &file.tunnel,
                "there is no [[server]] to connect to, and no [controller] that knows any",
            ));
        }
        let controllers = match &file.controller {
            Some(entry) => super::controllers(&source, entry, &entry.get_ref().urls, &file.tls)?,
            None => Vec::new(),
        };
        if file.uplink.is_empty() {
            return Err(source.wrong(&file.tunnel, "there is no [[uplink]] to use"));
        }
        let state = super::persistent_state(&source, tunnel.state.as_deref(), &tunnel.name);
        check_kill_switch(&source, &file.tunnel)?;
        check_routes(&source, &file.tunnel)?;
        check_dns(&source, &file.tunnel)?;
        let intervals = TunnelSettings {
            search_every_s: tunnel.search_every_s,
            report_every_s: tunnel.report_every_s,
            ..TunnelSettings::default()
        };
        let checked = intervals.check_intervals();
        checked.map_err(|error| source.wrong(&file.tunnel, error))?;
        Ok(ClientConfig {
            transport: hawser_xnc::Config::default(),
            common: super::common(&source, &tunnel.into(), &file.tunnel, &file.tls)?,
            session_timeout: super::session_timeout(
                &source,
                &file.tunnel,
                tunnel.session_timeout_s,
            )?,
            mtu_retry: mtu_retry(&source, &file.tunnel)?,
            search_every: tunnel
                .search_every_s
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(seconds.into())),
            routes: tunnel.routes.clone(),
            masquerade: tunnel.masquerade,
            lan: tunnel.lan.clone(),
            kill_switch: tunnel.kill_switch,
            bypass: tunnel.bypass.clone(),
            bypass_marks: tunnel.bypass_marks.clone(),
            table: tunnel.table,
            dns: tunnel.dns.clone(),
            dns_domains: tunnel.dns_domains.clone(),
            usage_file: state.join("usage.json"),
            sizes_file: state.join("sizes.json"),
            accepts_settings: file
                .controller
                .as_ref()
                .is_some_and(|entry| entry.get_ref().settings),
            settings_file: state.join("settings.json"),
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

impl From<&Tunnel> for Shared {
    fn from(tunnel: &Tunnel) -> Shared {
        Shared {
            name: tunnel.name.clone(),
            interface: tunnel.interface.clone(),
            mtu_bytes: tunnel.mtu_bytes,
            state: tunnel.state.clone().unwrap_or_else(default_state),
            metrics: tunnel.metrics,
            report_every_s: tunnel.report_every_s.unwrap_or(REPORT_EVERY_S).into(),
        }
    }
}

fn mtu_retry(source: &Source<'_>, at: &Spanned<Tunnel>) -> Result<Duration, ConfigError> {
    match at.get_ref().mtu_retry_s {
        seconds if MTU_RETRY_S.contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(source.wrong(at, "mtu_retry_s is 20 to 86400, a day")),
    }
}

fn check_kill_switch(source: &Source<'_>, at: &Spanned<Tunnel>) -> Result<(), ConfigError> {
    let tunnel = at.get_ref();
    if tunnel.kill_switch && tunnel.routes.is_empty() {
        return Err(source.wrong(
            at,
            "kill_switch closes what routes covers, but routes is empty",
        ));
    }
    if !tunnel.kill_switch && !tunnel.bypass_marks.is_empty() {
        return Err(source.wrong(
            at,
            "bypass_marks leaves packets out of kill_switch, which is not set",
        ));
    }
    if tunnel.bypass_marks.contains(&MARK) {
        return Err(source.wrong(
            at,
            "bypass_marks contains 14752, the mark of the tunnel's own packets",
        ));
    }
    Ok(())
}

fn check_routes(source: &Source<'_>, at: &Spanned<Tunnel>) -> Result<(), ConfigError> {
    let tunnel = at.get_ref();
    let errors = [
        (
            !tunnel.bypass.is_empty() && tunnel.routes.is_empty(),
            "bypass leaves destinations out of routes, which is empty",
        ),
        (
            tunnel.table.is_some() && tunnel.routes.is_empty(),
            "table is the routing table for routes, which is empty",
        ),
        (
            matches!(tunnel.table, Some(0 | LOCAL_TABLE)),
            "table is not 0 and not 255, which the kernel uses",
        ),
        (
            tunnel.table == Some(MAIN_TABLE),
            "table is not 254: without this key, routes are in that table, the main one",
        ),
    ];
    match errors.into_iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, message)) => Err(source.wrong(at, message)),
        None => Ok(()),
    }
}

/// The most name servers that the C library uses (`resolv.conf(5)`: `MAXNS`).
const MAX_NAME_SERVERS: usize = 3;

fn check_dns(source: &Source<'_>, at: &Spanned<Tunnel>) -> Result<(), ConfigError> {
    let Tunnel {
        dns, dns_domains, ..
    } = at.get_ref();
    let is_domain = |domain: &String| {
        let is_allowed =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        !domain.is_empty() && !domain.starts_with(['.', '-']) && domain.chars().all(is_allowed)
    };
    if dns.len() > MAX_NAME_SERVERS {
        return Err(source.wrong(at, "dns has at most 3 name servers: programs use no more"));
    }
    if dns.is_empty() && !dns_domains.is_empty() {
        return Err(source.wrong(
            at,
            "dns_domains has no effect without dns, the name servers",
        ));
    }
    match dns_domains.iter().find(|domain| !is_domain(domain)) {
        Some(domain) => Err(source.wrong(
            at,
            format!(
                "dns_domains contains {domain:?}, which is not a domain such as \"example.org\""
            ),
        )),
        None => Ok(()),
    }
}

fn server(source: &Source<'_>, entry: &Spanned<Server>) -> Result<ServerEntry, ConfigError> {
    let Server {
        name,
        addresses,
        tcp_port,
    } = entry.get_ref();
    super::check_addresses(source, entry, addresses)?;
    Ok(ServerEntry {
        name: name.clone(),
        addresses: addresses.clone(),
        tcp_port: tcp_port.map(NonZeroU16::get),
    })
}

fn uplink(
    source: &Source<'_>,
    tun: &str,
    entry: &Spanned<UplinkRule>,
) -> Result<UplinkRule, ConfigError> {
    let rule = entry.get_ref();
    let interface = &rule.settings.interface;
    let checked = rule.settings.check();
    checked.map_err(|error| source.wrong(entry, error))?;
    if rule.matches(tun) || rule.matches("lo") {
        let message =
            format!("{interface:?} is also the tunnel's own device or the loopback device");
        return Err(source.wrong(entry, message));
    }
    Ok(rule.clone())
}
