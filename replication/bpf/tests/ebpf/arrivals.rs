//! One record for every copy, in the order of arrival, and counters that agree with them.

use crate::support::*;
use hawser_dedup::{SLOT_BITS, SLOTS};
use hawser_replication_bpf::{Receiver, ReceiverOptions, RxStats, Verdict};
use hawser_shim::Shim;
use hawser_units::PathSet;
use nix::sched::{CpuSet, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use std::time::Duration;

/// Sequence numbers after which the same slot of the window is reused.
const ROUND: u64 = SLOTS as u64 * SLOT_BITS;

/// Number of records in a ring.
const RING: u32 = 65_536;

#[test]
fn a_record_has_the_fields_of_the_shim_and_the_verdict() {
    let receiver = receiver();
    let mut arrivals = receiver.arrivals().unwrap();
    let inner = udp4("192.0.2.9", b"0123456789");
    let copies = [
        (path(1), 1 << 40, Verdict::Reset),
        (path(0), 1 << 40, Verdict::Duplicate),
        (path(0), (1 << 40) + 1, Verdict::First),
        (path(0), (1 << 40) + 16 * ROUND, Verdict::First),
        (path(1), (1 << 40) + 16 * ROUND, Verdict::Duplicate),
        (path(1), (1 << 40) + 15 * ROUND, Verdict::Late),
    ];
    for (by, sequence, _) in copies {
        receiver.run(&replica(by, sequence, &inner), 1).unwrap();
    }

    let mut records = Vec::new();
    arrivals.drain(&mut records);

    assert_eq!(records.len(), copies.len());
    for (record, (by, sequence, verdict)) in records.iter().zip(copies) {
        assert_eq!(
            (record.flow, record.path, record.sequence),
            (flow(7), by, sequence)
        );
        assert_eq!(
            (record.paths, record.epoch, record.sent_micros),
            (PathSet::from_bits(0b11), 3, 42)
        );
        assert_eq!(
            (record.verdict, usize::from(record.inner_bytes)),
            (verdict, inner.len()),
            "{sequence:#x}"
        );
    }
    assert!(records.is_sorted_by_key(|record| record.at));
    arrivals.drain(&mut records);
    assert_eq!(records.len(), copies.len(), "each is returned once");
    assert_eq!(arrivals.overflowed(), 0);
}

#[test]
fn the_counters_add_up_to_the_records() {
    let receiver = receiver();
    let mut arrivals = receiver.arrivals().unwrap();
    let mut records = Vec::new();
    let inner = udp4("192.0.2.9", b"0123456789");
    for sequence in [5, 5, 6, 1 << 30, 7, 8, 8, (1 << 30) - ROUND, 5].map(|n| (1 << 40) + n) {
        for by in [path(0), path(1)] {
            receiver.run(&replica(by, sequence, &inner), 1).unwrap();
        }
    }
    arrivals.drain(&mut records);
    for by in [path(0), path(1)] {
        let of_path = || records.iter().filter(|record| record.path == by);
        let count = |verdict| of_path().filter(|record| record.verdict == verdict).count() as u64;
        let expected = RxStats {
            packets: of_path().count() as u64,
            bytes: of_path().map(|record| u64::from(record.inner_bytes)).sum(),
            first: of_path().filter(|record| record.verdict.accepts()).count() as u64,
            duplicates: count(Verdict::Duplicate),
            late: count(Verdict::Late),
            reset: count(Verdict::Reset),
            contended: 0,
            tag_failures: 0,
            outdated: 0,
            expired: 0,
        };
        assert_eq!(receiver.stats(flow(7), by).unwrap(), expected);
        assert_eq!(expected.first + expected.duplicates, expected.packets);
    }
}

#[test]
fn a_full_ring_is_counted_and_keeps_its_oldest_records() {
    const TOO_MANY: u32 = 1000;
    let receiver = receiver();
    let mut arrivals = receiver.arrivals().unwrap();
    let duplicate = replica(path(0), 1 << 40, &udp4("192.0.2.9", b"x"));
    receiver.run(&duplicate, 1).unwrap();
    let mut records = Vec::new();
    arrivals.drain(&mut records);

    // Each CPU has a ring, and the kernel may move a long run to another CPU.
    let mut here = CpuSet::new();
    here.set(sched_getcpu().unwrap()).unwrap();
    sched_setaffinity(Pid::from_raw(0), &here).unwrap();
    receiver.run(&duplicate, RING + TOO_MANY).unwrap();

    assert_eq!(arrivals.overflowed(), u64::from(TOO_MANY));
    records.clear();
    arrivals.drain(&mut records);
    assert_eq!(records.len(), RING as usize);
    let total = u64::from(1 + RING + TOO_MANY);
    assert_eq!(
        receiver.stats(flow(7), path(0)).unwrap().packets,
        total,
        "the counters missed none"
    );
    receiver.run(&duplicate, 1).unwrap();
    arrivals.drain(&mut records);
    assert_eq!(records.len(), RING as usize + 1, "there is room again");
}

#[test]
fn rejected_copies_leave_no_record() {
    let receiver = receiver();
    let mut arrivals = receiver.arrivals().unwrap();
    let keys = ring(Some(&seal_key(1)), None);
    receiver.set_flow(flow(7), Some(&keys)).unwrap();
    let inner = udp4("192.0.2.9", b"x");
    receiver.run(&replica(path(0), 1 << 40, &inner), 1).unwrap();
    let unknown = Shim {
        flow: flow(8),
        ..shim(path(0), 1 << 40)
    };
    receiver
        .run(&towards_here(path(0)).frame(&unknown, &inner).unwrap(), 1)
        .unwrap();
    let mut records = Vec::new();
    arrivals.drain(&mut records);
    assert_eq!(records, []);
}

#[test]
fn a_transparent_copy_is_recorded_with_its_fingerprint() {
    let options = hawser_replication_bpf::ReceiverOptions {
        transparent_within: Duration::from_secs(3600),
        ..receiver_options()
    };
    let receiver = Receiver::load(&options).unwrap();
    receiver
        .select_transparent(prefix("192.0.2.0/24"), &[everything_of(7)])
        .unwrap();
    let mut arrivals = receiver.arrivals().unwrap();
    let packet = with_id(udp4("192.0.2.9", b"x"), 5);
    for by in [path(2), path(4)] {
        let copy = with_tos(packet.clone(), hawser_shim::transparent::tos(by, 0));
        receiver.run(&decapsulated(&copy), 1).unwrap();
    }
    let mut records = Vec::new();
    arrivals.drain(&mut records);
    let seen: Vec<_> = records
        .iter()
        .map(|record| (record.path, record.paths, record.verdict))
        .collect();
    let expected = [
        (path(2), PathSet::EMPTY, Verdict::First),
        (path(4), PathSet::EMPTY, Verdict::Duplicate),
    ];
    assert_eq!(seen, expected);
    assert_eq!(records[0].sequence, records[1].sequence);
    assert_ne!(records[0].sequence, 0);
}

/// Rings are large, and machines may have many CPUs that are never online.
#[test]
fn arrivals_on_a_cpu_without_a_ring_are_counted() {
    let cpus = hawser_io::sysctl::online_cpus().unwrap();
    let mut last = CpuSet::new();
    last.set(cpus as usize - 1).unwrap();
    sched_setaffinity(Pid::from_raw(0), &last).unwrap();
    for recording_cpus in [cpus, cpus - 1] {
        let receiver = Receiver::load(&ReceiverOptions {
            recording_cpus,
            ..receiver_options()
        })
        .unwrap();
        receiver.set_path(path(0), Some(HERE_V4.into())).unwrap();
        receiver
            .set_flow(flow(7), Some(&Default::default()))
            .unwrap();
        let mut arrivals = receiver.arrivals().unwrap();
        let frame = |sequence| replica(path(0), sequence, &udp4("192.0.2.9", b"x"));
        for sequence in [8, 9, 9] {
            receiver.run(&frame(sequence), 1).unwrap();
        }

        let mut records = Vec::new();
        arrivals.drain(&mut records);

        // The only CPU of a machine always has a ring.
        let has_ring = recording_cpus == cpus || cpus == 1;
        let expected = if has_ring { (3, 0) } else { (0, 3) };
        assert_eq!((records.len(), arrivals.overflowed()), expected);
        assert_eq!(receiver.stats(flow(7), path(0)).unwrap().packets, 3);
    }
}
