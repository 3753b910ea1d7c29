//! How well a rate control meets its target, frame by frame.

use crate::recordings;

use hawser_cloud::{Cloud, Performer, View};
use hawser_codec::rgbd::Layers;
use hawser_codec::{
    ChunkEncoder, DracoEncoder, Encoder, RateControl, RgbdEncoder, Setting, ZstdEncoder,
};
use hawser_units::ByteSize;
use std::time::Duration;

/// The sizes of frames in bytes, each encoded once for the target of its number.
fn sizes<E: Encoder>(
    mut encoder: E,
    frames: &[E::Frame],
    points: fn(&E::Frame) -> usize,
    sample: fn(&E::Frame, usize) -> E::Frame,
    target: impl Fn(usize) -> u64,
) -> Vec<u64> {
    let mut control = RateControl::new(&encoder.choices());
    let encode = |(number, frame): (usize, &E::Frame)| {
        let target = ByteSize(target(number));
        let plan = control.plan(points(frame), target);
        let frame = sample(frame, plan.points);
        let size = ByteSize(encoder.encode(&frame, plan.setting).bytes() as u64);
        control.handle_encoded(&plan, points(&frame), size, target);
        size.0
    };
    frames.iter().enumerate().map(encode).collect()
}

fn cloud_sizes<E: Encoder<Frame = Cloud>>(
    encoder: E,
    frames: &[Cloud],
    target: impl Fn(usize) -> u64,
) -> Vec<u64> {
    sizes(encoder, frames, Cloud::len, Cloud::sample, target)
}

fn view_sizes(frames: &[View], target: impl Fn(usize) -> u64) -> Vec<u64> {
    let encoder = RgbdEncoder::new(Layers::Two);
    sizes(
        encoder,
        frames,
        View::points,
        |view, _| view.clone(),
        target,
    )
}

/// Asserts that the mean of the sizes is within a tenth of the target, and the mean of their
/// deviations as well, once the first three have taught what to expect.
fn assert_met(sizes: &[u64], target: impl Fn(usize) -> u64, case: &str) {
    let pairs = sizes.iter().enumerate().skip(3);
    let ratios: Vec<f64> = pairs
        .map(|(number, size)| *size as f64 / target(number) as f64)
        .collect();
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let deviation =
        ratios.iter().map(|ratio| (ratio - 1.0).abs()).sum::<f64>() / ratios.len() as f64;
    assert!(
        (0.9..1.1).contains(&mean),
        "{case}: {mean} of the target in the mean"
    );
    assert!(
        deviation < 0.1,
        "{case}: off by {deviation} of the target in the mean"
    );
}

fn performer(points: usize, frames: u64) -> Vec<Cloud> {
    let performer = Performer::new(1, points);
    (0..frames)
        .map(|number| performer.cloud(Duration::from_millis(33 * number)))
        .collect()
}

#[test]
fn clouds_meet_targets_from_5_to_75_mbps() {
    // 40,000 points are a third of the paper's frames, and so are the targets.
    let frames = performer(40_000, 15);
    for mbps in [5, 12, 25, 50, 75] {
        let target = |_| mbps * 1_000_000 / 8 / 30 / 3;
        let chunks = cloud_sizes(ChunkEncoder::default(), &frames, target);
        assert_met(&chunks, target, &format!("chunks at {mbps} Mb/s"));
        if mbps <= 25 {
            let draco = cloud_sizes(DracoEncoder::new(), &frames, target);
            assert_met(&draco, target, &format!("draco at {mbps} Mb/s"));
            let zstd = cloud_sizes(ZstdEncoder::new(), &frames, target);
            assert_met(&zstd, target, &format!("zstd at {mbps} Mb/s"));
        }
    }
}

#[test]
fn a_target_that_changes_is_met_at_once() {
    let frames = performer(40_000, 40);
    let target = |number: usize| [60_000, 15_000, 30_000, 80_000][number / 10];
    let sizes = cloud_sizes(ChunkEncoder::default(), &frames, target);
    assert_met(&sizes, target, "chunks");
    for (number, size) in sizes.iter().enumerate().skip(1) {
        let ratio = *size as f64 / target(number) as f64;
        assert!(
            (0.6..1.4).contains(&ratio),
            "frame {number}: {ratio} of the target"
        );
    }
}

#[test]
fn more_points_do_not_take_more_bytes() {
    let few = performer(20_000, 10);
    let frames: Vec<Cloud> = few.into_iter().chain(performer(60_000, 10)).collect();
    let target = |_| 30_000;
    assert_met(
        &cloud_sizes(ChunkEncoder::default(), &frames, target),
        target,
        "chunks",
    );
}

#[test]
fn the_smallest_targets_and_empty_frames_are_harmless() {
    let frames = [
        performer(2000, 3),
        vec![Cloud::new(); 3],
        performer(2000, 3),
    ]
    .concat();
    for target in [0, 1, 100] {
        let sizes = cloud_sizes(ChunkEncoder::default(), &frames, |_| target);
        assert!(sizes.iter().skip(2).all(|size| *size < 1500), "{sizes:?}");
    }
}

#[test]
fn recordings_meet_targets_from_5_to_90_mbps() {
    let talker = recordings::talker_views(16);
    let one_view: Vec<View> = talker.iter().map(|views| views[0].clone()).collect();
    let clouds = recordings::talker(16);
    for mbps in [5, 12, 20, 40, 90] {
        let target = |_| mbps * 1_000_000 / 8 / 30;
        if !clouds.is_empty() {
            let sizes = cloud_sizes(ChunkEncoder::default(), &clouds, target);
            assert_met(&sizes, target, &format!("chunks at {mbps} Mb/s"));
        }
        // Each of the two views has half of the rate, as far as it needs it.
        let half = |number| target(number) / 2;
        if !one_view.is_empty() && mbps <= 20 {
            let sizes = view_sizes(&one_view, half);
            assert_met(&sizes, half, &format!("rgbd at {mbps} Mb/s"));
        }
    }
}

#[test]
fn the_best_quality_is_planned_if_it_fits() {
    let encoder = ChunkEncoder::default();
    let plan = RateControl::new(&encoder.choices()).plan(1000, ByteSize(1_000_000));
    assert_eq!((plan.setting, plan.points), (Setting::BEST, 1000));
}
