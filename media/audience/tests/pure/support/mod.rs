//! A publisher, a relay and its subscribers, over emulated links in virtual time.

#![allow(dead_code, reason = "each test uses a part")]

use hawser_audience::{
    Broadcast, BroadcastConfig, BroadcastEvent, CacheConfig, Command, Outgoing, WholeObject,
    WholeObjects,
};
use hawser_congestion::{Bounds, Prague, PragueConfig, TrainControl};
use hawser_fanout::{Refusal, Relay, SlotIndex, Subscriber, TrackHop, TrackIndex};
use hawser_netem::{Delay, Discipline, DualPi2, Link, LinkConfig, Loss, Packet, Probability, Rate};
use hawser_objects::{
    EncodedLayer, Encodings, FlowConfig, FrameAssembler, FrameConfig, LayerContent, Publication,
    PublicationConfig, ReceivedFrame, ReceiverConfig, ReceiverEvent, Seed, TrackSecret, Viewer,
    ViewerConfig, ViewerEvent,
};
use hawser_packets::media::{ObjectId, Packet as Media, VERSION};
use hawser_packets::session::{Announcement, OPUS, Track};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU8;
use std::time::Duration;

pub(crate) const ALIAS: u32 = 7;
/// The small encoding of the same source, where there is one.
pub(crate) const SMALL: u32 = 8;
/// The sound, where there is some.
pub(crate) const SOUND: u32 = 9;
pub(crate) const INTERVAL: Duration = Duration::from_micros(33_333);
const STEP: Duration = Duration::from_micros(100);
const UPSTREAM: u32 = 1;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secret() -> TrackSecret {
    TrackSecret::new([0x11; 32])
}

fn relay_address() -> SocketAddr {
    "192.0.2.200:41000".parse().unwrap()
}

type Carried = (Vec<u8>, Ecn);

/// Returns a link of 10 ms; with a rate, it marks as DualPI2 does.
pub(crate) fn link(mbps: Option<f64>, loss: f64) -> LinkConfig {
    LinkConfig {
        rate: mbps.map(|mbps| Rate::Constant(Bitrate::from_mbps(mbps))),
        discipline: mbps.map(|_| Discipline::DualPi2(DualPi2::default())),
        delay: Delay::Constant(ms(10)),
        loss: Some(Loss::Independent(Probability::try_from(loss).unwrap())),
        ..LinkConfig::default()
    }
}

fn carry(config: LinkConfig, seed: u64) -> Link<Carried> {
    Link::new(config, seed, Instant::ZERO).marking_by(|packet: &mut Carried| packet.1 = Ecn::Ce)
}

fn push(link: &mut Link<Carried>, now: Instant, datagram: &[u8], ecn: Ecn) {
    link.push_packet(
        now,
        Packet {
            size: ByteSize(datagram.len() as u64 + 28),
            ecn,
            flow: 1,
            payload: (datagram.to_vec(), ecn),
        },
    );
}

/// A subscriber.
pub(crate) struct Watcher {
    pub(crate) address: SocketAddr,
    pub(crate) viewer: Viewer,
    assembler: FrameAssembler,
    pub(crate) there: Link<Carried>,
    back: Link<Carried>,
    pub(crate) layers: u8,
    pub(crate) frames: Vec<ReceivedFrame>,
    /// The numbers of the packets of sound that arrived in time.
    pub(crate) heard: BTreeSet<u32>,
    pub(crate) has_ended: bool,
    /// It no longer sends or receives.
    pub(crate) is_gone: bool,
}

