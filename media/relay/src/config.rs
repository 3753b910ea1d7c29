//! The relay's configuration file.

mod from_moq;

pub use from_moq::{FromMoq, MoqSource, MoqTrust, SecretUrl};

use hawser_client::Controller;
use hawser_io::config::{ConfigError, Source};
use hawser_keys::{ControlledTrack, KeySource};
use hawser_metrics::server::check_loopback;
use hawser_model::Name;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU8;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The configuration of a relay.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name of the relay, for its folder of status.
    pub name: String,
    /// The folder that has a folder of status for each relay.
    pub state: PathBuf,
    /// The loopback address at which metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The loopback address at which the viewer's page is served.
    pub web: Option<SocketAddr>,
    /// The broadcasts that are relayed.
    pub broadcasts: Vec<BroadcastConfig>,
    /// The rate at which a viewer is served at first, in Mb/s.
    pub initial_rate_mbps: f64,
    /// The highest rate at which a viewer is served, in Mb/s.
    pub max_rate_mbps: f64,
}

/// A broadcast that is relayed.
#[derive(Debug, Clone)]
pub struct BroadcastConfig {
    /// The name in logs and metrics.
    pub name: String,
    /// Its source.
    pub upstream: Upstream,
    /// The address for viewers.
    pub listen: SocketAddr,
    /// The address at which viewers reach it, if it is another one.
    pub announce: Option<SocketAddr>,
    /// The source of the secret for relays.
    pub key: KeySource,
    /// The maximum number of viewers.
    pub viewers: usize,
    /// The time between the reports of viewers, in milliseconds.
    pub report_interval_ms: NonZeroU8,
    /// The time for which packets are kept.
    pub cache: Duration,
    /// The maximum number of bytes that are kept.
    pub cache_bytes: usize,
    /// Where the broadcast is served over MoQ.
    pub moq: Option<MoqConfig>,
}

/// The source of a broadcast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// Host and port of the publisher, or of the relay before this one.
    Peer(String),
    /// The source that the controller names.
    Track,
    /// Media over QUIC.
    Moq(FromMoq),
}

/// The server of Media over QUIC of a broadcast.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoqConfig {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The name under which the broadcast is announced.
    pub name: String,
    /// The files with the certificate and its key, PEM; `None`: one that the relay makes.
    pub identity: Option<[PathBuf; 2]>,
    /// The file with the token that clients present; `None`: they need none.
    pub token: Option<PathBuf>,
    /// The maximum number of clients.
    pub clients: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The name of the folder with the status.
    #[serde(default = "name")]
    name: Spanned<String>,
    /// The folder of that folder.
    #[serde(default = "state")]
    state: PathBuf,
    /// A loopback address and port at which metrics are served.
    metrics: Option<Spanned<SocketAddr>>,
    /// A loopback address and port at which the page is served with which browsers of this machine watch the
    /// broadcasts that have `[broadcast.moq]`, also those with a `token`.
    web: Option<Spanned<SocketAddr>>,
    controller: Option<Spanned<FileController>>,
    broadcast: Spanned<Vec<FileBroadcast>>,
    /// The rate at which a viewer is served before anything is known of its path.
    #[serde(default = "initial_rate")]
    initial_rate_mbps: Spanned<f64>,
    /// The highest rate at which a viewer is served.
    #[serde(default = "max_rate")]
    max_rate_mbps: Spanned<f64>,
}

/// The controllers, which know the keys and the publishers of broadcasts with a `track`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileController {
    /// `["https://HOST:PORT"]`, every instance of the controller.
    urls: Vec<String>,
    /// The folder of the certificate of the node that the relay is, which `hawser enrol` or the agent
    /// makes.
    node: PathBuf,
}

/// A controller, and the certificate of the relay's node.
struct Controlled {
    controllers: Vec<Controller>,
    node: PathBuf,
}

