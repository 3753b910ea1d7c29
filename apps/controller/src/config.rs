//! The configuration of a controller: one TOML file, parsed once into valid values.

use hawser_control::{Name, Prefix, at_most_one_of_each_family};
use hawser_io::config::Source;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a controller is to be. docs/controller.md explains every key.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How other controllers and events call it; made up when not given.
    pub name: Option<String>,
    /// Where it listens, HTTPS.
    pub listen: SocketAddr,
    /// Names and addresses by which clients reach it, for its certificate; `localhost` and the loopback addresses are
    /// always in it.
    pub names: Vec<String>,
    /// Where its files are: authority, database, the first operator's token.
    pub state: PathBuf,
    /// Where metrics and health can be had without TLS and token; none: nowhere.
    pub metrics_listen: Option<SocketAddr>,
    /// Where state is kept.
    pub store: StoreConfig,
    /// What nodes are told.
    pub nodes: NodesConfig,
    /// What ends of tunnels are told.
    pub tunnels: TunnelsConfig,
    /// What clients may use.
    pub limits: LimitsConfig,
    /// How many events are remembered.
    pub events: usize,
    /// How long the audit is kept.
    pub audit: AuditConfig,
}

/// Where state is kept.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum StoreConfig {
    /// In a file of this controller, `database` in its state directory.
    Embedded,
    /// In an etcd cluster that several controllers share.
    Etcd(EtcdConfig),
}

/// An etcd cluster.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// `https://HOST:PORT` of its members.
    pub endpoints: Vec<String>,
    /// What the keys of this group of controllers begin with.
    #[serde(default = "EtcdConfig::prefix")]
    pub prefix: String,
    /// The authority of the cluster's certificates, PEM.
    pub authority: Option<PathBuf>,
    /// This controller's certificate for the cluster, PEM.
    pub certificate: Option<PathBuf>,
    /// And its key.
    pub key: Option<PathBuf>,
    /// The user to authenticate as.
    pub user: Option<String>,
    /// A file with the user's password.
    pub password_file: Option<PathBuf>,
}

impl EtcdConfig {
    fn prefix() -> String {
        "hawser/".to_owned()
    }
}

/// What nodes are told and how long they are trusted.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodesConfig {
    /// How often nodes report, milliseconds.
    pub report_every_ms: u32,
    /// A node that has not reported for so long counts as dead, seconds. Also after how long another controller decides
    /// when the leader dies.
    pub lease_s: u32,
    /// How long a node's certificate is valid, days or a part of one.
    pub certificate_days: f64,
    /// Whether policies are also sent to ingress nodes in-band.
    pub signals: bool,
}

/// How long the audit is kept. Entries beyond either bound are removed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditConfig {
    /// Age at which an entry is removed, days.
    pub days: u32,
    /// Number of entries; beyond it the oldest one of the actor with the most entries is removed first.
    pub entries: usize,
}

/// What ends of tunnels are told.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunnelsConfig {
    /// Where clients' inner addresses are taken from: the prefixes that the servers have, one of either family or of both.
    /// None: each server gives its own.
    pub addresses: Vec<Prefix>,
    /// The nodes that may be servers: all that clients send passes them.
    pub servers: Vec<Name>,
}

