//! A media flow beside bulk flows that start after 5 s, in a class of 100 Mb/s.

use crate::bulk::Bulk;
use crate::support::network::{Flow, Network, path};
use crate::support::scenario::{FEW_SEEDS, SEEDS, paper_bounds, prague, step_marking};
use crate::support::{Random, mean, ms, percentile};
use hawser_lab::rivals::bulk;
use hawser_units::Instant;
use std::ops::RangeInclusive;

/// Returns the media flow's mean target, its queue p99 and the mean rate of a bulk flow, between 12
/// and 20 s.
fn beside(count: usize, seed: u64) -> (f64, f64, f64) {
    let mut media = prague(paper_bounds())(seed);
    let mut random = Random(seed);
    let start = |random: &mut Random| Instant::ZERO + ms(5000 + (300.0 * random.next()) as u64);
    let mut bulk: Vec<_> = (1..=count)
        .map(|flow| Bulk::new(flow, start(&mut random), bulk::Sender::prague()))
        .collect();
    let mut flows: Vec<&mut dyn Flow> = vec![&mut media];
    flows.extend(bulk.iter_mut().map(|flow| flow as &mut dyn Flow));
    let class = step_marking(&[(ms(0), 100.0)]);
    Network::new(class, path(), path(), seed, flows).run(ms(20_000));

    let target = mean(&media.targets_between(12.0, 20.0));
    let queue = percentile(media.queue_ms(12.0, 20.0), 0.99);
    let rates: Vec<f64> = bulk.iter().map(|flow| flow.mbps(12.0, 20.0)).collect();
    (target, queue, mean(&rates))
}

fn assert_share(count: usize, seeds: RangeInclusive<u64>, least: f64) {
    for seed in seeds {
        let (target, queue, bulk) = beside(count, seed);
        println!(
            "{count} flows, seed {seed}: {target:.1} Mb/s, bulk {bulk:.1}, queue p99 {queue:.2} ms"
        );
        let fair = 100.0 / (count + 1) as f64;
        assert!(target >= least, "at least {least}");
        assert!(target <= 1.2 * fair, "at most a fifth more than {fair}");
        assert!(bulk >= 0.8 * fair, "leaves the others their share");
    }
}

#[test]
fn one_bulk_prague_flow_leaves_most_of_the_fair_share() {
    assert_share(1, FEW_SEEDS, 40.0);
}

#[test]
fn two_bulk_prague_flows_leave_most_of_the_fair_share() {
    assert_share(2, FEW_SEEDS, 26.0);
}

#[test]
fn three_bulk_prague_flows_leave_20_mbps() {
    assert_share(3, SEEDS, 20.0);
}
