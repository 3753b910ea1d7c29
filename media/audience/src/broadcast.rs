//! A broadcast at a relay: the session with the publisher, the cache, and the sessions of the
//! subscribers.

mod upstream;
mod watching;

use crate::budget::LayerRates;
use crate::cache::{Cache, CacheConfig, CachedPacket};
use crate::catch_up::CatchUp;
use crate::choice::Choice;
use crate::sending::Sending;
use crate::subscriber::{Subscriber, SubscriberStats};
use hawser_fanout::{Budget, Frame, Selection};
use hawser_objects::{
    AccessSecret, Encodings, EndReason, Host, HostError, HostStats, MakeControl, Seed, Upstream,
    UpstreamConfig, UpstreamEnd, ViewerError,
};
use hawser_packets::feedback::Totals;
use hawser_packets::media::{Hop, ObjectId, VERSION};
use hawser_packets::session::{Announcement, Goodbye};
use hawser_units::{Bitrate, Ecn, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU8, NonZeroU16};
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`Broadcast`].
#[derive(Debug, Clone)]
pub struct BroadcastConfig {
    /// The secret that opens sessions.
    pub access: AccessSecret,
    /// The random number of the relay, the same for all of its broadcasts.
    pub relay: u64,
    /// Random bytes from which the relay's hop keys are derived, new for each start.
    pub hop_salt: [u8; 16],
    /// Random bytes for cookies and sessions.
    pub seed: Seed,
    /// The maximum number of subscribers.
    pub subscribers: usize,
    /// The requested time between the reports of a subscriber, in milliseconds.
    pub report_interval_ms: NonZeroU8,
    /// The bounds of the cache.
    pub cache: CacheConfig,
}

/// A broadcast at a relay, without clock and socket.
///
/// The sender of packets, such as the kernel, forwards the packets of an object as they arrive to all
/// subscribers to which the object is admitted, and reports which these are. The broadcast sets the
/// budget of each subscriber, and sends it repairs and earlier frames from the cache.
pub struct Broadcast {
    config: BroadcastConfig,
    make_control: MakeControl,
    upstream: Upstream,
    /// The publisher's announcement as it arrived, and the sessions of its subscribers.
    serving: Option<Serving>,
    cache: Cache,
    watchers: BTreeMap<u32, Watcher>,
    /// The sessions of subscribers that have joined recently and may get earlier frames from the cache.
    catching_up: BTreeSet<u32>,
    /// The sessions of subscribers for which packets of the cache are queued.
    sending: BTreeSet<u32>,
    rates: LayerRates,
    /// The newest frame of each track.
    newest: BTreeMap<u32, Frame>,
    /// The number of packets of objects in the cache, if it is known.
    counts: BTreeMap<ObjectId, NonZeroU16>,
    /// The number of hosts so far.
    hosts: u64,
    ended: Ended,
    next_budgets: Instant,
    commands: VecDeque<Command>,
    outgoing: VecDeque<Outgoing>,
    events: VecDeque<BroadcastEvent>,
}

struct Serving {
    announced: Vec<u8>,
    encodings: Encodings,
    /// The relay's key.
    hop: Hop,
    host: Host,
    /// The numbers of the upstream's keys that the sender of packets was told.
    hops: Option<[u16; 3]>,
}

/// The counts of sessions that have ended.
#[derive(Debug, Default)]
struct Ended {
    upstream: Totals,
    host: HostStats,
}

/// A subscriber.
struct Watcher {
    address: SocketAddr,
    subscriber: Subscriber,
    choice: Choice,
    catching_up: BTreeMap<u32, CatchUp>,
    sending: Sending,
    budget: Budget,
}

