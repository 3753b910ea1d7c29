//! Cost of one arrival record, alone and with the judges: `cargo bench -p hawser-pathset`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

use hawser_pathset::{
    Arrival, Evidence, EvidenceConfig, JudgedPacket, Successive, SuccessiveConfig, Tracker,
};
use hawser_units::{FlowId, Instant, PathId, PathSet};
use std::cell::RefCell;
use std::time::Duration;

const PACKETS: u64 = 1_000_000;
const PACKETS_PER_SECOND: u64 = 100_000;
const PATHS: u64 = 5;

/// How much later than on the path before it a packet arrives. The first and the last path take turns in being first, so
/// that no judge is done before the end.
const SKEW: Duration = Duration::from_millis(20);

fn main() {
    let interval = Duration::from_secs(1) / PACKETS_PER_SECOND as u32;
    let turn = |packet: u64, path: u64| ((path + packet % 2) % PATHS) as u32;
    let mut records: Vec<Arrival> = (0..PACKETS)
        .flat_map(|packet| (0..PATHS).map(move |path| (packet, path)))
        .map(|(packet, path)| Arrival {
            at: Instant::ZERO + interval * packet as u32 + SKEW * turn(packet, path),
            flow: FlowId::try_from(7).unwrap(),
            path: PathId::try_from(path as u8).unwrap(),
            paths: PathSet::from_bits((1 << PATHS) - 1),
            sequence: (u64::MAX - PACKETS / 2).wrapping_add(packet),
            epoch: 0,
            first: turn(packet, path) == 0,
            sent_micros: 0,
            bytes: 1400,
        })
        .collect();
    records.sort_by_key(|record| record.at);

    for deadline in [50, 200, 500, 1000].map(Duration::from_millis) {
        let case = format!("arrivals/{PATHS}-paths/deadline-{}ms", deadline.as_millis());
        measure(&case, &records, deadline, |_| (), |_| ());
    }

    let paths = PathSet::from_bits((1 << PATHS) - 1);
    let deadline = Duration::from_millis(500);
    let judge = RefCell::new(Successive::new(SuccessiveConfig::default(), paths));
    measure(
        "judging/successive",
        &records,
        deadline,
        |packet| judge.borrow_mut().handle_packet(packet),
        |now| judge.borrow_mut().handle_timeout(now),
    );
    let judge = RefCell::new(Evidence::new(EvidenceConfig::default(), paths));
    measure(
        "judging/evidence",
        &records,
        deadline,
        |packet| judge.borrow_mut().handle_packet(packet),
        |now| judge.borrow_mut().handle_timeout(now),
    );
}

/// Prints what a record costs, and what that is of a processor's time at the rate of the records.
fn measure(
    case: &str,
    records: &[Arrival],
    deadline: Duration,
    mut judged: impl FnMut(&JudgedPacket),
    mut passed: impl FnMut(Instant),
) {
    let mut tracker = Tracker::new(deadline);
    let started = std::time::Instant::now();
    // The agent empties the kernel's rings in batches.
    for batch in records.chunks(1024) {
        let now = batch[batch.len() - 1].at;
        batch.iter().for_each(|record| tracker.handle_arrival(record));
        tracker.handle_timeout_with(now, &mut judged);
        passed(now);
    }
    let elapsed = started.elapsed();
    assert_eq!(tracker.judged_early(), 0);
    let ns_per_record = elapsed.as_nanos() as f64 / records.len() as f64;
    let share = ns_per_record * (PACKETS_PER_SECOND * PATHS) as f64 / 1e9;
    println!(
        "{case}: {ns_per_record:.1} ns per record, {:.1} % of a core at {PACKETS_PER_SECOND} packets/s",
        share * 100.0
    );
}
