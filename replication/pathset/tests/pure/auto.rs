//! The judge of the mode `auto` on flows over emulated paths in virtual time: it ends on the cheapest
//! paths that meet the aim.

use crate::network::random::{CHANGE, END, PACKETS_PER_FRAME, Scene};
use crate::network::{Judge, Network, link, lossy, with_cut};
use hawser_netem::{ExtraDelay, LinkConfig, QueueLimit, Span};
use hawser_pathset::{Evidence, EvidenceConfig, JudgeEvent, JudgedPacket, Judgement};
use hawser_units::{FlowId, Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use std::time::Duration;

/// The rate of the flow, Mb/s.
const RATE_MBPS: f64 = 14.4;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn auto(paths: PathSet) -> Evidence {
    let mut judge = Evidence::auto(EvidenceConfig::default(), paths);
    judge.handle_frame_size(PACKETS_PER_FRAME as f64);
    judge
}

/// Returns a flow that begins with the paths of `start`.
fn network(links: Vec<LinkConfig>, start: u8) -> Network {
    let paths = PathSet::from_bits((1 << links.len()) - 1);
    judged(links, start, auto(paths))
}

fn judged(links: Vec<LinkConfig>, start: u8, judge: Evidence) -> Network {
    let judge = Judge::Evidence(Box::new(judge));
    let mut network = Network::new(links, PACKETS_PER_FRAME, judge, 1).paced();
    network.set(start);
    network
}

fn clean(delay_ms: u64) -> LinkConfig {
    link(400.0, delay_ms, 0.0, 3, Duration::MAX)
}

/// Returns a bottleneck that carries the flow, but not two copies of it.
fn for_one_copy() -> LinkConfig {
    LinkConfig {
        queue: Some(QueueLimit::Time(Duration::from_millis(80))),
        ..link(RATE_MBPS * 1.4, 0, 0.0, 0, Duration::ZERO)
    }
}

/// Returns how often the policy's paths changed from `from` on.
fn changes(network: &Network, from: Duration) -> usize {
    let policies = network.policies();
    let pairs = policies.windows(2);
    pairs
        .filter(|pair| pair[1].0 > from && pair[0].1 != pair[1].1)
        .count()
}

#[test]
fn from_any_start_it_ends_on_the_path_that_suffices() {
    for start in 1..=0b111 {
        let mut network = network(vec![lossy(30), clean(35), lossy(25)], start);
        network.run_to(s(15));
        let policies = network.policies();
        assert_eq!(network.code(), 0b010, "{start:#b}: {policies:?}");
        assert!(network.probes(s(0), s(15)) < 0.05);
    }
}

#[test]
fn from_any_start_it_ends_on_two_paths_if_it_needs_two() {
    for start in 1..=0b111 {
        let mut network = network(vec![lossy(30), lossy(35), lossy(25)], start);
        network.run_to(s(20));
        let policies = network.policies();
        let code = network.code_mostly(s(10), s(20));
        assert_eq!(code.count_ones(), 2, "{start:#b}: {policies:?}");
    }
}

#[test]
fn another_path_takes_over_within_a_second_of_a_cut() {
    let links = vec![with_cut(clean(30), s(5), s(40)), clean(35), clean(40)];
    let mut network = network(links, 0b001);
    network.run_to(s(5));
    assert_eq!((network.code(), changes(&network, s(0))), (0b001, 0));
    network.run_to(s(10));
    assert_eq!(network.code().count_ones(), 1, "{:?}", network.policies());
    assert_eq!(network.damaged_packets(s(6), s(9)), 0.0);
}

#[test]
fn it_returns_to_one_path_when_the_variation_is_over() {
    let varying = |delay_ms| {
        let during = Some(Span::new(s(5), s(12)).unwrap());
        let range = Span::new(Duration::ZERO, Duration::from_millis(80)).unwrap();
        let mut link = clean(delay_ms);
        link.extra_delay.push(ExtraDelay {
            range,
            hold: Duration::ZERO,
            during,
        });
        link
    };
    let paths = PathSet::from_bits(0b11);
    let without_frames = Evidence::auto(EvidenceConfig::default(), paths);
    for judge in [auto(paths), without_frames] {
        let mut network = judged(vec![varying(30), varying(35)], 0b01, judge);
        network.run_to(s(11));
        assert_eq!(network.code(), 0b11, "{:?}", network.policies());
        network.run_to(s(30));
        assert_eq!(network.code().count_ones(), 1, "{:?}", network.policies());
    }
}

#[test]
fn where_copies_harm_each_other_it_takes_one_path() {
    let one_lossy = || vec![lossy(30), clean(35)];
    for start in 1..=0b11 {
        let mut network = network(one_lossy(), start).sharing(0b11, for_one_copy(), 1);
        network.run_to(s(25));
        assert_eq!(network.code(), 0b10, "{start:#b}: {:?}", network.policies());
    }
    for start in 1..=0b11 {
        let both_lossy = vec![lossy(30), lossy(35)];
        let mut network = network(both_lossy, start).sharing(0b11, for_one_copy(), 1);
        network.run_to(s(60));
        let code = network.code_mostly(s(30), s(60));
        assert_eq!(code.count_ones(), 1, "{start:#b}: {:?}", network.policies());
        let changes = changes(&network, s(30));
        assert!(changes <= 4, "{start:#b}: {changes}");
    }
}

#[test]
fn a_path_that_carries_probes_but_not_the_flow_is_given_up() {
    let small = link(RATE_MBPS * 0.7, 20, 0.0, 3, Duration::MAX);
    let mut network = network(vec![lossy(30), small, lossy(35)], 0b001);
    network.run_to(s(60));
    assert_eq!(network.code() & 0b101, 0b101, "{:?}", network.policies());
    let changes = changes(&network, s(20));
    assert!(changes <= 6, "{changes}: {:?}", network.policies());
}

#[test]
fn it_is_not_restless_in_random_networks() {
    for seed in 1..=6 {
        let scene = Scene::new(seed);
        let network = scene.run(Judge::Evidence(Box::new(auto(scene.paths()))));
        let policies = network.policies();
        let changes = changes(&network, CHANGE + s(10));
        assert!(changes <= 6, "{seed}: {changes} in 20 s: {policies:?}");
        assert!(network.probes(s(0), END) < 0.05, "{seed}");
    }
}

/// A flow of which packets arrive over all paths that they were sent over.
struct Steady {
    judge: Evidence,
    /// The path of the packets, by its index.
    path: usize,
    sequence: u64,
    millis: u64,
    judgements: Vec<Judgement>,
}

impl Steady {
    fn new() -> Self {
        Steady::judged_by(auto(PathSet::from_bits(0b111)))
    }

    fn judged_by(judge: Evidence) -> Self {
        let mut steady = Steady {
            judge,
            path: 0,
            sequence: 0,
            millis: 0,
            judgements: Vec::new(),
        };
        steady.apply(PolicyCode(0b1));
        steady
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_millis(self.millis)
    }

    fn apply(&mut self, code: PolicyCode) {
        let now = self.now();
        self.judge.handle_policy(0, code, PathSet::EMPTY, now);
    }

    fn packets(&mut self, millis: u64) {
        for _ in 0..millis {
            self.packet(PathSet::from_bits(1 << self.path), true);
        }
    }

    /// Passes a packet that was sent over these paths, and arrives over the flow's path or not at all.
    fn packet(&mut self, sent: PathSet, arrives: bool) {
        let mut skews = [None; MAX_PATHS];
        skews[self.path] = arrives.then_some(Duration::ZERO);
        self.judge.handle_packet(&JudgedPacket {
            at: self.now(),
            flow: FlowId::try_from(0).unwrap(),
            sequence: self.sequence,
            epoch: 0,
            sent,
            sent_micros: (self.millis * 1000) as u32,
            first: PathId::all().nth(self.path).filter(|_| arrives),
            skews,
        });
        self.sequence += 1;
        self.pass(1);
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.millis += 1;
            self.judge.handle_timeout(self.now());
            while let Some(event) = self.judge.poll_event() {
                if let JudgeEvent::Judgement(judgement) = event {
                    self.apply(judgement.code);
                    self.judgements.push(judgement);
                }
            }
        }
    }

    fn code(&self) -> u8 {
        self.judgements
            .last()
            .map_or(0, |judgement| judgement.code.0)
    }
}

