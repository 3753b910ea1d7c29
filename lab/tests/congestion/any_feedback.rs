//! Any feedback, true or not, leaves the rate of the paper's controller within its bounds and the windows
//! of bulk flows positive.

use crate::operations::{apply, ecn, number, operation};
use hawser_lab::rivals::{PaperConfig, PaperL4s, bulk};
use hawser_units::Instant;
use proptest::prelude::*;
use std::time::Duration;

proptest! {
    #[test]
    fn the_papers_controller_stays_within_its_bounds(
        operations in prop::collection::vec(operation(), 0..120),
    ) {
        let config = PaperConfig::default();
        apply(&mut PaperL4s::new(config, Instant::ZERO), &config.bounds, &operations);
    }

    #[test]
    fn bulk_senders_take_any_acknowledgement(
        acknowledgements in prop::collection::vec((number(), ecn(), 0u64..300_000_000), 0..200),
    ) {
        let mut prague = bulk::Sender::prague();
        let mut cubic = bulk::Sender::cubic();
        let mut now = Instant::ZERO;
        for (number, ecn, nanos) in acknowledgements {
            now += Duration::from_nanos(nanos);
            let acknowledgement = bulk::Acknowledgement { number, ecn };
            exercise(&mut prague, now, acknowledgement);
            exercise(&mut cubic, now, acknowledgement);
        }
    }
}

fn exercise<W: bulk::Window>(
    sender: &mut bulk::Sender<W>,
    now: Instant,
    acknowledgement: bulk::Acknowledgement,
) {
    sender.handle_timeout(now);
    while sender.poll_transmit(now).is_some() {}
    sender.handle_acknowledgement(now, acknowledgement);
    assert!(sender.window().segments() >= 1.0 && sender.window().segments().is_finite());
}
