//! An end of a session that is given any datagrams does not panic, counts what it rejects, and
//! delivers no packet that no datagram had room for. A parsed frame is within its bounds and is emitted as it was parsed.

use crate::checks::*;
use crate::configs::configs;
use crate::mutation::{changed, changes};
use hawser_xnc::Config;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn config() -> impl Strategy<Value = Config> {
    select(configs())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_datagrams_are_rejected_or_handled(
        config in config(),
        datagrams in vec(vec(any::<u8>(), 0..60), 1..40),
        longer in vec(any::<u8>(), 0..DATAGRAM_BYTES),
    ) {
        let datagrams: Vec<Vec<u8>> = datagrams.into_iter().chain([longer]).collect();
        check(&config, &datagrams);
    }

    #[test]
    fn any_frames_are_rejected_or_handled(
        config in config(),
        frames in vec((select(vec![1u8, 2, 63, 64]), vec(any::<u8>(), 0..60)), 1..20),
        controls in vec((0..4u8, vec(any::<u8>(), 0..60)), 1..20),
    ) {
        let frames = frames.into_iter().map(|(count, rest)| [&[count, 0, 1, 0, 0][..], &rest].concat());
        let controls = controls.into_iter().map(|(kind, rest)| [&[0, kind][..], &rest].concat());
        check(&config, &frames.chain(controls).collect::<Vec<_>>());
    }

    #[test]
    fn changed_datagrams_are_rejected_or_handled(
        config in config(),
        choices in vec((any::<Index>(), changes()), 1..30),
    ) {
        let valid = datagrams(&config);
        prop_assert!(!valid.is_empty());
        let received: Vec<Vec<u8>> = choices
            .iter()
            .map(|(choice, changes)| changed(choice.get::<Vec<u8>>(&valid), changes))
            .collect();
        check(&config, &received);
    }

    #[test]
    fn any_bytes_are_no_frame_or_within_bounds(bytes in vec(any::<u8>(), 0..DATAGRAM_BYTES)) {
        check_frame(&bytes);
    }

    #[test]
    fn short_bytes_are_no_frame_or_within_bounds(bytes in vec(any::<u8>(), 0..64)) {
        check_frame(&bytes);
    }

    #[test]
    fn a_changed_frame_is_rejected_or_within_bounds(
        changes in changes(),
        kind in 0..3usize,
    ) {
        check_frame(&changed(&frames()[kind], &changes));
    }
}
