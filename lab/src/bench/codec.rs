use super::{median, nanoseconds};
use crate::recordings;
use crate::summary::{Case, Summary};
use anyhow::{Result, bail};
use hawser_cloud::{Cloud, Performer, View};
use hawser_codec::rgbd::Layers;
use hawser_codec::{
    ChunkDecoder, ChunkEncoder, Decoder, DracoDecoder, DracoEncoder, Encoder, RgbdDecoder,
    RgbdEncoder, Setting, ZstdDecoder, ZstdEncoder,
};
use hawser_recording::{Frame, Recording};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Frames of the recording, and how often each is encoded and decoded.
const FRAMES: usize = 10;
const ROUNDS: usize = 7;

/// The target of encoding and decoding a frame together.
const LIMIT_MS: f64 = 8.0;

/// Measures each codec on the recording of a person who talks or, where there is none, on the
/// synthetic performer, who has no views.
pub(super) fn run(summary: &mut Summary) -> Result<()> {
    let (of, clouds) = if let Some(recording) = recordings::talker()? {
        let frames = views(&recording)?;
        let left: Vec<View> = frames.iter().map(|views| views[0].clone()).collect();
        let rgbd = (RgbdEncoder::new(Layers::Two), RgbdDecoder::new());
        let case = measure("codec/rgbd/talker-view", rgbd, &left, Some(LIMIT_MS))?;
        summary.cases.push(case);
        let merged = |views| Frame::Views(views).into_cloud();
        ("talker", frames.into_iter().map(merged).collect())
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

/// Returns the views of the first frames.
fn views(recording: &Recording) -> Result<Vec<Vec<View>>> {
    let mut player = recording.open()?;
    let mut frames = Vec::new();
    while frames.len() < FRAMES {
        match player.next_frame()? {
            Some(Frame::Views(views)) => frames.push(views),
            Some(Frame::Cloud(_)) => bail!("the recording has no cameras"),
            None => bail!("the recording has fewer than {FRAMES} frames"),
        }
    }
    Ok(frames)
}

/// Returns frames of the paper's number of points.
fn performer() -> Vec<Cloud> {
    let performer = Performer::new(1, 125_000);
    let times = (0..FRAMES as u32).map(|number| number * Duration::from_millis(33));
    times.map(|time| performer.cloud(time)).collect()
}
