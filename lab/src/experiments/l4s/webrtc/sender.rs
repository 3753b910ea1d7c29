//! The publisher: encoder, packets of frames, and `str0m`'s rate control and pacer.

use super::endpoint::{Endpoint, Side, declare};
use super::packet::{FIRST_NUMBER, FRAMES, HEADERS, Part, REPAIR, requested, stream};
use crate::experiments::l4s::encoder::{Encoder, PACKET};
use crate::experiments::l4s::flow::Traffic;
use crate::experiments::l4s::frames::Frame;
use hawser_congestion::Bounds;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{self, Duration};
use str0m::bwe::Bitrate as Payload;
use str0m::media::Pt;
use str0m::rtp::RtpWrite;
use str0m::stats::PeerStats;
use str0m::{Event, RtcConfig};

/// The type of payload of the codec that stands for ours.
const PAYLOAD_TYPE: u8 = 96;

/// The bytes of a full packet without its headers.
const PAYLOAD: u64 = PACKET - HEADERS;

/// The number of packets that are kept to be sent again (section 4.6).
const KEPT: usize = 1024;

/// The time between two looks at the estimate, in the statistics. The event that tells of it has the
/// mean of 3 s, by which an encoder would send for seconds what the pacer no longer lets out.
const ESTIMATES: Duration = Duration::from_millis(5);

/// A packet of the stream of frames.
struct Packet {
    number: u64,
    frame: u32,
    media_time: u32,
    payload: Arc<[u8]>,
}

/// The publisher's end.
pub(super) struct Sender {
    endpoint: Endpoint,
    encoder: Encoder,
    target: Bitrate,
    /// The numbers of the next packets of both streams.
    next_frames: u64,
    next_repair: u64,
    /// The packets of frames that have not left, and the newest of those that have.
    waiting: VecDeque<Packet>,
    sent: VecDeque<Packet>,
    traffic: Traffic,
}

