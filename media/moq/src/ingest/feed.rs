//! The queue of a source's objects for the relay: the publisher's end of a session with it, without clock and
//! socket.

mod clock;
mod queue;

use crate::catalog::{Contents, parse};
use bytes::Bytes;
use clock::PublisherClock;
use hawser_objects::{
    AccessSecret, Clock, Host, HostConfig, HostError, HostEvent, Seed, TrackTiming,
};
use hawser_packets::feedback::Feedback;
use hawser_packets::media::Hop;
use hawser_packets::session::{Announcement, Goodbye};
use hawser_units::{BoundedQueue, ByteSize, Instant};
use queue::{Object, Queue};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::time::Duration;

pub(crate) use queue::ObjectError;

/// The settings of a [`Feed`].
#[derive(Debug, Clone)]
pub(crate) struct FeedConfig {
    /// Random bytes from which the hop keys are derived.
    pub(crate) hop_salt: [u8; 16],
    /// Random bytes for cookies and sessions.
    pub(crate) seed: Seed,
}

/// The objects of a source, and the session of the relay that takes them.
pub(crate) struct Feed {
    config: FeedConfig,
    on_air: Option<OnAir>,
    /// The time at which the source disconnected, if it did.
    gone: Option<Instant>,
    queue: Queue,
    clock: PublisherClock,
    session: Option<Session>,
    /// The number of hosts so far.
    hosts: u64,
    /// The datagrams of the object that is being sent.
    packets: VecDeque<Vec<u8>>,
    /// The last messages of hosts that have ended.
    messages: BoundedQueue<(SocketAddr, Vec<u8>)>,
    stats: FeedStats,
}

/// Counts of a [`Feed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FeedStats {
    /// Objects that were sent.
    pub(crate) objects: u64,
    /// Packets that were sent.
    pub(crate) packets: u64,
    /// Packets that the relay has not reported in time.
    pub(crate) lost: u64,
    /// Objects that waited too long: for the session, for the catalog of their publisher, or for room.
    pub(crate) late: u64,
    /// Objects for which there was no room.
    pub(crate) full: u64,
    /// Objects of a publisher that has restarted.
    pub(crate) stale: u64,
    /// Datagrams of other senders than the relay.
    pub(crate) refused: u64,
}

/// A publisher whose catalog was verified.
struct OnAir {
    contents: Contents,
    lifetimes: BTreeMap<u32, Duration>,
    host: Host,
    hop: Hop,
}

/// The session of the relay that gets packets.
struct Session {
    number: u32,
    address: SocketAddr,
    clock: Clock,
    sent: u64,
    /// Packets that the relay has reported, and those that it will not report.
    accounted: u64,
    reported: u64,
    /// When the newest packet left, or the relay reported further ones.
    active: Instant,
}

/// The number of packets that are sent before the relay has reported them. It reports so many at once, and
/// the usual receive buffer of a socket, 208 KiB, holds 92 with what the kernel adds to each.
const WINDOW: u64 = 64;

/// The time after which packets that the relay has not reported are lost.
const REPORTED_WITHIN: Duration = Duration::from_millis(250);

/// The requested time between the relay's reports, besides those for many packets.
const REPORT_INTERVAL_MS: NonZeroU8 = NonZeroU8::new(10).expect("not zero");

/// The time after which the relay is told that the source is disconnected.
const GONE: Duration = Duration::from_secs(10);

/// The bytes of messages of hosts that have ended.
const MESSAGES: ByteSize = ByteSize(256 << 10);

/// The number of the hop key. It does not rotate: a new host has another one.
const HOP: u16 = 0;

impl Feed {
    pub(crate) fn new(config: FeedConfig) -> Self {
        Feed {
            config,
            on_air: None,
            gone: None,
            queue: Queue::default(),
            clock: PublisherClock::default(),
            session: None,
            hosts: 0,
            packets: VecDeque::new(),
            messages: BoundedQueue::new(MESSAGES),
            stats: FeedStats::default(),
        }
    }

