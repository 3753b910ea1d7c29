//! The checks of the pull protocol and the decoder, for the property tests and for `fuzz/`.

use hawser_cloud::{Digest, Level, MAX_POINTS};
use hawser_codec::pull::{FrameHeader, HEADER_BYTES};
use hawser_codec::{Codec, Decoder, Encoder};

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
        assert!(header.length as usize <= header.codec.max_encoded_bytes(points));
        assert_eq!(FrameHeader::parse(&header.to_bytes()), Ok(header));
    }
}

pub(crate) fn check_decoder(points: usize, encoded: &[u8]) {
    let mut decoder = Decoder::new();
    if let Ok(cloud) = decoder.decode(Codec::Zstd, points, encoded) {
        assert_eq!(cloud.len(), points);
        let again = Encoder::new(Codec::Zstd).encode(&cloud);
        assert_eq!(decoder.decode(Codec::Zstd, points, &again), Ok(cloud));
    }
}
