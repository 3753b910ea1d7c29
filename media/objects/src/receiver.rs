use crate::clock::{Clock, ClockError};
use crate::epochs::{EpochKeys, HopKeys};
use crate::gaps::Gaps;
use crate::keys::TrackSecret;
use crate::object::Begun;
use crate::reassembly::{Bounds, Ended, PACKET_OVERHEAD, Reassembly, Use};
use crate::refusal::{Refusal, Refusals};
use crate::reports::{ReportConfig, Reports};
use hawser_packets::feedback::{Feedback, Pose, Totals};
use hawser_packets::media::{Header, MediaTime, ObjectId, Packet, PacketId};
use hawser_packets::session::{Accept, Announcement, Status};
use hawser_units::{Ecn, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The settings of a [`Receiver`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// The maximum number of incomplete objects of a track.
    pub objects: usize,
    /// The maximum number of packets of an object.
    pub packets: u16,
    /// The maximum number of bytes that are kept: payloads and 64 bytes for each, of packets and of
    /// events that were not taken.
    pub bytes: usize,
    /// The number of ended objects of a track that are remembered, against replays.
    pub remembered: usize,
    /// Whether each packet that decodes alone becomes an event when it arrives, besides the complete
    /// object.
    pub packet_events: bool,
    /// The time after its deadline for which an object is still accepted.
    pub grace: Duration,
    /// The time after its first packet at which an object is given up while the publisher's clock is
    /// not known.
    pub give_up_after: Duration,
    /// The settings of the reports.
    pub reports: ReportConfig,
}

/// The viewer's end of a stream of media: verifies, opens, reassembles and reports.
#[derive(Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    tracks: BTreeMap<u32, TrackState>,
    hops: HopKeys,
    reports: Reports,
    refusals: Refusals,
    events: VecDeque<ReceiverEvent>,
    bytes: usize,
}

#[derive(Debug)]
struct TrackState {
    /// The number of layers that were announced.
    layers: u8,
    keys: EpochKeys,
    reassembly: Reassembly,
    gaps: Gaps,
}

/// An event of a [`Receiver`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// A packet arrived that decodes alone.
    Packet {
        /// The packet.
        id: PacketId,
        /// The payload.
        payload: Arc<[u8]>,
    },
    /// All packets of an object arrived.
    Object(ReceivedObject),
    /// An object was given up.
    GivenUp {
        /// The object.
        id: ObjectId,
        /// The number of its packets that arrived.
        arrived: u16,
        /// The number of its packets, if it is known.
        count: Option<u16>,
        /// The flags, deadline and first arrival, if a packet arrived in time.
        begun: Option<Begun>,
        /// The payloads that arrived, in ascending order, if each decodes alone.
        payloads: Vec<Arc<[u8]>>,
    },
}

/// A complete object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedObject {
    /// The object.
    pub id: ObjectId,
    /// The flags, deadline and first arrival.
    pub begun: Begun,
    /// The payloads of its packets.
    pub payloads: Vec<Arc<[u8]>>,
}

/// The time that is added to one and a half round trips for a lost packet to be repaired.
pub(crate) const REPAIR: Duration = Duration::from_millis(10);

impl Default for ReceiverConfig {
    /// Returns bounds for 90 Mb/s: 64 objects and 32 MiB.
    fn default() -> Self {
        ReceiverConfig {
            objects: 64,
            packets: 8192,
            bytes: 32 << 20,
            remembered: 512,
            packet_events: false,
            grace: Duration::ZERO,
            give_up_after: Duration::from_secs(1),
            reports: ReportConfig::default(),
        }
    }
}

