//! The program and `replication/dedup` implement the same specification.

use crate::operations::{Tagged, arrivals, operation, start, tagged_arrivals};
use crate::support::*;
use hawser_dedup::{Times, Window};
use hawser_replication_bpf::TaggedWindows;
use hawser_replication_bpf::Verdict;
use hawser_shim::Shim;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn both_agree_on_random_traffic() {
    let receiver = receiver();
    let mut records = receiver.arrivals().unwrap();
    let inner = udp4("192.0.2.9", b"x");
    let mut fresh_flows = 8..1024;
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        ..ProptestConfig::default()
    });
    let traffic = (start(), proptest::collection::vec(operation(), 1..12));
    // A failing case is repeated while it is shrunk, so the flows used up are counted in a cell.
    let state = std::cell::RefCell::new((&mut fresh_flows, &mut records));
    let agree = |(start, operations): (u64, Vec<_>)| {
        let (flows, records) = &mut *state.borrow_mut();
        let Some(index) = flows.next() else {
            return Err(TestCaseError::reject(
                "no flow with an empty window is left",
            ));
        };
        receiver
            .set_flow(flow(index), Some(&Default::default()))
            .unwrap();
        let window = Window::new();
        let mut expected = Vec::new();
        for sequence in arrivals(start, &operations) {
            let shim = Shim {
                flow: flow(index),
                ..shim(path(0), sequence)
            };
            let frame = towards_here(path(0)).frame(&shim, &inner).unwrap();
            let passed = receiver.run(&frame, 1).unwrap().action == XDP_PASS;
            let verdict = window.observe(sequence);
            prop_assert_eq!(passed, verdict.accepts(), "{:#x}", sequence);
            expected.push((sequence, verdict));
        }
        let mut recorded = Vec::new();
        records.drain(&mut recorded);
        let recorded: Vec<_> = recorded
            .iter()
            .map(|record| (record.sequence, record.verdict))
            .collect();
        prop_assert_eq!(recorded, expected);
        Ok(())
    };
    runner.run(&traffic, agree).unwrap();
}

/// The same for tagged flows, whose verdicts depend on times too.
#[test]
fn both_agree_on_random_tagged_traffic() {
    let windows = TaggedWindows::load().unwrap();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        ..ProptestConfig::default()
    });
    let operations = proptest::collection::vec(operation(), 1..12);
    let traffic = (
        start(),
        0..1u64 << 48,
        prop_oneof![Just(2_000_000), 1..100_000u32],
        operations,
    );
    let fresh_flows = std::cell::RefCell::new(0..1024);
    let agree = |(start, clock, max_age_micros, operations): (u64, u64, u32, Vec<_>)| {
        let Some(index) = fresh_flows.borrow_mut().next() else {
            return Err(TestCaseError::reject(
                "no flow with an empty window is left",
            ));
        };
        let window = Window::new();
        for packet in tagged_arrivals(start, clock, &operations) {
            let Tagged {
                sequence,
                sent_micros,
                now_micros,
            } = packet;
            let times = Times {
                sent_micros,
                now_micros,
                max_age_micros,
            };
            let verdict = windows.observe(flow(index), sequence, times).unwrap();
            prop_assert_eq!(
                verdict,
                Some(window.observe_tagged(sequence, times)),
                "{:x?}",
                packet
            );
        }
        Ok(())
    };
    runner.run(&traffic, agree).unwrap();
}

/// Fewer than a ring holds, even if one CPU has to process the packets of both.
const PACKETS: u64 = 30_000;

/// The maximum lead of one CPU over the other: small enough that they meet in the same slot of the
/// window.
const LEAD: u64 = 4;

/// Each CPU receives the copies of one path.
#[test]
fn one_of_two_copies_on_two_cpus_passes() {
    let receiver = receiver();
    let inner = udp4("192.0.2.9", b"x");
    let delivered = [AtomicU64::new(0), AtomicU64::new(0)];
    let deliver = |own: u8| {
        let (own_count, other_count) = (
            &delivered[usize::from(own)],
            &delivered[usize::from(1 - own)],
        );
        for number in 0..PACKETS {
            let frame = replica(path(own), (1 << 40) + number, &inner);
            while number > other_count.load(Ordering::Acquire) + LEAD {
                std::thread::yield_now();
            }
            receiver.run(&frame, 1).unwrap();
            own_count.store(number + 1, Ordering::Release);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| deliver(0));
        scope.spawn(|| deliver(1));
    });

    let mut records = Vec::new();
    receiver.arrivals().unwrap().drain(&mut records);
    let mut copies: HashMap<u64, Vec<Verdict>> = HashMap::new();
    for record in records {
        copies
            .entry(record.sequence)
            .or_default()
            .push(record.verdict);
    }
    assert_eq!(copies.len() as u64, PACKETS);
    for (sequence, verdicts) in copies {
        let accepted = verdicts.iter().filter(|verdict| verdict.accepts()).count();
        let contended = verdicts.contains(&Verdict::Contended);
        assert_eq!(verdicts.len(), 2, "{sequence:#x}: {verdicts:?}");
        assert!(
            accepted == 1 || contended && accepted == 2,
            "{sequence:#x}: {verdicts:?}"
        );
    }
}
