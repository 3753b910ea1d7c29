//! The checks of the pull protocol and the decoders, for the property tests and for `fuzz/`.

use hawser_cloud::{Digest, Level, MAX_POINTS, Performer};
use hawser_codec::pull::{FrameHeader, HEADER_BYTES};
use hawser_codec::zstd::max_compressed_bytes;
use hawser_codec::{
    ChunkDecoder, ChunkEncoder, Codec, Decoder, Encoded, Encoder, Setting, ZstdDecoder, ZstdEncoder,
};
use std::time::Duration;

pub(crate) fn header() -> FrameHeader {
    FrameHeader {
        number: 7,
        captured_ns: 1_700_000_000_123_456_789,
        level: Level::Fhd,
        codec: Codec::Zstd,
        points: 183_000,
        length: 690_000,
        digest: Digest(0xfeed_f00d_dead_beef),
    }
}

pub(crate) fn check_header(bytes: &[u8; HEADER_BYTES]) {
    if let Ok(header) = FrameHeader::parse(bytes) {
        let points = header.points as usize;
        assert!(points <= MAX_POINTS);
        assert!(header.length as usize <= max_compressed_bytes(points));
        assert_eq!(FrameHeader::parse(&header.to_bytes()), Ok(header));
    }
}

pub(crate) fn check_decompression(points: usize, compressed: &[u8]) {
    let mut decoder = ZstdDecoder::new();
    if let Ok(cloud) = decoder.decompress(points, compressed) {
        assert_eq!(cloud.len(), points);
        let again = ZstdEncoder::new().compress(&cloud);
        assert_eq!(decoder.decompress(points, &again), Ok(cloud));
    }
}

/// Returns frames of each codec.
pub(crate) fn frames() -> Vec<Encoded> {
    let cloud = Performer::new(1, 300).cloud(Duration::ZERO);
    vec![
        ZstdEncoder::new().encode(&cloud, Setting::BEST),
        ChunkEncoder::default().encode(&cloud, Setting::BEST),
    ]
}

/// Decodes parts with every decoder.
pub(crate) fn check_parts(parts: &[&[u8]]) {
    if let Ok(cloud) = ZstdDecoder::new().decode(parts) {
        assert!(cloud.len() <= MAX_POINTS);
    }
    let mut decoder = ChunkDecoder::new();
    if let Ok(cloud) = decoder.decode(parts) {
        assert!(cloud.len() <= MAX_POINTS);
        let report = decoder.report();
        assert!(report.decoded <= parts.len() && report.repaired <= parts.len());
        assert!(report.refused <= 2 * parts.len());
    }
}
