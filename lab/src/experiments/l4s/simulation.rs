//! The media flow and its rivals over one bottleneck, in virtual time.

use super::encoder::IP_UDP;
use super::flow::{Flow, Outgoing, Traffic};
use super::frames::Frame;
use super::hawser::Hawser;
use super::pictures::Pictures;
use super::rival::Rival;
use super::scenario::{Media, RIVALS_AFTER, Rivals, Scenario, Times};
use super::webrtc::WebRtc;
use crate::rivals::bulk::{Acknowledgement, Segment};
use anyhow::{Result, ensure};
use hawser_netem::{Class, Histogram, Link, LinkStats, Packet};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The time of the first frame. The session is opened before.
const FIRST: Instant = Instant::from_nanos(1_000_000_000);

/// The time between two samples of the rates.
pub(super) const SAMPLE: Duration = Duration::from_millis(100);

/// The least time from event to event: 1/50 of a packet at 200 Mb/s.
const STEP: Duration = Duration::from_micros(1);

/// The flow number of the media in the queue.
const MEDIA_FLOW: u64 = 1;

/// The outcome of a trial.
pub(crate) struct Outcome {
    /// All frames. Their times are from the first frame's capture.
    pub(super) frames: Vec<Frame>,
    /// The state every [`SAMPLE`].
    pub(super) samples: Vec<Sample>,
    /// The times that packets of the media's class spent in the queue in the stable state.
    pub(super) queue: Histogram,
    pub(super) counters: Counters,
    /// Empty without VMAF.
    pub(super) pictures: Pictures,
}

/// Counters of the whole run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Counters {
    /// Those of the bottleneck.
    pub(super) link: LinkStats,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
}

/// The state at a time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) target_mbps: f64,
    pub(super) pacing_mbps: Option<f64>,
    /// The bytes of media packets received so far, with all headers.
    pub(super) media: ByteSize,
    /// The same of each rival.
    pub(super) rivals: Vec<ByteSize>,
}

/// A packet from a sender to its receiver.
#[derive(Debug, Clone)]
enum There {
    Media { datagram: Arc<[u8]>, ecn: Ecn },
    Bulk { rival: usize, segment: Segment },
}

/// A packet from a receiver to its sender.
#[derive(Debug, Clone)]
enum Back {
    Media(Vec<u8>),
    Bulk {
        rival: usize,
        acknowledgement: Acknowledgement,
    },
}

struct Simulation {
    now: Instant,
    there: Link<There>,
    back: Link<Back>,
    class: Class,
    flow: Box<dyn Flow>,
    rivals: Vec<Rival>,
    media: ByteSize,
    samples: Vec<Sample>,
}

/// Runs a case once.
pub(super) fn run(scenario: Scenario, times: Times, seed: u64) -> Result<Outcome> {
    let mut simulation = Simulation::new(scenario, times, seed)?;
    simulation.run_until(FIRST);
    ensure!(
        simulation.flow.is_open(),
        "the session did not open within a second"
    );
    simulation.run_sampling(FIRST, FIRST + times.stable);
    let before = simulation.there.sojourn(simulation.class).clone();
    simulation.run_sampling(FIRST + times.stable, FIRST + times.end);
    Ok(simulation.outcome(&before))
}

impl Simulation {
    fn new(scenario: Scenario, times: Times, seed: u64) -> Result<Self> {
        let (there, back) = (
            scenario.link(times, seed)?,
            scenario.link_back(times, seed)?,
        );
        Ok(Simulation {
            now: Instant::ZERO,
            there: Link::new(there, seed, FIRST).marking_by(mark),
            back: Link::new(back, seed, FIRST),
            class: scenario.media.class(),
            flow: flow(scenario.media, seed),
            rivals: rivals(scenario.rivals, seed),
            media: ByteSize(0),
            samples: Vec::new(),
        })
    }

    /// Runs, and writes down a sample at the end of each [`SAMPLE`].
    fn run_sampling(&mut self, from: Instant, until: Instant) {
        let mut next = from;
        while next < until {
            next = (next + SAMPLE).min(until);
            self.run_until(next);
            self.samples.push(Sample {
                at: next.saturating_since(FIRST),
                target_mbps: self.flow.target(next).mbps(),
                pacing_mbps: self.flow.pacing_rate().map(Bitrate::mbps),
                media: self.media,
                rivals: self.rivals.iter().map(Rival::received).collect(),
            });
        }
    }

    fn run_until(&mut self, until: Instant) {
        while let Some(next) = self.next_event().filter(|next| *next < until) {
            self.now = next;
            self.deliver();
            self.answer();
            self.act();
            self.transmit();
        }
        self.now = self.now.max(until - STEP);
    }

