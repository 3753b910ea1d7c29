//! The configuration of a controller: one TOML file, parsed once into valid values.

use hawser_io::config::Source;
use hawser_model::{Name, Prefix, at_most_one_of_each_family};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The configuration of a controller. docs/controller.md explains every key.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The name of this controller, for other controllers and in events. Default: another one at each
    /// start.
    pub name: Option<String>,
    /// The HTTPS address. Default: `"127.0.0.1:14750"`.
    pub listen: SocketAddr,
    /// Names and addresses by which clients reach the controller, for its certificate. `localhost`, the
    /// loopback addresses and the address in `listen` are always in it.
    pub names: Vec<String>,
    /// The folder of `authority.pem`, `authority.key`, `admin.token` and `database`.
    pub state: PathBuf,
    /// The address at which health and metrics are served by HTTP without authentication, for scrapers: a
    /// loopback address or one in a management network. It accepts HTTP/1.1 and 64 connections with the
    /// time limits of `[limits]`. Without it, `/metrics` needs a token that is not limited to a tenant,
    /// unless requested from the same machine.
    pub metrics_listen: Option<SocketAddr>,
    /// The certificate for browsers.
    pub tls: Option<TlsConfig>,
    /// `kind = "embedded"`: the file `database`, for one controller. `kind = "etcd"`: a cluster that
    /// several controllers share. Default: `{ kind = "embedded" }`.
    pub store: StoreConfig,
    /// Settings for nodes.
    pub nodes: NodesConfig,
    /// Settings for tunnel clients and servers.
    pub tunnels: TunnelsConfig,
    /// Limits on the resources that clients may use.
    pub limits: LimitsConfig,
    /// The number of events that are kept.
    pub max_events: usize,
    /// The retention of the audit log.
    pub audit: AuditConfig,
}

/// The store of the state.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum StoreConfig {
    /// A file of this controller, `database` in its state directory.
    Embedded,
    /// An etcd cluster that several controllers share.
    Etcd(EtcdConfig),
}

/// The settings of an etcd cluster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// The endpoints of its members, `https://HOST:PORT`.
    pub endpoints: Vec<String>,
    /// The prefix of all keys; controllers with the same prefix belong together.
    #[serde(default = "etcd_prefix")]
    pub prefix: String,
    /// The certificate of the authority that signed the cluster's certificates, PEM; needed for `https`.
    pub authority: Option<PathBuf>,
    /// This controller's certificate for the cluster, PEM.
    pub certificate: Option<PathBuf>,
    /// The key of that certificate, PEM.
    pub key: Option<PathBuf>,
    /// The user to authenticate as.
    pub user: Option<String>,
    /// A file with the user's password.
    pub password_file: Option<PathBuf>,
}

fn etcd_prefix() -> String {
    "hawser/".to_owned()
}

/// Settings for nodes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodesConfig {
    /// The interval of the nodes' reports if nothing happens.
    pub report_every_ms: u32,
    /// A node that was silent for this time counts as lost. Also the time after which another controller
    /// becomes the leader when the leader dies.
    pub lease_s: u32,
    /// The validity of the nodes' certificates, which are renewed after two thirds of it; may be a fraction
    /// of a day.
    pub certificate_days: f64,
    /// Whether policies are also sent in-band, to ingress nodes that accept signals.
    pub signals: bool,
}

/// The retention of the audit log. Entries beyond either bound are removed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// The age at which an entry is removed, days for which a controller has run.
    pub days: u32,
    /// The number of entries that are kept; each takes about 1 KB of memory and of the store. Beyond it,
    /// the oldest entry of the actor with the most entries is removed first.
    pub entries: usize,
}

/// A certificate of an authority that browsers trust. Clients get it that ask for one of its names and
/// do not name the controller's own authority; without it, all get that of the authority.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The certificate chain, PEM, the server's own first.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Settings for tunnel clients and servers.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelsConfig {
    /// Prefixes of the inner addresses of tunnels' clients, which all servers have: `["10.77.0.0/16",
    /// "fd77::/64"]`. Without it, each server assigns its own.
    pub addresses: Vec<Prefix>,
    /// Names of the nodes that may be servers: all packets of their clients pass through them.
    pub servers: Vec<Name>,
}

