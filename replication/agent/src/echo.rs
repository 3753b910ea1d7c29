//! Measures the round-trip time of every path, and finds out on which candidates for paths the other
//! node answers, and on which paths copies arrive. Both nodes send requests and reply to those of the
//! other.
//!
//! Requests are sent on two ports of every path: their own, and that of the copies. A request on the
//! port of the copies is answered on both, also if this node's firewall drops it, which copies do not
//! pass. If only requests on the other port are answered, something on the path drops copies alone, such
//! as a firewall. If none are, and those on another path to the same node are, the path carries nothing.
//! If none are on any path to a node, its agent does not run, or nothing reaches it. That a request is
//! refused (ICMP) shows nothing: a firewall may have done so.
//!
//! One request in five on the port of the copies is padded to the size of the largest copies. If these are
//! not answered and the others are, large packets do not arrive.
//!
//! A request is answered in the next iteration of the loop. The reply contains how long the request
//! was held, which is subtracted, and the kernel timestamps the arrival of datagrams. The
//! measurement therefore does not depend on the interval of the loop.

use crate::config::{Config, PathConfig, Peer};
use crate::stamped::StampedSocket;
use hawser_io::interface;
use hawser_model::discovery::{Candidate, Ends};
use hawser_replication_bpf::SeenEcho;
use hawser_shim::KeyRing;
use hawser_shim::echo::{Echo, EchoKind};
use hawser_units::{Instant, PathId, smoothed_rtt};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};
use tracing::{debug, warn};

/// A pair of uplinks, of this node and another one, that may be a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateStatus {
    /// The addresses and this node's interface.
    #[serde(flatten)]
    pub way: Candidate,
    /// Whether the other node answers.
    pub answers: bool,
    /// The number of the path that the controller has made of it.
    pub path: Option<u8>,
}

/// Interval of requests on each path.
const REQUEST_EVERY: Duration = Duration::from_millis(200);

/// Interval of requests on a candidate that is not a path.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The other node answers on a candidate if a reply arrived within this time.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// Maximum number of outstanding requests: those of 5 s.
const MAX_OUTSTANDING: usize = 25;

/// A path has no round-trip time if no reply arrived for this long.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Copies on a path do not arrive if this many requests on the other port were answered since the last
/// one on the port of the copies: in 4 s. So many are hardly ever lost by chance, whatever share of
/// packets the path loses.
const OTHERS_ANSWERED: u32 = 20;

/// The other node is silent on a path if this many requests on each port were not answered, which takes
/// 4 s.
const UNANSWERED: u32 = 20;

/// A tunnel carries nothing if this many requests on each port were not answered, which takes 0.8 s. A tunnel
/// recovers what its network loses, so they are not lost by chance.
const UNANSWERED_IN_TUNNEL: u32 = 4;

/// One request in this many on the port of the copies is as large as the largest copies.
const LARGE_EVERY: u32 = 5;

/// Large packets do not arrive on a path if this many large requests were not answered, which takes
/// 10 s, and the small ones meanwhile were.
const LARGE_UNANSWERED: u32 = 10;

/// Maximum number of requests of the peer that are answered between two of our own: twenty times as
/// many as we send.
const MAX_REPLIES: u32 = 20;

/// The measurements of all paths whose peer is known.
#[derive(Debug)]
pub(crate) struct Echoes {
    port: u16,
    /// The paths of the configuration.
    paths: BTreeMap<PathId, PathEcho>,
    /// The candidates, also those that are paths.
    candidates: BTreeMap<Candidate, PathEcho>,
    /// The candidates that are paths.
    discovered: BTreeMap<PathId, Candidate>,
    /// The requests on the port of the copies.
    copies: BTreeMap<PathId, CopyEcho>,
    copy_port: u16,
    /// The number of requests on the port of the copies that were seen in front of the firewall.
    seen: u64,
    next: Instant,
    next_probe: Instant,
}

/// The requests on the port of the copies of one path.
#[derive(Debug)]
struct CopyEcho {
    echo: PathEcho,
    /// The requests on the other port that were answered since the last one on this port.
    others_answered: u32,
}

/// The echoes that arrived at a socket.
#[derive(Debug, Default)]
struct Arrived {
    /// The replies, with the times of their arrival.
    replies: Vec<(Echo, SystemTime)>,
    /// The replies that were sent.
    sent: Vec<Echo>,
}

/// A lack of replies that shows that copies on a path may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Only requests on the other port are answered: copies do not arrive.
    LosesCopies,
    /// The other node answers on other paths only.
    Unanswered,
    /// The other node answers on none of the paths to it.
    PeerUnanswered,
}

/// A path on which large packets do not arrive, and small ones do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Narrow {
    /// The size of packets that do not arrive, bytes.
    pub(crate) bytes: u16,
    /// The MTU that a router has told the kernel, bytes; 0 if none has.
    pub(crate) told: u32,
}

