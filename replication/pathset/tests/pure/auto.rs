//! The judge of the mode `auto` on flows over emulated paths in virtual time: it ends on the cheapest
//! paths that meet the aim.

use crate::network::outage::{CALM, Outages};
use crate::network::random::{CHANGE, END, PACKETS_PER_FRAME, Scene};
use crate::network::{Judge, Network, link, lossy, with_cut};
use hawser_netem::{ExtraDelay, LinkConfig, QueueLimit, Span};
use hawser_pathset::{Evidence, EvidenceConfig, JudgeEvent, JudgedPacket, Judgement};
use hawser_units::{FlowId, Instant, MAX_PATHS, PathSet, PolicyCode};
use std::time::Duration;

/// The rate of the flow, Mb/s.
const RATE_MBPS: f64 = 14.4;

/// With evidence that is missing or old, no more than this share of packets more are damaged than in
/// the mode `evidence`.
const MARGIN: f64 = 0.01;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn auto(paths: PathSet) -> Evidence {
    let mut judge = Evidence::auto(EvidenceConfig::default(), paths);
    judge.handle_frame_size(PACKETS_PER_FRAME as f64);
    judge
}

fn evidence(paths: PathSet) -> Evidence {
    let mut judge = Evidence::new(EvidenceConfig::default(), paths);
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
    let links = vec![with_cut(clean(30), s(20), s(200)), clean(35), clean(40)];
    let mut network = network(links, 0b001);
    network.run_to(s(20));
    assert_eq!(network.code(), 0b001);
    network.run_to(s(30));
    assert_eq!(network.code(), 0b110, "{:?}", network.policies());
    assert_eq!(network.damaged_packets(s(20) + s(1) / 2, s(29)), 0.0);
    network.run_to(s(70));
    assert_eq!(network.code().count_ones(), 1, "{:?}", network.policies());
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
        let changes = network.changes(s(30), s(60));
        assert!(changes <= 4, "{start:#b}: {changes}");
    }
}

#[test]
fn a_path_that_carries_probes_but_not_the_flow_is_given_up() {
    let small = link(RATE_MBPS * 0.7, 20, 0.0, 3, Duration::MAX);
    let mut network = network(vec![lossy(30), small, lossy(35)], 0b001);
    network.run_to(s(60));
    assert_eq!(network.code() & 0b101, 0b101, "{:?}", network.policies());
    let changes = network.changes(s(20), s(60));
    assert!(changes <= 6, "{changes}: {:?}", network.policies());
}

#[test]
fn it_is_not_restless_in_random_networks() {
    for seed in 1..=6 {
        let scene = Scene::new(seed);
        let network = scene.run(Judge::Evidence(Box::new(auto(scene.paths()))));
        let policies = network.policies();
        let changes = network.changes(CHANGE + s(10), END);
        assert!(changes <= 6, "{seed}: {changes} in 20 s: {policies:?}");
        assert!(network.probes(s(0), END) < 0.05, "{seed}");
    }
}

#[test]
fn a_new_flow_keeps_two_paths_at_first() {
    let links = vec![with_cut(clean(30), s(8), s(200)), clean(35), clean(40)];
    let mut network = network(links, 0b001);
    network.run_to(s(12));
    assert_eq!(network.code(), 0b110, "{:?}", network.policies());
    assert_eq!(network.damaged_packets(s(0), s(11)), 0.0);
}

#[test]
fn paths_that_fail_one_after_another_hardly_stall_it() {
    let run = |outages: &Outages| {
        let judge = Evidence::auto(EvidenceConfig::default(), outages.paths());
        outages.run(Judge::Evidence(Box::new(judge)), 0b1)
    };
    let lab = Outages::of_lab();
    let network = run(&lab);
    assert_eq!(
        network.stalled(CALM, lab.end),
        0.0,
        "{:?}",
        network.policies()
    );
    assert!(network.cost(CALM, lab.end) < 2.5);
    let stalled = (1..=8).map(|seed| {
        let outages = Outages::new(seed);
        run(&outages).stalled(CALM, outages.end)
    });
    let mean = stalled.sum::<f64>() / 8.0;
    assert!(mean < 0.005, "{mean}");
}

/// Runs random networks and returns the mean share of damaged packets of both judges.
fn damaged_in_random_networks(change: impl Fn(Network) -> Network) -> [f64; 2] {
    let judges = [auto, evidence];
    judges.map(|judge| {
        let damaged = (1..=12).map(|seed| {
            let scene = Scene::new(seed);
            let judge = Judge::Evidence(Box::new(judge(scene.paths())));
            scene.run_with(judge, &change).damaged_packets(s(1), s(49))
        });
        damaged.sum::<f64>() / 12.0
    })
}

#[test]
fn with_stale_evidence_it_is_not_worse_than_evidence() {
    let [auto, evidence] = damaged_in_random_networks(|network| network.reacting_after(s(3)));
    assert!(auto < evidence + MARGIN, "{auto} {evidence}");
}

#[test]
fn without_evidence_it_is_not_worse_than_evidence() {
    let blind = |network: Network| network.blind(CHANGE, CHANGE + s(10));
    let [auto, evidence] = damaged_in_random_networks(blind);
    assert!(auto < evidence + MARGIN, "{auto} {evidence}");
}

/// A flow that takes the paths of its policy, some of which work, and is told at once.
struct Steady {
    judge: Evidence,
    code: PathSet,
    sequence: u64,
    millis: u64,
    newest: [Option<Instant>; MAX_PATHS],
    judgements: Vec<Judgement>,
}

impl Steady {
    fn new() -> Self {
        Steady::judged_by(auto(PathSet::from_bits(0b111)))
    }

