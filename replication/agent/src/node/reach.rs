//! The paths that do not carry copies although everything here is in order: something on the way drops
//! them or all packets, or the next hop has moved.

use super::Node;
use super::environment::next_hop;
use super::mtus::least;
use crate::config::Config;
use crate::echo::{Echoes, Fault, Narrow};
use anyhow::Result;
use hawser_io::interface;
use hawser_io::kept::{Item, Problem};
use hawser_replication_bpf::SeenEcho;
use hawser_units::{Instant, PathId, PathSet};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;
use tracing::{debug, warn};

/// The next hop of a path is looked for again if no reply arrived for this long.
const NEXT_HOP_AFTER: Duration = Duration::from_secs(1);

/// The next hop of a path is no longer looked for if the last reply is this old: the kernel probes the
/// next hops of its own packets, such as echo requests, at least as often.
const NEXT_HOP_WITHIN: Duration = Duration::from_secs(60);

/// The longest pause between two attempts to find the next hop of a path on which the other node is
/// silent. The first ones are one second apart.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The paths whose interfaces lead into tunnels.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    /// Those whose interface was a tunnel's when it last existed.
    all: PathSet,
    /// Those that carry nothing.
    dead: PathSet,
}

/// The searches for the next hops of silent paths.
#[derive(Debug, Default)]
pub(super) struct Searches {
    by_path: BTreeMap<PathId, Search>,
}

#[derive(Debug)]
struct Search {
    next: Instant,
    pause: Duration,
}

impl Searches {
    /// Returns whether a path's next hop is to be looked for now. `is_lost`: it may have moved.
    fn is_due(&mut self, path: PathId, is_lost: bool, now: Instant) -> bool {
        if !is_lost {
            self.by_path.remove(&path);
            return false;
        }
        let search = self.by_path.entry(path).or_insert(Search {
            next: now,
            pause: Duration::from_secs(1),
        });
        let is_due = now >= search.next;
        if is_due {
            search.next = now + search.pause;
            search.pause = (2 * search.pause).min(LONGEST_PAUSE);
        }
        is_due
    }
}

impl Node {
    /// Stops sending copies on the paths where they do not arrive, and resumes where they do. Looks for
    /// next hops that may have moved. Call this every second.
    pub(crate) fn check_reach(&mut self, echoes: &Echoes, now: Instant) {
        let numbers = self.config.paths.keys().copied().collect::<Vec<_>>();
        self.reduce_mtus(&numbers, echoes)
            .unwrap_or_else(|error| warn!("{error:#}"));
        self.record_faults(&numbers, echoes, now);
        self.requests.keep(&mut own_requests(&self.config, echoes));
        let silences = numbers.iter().filter_map(|path| {
            let silence = echoes.silence(*path, now)?;
            Some((*path, silence))
        });
        let lost = self.lost(&silences.collect());
        for path in numbers {
            if !self.searches.is_due(path, lost.contains(&path), now) {
                continue;
            }
            match self.renew_next_hop(path) {
                // The answer is there when the paths are looked up again, after a second.
                Ok(is_renewed) => self.must_follow |= is_renewed,
                Err(error) => debug!(%path, "cannot look for the next hop: {error:#}"),
            }
        }
    }

    /// Returns whether a tunnel has failed or works again, so that the paths have to be checked at once: the device
    /// of a tunnel stays up when its other end is gone. This is cheap.
    pub(crate) fn follow_tunnels(&mut self, echoes: &Echoes) -> bool {
        let all = self.tunnels.all.iter();
        let dead = all.filter(|path| echoes.is_dead_tunnel(*path)).collect();
        std::mem::replace(&mut self.tunnels.dead, dead) != dead
    }

    /// Updates the paths whose interfaces lead into tunnels.
    pub(super) fn find_tunnels(&mut self) {
        let (paths, interfaces) = (&self.config.paths, &self.interfaces);
        let all = paths.iter().filter(|(number, path)| {
            let exists = interfaces.number(&path.interface).is_some();
            match exists {
                true => interfaces.is_tunnel(&path.interface),
                false => self.tunnels.all.contains(**number),
            }
        });
        self.tunnels.all = all.map(|(number, _)| *number).collect();
    }

