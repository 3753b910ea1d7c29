//! Flows over emulated paths in virtual time: cost and benefit of path pruning, and the time until
//! a path is used again.

use crate::network::{Judge, Network, link, lossy, table_1, two_needed, with_cut};
use hawser_netem::{ExtraDelay, LinkConfig, Probability, Reorder, Span};
use hawser_pathset::{Evidence, EvidenceConfig, JudgeEvent, Successive, SuccessiveConfig};
use hawser_units::{PathId, PathSet};
use std::time::Duration;

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn evidence(paths: usize, packets_per_frame: u64) -> Judge {
    let mut judge = Evidence::new(
        EvidenceConfig::default(),
        PathSet::from_bits((1 << paths) - 1),
    );
    judge.handle_frame_size(packets_per_frame as f64);
    Judge::Evidence(Box::new(judge))
}

#[test]
fn a_small_stream_is_left_with_one_path() {
    let mut network = Network::new(table_1(s(12)), 124, evidence(5, 124), 1);
    network.run_to(s(12));

    assert_eq!(network.code().count_ones(), 1, "{:?}", network.policies());
    let cost = network.cost(s(0), s(12));
    assert!(cost < 1.6, "{cost}");
    assert!(network.damaged_frames(s(0), s(11)) <= 0.1);
}

#[test]
fn a_large_stream_keeps_the_two_paths_that_it_needs() {
    let mut network = Network::new(table_1(s(12)), 418, evidence(5, 418), 1);
    network.run_to(s(12));

    assert_eq!(network.code(), 0b00011, "{:?}", network.policies());
    let cost = network.cost(s(1), s(12));
    assert!(cost < 2.05, "{cost}");
    assert!(network.damaged_frames(s(0), s(11)) <= 0.1);
}

#[test]
fn one_path_is_enough_when_the_variation_is_over() {
    let mut network = Network::new(table_1(s(3)), 418, evidence(5, 418), 1);
    network.run_to(s(12));
    assert_eq!(network.code().count_ones(), 1, "{:?}", network.policies());
}

#[test]
fn algorithm_1_keeps_two_paths_even_if_the_stream_needs_one() {
    let judge = Successive::new(SuccessiveConfig::default(), PathSet::from_bits(0b11111));
    let mut network = Network::new(table_1(s(6)), 124, Judge::Successive(judge), 1);
    network.run_to(s(6));
    assert_eq!(network.code(), 0b00011, "{:?}", network.policies());
}

#[test]
fn a_path_that_the_flow_needs_is_used_again_within_two_seconds() {
    // 2,000 to 12,000 packets a second.
    for packets_per_frame in [67, 133, 267, 400] {
        let judge = evidence(3, packets_per_frame);
        let mut network = Network::new(two_needed(s(4), s(9)), packets_per_frame, judge, 1);
        network.run_to(s(4));
        assert_eq!(network.code(), 0b011, "{packets_per_frame}");
        network.run_to(s(9));
        assert_eq!(network.code(), 0b010, "{packets_per_frame}");
        network.run_to(s(11));
        assert_eq!(
            network.code(),
            0b011,
            "{packets_per_frame}: {:?}",
            network.policies()
        );
        network.run_to(s(14));
        assert_eq!(
            network.code(),
            0b011,
            "{packets_per_frame}: {:?}",
            network.policies()
        );

        let one = PathId::try_from(0).unwrap();
        for event in [
            JudgeEvent::LatentError(one),
            JudgeEvent::PathSilent(one),
            JudgeEvent::PathRestored(one),
        ] {
            assert_eq!(
                network.count_of(&event),
                1,
                "{event:?} at {packets_per_frame}"
            );
        }
    }
}

#[test]
fn a_slow_path_that_delivers_probes_is_tried_less_and_less() {
    // The third path carries the probes, but not the flow.
    let paths = vec![
        with_cut(lossy(30), s(4), s(40)),
        lossy(35),
        link(2.0, 30, 0.0, 5, s(1000)),
    ];
    let mut network = Network::new(paths, 67, evidence(3, 67), 1);
    network.run_to(s(40));
    let times: Vec<_> = network
        .policies()
        .iter()
        .filter(|(_, code, _)| code & 0b100 != 0)
        .map(|(at, ..)| *at)
        .collect();
    assert!((2..=6).contains(&times.len()), "{times:?}");
    let waits: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits.is_sorted(), "{waits:?}");

    network.run_to(s(42));
    assert_eq!(network.code() & 0b011, 0b011, "{:?}", network.policies());
}