/// Limits on the resources of clients. Requests beyond them are rejected.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Open connections; each needs a file descriptor, and the controller raises its own limit to what the
    /// system allows.
    pub connections: usize,
    /// Open connections from one address. A connection whose client does not read a large response costs up
    /// to 100 kB until `unread_timeout_s` has passed.
    pub connections_per_address: usize,
    /// The time limit of a handshake, of the head of a request, and of the rest of a request with its
    /// response.
    pub request_timeout_s: u32,
    /// A connection without a request is closed after this time.
    pub idle_timeout_s: u32,
    /// A connection is closed if its client reads nothing of a response for this time, with HTTP/2 even if
    /// it reads other responses (`refused_total{reason="unread_answer"}`).
    pub unread_timeout_s: u32,
    /// The size of a request's body; without authentication (`/v1/enrol`) 16,384, and of a node's report
    /// 2,097,152, which is enough for 1,024 flows of eight paths.
    pub body_bytes: usize,
    /// By token; twice as many at once.
    pub operator_requests_per_s: f64,
    /// By node, and by enrolment token; twice as many at once.
    pub node_requests_per_s: f64,
    /// Failed authentications, by source address; at least 20 at once. Beyond it, the response is 429.
    pub failures_per_minute: f64,
    /// Events that are kept about each node and each flow; also the burst of events, and of changes, that a
    /// node may cause.
    pub max_node_events: usize,
    /// Events that one node causes, averaged over time.
    pub node_events_per_s: f64,
    /// Changes that one node causes, averaged over time: registrations, returns, certificates, health of
    /// paths, decisions about its flows.
    pub node_changes_per_s: f64,
    /// Nodes of one tenant, also those that were never enrolled; beyond it, no token for another node is
    /// made (409).
    pub tenant_nodes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 14750)),
            names: vec![],
            state: PathBuf::from("/var/lib/hawser/controller"),
            metrics_listen: None,
            tls: None,
            store: StoreConfig::Embedded,
            nodes: NodesConfig::default(),
            tunnels: TunnelsConfig::default(),
            limits: LimitsConfig::default(),
            max_events: 10_000,
            audit: AuditConfig::default(),
        }
    }
}

impl Default for NodesConfig {
    fn default() -> Self {
        NodesConfig {
            report_every_ms: 5_000,
            lease_s: 15,
            certificate_days: 30.0,
            signals: true,
        }
    }
}

impl AuditConfig {
    pub(crate) fn age(&self) -> Duration {
        Duration::from_secs(u64::from(self.days) * 24 * 3600)
    }
}