/// The measurement of one path.
#[derive(Debug)]
struct PathEcho {
    path: PathId,
    interface: String,
    remote: SocketAddr,
    /// The name of the node at the other end.
    peer_name: String,
    /// The keys that are shared with it. Without them nothing is sent, and nothing is accepted.
    peer: Option<Peer>,
    /// The socket, with the index of its interface and its address while these exist.
    socket: Option<((u32, IpAddr), StampedSocket)>,
    round_trip: RoundTrip,
    /// How many more requests are answered before our next one.
    replies_left: u32,
    /// Whether a firewall of this node dropped the last request, so that it did not leave.
    is_dropped_here: bool,
    /// The size of the packets with large requests, bytes; `None` if there are none.
    large_bytes: Option<u16>,
}

/// The outstanding requests and the smoothed round-trip time.
#[derive(Debug, Default)]
struct RoundTrip {
    next_number: u32,
    outstanding: VecDeque<Request>,
    smoothed: Option<Duration>,
    last_reply: Option<Instant>,
    /// The requests since the last reply.
    unanswered: u32,
    /// Whether there was a reply at the present interface and address.
    was_answered: bool,
    /// The large requests since the last reply to one, while small ones are answered.
    large_unanswered: u32,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    number: u32,
    sent: SystemTime,
    is_large: bool,
}

impl Echoes {
    pub(crate) fn new(config: &Config) -> Self {
        let (mut paths, mut copies) = (BTreeMap::new(), BTreeMap::new());
        for (path, description) in config.paths.iter().filter(|(_, path)| !path.discovered) {
            let Some(peer) = &description.peer else {
                warn!(
                    path = path.number(),
                    "the round-trip time is not measured: there are several peers, and `peer` names none for this path"
                );
                continue;
            };
            let echo = |port| {
                let remote = SocketAddr::new(description.remote, port);
                PathEcho::new(*path, &description.interface, remote, peer)
            };
            paths.insert(*path, echo(config.echo_port));
            copies.insert(*path, CopyEcho::new(echo(config.port)));
        }
        Echoes {
            port: config.echo_port,
            copy_port: config.port,
            seen: 0,
            paths,
            copies,
            candidates: BTreeMap::new(),
            discovered: BTreeMap::new(),
            next: Instant::ZERO,
            next_probe: Instant::ZERO,
        }
    }

    /// Replaces the candidates. Those that stay keep their measurements. `paths` are all paths of the
    /// node.
    pub(crate) fn set_candidates(
        &mut self,
        candidates: &[Candidate],
        paths: &BTreeMap<PathId, PathConfig>,
    ) {
        self.candidates
            .retain(|candidate, _| candidates.contains(candidate));
        for candidate in candidates {
            let remote = SocketAddr::new(candidate.ends.remote, self.port);
            self.candidates.entry(candidate.clone()).or_insert_with(|| {
                PathEcho::new(
                    path_of_candidates(),
                    &candidate.interface,
                    remote,
                    candidate.peer.as_str(),
                )
            });
        }
        let candidate_of = |path: &PathConfig| {
            let mut candidates = candidates.iter();
            let is_same = |candidate: &&Candidate| {
                let Candidate {
                    interface, ends, ..
                } = candidate;
                let own = (Some(ends.local), ends.remote, interface);
                own == (path.local, path.remote, &path.interface)
            };
            candidates.find(is_same).cloned()
        };
        let discovered = paths.iter().filter(|(_, path)| path.discovered);
        self.discovered = discovered
            .filter_map(|(number, path)| Some((*number, candidate_of(path)?)))
            .collect();
        self.set_discovered_copies();
    }

    /// Sends requests on the port of the copies of the paths that are candidates now.
    fn set_discovered_copies(&mut self) {
        let Echoes {
            paths,
            discovered,
            copies,
            copy_port,
            ..
        } = self;
        let wanted = |candidate: &Candidate| {
            let remote = SocketAddr::new(candidate.ends.remote, *copy_port);
            let peer = candidate.peer.as_str();
            PathEcho::new(path_of_candidates(), &candidate.interface, remote, peer)
        };
        copies.retain(|path, copies| {
            let now = discovered.get(path).map(&wanted);
            paths.contains_key(path) || now.is_some_and(|now| copies.echo.is_to_same(&now))
        });
        for (path, candidate) in discovered {
            let copies = copies.entry(*path);
            copies.or_insert_with(|| CopyEcho::new(wanted(candidate)));
        }
    }

    /// Uses the keys that are shared with the peers now.
    pub(crate) fn set_peers(&mut self, peers: &BTreeMap<String, Peer>) {
        let copies = self.copies.values_mut().map(|copies| &mut copies.echo);
        let others = self.paths.values_mut().chain(self.candidates.values_mut());
        for path_echo in others.chain(copies) {
            path_echo.peer = peers.get(&path_echo.peer_name).cloned();
        }
    }

