//! For any bytes, a parser does not panic, and what it accepts is within its bounds and is emitted
//! as it was parsed.

#[path = "support/checks.rs"]
mod checks;
#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use checks::*;
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;

/// The longest datagram on a path.
const MTU: usize = 1500;

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_within_bounds(bytes in vec(any::<u8>(), 0..MTU)) {
        check_all(&bytes);
    }

    #[test]
    fn short_bytes_are_rejected_or_within_bounds(bytes in vec(any::<u8>(), 0..64)) {
        check_all(&bytes);
    }

    #[test]
    fn a_changed_packet_of_media_is_rejected_or_within_bounds(changes in changes()) {
        let datagram = changed(&media_packet(), &changes);
        check_media(&datagram);
    }

    #[test]
    fn a_changed_payload_of_moq_is_rejected_or_within_bounds(changes in changes()) {
        check_carried(&changed(&carried(), &changes));
    }

    #[test]
    fn a_changed_report_is_rejected_or_within_bounds(changes in changes()) {
        check_report(&changed(&report(), &changes));
    }

    #[test]
    fn a_changed_message_is_rejected_or_within_bounds(
        changes in changes(),
        kind in 0..4usize,
        plaintext in 0..5usize,
    ) {
        check_message(&changed(&messages()[kind], &changes));
        check_plaintext(&changed(&plaintexts()[plaintext], &changes));
    }
}
