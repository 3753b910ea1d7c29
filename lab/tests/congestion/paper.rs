//! The paper's controller.

use crate::bulk::Bulk;
use crate::support::media::Media;
use crate::support::network::{Flow, Network, path};
use crate::support::scenario::step_marking;
use crate::support::{mean, ms};
use hawser_lab::rivals::{PAPER_SPREAD, PaperConfig, PaperL4s, bulk};
use hawser_units::Instant;

fn media(seed: u64) -> Media<PaperL4s> {
    let control = PaperL4s::new(PaperConfig::default(), Instant::ZERO);
    Media::new(0, control, PAPER_SPREAD, seed)
}

#[test]
fn it_grows_in_a_straight_line_and_halves_nothing_without_loss() {
    let mut media = media(1);
    let class = step_marking(&[(ms(0), 200.0)]);
    Network::new(class, path(), path(), 1, vec![&mut media]).run(ms(11_000));
    let reached = media.reached(89.9, 0.0).expect("reaches the maximum");
    let half = media.reached(51.25, 0.0).expect("reaches the middle");
    println!("the middle after {half:.1} s, the maximum after {reached:.1} s");
    assert!((9.0..=12.0).contains(&reached));
    assert!((0.45..=0.55).contains(&(half / reached)));
}

#[test]
fn bulk_prague_flows_push_it_down() {
    let mut media = media(1);
    let mut bulk: Vec<_> = (1..=3)
        .map(|flow| Bulk::new(flow, Instant::ZERO + ms(5000), bulk::Sender::prague()))
        .collect();
    let mut flows: Vec<&mut dyn Flow> = vec![&mut media];
    flows.extend(bulk.iter_mut().map(|flow| flow as &mut dyn Flow));
    let class = step_marking(&[(ms(0), 100.0)]);
    Network::new(class, path(), path(), 1, flows).run(ms(20_000));
    let target = mean(&media.targets_between(12.0, 20.0));
    println!("{target:.1} Mb/s against three; the paper has 12.5");
    assert!((12.5..20.0).contains(&target));
}
