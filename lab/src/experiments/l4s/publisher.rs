//! The publisher of the media flow: encoder, packetiser, session and flow.

use super::encoder::{Encoder, HEADERS, IP_UDP};
use super::frames::Frame;
use super::scenario::{Controller, REPORT_INTERVAL};
use super::viewer::{ALIAS, INCARNATION, announcement, secret};
use hawser_objects::{
    Departure, Flow, FlowConfig, Host, HostConfig, HostEvent, ObjectInfo, Packetiser,
    PacketiserConfig, SealedObject, Seed, SenderConfig,
};
use hawser_units::{ByteSize, Ecn, Instant};
use hawser_wire::media::{Flags, ObjectId};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The time from capture after which a frame is of no use.
pub(super) const DEADLINE: Duration = Duration::from_millis(150);

/// The size of the in-flight buffer: three frames of 15 % more than the highest target. The paper gives none.
const BUFFER: ByteSize = ByteSize(1_300_000);

/// The salt of the hop key.
const HOP_SALT: [u8; 16] = [0x33; 16];

/// The publisher of the media flow.
pub(super) struct Publisher {
    pub(super) frames: Vec<Frame>,
    controller: Controller,
    host: Host,
    session: Option<u32>,
    pub(super) flow: Flow,
    packetiser: Packetiser,
    encoder: Encoder,
}

/// A datagram that leaves.
pub(super) struct Outgoing {
    pub(super) datagram: Arc<[u8]>,
    pub(super) ecn: Ecn,
}

impl Publisher {
    /// Creates a publisher whose first frame is captured at `first`.
    pub(super) fn new(controller: Controller, seed: u64, first: Instant) -> Self {
        let hop = secret().access().hop(&HOP_SALT, 0);
        let config = FlowConfig {
            sender: SenderConfig {
                rule: controller.rule(),
                report_interval: REPORT_INTERVAL,
                ..SenderConfig::new(BUFFER)
            },
            spread: controller.spread(),
            overhead: ByteSize(IP_UDP),
            ..FlowConfig::new(BUFFER)
        };
        Publisher {
            frames: Vec::new(),
            controller,
            host: host(controller),
            session: None,
            flow: Flow::new(config, controller.control(first)),
            packetiser: Packetiser::new(PacketiserConfig::new(ALIAS, INCARNATION), secret(), hop),
            encoder: Encoder::new(seed, first, HEADERS),
        }
    }

    /// Returns whether a viewer has subscribed.
    pub(super) fn is_watched(&self) -> bool {
        self.session.is_some()
    }

    /// Returns when [`handle_timeout`](Publisher::handle_timeout) or
    /// [`poll_transmit`](Publisher::poll_transmit) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [
            Some(self.encoder.next()),
            self.flow.poll_timeout(),
            self.host.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Captures a frame and reacts to silence, when they are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.flow.handle_timeout(now);
        if self.host.poll_timeout().is_some_and(|due| due <= now) {
            self.host.handle_timeout(now);
        }
        while self.flow.poll_event().is_some() {}
        self.capture(now);
    }

    /// Takes a message of the viewer.
    pub(super) fn handle_datagram(&mut self, now: Instant, datagram: &[u8]) {
        let viewer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        if let Err(error) = self.host.handle_datagram(now, viewer, datagram) {
            tracing::debug!("a message of the viewer is refused: {error}");
        }
        while let Some(event) = self.host.poll_event() {
            self.handle_event(now, event);
        }
    }

    /// Returns the next datagram that leaves now.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let ecn = self.flow.control().ecn();
        if let Some((_, message)) = self.host.poll_transmit() {
            let datagram = message.into();
            return Some(Outgoing { datagram, ecn });
        }
        let departure = self.flow.poll_transmit(now)?;
        self.begin_frame(now, &departure);
        Some(Outgoing {
            datagram: departure.datagram,
            ecn: departure.ecn,
        })
    }

    fn handle_event(&mut self, now: Instant, event: HostEvent) {
        match event {
            HostEvent::Opened { .. } => {}
            HostEvent::Subscribed { session, .. } => {
                self.session = Some(session);
                self.send_status(now, session);
            }
            HostEvent::Report {
                session,
                number,
                report,
            } => {
                if let Err(error) = self.flow.handle_feedback(now, number, &report) {
                    tracing::debug!("a report of the viewer is refused: {error}");
                }
                self.send_status(now, session);
            }
            HostEvent::Ended { .. } => self.session = None,
        }
    }

    fn send_status(&mut self, now: Instant, session: u32) {
        let stamp = self.flow.stamp(now);
        self.host.send_status(session, stamp);
    }

    fn capture(&mut self, now: Instant) {
        let (target, layers) = (self.flow.control().target(), self.controller.layers());
        let Some(sizes) = self.encoder.encode(now, target, layers) else {
            return;
        };
        let objects = self.packetise(now, &sizes);
        let size = objects.iter().map(|object| self.flow.size(object)).sum();
        // The buffer counts what it does not admit; the layer is then never complete.
        let _ = self.flow.offer(now, &objects);
        self.frames.push(Frame {
            captured: now,
            target,
            size,
            began: None,
            pacing: Duration::ZERO,
            complete: vec![None; sizes.len()],
        });
    }

    /// Seals the layers of the next frame.
    fn packetise(&mut self, now: Instant, sizes: &[usize]) -> Vec<SealedObject> {
        let number = u32::try_from(self.frames.len()).expect("minutes of video");
        let layers = (0..).zip(sizes).map(|(layer, bytes)| {
            let object = self
                .packetiser
                .packetise(info(number, layer, now), &vec![layer; *bytes]);
            object.expect("frames are in order")
        });
        layers.collect()
    }

    /// Writes down when the first packet of a frame leaves.
    fn begin_frame(&mut self, now: Instant, departure: &Departure) {
        let frame = self.frames.get_mut(departure.id.object.group as usize);
        let Some(frame) = frame.filter(|frame| frame.began.is_none()) else {
            return;
        };
        frame.began = Some(now);
        frame.pacing = self.flow.pacing_time(frame.size);
    }
}

fn host(controller: Controller) -> Host {
    let announced = secret().announce(&announcement(controller));
    let announced = announced.expect("the announcement is short");
    let seed = Seed::new([0x44; 32]);
    let mut host = Host::new(HostConfig::new(
        secret().access(),
        announced,
        HOP_SALT,
        seed,
    ));
    host.set_keys(0, vec![(ALIAS, 0)]);
    host
}

fn info(frame: u32, layer: u8, captured: Instant) -> ObjectInfo {
    ObjectInfo {
        id: ObjectId {
            alias: ALIAS,
            group: frame,
            object: 0,
            layer,
        },
        priority: layer,
        deadline: captured + DEADLINE,
        flags: Flags::default(),
    }
}
