//! Every packet sent is reported once, in sequence order, unless it is no evidence.

use hawser_pathset::{Arrival, JudgedPacket, Tracker};
use hawser_units::{FlowId, Instant, PathId, PathSet};
use proptest::prelude::*;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_millis(100);

fn ms(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

fn arrival(at: Instant, sequence: u64, over: u8, first: bool) -> Arrival {
    Arrival {
        at,
        flow: FlowId::try_from(3).unwrap(),
        path: path(over),
        paths: PathSet::from_bits(0b11),
        sequence,
        epoch: 7,
        first,
        sent_micros: 0,
        bytes: 1000,
    }
}

/// Handles first copies on path 1 at the given times with the given numbers, fires the timeout
/// every 10 ms, and collects the reported packets.
fn report(firsts: &[(u64, u64)]) -> Vec<JudgedPacket> {
    let mut tracker = Tracker::new(DEADLINE);
    let mut reported = Vec::new();
    let end = firsts.iter().map(|(at, _)| at / 10).max().unwrap() + 12;
    for tick in 0..end {
        let due = |(at, _): &&(u64, u64)| at / 10 == tick;
        for (at, sequence) in firsts.iter().filter(due) {
            tracker.handle_arrival(&arrival(ms(*at), *sequence, 0, true));
        }
        tracker.handle_timeout_with(ms(tick * 10 + 9), |packet| reported.push(*packet));
    }
    reported
}

fn numbers(packets: &[JudgedPacket]) -> Vec<(u64, bool)> {
    packets
        .iter()
        .map(|packet| (packet.sequence, packet.is_gap()))
        .collect()
}

#[test]
fn a_packet_is_reported_with_the_skew_of_each_copy() {
    let mut tracker = Tracker::new(DEADLINE);
    tracker.handle_arrival(&arrival(ms(7), 5, 1, false));
    tracker.handle_arrival(&arrival(ms(3), 5, 0, true));
    let mut reported = Vec::new();
    tracker.handle_timeout_with(ms(102), |packet| reported.push(*packet));
    assert!(reported.is_empty());

    tracker.handle_timeout_with(ms(107), |packet| reported.push(*packet));
    let packet = reported[0];
    assert_eq!((packet.at, packet.sequence, packet.epoch), (ms(3), 5, 7));
    assert_eq!(
        (packet.first, packet.skew(path(0))),
        (Some(path(0)), Some(Duration::ZERO))
    );
    assert_eq!(packet.skew(path(1)), Some(Duration::from_millis(4)));
    assert_eq!(
        packet.within(Duration::from_millis(4)),
        PathSet::from_bits(0b01)
    );
    assert_eq!(
        packet.within(Duration::from_micros(4001)),
        PathSet::from_bits(0b11)
    );
}

#[test]
fn a_number_of_which_no_copy_came_is_a_gap() {
    let packets = report(&[(0, u64::MAX - 1), (1, u64::MAX), (5, 2), (6, 3)]);
    let expected = [
        (u64::MAX - 1, false),
        (u64::MAX, false),
        (0, true),
        (1, true),
        (2, false),
        (3, false),
    ];
    assert_eq!(numbers(&packets), expected);
    assert_eq!(
        (packets[2].sent, packets[2].at),
        (PathSet::from_bits(0b11), ms(5))
    );
    assert_eq!(packets[2].within(Duration::MAX), PathSet::EMPTY);
}

#[test]
fn a_gap_between_probes_was_sent_over_the_paths_of_the_policy() {
    let (usual, probe) = (PathSet::from_bits(0b01), PathSet::from_bits(0b11));
    let mut tracker = Tracker::new(DEADLINE);
    let sent = [
        (0, probe, 7),
        (1, usual, 7),
        (8, probe, 7),
        (16, probe, 7),
        (18, probe, 8),
        (20, probe, 8),
    ];
    for (n, paths, epoch) in sent {
        tracker.handle_arrival(&Arrival {
            paths,
            epoch,
            ..arrival(ms(n), n, 1, true)
        });
    }
    let mut gaps = Vec::new();
    tracker.handle_timeout_with(ms(1000), |packet| {
        gaps.extend(packet.is_gap().then_some(*packet))
    });
    let sent_over = |n: u64| gaps.iter().find(|gap| gap.sequence == n).unwrap().sent;
    assert_eq!([2, 9, 15, 17].map(sent_over), [usual; 4]);
    assert_eq!(sent_over(19), probe);
}

#[test]
fn a_packet_that_was_overtaken_is_no_gap() {
    let packets = report(&[(0, 10), (20, 13), (60, 11), (119, 12), (121, 14)]);
    assert_eq!(
        numbers(&packets),
        [
            (10, false),
            (11, false),
            (12, false),
            (13, false),
            (14, false)
        ]
    );
}

#[test]
fn a_gap_that_fills_after_the_deadline_stays_one() {
    let packets = report(&[(0, 10), (20, 12), (140, 11), (150, 13)]);
    assert_eq!(
        numbers(&packets),
        [(10, false), (11, true), (12, false), (13, false)]
    );
}

#[test]
fn a_new_session_is_no_gap() {
    let packets = report(&[(0, 10), (10, 1 << 40), (20, (1 << 40) + 2), (30, 5_000_000)]);
    let expected = [
        (10, false),
        (1 << 40, false),
        ((1 << 40) + 1, true),
        ((1 << 40) + 2, false),
        (5_000_000, false),
    ];
    assert_eq!(numbers(&packets), expected);
}

#[test]
fn packets_without_path_sets_have_no_gaps() {
    let mut tracker = Tracker::new(DEADLINE);
    for sequence in [10, 13] {
        let arrival = Arrival {
            paths: PathSet::EMPTY,
            ..arrival(ms(sequence), sequence, 0, true)
        };
        tracker.handle_arrival(&arrival);
    }
    let mut reported = Vec::new();
    tracker.handle_timeout_with(ms(200), |packet| reported.push(*packet));
    assert_eq!(numbers(&reported), [(10, false), (13, false)]);
}

#[test]
fn packets_of_which_records_may_have_been_lost_are_no_evidence() {
    let mut tracker = Tracker::new(DEADLINE);
    for n in [0, 1, 2, 5, 6] {
        tracker.handle_arrival(&arrival(ms(n * 10), n, 0, true));
    }
    tracker.handle_lost_records(ms(55));
    for n in [7, 9] {
        tracker.handle_arrival(&arrival(ms(n * 10), n, 0, true));
    }
    let mut reported = Vec::new();
    tracker.handle_timeout_with(ms(1000), |packet| reported.push(*packet));
    assert_eq!(
        numbers(&reported),
        [(6, false), (7, false), (8, true), (9, false)]
    );
    assert_eq!(
        tracker.flow(FlowId::try_from(3).unwrap()).unwrap().packets,
        7
    );
}

proptest! {
    #[test]
    fn all_numbers_are_reported_in_order(
        start: u64,
        delays in proptest::collection::vec(prop_oneof![9 => (0..60u64).prop_map(Some), 1 => Just(None)], 2..200),
    ) {
        let firsts: Vec<_> = (0..).zip(&delays).filter_map(|(n, delay)| Some((n + delay.as_ref()?, start.wrapping_add(n)))).collect();
        prop_assume!(!firsts.is_empty());
        let mut by_time = firsts.clone();
        by_time.sort_unstable();
        let packets = report(&by_time);

        // Numbers before that of the first arrival in time are left out.
        let begin = packets[0].sequence.wrapping_sub(start);
        let end = firsts.last().unwrap().1.wrapping_sub(start);
        let expected: Vec<_> =
            (begin..=end).map(|n| (start.wrapping_add(n), delays[n as usize].is_none())).collect();
        prop_assert_eq!(numbers(&packets), expected);
    }
}
