//! The program and `core/dedup` are two writings of one specification.

mod support;

use hawser_bpf::bench::{Accepting, DedupBench};
use hawser_bpf::{Arrival, Receiver, ReceiverOptions, Verdict};
use hawser_dedup::Window;
use hawser_dedup::operations::{arrivals, operation, start};
use hawser_units::PathId;
use hawser_wire::{DEFAULT_PORT, Shim};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use support::*;

#[test]
fn both_say_the_same_of_random_traffic() {
    let receiver = receiver();
    let mut records = receiver.arrivals().unwrap();
    let inner = udp4("192.0.2.9", b"x");
    let mut fresh_flows = 8..1024;
    let mut runner = TestRunner::new(ProptestConfig { cases: 100, ..ProptestConfig::default() });
    let traffic = (start(), proptest::collection::vec(operation(), 1..12));
    // A case that fails runs again and again while it shrinks, so what is used up is in a cell.
    let state = std::cell::RefCell::new((&mut fresh_flows, &mut records));
    let agree = |(start, operations): (u64, Vec<_>)| {
        let (flows, records) = &mut *state.borrow_mut();
        let Some(index) = flows.next() else {
            return Err(TestCaseError::reject("no flow has an empty window any more"));
        };
        receiver.set_flow(flow(index), Some(&Default::default())).unwrap();
        let window = Window::new();
        let mut expected = Vec::new();
        for sequence in arrivals(start, &operations) {
            let shim = Shim { flow: flow(index), ..shim(path(0), sequence) };
            let frame = towards_here(path(0)).frame(&shim, &inner).unwrap();
            let passed = receiver.run(&frame, 1).unwrap().action == XDP_PASS;
            let verdict = window.observe(sequence);
            prop_assert_eq!(passed, verdict.accepts(), "{:#x}", sequence);
            expected.push((sequence, verdict));
        }
        let mut recorded = Vec::new();
        records.drain(&mut recorded);
        let recorded: Vec<_> = recorded.iter().map(|record| (record.sequence, record.verdict)).collect();
        prop_assert_eq!(recorded, expected);
        Ok(())
    };
    runner.run(&traffic, agree).unwrap();
}

/// Packets of a run: less than a ring of records holds, even if one CPU has to do the work of two.
const PACKETS: u64 = 30_000;

/// Runs that must really have been at the same time.
const ROUNDS: u32 = 10;

/// Two CPUs receive the copies of every packet, each those of one path and in an order of its own, as fast as the kernel
/// runs: so they keep meeting in the slots of the window.
#[test]
fn of_two_copies_on_two_cpus_one_passes() {
    let pins = Pins::new("two-cpus");
    let load = || {
        let options = ReceiverOptions { pins: Some(pins.0.clone()), ..receiver_options() };
        DedupBench::load(Receiver::load(&options).unwrap(), DEFAULT_PORT).unwrap()
    };
    let (mut one, mut other) = (load(), load());
    one.receiver().set_path(path(0), Some(HERE_V4.into())).unwrap();
    one.receiver().set_path(path(1), Some(HERE_V6.into())).unwrap();
    one.receiver().set_flow(flow(7), Some(&Default::default())).unwrap();
    let start = Instant::now();
    let mut met = 0;
    for first in (1..).map(|round| round << 40) {
        let barrier = Barrier::new(2);
        let receive = |bench: &mut DedupBench, by: PathId| {
            let mut sequences: Vec<u64> = (first..first + PACKETS).collect();
            sequences.shuffle(&mut ChaCha8Rng::seed_from_u64(first + by.index() as u64));
            let shims: Vec<Shim> = sequences.into_iter().map(|sequence| shim(by, sequence)).collect();
            let frame = replica(by, first, &udp4("192.0.2.9", b"x"));
            barrier.wait();
            bench.accept(Accepting::Accept, &frame, &shims).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| receive(&mut one, path(0)));
            scope.spawn(|| receive(&mut other, path(1)));
        });

        let mut records = Vec::new();
        one.arrivals().drain(&mut records);
        assert_eq!(records.len() as u64, 2 * PACKETS);
        met += u32::from(both_had_duplicates(&records));
        let mut copies: HashMap<u64, Vec<Verdict>> = HashMap::new();
        for record in records {
            copies.entry(record.sequence).or_default().push(record.verdict);
        }
        for (sequence, verdicts) in copies {
            let accepted = verdicts.iter().filter(|verdict| verdict.accepts()).count();
            let contended = verdicts.contains(&Verdict::Contended);
            assert!(accepted == 1 || contended && accepted == 2, "{sequence:#x}: {verdicts:?}");
        }
        if met == ROUNDS {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the two hardly ever work at the same time");
    }
}

/// Whether each path delivered packets that the other had delivered before: then both were at work.
fn both_had_duplicates(records: &[Arrival]) -> bool {
    let duplicates =
        |by| records.iter().any(|record| record.path == by && record.verdict == Verdict::Duplicate);
    duplicates(path(0)) && duplicates(path(1))
}

/// A directory of a bpf file system, removed in the end.
struct Pins(PathBuf);

impl Pins {
    fn new(name: &str) -> Self {
        Pins(bpf_file_system().join(format!("hawser-test-{}-{name}", std::process::id())))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}