/// One for each broadcast.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileBroadcast {
    /// The name in status, metrics and log.
    name: Spanned<String>,
    /// Host and port of the publisher, or of another relay. A name is looked up for each session. Not needed with
    /// `track`: the controller says where.
    upstream: Option<Spanned<String>>,
    from_moq: Option<Spanned<from_moq::Table>>,
    /// The address and port for viewers: one of this machine, not 0.0.0.0.
    listen: Spanned<SocketAddr>,
    /// The address and port at which viewers and relays reach `listen`, for the controller to tell them, if that
    /// is another one, as behind NAT. Needs `track`.
    announce: Option<Spanned<SocketAddr>>,
    /// The file that `hawser keygen --relay-of` made.
    key: Option<PathBuf>,
    /// Instead of `key` and `upstream`: a track of the controller that this node may relay, or watch.
    track: Option<Spanned<String>>,
    /// The maximum number of viewers.
    #[serde(default = "viewers")]
    viewers: Spanned<usize>,
    /// The time between the reports of a viewer, 1 to 120.
    #[serde(default = "report_interval")]
    report_interval_ms: Spanned<u8>,
    /// The time for which packets are kept, at most 60000.
    #[serde(default = "cache")]
    cache_ms: Spanned<u32>,
    /// The memory for them, with 200 bytes for each packet and 300 for each object besides its own.
    #[serde(default = "cache_size")]
    cache_mb: Spanned<u32>,
    moq: Option<Spanned<FileMoq>>,
}

/// Serves the broadcast over Media over QUIC, too.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMoq {
    /// The address and port for MoQ clients (QUIC, UDP). Any other than a loopback address needs a `token`.
    /// Default: `"127.0.0.1:14754"`.
    #[serde(default = "moq_listen")]
    listen: Spanned<SocketAddr>,
    /// The name under which the broadcast is announced. Default: that of the broadcast.
    name: Option<Spanned<String>>,
    /// The PEM file with the certificate chain. Default: a certificate of the relay's own for 13 days,
    /// another one at every start and every week.
    certificate: Option<PathBuf>,
    /// The PEM file with its key, which only its owner and its group may read.
    certificate_key: Option<PathBuf>,
    /// The file with the token that clients present, 16 to 128 letters, digits and `._~-`, which only its
    /// owner may read.
    token: Option<PathBuf>,
    /// The maximum number of clients. One address, which all those behind a router may share, gets little
    /// more than half of the places.
    #[serde(default = "moq_clients")]
    clients: Spanned<usize>,
}

fn name() -> Spanned<String> {
    Spanned::new(0..0, "relay".to_owned())
}

fn state() -> PathBuf {
    PathBuf::from("/run/hawser/relay")
}

fn initial_rate() -> Spanned<f64> {
    Spanned::new(0..0, 10.0)
}

fn max_rate() -> Spanned<f64> {
    Spanned::new(0..0, 200.0)
}

fn viewers() -> Spanned<usize> {
    Spanned::new(0..0, hawser_fanout::MAX_SLOTS)
}

fn report_interval() -> Spanned<u8> {
    Spanned::new(0..0, 100)
}

fn cache() -> Spanned<u32> {
    Spanned::new(0..0, 2000)
}

fn cache_size() -> Spanned<u32> {
    Spanned::new(0..0, 32)
}

fn moq_listen() -> Spanned<SocketAddr> {
    Spanned::new(0..0, (Ipv4Addr::LOCALHOST, 14754).into())
}

fn moq_clients() -> Spanned<usize> {
    Spanned::new(0..0, 64)
}

/// The valid rates, in Mb/s.
const RATES: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

impl Config {
    /// Returns the path of the status file.
    pub fn status_file(&self) -> PathBuf {
        self.state.join(&self.name).join("status.json")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is not valid, with the line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Config::parse(&Source::read(path)?)
    }

