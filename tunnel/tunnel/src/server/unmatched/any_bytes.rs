//! Any datagram is inspected without a panic and counted at most once.

use super::{LONG, MIN_INITIAL_BYTES, UnmatchedDatagrams};
use crate::quic::SERVER_ID_BYTES;
use proptest::collection::vec;
use proptest::prelude::*;

/// The beginning of an Initial packet of QUIC version 1: first byte, version, and connection IDs
/// of 8 bytes.
const INITIAL: [u8; 23] = [
    0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 1, 2, 3, 4, 5, 6, 7, 8,
];

/// Returns the number of times that a datagram was counted.
fn count(datagram: &[u8]) -> u64 {
    let unmatched = UnmatchedDatagrams::default();
    unmatched.inspect(datagram);
    unmatched.drop_counts().map(|(_, count)| count).sum()
}

proptest! {
    #[test]
    fn any_datagram_is_counted_at_most_once(
        datagram in vec(any::<u8>(), 0..100),
        is_long: bool,
    ) {
        let mut datagram = datagram;
        if let Some(first) = datagram.first_mut().filter(|_| is_long) {
            *first |= LONG;
        }
        let has_short_header = datagram.first().is_some_and(|first| first & LONG == 0);
        let is_short = has_short_header && datagram.len() > SERVER_ID_BYTES;
        prop_assert!(count(&datagram) <= u64::from(!is_short));
    }

    #[test]
    fn any_initial_packet_is_counted_at_most_once(
        at in 0..INITIAL.len(),
        byte: u8,
        rest in vec(any::<u8>(), 0..60),
        is_padded: bool,
    ) {
        let mut datagram = [&INITIAL[..], &rest].concat();
        datagram[at] = byte;
        if is_padded {
            datagram.resize(MIN_INITIAL_BYTES, 0);
        }
        prop_assert!(count(&datagram) <= 1);
    }
}