    /// Uses the current interfaces and addresses.
    pub(crate) fn follow(
        &mut self,
        number_of: impl Fn(&str) -> Option<u32>,
        local_of: impl Fn(PathId) -> Option<IpAddr>,
    ) {
        for path_echo in self.paths.values_mut() {
            path_echo.follow(number_of(&path_echo.interface).zip(local_of(path_echo.path)));
        }
        for (path, copies) in &mut self.copies {
            let echo = &mut copies.echo;
            echo.follow(number_of(&echo.interface).zip(local_of(*path)));
        }
        for (candidate, path_echo) in &mut self.candidates {
            let number = interface::index(&candidate.interface);
            path_echo.follow(number.map(|number| (number, candidate.ends.local)));
        }
    }

    /// Handles requests and replies, and sends requests that are due. `seen` returns the requests on the
    /// port of the copies that were seen in front of the firewall after the first ones of this number,
    /// which it updates. `mtu_of` returns the size of the largest copies on a path, if some are sent.
    pub(crate) fn handle(
        &mut self,
        now: Instant,
        seen: impl FnOnce(&mut u64) -> Vec<SeenEcho>,
        mtu_of: impl Fn(PathId) -> Option<u16>,
    ) {
        for (path, copies) in &mut self.copies {
            copies.echo.set_large(mtu_of(*path));
        }
        let is_due = now >= self.next;
        if is_due {
            self.next = now + REQUEST_EVERY;
        }
        let probe_is_due = now >= self.next_probe;
        if probe_is_due {
            self.next_probe = now + PROBE_EVERY;
        }
        for (path, path_echo) in &mut self.paths {
            let arrived = path_echo.handle(is_due);
            let others = path_echo.take_replies(arrived.replies, now);
            if let Some(copies) = self.copies.get_mut(path) {
                copies.handle_others(others, now);
            }
        }
        for (candidate, path_echo) in &mut self.candidates {
            let mut discovered = self.discovered.iter();
            let path = discovered.find(|(_, path)| *path == candidate);
            let is_due = if path.is_some() { is_due } else { probe_is_due };
            let arrived = path_echo.handle(is_due);
            let others = path_echo.take_replies(arrived.replies, now);
            if let Some(copies) = path.and_then(|(path, _)| self.copies.get_mut(path)) {
                copies.handle_others(others, now);
            }
        }
        let seen = match is_due {
            true => seen(&mut self.seen),
            false => Vec::new(),
        };
        self.handle_copies(now, is_due, &seen);
    }

    /// Handles what arrived on the ports of the copies, and answers it on the other ports too.
    fn handle_copies(&mut self, now: Instant, is_due: bool, seen: &[SeenEcho]) {
        for (path, copies) in &mut self.copies {
            let mut sent = copies.handle(now, is_due);
            sent.extend(copies.echo.answer(seen));
            let other = match self.discovered.get(path) {
                Some(candidate) => self.candidates.get(candidate),
                None => self.paths.get(path),
            };
            if let Some(other) = other {
                // The other node asks again if one cannot be sent.
                sent.iter().for_each(|reply| drop(other.send(reply)));
            }
        }
    }

    /// Returns what is wrong with a path, judged by the replies.
    pub(crate) fn fault(&self, path: PathId, now: Instant) -> Option<Fault> {
        let copies = self.copies.get(&path);
        if copies.is_some_and(|copies| copies.others_answered >= OTHERS_ANSWERED) {
            return Some(Fault::LosesCopies);
        }
        let own = self.echo(path).filter(|_| self.is_silent(path))?;
        let all = self.paths.keys().chain(self.discovered.keys());
        let echoes = all.filter_map(|other| Some((*other, self.echo(*other)?)));
        let mut of_peer = echoes.filter(|(_, echo)| echo.peer_name == own.peer_name);
        let is_silent = |(other, echo)| self.is_silent(other) || !PathEcho::is_open(echo);
        if of_peer.clone().all(is_silent) {
            return Some(Fault::PeerUnanswered);
        }
        let is_answered = |echo: &PathEcho| echo.round_trip.is_answered(now, REACHED_WITHIN);
        let is_reached = of_peer.any(|(_, other)| is_answered(other));
        is_reached.then_some(Fault::Unanswered)
    }

    /// Returns whether large packets do not arrive on a path, and small ones do.
    pub(crate) fn narrow(&self, path: PathId) -> Option<Narrow> {
        self.copies.get(&path)?.echo.narrow()
    }

    /// Returns whether this node's own firewall drops the requests on a port of a path.
    pub(crate) fn is_dropped_here(&self, path: PathId) -> bool {
        let copies = self.copies.get(&path).map(|copies| &copies.echo);
        let mut echoes = self.echo(path).into_iter().chain(copies);
        echoes.any(|echo| echo.is_dropped_here)
    }

