//! For any JSON and any text, messages, names, prefixes and tokens are parsed without a panic, and
//! what is accepted is within its bounds and is written as it was read.

#[path = "support/checks.rs"]
mod checks;
#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use checks::*;
use hawser_model::node::{Assignment, Registration, Report};
use hawser_model::tunnel::{Admitted, ServerReport, Servers};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_written_as_they_were_read(bytes in vec(any::<u8>(), 0..300)) {
        check_all(&bytes);
        check_text(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_changed_message_is_rejected_or_written_as_it_was_read(
        valid in select(MESSAGES.to_vec()),
        changes in changes(),
    ) {
        check_all(&changed(valid.as_bytes(), &changes));
    }

    #[test]
    fn deeply_nested_messages_are_rejected(depth in 0..20_000usize, is_object: bool) {
        let open = if is_object { "{\"paths\":" } else { "[" };
        let json = open.repeat(depth);
        prop_assert!(serde_json::from_str::<Report>(&json).is_err());
        prop_assert!(serde_json::from_str::<Assignment>(&json).is_err());
    }

    #[test]
    fn a_text_of_few_characters_is_rejected_or_within_bounds(
        text in vec(select(vec!['a', 'Z', '0', '9', '-', '.', ':', '/', ' ', '\u{e9}']), 0..70),
    ) {
        check_text(&text.into_iter().collect::<String>());
    }

    #[test]
    fn any_prefix_is_rejected_or_within_bounds(
        v4: [u8; 4],
        v6: [u8; 16],
        length in 0..140u32,
        zeros in 0..17usize,
    ) {
        let (mut v4, mut v6) = (v4, v6);
        v4[4_usize.saturating_sub(zeros)..].fill(0);
        v6[16_usize.saturating_sub(zeros)..].fill(0);
        check_text(&format!("{}/{length}", std::net::Ipv4Addr::from(v4)));
        check_text(&format!("{}/{length}", std::net::Ipv6Addr::from(v6)));
    }

    #[test]
    fn a_changed_token_is_rejected_or_written_as_it_was_read(changes in changes()) {
        let valid = format!("hawser1.edge-1.0123456789abcdef.{}.{}", "5e".repeat(32), "A0".repeat(32));
        let bytes = changed(valid.as_bytes(), &changes);
        check_text(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn the_unchanged_messages_are_accepted() {
    assert!(check::<Registration>(REGISTRATION.as_bytes()));
    assert!(check::<Assignment>(ASSIGNMENT.as_bytes()));
    assert!(check::<Report>(REPORT.as_bytes()));
    assert!(check::<Servers>(SERVERS.as_bytes()));
    assert!(check::<Admitted>(ADMITTED.as_bytes()));
    assert!(check::<ServerReport>(SERVER_REPORT.as_bytes()));
}
