//! The configuration of tunnel clients and servers, parsed from their files and validated.

mod client;
mod coding;
mod parameter;
mod server;

pub(crate) use client::MARK;
pub use client::{ClientConfig, ServerEntry, UplinkRule};
pub use coding::{Coding, Duplicate, FrameBoundary};
pub use parameter::InvalidParameter;
pub use server::{Client, ClientList, Registration, SerialNumber, ServerConfig};

pub use hawser_io::config::ConfigError;
pub use hawser_model::Prefix;

use hawser_client::Controller;
use hawser_io::config::Source;
use hawser_metrics::server::check_loopback;
use hawser_model::at_most_one_of_each_family;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Returns prefixes as those that routes of the kernel are compared with.
pub(crate) fn networks(prefixes: &[Prefix]) -> Vec<hawser_units::Prefix> {
    let network = |prefix: &Prefix| hawser_units::Prefix::new(prefix.address(0)?, prefix.length());
    prefixes.iter().filter_map(network).collect()
}

/// The default UDP port of a server.
pub const DEFAULT_PORT: u16 = 14752;

/// The directory of state that does not survive a reboot.
const STATE: &str = "/run/hawser/tunnel";

/// The directory of state that survives a reboot.
const PERSISTENT_STATE: &str = "/var/lib/hawser/tunnel";

/// The default name of the TUN device.
const DEFAULT_INTERFACE: &str = "hawser-tun";

/// The default MTU inside the tunnel (Ni, appendix E), in bytes.
const DEFAULT_MTU: u16 = 1440;

/// The valid sizes of outer packets, in bytes; QUIC over IPv6 needs the smallest.
const OUTER_MTU: RangeInclusive<u16> = 1280..=9000;

/// The valid MTUs inside the tunnel, in bytes: IPv6 needs the smallest, and larger packets cannot
/// be coded.
pub(crate) const INNER_MTU: RangeInclusive<u16> = 1280..=1500;

/// The valid times for which a session without a path is kept, in seconds.
const SESSION_TIMEOUT_S: RangeInclusive<u64> = 1..=86_400;

/// The longest interval of log lines about sessions, in seconds.
const MAX_REPORT_EVERY_S: u64 = 86_400;

/// The identity of a node and the authorities that it trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// PEM files.
    Files {
        /// The certificates of the trusted authorities.
        authority: PathBuf,
        /// The node's certificate, followed by the intermediate ones.
        certificate: PathBuf,
        /// The private key of the certificate.
        key: PathBuf,
    },
    /// The folder of a node that a controller enrolled. Its certificate proves its name to servers
    /// and clients.
    Node(PathBuf),
}

/// Formats the file names.
impl fmt::Display for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Files {
                authority,
                certificate,
                key,
            } => {
                write!(
                    f,
                    "{}, {} and {}",
                    authority.display(),
                    certificate.display(),
                    key.display()
                )
            }
            Credentials::Node(folder) => write!(f, "the node {}", folder.display()),
        }
    }
}

/// The settings that client and server share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Common {
    /// The name of this end of the tunnel, also of its status folder.
    pub name: String,
    /// The name of the TUN device.
    pub interface: String,
    /// The largest inner packet where the uplinks have room for it, in bytes.
    pub mtu: u16,
    /// The parent of the status folder.
    pub state: PathBuf,
    /// The loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The interval of log lines about each session; zero for none.
    pub report_every: Duration,
    /// The credentials of this end.
    pub credentials: Credentials,
}

impl Common {
    /// Returns the path of this end's status file.
    pub fn status_file(&self) -> PathBuf {
        self.state.join(&self.name).join("status.json")
    }
}

