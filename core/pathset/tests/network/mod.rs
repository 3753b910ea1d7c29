//! A flow over emulated paths in virtual time, with a receiver that judges them and a sender that does what it says.
#![allow(dead_code, reason = "each test uses its part")]

use hawser_netem::{Delay, ExtraDelay, Link, LinkConfig, Loss, Order, Probability, QueueLimit, Rate, Span};
use hawser_pathset::{Arrival, Evidence, JudgeEvent, JudgedPacket, Judgement, Successive, Tracker};
use hawser_units::{Bitrate, ByteSize, FlowId, Instant, PathId, PathSet, PolicyCode};
use std::collections::HashMap;
use std::time::Duration;

/// How often the receiver looks at its records.
const TICK: Duration = Duration::from_millis(10);

/// How long it takes from a judgement to the policy at the sender.
const CONTROL_DELAY: Duration = Duration::from_millis(30);

/// When a copy that has not arrived counts as missing.
const DEADLINE: Duration = Duration::from_millis(500);

/// A packet and its outer headers.
const PACKET: ByteSize = ByteSize(1500);

/// The sender's own link: the pace of the packets of a frame.
const PACE: Duration = Duration::from_micros(30);

const FRAME: Duration = Duration::from_nanos(33_333_333);

/// A packet that takes longer than this is too late for its frame: the slowest that the two good paths of Table I are
/// under variation is 35 ms and the 13 ms that the longest train takes, the tolerance of `evidence` is 25 ms.
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

/// What happened at a time.
#[derive(Debug, Clone)]
pub(crate) enum Entry {
    Said(JudgeEvent),
    InForce(Judgement),
}

pub(crate) struct Network {
    links: Vec<Link<(u64, PathSet, u8)>>,
    packets_per_frame: u64,
    first_number: u64,
    policy: Judgement,
    epoch: u32,
    coming: Option<(Instant, Judgement)>,
    tracker: Tracker,
    judge: Judge,
    /// By number since the first: when sent, when first arrived.
    packets: Vec<(Instant, Option<Instant>)>,
    copies: u64,
    now: Instant,
    pub(crate) judged: u64,
    pub(crate) log: Vec<(Instant, Entry)>,
}

impl Network {
    /// A flow of so many packets a frame, 30 frames a second, over all of `links`.
    pub(crate) fn new(links: Vec<LinkConfig>, packets_per_frame: u64, judge: Judge, seed: u64) -> Self {
        let policy = Judgement {
            code: PolicyCode(((1u16 << links.len()) - 1) as u8),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason: String::new(),
        };
        let links = (0..).zip(links).map(|(n, link)| Link::new(link, seed * 8 + n, Instant::ZERO)).collect();
        Network {
            links,
            packets_per_frame,
            first_number: u64::MAX - 1000 + seed,
            policy,
            epoch: 0,
            coming: None,
            tracker: Tracker::new(DEADLINE),
            judge,
            packets: Vec::new(),
            copies: 0,
            now: Instant::ZERO,
            judged: 0,
            log: Vec::new(),
        }
    }

    /// Sets a policy that nobody asked for.
    pub(crate) fn set(&mut self, code: u8) {
        let code = PolicyCode(code);
        self.apply(Judgement { code, probes: PathSet::EMPTY, probe_every: 0, reason: String::new() });
    }

    pub(crate) fn evidence(&mut self) -> &mut Evidence {
        match &mut self.judge {
            Judge::Evidence(judge) => judge,
            _ => panic!("another judge"),
        }
    }

    pub(crate) fn code(&self) -> u8 {
        self.policy.code.0
    }

    /// Lets the flow run until so long after the beginning.
    pub(crate) fn run_to(&mut self, end: Duration) {
        while self.now < Instant::ZERO + end {
            let tick = self.now + TICK;
            if let Some((_, policy)) = self.coming.take_if(|(at, _)| *at <= self.now) {
                self.apply(policy);
            }
            self.send_until(tick);
            self.receive_until(tick);
            self.now = tick;
        }
    }

    fn apply(&mut self, policy: Judgement) {
        self.epoch += 1;
        self.judge.handle_policy(self.epoch, policy.code, policy.probes, self.now);
        self.log.push((self.now, Entry::InForce(policy.clone())));
        self.policy = policy;
    }