    /// Returns a flow that is left with its first path, after the time for which it keeps two.
    fn on_one_path() -> Self {
        let mut flow = Steady::new();
        flow.packets(20_000);
        assert_eq!(flow.code.len(), 1);
        flow.judgements.clear();
        flow
    }

    fn judged_by(judge: Evidence) -> Self {
        let mut steady = Steady::unassigned(judge);
        steady.apply(PolicyCode(0b1));
        steady
    }

    /// Returns a flow without a policy.
    fn unassigned(judge: Evidence) -> Self {
        Steady {
            judge,
            code: PathSet::EMPTY,
            sequence: 0,
            millis: 0,
            newest: [None; MAX_PATHS],
            judgements: Vec::new(),
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_millis(self.millis)
    }

    fn apply(&mut self, code: PolicyCode) {
        self.code = code.paths();
        let now = self.now();
        self.judge.handle_policy(0, code, PathSet::EMPTY, now);
    }

    fn packets(&mut self, millis: u64) {
        for _ in 0..millis {
            self.packet(self.code, self.code);
        }
    }

    /// Passes a packet that was sent over some paths and arrives over some of them.
    fn packet(&mut self, sent: PathSet, arrived: PathSet) {
        let mut skews = [None; MAX_PATHS];
        for path in arrived.iter() {
            skews[path.index()] = Some(Duration::ZERO);
            self.newest[path.index()] = Some(self.now());
        }
        self.judge.handle_packet(&JudgedPacket {
            at: self.now(),
            flow: FlowId::try_from(0).unwrap(),
            sequence: self.sequence,
            epoch: 0,
            sent,
            sent_micros: (self.millis * 1000) as u32,
            first: arrived.iter().next(),
            skews,
        });
        self.sequence += 1;
        self.pass(1);
    }

    fn pass(&mut self, millis: u64) {
        for _ in 0..millis {
            self.millis += 1;
            self.judge.handle_arrivals(&self.newest);
            self.judge.handle_timeout(self.now());
            while let Some(event) = self.judge.poll_event() {
                if let JudgeEvent::Judgement(judgement) = event {
                    self.apply(judgement.code);
                    self.judgements.push(judgement);
                }
            }
        }
    }
}

#[test]
fn when_nothing_arrives_it_takes_all_paths() {
    let mut flow = Steady::on_one_path();
    flow.pass(140);
    assert_eq!(flow.code.len(), 1);
    flow.pass(20);
    assert_eq!(flow.code.bits(), 0b111);
    let reason = &flow.judgements.last().unwrap().reason;
    assert!(reason.contains("nothing has arrived for"), "{reason}");
}

#[test]
fn what_arrived_before_the_first_policy_is_no_silence() {
    let mut flow = Steady {
        millis: 60_000,
        ..Steady::unassigned(auto(PathSet::from_bits(0b111)))
    };
    flow.newest[0] = Some(Instant::ZERO);
    flow.apply(PolicyCode(0b1));
    flow.pass(10_000);
    assert_eq!(flow.judgements.len(), 0);
}

#[test]
fn a_proposal_for_silence_that_is_lost_is_repeated() {
    let mut flow = Steady::on_one_path();
    let before = PolicyCode(flow.code.bits());
    flow.pass(160);
    assert_eq!(flow.judgements.len(), 1);
    flow.apply(before);
    flow.pass(600);
    assert_eq!(flow.code.bits(), 0b111);
}

#[test]
fn a_source_that_pauses_is_not_taken_for_a_failure_each_time() {
    let mut flow = Steady::on_one_path();
    flow.pass(1_500);
    assert_eq!(flow.code.bits(), 0b111);
    flow.packets(20_000);
    assert_eq!(flow.code.len(), 1, "{:?}", flow.judgements);
    flow.pass(1_500);
    assert_eq!(flow.code.len(), 1, "{:?}", flow.judgements);
    flow.pass(1_000);
    assert_eq!(flow.code.bits(), 0b111);
}

#[test]
fn a_path_that_stops_is_replaced_at_once() {
    let mut flow = Steady::new();
    flow.packets(3_000);
    assert_eq!(flow.code.bits(), 0b11);
    for _ in 0..300 {
        flow.packet(flow.code, PathSet::from_bits(0b110));
    }
    assert_eq!(flow.code.bits(), 0b110, "{:?}", flow.judgements);
}

#[test]
fn degraded_experience_counts_as_damage() {
    let mut flow = Steady::on_one_path();
    flow.judge.handle_degraded();
    flow.packets(200);
    assert!(flow.code.len() > 1, "{:?}", flow.judgements);
}

#[test]
fn an_experience_of_the_paths_before_does_not_count() {
    let mut flow = Steady::on_one_path();
    flow.judge.handle_degraded();
    flow.apply(PolicyCode(0b10));
    flow.packets(1_000);
    assert_eq!(flow.code.bits(), 0b10, "{:?}", flow.judgements);
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
    assert_eq!(flow.code.bits(), 0b10, "{:?}", flow.judgements);
}

/// Only probes arrive, so nothing tells that the packets between them were none.
#[test]
fn a_path_that_is_dead_from_the_beginning_is_left() {
    let mut flow = Steady::new();
    let (both, probed, now) = (
        PathSet::from_bits(0b11),
        PathSet::from_bits(0b10),
        flow.now(),
    );
    flow.judge.handle_policy(0, PolicyCode(0b1), probed, now);
    for number in 0..2_000 {
        let arrived = if number % 32 == 0 {
            probed
        } else {
            PathSet::EMPTY
        };
        flow.packet(both, arrived);
        if flow.code.bits() & 0b10 != 0 {
            return;
        }
    }
    panic!("{:?}", flow.judgements);
}