    fn parse(source: &Source<'_>) -> Result<Self, ConfigError> {
        let file: File = source.parse()?;
        source.check_name(&file.name, file.name.get_ref())?;
        if let Some(metrics) = &file.metrics {
            check_loopback(*metrics.get_ref(), 9480)
                .map_err(|message| source.wrong(metrics, message))?;
        }
        for rate in [&file.initial_rate_mbps, &file.max_rate_mbps] {
            if !RATES.contains(rate.get_ref()) {
                return Err(source.wrong(rate, "a rate is between 0.1 and 10000 Mb/s"));
            }
        }
        if file.broadcast.get_ref().is_empty() {
            return Err(source.wrong(&file.broadcast, "there must be at least one [[broadcast]]"));
        }
        let controlled = file.controller.as_ref();
        let controlled = controlled
            .map(|of| Controlled::parse(source, of))
            .transpose()?;
        let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
        let mut broadcasts = Vec::new();
        for broadcast in file.broadcast.into_inner() {
            source.check_name(&broadcast.name, broadcast.name.get_ref())?;
            if !names.insert(broadcast.name.get_ref().clone()) {
                return Err(source.wrong(&broadcast.name, "two broadcasts have this name"));
            }
            let moq = broadcast.moq.as_ref().map(|moq| &moq.get_ref().listen);
            let from_moq = broadcast.from_moq.as_ref();
            let from_moq = from_moq.and_then(|from| from.get_ref().listen.as_ref());
            for listen in [Some(&broadcast.listen), moq, from_moq]
                .into_iter()
                .flatten()
            {
                if !addresses.insert(*listen.get_ref()) {
                    return Err(source.wrong(listen, "this address is used twice"));
                }
            }
            broadcasts.push(broadcast.parsed(source, controlled.as_ref())?);
        }
        if let Some(web) = &file.web {
            let is_loopback = web.get_ref().ip().is_loopback();
            let has_shown = broadcasts.iter().any(|of| of.moq.is_some());
            let message = match (is_loopback, has_shown) {
                (true, true) => None,
                (true, false) => Some("web shows broadcasts with [broadcast.moq]: there is none"),
                (false, _) => Some(
                    "web is a loopback address such as 127.0.0.1:14780: the page is not protected",
                ),
            };
            message.map_or(Ok(()), |message| Err(source.wrong(web, message)))?;
        }
        Ok(Config {
            name: file.name.into_inner(),
            state: file.state,
            metrics: file.metrics.map(Spanned::into_inner),
            web: file.web.map(Spanned::into_inner),
            broadcasts,
            initial_rate_mbps: file.initial_rate_mbps.into_inner(),
            max_rate_mbps: file.max_rate_mbps.into_inner(),
        })
    }
}

impl Controlled {
    fn parse(source: &Source<'_>, file: &Spanned<FileController>) -> Result<Self, ConfigError> {
        let FileController { urls, node } = file.get_ref();
        let controllers = urls.iter().map(|url| url.parse());
        let controllers: Vec<Controller> = controllers
            .collect::<Result<_, hawser_client::Error>>()
            .map_err(|error| source.wrong(file, error.to_string()))?;
        if controllers.is_empty() {
            let message = "urls names each controller as \"https://HOST:PORT\"";
            return Err(source.wrong(file, message));
        }
        let node = source.directory().join(node);
        Ok(Controlled { controllers, node })
    }

    fn track(&self, track: Name) -> KeySource {
        KeySource::Controller(ControlledTrack {
            track,
            controllers: self.controllers.clone(),
            node: self.node.clone(),
        })
    }
}

