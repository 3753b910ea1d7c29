//! Benchmarks handling arrival records and judging packets:
//! `cargo bench -p hawser-pathset --bench arrivals`.
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
use std::time::Duration;

const PACKETS: u64 = 1_000_000;
const PACKETS_PER_SECOND: u64 = 100_000;
const PATHS: u64 = 5;

/// The additional delay of each path over the path before it. The first and the last path take
/// turns in being first, so that no judge removes a path before the end.
const SKEW: Duration = Duration::from_millis(20);

/// Records and packets are handled in batches, as the agent reads the kernel's rings.
const BATCH: usize = 1000;

/// The number of runs, of which the fastest counts: other load only slows a run down.
const ATTEMPTS: usize = 5;

fn main() {
    let records = records();
    for deadline in [50, 200, 500, 1000].map(Duration::from_millis) {
        let best = (0..ATTEMPTS)
            .map(|_| track(&records, deadline, |_| ()))
            .min();
        report(
            &format!("arrivals/{PATHS}-paths/deadline-{}ms", deadline.as_millis()),
            best,
        );
    }

    let mut packets = Vec::new();
    track(&records, Duration::from_millis(200), |packet| {
        packets.push(*packet)
    });
    let paths = PathSet::from_bits((1 << PATHS) - 1);
    let successive = || {
        let mut judge = Successive::new(SuccessiveConfig::default(), paths);
        let started = std::time::Instant::now();
        for batch in packets.chunks(BATCH) {
            batch.iter().for_each(|packet| judge.handle_packet(packet));
            judge.handle_timeout(batch[0].at);
        }
        started.elapsed()
    };
    report(
        "judging/successive",
        (0..ATTEMPTS).map(|_| successive()).min(),
    );
    let evidence = || {
        let mut judge = Evidence::new(EvidenceConfig::default(), paths);
        let started = std::time::Instant::now();
        for batch in packets.chunks(BATCH) {
            batch.iter().for_each(|packet| judge.handle_packet(packet));
            judge.handle_timeout(batch[0].at);
        }
        started.elapsed()
    };
    report("judging/evidence", (0..ATTEMPTS).map(|_| evidence()).min());
}

fn records() -> Vec<Arrival> {
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
    records
}

fn track(
    records: &[Arrival],
    deadline: Duration,
    mut judged: impl FnMut(&JudgedPacket),
) -> Duration {
    let mut tracker = Tracker::new(deadline);
    let started = std::time::Instant::now();
    for batch in records.chunks(BATCH) {
        batch
            .iter()
            .for_each(|record| tracker.handle_arrival(record));
        tracker.handle_timeout_with(batch[batch.len() - 1].at, &mut judged);
    }
    assert_eq!(tracker.judged_early(), 0);
    started.elapsed()
}

/// Prints the cost per record, and the share of a core that it takes.
fn report(case: &str, elapsed: Option<Duration>) {
    let per_record = elapsed.unwrap_or_default().as_nanos() as f64 / (PACKETS * PATHS) as f64;
    let share = per_record * (PACKETS_PER_SECOND * PATHS) as f64 / 1e9 * 100.0;
    println!(
        "{case}: {per_record:.1} ns per record, {share:.1} % of a core at {PACKETS_PER_SECOND} packets/s"
    );
}
