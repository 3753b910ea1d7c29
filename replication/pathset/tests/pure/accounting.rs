//! Every copy that arrives is accounted for, in whatever order the records are handled.

use hawser_pathset::{Arrival, FlowTotals, MAX_PENDING, PathTotals, Tracker};
use hawser_units::{ByteSize, FlowId, Instant, PathId, PathSet};
use proptest::prelude::*;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const DEADLINE: Duration = Duration::from_millis(100);
const FLOWS: u16 = 3;

/// The fate of one packet: its flow, the policy, and the path and delay of each copy, the earliest
/// first.
#[derive(Debug, Clone)]
struct Fate {
    flow: u16,
    paths: u8,
    copies: Vec<(u8, u64)>,
}

fn fate() -> impl Strategy<Value = Fate> {
    let delay_micros = prop_oneof![4 => 0..2_000u64, 2 => 0..150_000u64, 1 => Just(100_000)];
    let copies = proptest::collection::vec((0..8u8, delay_micros), 1..8);
    (0..FLOWS, any::<u8>(), copies).prop_map(|(flow, paths, mut copies)| {
        copies.sort_by_key(|(_, delay)| *delay);
        // A duplicate by the same path after the deadline may count as late or as repeated.
        let first_delay = copies[0].1;
        let mut seen = BTreeSet::new();
        copies.retain(|(path, delay)| seen.insert(*path) || delay - first_delay < 100_000);
        Fate {
            flow,
            paths,
            copies,
        }
    })
}

/// Returns the records of one packet per millisecond for each fate, in order of time.
fn records(start: u64, fates: &[Fate]) -> Vec<Arrival> {
    let mut records = Vec::new();
    for (n, fate) in (0..).zip(fates) {
        for (i, (path, delay)) in fate.copies.iter().enumerate() {
            records.push(Arrival {
                at: Instant::from_nanos((n * 1_000 + delay) * 1_000),
                flow: FlowId::try_from(fate.flow).unwrap(),
                path: PathId::try_from(*path).unwrap(),
                paths: PathSet::from_bits(fate.paths),
                sequence: start.wrapping_add(n),
                epoch: 0,
                first: i == 0,
                sent_micros: 0,
                bytes: 100,
            });
        }
    }
    records.sort_by_key(|record| record.at);
    records
}

fn settle(tracker: &mut Tracker) {
    while let Some(due) = tracker.poll_timeout() {
        tracker.handle_timeout(due);
    }
}

/// Computes the same totals in the simplest way.
fn expected(fates: &[Fate]) -> BTreeMap<u16, FlowTotals> {
    let mut flows = BTreeMap::<u16, FlowTotals>::new();
    for fate in fates {
        let flow = flows.entry(fate.flow).or_default();
        let (first, first_delay) = fate.copies[0];
        let mut earliest = BTreeMap::new();
        for (path, delay) in &fate.copies {
            flow.paths[usize::from(*path)].arrivals += 1;
            flow.paths[usize::from(*path)].bytes += ByteSize(100);
            match earliest.entry(*path) {
                Entry::Vacant(entry) => _ = entry.insert(delay - first_delay),
                Entry::Occupied(_) => flow.paths[usize::from(*path)].repeated += 1,
            }
        }
        earliest.remove(&first);
        let in_time: Vec<u8> = earliest
            .iter()
            .filter(|(_, skew)| **skew < 100_000)
            .map(|(path, _)| *path)
            .collect();
        flow.packets += 1;
        flow.paths[usize::from(first)].first += 1;
        flow.paths[usize::from(first)].only += u64::from(in_time.is_empty());
        for path in 0..8 {
            let expected = fate.paths >> path & 1 == 1 && path != first;
            let totals = &mut flow.paths[usize::from(path)];
            totals.late += u64::from(earliest.get(&path).is_some_and(|skew| *skew >= 100_000));
            totals.missing += u64::from(expected && !in_time.contains(&path));
        }
    }
    flows
}

/// Returns the number of skews, and the totals without the skews, which `expected` does not count.
fn without_skews(totals: &PathTotals) -> (u64, PathTotals) {
    (
        totals.skew.total(),
        PathTotals {
            skew: Default::default(),
            ..totals.clone()
        },
    )
}

