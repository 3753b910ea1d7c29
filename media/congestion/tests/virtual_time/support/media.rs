use super::Random;
use super::network::Flow;
use super::packet::{Packet, Report};
use hawser_congestion::{
    Acked, Feedback, LossDetector, Pacer, Permission, RateControl, SentPackets, Spread,
};
use hawser_units::{ByteSize, Ecn, Instant};
use std::collections::VecDeque;
use std::time::Duration;

const PACKET: u64 = 1200;
const FRAME_INTERVAL: Duration = Duration::from_nanos(33_333_333);
const REPORT_INTERVAL: Duration = Duration::from_millis(10);

/// The age at which a frame that has not begun to leave is dropped.
const LATEST: Duration = Duration::from_millis(150);

/// A frame on its way.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) captured: Instant,
    pub(crate) size: u64,
    pub(crate) packets: u64,
    pub(crate) began: Option<Instant>,
    pub(crate) pacing: Duration,
    pub(crate) arrived: u64,
    pub(crate) complete: Option<Instant>,
}

/// A media flow: frames at 30 per second whose sizes vary around the target by 30 %.
pub(crate) struct Media<C> {
    pub(crate) flow: usize,
    pub(crate) control: C,
    pub(crate) variation: f64,
    /// The share of the target that the encoder produces at a time in seconds.
    pub(crate) demand: fn(f64) -> f64,
    pub(crate) frames: Vec<Frame>,
    pub(crate) skipped: u64,
    pub(crate) marked: u64,
    pub(crate) truncated: u64,
    pub(crate) targets: Vec<(f64, f64)>,
    pub(crate) queue_delays: Vec<(f64, f64)>,
    pub(crate) received: Vec<(f64, u64)>,
    pacer: Pacer,
    random: Random,
    next_frame: Instant,
    waiting: VecDeque<(usize, u64)>,
    paced_frame: Option<usize>,
    next_number: u64,
    sent: SentPackets,
    losses: LossDetector,
    arrivals: Vec<(u64, Instant, Ecn)>,
    next_report: Instant,
    reports: VecDeque<Report>,
    pub(crate) seen_ecn: Vec<Ecn>,
    sent_at: Vec<f64>,
}

impl<C: RateControl> Media<C> {
    pub(crate) fn new(flow: usize, control: C, spread: Spread, seed: u64) -> Self {
        Media {
            flow,
            control,
            variation: 0.3,
            demand: |_| 1.0,
            frames: Vec::new(),
            skipped: 0,
            marked: 0,
            truncated: 0,
            targets: Vec::new(),
            queue_delays: Vec::new(),
            received: Vec::new(),
            pacer: Pacer::new(spread),
            random: Random(seed),
            next_frame: Instant::ZERO,
            waiting: VecDeque::new(),
            paced_frame: None,
            next_number: 1,
            sent: SentPackets::default(),
            losses: LossDetector::default(),
            arrivals: Vec::new(),
            next_report: Instant::ZERO,
            reports: VecDeque::new(),
            seen_ecn: Vec::new(),
            sent_at: Vec::new(),
        }
    }

