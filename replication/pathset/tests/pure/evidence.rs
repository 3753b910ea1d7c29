//! Judgements on packets that are constructed one by one.

use hawser_pathset::{Evidence, EvidenceConfig, JudgeEvent, JudgedPacket, Judgement};
use hawser_units::{FlowId, Instant, PathId, PathSet, PolicyCode};
use proptest::prelude::*;
use std::time::Duration;

/// 10,000 packets a second.
const INTERVAL: Duration = Duration::from_micros(100);

/// One packet in a thousand may be damaged.
fn config() -> EvidenceConfig {
    EvidenceConfig {
        tolerated_packets: 0.001,
        ..EvidenceConfig::default()
    }
}

/// A judge with a receiver that reports packets and a controller that applies its judgements.
struct Flow {
    judge: Evidence,
    packets: u64,
    code: PathSet,
    probes: PathSet,
    probe_every: u64,
    events: Vec<(u64, JudgeEvent)>,
    applies_judgements: bool,
}

impl Flow {
    fn new(config: EvidenceConfig, paths: u8) -> Self {
        let paths = PathSet::from_bits(paths);
        Flow {
            judge: Evidence::new(config, paths),
            packets: 0,
            code: paths,
            probes: PathSet::EMPTY,
            probe_every: 0,
            events: Vec::new(),
            applies_judgements: true,
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + INTERVAL * self.packets as u32
    }

    /// Sends the next packet. `skew_ms` returns the delay of its copy on a path, or `None` if it is
    /// lost.
    fn packet(&mut self, skew_ms: impl Fn(u64, usize) -> Option<u64>) {
        let n = self.packets;
        self.packets += 1;
        let is_probe = self.probe_every > 0 && n.is_multiple_of(self.probe_every);
        let probes = if is_probe {
            self.probes
        } else {
            PathSet::EMPTY
        };
        let sent: PathSet = self.code.iter().chain(probes.iter()).collect();
        let late = |path: &PathId| skew_ms(n, path.index());
        let first = sent
            .iter()
            .filter(|path| late(path).is_some())
            .min_by_key(late);
        let earliest = first.as_ref().and_then(late).unwrap_or_default();
        let skew = |path: PathId| {
            let late = late(&path).filter(|_| sent.contains(path))?;
            Some(Duration::from_millis(late - earliest))
        };
        let mut skews = [None; 8];
        PathId::all()
            .zip(&mut skews)
            .for_each(|(path, place)| *place = skew(path));
        let packet = JudgedPacket {
            at: self.now(),
            flow: FlowId::try_from(0).unwrap(),
            sequence: n,
            epoch: 0,
            sent,
            sent_micros: (self.now().as_nanos() / 1000) as u32,
            first,
            skews,
        };
        self.judge.handle_packet(&packet);
        self.handle_events();
        self.judge.handle_timeout(self.now());
        self.handle_events();
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.judge.poll_event() {
            if let JudgeEvent::Judgement(Judgement {
                code,
                probes,
                probe_every,
                ..
            }) = &event
                && self.applies_judgements
            {
                (self.code, self.probes) = (code.paths(), *probes);
                self.probe_every = u64::from(*probe_every);
                self.judge.handle_policy(0, *code, *probes, self.now());
            }
            self.events.push((self.packets, event));
        }
    }

    /// Applies a policy that the judge did not propose.
    fn set(&mut self, code: u8) {
        (self.code, self.probes, self.probe_every) = (PathSet::from_bits(code), PathSet::EMPTY, 0);
        self.judge
            .handle_policy(0, PolicyCode(code), PathSet::EMPTY, self.now());
    }

    /// Returns the number of packets until a path was removed from the policy.
    fn left_after(&self, path: u8) -> Option<u64> {
        let path = PathId::try_from(path).unwrap();
        self.events.iter().find_map(|(after, event)| match event {
            JudgeEvent::Judgement(judgement) if !judgement.code.paths().contains(path) => {
                Some(*after)
            }
            _ => None,
        })
    }

    fn judgements(&self) -> impl Iterator<Item = &Judgement> {
        self.events.iter().filter_map(|(_, event)| match event {
            JudgeEvent::Judgement(judgement) => Some(judgement),
            _ => None,
        })
    }

    fn count_of(&self, event: &JudgeEvent) -> usize {
        self.events
            .iter()
            .filter(|(_, emitted)| emitted == event)
            .count()
    }
}

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

#[test]
fn a_path_that_cannot_help_is_gone_within_300_packets() {
    let cases: [fn(u64) -> Option<u64>; 2] = [|_| Some(70), |_| None];
    for useless in cases {
        let mut flow = Flow::new(config(), 0b1111);
        for _ in 0..300 {
            flow.packet(|n, path| {
                if path >= 2 {
                    useless(n)
                } else {
                    Some(n % 7 * path as u64)
                }
            });
        }
        assert!(flow.left_after(2).is_some() && flow.left_after(3).is_some());
        assert_eq!(flow.code, PathSet::from_bits(0b0011));
    }
}

#[test]
fn paths_soon_useless_are_removed_with_the_first() {
    let mut flow = Flow::new(config(), 0b1111);
    (0..300).for_each(|_| {
        flow.packet(|n, path| (path < 2 || n < 20 * path as u64).then_some(path as u64))
    });
    let codes: Vec<_> = flow
        .judgements()
        .map(|judgement| judgement.code.0)
        .collect();
    assert_eq!(codes, [0b0011]);
}

#[test]
fn a_useless_path_is_gone_within_300_packets() {
    let mut flow = Flow::new(config(), 0b11);
    // Each path alone would lose one packet in a hundred.
    let lossy = |n: u64, path: usize| (n % 100 != 10 * path as u64).then_some(0);
    (0..20_000).for_each(|_| flow.packet(lossy));
    assert_eq!(flow.code, PathSet::from_bits(0b11));

    (0..300).for_each(|_| flow.packet(|n, path| if path == 0 { None } else { lossy(n, path) }));
    assert_eq!(flow.code, PathSet::from_bits(0b10));
    assert_eq!(flow.count_of(&JudgeEvent::LatentError(path(0))), 1);
}

#[test]
fn a_path_that_never_helped_is_no_latent_error() {
    let mut flow = Flow::new(config(), 0b11);
    (0..1000).for_each(|_| flow.packet(|_, path| (path == 0).then_some(0)));
    assert_eq!(flow.code, PathSet::from_bits(0b01));
    assert!(
        !flow
            .events
            .iter()
            .any(|(_, event)| matches!(event, JudgeEvent::LatentError(_)))
    );
}

#[test]
fn when_nothing_arrives_no_path_is_to_blame() {
    let mut flow = Flow::new(config(), 0b11);
    (0..5000).for_each(|_| flow.packet(|n, _| (n < 100).then_some(0)));
    assert_eq!(flow.code, PathSet::from_bits(0b11));
    // But both are silent.
    assert_eq!(flow.count_of(&JudgeEvent::PathSilent(path(0))), 0);
    (0..10_000).for_each(|_| flow.packet(|_, _| None));
    assert_eq!(flow.count_of(&JudgeEvent::PathSilent(path(0))), 1);
    assert_eq!(flow.count_of(&JudgeEvent::PathSilent(path(1))), 1);
    flow.packet(|_, path| (path == 1).then_some(0));
    assert_eq!(flow.count_of(&JudgeEvent::PathRestored(path(1))), 1);
    assert_eq!(flow.count_of(&JudgeEvent::PathRestored(path(0))), 0);
}

#[test]
fn loss_that_all_paths_share_is_no_reason_to_replicate() {
    let mut flow = Flow::new(config(), 0b11);
    let mut copies = 0;
    for _ in 0..300_000 {
        copies += flow.code.len();
        flow.packet(|n, _| (n % 50 != 0).then_some(0));
    }
    assert!((copies as f64) < 1.3 * 300_000.0, "{copies}");
}

#[test]
fn the_tolerance_decides_between_one_path_and_two() {
    // One packet in 2001 is lost on each path, never the same one, and half of them are overtaken.
    let lossy =
        |n: u64, path: usize| (n % 2001 != 1000 * path as u64).then_some((n + path as u64) % 2);
    for (packets_per_frame, paths) in [(128.0, 1), (430.0, 2)] {
        let mut flow = Flow::new(config(), 0b11);
        flow.judge.handle_frame_size(packets_per_frame);
        (0..100_000).for_each(|_| flow.packet(lossy));
        assert_eq!(
            flow.code.len(),
            paths,
            "{packets_per_frame} packets per frame"
        );
    }
}

#[test]
fn tolerated_damage_is_hedged_against() {
    let mut flow = Flow::new(config(), 0b111);
    flow.judge.handle_frame_size(128.0);
    let lossy =
        |n: u64, path: usize| (n % 2001 != 1000 * path as u64).then_some((n + path as u64) % 2);
    (0..100_000).for_each(|_| flow.packet(lossy));
    assert_eq!(
        (flow.code.len(), flow.probes.len(), flow.probe_every),
        (1, 1, 4)
    );

    (0..100_000).for_each(|_| flow.packet(|n, path| Some((n + path as u64) % 2)));
    assert_eq!((flow.code.len(), flow.probes.len()), (1, 2));
    assert!(flow.probe_every > 4);
}

#[test]
fn a_path_in_order_may_lose_more() {
    let mut flow = Flow::new(config(), 0b11);
    flow.judge.handle_frame_size(430.0);
    (0..100_000).for_each(|_| flow.packet(|n, path| (n % 2000 != 1000 * path as u64).then_some(0)));
    assert_eq!(flow.code.len(), 1);
}

#[test]
fn the_budget_holds_and_its_remainder_is_for_probes() {
    let lossy = |n: u64, path: usize| (n % 100 != 10 * path as u64).then_some(0);
    for (budget, paths, probes) in [
        (1.0, 1, false),
        (1.1, 1, true),
        (2.0, 2, false),
        (2.01, 2, true),
    ] {
        let config = EvidenceConfig {
            budget_ratio: Some(budget),
            ..config()
        };
        let mut flow = Flow::new(config, 0b1111);
        (0..30_000).for_each(|_| flow.packet(lossy));
        assert_eq!(
            (flow.code.len(), !flow.probes.is_empty()),
            (paths, probes),
            "{budget}"
        );
    }
}

#[test]
fn with_a_budget_for_one_a_better_path_takes_over() {
    let config = EvidenceConfig {
        budget_ratio: Some(1.1),
        ..config()
    };
    let mut flow = Flow::new(config, 0b11);
    (0..20_000).for_each(|_| flow.packet(|_, path| Some(path as u64)));
    assert_eq!(flow.code, PathSet::from_bits(0b01));

    (0..20_000).for_each(|_| flow.packet(|_, path| (path == 1).then_some(0)));
    assert_eq!(flow.code, PathSet::from_bits(0b10));
}

#[test]
fn a_set_that_degraded_waits_longer_each_time() {
    let mut flow = Flow::new(config(), 0b11);
    let only_one_is_enough =
        |n: u64, path: usize| (path == 0 || !n.is_multiple_of(100)).then_some(path as u64);
    let mut waited = Vec::new();
    for _ in 0..5 {
        let before = flow.packets;
        while flow.code.len() > 1 {
            flow.packet(only_one_is_enough);
        }
        waited.push((flow.packets - before) / 10_000);
        (0..5_000).for_each(|_| flow.packet(only_one_is_enough));
        flow.set(0b11);
    }
    // Seconds since the experience degraded.
    assert_eq!(waited, [2, 2, 4, 8, 16]);
}

#[test]
fn a_policy_from_elsewhere_discards_the_evidence() {
    let overtaking = |n: u64, path: usize| Some((n + path as u64) % 2);
    let mut flow = Flow::new(config(), 0b11);
    (0..21_000).for_each(|_| flow.packet(overtaking));
    assert_eq!(flow.code.len(), 1);

    flow.set(0b11 & !flow.code.bits());
    flow.set(0b11);
    (0..19_000).for_each(|_| flow.packet(overtaking));
    assert_eq!(flow.code, PathSet::from_bits(0b11));
    (0..2_000).for_each(|_| flow.packet(overtaking));
    assert_eq!(flow.code.len(), 1);
}

#[test]
fn a_repeated_policy_changes_nothing() {
    let mut flow = Flow::new(config(), 0b11);
    flow.applies_judgements = false;
    (0..20_000).for_each(|_| flow.packet(|_, path| (path == 0).then_some(0)));
    flow.set(0b11);
    flow.applies_judgements = true;
    (0..20_100).for_each(|_| flow.packet(|_, path| (path == 0).then_some(0)));
    assert_eq!(flow.judge.damage(PathSet::from_bits(0b01)), Some(0.0));
    assert_eq!((flow.code.bits(), flow.judgements().count()), (0b01, 2));
}

#[test]
fn at_any_tolerance_only_useless_paths_are_removed() {
    for tolerated in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
        let config = EvidenceConfig {
            tolerated_frames: tolerated,
            tolerated_packets: tolerated,
            ..EvidenceConfig::default()
        };
        for frame in [None, Some(1.0), Some(f64::NAN), Some(1e9)] {
            let mut flow = Flow::new(config, 0b11);
            frame
                .into_iter()
                .for_each(|packets| flow.judge.handle_frame_size(packets));
            (0..3_000).for_each(|_| flow.packet(|_, path| (path == 1).then_some(0)));
            assert_eq!(flow.code.bits(), 0b10, "{tolerated} {frame:?}");
        }
    }
}

