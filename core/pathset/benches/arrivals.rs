//! Cost of one arrival record: `cargo bench -p hawser-pathset`.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::disallowed_macros,
    reason = "a benchmark reads the clock and prints"
)]

use hawser_pathset::{Arrival, Tracker};
use hawser_units::{FlowId, Instant, PathId, PathSet};
use std::time::Duration;

const PACKETS: u64 = 1_000_000;
const PACKETS_PER_SECOND: u64 = 100_000;
const PATHS: u64 = 5;

/// How much later than on the path before it a packet arrives.
const SKEW: Duration = Duration::from_millis(20);

fn main() {
    let interval = Duration::from_secs(1) / PACKETS_PER_SECOND as u32;
    let mut records: Vec<Arrival> = (0..PACKETS)
        .flat_map(|packet| (0..PATHS).map(move |path| (packet, path)))
        .map(|(packet, path)| Arrival {
            at: Instant::ZERO + interval * packet as u32 + SKEW * path as u32,
            flow: FlowId::try_from(7).unwrap(),
            path: PathId::try_from(path as u8).unwrap(),
            paths: PathSet::from_bits((1 << PATHS) - 1),
            sequence: (u64::MAX - PACKETS / 2).wrapping_add(packet),
            epoch: 0,
            first: path == 0,
            sent_micros: 0,
            bytes: 1400,
        })
        .collect();
    records.sort_by_key(|record| record.at);

    for deadline in [50, 200, 1000].map(Duration::from_millis) {
        let mut tracker = Tracker::new(deadline);
        let started = std::time::Instant::now();
        // The agent empties the kernel's rings in batches.
        for batch in records.chunks(1024) {
            batch.iter().for_each(|record| tracker.handle_arrival(record));
            tracker.handle_timeout(batch[batch.len() - 1].at);
        }
        let elapsed = started.elapsed();
        assert_eq!(tracker.judged_early(), 0);
        let ns_per_record = elapsed.as_nanos() as f64 / records.len() as f64;
        println!(
            "arrivals/{PATHS}-paths/deadline-{}ms: {ns_per_record:.1} ns per record",
            deadline.as_millis()
        );
    }
}
