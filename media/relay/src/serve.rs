//! The loop that serves the sockets.

use crate::config::{BroadcastConfig, Config, Upstream};
use crate::forward::{BroadcastIndex, Forwarder, Outcomes};
use crate::metrics::{self, LastStatus};
use crate::moq::{self, Moq, MoqIngest};
use crate::status::{self, BroadcastStatus, Counts, Status, Subscriber, TrackStatus};
use anyhow::{Context, Result, bail};
use hawser_audience::{Broadcast, BroadcastConfig as Settings, BroadcastEvent, CacheConfig};
use hawser_congestion::{Bounds, TrainControl};
use hawser_io::clock;
use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::StatusFile;
use hawser_io::udp::{self, UdpSocket};
use hawser_keys::{Contact, Keyring, NO_MEDIA, Origin, Serving, TrackRole};
use hawser_objects::{AccessSecret, EndReason, HostStats, MakeControl, Seed, UpstreamEnd};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::session::Goodbye;
use hawser_units::{Bitrate, Ecn, Instant};
use parking_lot::Mutex;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tracing::field::display;

/// The time between two renewals of the subscribers' slots.
const RENEWAL: Duration = Duration::from_millis(500);

/// The time between two statuses.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The pause before another session upstream is requested.
const PAUSE: Duration = Duration::from_millis(500);

/// The time between two looks at the delays of those who serve a track.
const PROBE_POLL: Duration = Duration::from_millis(5);

/// The time in which most names are resolved.
const RESOLUTION: Duration = Duration::from_millis(50);

/// The longest time between two checks whether to stop.
const STOP_POLL: Duration = Duration::from_millis(100);

/// The lowest rate at which a viewer is served.
const LOWEST_RATE_MBPS: f64 = 0.3;

/// A relay: the sessions of all broadcasts, and the sender of their packets.
pub struct Server<F> {
    relays: Vec<Relay>,
    forwarder: F,
    next_renewal: Instant,
    name: String,
    status_file: StatusFile,
    last_status: LastStatus,
    next_status: Instant,
}

/// A broadcast with its sockets.
struct Relay {
    name: String,
    /// The publisher, or the relay before this one.
    origin: Origin,
    /// `None` while there is no route to any of them.
    link: Option<Link>,
    failures: Failures,
    listen: SocketAddr,
    /// The address that others are told, and the maximum number of viewers.
    announced: (SocketAddr, usize),
    /// The number of packets of media so far, and when the newest one arrived.
    media: (u64, Instant),
    viewers: UdpSocket,
    /// Whether datagrams of the publisher, and of viewers, wait in the sockets.
    has_of_publisher: bool,
    has_of_viewers: bool,
    broadcast: Broadcast,
    keyring: Keyring,
    /// Whether the controller does not let this node relay the broadcast.
    is_refused: bool,
    /// The arrival of the newest datagram of the publisher.
    newest: Instant,
    ask_again_at: Option<Instant>,
    /// The beginning of the newest request for a session.
    asked: Instant,
    /// Whether the network has said since then, or since the newest datagram, that nobody receives at the address.
    is_not_there: bool,
    /// Whether the log has a line that there is no session with the publisher.
    is_missed: bool,
    moq: Option<Moq>,
    /// The part that receives the broadcast over MoQ, if that is its source.
    ingest: Option<MoqIngest>,
    stats: RelayStats,
}

/// The socket towards the publisher.
struct Link {
    socket: UdpSocket,
    publisher: SocketAddr,
}

/// Counts of a broadcast's datagrams in user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RelayStats {
    /// Datagrams that were sent: messages, repeated packets, packets of before viewers joined, and those of viewers
    /// that the kernel cannot reach.
    pub sent: u64,
    /// Datagrams that the kernel did not send.
    pub send_failures: u64,
    /// Datagrams of viewers that were too long.
    pub too_long: u64,
    /// Commands that the sender of packets refused.
    pub failed_commands: u64,
}

