//! For any bytes, the pull protocol and the decoder do not panic, and what they accept is within
//! its bounds and is encoded as it was decoded.

#[path = "support/checks.rs"]
mod checks;
#[path = "../../core/wire/tests/support/mutation.rs"]
mod mutation;

use checks::*;
use hawser_cloud::Performer;
use hawser_codec::pull::{HEADER_BYTES, REQUEST, REQUEST_BYTES, parse_request};
use hawser_codec::{Codec, Encoder};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

/// The first bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

proptest! {
    #[test]
    fn any_header_is_rejected_or_within_bounds(bytes: [u8; HEADER_BYTES]) {
        check_header(&bytes);
    }

    #[test]
    fn a_changed_header_is_rejected_or_within_bounds(
        at in 0..HEADER_BYTES,
        with in vec(any::<u8>(), 1..9),
    ) {
        let mut bytes = header().to_bytes();
        let end = (at + with.len()).min(HEADER_BYTES);
        bytes[at..end].copy_from_slice(&with[..end - at]);
        check_header(&bytes);
    }

    #[test]
    fn any_request_is_rejected_or_has_the_preamble(
        mut bytes: [u8; REQUEST_BYTES],
        known in 0..=REQUEST_BYTES,
    ) {
        bytes[..known].copy_from_slice(&REQUEST[..known]);
        prop_assert_eq!(parse_request(&bytes).is_ok(), bytes[..6] == REQUEST[..6]);
    }

    #[test]
    fn any_bytes_are_rejected_or_a_cloud(
        mut encoded in vec(any::<u8>(), 4..4000),
        points in 0..5000usize,
        with_magic: bool,
    ) {
        if with_magic {
            encoded[..4].copy_from_slice(&ZSTD_MAGIC);
        }
        check_decoder(points, &encoded);
    }

    #[test]
    fn a_changed_frame_is_rejected_or_a_cloud(changes in changes(), announced in 290..310usize) {
        let cloud = Performer::new(1, 300).cloud(Duration::ZERO);
        let encoded = changed(&Encoder::new(Codec::Zstd).encode(&cloud), &changes);
        check_decoder(cloud.len(), &encoded);
        check_decoder(announced, &encoded);
    }
}