/// Reads the shared settings from the file of a client or a server.
pub fn read_common(path: &Path) -> Result<Common, ConfigError> {
    /// Keys that only one of the two knows are ignored.
    #[derive(Deserialize)]
    struct File {
        tunnel: Spanned<Lenient>,
        tls: Spanned<Tls>,
    }
    #[derive(Deserialize)]
    struct Lenient {
        name: String,
        interface: Option<String>,
        mtu_bytes: Option<u16>,
        state: Option<PathBuf>,
        metrics: Option<SocketAddr>,
        #[serde(default)]
        report_every_s: u64,
    }
    let source = Source::read(path)?;
    let File { tunnel, tls } = source.parse()?;
    let Lenient {
        name,
        interface,
        mtu_bytes,
        state,
        metrics,
        report_every_s,
    } = tunnel.get_ref();
    let shared = Shared {
        name: name.clone(),
        interface: interface.clone().unwrap_or_else(default_interface),
        mtu_bytes: mtu_bytes.unwrap_or_else(default_mtu),
        state: state.clone().unwrap_or_else(default_state),
        metrics: *metrics,
        report_every_s: *report_every_s,
    };
    common(&source, &shared, &tunnel, &tls)
}

/// The keys of `[tunnel]` that client and server share.
struct Shared {
    name: String,
    interface: String,
    mtu_bytes: u16,
    state: PathBuf,
    metrics: Option<SocketAddr>,
    report_every_s: u64,
}

/// The identity: `authority`, `certificate` and `key`, or `node`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    /// The certificate of the authority that signed those of both ends, PEM.
    authority: Option<PathBuf>,
    /// The certificate, PEM. A server's has its `name` as a DNS name, a client's as its common name.
    certificate: Option<PathBuf>,
    /// The key of the certificate, PEM, which only its owner and its group may read.
    key: Option<PathBuf>,
    /// The folder of a node that was enrolled with a controller, instead of the three files.
    node: Option<PathBuf>,
}

/// Returns the directory of state that survives a reboot.
fn persistent_state(source: &Source<'_>, state: Option<&Path>, name: &str) -> PathBuf {
    source
        .directory()
        .join(state.unwrap_or(Path::new(PERSISTENT_STATE)))
        .join(name)
}

/// Checks `session_timeout_s`, the time for which a session without a path is kept.
fn session_timeout<T>(
    source: &Source<'_>,
    at: &Spanned<T>,
    seconds: u64,
) -> Result<Duration, ConfigError> {
    match SESSION_TIMEOUT_S.contains(&seconds) {
        true => Ok(Duration::from_secs(seconds)),
        false => Err(source.wrong(at, "session_timeout_s is 1 to 86400, a day")),
    }
}

fn check_addresses<T>(
    source: &Source<'_>,
    at: &Spanned<T>,
    addresses: &[SocketAddr],
) -> Result<(), ConfigError> {
    match !addresses.is_empty()
        && at_most_one_of_each_family(addresses.iter().map(SocketAddr::is_ipv4))
    {
        true => Ok(()),
        false => Err(source.wrong(
            at,
            "addresses has one address with its port, or one of IPv4 and one of IPv6",
        )),
    }
}

/// Checks the URLs of controllers, which authenticate a node by its certificate.
fn controllers<T>(
    source: &Source<'_>,
    at: &Spanned<T>,
    urls: &[String],
    tls: &Spanned<Tls>,
) -> Result<Vec<Controller>, ConfigError> {
    if urls.is_empty() {
        return Err(source.wrong(at, "urls names each controller as \"https://HOST:PORT\""));
    }
    if tls.get_ref().node.is_none() {
        return Err(source.wrong(
            at,
            "a controller accepts enrolled nodes only: [tls] has to name one's folder as `node`",
        ));
    }
    let urls = urls
        .iter()
        .map(|url| url.parse())
        .collect::<Result<_, hawser_client::Error>>();
    urls.map_err(|error| source.wrong(at, error.to_string()))
}