impl Sender {
    pub(super) fn new(origin: time::Instant, seed: u64, first: Instant) -> Self {
        let minimum = Bounds::default().minimum();
        let config = RtcConfig::new()
            .enable_bwe(Some(of_payload(minimum)))
            .set_stats_interval(Some(ESTIMATES));
        Sender {
            endpoint: Endpoint::new(Side::Publisher, origin, config),
            encoder: Encoder::new(seed, first, HEADERS),
            target: minimum,
            next_frames: FIRST_NUMBER,
            next_repair: FIRST_NUMBER,
            waiting: VecDeque::new(),
            sent: VecDeque::new(),
            traffic: Traffic::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.endpoint.is_open()
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.endpoint.poll_timeout().min(self.encoder.next())
    }

    /// Returns the rate for the encoder, within the same bounds as the other controllers have.
    pub(super) fn target(&self) -> Bitrate {
        self.target
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Captures a frame, and sends what is due.
    pub(super) fn handle_timeout(&mut self, now: Instant, frames: &mut Vec<Frame>) {
        let is_captured = self.capture(now, frames);
        if is_captured || self.endpoint.poll_timeout() <= now {
            self.endpoint.handle_timeout(now);
            self.handle_events(now);
        }
    }

    /// Takes a message of the viewer.
    pub(super) fn handle_datagram(&mut self, now: Instant, message: &[u8]) {
        self.endpoint.handle_datagram(now, message);
        self.handle_events(now);
    }

    /// Returns the next datagram that leaves.
    pub(super) fn poll_transmit(&mut self, now: Instant, frames: &mut [Frame]) -> Option<Vec<u8>> {
        let datagram = self.endpoint.poll_transmit()?;
        match stream(&datagram) {
            Some(FRAMES) => self.leave(now, frames),
            Some(REPAIR) => self.traffic.repeated += 1,
            _ => {}
        }
        Some(datagram)
    }

    /// Writes down that the next packet of the stream of frames leaves.
    fn leave(&mut self, now: Instant, frames: &mut [Frame]) {
        let packet = self.waiting.pop_front();
        let packet = packet.expect("packets leave once and in order");
        let frame = &mut frames[packet.frame as usize];
        let began = *frame.began.get_or_insert(now);
        frame.pacing = now.saturating_since(began);
        self.traffic.packets += 1;
        self.sent.push_back(packet);
        if self.sent.len() > KEPT {
            self.sent.pop_front();
        }
    }

    fn handle_events(&mut self, now: Instant) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                Event::PeerStats(PeerStats { bwe_tx, .. }) => {
                    let bounds = Bounds::default();
                    let rate = bwe_tx.map_or(self.target, of_packets);
                    self.target = rate.clamp(bounds.minimum(), bounds.maximum());
                }
                Event::AppSpecificFeedback(feedback) => {
                    let lost = requested(&feedback.payload);
                    self.repeat(now, lost.expect("the viewer asks for a range"));
                }
                _ => {}
            }
        }
    }

    /// Sends packets of the stream of frames again, as far as they are kept.
    fn repeat(&mut self, now: Instant, lost: Range<u64>) {
        let wallclock = self.endpoint.at(now);
        let mut direct = self.endpoint.rtc.direct_api();
        let stream = direct.stream_tx(&REPAIR.into());
        let stream = stream.expect("both streams are declared with the first frame");
        for packet in self.sent.iter().filter(|sent| lost.contains(&sent.number)) {
            stream.write_rtp(packet.rtp(self.next_repair, wallclock));
            self.next_repair += 1;
        }
        self.endpoint.handle_timeout(now);
    }

    /// Captures a frame if one is due. Returns whether it was.
    fn capture(&mut self, now: Instant, frames: &mut Vec<Frame>) -> bool {
        let Some(sizes) = self.encoder.encode(now, self.target, &[1.0]) else {
            return false;
        };
        if frames.is_empty() {
            self.begin();
        }
        let number = u32::try_from(frames.len()).expect("minutes of video");
        let size = self.write(now, number, sizes[0]);
        frames.push(Frame {
            captured: now,
            target: self.target,
            size,
            began: None,
            pacing: Duration::ZERO,
            complete: vec![None],
        });
        true
    }

    /// Adds the stream. Before, there is nothing for which `str0m` looks for a higher rate.
    fn begin(&mut self) {
        declare(&mut self.endpoint.rtc, Side::Publisher);
        let maximum = of_payload(Bounds::default().maximum());
        self.endpoint.rtc.bwe().set_bitrate(Payload::ZERO, maximum);
    }

    /// Gives the packets of a frame to `str0m`. Returns their bytes with all headers.
    fn write(&mut self, now: Instant, frame: u32, bytes: usize) -> ByteSize {
        let count = bytes.div_ceil(PAYLOAD as usize);
        let wallclock = self.endpoint.at(now);
        let media_time = (now.as_nanos() * 9 / 100_000) as u32;
        let mut direct = self.endpoint.rtc.direct_api();
        let stream = direct.stream_tx(&FRAMES.into());
        let stream = stream.expect("both streams are declared with the first frame");
        for index in 0..count {
            let size = (bytes - index * PAYLOAD as usize).min(PAYLOAD as usize);
            let part = Part {
                frame,
                index,
                count,
            };
            let packet = Packet {
                number: self.next_frames,
                frame,
                media_time,
                payload: part.payload(size).into(),
            };
            let rtp = packet.rtp(packet.number, wallclock);
            stream.write_rtp(rtp.nackable(true));
            self.next_frames += 1;
            self.waiting.push_back(packet);
        }
        ByteSize(bytes as u64 + count as u64 * HEADERS)
    }
}

impl Packet {
    /// Returns the packet with a number of its own or of the other stream.
    fn rtp(&self, number: u64, wallclock: time::Instant) -> RtpWrite {
        let kind = Pt::new_with_value(PAYLOAD_TYPE);
        let payload = self.payload.clone();
        RtpWrite::new(kind, number.into(), self.media_time, wallclock, payload)
    }
}

/// Returns the rate of payload that packets of a rate have: `str0m` counts that alone.
fn of_payload(packets: Bitrate) -> Payload {
    Payload::bps(packets.bps() * PAYLOAD / PACKET)
}

/// Returns the rate of packets, with all headers, that have a rate of payload.
fn of_packets(payload: Payload) -> Bitrate {
    Bitrate::from_bps(payload.as_u64() * PACKET / PAYLOAD)
}
