//! The controller without L4S.

use crate::support::bottleneck::{Bottleneck, Marking};
use crate::support::scenario::run_alone;
use crate::support::{mean, ms, percentile};
use hawser_congestion::PragueConfig;
use hawser_units::{ByteSize, Ecn};

#[test]
fn without_l4s_packets_are_not_ecn_capable_and_loss_controls() {
    let config = PragueConfig {
        l4s: false,
        ..PragueConfig::default()
    };
    let class = Bottleneck::new(&[(ms(0), 60.0)], Marking::Never, ByteSize(75_000));
    let media = run_alone(crate::support::scenario::with(config), class, 1, ms(15_000));
    let rate = mean(&media.targets_between(5.0, 15.0));
    let queue = percentile(media.queue_ms(5.0, 15.0), 0.99);
    println!("{rate:.1} of 60 Mb/s, queue p99 {queue:.1} ms");
    assert_eq!(media.seen_ecn, vec![Ecn::NotEct]);
    assert!(media.control.stats().mark_responses == 0 && rate >= 30.0);
}