#[test]
fn when_nothing_arrives_it_takes_all_paths() {
    let mut flow = Steady::new();
    flow.packets(3_000);
    assert_eq!(flow.code(), 0b1);
    flow.pass(990);
    assert_eq!(flow.code(), 0b1);
    flow.pass(20);
    assert_eq!(flow.code(), 0b111);
    let reason = &flow.judgements.last().unwrap().reason;
    assert!(reason.contains("nothing has arrived for 1.0 s"), "{reason}");
}

#[test]
fn a_source_that_pauses_is_not_taken_for_a_failure_each_time() {
    let mut flow = Steady::new();
    flow.packets(3_000);
    flow.pass(1_500);
    assert_eq!(flow.code(), 0b111);
    flow.apply(PolicyCode(0b1));
    flow.judgements.clear();
    flow.packets(3_000);
    flow.pass(1_500);
    assert_ne!(flow.code(), 0b111);
    flow.pass(1_000);
    assert_eq!(flow.code(), 0b111);
}

#[test]
fn degraded_experience_counts_as_damage() {
    let mut flow = Steady::new();
    flow.packets(3_000);
    assert_eq!(flow.code(), 0b1);
    flow.judge.handle_degraded();
    flow.packets(200);
    assert!(flow.code().count_ones() > 1, "{:?}", flow.judgements);
}

#[test]
fn an_experience_of_the_paths_before_does_not_count() {
    let mut flow = Steady::new();
    flow.packets(3_000);
    flow.judge.handle_degraded();
    flow.path = 1;
    flow.apply(PolicyCode(0b10));
    flow.judgements.clear();
    flow.packets(1_000);
    let left = flow
        .judgements
        .iter()
        .find(|judgement| judgement.code.0 != 0b10);
    assert_eq!(left, None);
}

#[test]
fn without_room_for_probes_a_silent_path_is_left() {
    let config = EvidenceConfig {
        budget_ratio: Some(1.0),
        ..EvidenceConfig::default()
    };
    let mut flow = Steady::judged_by(Evidence::auto(config, PathSet::from_bits(0b11)));
    flow.packets(3_000);
    flow.pass(1_010);
    assert_eq!(flow.code(), 0b10, "{:?}", flow.judgements);
}

/// Only probes arrive, so nothing tells that the packets between them were none.
#[test]
fn a_path_that_is_dead_from_the_beginning_is_left() {
    let mut flow = Steady::new();
    flow.path = 1;
    let (both, probed, now) = (
        PathSet::from_bits(0b11),
        PathSet::from_bits(0b10),
        flow.now(),
    );
    flow.judge.handle_policy(0, PolicyCode(0b1), probed, now);
    for number in 0..2_000 {
        flow.packet(both, number % 32 == 0);
        if flow.code() & 0b10 != 0 {
            return;
        }
    }
    panic!("{:?}", flow.judgements);
}