impl<F: Forwarder> Server<F> {
    /// Opens the sockets.
    ///
    /// # Errors
    /// If an address is not free or a key file is not valid.
    pub fn open(config: &Config, forwarder: F) -> Result<Self> {
        let relay = random_number()?;
        let relays = config.broadcasts.iter();
        let relays = relays.map(|broadcast| Relay::open(config, broadcast, relay));
        let relays: Vec<Relay> = relays.collect::<Result<_>>()?;
        let status = Status::new(&config.name, Outcomes::new(), Vec::new());
        let last_status = Arc::new(Mutex::new(status));
        if let Some(address) = config.metrics {
            metrics::serve(address, &last_status)?;
        }
        if let Some(address) = config.web {
            moq::serve_page(
                address,
                relays.iter().filter_map(|relay| relay.moq.as_ref()),
            )?;
        }
        Ok(Server {
            relays,
            forwarder,
            next_renewal: Instant::ZERO,
            name: config.name.clone(),
            status_file: StatusFile::at(config.status_file()),
            last_status,
            next_status: Instant::ZERO,
        })
    }

    /// Returns the state of all broadcasts.
    pub fn status(&self) -> Status {
        let relays = self.relays.iter().enumerate();
        let broadcasts = relays.map(|(index, relay)| relay.status(index, &self.forwarder));
        Status::new(&self.name, self.forwarder.outcomes(), broadcasts.collect())
    }