#[test]
fn a_path_that_failed_is_tried_after_others() {
    // The first path delivers probes, but not the whole flow; the second is cut after five seconds.
    let mut flow = Flow::new(config(), 0b1111);
    for sent in 0..80_000u64 {
        let is_loaded = flow.code.contains(path(0));
        flow.packet(|n, path| match path {
            0 => (!is_loaded).then_some(0),
            1 => (sent < 50_000 && n % 100 != 10).then_some(0),
            _ => (n % 100 != 10 * path as u64).then_some(0),
        });
    }
    let mut codes: Vec<_> = flow
        .judgements()
        .map(|judgement| judgement.code.0)
        .collect();
    codes.dedup();
    assert_eq!(codes, [0b1110, 0b0110, 0b0100, 0b1100]);
}

#[test]
fn a_judgement_that_is_not_applied_is_repeated() {
    let mut flow = Flow::new(config(), 0b11);
    flow.applies_judgements = false;
    (0..50_000).for_each(|_| flow.packet(|_, path| (path == 0).then_some(0)));
    assert_eq!(flow.judgements().count(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_judgement_makes_sense(
        paths in 1..0xffu8,
        budget in proptest::option::of(0.5..4.0f64),
        turns in proptest::collection::vec((any::<u8>(), any::<u8>(), any::<u8>(), 100..3000u32), 1..8),
    ) {
        let config = EvidenceConfig { budget_ratio: budget, ..config() };
        let mut flow = Flow::new(config, paths);
        for (lossy, late, set, packets) in turns {
            for _ in 0..packets {
                flow.packet(|n, path| {
                    let lost = lossy >> path & 1 == 1 && (n * 7 + path as u64).is_multiple_of(3);
                    (!lost).then_some(u64::from(late >> path & 1) * (n % 50))
                });
            }
            if set & 1 == 1 {
                flow.set(set & paths);
            }
        }
        for Judgement { code, probes, probe_every, .. } in flow.judgements() {
            prop_assert!(!code.paths().is_empty() && code.0 & !paths == 0);
            prop_assert!(probes.bits() & code.0 == 0 && probes.bits() & !paths == 0);
            prop_assert_eq!(probes.is_empty(), *probe_every == 0);
            prop_assert!(probes.is_empty() || probe_every.is_power_of_two());
            let cost = probes.len() as f64 / f64::from((*probe_every).max(1));
            let is_hedge = (probes.len(), *probe_every) == (1, 4);
            prop_assert!(cost <= 1.0 / 16.0 || is_hedge, "{cost}");
            let within = |budget| code.paths().len() as f64 + cost <= budget;
            prop_assert!(probes.is_empty() || budget.is_none_or(within));
        }
    }
}

#[test]
fn recent_damage_is_derived_from_the_packets() {
    let mut flow = Flow::new(config(), 0b11);
    flow.applies_judgements = false;
    assert_eq!(flow.judge.exceeded_tolerance_since(Instant::ZERO), None);
    let mut after = |packets: u32, comes: fn(u64) -> bool| {
        (0..packets).for_each(|_| flow.packet(|n, _| comes(n).then_some(0)));
        flow.judge
            .exceeded_tolerance_since(flow.now() - INTERVAL * 5_000)
    };
    assert_eq!(after(10_000, |_| true), Some(false));
    assert_eq!(after(5_000, |n| !n.is_multiple_of(10)), Some(true));
    assert_eq!(after(15_000, |_| true), Some(false));
}