    /// Returns whether the other node answers on no port of a path.
    fn is_silent(&self, path: PathId) -> bool {
        let is_silent = |echo: &PathEcho| echo.round_trip.unanswered >= UNANSWERED;
        let copies = self.copies.get(&path);
        self.echo(path).is_some_and(is_silent)
            && copies.is_none_or(|copies| is_silent(&copies.echo))
    }

    /// Returns whether a path over a tunnel carries nothing: requests are answered on no port, or have not been
    /// since its device was made. Before that, nobody knows whether there is another end.
    pub(crate) fn is_dead_tunnel(&self, path: PathId) -> bool {
        let copies = self.copies.get(&path).map(|copies| &copies.echo);
        let echoes = || self.echo(path).into_iter().chain(copies);
        let are_sent = |echo: &PathEcho| echo.may_send() && !echo.is_dropped_here;
        let is_answered = |echo: &PathEcho| {
            let round_trip = &echo.round_trip;
            round_trip.was_answered && round_trip.unanswered < UNANSWERED_IN_TUNNEL
        };
        echoes().any(are_sent) && !echoes().any(is_answered)
    }

    /// Returns the time since the last reply of the other node on a path, if there was one.
    pub(crate) fn silence(&self, path: PathId, now: Instant) -> Option<Duration> {
        let copies = self.copies.get(&path).map(|copies| &copies.echo);
        let replies = |echo: &PathEcho| echo.round_trip.last_reply;
        let last = self.echo(path).and_then(replies);
        let last = last.max(copies.and_then(replies));
        last.map(|last| now.saturating_since(last))
    }

    /// Returns the candidates, whether the other node answers on each, and the path that it is.
    pub(crate) fn candidates(&self, now: Instant) -> Vec<CandidateStatus> {
        let path_of = |candidate| {
            let mut discovered = self.discovered.iter();
            let path = discovered.find(|(_, path)| *path == candidate);
            path.map(|(number, _)| number.number())
        };
        let candidates = self.candidates.iter();
        let status = candidates.map(|(candidate, path_echo)| CandidateStatus {
            way: candidate.clone(),
            answers: path_echo.round_trip.is_answered(now, REACHED_WITHIN),
            path: path_of(candidate),
        });
        status.collect()
    }

    /// Returns the candidates on which the other node answers.
    pub(crate) fn reached(&self, now: Instant) -> Vec<Ends> {
        let candidates = self.candidates.iter();
        candidates
            .filter(|(_, path_echo)| path_echo.round_trip.is_answered(now, REACHED_WITHIN))
            .map(|(candidate, _)| candidate.ends)
            .collect()
    }

    /// Returns the smoothed round-trip time of a path, or `None` while the other node does not
    /// reply.
    pub(crate) fn round_trip(&self, path: PathId, now: Instant) -> Option<Duration> {
        self.echo(path)?.round_trip.at(now)
    }

    /// Returns the measurement of a path.
    fn echo(&self, path: PathId) -> Option<&PathEcho> {
        match self.discovered.get(&path) {
            Some(candidate) => self.candidates.get(candidate),
            None => self.paths.get(&path),
        }
    }
}

impl CopyEcho {
    fn new(echo: PathEcho) -> Self {
        CopyEcho {
            echo,
            others_answered: 0,
        }
    }

    /// Handles what has arrived, and sends a request if one is due. Returns the replies that were
    /// sent.
    fn handle(&mut self, now: Instant, is_due: bool) -> Vec<Echo> {
        let arrived = self.echo.handle(is_due);
        let count = arrived.replies.len();
        let unknown = self.echo.take_replies(arrived.replies, now).unknown;
        if unknown.len() < count {
            self.others_answered = 0;
        }
        arrived.sent
    }

    /// Handles the replies on the other port, which may be to requests on this one.
    fn handle_others(&mut self, others: Taken, now: Instant) {
        let count = others.unknown.len();
        let unknown = self.echo.take_replies(others.unknown, now).unknown;
        if unknown.len() < count {
            self.others_answered = 0;
        } else if self.echo.is_open() && !self.echo.is_dropped_here {
            self.others_answered = self.others_answered.saturating_add(others.known);
        }
    }
}

/// Replies that were compared with the outstanding requests.
#[derive(Debug, Default)]
struct Taken {
    /// The number of those to a request.
    known: u32,
    /// The others.
    unknown: Vec<(Echo, SystemTime)>,
}