/// What clients may use before they are refused.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Open connections.
    pub connections: usize,
    /// Open connections from one address.
    pub connections_per_address: usize,
    /// How long a handshake, the head of a request or the rest of it may take, seconds.
    pub request_timeout_s: u32,
    /// A connection without a request is closed after so long, seconds.
    pub idle_s: u32,
    /// A connection whose other end takes nothing of what is sent to it is cut after so long, seconds: a stream that nobody
    /// reads must not stay.
    pub unread_s: u32,
    /// The largest body of a request, bytes.
    pub body_bytes: usize,
    /// Requests a second by one operator's token.
    pub operator_requests_per_s: f64,
    /// Requests a second by one node.
    pub node_requests_per_s: f64,
    /// Failed authentications a minute from one address; what is more is answered with 429.
    pub failures_per_minute: f64,
    /// Events that are kept about each node and each flow; also the burst of events, and of changes, that a node may cause.
    pub node_events: usize,
    /// Events a second by one node, averaged over time.
    pub node_events_per_s: f64,
    /// Changes a second by one node, averaged over time: registrations, leases, certificates, health of paths, decisions about
    /// its flows.
    pub node_changes_per_s: f64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 14750)),
            names: vec![],
            state: PathBuf::from("/var/lib/hawser/controller"),
            metrics_listen: None,
            store: StoreConfig::Embedded,
            nodes: NodesConfig::default(),
            tunnels: TunnelsConfig::default(),
            limits: LimitsConfig::default(),
            events: 10_000,
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
            idle_s: 60,
            unread_s: 20,
            body_bytes: 256 * 1024,
            operator_requests_per_s: 500.0,
            node_requests_per_s: 50.0,
            failures_per_minute: 60.0,
            node_events: 1_000,
            node_events_per_s: 5.0,
            node_changes_per_s: 20.0,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read, or its text is not what is expected.
    #[error(transparent)]
    File(#[from] hawser_io::config::ConfigError),
    /// A value does not make sense.
    #[error("`{key}` {what}")]
    Value {
        /// Which.
        key: &'static str,
        /// What would be right.
        what: &'static str,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// When it cannot be read or says something that cannot be.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let config: Config = Source::read(path)?.parse()?;
        config.check()?;
        Ok(config)
    }

    /// Says what cannot be.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let lease_ms = u64::from(self.nodes.lease_s) * 1000;
        let limits = &self.limits;
        let rates = [
            limits.operator_requests_per_s,
            limits.node_requests_per_s,
            limits.failures_per_minute,
            limits.node_events_per_s,
            limits.node_changes_per_s,
        ];
        let checks = [
            (
                at_most_one_of_each_family(
                    self.tunnels.addresses.iter().map(|prefix| prefix.is_ipv4()),
                ),
                "tunnels.addresses",
                "has a prefix of IPv4, one of IPv6, or one of each",
            ),
            (
                self.nodes.report_every_ms >= 100,
                "nodes.report_every_ms",
                "is at least 100",
            ),
            (
                lease_ms >= 2 * u64::from(self.nodes.report_every_ms) && lease_ms >= 2_000,
                "nodes.lease_s",
                "is at least 2, and at least twice nodes.report_every_ms, so that one late report does no harm",
            ),
            (
                self.nodes.certificate_days > 0.0 && self.nodes.certificate_days <= 825.0,
                "nodes.certificate_days",
                "is above 0 and at most 825",
            ),
            (
                limits.connections > 0,
                "limits.connections",
                "is at least 1",
            ),
            (
                limits.connections_per_address > 0,
                "limits.connections_per_address",
                "is at least 1",
            ),
            (
                limits.request_timeout_s > 0,
                "limits.request_timeout_s",
                "is at least 1",
            ),
            (limits.idle_s > 0, "limits.idle_s", "is at least 1"),
            (limits.unread_s > 0, "limits.unread_s", "is at least 1"),
            (
                limits.body_bytes >= 4096,
                "limits.body_bytes",
                "is at least 4096",
            ),
            (
                rates.iter().all(|rate| *rate > 0.0 && rate.is_finite()),
                "limits",
                "has rates above 0",
            ),
            (
                limits.node_events >= 20,
                "limits.node_events",
                "is at least 20",
            ),
            (self.events >= 100, "events", "is at least 100"),
            (self.audit.days >= 1, "audit.days", "is at least 1"),
            (
                self.audit.entries >= 100,
                "audit.entries",
                "is at least 100",
            ),
        ];
        match checks.into_iter().find(|(holds, ..)| !holds) {
            Some((_, key, what)) => Err(ConfigError::Value { key, what }),
            None => Ok(()),
        }
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs(self.nodes.lease_s.into())
    }

    pub(crate) fn certificate_life(&self) -> Duration {
        Duration::from_secs_f64(self.nodes.certificate_days * 24.0 * 3600.0)
    }

    pub(crate) fn unread(&self) -> Duration {
        Duration::from_secs(self.limits.unread_s.into())
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.limits.request_timeout_s.into())
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
    fn unknown_keys_and_impossible_values_are_refused_by_name() {
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