/// Parses socket addresses.
fn addresses<'de, D: Deserializer<'de>>(file: D) -> Result<Vec<SocketAddr>, D::Error> {
    let parse = |text: &String| {
        text.parse().map_err(|_| {
            let right = "203.0.113.1:14752 or [2001:db8::1]:14752";
            D::Error::custom(format!(
                "{text:?} is not an address with a port, such as {right}; host names are not accepted, because they \
                 could only be resolved outside the tunnel"
            ))
        })
    };
    Vec::<String>::deserialize(file)?
        .iter()
        .map(parse)
        .collect()
}

fn default_interface() -> String {
    DEFAULT_INTERFACE.to_owned()
}

fn default_mtu() -> u16 {
    DEFAULT_MTU
}

fn default_state() -> PathBuf {
    STATE.into()
}

fn common<T>(
    source: &Source<'_>,
    shared: &Shared,
    at: &Spanned<T>,
    tls: &Spanned<Tls>,
) -> Result<Common, ConfigError> {
    check_shared(source, shared, at)?;
    Ok(Common {
        name: shared.name.clone(),
        interface: shared.interface.clone(),
        mtu: shared.mtu_bytes,
        state: source.directory().join(&shared.state),
        metrics: shared.metrics,
        report_every: Duration::from_secs(shared.report_every_s),
        credentials: credentials(source, tls)?,
    })
}

fn check_shared<T>(
    source: &Source<'_>,
    shared: &Shared,
    at: &Spanned<T>,
) -> Result<(), ConfigError> {
    source.check_name(at, &shared.name)?;
    let interface = &shared.interface;
    if interface.is_empty() || interface.len() > 15 || interface.contains('/') {
        return Err(source.wrong(at, "interface has 1 to 15 bytes and no slash"));
    }
    if !INNER_MTU.contains(&shared.mtu_bytes) {
        return Err(source.wrong(at, "mtu_bytes is 1280, which IPv6 needs, to 1500"));
    }
    if shared.report_every_s > MAX_REPORT_EVERY_S {
        return Err(source.wrong(at, "report_every_s is 0, for none, to 86400, a day"));
    }
    if let Some(metrics) = shared.metrics {
        check_loopback(metrics, 9478).map_err(|message| source.wrong(at, message))?;
    }
    Ok(())
}