    /// Returns whether the interface of a path leads into a tunnel.
    pub(crate) fn is_tunnel(&self, path: PathId) -> bool {
        self.tunnels.all.contains(path)
    }

    /// Reduces the MTUs of the paths on which large packets do not arrive.
    fn reduce_mtus(&mut self, paths: &[PathId], echoes: &Echoes) -> Result<()> {
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        for path in paths {
            if let Some(Narrow { bytes, told }) = echoes.narrow(*path) {
                let why =
                    format!("packets of {bytes} bytes do not arrive on it, and small ones do");
                self.paths.reduce(sender, *path, told, &why)?;
            }
        }
        self.record_changes();
        Ok(())
    }

    /// Returns whether the MTU of a narrow path cannot be reduced further.
    fn is_least(&self, path: PathId, found: &Narrow) -> bool {
        let remote = self.config.paths.get(&path).map(|path| path.remote);
        remote.is_some_and(|remote| found.bytes <= least(remote.is_ipv6()))
    }

    /// Leaves out the paths on which copies do not arrive, and names those on which nothing seems to.
    fn record_faults(&mut self, paths: &[PathId], echoes: &Echoes, now: Instant) {
        let (mut losing, mut unanswered) = (BTreeMap::new(), BTreeMap::new());
        for path in paths {
            if self.tunnels.dead.contains(*path) {
                let why = describe_dead(&self.config.paths[path].interface);
                unanswered.insert(*path, why.clone());
                losing.insert(*path, why);
                continue;
            }
            let Some(fault) = echoes.fault(*path, now) else {
                let too_narrow = echoes
                    .narrow(*path)
                    .filter(|found| self.is_least(*path, found));
                losing.extend(too_narrow.map(|found| (*path, describe_narrow(found.bytes))));
                continue;
            };
            let why = describe(fault, &self.config);
            if matches!(fault, Fault::Unanswered | Fault::PeerUnanswered) {
                unanswered.insert(*path, why.clone());
            }
            if matches!(fault, Fault::LosesCopies | Fault::PeerUnanswered) {
                losing.insert(*path, why);
            }
        }
        let are_all = !paths.is_empty() && losing.len() == paths.len();
        self.must_follow |= self.paths.set_unanswered(unanswered);
        self.must_follow |= self.paths.set_losing(losing);
        if self.sender.is_none() {
            self.paths.record_unanswered();
        } else if are_all && self.must_follow {
            warn!(
                "copies arrive on no path: the packets of all flows take the default route, without copies"
            );
        }
    }

    /// Returns the paths whose next hops may have moved, by the times since the last replies.
    fn lost(&self, silences: &BTreeMap<PathId, Duration>) -> BTreeSet<PathId> {
        if !silences.values().copied().any(is_silent) {
            return BTreeSet::new();
        }
        let paths = silences.iter().filter_map(|(path, silence)| {
            let next_hop = self.next_hop(*path).inspect_err(
                |error| debug!(%path, "the next hop of a silent path is unknown: {error:#}"),
            );
            let interface = &self.config.paths.get(path)?.interface;
            Some((*path, *silence, (interface, next_hop.ok()?)))
        });
        without_answers(&paths.collect::<Vec<_>>())
    }

    /// Returns the echo requests on the port of copies after the first `count` ones, and sets `count` to
    /// their number.
    pub(crate) fn seen_echoes(&self, count: &mut u64) -> Vec<SeenEcho> {
        let receiver = self.receiver.as_ref();
        let seen = receiver.and_then(|receiver| receiver.seen_echoes(count).ok());
        seen.unwrap_or_default()
    }

    /// Makes the kernel resolve the next hop of a path again. Returns whether it does.
    fn renew_next_hop(&self, path: PathId) -> Result<bool> {
        let Ok(interface) = interface::find(&self.config.paths[&path].interface) else {
            return Ok(false);
        };
        Ok(interface::renew_neighbour(
            self.next_hop(path)?,
            &interface,
        )?)
    }

    fn next_hop(&self, path: PathId) -> Result<IpAddr> {
        next_hop(&self.config.paths[&path], self.locals.get(path))
    }
}

/// The requests on a path, which this node's own firewall should let out.
struct OwnRequests {
    path: PathId,
    ports: [u16; 2],
    are_dropped: bool,
}

