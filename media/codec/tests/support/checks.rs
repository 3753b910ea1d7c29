//! The checks of the pull protocol and the decoders, for the property tests and for `fuzz/`.

use hawser_cloud::{
    Camera, Digest, Extrinsics, Intrinsics, Level, MAX_PIXELS, MAX_POINTS, Performer, View,
};
use hawser_codec::pull::{FrameHeader, HEADER_BYTES};
use hawser_codec::rgbd::Layers;
use hawser_codec::zstd::max_compressed_bytes;
use hawser_codec::{
    ChunkDecoder, ChunkEncoder, Codec, Decoder, DracoDecoder, DracoEncoder, Encoded, Encoder,
    Frame, FrameDecoder, PartialCloud, RgbdDecoder, RgbdEncoder, Setting, ZstdDecoder, ZstdEncoder,
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
        DracoEncoder::new().encode(&cloud, Setting::BEST),
        RgbdEncoder::new(Layers::One).encode(&view(), Setting::BEST),
        RgbdEncoder::new(Layers::Two).encode(&view(), Setting::BEST),
    ]
}

/// Returns a small view of a ball.
pub(crate) fn view() -> View {
    let (width, height) = (45, 37);
    let intrinsics = Intrinsics {
        width,
        height,
        fx: 50.0,
        fy: 50.0,
        cx: 22.0,
        cy: 18.0,
    };
    let extrinsics = Extrinsics {
        rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        translation_mm: [0.0; 3],
    };
    let pixels = 0..width * height;
    let square = |at: usize| (at / width).abs_diff(18).pow(2) + (at % width).abs_diff(22).pow(2);
    let depth = pixels.clone().map(|at| {
        if square(at) < 200 {
            800 + square(at) as u16
        } else {
            0
        }
    });
    let color = pixels.flat_map(|at| [at as u8, 128, 200]);
    let camera = Camera {
        intrinsics,
        extrinsics,
    };
    View::new(camera, 1.0, color.collect(), depth.collect()).expect("images of the camera's size")
}

/// Decodes parts with every decoder.
pub(crate) fn check_parts(parts: &[&[u8]]) {
    if let Ok(cloud) = ZstdDecoder::new().decode(parts) {
        assert!(cloud.len() <= MAX_POINTS);
    }
    if let Ok(view) = RgbdDecoder::new().decode(parts) {
        assert!(view.depth().len() <= MAX_PIXELS);
        assert_eq!(view.color().len(), 3 * view.depth().len());
    }
    if let Ok(cloud) = DracoDecoder::new().decode(parts) {
        assert!(cloud.len() <= MAX_POINTS);
    }
    let mut decoder = ChunkDecoder::new();
    if let Ok(cloud) = decoder.decode(parts) {
        assert!(cloud.len() <= MAX_POINTS);
        let report = decoder.report();
        assert!(report.decoded <= parts.len() && report.repaired <= parts.len());
        assert!(report.refused <= 2 * parts.len());
    }
    let most = FrameDecoder::max_points(&PartialCloud::default(), parts);
    if let Ok(frame) = FrameDecoder::new().decode(parts) {
        assert!(size(&frame) <= most);
    }
    let mut ahead = PartialCloud::default();
    for part in parts.iter().step_by(2) {
        decoder.decode_ahead(&mut ahead, part);
    }
    let most = FrameDecoder::max_points(&ahead, parts);
    if let Ok(frame) = FrameDecoder::new().complete(ahead.clone(), parts) {
        assert!(size(&frame) <= most);
    }
    if let Ok(cloud) = decoder.complete(ahead, parts) {
        assert!(cloud.len() <= MAX_POINTS);
    }
}

/// Returns the number of points, or of the pixels of a view.
pub(crate) fn size(frame: &Frame) -> usize {
    match frame {
        Frame::Cloud(cloud) => cloud.len(),
        Frame::View(view) => view.depth().len(),
    }
}