    /// Applies the content of a verified catalog.
    pub(crate) fn set_contents(&mut self, contents: Contents, access: &AccessSecret) {
        self.gone = None;
        let is_same = |on_air: &OnAir| on_air.contents.announced == contents.announced;
        if !self.on_air.as_ref().is_some_and(is_same) {
            self.close(Goodbye::Restarting);
            let Some(announcement) = parse(&contents.announced) else {
                return;
            };
            self.clock = PublisherClock::default();
            self.queue.begin(&announcement);
            self.on_air = Some(self.open(contents, &announcement, access));
        } else if let Some(on_air) = &mut self.on_air {
            on_air.contents = contents;
        }
        if let Some(on_air) = &mut self.on_air {
            let Contents { epochs, relays, .. } = &on_air.contents;
            on_air.host.set_keys(HOP, epochs.clone());
            on_air.host.set_relays(relays.clone());
        }
    }

    fn open(
        &mut self,
        contents: Contents,
        announcement: &Announcement,
        access: &AccessSecret,
    ) -> OnAir {
        // Each host needs other random numbers and another hop key.
        self.hosts += 1;
        let mut hop_salt = self.config.hop_salt;
        for (byte, number) in hop_salt.iter_mut().zip(self.hosts.to_be_bytes()) {
            *byte ^= number;
        }
        let host = HostConfig {
            report_interval_ms: REPORT_INTERVAL_MS,
            ..HostConfig::new(
                access.clone(),
                contents.announced.clone(),
                hop_salt,
                self.config.seed.numbered(self.hosts),
            )
        };
        let timing = |parameters: &[u8]| TrackTiming::parse(parameters).map(|t| t.lifetime);
        let tracks = announcement.tracks.iter();
        let lifetimes = tracks.filter_map(|track| Some((track.alias, timing(&track.parameters)?)));
        OnAir {
            lifetimes: lifetimes.collect(),
            hop: access.hop(&hop_salt, HOP),
            host: Host::new(host),
            contents,
        }
    }