impl PathEcho {
    fn new(path: PathId, interface: &str, remote: SocketAddr, peer_name: &str) -> Self {
        PathEcho {
            path,
            interface: interface.to_owned(),
            remote,
            peer_name: peer_name.to_owned(),
            peer: None,
            socket: None,
            round_trip: RoundTrip {
                next_number: random_number(),
                ..RoundTrip::default()
            },
            replies_left: MAX_REPLIES,
            is_dropped_here: false,
            large_bytes: None,
        }
    }

    /// Uses the interface of this index with this address; `None` while there is none.
    fn follow(&mut self, place: Option<(u32, IpAddr)>) {
        if self.socket.as_ref().map(|(place, _)| *place) != place {
            self.socket = place.and_then(|place| Some((place, self.open(place.1)?)));
            self.round_trip.unanswered = 0;
            self.round_trip.was_answered = false;
        }
    }

    /// Returns whether this is a measurement of the same path as another one.
    fn is_to_same(&self, other: &PathEcho) -> bool {
        let way = |echo: &PathEcho| (echo.remote, echo.interface.clone(), echo.peer_name.clone());
        way(self) == way(other)
    }

    /// Returns whether requests are sent.
    fn is_open(&self) -> bool {
        self.socket.is_some() && self.may_send()
    }

    /// Returns whether requests are sent as soon as there is a socket: the keys are known.
    fn may_send(&self) -> bool {
        let may_send = |peer: &Peer| peer.by_hand || peer.key.is_some();
        self.peer.as_ref().is_some_and(may_send)
    }

    /// Returns what has arrived, answers requests in it, and sends a request if one is due.
    fn handle(&mut self, is_due: bool) -> Arrived {
        let arrived = self.receive();
        if is_due {
            self.send_request();
        }
        arrived
    }

    /// Finishes the measurements of the requests that these replies are to.
    fn take_replies(&mut self, replies: Vec<(Echo, SystemTime)>, now: Instant) -> Taken {
        let mut taken = Taken::default();
        for (reply, at) in replies {
            if self.round_trip.handle_reply(&reply, at, now) {
                taken.known += 1;
            } else {
                taken.unknown.push((reply, at));
            }
        }
        taken
    }

    fn open(&self, local: IpAddr) -> Option<StampedSocket> {
        let remote = self.remote;
        let local = SocketAddr::new(local, remote.port());
        let opened = StampedSocket::open(&self.interface, local, remote);
        opened
            .inspect_err(|error| warn!(path = %self.path, "cannot measure the round-trip time from {local}: {error}"))
            .ok()
    }

    fn receive(&mut self) -> Arrived {
        let mut arrived = Arrived::default();
        // The padding of a large request does not fit.
        let mut buffer = [0; Echo::LEN];
        while let Some((_, socket)) = &self.socket {
            let received = match socket.receive(&mut buffer) {
                Ok(Some(received)) => received,
                Ok(None) => break,
                // An ICMP error for an earlier request, for example port unreachable.
                Err(error) => {
                    debug!(path = %self.path, "{error}");
                    continue;
                }
            };
            let Some(peer) = &self.peer else { continue };
            let echo = Echo::parse(&buffer[..received.bytes], &peer.ring);
            let Some(echo) = echo.filter(|echo| echo.path == self.path) else {
                continue;
            };
            match echo.kind {
                EchoKind::Request => arrived.sent.extend(self.send_reply(echo, received.at)),
                EchoKind::Reply => arrived.replies.push((echo, received.at)),
            }
        }
        arrived
    }

    fn send_request(&mut self) {
        self.replies_left = MAX_REPLIES;
        if !self.is_open() {
            return;
        }
        let next = self.round_trip.next_number;
        let large = self
            .large_bytes
            .filter(|_| next.is_multiple_of(LARGE_EVERY));
        let now = SystemTime::now();
        let request = Echo {
            kind: EchoKind::Request,
            path: self.path,
            number: self.round_trip.record_request(now, large.is_some()),
            held_micros: 0,
        };
        let sent = self.send_padded(&request, large);
        let error = sent.err().and_then(|error| error.raw_os_error());
        let error = error.map(Errno::from_raw);
        // The answer of a chain `output` that drops the packet. Copies do not pass that chain.
        self.is_dropped_here = error == Some(Errno::EPERM);
        if matches!(error, Some(Errno::EPERM | Errno::EMSGSIZE)) {
            self.round_trip.withdraw_request();
        }
    }

    /// Uses this size for large requests. `None` leaves it.
    fn set_large(&mut self, bytes: Option<u16>) {
        if bytes.is_some() && bytes != self.large_bytes {
            self.large_bytes = bytes;
            self.round_trip.large_unanswered = 0;
        }
    }

    /// Returns whether large requests are not answered, and small ones are.
    fn narrow(&self) -> Option<Narrow> {
        let bytes = self.large_bytes.filter(|_| self.round_trip.loses_large())?;
        let socket = self.socket.as_ref().map(|(_, socket)| socket);
        let told = socket.and_then(|socket| socket.mtu_bytes().ok());
        let told = told.filter(|told| *told < bytes.into()).unwrap_or(0);
        Some(Narrow { bytes, told })
    }