    /// Returns the targets in Mb/s in a period of seconds.
    pub(crate) fn targets_between(&self, from: f64, to: f64) -> Vec<f64> {
        let within = self
            .targets
            .iter()
            .filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, mbps)| *mbps).collect()
    }

    pub(crate) fn lowest_target(&self, from: f64, to: f64) -> f64 {
        self.targets_between(from, to)
            .into_iter()
            .fold(f64::INFINITY, f64::min)
    }

    /// Returns the first time at or after `from` at which the target reached `mbps`.
    pub(crate) fn reached(&self, mbps: f64, from: f64) -> Option<f64> {
        let reached = |(at, target): &&(f64, f64)| *at >= from && *target >= mbps;
        self.targets.iter().find(reached).map(|(at, _)| *at)
    }

    /// Returns the first time after `from` at which the target was below `mbps`.
    pub(crate) fn first_target_below(&self, mbps: f64, from: f64) -> Option<f64> {
        let below = |(at, target): &&(f64, f64)| *at > from && *target < mbps;
        self.targets.iter().find(below).map(|(at, _)| *at)
    }

    /// Returns the rate in Mb/s of what was received in a period of seconds.
    pub(crate) fn mbps(&self, from: f64, to: f64) -> f64 {
        let within = self
            .received
            .iter()
            .filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, bytes)| *bytes as f64 * 8e-6).sum::<f64>() / (to - from)
    }

    /// Returns the waiting times of packets in ms in a period of seconds.
    pub(crate) fn queue_ms(&self, from: f64, to: f64) -> Vec<f64> {
        let within = self
            .queue_delays
            .iter()
            .filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, ms)| *ms).collect()
    }

    /// Returns the times in ms from the first packet's leaving to completeness, of frames captured
    /// in a period of seconds.
    pub(crate) fn transport_ms(&self, from: f64, to: f64) -> Vec<f64> {
        let span = |frame: &Frame| Some(frame.complete?.saturating_since(frame.began?));
        self.spans(from, to, span)
    }

    /// Returns by how many ms the transport of each frame exceeds its size over the pacing rate at its
    /// begin.
    pub(crate) fn excess_ms(&self, from: f64, to: f64) -> Vec<f64> {
        self.spans(from, to, |frame| {
            let transport = frame.complete?.saturating_since(frame.began?);
            Some(transport.saturating_sub(frame.pacing))
        })
    }

    /// Returns the number of packets sent in a period of seconds.
    pub(crate) fn sent_between(&self, from: f64, to: f64) -> usize {
        let within = self.sent_at.iter().filter(|at| (from..to).contains(*at));
        within.count()
    }

    /// Returns the times in ms from capture to completeness.
    pub(crate) fn frame_ms(&self, from: f64, to: f64) -> Vec<f64> {
        self.spans(from, to, |frame| {
            Some(frame.complete?.saturating_since(frame.captured))
        })
    }

    fn spans(&self, from: f64, to: f64, span: fn(&Frame) -> Option<Duration>) -> Vec<f64> {
        let within = |frame: &&Frame| (from..to).contains(&frame.captured.as_secs_f64());
        let frames = self.frames.iter().filter(within).filter_map(span);
        frames.map(|span| span.as_secs_f64() * 1e3).collect()
    }

    fn encode(&mut self, now: Instant) {
        self.next_frame = now + FRAME_INTERVAL;
        let at = now.as_secs_f64();
        self.targets.push((at, self.control.target().mbps()));
        let factor = 1.0 + self.variation * (2.0 * self.random.next() - 1.0);
        let waiting = self.waiting.front().zip(self.waiting.back());
        // Two frames wait at most: later ones are dropped before they are sent.
        if waiting.is_some_and(|(first, last)| last.0 > first.0) {
            self.skipped += 1;
            return;
        }
        let bps = self.control.target().bps() as f64 * (self.demand)(at);
        let size = (bps / 8.0 * FRAME_INTERVAL.as_secs_f64() * factor) as u64;
        self.push_frame(now, size);
    }

    fn push_frame(&mut self, now: Instant, size: u64) {
        let mut left = size;
        let mut packets = 0;
        while left > 0 {
            let packet = left.min(PACKET);
            self.waiting.push_back((self.frames.len(), packet));
            left -= packet;
            packets += 1;
        }
        self.frames.push(Frame {
            captured: now,
            size,
            packets,
            began: None,
            pacing: Duration::ZERO,
            arrived: 0,
            complete: None,
        });
    }

    /// Drops what would arrive too late: frames that are not begun, and of those that are begun all
    /// but the base, which is the first quarter.
    fn drop_late(&mut self, now: Instant) {
        while let Some((number, _)) = self.waiting.front().copied() {
            let left = self.waiting.iter().filter(|(frame, _)| *frame == number);
            let left: Vec<u64> = left.map(|(_, size)| *size).collect();
            let size = ByteSize(left.iter().sum());
            let done = now + self.control.pacing_rate().time_to_send(size);
            let begun = self.paced_frame == Some(number);
            let frame = &mut self.frames[number];
            let base = frame.packets.div_ceil(4);
            let sent = frame.packets - left.len() as u64;
            if done.saturating_since(frame.captured) <= LATEST || (begun && sent < base) {
                return;
            }
            self.waiting.retain(|(waiting, _)| *waiting != number);
            if begun {
                frame.packets = sent;
                self.truncated += 1;
            } else {
                self.skipped += 1;
            }
        }
    }

    fn may_send(&self, now: Instant) -> bool {
        match self.control.permission() {
            Permission::Send => self.control.in_flight() < self.control.window(),
            Permission::Probe { at } => now >= at,
        }
    }
}