impl FileBroadcast {
    fn parsed(
        self,
        source: &Source<'_>,
        controlled: Option<&Controlled>,
    ) -> Result<BroadcastConfig, ConfigError> {
        let key = self.key(source, controlled)?;
        let is_controlled = matches!(key, KeySource::Controller(_));
        if let Some(announce) = self.announce.as_ref().filter(|_| !is_controlled) {
            let message = "an address is announced to a controller: track is missing";
            return Err(source.wrong(announce, message));
        }
        if let Some(announce) = &self.announce {
            let reachable = hawser_keys::reachable(*announce.get_ref());
            reachable.map_err(|error| source.wrong(announce, &error))?;
        }
        let upstream = match (self.upstream, self.from_moq) {
            (None, None) if is_controlled => Upstream::Track,
            (Some(upstream), None) => Upstream::Peer(upstream.into_inner()),
            (None, Some(from)) => {
                let from = from_moq::Table::parsed(from, self.name.get_ref(), source)?;
                Upstream::Moq(from)
            }
            (Some(upstream), Some(_)) => {
                let message = "a broadcast has either an upstream or [broadcast.from_moq]";
                return Err(source.wrong(&upstream, message));
            }
            (None, None) => {
                let message = "upstream (\"HOST:PORT\"), track or [broadcast.from_moq] is missing";
                return Err(source.wrong(&self.name, message));
            }
        };
        let most = hawser_fanout::MAX_SLOTS;
        if !(1..=most).contains(self.viewers.get_ref()) {
            let message = format!("a broadcast has 1 to {most} viewers");
            return Err(source.wrong(&self.viewers, message));
        }
        // Packets of all viewers leave from this address, and the kernel compares it.
        if self.listen.get_ref().ip().is_unspecified() {
            let message = "listen must be one address of this machine, not 0.0.0.0 or [::]";
            return Err(source.wrong(&self.listen, message));
        }
        let interval = NonZeroU8::new(*self.report_interval_ms.get_ref());
        let interval = interval.filter(|ms| ms.get() <= 120);
        let interval = interval.ok_or_else(|| {
            source.wrong(
                &self.report_interval_ms,
                "an interval is 1 to 120 milliseconds",
            )
        })?;
        if *self.cache_ms.get_ref() > 60_000 {
            return Err(source.wrong(&self.cache_ms, "packets are kept for 60000 ms at most"));
        }
        let moq = self.moq;
        let moq = moq
            .map(|moq| FileMoq::parsed(moq, self.name.get_ref(), source))
            .transpose()?;
        Ok(BroadcastConfig {
            name: self.name.into_inner(),
            upstream,
            listen: self.listen.into_inner(),
            announce: self.announce.map(Spanned::into_inner),
            key,
            viewers: self.viewers.into_inner(),
            report_interval_ms: interval,
            cache: Duration::from_millis(self.cache_ms.into_inner().into()),
            cache_bytes: (self.cache_mb.into_inner() as usize) << 20,
            moq,
        })
    }

    fn key(
        &self,
        source: &Source<'_>,
        controlled: Option<&Controlled>,
    ) -> Result<KeySource, ConfigError> {
        match (&self.key, &self.track, controlled) {
            (Some(file), None, _) => Ok(KeySource::File(source.directory().join(file))),
            (None, Some(track), Some(controlled)) => {
                let name: Result<Name, _> = track.get_ref().parse();
                let name = name.map_err(|error| source.wrong(track, error.to_string()))?;
                Ok(controlled.track(name))
            }
            (None, Some(track), None) => Err(source.wrong(
                track,
                "a track belongs to a controller: [controller] is missing",
            )),
            (Some(_), Some(track), _) => {
                Err(source.wrong(track, "a broadcast has either a key or a track"))
            }
            (None, None, _) => Err(source.wrong(
                &self.name,
                "key (a file of hawser keygen --relay-of) or track (of a controller) is missing",
            )),
        }
    }
}