impl Default for AuditConfig {
    fn default() -> Self {
        AuditConfig {
            days: 90,
            entries: 20_000,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        LimitsConfig {
            connections: 20_000,
            connections_per_address: 2_000,
            request_timeout_s: 10,
            idle_timeout_s: 60,
            unread_timeout_s: 20,
            body_bytes: 256 * 1024,
            operator_requests_per_s: 500.0,
            node_requests_per_s: 50.0,
            failures_per_minute: 60.0,
            max_node_events: 1_000,
            node_events_per_s: 5.0,
            node_changes_per_s: 20.0,
            tenant_nodes: 20_000,
        }
    }
}

/// The error for a configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read or parsed.
    #[error(transparent)]
    File(#[from] hawser_io::config::ConfigError),
    /// A value is out of range.
    #[error("`{key}` {what}")]
    Value {
        /// The key.
        key: &'static str,
        /// The valid values, such as "must be at least 1".
        what: &'static str,
    },
}

/// A condition on a value, whether it holds, with the key and the condition in words.
type Check = (bool, &'static str, &'static str);

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or parsed, or a value is out of range.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let config: Config = Source::read(path)?.parse()?;
        config.check()?;
        Ok(config)
    }

    /// Returns an error for the first value that is out of range.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let checks = self.node_checks().into_iter();
        let checks = checks
            .chain(self.limits.checks())
            .chain(self.retention_checks());
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, key, what)) => Err(ConfigError::Value { key, what }),
            None => Ok(()),
        }
    }

    fn node_checks(&self) -> [Check; 4] {
        let lease_ms = u64::from(self.nodes.lease_s) * 1000;
        [
            (
                at_most_one_of_each_family(
                    self.tunnels.addresses.iter().map(|prefix| prefix.is_ipv4()),
                ),
                "tunnels.addresses",
                "must have at most one IPv4 prefix and at most one IPv6 prefix",
            ),
            (
                self.nodes.report_every_ms >= 100,
                "nodes.report_every_ms",
                "must be at least 100",
            ),
            (
                lease_ms >= 2 * u64::from(self.nodes.report_every_ms) && lease_ms >= 2_000,
                "nodes.lease_s",
                "must be at least 2, and at least twice nodes.report_every_ms, so that a single late report does not expire the lease",
            ),
            (
                self.nodes.certificate_days > 0.0 && self.nodes.certificate_days <= 825.0,
                "nodes.certificate_days",
                "must be above 0 and at most 825",
            ),
        ]
    }

    fn retention_checks(&self) -> [Check; 3] {
        [
            (self.max_events >= 100, "max_events", "must be at least 100"),
            (self.audit.days >= 1, "audit.days", "must be at least 1"),
            (
                self.audit.entries >= 100,
                "audit.entries",
                "must be at least 100",
            ),
        ]
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(self.nodes.lease_s.into())
    }

    pub(crate) fn certificate_life(&self) -> Duration {
        Duration::from_secs_f64(self.nodes.certificate_days * 24.0 * 3600.0)
    }

    pub(crate) fn unread(&self) -> Duration {
        Duration::from_secs(self.limits.unread_timeout_s.into())
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.limits.request_timeout_s.into())
    }
}

impl LimitsConfig {
    fn checks(&self) -> impl Iterator<Item = Check> {
        let at_least_one = [
            (self.connections > 0, "limits.connections"),
            (
                self.connections_per_address > 0,
                "limits.connections_per_address",
            ),
            (self.request_timeout_s > 0, "limits.request_timeout_s"),
            (self.idle_timeout_s > 0, "limits.idle_timeout_s"),
            (self.unread_timeout_s > 0, "limits.unread_timeout_s"),
            (self.tenant_nodes > 0, "limits.tenant_nodes"),
        ];
        let others = [
            (
                self.body_bytes >= 4096,
                "limits.body_bytes",
                "must be at least 4096",
            ),
            (self.has_rates(), "limits", "must have rates above 0"),
            (
                self.max_node_events >= 20,
                "limits.max_node_events",
                "must be at least 20",
            ),
        ];
        at_least_one
            .into_iter()
            .map(|(holds, key)| (holds, key, "must be at least 1"))
            .chain(others)
    }

    fn has_rates(&self) -> bool {
        let rates = [
            self.operator_requests_per_s,
            self.node_requests_per_s,
            self.failures_per_minute,
            self.node_events_per_s,
            self.node_changes_per_s,
        ];
        rates.iter().all(|rate| *rate > 0.0 && rate.is_finite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_a_controller_on_loopback() {
        let config: Config = toml::from_str("").unwrap();
        config.check().unwrap();
        assert!(config.listen.ip().is_loopback());
    }

    #[test]
    fn unknown_keys_and_invalid_values_are_rejected_by_name() {
        for (text, word) in [
            ("listem = '127.0.0.1:1'", "listem"),
            ("[store]\nkind = 'sqlite'", "sqlite"),
            ("[store]\nkind = 'etcd'", "endpoints"),
            ("[nodes]\nlease = 3", "lease"),
        ] {
            let error = toml::from_str::<Config>(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        let short: Config = toml::from_str("[nodes]\nlease_s = 6").unwrap();
        assert!(
            short
                .check()
                .unwrap_err()
                .to_string()
                .contains("nodes.lease_s")
        );
    }
}