/// A command for the sender of packets to subscribers.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Sets the keys of the upstream's tags: the previous, the current and the next one. A message of the
    /// upstream announces them. It may arrive before packets that were sent earlier with the previous key,
    /// and after packets with the next one.
    SetHops([Hop; 3]),
    /// Relays these tracks, tagged with this key, and no others.
    SetTracks {
        /// The aliases.
        aliases: Vec<u32>,
        /// The relay's key.
        hop: Hop,
    },
    /// Adds a subscriber.
    Add {
        /// The session.
        session: u32,
        /// The subscriber's address.
        address: SocketAddr,
        /// Its budget.
        budget: Budget,
    },
    /// Removes a subscriber.
    Remove {
        /// The session.
        session: u32,
    },
    /// Begins to send a track to a subscriber, with the next frame that begins.
    Subscribe {
        /// The session.
        session: u32,
        /// The track.
        alias: u32,
        /// The layers that it gets.
        selection: Selection,
    },
    /// Changes the number of layers of a track that a subscriber gets.
    Select {
        /// The session.
        session: u32,
        /// The track.
        alias: u32,
        /// The number of layers.
        layers: u8,
    },
    /// Ends a track for a subscriber.
    Unsubscribe {
        /// The session.
        session: u32,
        /// The track.
        alias: u32,
    },
    /// Changes the budget of a subscriber.
    SetBudget {
        /// The session.
        session: u32,
        /// Its budget.
        budget: Budget,
    },
    /// Charges a subscriber for bytes, with all headers, that were sent from the cache.
    Spend {
        /// The session.
        session: u32,
        /// The priority of the packet.
        priority: u8,
        /// The bytes.
        bytes: u64,
    },
}

impl Command {
    /// Returns the session of the subscriber; `None` if the command is for all of them.
    pub const fn session(&self) -> Option<u32> {
        match self {
            Command::SetHops(_) | Command::SetTracks { .. } => None,
            Command::Add { session, .. }
            | Command::Remove { session }
            | Command::Subscribe { session, .. }
            | Command::Select { session, .. }
            | Command::Unsubscribe { session, .. }
            | Command::SetBudget { session, .. }
            | Command::Spend { session, .. } => Some(*session),
        }
    }
}

/// A datagram that leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The subscriber's address; `None`: the sender upstream.
    pub to: Option<SocketAddr>,
    /// The UDP payload.
    pub datagram: Arc<[u8]>,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
}

/// An event of a [`Broadcast`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BroadcastEvent {
    /// The publisher is known.
    Opened(Announcement),
    /// The session with the sender upstream has ended. [`Broadcast::ask_again`] requests another one.
    UpstreamEnded(UpstreamEnd),
    /// A subscriber has joined.
    Joined {
        /// The session.
        session: u32,
        /// Its address.
        address: SocketAddr,
    },
    /// A subscriber has left.
    Left {
        /// The session.
        session: u32,
        /// The reason.
        reason: EndReason,
    },
}

/// The state of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubscriberStatus {
    /// The session.
    pub session: u32,
    /// The address.
    pub address: SocketAddr,
    /// The rate at which it can be served, with all headers; `None` while its reports are missing.
    pub rate: Option<Bitrate>,
    /// The smoothed round trip.
    pub round_trip: Option<Duration>,
    /// The number of the encoding that it is sent of each source. The best that it has selected is number 0.
    pub encoding: usize,
    /// The totals of its newest report.
    pub received: Totals,
    /// The counts.
    pub stats: SubscriberStats,
}

/// The time between two updates of the subscribers' budgets.
const BUDGET_INTERVAL: Duration = Duration::from_millis(20);

/// The relative change of a rate from which on a new budget is set.
const NOTABLE: f64 = 0.02;

/// The time before its deadline from which on a lost packet is not sent again.
const TOO_LATE: Duration = Duration::from_millis(5);

