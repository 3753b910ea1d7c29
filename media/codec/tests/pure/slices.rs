//! Chunks that leave while others are encoded, and are decoded as they arrive.

use hawser_cloud::{Cloud, Performer, Point};
use hawser_codec::{
    ChunkDecoder, ChunkEncoder, Decoder, Encoded, Encoder, PartialCloud, Setting, Slice,
};
use proptest::prelude::*;
use std::time::Duration;

fn cloud(points: usize) -> Cloud {
    Performer::new(1, points).cloud(Duration::ZERO)
}

fn slices(cloud: &Cloud) -> Vec<Slice> {
    let mut slices = Vec::new();
    let mut encoder = ChunkEncoder::default();
    encoder.encode_slices(cloud, Setting::BEST, &mut |slice| slices.push(slice));
    slices
}

fn sorted(cloud: &Cloud) -> Vec<[u8; 9]> {
    let mut points: Vec<_> = cloud.points().map(Point::to_bytes).collect();
    points.sort_unstable();
    points
}

#[test]
fn slices_of_a_layer_are_small_and_consecutive() {
    let cloud = cloud(100_000);
    let slices = slices(&cloud);
    let ends: Vec<_> = slices.iter().map(|s| (s.ends_layer, s.is_top)).collect();
    let base = slices.iter().take_while(|slice| !slice.is_top).count();
    assert_eq!(base, 2, "25,000 points");
    assert!(slices.len() - base >= 5, "75,000 points");
    assert!(ends[base - 1].0 && ends[slices.len() - 1].0);
    assert_eq!(ends.iter().filter(|(ends_layer, _)| *ends_layer).count(), 2);
    for slice in &slices {
        let parts: Vec<&[u8]> = slice.parts.iter().map(Vec::as_slice).collect();
        let decoded = ChunkDecoder::new().decode(&parts).unwrap();
        assert!((1..20_000).contains(&decoded.len()), "{}", decoded.len());
    }
    let mut encoded = Encoded::new(ChunkEncoder::default().codec());
    slices.into_iter().for_each(|slice| encoded.push(slice));
    assert_eq!(encoded.layers.len(), 2);
    let decoded = ChunkDecoder::new().decode(&encoded.parts()).unwrap();
    assert!(sorted(&decoded) == sorted(&cloud));
}

#[test]
fn the_largest_cloud_has_sixteen_slices_a_layer_at_most() {
    let slices = slices(&cloud(hawser_cloud::MAX_POINTS));
    let base = slices.iter().filter(|slice| !slice.is_top).count();
    assert!(base <= 16 && slices.len() - base <= 16);
    let parts: Vec<&[u8]> = slices
        .iter()
        .flat_map(|s| &s.parts)
        .map(Vec::as_slice)
        .collect();
    let decoded = ChunkDecoder::new().decode(&parts).unwrap();
    assert_eq!(decoded.len(), hawser_cloud::MAX_POINTS);
}

#[test]
fn a_burst_of_two_packets_is_repaired_in_each_slice() {
    let cloud = cloud(60_000);
    let slices = slices(&cloud);
    let mut parts: Vec<&[u8]> = Vec::new();
    for slice in &slices {
        assert!(slice.parts.len() > 11, "more than one group");
        let kept = slice
            .parts
            .iter()
            .enumerate()
            .filter(|(at, _)| !(3..5).contains(at));
        parts.extend(kept.map(|(_, part)| part.as_slice()));
    }
    let mut decoder = ChunkDecoder::new();
    assert_eq!(decoder.decode(&parts).unwrap().len(), cloud.len());
    assert_eq!(decoder.report().repaired, 2 * slices.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever arrives, in whatever order, and however much of it is decoded ahead.
    #[test]
    fn a_frame_that_is_decoded_as_it_arrives_is_the_same(
        order in Just((0..100usize).collect::<Vec<_>>()).prop_shuffle(),
        lost in prop::collection::vec(any::<bool>(), 100),
        ahead in prop::collection::vec(any::<bool>(), 100),
    ) {
        let slices = slices(&cloud(24_000));
        let all: Vec<&[u8]> = slices.iter().flat_map(|s| &s.parts).map(Vec::as_slice).collect();
        prop_assert!(all.len() <= 100, "{}", all.len());
        let arrived = order.iter().filter(|at| **at < all.len() && !(lost[**at] && **at > 0));
        let arrived: Vec<usize> = arrived.copied().collect();
        let parts: Vec<&[u8]> = arrived.iter().map(|at| all[*at]).collect();

        let mut decoder = ChunkDecoder::new();
        let at_once = decoder.decode(&parts).unwrap();
        let report = decoder.report();
        let mut partial = PartialCloud::default();
        for at in arrived.iter().filter(|at| ahead[**at]) {
            decoder.decode_ahead(&mut partial, all[*at]);
            decoder.decode_ahead(&mut partial, all[*at]);
        }
        let completed = decoder.complete(partial, &parts).unwrap();
        prop_assert_eq!(decoder.report(), report);
        prop_assert!(sorted(&completed) == sorted(&at_once));
    }
}