impl Receiver {
    /// Creates the receiver of the tracks of an authenticated announcement. `accept` is the message
    /// that had it.
    pub fn new(
        config: ReceiverConfig,
        secret: &TrackSecret,
        announcement: &Announcement,
        accept: &Accept<'_>,
    ) -> Self {
        let tracks = announcement.tracks.iter().map(|track| {
            let epoch = accept.status.epoch(track.alias);
            let keys = EpochKeys::new(secret, announcement.incarnation, track.alias, epoch);
            let state = TrackState::new(track.layers, keys, config.bounds());
            (track.alias, state)
        });
        Receiver {
            config,
            tracks: tracks.collect(),
            hops: HopKeys::new(secret.access(), accept.hop_salt, accept.status.hop),
            reports: Reports::new(config.reports, &accept.status),
            refusals: Refusals::default(),
            events: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Processes a datagram with its ECN field. Its content is ignored until it is authenticated.
    ///
    /// A packet whose object is late is refused, and so is a second copy. Their arrival is reported
    /// like any other.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<(), Refusal> {
        self.accept(now, datagram, ecn).inspect_err(|refusal| {
            self.refusals.count(*refusal);
            if *refusal != Refusal::Late {
                self.reports.count_refused();
            }
        })
    }

    /// Processes an authenticated status of the sender.
    ///
    /// Returns an error if its time stamps cannot be used. Its keys are.
    pub fn handle_status(&mut self, now: Instant, status: &Status) -> Result<(), ClockError> {
        self.hops.announce(status.hop);
        for (alias, epoch) in &status.epochs {
            if let Some(track) = self.tracks.get_mut(alias) {
                track.keys.advance(*epoch);
            }
        }
        self.reports.handle_status(now, status)
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        let event = self.events.pop_front()?;
        self.bytes -= event.size();
        Some(event)
    }

    /// Returns the next report if one is due. The first is due at once, to relate the clocks. Called
    /// until there is none, because much may have to be reported at once.
    pub fn poll_report(&mut self, now: Instant, pose: Option<Pose>) -> Option<Feedback> {
        self.reports.poll(now, pose)
    }

    /// Returns the next time at which [`Receiver::handle_timeout`] or [`Receiver::poll_report`] has
    /// to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let tracks = self.tracks.values();
        let expiry = tracks.filter_map(|track| track.reassembly.timeout()).min();
        expiry.into_iter().chain([self.reports.due()]).min()
    }

    /// Gives up objects whose time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        let aliases: Vec<u32> = self.tracks.keys().copied().collect();
        for alias in aliases {
            while let Some(ended) = self
                .tracks
                .get_mut(&alias)
                .and_then(|track| track.reassembly.give_up(now))
            {
                self.give_up(ended);
            }
        }
    }

    /// Returns the relation between the own clock and the sender's.
    pub const fn clock(&self) -> &Clock {
        self.reports.clock()
    }

    /// Returns the time of the own clock at an instant of the publisher's; `None` before the first
    /// exchange with the sender.
    pub fn local_time_of(&self, publisher: Instant) -> Option<Instant> {
        self.reports.local_time_of(publisher)
    }

    /// Returns the time of the own clock at a deadline that is near `now`; `None` before the first
    /// exchange with the sender.
    pub fn local_time_of_deadline(&self, now: Instant, deadline: MediaTime) -> Option<Instant> {
        self.reports.local_time_of_deadline(now, deadline)
    }

    /// Returns the counts of refused packets.
    pub const fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// Returns the totals of the next report.
    pub const fn totals(&self) -> Totals {
        self.reports.totals()
    }

    /// Returns the number of bytes that are kept, as [`ReceiverConfig::bytes`] counts them.
    pub const fn buffered(&self) -> usize {
        self.bytes
    }

    fn accept(&mut self, now: Instant, datagram: &[u8], ecn: Ecn) -> Result<(), Refusal> {
        let packet = Packet::parse(datagram).map_err(Refusal::Header)?;
        let header = packet.header;
        if !self.hops.accepts(datagram, packet.hop) {
            return Err(Refusal::HopTag);
        }
        let gives_up_at = self.gives_up_at(now, &header);
        let track = self.tracks.get_mut(&header.id.object.alias);
        let (payload, usefulness) = track.ok_or(Refusal::UnknownTrack)?.open(&packet)?;
        if usefulness == Use::Duplicate {
            self.reports.count_again(now, header.id, ecn);
            return Err(Refusal::Duplicate);
        }
        if usefulness == Use::Late || gives_up_at <= now {
            self.reports.count(now, header.id, datagram.len(), ecn);
            self.insert_late(header.id);
            return Err(Refusal::Late);
        }
        self.check_room(&header, payload.len())?;
        self.reports.count(now, header.id, datagram.len(), ecn);
        self.insert(header, payload.into(), ecn, [now, gives_up_at]);
        Ok(())
    }

    /// Returns whether a packet becomes an event when it arrives.
    const fn is_event(&self, header: &Header) -> bool {
        self.config.packet_events && header.flags.packets_alone
    }

    fn check_room(&self, header: &Header, payload: usize) -> Result<(), Refusal> {
        let copies = if self.is_event(header) { 2 } else { 1 };
        let needed = (payload + PACKET_OVERHEAD) * copies;
        let has_room = self.bytes + needed <= self.config.bytes;
        has_room.then_some(()).ok_or(Refusal::NoRoom)
    }

    fn insert_late(&mut self, id: PacketId) {
        let Some(track) = self.tracks.get_mut(&id.object.alias) else {
            return;
        };
        let begun = track.reassembly.abandon(id.object);
        let is_new = track.reassembly.insert_late(id);
        if let Some(ended) = begun {
            self.give_up(ended);
        } else if is_new && self.bytes + PACKET_OVERHEAD <= self.config.bytes {
            self.push_event(ReceiverEvent::GivenUp {
                id: id.object,
                arrived: 0,
                count: None,
                begun: None,
                payloads: Vec::new(),
            });
        }
    }

    fn insert(&mut self, header: Header, payload: Arc<[u8]>, ecn: Ecn, times: [Instant; 2]) {
        self.bytes += payload.len() + PACKET_OVERHEAD;
        if self.is_event(&header) {
            self.push_event(ReceiverEvent::Packet {
                id: header.id,
                payload: payload.clone(),
            });
        }
        let Some(track) = self.tracks.get_mut(&header.id.object.alias) else {
            return;
        };
        let is_alone = header.flags.packets_alone;
        if track.gaps.add(header.id, header.count, is_alone) {
            self.reports.note_gap();
        }
        if is_alone && let Some(relation) = self.reports.clock().relation() {
            let repair = relation.round_trip * 3 / 2 + REPAIR;
            track.reassembly.pass(&header.id.object, times[0] + repair);
        }
        let complete = track.reassembly.insert(header, payload, ecn, times);
        let surplus = track.reassembly.give_up_surplus();
        if let Some(ended) = complete {
            self.bytes -= ended.partial.size();
            self.push_event(ReceiverEvent::Object(ended.into()));
        }
        if let Some(ended) = surplus {
            self.give_up(ended);
        }
    }

    fn give_up(&mut self, Ended { id, partial }: Ended) {
        self.bytes -= partial.size();
        self.push_event(ReceiverEvent::GivenUp {
            id,
            arrived: u16::try_from(partial.arrived()).unwrap_or(u16::MAX),
            count: partial.count(),
            begun: Some(partial.begun()),
            payloads: match partial.header.flags.packets_alone {
                true => partial.into_payloads(),
                false => Vec::new(),
            },
        });
    }

    fn push_event(&mut self, event: ReceiverEvent) {
        self.bytes += event.size();
        self.events.push_back(event);
    }

    /// Returns the time at which an object is given up if its first packet arrives now.
    fn gives_up_at(&self, now: Instant, header: &Header) -> Instant {
        let Some(relation) = self.reports.clock().relation() else {
            return now + self.config.give_up_after;
        };
        let publisher = self.reports.publisher_time(&relation, now);
        let deadline = header.deadline.nearest(publisher);
        let ahead = deadline.saturating_since(publisher);
        let behind = publisher.saturating_since(deadline);
        // The relation of the clocks is wrong by half of the round trip at most.
        (now + ahead + relation.round_trip / 2 + self.config.grace) - behind
    }
}