    /// Relays until `stop` is set.
    ///
    /// # Errors
    /// If a socket fails.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<()> {
        udp::wake_precisely();
        while !stop.load(Relaxed) {
            let sockets = self.relays.iter();
            let sockets = sockets.flat_map(|relay| {
                let upstream = relay.link.as_ref().map(|link| &link.socket);
                upstream.into_iter().chain([&relay.viewers])
            });
            let sockets: Vec<&UdpSocket> = sockets.collect();
            let ready = UdpSocket::wait_any(&sockets, self.timeout());
            let mut ready = ready.context("cannot wait")?.into_iter();
            for relay in &mut self.relays {
                relay.has_of_publisher = relay.link.is_some() && ready.next() == Some(true);
                relay.has_of_viewers = ready.next() == Some(true);
            }
            self.serve()?;
        }
        self.write_status();
        for index in 0..self.relays.len() {
            self.relays[index].broadcast.close(Goodbye::Restarting);
            self.execute_commands(index);
            self.relays[index].transmit();
        }
        Ok(())
    }

    fn write_status(&mut self) {
        let status = self.status();
        self.status_file.write(&status);
        *self.last_status.lock() = status;
    }

    fn timeout(&self) -> Duration {
        let now = clock::monotonic();
        let due = self.relays.iter().flat_map(|relay| {
            let times = [relay.broadcast.poll_timeout(), relay.ask_again_at];
            times.into_iter().flatten()
        });
        let due = due.chain([self.next_renewal]).min();
        let left = due.map_or(STOP_POLL, |due| due.saturating_since(now));
        left.min(STOP_POLL)
    }

    fn serve(&mut self) -> Result<()> {
        for index in 0..self.relays.len() {
            self.take_secret(index)?;
            self.take_upstream(index)?;
            self.relays[index].choose(clock::monotonic());
            self.take_viewers(index)?;
            let relay = &mut self.relays[index];
            let now = clock::monotonic();
            if relay.broadcast.poll_timeout().is_some_and(|due| due <= now) {
                relay.broadcast.handle_timeout(now);
            }
            self.take_events(index, now)?;
            self.execute_commands(index);
            self.relays[index].transmit();
            self.execute_commands(index);
        }
        let now = clock::monotonic();
        if now >= self.next_renewal {
            self.next_renewal = now + RENEWAL;
            self.forwarder.renew(now);
            for relay in &mut self.relays {
                relay.announce(now);
                if let Some(moq) = &mut relay.moq {
                    moq.announce(&relay.broadcast);
                }
            }
        }
        if now >= self.next_status {
            self.next_status = now + STATUS_INTERVAL;
            self.write_status();
        }
        Ok(())
    }

    /// Replaces the secret if the controller has replaced it, and stops serving a broadcast that this node
    /// may no longer relay.
    fn take_secret(&mut self, index: BroadcastIndex) -> Result<()> {
        let relay = &mut self.relays[index];
        match relay.keyring.poll() {
            Ok(None) => return Ok(()),
            Ok(Some(secret)) => {
                let access = AccessSecret::new(*secret);
                if let Some(ingest) = &relay.ingest {
                    ingest.set_access(access.clone());
                }
                relay
                    .broadcast
                    .set_access(clock::monotonic(), access, random()?);
                relay.is_refused = false;
            }
            Err(error) => {
                tracing::error!(
                    broadcast = relay.name,
                    "the broadcast is no longer served: {error}"
                );
                relay.broadcast.close(Goodbye::Revoked);
                relay.is_refused = true;
            }
        }
        self.execute_commands(index);
        self.relays[index].transmit();
        Ok(())
    }

    /// Processes datagrams of the publisher, after the records of the sender of packets about them.
    fn take_upstream(&mut self, index: BroadcastIndex) -> Result<()> {
        let relay = &mut self.relays[index];
        let mut datagrams: Vec<(Instant, Ecn, Vec<u8>)> = Vec::new();
        let Some(link) = relay.link.as_mut().filter(|_| relay.has_of_publisher) else {
            self.take_begun(index);
            return Ok(());
        };
        let received = link.socket.receive(|datagram| {
            let arrived = clock::monotonic() - datagram.age;
            datagrams.push((arrived, datagram.ecn, datagram.bytes.to_vec()));
        });
        let is_not_there = received.as_ref().is_err_and(udp::is_refused);
        udp::unless_of_a_peer(received).context("cannot receive from the publisher")?;
        relay.is_not_there &= datagrams.is_empty();
        if is_not_there {
            relay.handle_refused();
        }
        self.take_begun(index);
        for (arrived, ecn, datagram) in datagrams {
            let relay = &mut self.relays[index];
            let now = arrived.max(relay.newest);
            relay.newest = now;
            if let Some((datagram, to)) = self.forwarder.handle_datagram(now, index, &datagram) {
                relay.send_to(&datagram, &to);
                self.take_begun(index);
            }
            let relay = &mut self.relays[index];
            if let Err(error) = relay.broadcast.handle_upstream(now, &datagram, ecn) {
                tracing::debug!(
                    broadcast = relay.name,
                    "datagram of the publisher refused: {error}"
                );
            }
            if let Some(moq) = &mut relay.moq {
                moq.take(&relay.broadcast);
            }
        }
        Ok(())
    }

    fn take_begun(&mut self, index: BroadcastIndex) {
        for begun in self.forwarder.begun() {
            let relay = &mut self.relays[begun.broadcast];
            let served = begun.served.into_iter();
            relay.broadcast.handle_begun(begun.object, served);
        }
        let relay = &mut self.relays[index];
        let joining: Vec<(u32, u32)> = relay.broadcast.joining().collect();
        for (session, alias) in joining {
            if let Some(joined) = self.forwarder.joined(index, session, alias) {
                relay.broadcast.handle_joined(session, alias, joined);
            }
        }
    }

    fn take_viewers(&mut self, index: BroadcastIndex) -> Result<()> {
        let Relay {
            viewers,
            broadcast,
            stats,
            name,
            has_of_viewers,
            ..
        } = &mut self.relays[index];
        if !*has_of_viewers {
            return Ok(());
        }
        let received = viewers.receive_checked(|datagram| {
            if datagram.bytes.len() > DEFAULT_DATAGRAM {
                stats.too_long += 1;
                return false;
            }
            let now = clock::monotonic();
            let taken = broadcast.handle_viewer(now, datagram.from, datagram.bytes);
            if let Err(error) = &taken {
                tracing::debug!(broadcast = name, from = %datagram.from, "datagram of a viewer refused: {error}");
            }
            taken.is_ok()
        });
        udp::unless_of_a_peer(received).context("cannot receive from viewers")
    }

    fn take_events(&mut self, index: BroadcastIndex, now: Instant) -> Result<()> {
        let relay = &mut self.relays[index];
        while let Some(event) = relay.broadcast.poll_event() {
            let broadcast = &relay.name;
            match event {
                BroadcastEvent::Opened(announcement) => {
                    let tracks = announcement.tracks.len();
                    let publisher = relay.link.as_ref().map(|link| display(link.publisher));
                    relay.is_missed = false;
                    tracing::info!(broadcast, publisher, tracks, "publisher found");
                    if self.forwarder.retags(index) {
                        relay.broadcast.expect_retagged();
                    }
                }
                BroadcastEvent::UpstreamEnded(reason) => {
                    let publisher = relay.link.as_ref().map(|link| display(link.publisher));
                    let is_news = !std::mem::replace(&mut relay.is_missed, true);
                    if is_news {
                        tracing::warn!(
                            broadcast,
                            publisher,
                            %reason,
                            "no session with the publisher; requesting one until it is open"
                        );
                    }
                    relay.ask_again_at = Some(now + PAUSE);
                    if let Some(link) = &relay.link {
                        match reason {
                            UpstreamEnd::Session(EndReason::Left(Goodbye::Revoked)) => {}
                            UpstreamEnd::Session(EndReason::Left(_)) => {
                                if relay.origin.was_left_by(link.publisher) {
                                    relay.ask_again_at = Some(now);
                                }
                            }
                            _ => relay.origin.pass_over(link.publisher),
                        }
                    }
                    relay.keyring.ask_now();
                }
                BroadcastEvent::Joined { session, address } => {
                    tracing::info!(broadcast, session, %address, "viewer joined");
                }
                BroadcastEvent::Left { session, reason } => {
                    tracing::info!(broadcast, session, %reason, "viewer left");
                }
            }
        }
        let is_due = relay.ask_again_at.take_if(|at| *at <= now).is_some();
        if is_due && !relay.is_refused && relay.origin.prepare(&relay.keyring) {
            relay.ask_again_at = Some(now + PROBE_POLL);
        } else if is_due && !relay.is_refused {
            relay.ask_again(now)?;
            self.connect(index);
        }
        Ok(())
    }

    /// Has the sender of packets accept media of a broadcast from its publisher.
    fn connect(&mut self, index: BroadcastIndex) {
        let relay = &mut self.relays[index];
        let Some(link) = &relay.link else { return };
        let local = link.socket.local_address();
        let connected = local
            .context("the socket has no address")
            .and_then(|local| self.forwarder.connect(index, local, link.publisher));
        if let Err(error) = connected {
            tracing::error!(broadcast = relay.name, "cannot relay: {error:#}");
        }
    }

    /// Has the sender of packets execute the commands of a broadcast.
    fn execute_commands(&mut self, index: BroadcastIndex) {
        let relay = &mut self.relays[index];
        while let Some(command) = relay.broadcast.poll_command() {
            let now = clock::monotonic();
            if let Err(error) = self.forwarder.handle_command(now, index, command) {
                relay.stats.failed_commands += 1;
                tracing::warn!(broadcast = relay.name, "{error:#}");
            }
        }
    }
}