    /// Returns the reply.
    fn send_reply(&mut self, request: Echo, since: SystemTime) -> Option<Echo> {
        self.replies_left = self.replies_left.checked_sub(1)?;
        let held = since.elapsed().unwrap_or_default();
        let held_micros = u32::try_from(held.as_micros()).unwrap_or(u32::MAX);
        let reply = Echo {
            kind: EchoKind::Reply,
            held_micros,
            ..request
        };
        // The other node asks again.
        let _ = self.send(&reply);
        Some(reply)
    }

    /// Returns replies to the requests of this path that were seen in front of the firewall.
    fn answer(&mut self, seen: &[SeenEcho]) -> Vec<Echo> {
        let (Some(((_, local), _)), Some(peer)) = (&self.socket, &self.peer) else {
            return Vec::new();
        };
        let ends = (*local, self.remote.ip());
        let mut requests = requests(seen, ends, self.path, &peer.ring);
        // The newest ones are certainly outstanding.
        requests.reverse();
        requests.truncate(self.replies_left as usize);
        self.replies_left -= requests.len() as u32;
        let reply = |request| Echo {
            kind: EchoKind::Reply,
            ..request
        };
        requests.into_iter().map(reply).collect()
    }

    fn send(&self, echo: &Echo) -> io::Result<()> {
        self.send_padded(echo, None)
    }

    /// Sends an echo in a packet of at least this size. The tag does not cover the padding.
    fn send_padded(&self, echo: &Echo, bytes: Option<u16>) -> io::Result<()> {
        let (true, Some((_, socket)), Some(peer)) = (self.is_open(), &self.socket, &self.peer)
        else {
            return Ok(());
        };
        let headers = if self.remote.is_ipv4() { 28 } else { 48 };
        let length = usize::from(bytes.unwrap_or(0)).saturating_sub(headers);
        let key = peer.key.as_ref().map(|(slot, key)| (*slot, key));
        let mut datagram = echo.emit(key).to_vec();
        datagram.resize(length.max(Echo::LEN), 0);
        let sent = socket.send(&datagram);
        // A path without replies has no round-trip time. No more needs to be recorded.
        sent.inspect_err(|error| debug!(path = %self.path, "{error}"))
    }
}

/// Returns the authentic ones of the requests that came from the other end of a path.
fn requests(
    seen: &[SeenEcho],
    (local, remote): (IpAddr, IpAddr),
    path: PathId,
    ring: &KeyRing,
) -> Vec<Echo> {
    let of_path = seen
        .iter()
        .filter(|seen| (seen.local, seen.remote) == (local, remote));
    let echoes = of_path.filter_map(|seen| Echo::parse(&seen.bytes, ring));
    echoes
        .filter(|echo| echo.kind == EchoKind::Request && echo.path == path)
        .collect()
}

impl RoundTrip {
    /// Records a request that is sent now. Returns its number.
    fn record_request(&mut self, now: SystemTime, is_large: bool) -> u32 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        if self.outstanding.len() == MAX_OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Request {
            number,
            sent: now,
            is_large,
        });
        self.unanswered = self.unanswered.saturating_add(1);
        self.large_unanswered = match self.unanswered {
            // Nothing arrives, so these say nothing about the size.
            count if count > LARGE_EVERY => 0,
            _ => self.large_unanswered.saturating_add(is_large.into()),
        };
        number
    }

    /// Forgets the last request, which has not left.
    fn withdraw_request(&mut self) {
        let is_large = self
            .outstanding
            .pop_back()
            .is_some_and(|last| last.is_large);
        self.unanswered = self.unanswered.saturating_sub(1);
        self.large_unanswered = self.large_unanswered.saturating_sub(is_large.into());
    }

    /// Returns whether large requests are not answered, and small ones are.
    fn loses_large(&self) -> bool {
        self.large_unanswered >= LARGE_UNANSWERED
    }

    /// Returns whether the reply is to an outstanding request.
    fn handle_reply(&mut self, reply: &Echo, at: SystemTime, now: Instant) -> bool {
        let mut outstanding = self.outstanding.iter();
        let Some(index) = outstanding.position(|asked| asked.number == reply.number) else {
            return false;
        };
        let asked = self.outstanding.remove(index);
        let asked = asked.expect("the position was found");
        if asked.is_large {
            self.large_unanswered = 0;
        }
        (self.unanswered, self.was_answered) = (0, true);
        let held = Duration::from_micros(reply.held_micros.into());
        let all = at.duration_since(asked.sent).ok();
        // The sample is wrong if the clock was set in between; the next one is right.
        if let Some(sample) = all.and_then(|all| all.checked_sub(held)) {
            self.smoothed = Some(smoothed_rtt(self.at(now), sample));
            self.last_reply = Some(now);
        }
        true
    }

    fn at(&self, now: Instant) -> Option<Duration> {
        self.smoothed
            .filter(|_| self.is_answered(now, SILENT_AFTER))
    }

    /// Returns whether a reply arrived within this time.
    fn is_answered(&self, now: Instant, within: Duration) -> bool {
        let last_reply = self.last_reply;
        last_reply.is_some_and(|last| now.saturating_since(last) < within)
    }
}