impl TrackState {
    fn new(layers: u8, keys: EpochKeys, bounds: Bounds) -> Self {
        TrackState {
            layers,
            keys,
            reassembly: Reassembly::new(bounds),
            gaps: Gaps::default(),
        }
    }

    /// Returns the payload of a packet whose hop tag is right.
    fn open(&mut self, packet: &Packet<'_>) -> Result<(Vec<u8>, Use), Refusal> {
        let header = &packet.header;
        let key = self.keys.get(header.epoch).ok_or(Refusal::UnknownEpoch)?;
        let usefulness = self.reassembly.check(header)?;
        let payload = key
            .open(header.nonce(), &header.immutable(), packet.sealed)
            .map_err(|_| Refusal::Forged)?;
        if header.id.object.layer >= self.layers {
            return Err(Refusal::UnknownLayer);
        }
        self.keys.advance(header.epoch);
        Ok((payload, usefulness))
    }
}

impl ReceiverConfig {
    const fn bounds(&self) -> Bounds {
        Bounds {
            objects: self.objects,
            packets: self.packets,
            remembered: self.remembered,
        }
    }
}

impl ReceivedObject {
    /// Returns the bytes of the object.
    pub fn bytes(&self) -> Vec<u8> {
        self.payloads.concat()
    }
}

impl From<Ended> for ReceivedObject {
    fn from(Ended { id, partial }: Ended) -> Self {
        ReceivedObject {
            id,
            begun: partial.begun(),
            payloads: partial.into_payloads(),
        }
    }
}

impl ReceiverEvent {
    /// Returns the number of bytes that the event takes.
    fn size(&self) -> usize {
        let payloads = match self {
            ReceiverEvent::Packet { payload, .. } => std::slice::from_ref(payload),
            ReceiverEvent::Object(object) => &object.payloads,
            ReceiverEvent::GivenUp { payloads, .. } => payloads,
        };
        let sizes = payloads.iter();
        let size: usize = sizes.map(|payload| payload.len() + PACKET_OVERHEAD).sum();
        size.max(PACKET_OVERHEAD)
    }
}