impl Watcher {
    pub(crate) fn new(port: u16, there: LinkConfig) -> Self {
        let back = link(None, 0.0);
        let receiver = ReceiverConfig {
            packet_events: true,
            ..ReceiverConfig::default()
        };
        let config = ViewerConfig {
            receiver,
            ..ViewerConfig::default()
        };
        Watcher {
            address: SocketAddr::from(([192, 0, 2, 1], port)),
            viewer: Viewer::new(config, secret(), [port as u8; 16]),
            assembler: FrameAssembler::new(FrameConfig {
                selected: [(ALIAS, 2), (SMALL, 1)].into(),
                encodings: Encodings::of(&announcement(true, false)),
                lifetime: ms(150),
            }),
            there: carry(there, port.into()),
            back: carry(back, port.into()),
            layers: 2,
            frames: Vec::new(),
            heard: BTreeSet::new(),
            has_ended: false,
            is_gone: false,
        }
    }

    fn run(&mut self, now: Instant) {
        while let Some((_, (datagram, ecn))) = self.there.pop(now) {
            let _ = self.viewer.handle_datagram(now, &datagram, ecn);
        }
        if self.viewer.poll_timeout().is_some_and(|due| due <= now) {
            self.viewer.handle_timeout(now);
        }
        while let Some(event) = self.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => {
                    let tracks = announcement.tracks.iter().map(|track| track.alias);
                    let layers = |alias| if alias == ALIAS { self.layers } else { 1 };
                    let tracks: Vec<_> = tracks.map(|alias| (alias, layers(alias))).collect();
                    match tracks.contains(&(SMALL, 1)) {
                        true => self.viewer.subscribe_to_any_encoding(now, tracks),
                        false => self.viewer.subscribe(now, tracks),
                    }
                }
                ViewerEvent::Ended(_) => self.has_ended = true,
            }
        }
        let clock = self.viewer.receiver().map(|receiver| receiver.clock());
        if let Some(relation) = clock.and_then(|clock| clock.relation()) {
            self.assembler.set_round_trip(relation.round_trip);
        }
        while let Some(event) = self.viewer.poll_media() {
            match event {
                ReceiverEvent::Object(object) if object.id.alias == SOUND => {
                    self.heard.insert(object.id.group);
                }
                event => self.assembler.handle_event(now, event),
            }
        }
        self.assembler.handle_timeout(now);
        self.frames
            .extend(std::iter::from_fn(|| self.assembler.poll_frame()));
        while let Some(message) = self.viewer.poll_transmit(now) {
            push(&mut self.back, now, &message, Ecn::NotEct);
        }
    }

    /// Returns the share of the frames from a group on that arrived whole, and that could be decoded.
    pub(crate) fn shares(&self, groups: std::ops::Range<u32>) -> (f64, f64) {
        let count = f64::from(groups.end - groups.start);
        let seen = || self.frames.iter().filter(|f| groups.contains(&f.id.0));
        let whole = seen().filter(|frame| frame.is_whole).count() as f64;
        (whole / count, seen().count() as f64 / count)
    }
}

/// The sender of packets, as the specification of the kernel's program decides.
struct Forwarder {
    relay: Relay,
    tracks: BTreeMap<u32, TrackIndex>,
    slots: BTreeMap<u32, SlotIndex>,
    addresses: BTreeMap<SlotIndex, SocketAddr>,
    begun: BTreeSet<ObjectId>,
    /// The numbers of the upstream's keys: the one before, the current one and the one after.
    hops: [u16; 3],
}

impl Forwarder {
    fn new() -> Self {
        Forwarder {
            relay: Relay::new(1200),
            tracks: BTreeMap::new(),
            slots: BTreeMap::new(),
            addresses: BTreeMap::new(),
            begun: BTreeSet::new(),
            hops: [0; 3],
        }
    }