impl<C: RateControl> Flow for Media<C> {
    fn poll_timeout(&self) -> Option<Instant> {
        let paced = (!self.waiting.is_empty()).then(|| self.pacer.next_send());
        let paced = match self.control.permission() {
            Permission::Send if self.control.in_flight() < self.control.window() => paced,
            Permission::Send => None,
            Permission::Probe { at } => paced.map(|paced| paced.max(at)),
        };
        let report = (!self.arrivals.is_empty()).then_some(self.next_report);
        let silence = self.control.poll_timeout();
        let next = [paced, report, silence, Some(self.next_frame)];
        next.into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        if now >= self.next_frame {
            self.encode(now);
        }
        if self.control.poll_timeout().is_some_and(|due| due <= now) {
            self.control.handle_timeout(now);
        }
        if !self.arrivals.is_empty() && now >= self.next_report {
            self.next_report = now + REPORT_INTERVAL;
            self.reports.push_back(Report {
                flow: self.flow,
                sent_at: now,
                arrivals: std::mem::take(&mut self.arrivals),
            });
        }
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<Packet> {
        if now < self.pacer.next_send() || !self.may_send(now) {
            return None;
        }
        let (frame, size) = self.waiting.pop_front()?;
        if self.paced_frame != Some(frame) {
            self.paced_frame = Some(frame);
            self.pacer.begin_frame(ByteSize(self.frames[frame].size));
            self.frames[frame].began = Some(now);
            let whole = ByteSize(self.frames[frame].size);
            self.frames[frame].pacing = self.control.pacing_rate().time_to_send(whole);
        }
        let size = ByteSize(size);
        let number = self.next_number;
        self.next_number += 1;
        self.pacer
            .handle_sent(now, size, self.control.pacing_rate());
        self.control.handle_sent(now, number, size);
        self.sent.insert(now, number, size);
        self.sent_at.push(now.as_secs_f64());
        if !self.seen_ecn.contains(&self.control.ecn()) {
            self.seen_ecn.push(self.control.ecn());
        }
        Some(Packet {
            flow: self.flow,
            number,
            size,
            ecn: self.control.ecn(),
            frame,
        })
    }

    fn receive(&mut self, now: Instant, packet: Packet) {
        self.received.push((now.as_secs_f64(), packet.size.0));
        self.marked += u64::from(packet.ecn == Ecn::Ce);
        self.arrivals.push((packet.number, now, packet.ecn));
        let frame = &mut self.frames[packet.frame];
        frame.arrived += 1;
        if frame.arrived >= frame.packets {
            frame.complete.get_or_insert(now);
        }
    }

    fn poll_report(&mut self, _now: Instant) -> Option<Report> {
        self.reports.pop_front()
    }

    fn handle_report(&mut self, now: Instant, report: Report) {
        let acked = report.arrivals.iter().map(|(number, arrived, ecn)| Acked {
            number: *number,
            held: report.sent_at.saturating_since(*arrived),
            ecn: *ecn,
        });
        let acked: Vec<Acked> = acked.collect();
        let mut feedback = Feedback {
            now,
            reported: report.sent_at,
            acked: &acked,
            lost: &[],
            abandoned: &[],
            is_answer: true,
            app_limited: (self.demand)(now.as_secs_f64()) < 1.0,
        };
        self.losses.handle_arrivals(&self.sent.confirm(&feedback));
        let rtt = self
            .control
            .smoothed_rtt()
            .unwrap_or(Duration::from_millis(100));
        let lost = self.losses.lost(now, &self.sent, rtt);
        feedback.lost = &lost;
        let settled = Feedback {
            acked: &[],
            ..feedback
        };
        self.sent.confirm(&settled);
        self.control.handle_feedback(&feedback);
        self.drop_late(now);
    }

    fn observe_queue(&mut self, now: Instant, waited: Duration) {
        self.queue_delays
            .push((now.as_secs_f64(), waited.as_secs_f64() * 1e3));
    }
}