impl Relay {
    fn open(config: &Config, of: &BroadcastConfig, relay: u64) -> Result<Self> {
        let opened = Keyring::open(&of.key, TrackRole::Relay);
        let (keyring, secret) = opened.with_context(|| format!("broadcast {}", of.name))?;
        let access = AccessSecret::new(*secret);
        let ingest = MoqIngest::open(of, access.clone(), random()?, Seed::new(random()?))?;
        let upstream = match (&of.upstream, &ingest) {
            (Upstream::Peer(upstream), _) => Some(upstream.clone()),
            (Upstream::Track, _) => None,
            (Upstream::Moq(_), Some(ingest)) => Some(ingest.address().to_string()),
            (Upstream::Moq(_), None) => bail!("this program was built without MoQ"),
        };
        let mut origin = Origin::parse(upstream.as_deref())?;
        origin.refresh();
        let viewers = UdpSocket::bind(of.listen)
            .with_context(|| format!("cannot listen on {} (UDP)", of.listen))?;
        let settings = Settings {
            access,
            relay,
            hop_salt: random()?,
            seed: Seed::new(random()?),
            subscribers: of.viewers,
            report_interval_ms: of.report_interval_ms,
            cache: CacheConfig {
                age: of.cache,
                bytes: of.cache_bytes,
            },
        };
        Ok(Relay {
            name: of.name.clone(),
            origin,
            link: None,
            failures: Failures::default(),
            listen: of.listen,
            announced: (of.announce.unwrap_or(of.listen), of.viewers),
            media: (0, Instant::ZERO),
            viewers,
            has_of_publisher: false,
            has_of_viewers: false,
            broadcast: Broadcast::new(settings, make_control(config), random()?),
            keyring,
            is_refused: false,
            newest: Instant::ZERO,
            ask_again_at: Some(clock::monotonic() + RESOLUTION),
            asked: Instant::ZERO,
            is_not_there: false,
            is_missed: false,
            moq: Moq::open(of)?,
            ingest,
            stats: RelayStats::default(),
        })
    }

