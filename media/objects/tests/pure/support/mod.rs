//! A publisher and a viewer over two emulated links, in virtual time.

#![allow(dead_code, reason = "each test uses a part")]

use hawser_netem::{Link, LinkConfig};
use hawser_objects::{
    AccessSecret, AdmitError, Host, HostConfig, HostEvent, ObjectInfo, Outcome, Packetiser,
    PacketiserConfig, ReceivedObject, ReceiverConfig, ReceiverEvent, Seed, Sender, SenderConfig,
    TrackSecret, Viewer, ViewerConfig, ViewerEvent,
};
use hawser_packets::media::{Flags, ObjectId};
use hawser_packets::session::{Announcement, Track};
use hawser_units::{ByteSize, Ecn, Instant};
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) const ALIAS: u32 = 7;

/// The time by which the viewer's clock is ahead.
pub(crate) const AHEAD: Duration = Duration::from_secs(3600);

const TICK: Duration = Duration::from_micros(100);

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn secret() -> TrackSecret {
    TrackSecret::new([0x11; 32])
}

pub(crate) fn access() -> AccessSecret {
    secret().access()
}

pub(crate) fn viewer_address() -> SocketAddr {
    "192.0.2.1:40000".parse().unwrap()
}

pub(crate) fn announcement(layers: u8) -> Announcement {
    Announcement {
        incarnation: [0x22; 16],
        started_unix_millis: 1,
        tracks: vec![Track {
            alias: ALIAS,
            codec: 1,
            layers,
            name: "talker".to_owned(),
            parameters: Vec::new(),
        }],
    }
}

pub(crate) fn host() -> Host {
    let announced = secret().announce(&announcement(2)).unwrap();
    let seed = Seed::new([0x44; 32]);
    let mut host = Host::new(HostConfig::new(access(), announced, [0x33; 16], seed));
    host.set_keys(0, vec![(ALIAS, 0)]);
    host
}

pub(crate) fn viewer(config: ViewerConfig) -> Viewer {
    Viewer::new(config, secret(), [0x55; 16])
}

pub(crate) fn packetiser() -> Packetiser {
    let config = PacketiserConfig::new(ALIAS, [0x22; 16]);
    Packetiser::new(config, secret(), access().hop(&[0x33; 16], 0))
}

pub(crate) fn info(group: u32, object: u32, layer: u8, deadline: Instant) -> ObjectInfo {
    ObjectInfo {
        id: ObjectId {
            alias: ALIAS,
            group,
            object,
            layer,
        },
        priority: layer,
        deadline,
        flags: Flags::default(),
    }
}

/// Returns bytes by which each object is known.
pub(crate) fn content(group: u32, length: usize) -> Vec<u8> {
    let start = group.wrapping_mul(2_654_435_761).to_be_bytes();
    (0..length)
        .map(|at| start[at % 4] ^ (at / 4) as u8)
        .collect()
}

/// The scenario of a [`Rig`].
pub(crate) struct Scenario {
    pub(crate) there: LinkConfig,
    pub(crate) back: LinkConfig,
    pub(crate) seed: u64,
    pub(crate) sender: SenderConfig,
    pub(crate) viewer: ViewerConfig,
    /// The time from a frame's capture to its deadline.
    pub(crate) deadline: Duration,
    pub(crate) frame_bytes: usize,
    pub(crate) frame_interval: Duration,
    /// The number of packets between those that the network marks.
    pub(crate) mark_every: Option<u64>,
    pub(crate) corrupt: bool,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            there: LinkConfig::default(),
            back: LinkConfig::default(),
            seed: 1,
            sender: SenderConfig::new(ByteSize(1_000_000)),
            viewer: ViewerConfig {
                receiver: ReceiverConfig {
                    give_up_after: ms(500),
                    ..ReceiverConfig::default()
                },
                ..ViewerConfig::default()
            },
            deadline: ms(150),
            frame_bytes: 40_000,
            frame_interval: ms(33),
            mark_every: None,
            corrupt: false,
        }
    }
}

/// A datagram on a link, with its ECN field.
type Datagram = (Vec<u8>, Ecn);

fn flip(datagram: &mut Datagram) {
    let middle = datagram.0.len() / 2;
    datagram.0[middle] ^= 0x10;
}

pub(crate) struct Rig {
    pub(crate) now: Instant,
    pub(crate) host: Host,
    pub(crate) viewer: Viewer,
    pub(crate) sender: Sender,
    pub(crate) packetiser: Packetiser,
    pub(crate) session: Option<u32>,
    pub(crate) received: Vec<(Instant, ReceivedObject)>,
    pub(crate) given_up: Vec<ObjectId>,
    pub(crate) offered: Vec<(ObjectId, Result<(), AdmitError>)>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) marked_bytes: u64,
    pub(crate) is_publishing: bool,
    pub(crate) hop: u16,
    scenario: Scenario,
    there: Link<Datagram>,
    back: Link<Datagram>,
    next_frame: Instant,
    next_group: u32,
    sent: u64,
}

impl Rig {
    pub(crate) fn new(scenario: Scenario) -> Self {
        let start = Instant::ZERO + ms(1000);
        let link = |config: &LinkConfig, seed| {
            let link = Link::new(config.clone(), seed, start);
            if scenario.corrupt {
                link.corrupting_by(flip)
            } else {
                link
            }
        };
        Rig {
            now: start,
            host: host(),
            viewer: viewer(scenario.viewer),
            sender: Sender::new(scenario.sender),
            packetiser: packetiser(),
            session: None,
            received: Vec::new(),
            given_up: Vec::new(),
            offered: Vec::new(),
            outcomes: Vec::new(),
            marked_bytes: 0,
            is_publishing: true,
            hop: 0,
            there: link(&scenario.there, scenario.seed),
            back: link(&scenario.back, scenario.seed + 1),
            scenario,
            next_frame: start,
            next_group: 0,
            sent: 0,
        }
    }