proptest! {
    #[test]
    fn every_copy_is_counted_once_for_what_it_was(
        start: u64,
        fates in proptest::collection::vec(fate(), 1..300),
        batch in 1..50usize,
    ) {
        let mut tracker = Tracker::new(DEADLINE);
        for records in records(start, &fates).chunks(batch) {
            records.iter().for_each(|record| tracker.handle_arrival(record));
            tracker.handle_timeout(records.last().unwrap().at);
        }
        settle(&mut tracker);

        prop_assert_eq!(tracker.judged_early(), 0);
        let expected = expected(&fates);
        for flow in 0..FLOWS {
            let totals = tracker.flow(FlowId::try_from(flow).unwrap());
            prop_assert_eq!(totals.is_some(), expected.contains_key(&flow));
            let Some(totals) = totals else { continue };
            prop_assert_eq!(totals.packets, expected[&flow].packets);
            for (got, want) in totals.paths.iter().zip(&expected[&flow].paths) {
                let (skews, got) = without_skews(got);
                prop_assert_eq!(&got, want);
                prop_assert_eq!(got.arrivals, got.first + skews + got.late + got.repeated);
            }
        }
    }

    #[test]
    fn the_order_of_records_does_not_matter(
        start: u64,
        fates in proptest::collection::vec(fate(), 1..40),
        seed in proptest::collection::vec(any::<u64>(), 300),
    ) {
        let in_order = records(start, &fates);
        let mut shuffled: Vec<_> = in_order.iter().zip(&seed).collect();
        shuffled.sort_by_key(|(_, key)| **key);
        let count = |records: &mut dyn Iterator<Item = &Arrival>| {
            let mut tracker = Tracker::new(DEADLINE);
            records.for_each(|record| tracker.handle_arrival(record));
            settle(&mut tracker);
            (0..FLOWS).map(|flow| tracker.flow(FlowId::try_from(flow).unwrap()).cloned()).collect::<Vec<_>>()
        };
        let shuffled = count(&mut shuffled.into_iter().map(|(record, _)| record));
        let in_order = count(&mut in_order.iter().take(seed.len()));
        prop_assert_eq!(shuffled, in_order);
    }
}

#[test]
fn memory_is_bounded_and_early_judgements_are_counted() {
    let mut tracker = Tracker::new(Duration::from_secs(3600));
    let flows = [5, 6, 7, 8].map(|flow| FlowId::try_from(flow).unwrap());
    let rounds = MAX_PENDING as u64 / flows.len() as u64 + 250;
    for n in 0..rounds {
        for flow in flows {
            tracker.handle_arrival(&Arrival {
                at: Instant::from_nanos(n),
                flow,
                path: PathId::try_from(0).unwrap(),
                paths: PathSet::from_bits(0b11),
                sequence: n,
                epoch: 0,
                first: true,
                sent_micros: 0,
                bytes: 1,
            });
        }
    }
    assert_eq!(tracker.judged_early(), 1000);
    settle(&mut tracker);
    assert!(
        flows
            .iter()
            .all(|flow| tracker.flow(*flow).unwrap().packets == rounds)
    );
}

#[test]
fn a_new_session_of_the_sender_is_counted_like_the_old_one() {
    let flow = FlowId::try_from(0).unwrap();
    let mut tracker = Tracker::new(DEADLINE);
    for (session, start) in (0..).zip([1_000, 1 << 50, 77, u64::MAX - 20]) {
        for n in 0..50 {
            for path in 0..2u8 {
                tracker.handle_arrival(&Arrival {
                    at: Instant::ZERO + DEADLINE * 2 * session + Duration::from_millis(n),
                    flow,
                    path: PathId::try_from(path).unwrap(),
                    paths: PathSet::from_bits(0b11),
                    sequence: u64::wrapping_add(start, n),
                    epoch: 0,
                    first: path == 0,
                    sent_micros: 0,
                    bytes: 1,
                });
            }
        }
        tracker.handle_timeout(Instant::ZERO + DEADLINE * 2 * (session + 1));
    }
    let totals = tracker.flow(flow).unwrap();
    assert_eq!(
        (
            totals.packets,
            totals.paths[0].first,
            totals.paths[1].skew.total()
        ),
        (200, 200, 200)
    );
    assert_eq!(
        (
            totals.paths[0].missing,
            totals.paths[1].missing,
            tracker.judged_early()
        ),
        (0, 0, 0)
    );
}
