//! The encoders of a stream: one for each track.

use super::CodecName;
use anyhow::{Result, bail};
use hawser_cloud::{Cloud, FieldOfView, Pose, View};
use hawser_codec::{
    ChunkConfig, ChunkEncoder, Codec, DracoEncoder, Encoded, Encoder, RateControl, RgbdEncoder,
    ZstdEncoder, rgbd,
};
use hawser_media::Frame;
use hawser_objects::{IPV4_UDP, TrackTiming};
use hawser_units::ByteSize;
use hawser_wire::media::{DEFAULT_DATAGRAM, Header};
use hawser_wire::session::{MAX_TRACKS, Track};
use std::thread;

/// The payload of a full packet in bytes.
const PAYLOAD: usize = DEFAULT_DATAGRAM - Header::OVERHEAD;

/// A frame of all tracks.
pub struct EncodedFrame {
    /// The tracks by alias.
    pub tracks: Vec<(u32, Encoded)>,
    /// The number of points, or of pixels with depth.
    pub points: usize,
}

/// The encoders of all tracks of a stream, with their rate controls.
pub struct Encoders(Tracks);

enum Tracks {
    /// A track for each camera.
    Views(Vec<(RgbdEncoder, RateControl)>),
    /// One track of the merged points.
    Cloud(CloudEncoder, RateControl),
}

type CloudEncoder = Box<dyn Encoder<Frame = Cloud> + Send>;

impl Encoders {
    /// Creates the encoders for frames like the first one.
    ///
    /// # Errors
    /// If the codec does not encode such frames.
    pub fn new(codec: CodecName, first: &Frame) -> Result<Self> {
        let cloud: CloudEncoder = match (codec, first) {
            (CodecName::Rgbd, Frame::Views(views)) => return Encoders::of_views(views),
            (CodecName::Rgbd, Frame::Cloud(_)) => bail!(
                "--codec rgbd encodes the views of cameras, and this recording has merged points; \
                 use chunks"
            ),
            (CodecName::Chunks, _) => Box::new(ChunkEncoder::new(ChunkConfig {
                payload: PAYLOAD,
                ..ChunkConfig::default()
            })),
            (CodecName::Draco, _) => Box::new(DracoEncoder::new()),
            (CodecName::Zstd, _) => Box::new(ZstdEncoder::new()),
        };
        let rate = RateControl::new(&cloud.choices());
        Ok(Encoders(Tracks::Cloud(cloud, rate)))
    }

    fn of_views(views: &[View]) -> Result<Self> {
        if views.len() > MAX_TRACKS {
            bail!("{} cameras are more than {MAX_TRACKS}", views.len());
        }
        let encoder = |_| {
            let encoder = RgbdEncoder::new(rgbd::Layers::Two);
            let rate = RateControl::new(&encoder.choices());
            (encoder, rate)
        };
        let cameras = views.iter().map(encoder).collect();
        Ok(Encoders(Tracks::Views(cameras)))
    }

    /// Returns the tracks to announce.
    pub(super) fn tracks(&self, timing: TrackTiming) -> Vec<Track> {
        let (count, codec, prefix) = match &self.0 {
            Tracks::Views(cameras) => (cameras.len(), Codec::Rgbd, "camera"),
            Tracks::Cloud(encoder, _) => (1, encoder.codec(), "merged"),
        };
        let track = |alias: u32| Track {
            alias,
            codec: codec.tag(),
            layers: layers(codec),
            name: format!("{prefix} {}", alias + 1),
            parameters: timing.emit().to_vec(),
        };
        (0..).take(count).map(track).collect()
    }

    /// Encodes a frame to about `target` bytes of payload. Clouds are sampled to at most `budget`
    /// points, as `pose` sees them.
    ///
    /// # Panics
    /// If the encoders were created for views and the frame is a cloud.
    pub fn encode(
        &mut self,
        frame: Frame,
        budget: usize,
        target: ByteSize,
        pose: Option<&Pose>,
    ) -> EncodedFrame {
        match (&mut self.0, frame) {
            (Tracks::Views(cameras), Frame::Views(views)) => encode_views(cameras, &views, target),
            (Tracks::Cloud(encoder, rate), frame) => {
                let cloud = sampled(frame.into_cloud(), budget);
                encode_cloud(encoder, rate, cloud, target, pose)
            }
            (Tracks::Views(_), Frame::Cloud(_)) => {
                unreachable!("all frames of a player are alike")
            }
        }
    }
}

/// Returns the payload of full packets that have so many bytes with all headers.
pub fn payload(size: ByteSize) -> ByteSize {
    let packet = DEFAULT_DATAGRAM as u64 + IPV4_UDP.0;
    let headers = Header::OVERHEAD as u64 + IPV4_UDP.0;
    ByteSize(size.0 * (packet - headers) / packet)
}

/// Returns the number of layers that the encoders make.
const fn layers(codec: Codec) -> u8 {
    match codec {
        Codec::Rgbd | Codec::Chunks => 2,
        Codec::Zstd | Codec::Draco => 1,
    }
}

/// Encodes views at the same time. Each has the share of the target that it has of the points.
fn encode_views(
    cameras: &mut [(RgbdEncoder, RateControl)],
    views: &[View],
    target: ByteSize,
) -> EncodedFrame {
    let points: Vec<usize> = views.iter().map(View::points).collect();
    let all = points.iter().sum::<usize>().max(1);
    let share = |points: usize| ByteSize((target.0 as f64 * points as f64 / all as f64) as u64);
    let tracks = thread::scope(|scope| {
        let cameras = cameras.iter_mut().zip(views.iter().zip(&points));
        let started: Vec<_> = cameras
            .map(|(camera, (view, points))| {
                scope.spawn(|| encode_view(camera, view, *points, share(*points)))
            })
            .collect();
        let encoded = started.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        (0..).zip(encoded).collect()
    });
    EncodedFrame {
        tracks,
        points: all,
    }
}

fn encode_view(
    (encoder, rate): &mut (RgbdEncoder, RateControl),
    view: &View,
    points: usize,
    target: ByteSize,
) -> Encoded {
    let plan = rate.plan(points, target);
    let encoded = encoder.encode(view, plan.setting);
    let size = ByteSize(encoded.bytes() as u64);
    rate.handle_encoded(&plan, points, size, target);
    encoded
}

fn encode_cloud(
    encoder: &mut CloudEncoder,
    rate: &mut RateControl,
    cloud: Cloud,
    target: ByteSize,
    pose: Option<&Pose>,
) -> EncodedFrame {
    let plan = rate.plan(cloud.len(), target);
    let cloud = match pose {
        Some(pose) => FieldOfView::default().sample(&cloud, pose, plan.points),
        None => sampled(cloud, plan.points),
    };
    let encoded = encoder.encode(&cloud, plan.setting);
    let size = ByteSize(encoded.bytes() as u64);
    rate.handle_encoded(&plan, cloud.len(), size, target);
    EncodedFrame {
        tracks: vec![(0, encoded)],
        points: cloud.len(),
    }
}

/// Returns a cloud with at most `budget` points.
fn sampled(cloud: Cloud, budget: usize) -> Cloud {
    match cloud.len() <= budget {
        true => cloud,
        false => cloud.sample(budget),
    }
}