    pub(crate) fn viewer_now(&self) -> Instant {
        self.now + AHEAD
    }

    pub(crate) fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.tick();
            self.now += TICK;
        }
    }

    /// Uses the keys of the next epoch and the next hop key.
    pub(crate) fn rotate(&mut self) {
        self.packetiser.rotate().unwrap();
        self.hop = self.hop.wrapping_add(1);
        self.packetiser.set_hop(access().hop(&[0x33; 16], self.hop));
        self.host
            .set_keys(self.hop, vec![(ALIAS, self.packetiser.epoch())]);
    }

    /// Returns the bytes of marked packets that the sender was told of.
    pub(crate) fn reported_marks(&self) -> u64 {
        self.outcomes
            .iter()
            .map(|outcome| outcome.growth.ce_bytes)
            .sum()
    }

    fn tick(&mut self) {
        self.publish();
        self.transmit();
        self.arrive();
        self.time_out();
        self.collect();
    }

    fn publish(&mut self) {
        if self.session.is_none() || !self.is_publishing || self.now < self.next_frame {
            return;
        }
        self.next_frame = self.now + self.scenario.frame_interval;
        let info = info(self.next_group, 0, 0, self.now + self.scenario.deadline);
        let bytes = content(self.next_group, self.scenario.frame_bytes);
        self.next_group += 1;
        let object = self.packetiser.packetise(info, &bytes).unwrap();
        let offered = self.sender.offer(self.now, &object);
        self.offered.push((info.id, offered));
    }

    /// Sends one packet of media in a tick, 96 Mb/s, and all messages.
    fn transmit(&mut self) {
        while let Some((to, message)) = self.host.poll_transmit() {
            assert_eq!(to, viewer_address());
            self.push_there(message, Ecn::Ect1);
        }
        if let Some(transmit) = self.sender.poll_transmit(self.now) {
            self.push_there(transmit.datagram.to_vec(), Ecn::Ect1);
        }
        while let Some(message) = self.viewer.poll_transmit(self.viewer_now()) {
            let size = ByteSize(message.len() as u64);
            self.back.push(self.now, size, (message, Ecn::NotEct));
        }
    }

    fn push_there(&mut self, datagram: Vec<u8>, ecn: Ecn) {
        self.sent += 1;
        let is_marked = self
            .scenario
            .mark_every
            .is_some_and(|every| self.sent.is_multiple_of(every));
        let ecn = if is_marked { Ecn::Ce } else { ecn };
        let size = ByteSize(datagram.len() as u64);
        self.there.push(self.now, size, (datagram, ecn));
    }

    fn arrive(&mut self) {
        while let Some((_, (datagram, ecn))) = self.there.pop(self.now) {
            let now = self.viewer_now();
            let is_media = datagram[0] == hawser_packets::media::VERSION;
            let taken = self.viewer.handle_datagram(now, &datagram, ecn);
            if is_media && taken.is_ok() && ecn == Ecn::Ce {
                self.marked_bytes += datagram.len() as u64;
            }
        }
        while let Some((_, (datagram, _))) = self.back.pop(self.now) {
            let _ = self
                .host
                .handle_datagram(self.now, viewer_address(), &datagram);
        }
    }

    fn time_out(&mut self) {
        let is_due = |due: Option<Instant>, now| due.is_some_and(|due| due <= now);
        if is_due(self.sender.poll_timeout(), self.now) {
            let outcome = self.sender.handle_timeout(self.now);
            self.outcomes.push(outcome);
        }
        if is_due(self.viewer.poll_timeout(), self.viewer_now()) {
            self.viewer.handle_timeout(self.viewer_now());
        }
        if is_due(self.host.poll_timeout(), self.now) {
            self.host.handle_timeout(self.now);
        }
    }

    fn collect(&mut self) {
        while let Some(event) = self.viewer.poll_event() {
            if let ViewerEvent::Opened(announcement) = event {
                let tracks = announcement.tracks.iter().map(|t| (t.alias, t.layers));
                self.viewer.subscribe(self.now + AHEAD, tracks.collect());
            }
        }
        while let Some(event) = self.viewer.poll_media() {
            match event {
                ReceiverEvent::Object(object) => self.received.push((self.now, object)),
                ReceiverEvent::GivenUp { id, .. } => self.given_up.push(id),
                ReceiverEvent::Packet { .. } => {}
            }
        }
        while let Some(event) = self.host.poll_event() {
            match event {
                HostEvent::Opened { .. } => {}
                HostEvent::Subscribed { session, .. } => {
                    self.session = Some(session);
                    let stamp = self.sender.clock_mut().stamp(self.now);
                    self.host.send_status(session, stamp);
                }
                HostEvent::Report {
                    session,
                    number,
                    report,
                } => {
                    let outcome = self.sender.handle_feedback(self.now, number, &report);
                    self.outcomes.push(outcome.unwrap());
                    let stamp = self.sender.clock_mut().stamp(self.now);
                    self.host.send_status(session, stamp);
                }
                HostEvent::Ended { .. } => self.session = None,
            }
        }
    }
}
