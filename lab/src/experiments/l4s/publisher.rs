//! The publisher of the media flow: encoder, packetiser, in-flight buffer, rate control and pacer.

use super::encoder::{Encoder, IP_UDP};
use super::frames::Frame;
use super::ledger::Ledger;
use super::scenario::{Controller, REPORT_INTERVAL};
use super::viewer::{ALIAS, INCARNATION, announcement, secret};
use hawser_congestion::{Feedback, Pacer, Permission, RateControl, Spread};
use hawser_objects::{
    Host, HostConfig, HostEvent, ObjectInfo, Outcome, Packetiser, PacketiserConfig, Seed, Sender,
    SenderConfig, Transmit,
};
use hawser_units::{ByteSize, Ecn, Instant};
use hawser_wire::media::{Flags, ObjectId};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The time from capture after which a frame is of no use.
pub(super) const DEADLINE: Duration = Duration::from_millis(150);

/// The time that earlier frames may need to leave before a frame's base goes ahead of them.
const BACKLOG: Duration = Duration::from_millis(10);

/// The size of the in-flight buffer: three frames of 15 % more than the highest target. The paper gives none.
const BUFFER: ByteSize = ByteSize(1_300_000);

/// The salt of the hop key.
const HOP_SALT: [u8; 16] = [0x33; 16];

/// The publisher of the media flow.
pub(super) struct Publisher {
    pub(super) frames: Vec<Frame>,
    pub(super) control: Box<dyn RateControl + Send>,
    controller: Controller,
    host: Host,
    session: Option<u32>,
    pub(super) sender: Sender,
    packetiser: Packetiser,
    encoder: Encoder,
    pacer: Pacer,
    paced: Option<u32>,
    ledger: Ledger,
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
        let settings = SenderConfig {
            rule: controller.rule(),
            report_interval: REPORT_INTERVAL,
            ..SenderConfig::new(BUFFER)
        };
        Publisher {
            frames: Vec::new(),
            control: controller.control(first),
            controller,
            host: host(controller),
            session: None,
            sender: Sender::new(settings),
            packetiser: Packetiser::new(PacketiserConfig::new(ALIAS, INCARNATION), secret(), hop),
            encoder: Encoder::new(seed, first),
            pacer: Pacer::new(controller.spread()),
            paced: None,
            ledger: Ledger::default(),
        }
    }

    /// Returns whether a viewer has subscribed.
    pub(super) fn is_watched(&self) -> bool {
        self.session.is_some()
    }

    /// Returns when [`handle_timeout`](Publisher::handle_timeout) or
    /// [`poll_transmit`](Publisher::poll_transmit) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let may_send = self.may_send_at().filter(|_| self.sender.has_transmit());
        [
            Some(self.encoder.next()),
            may_send,
            self.sender.poll_timeout(),
            self.control.poll_timeout(),
            self.host.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Captures a frame and reacts to silence, when they are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        let is_due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if is_due(self.control.poll_timeout()) {
            self.control.handle_timeout(now);
        }
        if is_due(self.sender.poll_timeout()) {
            let outcome = self.sender.handle_timeout(now);
            self.tell(now, now, &outcome);
        }
        if is_due(self.host.poll_timeout()) {
            self.host.handle_timeout(now);
        }
        while self.sender.poll_event().is_some() {}
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
        let ecn = self.control.ecn();
        if let Some((_, message)) = self.host.poll_transmit() {
            let datagram = message.into();
            return Some(Outgoing { datagram, ecn });
        }
        self.may_send_at().filter(|at| *at <= now)?;
        let transmit = self.sender.poll_transmit(now)?;
        self.begin_frame(now, &transmit);
        let size = ByteSize(transmit.datagram.len() as u64 + IP_UDP);
        self.pacer
            .handle_sent(now, size, self.control.pacing_rate());
        let number = self.ledger.number(transmit.id);
        self.control.handle_sent(now, number, size);
        let datagram = transmit.datagram;
        Some(Outgoing { datagram, ecn })
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
                if let Ok(outcome) = self.sender.handle_feedback(now, number, &report) {
                    self.tell(now, report.clock.sent, &outcome);
                }
                self.send_status(now, session);
            }
            HostEvent::Ended { .. } => self.session = None,
        }
    }

    fn send_status(&mut self, now: Instant, session: u32) {
        let stamp = self.sender.clock_mut().stamp(now);
        self.host.send_status(session, stamp);
    }

    /// Passes a report that was sent at `reported` by the viewer's clock on to the rate control.
    fn tell(&mut self, now: Instant, reported: Instant, outcome: &Outcome) {
        let (acked, lost) = self.ledger.settle(reported, outcome);
        self.control.handle_feedback(&Feedback {
            now,
            acked: &acked,
            lost: &lost,
            app_limited: false,
        });
    }

    /// Returns when a packet may leave; `None` while the window is full.
    fn may_send_at(&self) -> Option<Instant> {
        let paced = self.pacer.next_send();
        match self.control.permission() {
            Permission::Send => (self.control.in_flight() < self.control.window()).then_some(paced),
            Permission::Probe { at } => Some(paced.max(at)),
        }
    }

    fn capture(&mut self, now: Instant) {
        let (target, layers) = (self.control.target(), self.controller.layers());
        let Some(sizes) = self.encoder.encode(now, target, layers) else {
            return;
        };
        let size = self.offer(now, &sizes);
        self.frames.push(Frame {
            captured: now,
            target,
            size,
            began: None,
            pacing: Duration::ZERO,
            complete: vec![None; sizes.len()],
        });
    }

    /// Seals the layers of the next frame and offers them to the in-flight buffer. Returns the bytes
    /// of all packets with all headers.
    fn offer(&mut self, now: Instant, sizes: &[usize]) -> ByteSize {
        let number = u32::try_from(self.frames.len()).expect("minutes of video");
        let waiting = self.sender.waiting();
        let is_urgent = self.control.pacing_rate().time_to_send(waiting) > BACKLOG;
        let mut size = ByteSize(0);
        for (layer, bytes) in (0..).zip(sizes) {
            let info = info(number, layer, is_urgent, now);
            let object = self.packetiser.packetise(info, &vec![layer; *bytes]);
            let object = object.expect("frames are in order");
            size += object.size() + ByteSize(IP_UDP * object.packets.len() as u64);
            // The buffer counts what it does not admit; the layer is then never complete.
            let _ = self.sender.offer(now, &object);
        }
        size
    }

    /// Tells the pacer the size of a frame of which the first packet leaves.
    fn begin_frame(&mut self, now: Instant, transmit: &Transmit) {
        let group = transmit.id.object.group;
        if transmit.is_repeated || self.paced.is_some_and(|paced| group <= paced) {
            return;
        }
        self.paced = Some(group);
        let Some(frame) = self.frames.get_mut(group as usize) else {
            return;
        };
        frame.began = Some(now);
        frame.pacing = match self.controller.spread() {
            Spread::Interval(interval) => interval,
            Spread::BorneRate => self.control.pacing_rate().time_to_send(frame.size),
        };
        self.pacer.begin_frame(frame.size);
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

/// Returns the description of a layer. Frames leave one after the other; only an urgent base goes
/// ahead.
fn info(frame: u32, layer: u8, is_urgent: bool, captured: Instant) -> ObjectInfo {
    ObjectInfo {
        id: ObjectId {
            alias: ALIAS,
            group: frame,
            object: 0,
            layer,
        },
        priority: u8::from(layer > 0 || !is_urgent),
        deadline: captured + DEADLINE,
        flags: Flags::default(),
    }
}