    fn handle_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::SetHops(hops) => {
                self.hops = hops.each_ref().map(|hop| hop.number);
                self.relay.set_upstream(UPSTREAM, hops.map(Some));
            }
            Command::SetTracks { aliases, hop } => {
                for (index, alias) in TrackIndex::all().zip(aliases) {
                    self.relay.add_track(index, TrackHop::Own(hop.clone()));
                    self.relay.name_track(UPSTREAM, alias, Some(index));
                    self.tracks.insert(alias, index);
                }
            }
            Command::Add {
                session,
                address,
                budget,
            } => {
                let used: BTreeSet<SlotIndex> = self.slots.values().copied().collect();
                let slot = SlotIndex::all().find(|slot| !used.contains(slot)).unwrap();
                self.slots.insert(session, slot);
                self.addresses.insert(slot, address);
                let subscriber = Subscriber {
                    is_ipv6: false,
                    since: now,
                    expires: Instant::MAX,
                    budget,
                };
                self.relay.add_subscriber(slot, subscriber);
            }
            Command::Remove { session } => {
                if let Some(slot) = self.slots.remove(&session) {
                    self.relay.remove_subscriber(slot);
                }
            }
            Command::Subscribe {
                session,
                alias,
                selection,
            } => {
                let (track, slot) = (self.tracks[&alias], self.slots[&session]);
                self.relay.subscribe(track, slot, selection);
            }
            Command::Select {
                session,
                alias,
                layers,
            } => self
                .relay
                .select(self.tracks[&alias], self.slots[&session], layers),
            Command::Unsubscribe { session, alias } => {
                self.relay
                    .unsubscribe(self.tracks[&alias], self.slots[&session]);
            }
            Command::SetBudget { session, budget } => {
                self.relay.set_budget(self.slots[&session], budget);
            }
            Command::Spend {
                session,
                priority,
                bytes,
            } => self.relay.spend(self.slots[&session], priority, bytes),
        }
    }
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) publication: Publication,
    to_relay: Link<Carried>,
    from_relay: Link<Carried>,
    pub(crate) broadcast: Broadcast,
    forwarder: Forwarder,
    pub(crate) watchers: Vec<Watcher>,
    next_capture: Instant,
    pub(crate) published: u32,
    next_sound: Instant,
    /// The number of packets of sound that were published.
    pub(crate) said: u32,
    pub(crate) events: Vec<BroadcastEvent>,
    /// The packets that had the tag of the publisher's key before the current one, of that, and of the one
    /// after.
    pub(crate) tagged: [u32; 3],
    /// The packets that the sender of packets did not take, and why.
    pub(crate) refused: Vec<(ObjectId, Refusal)>,
    /// The rate of the stream.
    pub(crate) mbps: f64,
    /// Each packet of the stream decodes alone.
    pub(crate) has_chunks: bool,
    has_small: bool,
    has_sound: bool,
    pub(crate) whole: WholeObjects,
    pub(crate) objects: Vec<WholeObject>,
}

impl World {
    pub(crate) fn new(watchers: Vec<Watcher>) -> Self {
        World::over(watchers, link(Some(200.0), 0.0))
    }

    /// Returns the world with a link from the publisher to the relay.
    pub(crate) fn over(watchers: Vec<Watcher>, to_relay: LinkConfig) -> Self {
        World::publishing(watchers, to_relay, (false, false))
    }

    /// Returns the world with sound of 48 kb/s with all headers, beside the pictures.
    pub(crate) fn with_sound(watchers: Vec<Watcher>) -> Self {
        World::publishing(watchers, link(Some(200.0), 0.0), (false, true))
    }

    /// Returns the world with a small encoding, of a fifteenth of the rate, beside the usual one.
    pub(crate) fn with_small(watchers: Vec<Watcher>) -> Self {
        World::publishing(watchers, link(Some(200.0), 0.0), (true, false))
    }