    /// Requests another session upstream: from a new socket, because the own address may have changed, and
    /// at the current address of the publisher's name.
    fn ask_again(&mut self, now: Instant) -> Result<()> {
        self.origin.refresh();
        let connected = self.origin.connect().map(|(socket, publisher)| {
            self.link = Some(Link { socket, publisher });
        });
        (self.asked, self.is_not_there) = (now, false);
        match connected {
            Ok(()) => self.broadcast.ask_again(random()?),
            Err(_) => {
                self.ask_again_at = Some(now + PAUSE);
                self.keyring.ask_now();
            }
        }
        match self.failures.record(connected) {
            Some(Change::Failed(error)) => {
                tracing::warn!(broadcast = self.name, "{error:#}; retrying until it works");
            }
            Some(Change::Recovered) => {
                tracing::info!(
                    broadcast = self.name,
                    "there is a route to the publisher again"
                );
            }
            None => {}
        }
        Ok(())
    }

    /// Takes word of the network that nobody receives at the publisher's address.
    fn handle_refused(&mut self) {
        self.is_not_there = true;
        self.broadcast.handle_refused(clock::monotonic());
    }

    /// Requests a session with another source, if the controller names one and this one is of no use.
    fn choose(&mut self, now: Instant) {
        let is_requesting = self.ask_again_at.is_some();
        let link = self.link.as_ref();
        let Some(link) = link.filter(|_| !self.is_refused && !is_requesting) else {
            return;
        };
        let contact = Contact {
            address: link.publisher,
            is_open: self.broadcast.is_open(),
            is_refused: self.is_not_there,
            silence: now.saturating_since(self.newest.max(self.asked)),
            packets: self.broadcast.upstream_totals().packets,
            wants_media: false,
        };
        if self.origin.has_to_leave(&self.keyring, &contact) {
            self.ask_again_at = Some(now);
        }
    }

    /// Tells the controller, if there is one, whether the broadcast is served, and to how many. It is if media arrive:
    /// viewers would leave again otherwise.
    fn announce(&mut self, now: Instant) {
        let packets = self.broadcast.upstream_totals().packets;
        if packets != self.media.0 {
            self.media = (packets, now);
        }
        let (packets, newest) = self.media;
        let has_media = packets > 0 && now.saturating_since(newest) < NO_MEDIA;
        let (address, max_viewers) = self.announced;
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let is_served = self.broadcast.is_open() && has_media && !self.is_refused;
        self.keyring.serve(is_served.then(|| Serving {
            address,
            viewers: count(self.broadcast.subscribers().count()),
            max_viewers: count(max_viewers),
        }));
    }