    fn send_until(&mut self, until: Instant) {
        loop {
            let n = self.packets.len() as u64;
            let at = Instant::ZERO
                + FRAME * (n / self.packets_per_frame) as u32
                + PACE * (n % self.packets_per_frame) as u32;
            if at >= until {
                return;
            }
            let number = self.first_number.wrapping_add(n);
            let every = u64::from(self.policy.probe_every);
            let is_probe = every > 0 && number & (every - 1) == 0;
            let probes = if is_probe { self.policy.probes } else { PathSet::EMPTY };
            let sent: PathSet = self.policy.code.paths().iter().chain(probes.iter()).collect();
            for path in sent.iter() {
                self.links[path.index()].push(at, PACKET, (number, sent, self.epoch as u8));
                self.copies += 1;
            }
            self.packets.push((at, None));
        }
    }

    fn receive_until(&mut self, until: Instant) {
        let mut arrivals = Vec::new();
        for (path, link) in (0..).zip(&mut self.links) {
            while let Some((at, packet)) = link.pop(until) {
                arrivals.push((at, PathId::try_from(path).unwrap(), packet));
            }
        }
        arrivals.sort_by_key(|(at, path, _)| (*at, *path));
        for (at, path, (sequence, paths, epoch)) in arrivals {
            let (sent, first_at) = &mut self.packets[sequence.wrapping_sub(self.first_number) as usize];
            self.tracker.handle_arrival(&Arrival {
                at,
                flow: FlowId::try_from(1).unwrap(),
                path,
                paths,
                sequence,
                epoch,
                first: first_at.is_none(),
                sent_micros: (sent.as_nanos() / 1000) as u32,
                bytes: 1444,
            });
            first_at.get_or_insert(at);
        }
        let (judge, judged, log) = (&mut self.judge, &mut self.judged, &mut self.log);
        let coming = &mut self.coming;
        let mut listen = |judge: &mut Judge| {
            while let Some(event) = judge.poll_event() {
                if let JudgeEvent::Judgement(judgement) = &event {
                    *coming = Some((until + CONTROL_DELAY, judgement.clone()));
                }
                log.push((until, Entry::Said(event)));
            }
        };
        self.tracker.handle_timeout_with(until, |packet| {
            *judged += 1;
            judge.handle_packet(packet);
            listen(judge);
        });
        judge.handle_timeout(until);
        listen(judge);
    }

    /// Copies sent per packet.
    pub(crate) fn cost(&self) -> f64 {
        self.copies as f64 / self.packets.len() as f64
    }

    /// The part of frames sent from `from` to `to` of which a packet came too late or not at all, by 60 ms.
    pub(crate) fn damaged_frames(&self, from: Duration, to: Duration) -> f64 {
        let sent = |frame: &&[(Instant, Option<Instant>)]| {
            (Instant::ZERO + from..Instant::ZERO + to).contains(&frame[0].0)
        };
        let is_late = |&(sent, arrived): &(Instant, Option<Instant>)| {
            arrived.is_none_or(|at| at.saturating_since(sent) > TOO_LATE)
        };
        let frames: Vec<_> =
            self.packets.chunks_exact(self.packets_per_frame as usize).filter(sent).collect();
        frames.iter().filter(|frame| frame.iter().any(is_late)).count() as f64 / frames.len() as f64
    }

    /// When each path left and entered the policy: time, code, reason.
    pub(crate) fn policies(&self) -> Vec<(Duration, u8, &str)> {
        let in_force = self.log.iter().filter_map(|(at, entry)| match entry {
            Entry::InForce(policy) => {
                Some((at.saturating_since(Instant::ZERO), policy.code.0, policy.reason.as_str()))
            }
            Entry::Said(_) => None,
        });
        in_force.collect()
    }

    /// How often each event was said.
    pub(crate) fn said(&self) -> HashMap<String, u32> {
        let mut said = HashMap::new();
        for (_, entry) in &self.log {
            if let Entry::Said(event) = entry {
                *said.entry(format!("{event:?}")).or_default() += 1;
            }
        }
        said
    }
}

/// One direction of a path: rate, delay, loss, and the range of what each packet takes longer, for so long.
pub(crate) fn link(mbps: f64, delay_ms: u64, loss: f64, extra_ms: u64, variation: Duration) -> LinkConfig {
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

/// The paths of Table I (Qian, section IV) under variation for so long.
pub(crate) fn table_1(variation: Duration) -> Vec<LinkConfig> {
    vec![
        link(400.0, 20, 0.0005, 50, variation),
        link(400.0, 30, 0.0005, 5, variation),
        link(150.0, 100, 0.0005, 10, variation),
        link(50.0, 100, 0.0005, 10, variation),
        link(50.0, 30, 0.0, 5, variation),
    ]
}

/// The levels of the talker, and how many packets of 1444 bytes a frame has.
pub(crate) const LEVELS: [(&str, u64); 3] = [("nfov", 124), ("hd", 248), ("fhd", 418)];