    fn publishing(
        watchers: Vec<Watcher>,
        to_relay: LinkConfig,
        (has_small, has_sound): (bool, bool),
    ) -> Self {
        let config = PublicationConfig {
            announcement: announcement(has_small, has_sound),
            lifetime: ms(150),
            flow: FlowConfig::new(ByteSize(1_300_000)),
            viewers: 8,
            hop_salt: [0x33; 16],
            seed: Seed::new([0x44; 32]),
        };
        let control = |now| Box::new(Prague::new(PragueConfig::default(), now)) as _;
        World {
            now: Instant::ZERO + ms(1000),
            publication: Publication::new(config, &secret(), Box::new(control)).unwrap(),
            to_relay: carry(to_relay, 1),
            from_relay: carry(link(None, 0.0), 2),
            broadcast: broadcast(),
            forwarder: Forwarder::new(),
            watchers,
            next_capture: Instant::ZERO + ms(1000),
            published: 0,
            next_sound: Instant::ZERO + ms(1000),
            said: 0,
            events: Vec::new(),
            tagged: [0; 3],
            refused: Vec::new(),
            mbps: 20.0,
            has_chunks: false,
            has_small,
            has_sound,
            whole: WholeObjects::default(),
            objects: Vec::new(),
        }
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now += STEP;
            self.publish();
            self.relay();
            for watcher in self.watchers.iter_mut().filter(|w| !w.is_gone) {
                watcher.run(self.now);
            }
        }
    }

    /// Publishes frames of which the base has a fifth.
    fn publish(&mut self) {
        let now = self.now;
        if now >= self.next_capture && self.publication.target(now).is_some() {
            self.next_capture = now + INTERVAL;
            let bytes = Bitrate::from_mbps(self.mbps).bytes_in(INTERVAL).0 as usize;
            let contents = [
                vec![0; bytes / 5],
                vec![1; bytes * 4 / 5],
                vec![2; bytes / 15],
            ];
            let chunks = contents
                .each_ref()
                .map(|content| content.chunks(1100).collect::<Vec<&[u8]>>());
            let layers = [(ALIAS, 0), (ALIAS, 1), (SMALL, 0)];
            let layers = layers.iter().zip(contents.iter().zip(&chunks)).map(
                |((alias, layer), (content, chunks))| EncodedLayer {
                    alias: *alias,
                    layer: *layer,
                    content: match self.has_chunks {
                        true => LayerContent::Chunks(chunks),
                        false => LayerContent::Whole(content),
                    },
                },
            );
            let layers: Vec<EncodedLayer<'_>> = layers.collect();
            let count = if self.has_small { 3 } else { 2 };
            self.publication
                .publish(now, now, &layers[..count])
                .unwrap();
            self.published += 1;
        }
        if self.has_sound && now >= self.next_sound && self.publication.viewers() > 0 {
            self.next_sound = now + ms(20);
            self.publication.publish_sound(now, now, &[3; 40]).unwrap();
            self.said += 1;
        }
        self.publication.handle_timeout(now);
        while let Some((_, (message, _))) = self.from_relay.pop(now) {
            let _ = self
                .publication
                .handle_datagram(now, relay_address(), &message);
        }
        while let Some(outgoing) = self.publication.poll_transmit(now) {
            push(&mut self.to_relay, now, &outgoing.datagram, outgoing.ecn);
        }
        while self.publication.poll_event().is_some() {}
    }

    fn relay(&mut self) {
        let now = self.now;
        while let Some((_, (datagram, ecn))) = self.to_relay.pop(now) {
            if let Some(datagram) = self.forward(datagram) {
                let _ = self.broadcast.handle_upstream(now, &datagram, ecn);
                self.objects.extend(self.whole.take(&self.broadcast));
                self.execute_commands();
            }
        }
        for watcher in self.watchers.iter_mut().filter(|w| !w.is_gone) {
            while let Some((_, (message, _))) = watcher.back.pop(now) {
                let _ = self.broadcast.handle_viewer(now, watcher.address, &message);
            }
        }
        self.execute_commands();
        if self.broadcast.poll_timeout().is_some_and(|due| due <= now) {
            self.broadcast.handle_timeout(now);
        }
        while let Some(Outgoing { to, datagram, ecn }) = self.broadcast.poll_transmit(now) {
            match to {
                None => push(&mut self.from_relay, now, &datagram, ecn),
                Some(to) => self.send(to, &datagram, ecn),
            }
        }
        self.execute_commands();
        while let Some(event) = self.broadcast.poll_event() {
            if matches!(event, BroadcastEvent::Opened(_)) {
                self.broadcast.expect_retagged();
            }
            self.events.push(event);
        }
    }

    /// Sends a packet to the subscribers to which it is admitted. Returns the datagram for the broadcast;
    /// `None` if it is refused.
    fn forward(&mut self, mut datagram: Vec<u8>) -> Option<Vec<u8>> {
        if datagram.first() != Some(&VERSION) {
            return Some(datagram);
        }
        let now = self.now;
        let packet = Media::parse(&datagram).unwrap();
        let (object, hop) = (packet.header.id.object, packet.hop);
        let forwarder = &mut self.forwarder;
        if let Some(position) = forwarder.hops.iter().position(|number| *number == hop) {
            self.tagged[position] += 1;
        }
        let decided = forwarder
            .relay
            .handle_datagram(now, UPSTREAM, &mut datagram);
        let delivery = match decided {
            Ok(delivery) => delivery,
            // The kernel tags these, too.
            Err(Refusal::Duplicate | Refusal::Outdated) => return Some(datagram),
            Err(refusal) => {
                self.refused.push((object, refusal));
                return None;
            }
        };
        while let Some(registration) = forwarder.relay.poll_registration() {
            if forwarder.begun.insert(registration.object) {
                let slots = forwarder.slots.iter();
                let served = slots.filter(|(_, slot)| registration.served.contains(**slot));
                let served: Vec<u32> = served.map(|(session, _)| *session).collect();
                self.broadcast
                    .handle_begun(registration.object, served.into_iter());
            }
        }
        let joining: Vec<(u32, u32)> = self.broadcast.joining().collect();
        for (session, alias) in joining {
            let slot = self.forwarder.slots[&session];
            let track = self.forwarder.tracks[&alias];
            if let Some(joined) = self.forwarder.relay.joined(track, slot) {
                self.broadcast.handle_joined(session, alias, joined);
            }
        }
        for slot in delivery.to {
            let to = self.forwarder.addresses[&slot];
            self.send(to, &datagram, Ecn::Ect0);
        }
        Some(datagram)
    }

    fn execute_commands(&mut self) {
        while let Some(command) = self.broadcast.poll_command() {
            self.forwarder.handle_command(self.now, command);
        }
    }

    fn send(&mut self, to: SocketAddr, datagram: &[u8], ecn: Ecn) {
        let watcher = self.watchers.iter_mut().find(|w| w.address == to);
        if let Some(watcher) = watcher {
            push(&mut watcher.there, self.now, datagram, ecn);
        }
    }
}

