//! The share of the points that a viewer shows when packets of chunks are lost.

use crate::recordings;

use hawser_cloud::{Cloud, Performer, Point};
use hawser_codec::{ChunkConfig, ChunkDecoder, ChunkEncoder, Decoder, Encoder, Setting};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::HashSet;
use std::time::Duration;

/// Encodes a frame, loses each part with a probability, and returns what is decoded.
fn received(cloud: &Cloud, encoder: &mut ChunkEncoder, loss: f64, rng: &mut ChaCha8Rng) -> Cloud {
    let encoded = encoder.encode(cloud, Setting::BEST);
    let mut parts = encoded.parts();
    parts.retain(|_| rng.random::<f64>() >= loss);
    ChunkDecoder::new()
        .decode(&parts)
        .expect("most parts arrive")
}

/// Returns the smallest share of points that arrive of a frame at 2 % random loss.
fn worst_share(frames: &[Cloud]) -> f64 {
    let mut encoder = ChunkEncoder::default();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let share = |frame: &Cloud| {
        let shown = received(frame, &mut encoder, 0.02, &mut rng);
        shown.len() as f64 / frame.len() as f64
    };
    frames.iter().map(share).fold(1.0, f64::min)
}

#[test]
fn at_two_percent_loss_nearly_all_of_a_performer_is_shown() {
    let performer = Performer::new(1, 125_000);
    let frame = |number: u64| performer.cloud(Duration::from_millis(33 * number));
    let frames: Vec<Cloud> = (0..20).map(frame).collect();
    let worst = worst_share(&frames);
    assert!(worst >= 0.97, "only {worst} of the points of a frame");
}

#[test]
fn at_two_percent_loss_nearly_all_of_the_recordings_is_shown() {
    for frames in [recordings::talker(50), recordings::typist(8)] {
        let worst = worst_share(&frames);
        assert!(worst >= 0.97, "only {worst} of the points of a frame");
    }
}

#[test]
fn without_parity_as_many_points_are_lost_as_packets() {
    let config = ChunkConfig {
        parity: 0,
        ..ChunkConfig::default()
    };
    let mut encoder = ChunkEncoder::new(config);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let cloud = Performer::new(1, 60_000).cloud(Duration::ZERO);
    let shown: usize = (0..10)
        .map(|_| received(&cloud, &mut encoder, 0.1, &mut rng).len())
        .sum();
    let lost = 1.0 - shown as f64 / (10 * cloud.len()) as f64;
    assert!((0.08..0.12).contains(&lost), "{lost} of the points");
}

#[test]
fn the_base_layer_covers_the_body_evenly() {
    let cloud = Performer::new(1, 60_000).cloud(Duration::ZERO);
    let encoded = ChunkEncoder::default().encode(&cloud, Setting::BEST);
    let base: Vec<&[u8]> = encoded.layers[0].iter().map(Vec::as_slice).collect();
    let base = ChunkDecoder::new().decode(&base).unwrap();
    assert_eq!(base.len(), cloud.len().div_ceil(4));

    let cells = |cloud: &Cloud| -> HashSet<[i16; 3]> {
        let cell = |Point { x, y, z, .. }: Point| [x, y, z].map(|axis| axis.div_euclid(50));
        cloud.points().map(cell).collect()
    };
    let (of_all, of_base) = (cells(&cloud).len(), cells(&base).len());
    // A cell of 5 cm that only a few points touch may be without one of the base.
    assert!(of_base * 10 > of_all * 9, "{of_base} of {of_all} cells");
}

#[test]
fn parts_fit_the_payload_and_decode_in_any_order() {
    for payload in [512, 1100, 8000] {
        let config = ChunkConfig {
            payload,
            ..ChunkConfig::default()
        };
        let cloud = Performer::new(1, 20_000).cloud(Duration::ZERO);
        let encoded = ChunkEncoder::new(config).encode(&cloud, Setting::BEST);
        let mut parts = encoded.parts();
        assert!(parts.iter().all(|part| part.len() <= payload));
        parts.reverse();
        let mut decoder = ChunkDecoder::new();
        let decoded = decoder.decode(&parts).unwrap();
        let report = decoder.report();
        assert_eq!((report.decoded, report.repaired), (report.total, 0));
        let sorted = |cloud: &Cloud| {
            let mut points: Vec<_> = cloud.points().map(Point::to_bytes).collect();
            points.sort_unstable();
            points
        };
        assert!(sorted(&decoded) == sorted(&cloud));
    }
}

#[test]
fn a_damaged_chunk_costs_its_points_only() {
    let cloud = Performer::new(1, 20_000).cloud(Duration::ZERO);
    let config = ChunkConfig {
        parity: 0,
        ..ChunkConfig::default()
    };
    let mut encoded = ChunkEncoder::new(config).encode(&cloud, Setting::BEST);
    let whole = encoded.layers[1].len();
    encoded.layers[1][3].truncate(500);
    let mut decoder = ChunkDecoder::new();
    let shown = decoder.decode(&encoded.parts()).unwrap();
    assert_eq!(decoder.report().refused, 1);
    let lost = cloud.len() - shown.len();
    assert!(0 < lost && lost * whole < 2 * cloud.len(), "{lost} points");
}

#[test]
fn a_frame_of_which_any_one_packet_arrives_is_valid() {
    let cloud = Performer::new(1, 5_000).cloud(Duration::ZERO);
    let encoded = ChunkEncoder::default().encode(&cloud, Setting::BEST);
    let points = |part: &&[u8]| ChunkDecoder::new().decode(&[*part]).unwrap().len();
    let points: Vec<usize> = encoded.parts().iter().map(points).collect();
    let parity = points.iter().filter(|points| **points == 0).count();
    assert!(parity > 0 && parity < points.len(), "{points:?}");
}
