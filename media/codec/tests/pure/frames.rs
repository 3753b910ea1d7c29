//! Frames of every codec by their tags, and the bytes of version 1.

#[allow(dead_code, reason = "the checks are those of other tests")]
use crate::checks;

use hawser_cloud::{Cloud, Performer, Point};
use hawser_codec::{
    ChunkDecoder, ChunkEncoder, Codec, DecodeError, Decoder, DracoEncoder, Encoder, Frame,
    FrameDecoder, PartialCloud, Setting, ZstdEncoder,
};
use std::time::Duration;

#[test]
fn each_frame_is_decoded_by_its_tag() {
    let mut decoder = FrameDecoder::new();
    for encoded in checks::frames() {
        let tag = encoded.codec.tag();
        assert!(encoded.parts().iter().all(|part| part[0] == tag));
        assert_eq!(Codec::from_tag(tag), Some(encoded.codec));
        let frame = decoder.decode(&encoded.parts()).unwrap();
        match encoded.codec {
            Codec::Rgbd => assert!(matches!(frame, Frame::View(_))),
            _ => assert!(matches!(frame, Frame::Cloud(cloud) if cloud.len() == 300)),
        }
    }
}

#[test]
fn the_size_of_a_frame_is_known_before_it_is_decoded() {
    for encoded in checks::frames() {
        let parts = encoded.parts();
        let most = FrameDecoder::max_points(&PartialCloud::default(), &parts);
        let frame = FrameDecoder::new().decode(&parts).unwrap();
        assert_eq!(most, checks::size(&frame), "{:?}", encoded.codec);
    }
    assert_eq!(FrameDecoder::max_points(&PartialCloud::default(), &[]), 0);
}

#[test]
fn a_chunk_that_is_repaired_may_be_the_largest_one() {
    let cloud = Performer::new(1, 5000).cloud(Duration::ZERO);
    let encoded = ChunkEncoder::default().encode(&cloud, Setting::BEST);
    let parts = &encoded.parts()[1..];
    let most = FrameDecoder::max_points(&PartialCloud::default(), parts);
    assert!((5000..5000 + 8192).contains(&most), "{most}");
    let mut ahead = PartialCloud::default();
    for part in parts {
        ChunkDecoder::new().decode_ahead(&mut ahead, part);
    }
    assert_eq!(FrameDecoder::max_points(&ahead, parts), most);
}

#[test]
fn parts_of_no_codec_or_of_two_are_refused() {
    let mut decoder = FrameDecoder::new();
    assert_eq!(decoder.decode(&[]), Err(DecodeError::Missing));
    assert_eq!(decoder.decode(&[&[]]), Err(DecodeError::Missing));
    for tag in [0, 5, 255] {
        assert!(matches!(
            decoder.decode(&[&[tag, 1]]),
            Err(DecodeError::Malformed(_))
        ));
    }
    for frame in checks::frames()
        .iter()
        .filter(|frame| frame.codec != Codec::Chunks)
    {
        let mut parts = frame.parts();
        parts.push(&[77]);
        assert!(decoder.decode(&parts).is_err(), "{:?}", frame.codec);
    }
}

/// Returns the parts in a file of one part a line.
fn golden(file: &str) -> Vec<Vec<u8>> {
    let part = |line: &str| hex::decode(line).expect("hexadecimal numbers");
    file.lines().map(part).collect()
}

fn decoded(file: &str) -> Frame {
    let parts = golden(file);
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    FrameDecoder::new()
        .decode(&parts)
        .expect("a frame of version 1")
}

fn sorted(cloud: &Cloud) -> Vec<[u8; 9]> {
    let mut points: Vec<_> = cloud.points().map(Point::to_bytes).collect();
    points.sort_unstable();
    points
}

#[test]
fn frames_of_version_1_are_decoded_by_all_later_ones() {
    let cloud = Performer::new(1, 40).cloud(Duration::ZERO);
    assert_eq!(
        decoded(include_str!("../../testdata/zstd.hex")),
        Frame::Cloud(cloud.clone())
    );
    let Frame::Cloud(chunks) = decoded(include_str!("../../testdata/chunks.hex")) else {
        panic!("chunks are a cloud");
    };
    assert_eq!(sorted(&chunks), sorted(&cloud));
    let Frame::Cloud(draco) = decoded(include_str!("../../testdata/draco.hex")) else {
        panic!("Draco's points are a cloud");
    };
    assert_eq!(draco.len(), cloud.len());
    let Frame::View(view) = decoded(include_str!("../../testdata/rgbd.hex")) else {
        panic!("rgbd is a view");
    };
    let expected = checks::view();
    assert_eq!(
        (view.depth(), view.camera()),
        (expected.depth(), expected.camera())
    );
}

#[test]
fn an_empty_frame_is_a_frame_of_every_codec() {
    let empty = Cloud::new();
    for encoded in [
        ZstdEncoder::new().encode(&empty, Setting::BEST),
        ChunkEncoder::default().encode(&empty, Setting::BEST),
        DracoEncoder::new().encode(&empty, Setting::BEST),
    ] {
        let parts = encoded.parts();
        assert!(!parts.is_empty(), "{:?}", encoded.codec);
        let most = FrameDecoder::max_points(&PartialCloud::default(), &parts);
        let frame = FrameDecoder::new().decode(&parts);
        assert_eq!((frame, most), (Ok(Frame::Cloud(empty.clone())), 0));
    }
    let chunk = ChunkEncoder::default().encode(&empty, Setting::BEST);
    let mut ahead = PartialCloud::default();
    ChunkDecoder::new().decode_ahead(&mut ahead, chunk.parts()[0]);
    let complete = ChunkDecoder::new().complete(ahead, &chunk.parts());
    assert_eq!(complete, Ok(empty));
}