impl FileMoq {
    fn parsed(
        spanned: Spanned<Self>,
        broadcast: &str,
        source: &Source<'_>,
    ) -> Result<MoqConfig, ConfigError> {
        if !cfg!(feature = "moq") {
            return Err(source.wrong(&spanned, "this program was built without MoQ"));
        }
        let identity = match (
            &spanned.get_ref().certificate,
            &spanned.get_ref().certificate_key,
        ) {
            (Some(chain), Some(key)) => {
                Some([chain, key].map(|file| source.directory().join(file)))
            }
            (None, None) => None,
            _ => {
                let message = "certificate and certificate_key belong together";
                return Err(source.wrong(&spanned, message));
            }
        };
        let moq = spanned.into_inner();
        let listen = moq.listen.get_ref();
        if !listen.ip().is_loopback() && moq.token.is_none() {
            let message = "MoQ clients of other machines need a token: name its file with token";
            return Err(source.wrong(&moq.listen, message));
        }
        if !(1..=1024).contains(moq.clients.get_ref()) {
            return Err(source.wrong(&moq.clients, "there are 1 to 1024 MoQ clients"));
        }
        let name = match moq.name {
            Some(name) => {
                source.check_name(&name, name.get_ref())?;
                name.into_inner()
            }
            None => broadcast.to_owned(),
        };
        Ok(MoqConfig {
            listen: *listen,
            name,
            identity,
            token: moq.token.map(|file| source.directory().join(file)),
            clients: moq.clients.into_inner(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        let source = Source::of(Path::new("/etc/hawser/relay.toml"), text);
        Config::parse(&source).map_err(|error| error.to_string())
    }

    const BROADCAST: &str = r#"
        [[broadcast]]
        name = "stage"
        upstream = "publisher.example:14748"
        listen = "192.0.2.9:14750"
        key = "stage.relay.key"
    "#;

    #[test]
    fn a_short_file_has_sensible_values() {
        let config = parse(BROADCAST).unwrap();
        let broadcast = &config.broadcasts[0];
        let KeySource::File(key) = &broadcast.key else {
            panic!("{broadcast:?}");
        };
        assert_eq!(key, Path::new("/etc/hawser/stage.relay.key"));
        assert_eq!(broadcast.viewers, 1024);
        assert_eq!(broadcast.cache, Duration::from_secs(2));
    }

    #[test]
    fn the_example_is_right() {
        let config = parse(include_str!("../examples/relay.toml")).unwrap();
        assert_eq!(config.broadcasts.len(), 1);
        assert!(config.metrics.unwrap().ip().is_loopback());
    }

    #[test]
    fn a_track_is_one_of_the_controller() {
        let track = BROADCAST.replace("key = \"stage.relay.key\"", "track = \"stage\"");
        let controller = "[controller]\nurls = [\"https://a:1\"]\nnode = \"pop\"";
        let config = parse(&format!("{controller}\n{track}")).unwrap();
        let KeySource::Controller(track_of) = &config.broadcasts[0].key else {
            panic!("{config:?}");
        };
        assert_eq!(track_of.node, Path::new("/etc/hawser/pop"));
        let upstream = "upstream = \"publisher.example:14748\"";
        let short = track.replace(upstream, "announce = \"198.51.100.9:14750\"");
        let short = &parse(&format!("{controller}\n{short}")).unwrap().broadcasts[0];
        assert_eq!(short.upstream, Upstream::Track);
        assert_eq!(short.announce, Some(([198, 51, 100, 9], 14750).into()));
        let all = track.replace(upstream, "announce = \"0.0.0.0:14750\"");
        let all = parse(&format!("{controller}\n{all}")).unwrap_err();
        assert!(all.contains("of one program"), "{all}");
        let nowhere = parse(&BROADCAST.replace(upstream, "")).unwrap_err();
        assert!(nowhere.contains("is missing"), "{nowhere}");
        let to_nobody = parse(&format!("{BROADCAST}announce = \"198.51.100.9:14750\""));
        assert!(to_nobody.unwrap_err().contains("track is missing"));
        assert!(
            parse(&track)
                .unwrap_err()
                .contains("[controller] is missing")
        );
        let both = format!("{controller}\n{track}key = \"a\"");
        assert!(
            parse(&both)
                .unwrap_err()
                .contains("either a key or a track")
        );
        let neither = BROADCAST.replace("key = \"stage.relay.key\"", "");
        assert!(parse(&neither).unwrap_err().contains("is missing"));
        let none = controller.replace("\"https://a:1\"", "");
        assert!(
            parse(&format!("{none}\n{track}"))
                .unwrap_err()
                .contains("urls names")
        );
    }

    #[test]
    fn wrong_values_are_refused_with_their_line() {
        let with = |line: &str| parse(&format!("{BROADCAST}{line}\n")).unwrap_err();
        assert!(with("viewers = 2000").contains("line 7: a broadcast has 1 to 1024"));
        assert!(with("report_interval_ms = 200").contains("1 to 120"));
        assert!(with("color = 1").contains("unknown field"));
        let any = BROADCAST.replace("192.0.2.9", "0.0.0.0");
        assert!(parse(&any).unwrap_err().contains("not 0.0.0.0"));
        let twice = format!("{BROADCAST}{BROADCAST}");
        assert!(
            parse(&twice)
                .unwrap_err()
                .contains("two broadcasts have this name")
        );
        let again = BROADCAST.replace("\"stage\"", "\"other\"");
        let twice = format!("{BROADCAST}{again}");
        assert!(parse(&twice).unwrap_err().contains("used twice"));
        assert!(
            parse("initial_rate_mbps = 0\nbroadcast = []")
                .unwrap_err()
                .contains("line 1")
        );
    }

    #[cfg(feature = "moq")]
    #[test]
    fn moq_without_a_token_is_served_on_loopback_only() {
        let with = |lines: &str| parse(&format!("{BROADCAST}[broadcast.moq]\n{lines}\n"));
        let moq = with("").unwrap().broadcasts.remove(0).moq.unwrap();
        assert!(moq.listen.ip().is_loopback() && moq.identity.is_none());
        assert_eq!((moq.name.as_str(), moq.clients), ("stage", 64));
        let elsewhere = "listen = \"192.0.2.9:443\"";
        assert!(
            with(elsewhere)
                .unwrap_err()
                .contains("line 8: MoQ clients of other machines")
        );
        let moq = with(&format!("{elsewhere}\ntoken = \"moq.token\"")).unwrap();
        let token = moq.broadcasts[0].moq.as_ref().unwrap().token.clone();
        assert_eq!(token.unwrap(), Path::new("/etc/hawser/moq.token"));
        let half = with("certificate = \"moq.pem\"").unwrap_err();
        assert!(half.contains("belong together"), "{half}");
    }

    #[cfg(feature = "moq")]
    #[test]
    fn the_page_is_served_on_loopback_for_broadcasts_over_moq() {
        let with = |web: &str, lines: &str| parse(&format!("web = \"{web}\"\n{BROADCAST}{lines}"));
        let moq = "[broadcast.moq]\n";
        let config = with("127.0.0.1:14780", moq).unwrap();
        assert_eq!(config.web.unwrap().port(), 14_780);
        for (web, lines, message) in [
            ("192.0.2.9:14780", moq, "line 1: web is a loopback address"),
            ("127.0.0.1:14780", "", "there is none"),
        ] {
            let error = with(web, lines).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
    }

    #[cfg(feature = "moq")]
    fn from_moq(table: &str) -> Result<Upstream, String> {
        let broadcast = BROADCAST.replace("upstream = \"publisher.example:14748\"", "");
        let config = parse(&format!("{broadcast}\n[broadcast.from_moq]\n{table}"))?;
        Ok(config.broadcasts[0].upstream.clone())
    }

    #[cfg(feature = "moq")]
    #[test]
    fn a_broadcast_comes_over_moq_from_a_server_or_from_publishers() {
        let upstream =
            from_moq("url = \"https://relay.example/a?token=0123456789abcdef\"").unwrap();
        let printed = format!("{upstream:?}");
        assert!(printed.contains("relay.example/a"), "{printed}");
        assert!(!printed.contains("0123456789"), "{printed}");
        let Upstream::Moq(from) = from_moq("listen = \"127.0.0.1:14752\"\nname = \"a/b\"").unwrap()
        else {
            panic!();
        };
        assert_eq!(from.name, "a/b");
        for (wrong, message) in [
            ("", "either url"),
            (
                "url = \"https://a\"\nlisten = \"127.0.0.1:1\"",
                "either url",
            ),
            ("url = \"relay.example:443\"", "https://HOST:PORT"),
            (
                "url = \"https://a\"\ncertificate_sha256 = \"1\"",
                "64 hexadecimal digits",
            ),
            (
                "url = \"https://a\"\ncertificate = \"a.pem\"",
                "belongs to listen",
            ),
            ("listen = \"192.0.2.9:14752\"", "need a token"),
            ("listen = \"192.0.2.9:14750\"\ntoken = \"a\"", "used twice"),
            (
                "listen = \"127.0.0.1:1\"\ncertificate = \"a.pem\"",
                "belong together",
            ),
            ("listen = \"127.0.0.1:1\"\nname = \"a//b\"", "empty parts"),
        ] {
            let error = from_moq(wrong).unwrap_err();
            assert!(error.contains(message), "{wrong}: {error}");
        }
        let both = parse(&format!(
            "{BROADCAST}[broadcast.from_moq]\nurl = \"https://a\""
        ));
        assert!(both.unwrap_err().contains("either an upstream"));
    }
}
