//! A flow over emulated paths in virtual time, with a receiver that judges them and a sender that
//! applies its judgements.
#![allow(dead_code, reason = "each test uses its part")]

pub(crate) mod outage;
pub(crate) mod random;

use hawser_netem::{
    Delay, ExtraDelay, Link, LinkConfig, Loss, Order, Probability, QueueLimit, Rate, Span,
};
use hawser_pathset::{Arrival, Evidence, JudgeEvent, JudgedPacket, Judgement, Successive, Tracker};
use hawser_units::{Bitrate, ByteSize, FlowId, Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use std::collections::VecDeque;
use std::time::Duration;

/// The interval at which the receiver reads its records.
const TICK: Duration = Duration::from_millis(10);

/// The delay from a judgement to the policy at the sender, if no other is set.
const CONTROL_DELAY: Duration = Duration::from_millis(30);

/// The time after which a copy that has not arrived counts as missing.
const DEADLINE: Duration = Duration::from_millis(500);

/// The size of a packet with its outer headers.
const PACKET: ByteSize = ByteSize(1500);

/// The pacing interval of the packets of a frame: the rate of the sender's own link.
const PACE: Duration = Duration::from_micros(30);

/// The interval between frames, if no other is set.
const FRAME: Duration = Duration::from_nanos(33_333_333);

/// A longer gap between frames is a stall.
const STALL: Duration = Duration::from_millis(200);

/// A packet with a longer one-way delay is too late for its frame. The slowest of the two good
/// paths of Table I takes 35 ms under variation, plus 13 ms for the longest train; the tolerance of
/// `evidence` is 25 ms.
const TOO_LATE: Duration = Duration::from_millis(60);

pub(crate) enum Judge {
    None,
    Successive(Successive),
    Evidence(Box<Evidence>),
}

impl Judge {
    fn handle_packet(&mut self, packet: &JudgedPacket) {
        match self {
            Judge::None => (),
            Judge::Successive(judge) => judge.handle_packet(packet),
            Judge::Evidence(judge) => judge.handle_packet(packet),
        }
    }

    fn handle_policy(&mut self, epoch: u32, code: PolicyCode, probes: PathSet, now: Instant) {
        match self {
            Judge::None => (),
            Judge::Successive(judge) => judge.handle_policy(epoch, code, probes, now),
            Judge::Evidence(judge) => judge.handle_policy(epoch, code, probes, now),
        }
    }

    fn handle_arrivals(&mut self, newest: &[Option<Instant>; MAX_PATHS]) {
        if let Judge::Evidence(judge) = self {
            judge.handle_arrivals(newest);
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self {
            Judge::None => (),
            Judge::Successive(judge) => judge.handle_timeout(now),
            Judge::Evidence(judge) => judge.handle_timeout(now),
        }
    }

    fn poll_event(&mut self) -> Option<JudgeEvent> {
        match self {
            Judge::None => None,
            Judge::Successive(judge) => judge.poll_event(),
            Judge::Evidence(judge) => judge.poll_event(),
        }
    }
}

/// A packet sent, and its fate.
struct Sent {
    at: Instant,
    copies: usize,
    probes: usize,
    arrived: Option<Instant>,
}

impl Sent {
    fn is_damaged(&self) -> bool {
        self.arrived
            .is_none_or(|arrived| arrived.saturating_since(self.at) > TOO_LATE)
    }
}

/// A bottleneck that several paths share, in front of their own links.
struct Shared {
    paths: PathSet,
    link: Link<(PathId, Payload)>,
}

/// The sequence number of a packet, the paths that it was sent over and the epoch.
type Payload = (u64, PathSet, u8);

pub(crate) struct Network {
    links: Vec<Link<Payload>>,
    shared: Option<Shared>,
    packets_per_frame: u64,
    frame: Duration,
    pace: Duration,
    control_delay: Duration,
    /// The time in which the judge learns nothing.
    blind: (Duration, Duration),
    first_number: u64,
    policy: Judgement,
    epoch: u32,
    /// Judgements on their way: when they arrive, and the epoch that they are about.
    pending: VecDeque<(Instant, u32, Judgement)>,
    tracker: Tracker,
    judge: Judge,
    packets: Vec<Sent>,
    now: Instant,
    events: Vec<JudgeEvent>,
    in_force: Vec<(Duration, Judgement)>,
}

impl Network {
    /// Creates a flow of `packets_per_frame` packets per frame, 30 frames/s, over all of `links`.
    pub(crate) fn new(
        links: Vec<LinkConfig>,
        packets_per_frame: u64,
        judge: Judge,
        seed: u64,
    ) -> Self {
        let policy = Judgement {
            code: PolicyCode(((1u16 << links.len()) - 1) as u8),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason: String::new(),
        };
        let links = (0..)
            .zip(links)
            .map(|(n, link)| Link::new(link, seed * 8 + n, Instant::ZERO))
            .collect();
        Network {
            links,
            shared: None,
            packets_per_frame,
            frame: FRAME,
            pace: PACE,
            control_delay: CONTROL_DELAY,
            blind: (Duration::ZERO, Duration::ZERO),
            first_number: u64::MAX - 1000 + seed,
            policy,
            epoch: 0,
            pending: VecDeque::new(),
            tracker: Tracker::new(DEADLINE),
            judge,
            packets: Vec::new(),
            now: Instant::ZERO,
            events: Vec::new(),
            in_force: Vec::new(),
        }
    }

    /// Sends frames at this interval.
    pub(crate) fn with_frames_every(mut self, frame: Duration) -> Self {
        self.frame = frame;
        self
    }

    /// Spreads the packets of a frame over its time.
    pub(crate) fn paced(mut self) -> Self {
        self.pace = self.frame / self.packets_per_frame as u32;
        self
    }

    /// Lets judgements take this long until they are in force.
    pub(crate) fn reacting_after(mut self, delay: Duration) -> Self {
        self.control_delay = delay;
        self
    }

    /// Keeps the judge from learning anything from `from` to `to`.
    pub(crate) fn blind(mut self, from: Duration, to: Duration) -> Self {
        self.blind = (from, to);
        self
    }

    /// Lets copies over `paths` pass a common bottleneck first.
    pub(crate) fn sharing(mut self, paths: u8, bottleneck: LinkConfig, seed: u64) -> Self {
        self.shared = Some(Shared {
            paths: PathSet::from_bits(paths),
            link: Link::new(bottleneck, seed, Instant::ZERO),
        });
        self
    }

    /// Puts a policy into force that the judge did not propose.
    pub(crate) fn set(&mut self, code: u8) {
        self.pending.clear();
        self.apply(Judgement {
            code: PolicyCode(code),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason: "set".to_owned(),
        });
    }

    pub(crate) fn code(&self) -> u8 {
        self.policy.code.0
    }

    /// Runs the flow until `end` after the start.
    pub(crate) fn run_to(&mut self, end: Duration) {
        while self.now < Instant::ZERO + end {
            let tick = self.now + TICK;
            while let Some((at, epoch, policy)) = self.pending.front().cloned()
                && at <= self.now
            {
                self.pending.pop_front();
                // The controller ignores judgements about another policy than the one in force.
                if epoch == self.epoch {
                    self.apply(policy);
                }
            }
            self.send_until(tick);
            self.receive_until(tick);
            self.now = tick;
        }
    }

    fn apply(&mut self, policy: Judgement) {
        self.epoch += 1;
        self.judge
            .handle_policy(self.epoch, policy.code, policy.probes, self.now);
        self.in_force
            .push((self.now.saturating_since(Instant::ZERO), policy.clone()));
        self.policy = policy;
    }

    fn send_until(&mut self, until: Instant) {
        loop {
            let n = self.packets.len() as u64;
            let at = Instant::ZERO
                + self.frame * (n / self.packets_per_frame) as u32
                + self.pace * (n % self.packets_per_frame) as u32;
            if at >= until {
                return;
            }
            let number = self.first_number.wrapping_add(n);
            let every = u64::from(self.policy.probe_every);
            let is_probe = every > 0 && number & (every - 1) == 0;
            let probes = if is_probe {
                self.policy.probes
            } else {
                PathSet::EMPTY
            };
            let sent: PathSet = self
                .policy
                .code
                .paths()
                .iter()
                .chain(probes.iter())
                .collect();
            for path in sent.iter() {
                let copy = (number, sent, self.epoch as u8);
                match &mut self.shared {
                    Some(shared) if shared.paths.contains(path) => {
                        shared.link.push(at, PACKET, (path, copy));
                    }
                    _ => {
                        self.links[path.index()].push(at, PACKET, copy);
                    }
                }
            }
            self.packets.push(Sent {
                at,
                copies: sent.len(),
                probes: probes.len(),
                arrived: None,
            });
        }
    }

    fn receive_until(&mut self, until: Instant) {
        let mut arrivals = Vec::new();
        if let Some(shared) = &mut self.shared {
            while let Some((at, (path, copy))) = shared.link.pop(until) {
                self.links[path.index()].push(at, PACKET, copy);
            }
        }
        for (path, link) in (0..).zip(&mut self.links) {
            while let Some((at, packet)) = link.pop(until) {
                arrivals.push((at, PathId::try_from(path).unwrap(), packet));
            }
        }
        arrivals.sort_by_key(|(at, path, _)| (*at, *path));
        for (at, path, (sequence, paths, epoch)) in arrivals {
            let sent = &mut self.packets[sequence.wrapping_sub(self.first_number) as usize];
            self.tracker.handle_arrival(&Arrival {
                at,
                flow: FlowId::try_from(1).unwrap(),
                path,
                paths,
                sequence,
                epoch,
                first: sent.arrived.is_none(),
                sent_micros: (sent.at.as_nanos() / 1000) as u32,
                bytes: 1444,
            });
            sent.arrived.get_or_insert(at);
        }
        let judge = &mut self.judge;
        let (from, to) = self.blind;
        if (Instant::ZERO + from..Instant::ZERO + to).contains(&until) {
            self.tracker.handle_timeout(until);
            return;
        }
        self.tracker
            .handle_timeout_with(until, |packet| judge.handle_packet(packet));
        if let Some(newest) = self.tracker.newest(FlowId::try_from(1).unwrap()) {
            judge.handle_arrivals(newest);
        }
        judge.handle_timeout(until);
        while let Some(event) = judge.poll_event() {
            if let JudgeEvent::Judgement(judgement) = &event {
                let arrives = until + self.control_delay;
                self.pending
                    .push_back((arrives, self.epoch, judgement.clone()));
            }
            self.events.push(event);
        }
    }

    /// Returns the mean number of copies of the packets sent from `from` to `to`.
    pub(crate) fn cost(&self, from: Duration, to: Duration) -> f64 {
        let period = Instant::ZERO + from..Instant::ZERO + to;
        let copies = self
            .packets
            .iter()
            .filter(|packet| period.contains(&packet.at))
            .map(|packet| packet.copies);
        let (packets, copies) = copies.fold((0, 0), |sum, copies| (sum.0 + 1, sum.1 + copies));
        copies as f64 / f64::from(packets)
    }

    /// Returns the share of frames sent from `from` to `to` of which a packet arrived too late or
    /// not at all.
    pub(crate) fn damaged_frames(&self, from: Duration, to: Duration) -> f64 {
        let period = Instant::ZERO + from..Instant::ZERO + to;
        let frames = self.packets.chunks_exact(self.packets_per_frame as usize);
        let frames: Vec<_> = frames
            .filter(|frame| period.contains(&frame[0].at))
            .collect();
        frames
            .iter()
            .filter(|frame| frame.iter().any(Sent::is_damaged))
            .count() as f64
            / frames.len() as f64
    }

    /// Returns the share of the time from `from` to `to` in which no frame became complete for so long
    /// that the stream stalled.
    pub(crate) fn stalled(&self, from: Duration, to: Duration) -> f64 {
        let period = Instant::ZERO + from..Instant::ZERO + to;
        let frames = self.packets.chunks_exact(self.packets_per_frame as usize);
        let complete = frames.filter_map(|frame| {
            let arrived: Option<Vec<_>> = frame.iter().map(|packet| packet.arrived).collect();
            arrived?.into_iter().max()
        });
        let mut shown: Vec<_> = complete.filter(|at| period.contains(at)).collect();
        shown.extend([period.start, period.end]);
        shown.sort();
        let gaps = shown
            .windows(2)
            .map(|pair| pair[1].saturating_since(pair[0]));
        let stalled: Duration = gaps.filter(|gap| *gap > STALL).sum();
        stalled.as_secs_f64() / (to - from).as_secs_f64()
    }

    /// Returns how often the policy's paths changed from `from` to `to`.
    pub(crate) fn changes(&self, from: Duration, to: Duration) -> usize {
        let pairs = self.in_force.windows(2);
        let is_change = |pair: &&[(Duration, Judgement)]| {
            pair[1].0 > from && pair[1].0 <= to && pair[0].1.code != pair[1].1.code
        };
        pairs.filter(is_change).count()
    }

    /// Returns the share of packets sent from `from` to `to` that arrived too late or not at all.
    pub(crate) fn damaged_packets(&self, from: Duration, to: Duration) -> f64 {
        let period = Instant::ZERO + from..Instant::ZERO + to;
        let sent = self.packets.iter();
        let sent: Vec<_> = sent.filter(|packet| period.contains(&packet.at)).collect();
        sent.iter().filter(|packet| packet.is_damaged()).count() as f64 / sent.len() as f64
    }

    /// Returns the share of copies sent from `from` to `to` that were probes.
    pub(crate) fn probes(&self, from: Duration, to: Duration) -> f64 {
        let period = Instant::ZERO + from..Instant::ZERO + to;
        let sent = self.packets.iter();
        let sent = sent.filter(|packet| period.contains(&packet.at));
        let (packets, probes) = sent.fold((0, 0), |sum, packet| (sum.0 + 1, sum.1 + packet.probes));
        probes as f64 / f64::from(packets)
    }

    /// Returns when each policy came into force, its paths and its reason.
    pub(crate) fn policies(&self) -> Vec<(Duration, u8, &str)> {
        self.in_force
            .iter()
            .map(|(at, policy)| (*at, policy.code.0, policy.reason.as_str()))
            .collect()
    }

    /// Returns the code that was in force for the longest part of the period.
    pub(crate) fn code_mostly(&self, from: Duration, to: Duration) -> u8 {
        let mut held = [Duration::ZERO; 256];
        let starts = self.in_force.iter().map(|(at, _)| *at);
        let ends = starts.clone().skip(1).chain([Duration::MAX]);
        for ((start, end), (_, policy)) in starts.zip(ends).zip(&self.in_force) {
            let part = end.min(to).saturating_sub(start.max(from));
            held[usize::from(policy.code.0)] += part;
        }
        (0..=u8::MAX)
            .max_by_key(|code| held[usize::from(*code)])
            .unwrap_or(0)
    }

    /// Returns how often the judge emitted the event.
    pub(crate) fn count_of(&self, event: &JudgeEvent) -> usize {
        self.events
            .iter()
            .filter(|emitted| *emitted == event)
            .count()
    }
}

/// One direction of a path: rate, delay, loss, and the maximum extra delay of each packet during
/// the first `variation`.
pub(crate) fn link(
    mbps: f64,
    delay_ms: u64,
    loss: f64,
    extra_ms: u64,
    variation: Duration,
) -> LinkConfig {
    LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(mbps))),
        queue: Some(QueueLimit::Time(Duration::from_millis(100))),
        delay: Delay::Constant(Duration::from_millis(delay_ms)),
        extra_delay: vec![ExtraDelay {
            range: Span::new(Duration::ZERO, Duration::from_millis(extra_ms)).unwrap(),
            hold: Duration::ZERO,
            during: Some(Span::new(Duration::ZERO, variation).unwrap()),
        }],
        order: Order::Free,
        loss: (loss > 0.0).then(|| Loss::Independent(Probability::try_from(loss).unwrap())),
        ..LinkConfig::default()
    }
}