    fn status(&self, index: BroadcastIndex, forwarder: &impl Forwarder) -> BroadcastStatus {
        let broadcast = &self.broadcast;
        let received = broadcast.upstream_totals();
        let tracks = forwarder.track_outcomes(index).into_iter();
        let subscribers = broadcast.subscribers().map(|subscriber| {
            let served = forwarder.served(index, subscriber.session);
            Subscriber::new(&subscriber, served.unwrap_or_default())
        });
        BroadcastStatus {
            name: self.name.clone(),
            listen: self.listen,
            upstream: self.link.as_ref().map(|link| link.publisher),
            is_open: broadcast.is_open(),
            relays: broadcast.relays().len(),
            received_packets: received.packets,
            received_bytes: received.bytes,
            marked_bytes: received.ce_bytes,
            cached_bytes: broadcast.cache().bytes().0,
            sent_datagrams: self.stats.sent,
            send_failures: self.stats.send_failures,
            failed_commands: self.stats.failed_commands,
            refused_packets: received.refused,
            refused: refused(&broadcast.host_stats(), self.stats.too_long),
            tracks: tracks
                .map(|(alias, packets)| TrackStatus {
                    alias,
                    packets: status::counts(packets),
                })
                .collect(),
            subscribers: subscribers.collect(),
            moq: self.moq.as_ref().map(Moq::status),
            from_moq: self.ingest.as_ref().map(MoqIngest::status),
        }
    }

    /// Sends a packet of media to viewers.
    fn send_to(&mut self, datagram: &[u8], viewers: &[SocketAddr]) {
        for viewer in viewers {
            match self.viewers.send(*viewer, Ecn::Ect0, datagram) {
                Ok(()) => self.stats.sent += 1,
                Err(error) => {
                    self.stats.send_failures += 1;
                    tracing::debug!(broadcast = self.name, %viewer, "cannot send: {error}");
                }
            }
        }
    }

    fn transmit(&mut self) {
        while let Some(outgoing) = self.broadcast.poll_transmit(clock::monotonic()) {
            let sent = match outgoing.to {
                Some(to) => self.viewers.send(to, outgoing.ecn, &outgoing.datagram),
                None => match &mut self.link {
                    Some(Link { socket, publisher }) => {
                        socket.send(*publisher, outgoing.ecn, &outgoing.datagram)
                    }
                    // Another session is requested once there is a route.
                    None => continue,
                },
            };
            match sent {
                Ok(()) => self.stats.sent += 1,
                Err(error) => {
                    // Messages are repeated, and viewers report lost packets.
                    self.stats.send_failures += 1;
                    if outgoing.to.is_none() && udp::is_refused(&error) {
                        self.handle_refused();
                    }
                    tracing::debug!(broadcast = self.name, to = ?outgoing.to, "cannot send: {error}");
                }
            }
        }
    }
}

/// Returns the datagrams of viewers that were refused, by reason.
fn refused(stats: &HostStats, too_long: u64) -> Counts {
    status::counts([
        ("without_key", stats.unauthorised),
        ("no_room", stats.full),
        ("too_many_requests", stats.too_many_requests),
        ("not_answered", stats.not_sent),
        ("forged", stats.forged),
        ("repeated", stats.replayed),
        ("invalid", stats.invalid),
        ("unknown_session", stats.unknown_session),
        ("too_many", stats.too_many),
        ("unexpected", stats.unexpected),
        ("too_long", too_long),
    ])
}

/// Returns the function that creates the rate control of a viewer.
fn make_control(config: &Config) -> MakeControl {
    let bounds = Bounds::new(
        Bitrate::from_mbps(LOWEST_RATE_MBPS),
        Bitrate::from_mbps(config.initial_rate_mbps),
        Bitrate::from_mbps(config.max_rate_mbps),
    );
    Box::new(move |now| Box::new(TrainControl::new(bounds, now)))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).context("the system has no random numbers")?;
    Ok(bytes)
}

fn random_number() -> Result<u64> {
    Ok(u64::from_ne_bytes(random()?))
}
