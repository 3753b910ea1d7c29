//! A classic AQM that marks, as RFC 3168 allows.

use crate::bulk::Bulk;
use crate::support::bottleneck::{Bottleneck, Marking};
use crate::support::network::{Flow, Network, path};
use crate::support::scenario::{FEW_SEEDS, SEEDS, paper_bounds, prague, step_marking};
use crate::support::{mean, ms};
use hawser_congestion::Bounds;
use hawser_lab::rivals::bulk;
use hawser_units::{Bitrate, ByteSize, Instant};

fn codel(mbps: f64) -> Bottleneck {
    Bottleneck::new(&[(ms(0), mbps)], Marking::Codel, ByteSize(2_000_000))
}

#[test]
fn a_classic_aqm_is_detected_and_its_marks_count_as_losses() {
    for seed in SEEDS {
        let mut media = prague(paper_bounds())(seed);
        let mut rival = Bulk::new(1, Instant::ZERO + ms(2000), bulk::Sender::cubic());
        Network::new(
            codel(50.0),
            path(),
            path(),
            seed,
            vec![&mut media, &mut rival],
        )
        .run(ms(20_000));
        let stats = media.control.stats();
        let ours = mean(&media.targets_between(8.0, 20.0));
        let theirs = rival.mbps(8.0, 20.0);
        println!("seed {seed}: {ours:.1} beside Cubic's {theirs:.1} Mb/s; {stats:?}");
        assert!(stats.classic_aqm && stats.halvings > 0);
        assert!(theirs >= 5.0, "does not starve a classic flow");
    }
}

#[test]
fn an_l4s_queue_is_never_taken_for_a_classic_one() {
    for seed in FEW_SEEDS {
        let mut media = prague(paper_bounds())(seed);
        let mut rival = Bulk::new(1, Instant::ZERO + ms(3000), bulk::Sender::prague());
        let class = step_marking(&[(ms(0), 100.0), (ms(5000), 20.0), (ms(8000), 100.0)]);
        Network::new(class, path(), path(), seed, vec![&mut media, &mut rival]).run(ms(12_000));
        let stats = media.control.stats();
        println!("seed {seed}: {stats:?}");
        assert_eq!(stats.halvings, 0);
    }
}

#[test]
fn in_a_queue_that_does_not_mark_neither_we_nor_cubic_starve() {
    let [lowest, initial, highest] = [1.0, 12.5, 90.0].map(Bitrate::from_mbps);
    for (queue_bytes, seed) in [125_000, 500_000].into_iter().zip([21, 22]) {
        let mut media = prague(Bounds::new(lowest, initial, highest))(seed);
        let mut rival = Bulk::new(1, Instant::ZERO + ms(2000), bulk::Sender::cubic());
        let queue = Bottleneck::new(&[(ms(0), 50.0)], Marking::Never, ByteSize(queue_bytes));
        Network::new(queue, path(), path(), seed, vec![&mut media, &mut rival]).run(ms(40_000));
        let ours = mean(&media.targets_between(10.0, 40.0));
        let theirs = rival.mbps(10.0, 40.0);
        println!("{queue_bytes} bytes of queue: {ours:.1} beside Cubic's {theirs:.1} Mb/s");
        assert!(theirs >= 15.0 && ours >= 4.0, "{ours} and {theirs}");
    }
}

#[test]
fn in_a_short_queue_that_cubic_fills_its_losses_are_answered() {
    let [lowest, initial, highest] = [1.0, 12.5, 90.0].map(Bitrate::from_mbps);
    for seed in FEW_SEEDS {
        let mut media = prague(Bounds::new(lowest, initial, highest))(seed);
        let mut rivals =
            [1, 2, 3].map(|flow| Bulk::new(flow, Instant::ZERO + ms(2000), bulk::Sender::cubic()));
        // 2 ms: no loss meets a delay of 3 ms.
        let queue = Bottleneck::new(&[(ms(0), 100.0)], Marking::Never, ByteSize(25_000));
        let mut flows: Vec<&mut dyn Flow> = vec![&mut media];
        flows.extend(rivals.iter_mut().map(|rival| rival as &mut dyn Flow));
        Network::new(queue, path(), path(), seed, flows).run(ms(40_000));
        let ours = mean(&media.targets_between(10.0, 40.0));
        let theirs = rivals.each_ref().map(|rival| rival.mbps(10.0, 40.0));
        let stats = media.control.stats();
        println!("seed {seed}: {ours:.1} beside Cubic's {theirs:.1?} Mb/s; {stats:?}");
        assert!(theirs.iter().all(|mbps| *mbps >= 10.0), "{theirs:.1?}");
    }
}
