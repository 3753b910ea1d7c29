use super::{median, nanoseconds};
use crate::summary::{Case, Summary};
use anyhow::{Context, Result, ensure};
use hawser_cloud::{Camera, Cloud, Extrinsics, Intrinsics, Performer, View};
use hawser_codec::rgbd::Layers;
use hawser_codec::{
    ChunkDecoder, ChunkEncoder, Decoder, DracoDecoder, DracoEncoder, Encoder, RgbdDecoder,
    RgbdEncoder, Setting, ZstdDecoder, ZstdEncoder,
};
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Frames of the recording, and how often each is encoded and decoded.
const FRAMES: usize = 10;
const ROUNDS: usize = 7;

/// The target of encoding and decoding a frame together.
const LIMIT_MS: f64 = 8.0;

/// The cameras of `lab/recordings/talker.toml`.
const CAMERAS: [(&str, Extrinsics); 2] = [
    (
        "cam0_yaw180",
        Extrinsics {
            rotation: [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [25.0, 1400.0, 1010.0],
        },
    ),
    (
        "cam1_yaw240",
        Extrinsics {
            rotation: [[-0.5, 0.0, 0.866], [0.0, -1.0, 0.0], [0.866, 0.0, 0.5]],
            translation_mm: [280.97, 1400.0, 833.35],
        },
    ),
];
const INTRINSICS: Intrinsics = Intrinsics {
    width: 848,
    height: 480,
    fx: 425.0,
    fy: 425.0,
    cx: 424.0,
    cy: 240.0,
};
const PIXELS: usize = INTRINSICS.width * INTRINSICS.height;

/// Measures each codec on the recording of a person who talks or, where there is none, on the
/// synthetic performer, who has no views.
pub(super) fn run(summary: &mut Summary) -> Result<()> {
    let folder = hawser_media::data_dir().join("volumetric/talker");
    let (of, clouds) = if folder.exists() {
        let [left, right] = CAMERAS.map(|camera| views(&folder, camera));
        let (left, right) = (left?, right?);
        let rgbd = (RgbdEncoder::new(Layers::Two), RgbdDecoder::new());
        let case = measure("codec/rgbd/talker-view", rgbd, &left, Some(LIMIT_MS))?;
        summary.cases.push(case);
        ("talker", merged(&left, &right))
    } else {
        ("performer", performer())
    };
    let name = |codec: &str| format!("codec/{codec}/{of}");
    let chunks = (ChunkEncoder::default(), ChunkDecoder::new());
    let zstd = (ZstdEncoder::new(), ZstdDecoder::new());
    let draco = (DracoEncoder::new(), DracoDecoder::new());
    summary.cases.extend([
        measure(&name("chunks"), chunks, &clouds, Some(LIMIT_MS))?,
        measure(&name("zstd"), zstd, &clouds, None)?,
        measure(&name("draco"), draco, &clouds, None)?,
    ]);
    Ok(())
}

/// Measures the encoding and decoding of frames at the best setting.
fn measure<E: Encoder, D: Decoder<Frame = E::Frame>>(
    name: &str,
    (mut encoder, mut decoder): (E, D),
    frames: &[E::Frame],
    limit_ms: Option<f64>,
) -> Result<Case> {
    let (mut encoding, mut decoding, mut both, mut bytes) = (vec![], vec![], vec![], vec![]);
    for frame in (0..ROUNDS).flat_map(|_| frames) {
        let start = Instant::now();
        let encoded = encoder.encode(black_box(frame), Setting::BEST);
        let encode_ms = milliseconds(start.elapsed());
        let parts = encoded.parts();
        let start = Instant::now();
        black_box(decoder.decode(black_box(&parts))?);
        let decode_ms = milliseconds(start.elapsed());
        encoding.push(encode_ms);
        decoding.push(decode_ms);
        both.push(encode_ms + decode_ms);
        bytes.push(encoded.bytes() as f64);
    }
    let mut case = Case::new(name);
    let limit = limit_ms.map(|limit| ("limit_encode_and_decode_ms".into(), limit.into()));
    case.params.extend(limit);
    case.metrics.set("encode_ms", median(encoding));
    case.metrics.set("decode_ms", median(decoding));
    case.metrics.set("encode_and_decode_ms", median(both));
    case.metrics.set("frame_bytes", median(bytes));
    Ok(case)
}

fn milliseconds(duration: Duration) -> f64 {
    nanoseconds(duration) / 1e6
}

/// Returns the first frames of a camera.
fn views(folder: &Path, (name, extrinsics): (&str, Extrinsics)) -> Result<Vec<View>> {
    let color = images(&folder.join(format!("{name}_color.mp4")), "rgb24", 3)?;
    let depth = images(&folder.join(format!("{name}_depth_mm.mkv")), "gray16le", 2)?;
    let camera = Camera {
        intrinsics: INTRINSICS,
        extrinsics,
    };
    let images = color.chunks(3 * PIXELS).zip(depth.chunks(2 * PIXELS));
    let view = |(color, depth): (&[u8], &[u8])| {
        let depth = depth
            .as_chunks()
            .0
            .iter()
            .map(|bytes| u16::from_le_bytes(*bytes));
        Ok(View::new(camera, 1.0, color.to_vec(), depth.collect())?)
    };
    images.map(view).collect()
}

/// Decodes the first images of a video.
fn images(video: &Path, format: &str, pixel_bytes: usize) -> Result<Vec<u8>> {
    let output = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(video)
        .args([
            "-frames:v",
            &FRAMES.to_string(),
            "-f",
            "rawvideo",
            "-pix_fmt",
            format,
            "-",
        ])
        .output()
        .context("cannot run ffmpeg")?;
    let complete = output.stdout.len() == FRAMES * PIXELS * pixel_bytes;
    ensure!(
        complete,
        "cannot decode {}: {}",
        video.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// Returns the points of both views of each frame.
fn merged(left: &[View], right: &[View]) -> Vec<Cloud> {
    let merge = |(left, right): (&View, &View)| {
        let mut cloud = Cloud::new();
        left.add_to(&mut cloud);
        right.add_to(&mut cloud);
        cloud
    };
    left.iter().zip(right).map(merge).collect()
}

/// Returns frames of the paper's number of points.
fn performer() -> Vec<Cloud> {
    let performer = Performer::new(1, 125_000);
    let times = (0..FRAMES as u32).map(|number| number * Duration::from_millis(33));
    times.map(|time| performer.cloud(time)).collect()
}