    fn next_event(&self) -> Option<Instant> {
        let ends = [
            self.there.next_departure(),
            self.back.next_departure(),
            self.flow.poll_timeout(),
        ];
        let rivals = self.rivals.iter().map(Rival::poll_timeout);
        let next = ends.into_iter().chain(rivals).flatten().min()?;
        Some(next.max(self.now + STEP))
    }

    /// Hands the packets that arrive to the receivers.
    fn deliver(&mut self) {
        while let Some((at, packet)) = self.there.pop(self.now) {
            match packet {
                There::Media { datagram, ecn } => {
                    self.media += ByteSize(datagram.len() as u64 + IP_UDP);
                    self.flow.handle_at_viewer(at, &datagram, ecn);
                }
                There::Bulk { rival, segment } => {
                    let acknowledgement = self.rivals[rival].receive(&segment);
                    let packet = Back::Bulk {
                        rival,
                        acknowledgement,
                    };
                    self.back.push(self.now, ByteSize(40), packet);
                }
            }
        }
    }

    /// Hands reports and acknowledgements to the senders.
    fn answer(&mut self) {
        while let Some((_, packet)) = self.back.pop(self.now) {
            match packet {
                Back::Media(message) => self.flow.handle_at_publisher(self.now, &message),
                Back::Bulk {
                    rival,
                    acknowledgement,
                } => self.rivals[rival].handle_acknowledgement(self.now, acknowledgement),
            }
        }
    }

    fn act(&mut self) {
        self.flow.handle_timeout(self.now);
        for rival in &mut self.rivals {
            rival.handle_timeout(self.now);
        }
    }

    fn transmit(&mut self) {
        let now = self.now;
        while let Some(message) = self.flow.poll_viewer(now) {
            let size = ByteSize(message.len() as u64 + IP_UDP);
            self.back.push(now, size, Back::Media(message));
        }
        while let Some(outgoing) = self.flow.poll_publisher(now) {
            self.there.push_packet(now, media_packet(outgoing));
        }
        for (number, rival) in self.rivals.iter_mut().enumerate() {
            while let Some(segment) = rival.poll_transmit(now) {
                self.there.push_packet(now, bulk_packet(number, segment));
            }
        }
    }

    fn outcome(self, before: &Histogram) -> Outcome {
        let from_first = |at: Instant| Instant::ZERO + at.saturating_since(FIRST);
        let traffic = self.flow.traffic();
        let mut frames = self.flow.into_frames();
        for frame in &mut frames {
            frame.captured = from_first(frame.captured);
            frame.began = frame.began.map(from_first);
            for complete in &mut frame.complete {
                *complete = complete.map(from_first);
            }
        }
        Outcome {
            frames,
            samples: self.samples,
            queue: self.there.sojourn(self.class).since(before),
            counters: Counters {
                link: self.there.stats(),
                traffic,
            },
            pictures: Pictures::default(),
        }
    }
}

fn flow(media: Media, seed: u64) -> Box<dyn Flow> {
    match media {
        Media::Hawser(controller) => Box::new(Hawser::new(controller, seed, FIRST)),
        Media::WebRtc => Box::new(WebRtc::new(seed, FIRST)),
    }
}

/// Returns the competing flows, which start within 100 ms of each other.
fn rivals(rivals: Rivals, seed: u64) -> Vec<Rival> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(1);
    let mut starts = || {
        let later = Duration::from_millis(random.random_range(0..100));
        FIRST + RIVALS_AFTER + later
    };
    (0..rivals.count())
        .map(|_| match rivals {
            Rivals::Prague(_) => Rival::prague(starts()),
            _ => Rival::cubic(starts()),
        })
        .collect()
}

fn media_packet(Outgoing { datagram, ecn }: Outgoing) -> Packet<There> {
    Packet {
        size: ByteSize(datagram.len() as u64 + IP_UDP),
        ecn,
        flow: MEDIA_FLOW,
        payload: There::Media { datagram, ecn },
    }
}

fn bulk_packet(rival: usize, segment: Segment) -> Packet<There> {
    Packet {
        size: segment.size,
        ecn: segment.ecn,
        flow: MEDIA_FLOW + 1 + rival as u64,
        payload: There::Bulk { rival, segment },
    }
}

fn mark(packet: &mut There) {
    match packet {
        There::Media { ecn, .. } => *ecn = Ecn::Ce,
        There::Bulk { segment, .. } => segment.ecn = Ecn::Ce,
    }
}