/// Resolves the paths of `[tls]` relative to the file.
fn credentials(source: &Source<'_>, tls: &Spanned<Tls>) -> Result<Credentials, ConfigError> {
    let folder = source.directory();
    match tls.get_ref() {
        Tls { authority: Some(authority), certificate: Some(certificate), key: Some(key), node: None } => {
            Ok(Credentials::Files {
                authority: folder.join(authority),
                certificate: folder.join(certificate),
                key: folder.join(key),
            })
        }
        Tls { authority: None, certificate: None, key: None, node: Some(node) } => {
            Ok(Credentials::Node(folder.join(node)))
        }
        _ => Err(source.wrong(
            tls,
            "[tls] has either authority, certificate and key, or node, the folder of an enrolled node",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLES: [(&str, &str); 2] = [
        ("client", include_str!("../examples/client.toml")),
        ("server", include_str!("../examples/server.toml")),
    ];

    /// Parses `text` as a file of `role`; returns the error message if it is rejected.
    fn read(role: &str, text: &str) -> Result<Common, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tunnel.toml");
        std::fs::write(&path, text).unwrap();
        let common = match role {
            "client" => ClientConfig::read(&path).map(|config| config.common),
            _ => ServerConfig::read(&path).map(|config| config.common),
        };
        let common = common.map_err(|error| error.to_string())?;
        let lenient = read_common(&path).unwrap();
        // The default depends on the role, and only a running process needs it.
        let report_every = common.report_every;
        assert_eq!(
            Common {
                report_every,
                ..lenient
            },
            common
        );
        Ok(common)
    }

    #[test]
    fn the_examples_are_right() {
        for (role, text) in EXAMPLES {
            let common = read(role, text).unwrap();
            assert_eq!(
                (common.mtu, common.interface.as_str()),
                (1440, "hawser-tun")
            );
        }
    }

    #[test]
    fn the_state_is_where_the_file_says_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tunnel.toml");
        let state = |given: &str| {
            let text =
                EXAMPLES[0]
                    .1
                    .replacen("[tunnel]", &format!("[tunnel]\nstate = \"{given}\""), 1);
            std::fs::write(&path, text).unwrap();
            let config = ClientConfig::read(&path).unwrap();
            (
                config.common.state,
                config
                    .usage_file
                    .parent()
                    .unwrap()
                    .parent()
                    .unwrap()
                    .to_owned(),
            )
        };
        assert_eq!(
            state("kept"),
            (folder.path().join("kept"), folder.path().join("kept"))
        );
        assert_eq!(state("/kept"), ("/kept".into(), "/kept".into()));
    }

    #[test]
    fn a_server_says_which_nodes_of_a_controller_it_admits() {
        let [_, (_, server)] = EXAMPLES;
        let tls = server.find("[tls]").unwrap();
        let end = tls + server[tls..].find("\n\n").unwrap();
        let enrolled = format!("{}[tls]\nnode = \"pop\"{}", &server[..tls], &server[end..]);
        let refused = read("server", &enrolled).unwrap_err();
        assert!(refused.contains("set admit_unlisted"), "{refused}");
        for admits in ["true", "false"] {
            let said = enrolled.replacen(
                "[tunnel]",
                &format!("[tunnel]\nadmit_unlisted = {admits}"),
                1,
            );
            read("server", &said).unwrap();
        }
        let controller = "[controller]\nurls = [\"https://a:1\"]\naddresses = [\"192.0.2.1:1\"]\n";
        read("server", &format!("{enrolled}\n{controller}")).unwrap();
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_line() {
        let [client, server] = EXAMPLES.map(|(_, text)| text);
        for (role, text, from, to, expected) in [
            (
                "client",
                client,
                "masquerade =",
                "maskerade =",
                "unknown field `maskerade`",
            ),
            (
                "client",
                client,
                "\"car-1\"",
                "\"car 1\"",
                "line 3: name must consist of",
            ),
            (
                "client",
                client,
                "key = \"car-1.key\"",
                "",
                "line 11: [tls] has either",
            ),
            (
                "client",
                client,
                "wwan*",
                "hawser*",
                "line 24: \"hawser*\" is also the tunnel's own device",
            ),
            (
                "client",
                client,
                "mtu_bytes = 1492",
                "mtu_bytes = 100",
                "line 28: mtu_bytes is 1280 to 9000",
            ),
            (
                "client",
                client,
                "[\"198.51.100.1:14752\"]",
                "[]",
                "line 20: addresses has one address",
            ),
            (
                "client",
                client,
                "198.51.100.1:14752",
                "198.51.100.1",
                "not an address with a port, such as",
            ),
            (
                "client",
                client,
                "[tunnel]",
                "[tunnel]\nmtu_bytes = 1501",
                "line 3: mtu_bytes is 1280, which",
            ),
            (
                "client",
                client,
                "[tunnel]",
                "[tunnel]\nsession_timeout_s = 0",
                "line 3: session_timeout_s is 1 to 86400",
            ),
            (
                "client",
                client,
                "[tunnel]",
                "[tunnel]\nmtu_retry_s = 19",
                "line 3: mtu_retry_s is 20 to 86400",
            ),
            (
                "client",
                client,
                "[tunnel]",
                "[tunnel]\nsearch_every_s = 5",
                "line 3: search_every_s is 10 to 86400",
            ),
            (
                "client",
                client,
                "name = \"pop-west\"",
                "name = \"pop-west\"\ntcp_port = 0",
                "nonzero",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nlisten_tcp = [\"0.0.0.0:443\", \"[::]:444\"]",
                "line 1: listen_tcp has several ports",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nreport_every_s = 86401",
                "line 1: report_every_s is 0",
            ),
            (
                "server",
                server,
                "frame_boundary = \"rtp\"",
                "duplicate = \"all\"",
                "unknown variant `all`, expected `none` or `urgent`",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nsession_timeout_s = 86401",
                "line 1: session_timeout_s is 1 to 86400",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\ndrain_s = 3601",
                "line 1: drain_s is at most 3600",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nmtu_bytes = 9000",
                "line 1: mtu_bytes is 1280, which",
            ),
            (
                "client",
                client,
                "routes = [\"0.0.0.0/0\", \"::/0\"]",
                "",
                "line 3: kill_switch closes what routes",
            ),
            (
                "client",
                client,
                "[\"192.168.1.0/24\"]",
                "[]\ntable = 254",
                "line 3: table is not 254: without this key",
            ),
            (
                "client",
                client,
                "routes = [\"0.0.0.0/0\", \"::/0\"]",
                "table = 100",
                "line 3: kill_switch closes what routes",
            ),
            (
                "client",
                &client.replace("kill_switch = true", ""),
                "routes = [\"0.0.0.0/0\", \"::/0\"]",
                "",
                "line 3: bypass leaves destinations out of routes, which is empty",
            ),
            (
                "client",
                client,
                "dns = [\"10.77.0.1\"]",
                "dns_domains = [\"example.org\"]",
                "line 3: dns_domains has no effect without dns",
            ),
            (
                "client",
                client,
                "dns = [\"10.77.0.1\"]",
                "dns = [\"10.77.0.1\"]\ndns_domains = [\"example.org x\"]",
                "line 3: dns_domains contains \"example.org x\"",
            ),
            (
                "client",
                client,
                "kill_switch = true",
                "bypass_marks = [0x10]",
                "line 3: bypass_marks leaves packets out of kill_switch",
            ),
            (
                "client",
                client,
                "kill_switch = true",
                "kill_switch = true\nbypass_marks = [14752]",
                "line 3: bypass_marks contains 14752",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nmemory_mb = 1",
                "line 1: memory_mb is 16 to 1000000",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nmax_connections = 0",
                "max_connections is at least 1",
            ),
            (
                "server",
                server,
                "\"10.77.0.0/16\"",
                "\"10.77.0.1/16\"",
                "10.77.0.1/16",
            ),
            (
                "server",
                server,
                "\"fd77::/64\"",
                "\"10.78.0.0/16\"",
                "line 1: addresses has a prefix",
            ),
            (
                "server",
                server,
                "10.77.0.50",
                "10.77.0.1",
                "line 12: 10.77.0.1 is not an address that a client can have",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nrevoked_clients = [\"car-1\"]",
                "\"car-1\" is also in revoked_clients",
            ),
            (
                "server",
                server,
                "[tunnel]",
                "[tunnel]\nrevoked_certificates = [\"car-1\"]",
                "line 1: \"car-1\" is not the serial number",
            ),
            (
                "server",
                server,
                "127.0.0.1:9478",
                "0.0.0.0:9478",
                "line 1: metrics is a loopback address",
            ),
            (
                "client",
                client,
                "[[uplink]]\ninterface = \"eth1\"",
                "[controller]\nurls = []\n[[uplink]]\ninterface = \"eth1\"",
                "urls names each controller",
            ),
            (
                "server",
                server,
                "[coding]",
                "[controller]\nurls = [\"https://a:1\"]\naddresses = [\"10.0.0.1:1\"]\n[coding]",
                "[tls] has to name one's folder",
            ),
            (
                "server",
                server,
                "frame_boundary = \"rtp\"",
                "expiry_ms = 0",
                "line 16: expiry_ms is 1 to 10000",
            ),
            (
                "server",
                server,
                "frame_boundary = \"rtp\"",
                "copies = 2",
                "unknown field `copies`, expected one of `frame_boundary`",
            ),
        ] {
            let error = read(role, &text.replace(from, to)).unwrap_err();
            assert!(error.contains(expected), "{from} -> {to}: {error}");
        }
    }
}
