//! The publisher of the media flow: the encoder, and the publication of the product.

use super::encoder::{Encoder, HEADERS, INTERVAL, IP_UDP};
use super::flow::{Outgoing, Traffic};
use super::frames::Frame;
use super::scenario::{Controller, REPORT_INTERVAL};
use super::viewer::{ALIAS, announcement, secret};
use hawser_congestion::Spread;
use hawser_objects::{
    EncodedLayer, FlowConfig, LayerContent, Publication, PublicationConfig, PublicationEvent, Seed,
    SenderConfig, ViewerStatus,
};
use hawser_packets::media::Packet;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The time from capture after which a frame is of no use.
pub(super) const DEADLINE: Duration = Duration::from_millis(150);

/// The size of the paper's in-flight buffer, which gives none: three frames of 15 % more than the highest
/// target.
const PAPERS_BUFFER: ByteSize = ByteSize(1_300_000);

/// The salt of the hop key.
const HOP_SALT: [u8; 16] = [0x33; 16];

/// The publisher of the media flow.
pub(super) struct Publisher {
    pub(super) frames: Vec<Frame>,
    controller: Controller,
    publication: Publication,
    encoder: Encoder,
}

impl Publisher {
    /// Creates a publisher whose first frame is captured at `first`.
    pub(super) fn new(controller: Controller, seed: u64, first: Instant) -> Self {
        Publisher {
            frames: Vec::new(),
            controller,
            publication: publication(controller),
            encoder: Encoder::new(seed, first, HEADERS),
        }
    }

    /// Returns whether a viewer has subscribed.
    pub(super) fn is_watched(&self) -> bool {
        self.publication.viewers() > 0
    }

    /// Returns when [`handle_timeout`](Publisher::handle_timeout) or
    /// [`poll_transmit`](Publisher::poll_transmit) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let next = self.encoder.next();
        let due = self.publication.poll_timeout();
        Some(due.map_or(next, |due| due.min(next)))
    }

    /// Captures a frame and reacts to silence, when they are due.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.publication.handle_timeout(now);
        self.discard_events();
        self.capture(now);
    }

    /// Takes a message of the viewer.
    pub(super) fn handle_datagram(&mut self, now: Instant, datagram: &[u8]) {
        let viewer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        if let Err(error) = self.publication.handle_datagram(now, viewer, datagram) {
            tracing::debug!("a message of the viewer is refused: {error}");
        }
        self.discard_events();
    }

    /// Returns the next datagram that leaves now.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let outgoing = self.publication.poll_transmit(now)?;
        if let Ok(packet) = Packet::parse(&outgoing.datagram) {
            self.begin_frame(now, packet.header.id.object.group);
        }
        Some(Outgoing {
            datagram: outgoing.datagram,
            ecn: outgoing.ecn,
        })
    }

    /// Returns the rate of the next frame, with all headers: as the product encodes, or the target of the
    /// paper's controller. It is 0 without a viewer.
    pub(super) fn target(&self, now: Instant) -> Bitrate {
        let target = match self.controller {
            Controller::Prague => self.publication.target(now),
            Controller::Paper => self.viewer().map(|viewer| viewer.target),
        };
        target.unwrap_or(Bitrate::from_bps(0))
    }

    /// Returns the rate at which packets leave, if there is a viewer.
    pub(super) fn pacing_rate(&self) -> Option<Bitrate> {
        self.viewer().map(|viewer| viewer.pacing_rate)
    }

    /// Returns the counts of packets and refusals so far.
    pub(super) fn traffic(&self) -> Traffic {
        self.viewer().map_or(Traffic::default(), |viewer| Traffic {
            packets: viewer.sender.packets,
            repeated: viewer.sender.repeated,
            refused_no_room: viewer.sender.refused_no_room,
            refused_feedback: viewer.refusals.total(),
        })
    }

    fn viewer(&self) -> Option<ViewerStatus> {
        self.publication.status().pop()
    }

    fn discard_events(&mut self) {
        while let Some(event) = self.publication.poll_event() {
            if let PublicationEvent::Left { reason, .. } = event {
                tracing::warn!(?reason, "the viewer has left");
            }
        }
    }

    fn capture(&mut self, now: Instant) {
        let target = self.target(now);
        let Some(sizes) = self.encoder.encode(now, target, self.controller.layers()) else {
            return;
        };
        let contents: Vec<Vec<u8>> = (0..).zip(&sizes).map(|(n, size)| vec![n; *size]).collect();
        let layers = (0..).zip(&contents).map(|(layer, content)| EncodedLayer {
            alias: ALIAS,
            layer,
            content: LayerContent::Whole(content),
        });
        let layers: Vec<EncodedLayer<'_>> = layers.collect();
        let published = self.publication.publish(now, now, &layers);
        let published = published.expect("minutes of video do not exhaust the numbers");
        self.frames.push(Frame {
            captured: now,
            target,
            size: published.size + ByteSize(IP_UDP * published.packets),
            began: None,
            pacing: Duration::ZERO,
            complete: vec![None; sizes.len()],
        });
    }

    /// Writes down when the first packet of a frame, whose number is that of its group, leaves.
    fn begin_frame(&mut self, now: Instant, group: u32) {
        let frame = usize::try_from(group).expect("minutes of video");
        if self.frames[frame].began.is_some() {
            return;
        }
        let pacing = match self.controller.spread() {
            Spread::Interval(interval) => interval,
            Spread::BorneRate => {
                let rate = self.pacing_rate().expect("a packet leaves for a viewer");
                rate.time_to_send(self.frames[frame].size)
            }
        };
        self.frames[frame].began = Some(now);
        self.frames[frame].pacing = pacing;
    }
}

fn publication(controller: Controller) -> Publication {
    let buffer = match controller {
        // As in the product.
        Controller::Prague => Controller::maximum().bytes_in(DEADLINE + INTERVAL),
        Controller::Paper => PAPERS_BUFFER,
    };
    let flow = FlowConfig {
        sender: SenderConfig {
            rule: controller.rule(),
            report_interval: REPORT_INTERVAL,
            ..SenderConfig::new(buffer)
        },
        spread: controller.spread(),
        ..FlowConfig::new(buffer)
    };
    let config = PublicationConfig {
        announcement: announcement(controller),
        lifetime: DEADLINE,
        flow,
        viewers: 1,
        hop_salt: HOP_SALT,
        seed: Seed::new([0x44; 32]),
    };
    let control = Box::new(move |now| controller.control(now));
    Publication::new(config, &secret(), control).expect("the announcement is short")
}