impl Item for OwnRequests {
    fn name(&self) -> String {
        format!("measurement of path {}", self.path.number())
    }

    fn examine(&self) -> Option<Problem> {
        let [port, echo_port] = self.ports;
        self.are_dropped.then(|| Problem {
            what: format!(
                "this node's firewall drops its requests on path {} (a chain with the hook `output`), so whether copies \
                 arrive there is unknown",
                self.path.number()
            ),
            advice: format!("let UDP {port} and {echo_port} pass in that chain"),
        })
    }
}

fn own_requests(config: &Config, echoes: &Echoes) -> Vec<Box<dyn Item>> {
    let requests = config.paths.keys().map(|path| OwnRequests {
        path: *path,
        ports: [config.port, config.echo_port],
        are_dropped: echoes.is_dropped_here(*path),
    });
    requests
        .map(|item| Box::new(item) as Box<dyn Item>)
        .collect()
}

fn describe_dead(interface: &str) -> String {
    format!(
        "the other node does not answer through the tunnel of {interface}: look at the status of the tunnel's client \
         and server, and whether the agent of the other node runs"
    )
}

fn describe_narrow(bytes: u16) -> String {
    format!(
        "large packets do not arrive: those of {bytes} bytes are dropped on the way, where small ones pass; look for a \
         firewall that drops large packets, and for interfaces with a smaller MTU"
    )
}

fn describe(fault: Fault, config: &Config) -> String {
    let Config {
        port, echo_port, ..
    } = config;
    match fault {
        Fault::LosesCopies => format!(
            "copies do not arrive: UDP {port} seems to be dropped on the way, where other packets pass; allow it in the \
             firewalls of both nodes and between them"
        ),
        Fault::Unanswered => format!(
            "nothing arrives: the other node answers on other paths, and on this one neither on UDP {port} nor on UDP \
             {echo_port}; allow both in the firewalls of both nodes and between them, and look at its next hop"
        ),
        Fault::PeerUnanswered => format!(
            "the other node answers on no path, neither on UDP {port} nor on UDP {echo_port}: start its agent, or allow \
             both in the firewalls of both nodes and between them"
        ),
    }
}

/// Returns whether the other node has become silent on a path, so that its next hop may have moved.
fn is_silent(silence: Duration) -> bool {
    silence >= NEXT_HOP_AFTER && silence < NEXT_HOP_WITHIN
}

/// Returns the silent paths over next hops by which no path is answered. Where one is answered, the
/// next hop is there, and the other node of the silent path is not.
fn without_answers<H: PartialEq>(paths: &[(PathId, Duration, H)]) -> BTreeSet<PathId> {
    let silent = paths.iter().filter(|(_, silence, next_hop)| {
        let mut others = paths.iter().filter(|(_, _, other)| other == next_hop);
        is_silent(*silence) && others.all(|(_, silence, _)| *silence >= NEXT_HOP_AFTER)
    });
    silent.map(|(path, _, _)| *path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_path_is_searched_soon_and_then_less_often() {
        let path = PathId::from_number(2).unwrap();
        let mut searches = Searches::default();
        let mut at = |second: u64, is_lost| {
            let now = Instant::ZERO + Duration::from_secs(second);
            searches.is_due(path, is_lost, now)
        };
        assert!(!at(0, false));
        let searched = (1..=20).filter(|second| at(*second, true));
        assert_eq!(searched.collect::<Vec<_>>(), [1, 2, 4, 8, 13, 18]);
        assert!(!at(21, false));
        assert!(at(22, true));
    }
    #[test]
    fn a_next_hop_that_carries_answers_is_not_searched() {
        let [first, second, third] = [1, 2, 3].map(|path| PathId::from_number(path).unwrap());
        let of = |millis: [u64; 3]| {
            let [a, b, c] = millis.map(Duration::from_millis);
            let paths = [
                (first, a, "gateway"),
                (second, b, "gateway"),
                (third, c, "other"),
            ];
            without_answers(&paths).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(of([3_000, 999, 999]), [], "one of two nodes is down");
        assert_eq!(of([3_000, 1_100, 999]), [first, second]);
        assert_eq!(of([3_000, 90_000, 2_000]), [first, third]);
    }
}
