//! Paths with other round-trip times.

use crate::bulk::Bulk;
use crate::support::network::{Network, path, path_of};
use crate::support::scenario::{paper_bounds, prague, step_marking};
use crate::support::{mean, ms};
use hawser_lab::rivals::bulk;
use hawser_units::Instant;

#[test]
fn the_share_hardly_depends_on_rtts_up_to_the_reference() {
    for delay in [1, 5, 12] {
        let mut media = prague(paper_bounds())(11);
        let mut rival = Bulk::new(1, Instant::ZERO + ms(3000), bulk::Sender::prague());
        let class = step_marking(&[(ms(0), 100.0)]);
        Network::new(class, path(), path(), 11, vec![&mut media, &mut rival])
            .with_path(0, &path_of(ms(delay)))
            .run(ms(16_000));
        let ours = mean(&media.targets_between(9.0, 16.0));
        let theirs = rival.mbps(9.0, 16.0);
        println!(
            "round trip {} ms: {ours:.1} beside {theirs:.1} Mb/s at 20 ms",
            2 * delay
        );
        assert!((0.6..=1.4).contains(&(ours / theirs)));
    }
}