    /// Adds a payload of the track with a layer, and the sequence number of its group.
    ///
    /// # Errors
    /// If it is not an object of that layer.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        track: (u32, u8),
        sequence: u64,
        payload: Bytes,
    ) -> Result<(), ObjectError> {
        let object = Object::new(now, track, sequence, payload)?;
        self.queue.add(object, &mut self.stats);
        Ok(())
    }

    /// Forgets the numbers of groups: another session with the source may have others.
    pub(crate) fn begin_source(&mut self) {
        self.queue.forget_sequences();
    }

    /// Records that the source has disconnected. The relay is told if it does not reconnect.
    pub(crate) fn end_source(&mut self, now: Instant) {
        self.gone.get_or_insert(now);
    }

    /// Takes a datagram of the relay.
    ///
    /// # Errors
    /// If it is not a message of a holder of the secret.
    pub(crate) fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<(), HostError> {
        let Some(on_air) = &mut self.on_air else {
            // It asks again.
            return Ok(());
        };
        let taken = on_air.host.handle_datagram(now, from, datagram);
        while let Some(event) = on_air.host.poll_event() {
            match event {
                HostEvent::Opened { .. } => {}
                HostEvent::Subscribed { session, .. } => {
                    let address = on_air.host.address(session);
                    self.session = address.map(|address| Session::new(now, session, address));
                    self.packets.clear();
                }
                HostEvent::Report {
                    session, report, ..
                } => {
                    let current = self.session.as_mut().filter(|s| s.number == session);
                    if let Some(current) = current {
                        let acknowledged = current.handle_report(now, &report);
                        on_air.host.handle_acknowledged(session, acknowledged);
                        on_air.host.send_status(session, current.clock.stamp(now));
                    }
                }
                HostEvent::Ended { session, .. } => {
                    self.session.take_if(|current| current.number == session);
                }
            }
        }
        if taken.is_err() {
            self.stats.refused += 1;
        }
        taken
    }

    /// Returns the next datagram and the address to which it is sent.
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<(SocketAddr, Vec<u8>)> {
        loop {
            let host = self.on_air.as_mut().map(|on_air| &mut on_air.host);
            let message = self.messages.pop();
            if let Some(message) = message.or_else(|| host?.poll_transmit()) {
                return Some(message);
            }
            let session = self.session.as_mut()?;
            if session.in_flight() >= WINDOW {
                return None;
            }
            if let Some(packet) = self.packets.pop_front() {
                session.sent += 1;
                session.active = now;
                self.stats.packets += 1;
                return Some((session.address, packet));
            }
            self.begin_object(now)?;
        }
    }

    /// Makes the packets of the next object.
    fn begin_object(&mut self, now: Instant) -> Option<()> {
        let (on_air, session) = (self.on_air.as_mut()?, self.session.as_mut()?);
        let object = self.queue.next(now, &mut self.stats)?;
        let lifetime = on_air.lifetimes.get(&object.track.0);
        let ahead = lifetime.map(|lifetime| {
            let capture = object.deadline.0.wrapping_sub(lifetime.as_millis() as u32);
            self.clock.add(object.arrived, capture)
        });
        if let Some(Some(ahead_nanos)) = ahead {
            on_air.host.set_publisher_clock(ahead_nanos);
            // Before the packets whose deadlines it is for.
            on_air
                .host
                .send_status(session.number, session.clock.stamp(now));
        }
        self.packets = object.datagrams(&on_air.hop).collect();
        self.stats.objects += 1;
        Some(())
    }

    /// Returns when [`Feed::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let host = self
            .on_air
            .as_ref()
            .and_then(|on_air| on_air.host.poll_timeout());
        let session = self.session.as_ref().filter(|s| s.in_flight() > 0);
        let times = [
            host,
            session.map(|session| session.active + REPORTED_WITHIN),
            self.queue.poll_timeout(),
            self.on_air.as_ref().and(self.gone).map(|gone| gone + GONE),
        ];
        times.into_iter().flatten().min()
    }

    /// Reacts to the time that has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.gone.is_some_and(|gone| gone + GONE <= now) {
            self.close(Goodbye::Ended);
        }
        if let Some(on_air) = &mut self.on_air {
            on_air.host.handle_timeout(now);
            while let Some(event) = on_air.host.poll_event() {
                if let HostEvent::Ended { session, .. } = event {
                    self.session.take_if(|current| current.number == session);
                }
            }
        }
        if let Some(session) = &mut self.session
            && session.active + REPORTED_WITHIN <= now
        {
            self.stats.lost += session.give_up();
        }
        self.queue.forget(now, &mut self.stats);
    }

    /// Ends the session of the relay, whose goodbye is still to be transmitted.
    pub(crate) fn close(&mut self, reason: Goodbye) {
        if let Some(mut on_air) = self.on_air.take() {
            on_air.host.close_all(reason);
            while let Some(message) = on_air.host.poll_message() {
                // A message without room counts as lost.
                let _ = self.messages.push(message);
            }
        }
        self.session = None;
        self.packets.clear();
    }

    pub(crate) const fn stats(&self) -> FeedStats {
        self.stats
    }
}

impl Session {
    fn new(now: Instant, number: u32, address: SocketAddr) -> Self {
        Session {
            number,
            address,
            clock: Clock::default(),
            sent: 0,
            accounted: 0,
            reported: 0,
            active: now,
        }
    }

    const fn in_flight(&self) -> u64 {
        self.sent.saturating_sub(self.accounted)
    }

    /// Returns the number of packets that the relay had not reported before.
    fn handle_report(&mut self, now: Instant, report: &Feedback) -> usize {
        // An impossible echo is of a message that was sent long ago.
        let _: Result<_, _> = self.clock.handle_stamp(now, &report.clock);
        let further = report.totals.packets.saturating_sub(self.reported);
        let further = further.min(self.in_flight());
        if further > 0 {
            self.reported = report.totals.packets;
            self.accounted += further;
            self.active = now;
        }
        further as usize
    }

    /// Returns the number of packets that will not be reported.
    const fn give_up(&mut self) -> u64 {
        let lost = self.in_flight();
        self.accounted = self.sent;
        lost
    }
}