/// Returns the number in the requests on candidates. The addresses tell which candidate it is, and it
/// may be a path for one node before it is one for the other.
fn path_of_candidates() -> PathId {
    PathId::from_number(1).expect("paths are numbered from 1")
}

/// Returns a random first number, so that replies to an earlier agent are not taken for replies to
/// this one.
fn random_number() -> u32 {
    // Without entropy, the tags still prevent forged replies.
    getrandom::u32().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_shim::KeySlot;
    use hawser_wire::Key;

    fn wall(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(millis)
    }

    fn now(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn reply(number: u32, held_millis: u32) -> Echo {
        let path = PathId::try_from(0).unwrap();
        Echo {
            kind: EchoKind::Reply,
            path,
            number,
            held_micros: held_millis * 1000,
        }
    }

    #[test]
    fn round_trips_exclude_the_peers_time_and_are_smoothed() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.at(now(0)), None);
        let number = round_trip.record_request(wall(0), false);
        round_trip.handle_reply(&reply(number, 9), wall(49), now(49));
        assert_eq!(round_trip.at(now(49)), Some(Duration::from_millis(40)));
        let number = round_trip.record_request(wall(200), false);
        round_trip.handle_reply(&reply(number, 0), wall(248), now(248));
        assert_eq!(round_trip.at(now(248)), Some(Duration::from_millis(41)));
    }

    #[test]
    fn a_path_that_is_not_answered_has_no_round_trip_time() {
        let mut round_trip = RoundTrip::default();
        let number = round_trip.record_request(wall(0), false);
        round_trip.handle_reply(&reply(number, 0), wall(10), now(10));
        assert_eq!(round_trip.at(now(2_009)), Some(Duration::from_millis(10)));
        assert_eq!(round_trip.at(now(2_010)), None);
        // Samples from before the silence say nothing about the path now.
        let number = round_trip.record_request(wall(5_000), false);
        round_trip.handle_reply(&reply(number, 0), wall(5_090), now(5_090));
        assert_eq!(round_trip.at(now(5_090)), Some(Duration::from_millis(90)));
    }

    #[test]
    fn an_answer_counts_once_and_only_to_a_question() {
        let mut round_trip = RoundTrip::default();
        let number = round_trip.record_request(wall(0), false);
        round_trip.handle_reply(&reply(number.wrapping_add(1), 0), wall(1), now(1));
        assert_eq!(round_trip.at(now(1)), None);
        round_trip.handle_reply(&reply(number, 0), wall(2), now(2));
        round_trip.handle_reply(&reply(number, 0), wall(80), now(80));
        assert_eq!(round_trip.at(now(80)), Some(Duration::from_millis(2)));
        // The request cannot have been held for longer than the whole time.
        let number = round_trip.record_request(wall(100), false);
        round_trip.handle_reply(&reply(number, 50), wall(120), now(120));
        assert_eq!(round_trip.at(now(120)), Some(Duration::from_millis(2)));
    }

    /// Two paths to one node on which requests are sent, and refused. For each: how many were not answered, and
    /// whether one was answered before.
    fn echoes(paths: [(u32, bool); 2]) -> Echoes {
        let peer = Peer {
            by_hand: true,
            ..Peer::default()
        };
        let echo = |path, port, (unanswered, was_answered): (u32, bool)| {
            let remote = SocketAddr::from(([127, 0, 0, 2], port));
            let mut echo = PathEcho::new(path, "lo", remote, "peer");
            echo.peer = Some(peer.clone());
            echo.follow(Some((1, [127, 0, 0, 1].into())));
            echo.round_trip.unanswered = unanswered;
            echo.round_trip.was_answered = was_answered;
            echo.round_trip.last_reply = was_answered.then_some(now(1_000));
            echo
        };
        let all = (1..).zip(paths).map(|(number, state)| {
            let path = PathId::from_number(number).unwrap();
            let copies = CopyEcho::new(echo(path, 14747, state));
            (path, echo(path, 14751, state), copies)
        });
        let (mut paths, mut copies) = (BTreeMap::new(), BTreeMap::new());
        for (path, echo, copy_echo) in all {
            paths.insert(path, echo);
            copies.insert(path, copy_echo);
        }
        Echoes {
            port: 14751,
            copy_port: 14747,
            seen: 0,
            paths,
            candidates: BTreeMap::new(),
            discovered: BTreeMap::new(),
            copies,
            next: Instant::ZERO,
            next_probe: Instant::ZERO,
        }
    }

    #[test]
    fn a_silent_node_is_told_from_a_silent_path() {
        let path = PathId::from_number(1).unwrap();
        let fault = |paths, at| echoes(paths).fault(path, now(at));
        let unanswered = Some(Fault::Unanswered);
        assert_eq!(fault([(20, false), (19, true)], 5_900), unanswered);
        let silent = Some(Fault::PeerUnanswered);
        assert_eq!(fault([(20, true), (20, true)], 5_000), silent);
        assert_eq!(fault([(20, false), (20, false)], 5_000), silent);
        // The requests on the second path have just begun.
        assert_eq!(fault([(20, false), (19, false)], 5_000), None);
        assert_eq!(fault([(19, true), (20, true)], 5_000), None);
    }

    #[test]
    fn a_tunnel_is_dead_before_its_first_answer_and_without_any() {
        let path = PathId::from_number(1).unwrap();
        let is_dead = |state| echoes([state, (0, true)]).is_dead_tunnel(path);
        assert!(is_dead((0, false)));
        assert!(!is_dead((3, true)));
        assert!(is_dead((4, true)));
        let mut without_keys = echoes([(4, false), (0, true)]);
        without_keys.set_peers(&BTreeMap::new());
        assert!(!without_keys.is_dead_tunnel(path), "nothing is asked");
    }

    #[test]
    fn requests_that_cannot_be_sent_count_as_nothing() {
        let path = PathId::from_number(1).unwrap();
        let mut echoes = echoes([(20, false), (0, false)]);
        let other = PathId::from_number(2).unwrap();
        echoes.paths.get_mut(&other).unwrap().socket = None;
        assert_eq!(echoes.fault(path, now(5_000)), Some(Fault::PeerUnanswered));
        // It has no keys yet.
        let own = echoes.paths.get_mut(&path).unwrap();
        own.round_trip.unanswered = 0;
        own.peer = Some(Peer::default());
        (0..30).for_each(|_| own.send_request());
        assert_eq!(echoes.fault(path, now(5_000)), None);
    }

    #[test]
    fn large_requests_without_answers_show_a_narrow_path() {
        let mut round_trip = RoundTrip::default();
        let mut send = |count, answers_large| {
            for _ in 0..count {
                let is_large = round_trip.next_number.is_multiple_of(LARGE_EVERY);
                let number = round_trip.record_request(wall(0), is_large);
                if answers_large || !is_large {
                    round_trip.handle_reply(&reply(number, 0), wall(1), now(1));
                }
            }
            round_trip.loses_large()
        };
        assert!(!send(45, false));
        assert!(send(5, false));
        assert!(!send(5, true), "one of them arrived");
        assert!(send(50, false));
        for _ in 0..=LARGE_EVERY {
            round_trip.record_request(wall(0), false);
        }
        assert!(!round_trip.loses_large(), "small ones do not arrive either");
    }

    #[test]
    fn a_refusal_is_no_proof_that_copies_arrive() {
        let path = PathId::from_number(1).unwrap();
        let mut echoes = echoes([(0, true), (0, true)]);
        let copies = echoes.copies.get_mut(&path).unwrap();
        for _ in 0..OTHERS_ANSWERED {
            copies.handle(now(1_000), true);
            let answered = Taken {
                known: 1,
                unknown: Vec::new(),
            };
            copies.handle_others(answered, now(1_000));
        }
        assert_eq!(echoes.fault(path, now(1_000)), Some(Fault::LosesCopies));
    }

    #[test]
    fn requests_of_other_paths_and_forged_ones_displace_none() {
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let [first, second] = [1, 2].map(|path| PathId::from_number(path).unwrap());
        let (key, forged) = (Key::from_bytes([9; 16]), Key::from_bytes([8; 16]));
        let ring = KeyRing {
            slots: [Some(key.clone()), None],
        };
        let request = |path, number| Echo {
            kind: EchoKind::Request,
            path,
            ..reply(number, 0)
        };
        let seen = |remote, echo: Echo, key| SeenEcho {
            local: address(1),
            remote: address(remote),
            bytes: echo.emit(Some((KeySlot::Zero, key))),
        };
        // The other node's paths end at one address of this node.
        let all = [
            seen(11, request(first, 5), &key),
            seen(12, request(second, 70), &key),
            seen(11, request(first, 666), &forged),
            seen(13, request(first, 667), &forged),
        ];
        let of = |path, remote| requests(&all, (address(1), address(remote)), path, &ring);
        assert_eq!(of(first, 11), [request(first, 5)]);
        assert_eq!(of(second, 12), [request(second, 70)]);
    }
}