#[test]
fn when_the_only_path_is_cut_others_take_over() {
    let fine = |delay_ms| link(400.0, delay_ms, 0.0, 1, s(1000));
    let paths = vec![with_cut(fine(30), s(5), s(15)), fine(35), fine(40)];
    let mut network = Network::new(paths, 133, evidence(3, 133), 1);
    network.run_to(s(5));
    assert_eq!(network.code(), 0b001, "{:?}", network.policies());
    network.run_to(s(15));
    assert_eq!(network.code() & 0b001, 0);
    // Until it is known which of the others carries the flow, both do.
    assert!(
        network
            .policies()
            .iter()
            .any(|(at, code, _)| *at > s(5) && *code == 0b111)
    );
    // The deadline, the judgement and the delay to the sender take less than a second.
    assert_eq!(network.damaged_frames(s(6), s(14)), 0.0);
}

#[test]
fn a_second_path_is_added_when_a_path_begins_to_vary() {
    // The first path is better than the second for five seconds, then its delay varies by 60 ms.
    let mut varies = link(400.0, 20, 0.0, 60, s(1000));
    varies.extra_delay[0].during = Some(Span::new(s(5), s(1000)).unwrap());
    let mut network = Network::new(
        vec![varies, link(400.0, 30, 0.0, 0, s(1000))],
        133,
        evidence(2, 133),
        1,
    );
    network.run_to(s(5));
    assert_eq!(network.code(), 0b01);
    network.run_to(s(12));
    assert!(network.code() & 0b10 != 0, "{:?}", network.policies());
    assert_eq!(
        network.damaged_frames(s(6), s(11)),
        0.0,
        "{:?}",
        network.policies()
    );
}

#[test]
fn the_second_path_returns_with_the_variation() {
    let mut paths = table_1(s(3));
    for link in &mut paths {
        let again = Some(Span::new(s(12), s(1000)).unwrap());
        link.extra_delay.push(ExtraDelay {
            during: again,
            ..link.extra_delay[0].clone()
        });
    }
    let mut network = Network::new(paths, 418, evidence(5, 418), 2);
    network.run_to(s(12));
    assert_eq!(network.code().count_ones(), 1, "{:?}", network.policies());
    network.run_to(s(13));
    assert_eq!(network.code() & 0b11, 0b11, "{:?}", network.policies());
    network.run_to(s(17));
    assert_eq!(network.code(), 0b11, "{:?}", network.policies());
}

#[test]
fn a_faster_path_that_misbehaves_leaves_the_slower_one_alone() {
    let fine = |delay_ms| link(400.0, delay_ms, 0.0, 0, Duration::MAX);
    let half_seconds = |n| Span::new(s(n), s(n) + Duration::from_millis(500)).unwrap();
    let late = Reorder {
        share: Probability::try_from(0.2).unwrap(),
        delay: Duration::from_millis(60),
    };
    let faults = [
        ("cut", with_cut(fine(20), s(0), s(100))),
        ("lossy-20", link(400.0, 20, 0.2, 0, Duration::MAX)),
        ("lossy-80", link(400.0, 20, 0.8, 0, Duration::MAX)),
        (
            "reordering-20",
            LinkConfig {
                reorder: Some(late),
                ..fine(20)
            },
        ),
        (
            "flapping",
            LinkConfig {
                cuts: (0..8).map(half_seconds).collect(),
                ..fine(20)
            },
        ),
    ];
    for (fault, faulty) in faults {
        let mut network = Network::new(vec![faulty, fine(35)], 133, evidence(2, 133), 1);
        network.run_to(s(8));
        assert_eq!(network.code(), 0b10, "{fault}: {:?}", network.policies());
        assert_eq!(network.damaged_frames(s(0), s(7)), 0.0, "{fault}");
    }
}