impl Broadcast {
    /// Creates a broadcast without subscribers that requests a session upstream. `random` has 16 random
    /// bytes.
    pub fn new(config: BroadcastConfig, make_control: MakeControl, random: [u8; 16]) -> Self {
        let upstream = UpstreamConfig::new(config.relay);
        Broadcast {
            upstream: Upstream::new(upstream, config.access.clone(), random),
            serving: None,
            cache: Cache::new(config.cache),
            watchers: BTreeMap::new(),
            catching_up: BTreeSet::new(),
            sending: BTreeSet::new(),
            rates: LayerRates::default(),
            newest: BTreeMap::new(),
            counts: BTreeMap::new(),
            hosts: 0,
            ended: Ended::default(),
            next_budgets: Instant::ZERO,
            commands: VecDeque::new(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            config,
            make_control,
        }
    }

    /// Requests another session upstream. `random` has 16 random bytes.
    pub fn ask_again(&mut self, random: [u8; 16]) {
        self.ended.upstream = self.upstream_totals();
        let config = UpstreamConfig::new(self.config.relay);
        self.upstream = Upstream::new(config, self.config.access.clone(), random);
    }

    /// Takes word of the network that nobody receives at the publisher's address.
    pub fn handle_refused(&mut self, now: Instant) {
        self.upstream.handle_refused(now);
    }

    /// Replaces the secret: ends all sessions, and requests another one upstream. `random` has 16
    /// random bytes.
    pub fn set_access(&mut self, now: Instant, access: AccessSecret, random: [u8; 16]) {
        self.upstream.close(Goodbye::Ended);
        let messages = std::iter::from_fn(|| self.upstream.poll_transmit(now));
        self.outgoing
            .extend(messages.map(|message| Outgoing::message(None, message)));
        self.end_sessions(Goodbye::Revoked);
        self.ended.host = self.host_stats();
        self.serving = None;
        self.config.access = access;
        self.ask_again(random);
    }

    /// Processes a datagram from the sender upstream. The calls of [`Broadcast::handle_begun`] and
    /// [`Broadcast::handle_joined`] that it causes have to precede this one.
    pub fn handle_upstream(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<(), ViewerError> {
        if let Some(packet) = self.upstream.handle_datagram(now, datagram, ecn)? {
            self.handle_packet(now, packet);
        }
        if datagram.first() != Some(&VERSION) {
            self.take_upstream_events(now);
            self.take_status();
        }
        Ok(())
    }

    /// Processes a datagram from the address of a subscriber.
    ///
    /// # Errors
    /// If it is not a valid message. The host counts it.
    pub fn handle_viewer(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<(), HostError> {
        let Some(serving) = &mut self.serving else {
            // The broadcast is not announced yet. The viewer repeats its request.
            return Err(HostError::UnknownSession);
        };
        let taken = serving.host.handle_datagram(now, from, datagram);
        self.take_host_events(now);
        taken
    }

    /// Records that an object has begun, and which subscribers are sent its packets as they arrive.
    pub fn handle_begun(&mut self, object: ObjectId, served: impl Iterator<Item = u32>) {
        for session in served {
            if let Some(watcher) = self.watchers.get_mut(&session) {
                watcher.subscriber.serve(object, &self.cache);
            }
        }
    }

    /// Records the frame from which on a subscriber is sent a track.
    pub fn handle_joined(&mut self, session: u32, alias: u32, joined: Frame) {
        let watcher = self.watchers.get_mut(&session);
        if let Some(catch_up) = watcher.and_then(|w| w.catching_up.get_mut(&alias)) {
            catch_up.end_at(joined);
        }
    }

    /// Returns the subscribers and tracks whose first frame is not known yet.
    pub fn joining(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let catching_up = self.catching_up.iter();
        let watchers =
            catching_up.filter_map(|session| Some((session, self.watchers.get(session)?)));
        watchers.flat_map(|(session, watcher)| {
            let unknown = watcher.catching_up.iter().filter(|(_, c)| !c.has_end());
            unknown.map(|(alias, _)| (*session, *alias))
        })
    }

    /// Returns the next command for the sender of packets.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Returns the next datagram to send now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some(outgoing) = self.outgoing.pop_front() {
            return Some(outgoing);
        }
        if let Some(message) = self.upstream.poll_transmit(now) {
            self.take_upstream_events(now);
            return Some(Outgoing::message(None, message));
        }
        if let Some(serving) = &mut self.serving
            && let Some((to, message)) = serving.host.poll_message()
        {
            return Some(Outgoing::message(Some(to), message));
        }
        // Answers to unverified addresses have the lowest priority.
        self.poll_cached(now).or_else(|| {
            let (to, answer) = self.serving.as_mut()?.host.poll_answer()?;
            Some(Outgoing::message(Some(to), answer))
        })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<BroadcastEvent> {
        self.events.pop_front()
    }

    /// Returns when [`Broadcast::handle_timeout`] or [`Broadcast::poll_transmit`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sending = self.sending.iter();
        let watchers = sending.filter_map(|session| self.watchers.get(session));
        let sending = watchers.filter_map(|watcher| watcher.sending.poll_timeout());
        let host = self.serving.as_ref().and_then(|s| s.host.poll_timeout());
        let budgets = (!self.watchers.is_empty()).then_some(self.next_budgets);
        let times = [self.upstream.poll_timeout(), host, budgets];
        sending.chain(times.into_iter().flatten()).min()
    }

    /// Reacts to the time that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.upstream.handle_timeout(now);
        self.take_upstream_events(now);
        if let Some(serving) = &mut self.serving
            && serving.host.poll_timeout().is_some_and(|due| due <= now)
        {
            serving.host.handle_timeout(now);
            self.take_host_events(now);
        }
        self.cache.forget(now);
        if now >= self.next_budgets {
            self.next_budgets = now + BUDGET_INTERVAL;
            self.counts
                .retain(|object, _| self.cache.object(object).is_some());
            for watcher in self.watchers.values_mut() {
                watcher.subscriber.handle_timeout(now, &self.cache);
            }
            self.rates.look(now);
            self.choose_encodings(now);
            self.set_budgets(now);
        }
    }

