//! The bulk flows by themselves.

use crate::bulk::Bulk;
use crate::support::bottleneck::{Bottleneck, Marking};
use crate::support::network::{Network, path};
use crate::support::scenario::step_marking;
use crate::support::{mean, ms, percentile};
use hawser_lab::rivals::bulk;
use hawser_units::{ByteSize, Instant};

#[test]
fn prague_fills_a_link_with_a_short_queue() {
    let mut flow = Bulk::new(0, Instant::ZERO, bulk::Sender::prague());
    let class = step_marking(&[(ms(0), 100.0)]);
    Network::new(class, path(), path(), 1, vec![&mut flow]).run(ms(9000));
    let rate = flow.mbps(4.0, 9.0);
    let queue = percentile(flow.queue_ms(4.0, 9.0), 0.99);
    println!("{rate:.1} Mb/s, queue p99 {queue:.2} ms");
    assert!(rate >= 90.0);
    assert!(queue <= 2.0);
}

#[test]
fn cubic_fills_a_drop_tail_queue() {
    let mut flow = Bulk::new(0, Instant::ZERO, bulk::Sender::cubic());
    // One bandwidth-delay product.
    let class = Bottleneck::new(&[(ms(0), 100.0)], Marking::Never, ByteSize(250_000));
    let mut network = Network::new(class, path(), path(), 1, vec![&mut flow]);
    network.run(ms(12_000));
    let drops = network.bottleneck.drops;
    let rate = flow.mbps(4.0, 12.0);
    let queue = flow.queue_ms(4.0, 12.0);
    println!(
        "{rate:.1} Mb/s, {drops} drops, mean queue {:.1} ms",
        mean(&queue)
    );
    assert!(rate >= 95.0);
    assert!(drops > 0);
    assert!(percentile(queue, 0.99) >= 10.0);
}

#[test]
fn flows_of_one_kind_share_equally() {
    let rates = [
        share(bulk::Sender::prague, Marking::Step(ms(1))),
        share(bulk::Sender::cubic, Marking::Never),
    ];
    for [one, other] in rates {
        println!("{one:.1} and {other:.1} Mb/s");
        assert!(one + other >= 90.0);
        assert!((0.7..=1.4).contains(&(one / other)));
    }
}

fn share<W: bulk::Window>(sender: fn() -> bulk::Sender<W>, marking: Marking) -> [f64; 2] {
    let mut one = Bulk::new(0, Instant::ZERO, sender());
    let mut other = Bulk::new(1, Instant::ZERO + ms(1500), sender());
    let class = Bottleneck::new(&[(ms(0), 100.0)], marking, ByteSize(250_000));
    Network::new(class, path(), path(), 1, vec![&mut one, &mut other]).run(ms(30_000));
    [one, other].map(|flow| flow.mbps(15.0, 30.0))
}
