//! For any bytes, the pull protocol and the decoders do not panic, and what they accept is within
//! its bounds.

use crate::checks::*;
use crate::mutation::{changed, changes};
use hawser_cloud::{Cloud, MAX_POINTS, Performer, Point};
use hawser_codec::pull::{HEADER_BYTES, REQUEST, REQUEST_BYTES, parse_request};
use hawser_codec::{ChunkDecoder, ChunkEncoder, Decoder, Encoder, Setting, ZstdEncoder};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

/// The first bytes of a zstd frame (RFC 8878, section 3.1.1).
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Returns a chunk of the most points in the fewest bytes: all are the same.
fn shortest_chunk() -> Vec<u8> {
    let point = Point::at([1.0; 3], [7; 3]).unwrap();
    let cloud: Cloud = std::iter::repeat_n(point, 30_000).collect();
    let encoded = ChunkEncoder::default().encode(&cloud, Setting::BEST);
    let parts = encoded.parts().into_iter();
    let longest = parts.max_by_key(|part| [part[6], part[7]]).unwrap();
    assert!(longest.len() < 60, "{}", longest.len());
    longest.to_vec()
}

/// Returns the chunk with another number in its slice.
fn numbered(chunk: &[u8], number: usize) -> Vec<u8> {
    let mut chunk = chunk.to_vec();
    chunk[2..4].copy_from_slice(&(number as u16).to_be_bytes());
    chunk[4..6].copy_from_slice(&u16::MAX.to_be_bytes());
    chunk
}

#[test]
fn refused_chunks_count_as_points_of_their_frame() {
    let valid = shortest_chunk();
    // It is found only after all points have been decoded.
    let damaged = [&valid[..], &[0]].concat();
    let points = usize::from(u16::from_be_bytes([valid[6], valid[7]]));
    for (refused, found) in [(1, Some(points)), (MAX_POINTS / points, None)] {
        let chunks = (0..refused).map(|number| numbered(&damaged, number));
        let chunks: Vec<_> = chunks.chain([numbered(&valid, refused)]).collect();
        let parts: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
        let decoded = ChunkDecoder::new().decode(&parts);
        assert_eq!(decoded.ok().map(|cloud| cloud.len()), found, "{refused}");
    }
}

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
        mut compressed in vec(any::<u8>(), 4..4000),
        points in 0..5000usize,
        with_magic: bool,
    ) {
        if with_magic {
            compressed[..4].copy_from_slice(&ZSTD_MAGIC);
        }
        check_decompression(points, &compressed);
    }

    #[test]
    fn a_changed_cloud_is_rejected_or_a_cloud(changes in changes(), announced in 290..310usize) {
        let cloud = Performer::new(1, 300).cloud(Duration::ZERO);
        let compressed = changed(&ZstdEncoder::new().compress(&cloud), &changes);
        check_decompression(cloud.len(), &compressed);
        check_decompression(announced, &compressed);
    }

    #[test]
    fn any_parts_are_rejected_or_a_frame(
        mut parts in vec(vec(any::<u8>(), 1..400), 0..6),
        tags in vec(0u8..6, 6),
    ) {
        for (part, tag) in parts.iter_mut().zip(tags) {
            part[0] = tag;
        }
        check_parts(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }

    #[test]
    fn changed_parts_are_rejected_or_a_frame(
        changes in vec(changes(), 4),
        kept in vec(any::<bool>(), 30),
    ) {
        for frame in frames() {
            let parts = frame.parts().into_iter().zip(kept.iter().cycle());
            let parts: Vec<_> = parts.filter(|(_, kept)| **kept).map(|(part, _)| part).collect();
            let changed: Vec<_> = parts.iter().zip(changes.iter().cycle())
                .map(|(part, changes)| changed(part, changes))
                .collect();
            check_parts(&changed.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}