    /// Ends all sessions; the goodbyes are still to be transmitted.
    pub fn close(&mut self, reason: Goodbye) {
        self.upstream.close(Goodbye::Ended);
        self.end_sessions(reason);
    }

    /// Expects packets with the relay's own tags, because the kernel has verified and tagged them.
    pub fn expect_retagged(&mut self) {
        if let Some(serving) = &self.serving {
            self.upstream.expect_retagged(serving.hop.clone());
        }
    }

    /// Returns whether the session upstream is open.
    pub const fn is_open(&self) -> bool {
        self.upstream.is_open()
    }

    /// Returns the state of each subscriber.
    pub fn subscribers(&self) -> impl Iterator<Item = SubscriberStatus> + '_ {
        self.watchers
            .iter()
            .map(|(session, watcher)| SubscriberStatus {
                session: *session,
                address: watcher.address,
                rate: watcher.subscriber.rate(),
                round_trip: watcher.subscriber.round_trip(),
                encoding: watcher.choice.number(),
                received: watcher.subscriber.totals(),
                stats: *watcher.subscriber.stats(),
            })
    }

    /// Returns the counts of the subscribers' sessions.
    pub fn host_stats(&self) -> HostStats {
        let mut stats = self.ended.host;
        if let Some(serving) = &self.serving {
            stats += serving.host.stats();
        }
        stats
    }

    /// Returns the totals of the packets from upstream.
    pub fn upstream_totals(&self) -> Totals {
        self.ended.with(self.upstream.totals())
    }

    /// Returns the relays between the publisher and the subscribers, this one last.
    pub fn relays(&self) -> Vec<u64> {
        self.upstream.relays()
    }

    /// Returns the secret under which sessions are opened.
    pub const fn access(&self) -> &AccessSecret {
        &self.config.access
    }

    /// Returns the cache.
    pub const fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns the packets of an object in ascending order if all of them are in the cache.
    pub fn whole_object(&self, object: &ObjectId) -> Option<Vec<&CachedPacket>> {
        if !self.is_complete(object) {
            return None;
        }
        let numbers = self.cache.object(object)?.values();
        numbers.map(|number| self.cache.get(*number)).collect()
    }

    /// Returns the publisher's announcement with its authenticator; `None` before it is known.
    pub fn announced(&self) -> Option<&[u8]> {
        self.serving.as_ref().map(|serving| &serving.announced[..])
    }

    /// Returns the epoch of the key of each track, by alias, from the newest status of the sender upstream.
    pub fn epochs(&self) -> &[(u32, u16)] {
        let status = self.upstream.status();
        status.map(|status| &status.epochs[..]).unwrap_or_default()
    }
}

impl Outgoing {
    /// Returns a message of a session.
    fn message(to: Option<SocketAddr>, message: Vec<u8>) -> Self {
        Outgoing {
            to,
            datagram: message.into(),
            ecn: Ecn::NotEct,
        }
    }
}

impl Ended {
    fn with(&self, totals: Option<Totals>) -> Totals {
        let totals = totals.unwrap_or_default();
        let ended = &self.upstream;
        Totals {
            packets: ended.packets + totals.packets,
            bytes: ended.bytes + totals.bytes,
            ce_bytes: ended.ce_bytes + totals.ce_bytes,
            refused: ended.refused + totals.refused,
        }
    }
}

impl fmt::Debug for Broadcast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broadcast")
            .field("upstream", &self.upstream)
            .field("subscribers", &self.watchers.len())
            .field("cached", &self.cache.bytes())
            .finish_non_exhaustive()
    }
}