/// The paths of Table I (Qian, section IV), with variation for the given time.
pub(crate) fn table_1(variation: Duration) -> Vec<LinkConfig> {
    vec![
        link(400.0, 20, 0.0005, 50, variation),
        link(400.0, 30, 0.0005, 5, variation),
        link(150.0, 100, 0.0005, 10, variation),
        link(50.0, 100, 0.0005, 10, variation),
        link(50.0, 30, 0.0, 5, variation),
    ]
}

/// One of two paths both of which a flow needs, as each loses one packet in a hundred.
pub(crate) fn lossy(delay_ms: u64) -> LinkConfig {
    link(400.0, delay_ms, 0.01, 5, Duration::MAX)
}

/// The same link, cut for a while.
pub(crate) fn with_cut(link: LinkConfig, from: Duration, to: Duration) -> LinkConfig {
    LinkConfig {
        cuts: vec![Span::new(from, to).unwrap()],
        ..link
    }
}

/// Two lossy paths, the first of which is cut for a while, and a third that is too slow to help.
pub(crate) fn two_needed(from: Duration, to: Duration) -> Vec<LinkConfig> {
    vec![
        with_cut(lossy(30), from, to),
        lossy(35),
        link(400.0, 130, 0.0, 5, Duration::MAX),
    ]
}

/// The levels of the talker, and the number of packets of 1444 bytes per frame.
pub(crate) const LEVELS: [(&str, u64); 3] = [("nfov", 124), ("hd", 248), ("fhd", 418)];