fn announcement(has_small: bool, has_sound: bool) -> Announcement {
    let track = |alias, layers, name: &str, codec| Track {
        alias,
        codec,
        layers,
        name: name.to_owned(),
        parameters: Vec::new(),
    };
    let mut tracks = vec![track(ALIAS, 2, "talker", 1)];
    if has_small {
        tracks.push(track(SMALL, 1, "talker", 1));
    }
    if has_sound {
        tracks.push(track(SOUND, 1, "sound", OPUS));
    }
    Announcement {
        incarnation: [0x22; 16],
        started_unix_millis: 1,
        tracks,
    }
}

fn broadcast() -> Broadcast {
    let config = BroadcastConfig {
        access: secret().access(),
        relay: 99,
        hop_salt: [0x66; 16],
        seed: Seed::new([0x77; 32]),
        subscribers: 16,
        report_interval_ms: NonZeroU8::new(100).unwrap(),
        cache: CacheConfig::default(),
    };
    let bounds = Bounds::new(
        Bitrate::from_mbps(0.5),
        Bitrate::from_mbps(10.0),
        Bitrate::from_mbps(100.0),
    );
    let control = move |now| Box::new(TrainControl::new(bounds, now)) as _;
    Broadcast::new(config, Box::new(control), [0x88; 16])
}
