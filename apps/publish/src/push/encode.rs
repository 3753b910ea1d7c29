//! The encoders of a stream: one for each track.

use super::CodecName;
use anyhow::{Result, bail};
use hawser_cloud::{Cloud, FieldOfView, Pose, View};
use hawser_codec::{
    ChunkConfig, ChunkEncoder, Codec, DracoEncoder, Encoded, Encoder, RateControl, RgbdEncoder,
    Slice, ZstdEncoder, rgbd,
};
use hawser_media::Frame;
use hawser_objects::{IPV4_UDP, TrackTiming};
use hawser_units::ByteSize;
use hawser_wire::media::{DEFAULT_DATAGRAM, Header};
use hawser_wire::session::{MAX_TRACKS, Track};
use parking_lot::Mutex;
use std::collections::BTreeMap;
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

/// A slice of a track's frame, which can leave while the next one is encoded.
pub(super) struct TrackSlice {
    /// The track.
    pub(super) alias: u32,
    /// Its codec.
    pub(super) codec: Codec,
    /// The number of the layer; 0 is the base.
    pub(super) layer: u8,
    /// The slice.
    pub(super) slice: Slice,
}

/// The sizes of an encoded frame in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    pub(super) bytes: usize,
    /// Those of the bases of all tracks.
    pub(super) base: usize,
}

impl Sizes {
    pub(super) fn add(&mut self, slice: &TrackSlice) {
        let bytes = slice.slice.bytes();
        self.bytes += bytes;
        self.base += if slice.layer == 0 { bytes } else { 0 };
    }
}

/// Takes slices from the threads that encode.
type Slices<'a> = &'a (dyn Fn(TrackSlice) + Sync);

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

    fn codec(&self) -> Codec {
        match &self.0 {
            Tracks::Views(_) => Codec::Rgbd,
            Tracks::Cloud(encoder, _) => encoder.codec(),
        }
    }

    /// Returns the tracks to announce.
    pub(super) fn tracks(&self, timing: TrackTiming) -> Vec<Track> {
        let (count, prefix) = match &self.0 {
            Tracks::Views(cameras) => (cameras.len(), "camera"),
            Tracks::Cloud(..) => (1, "merged"),
        };
        let codec = self.codec();
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
        let codec = self.codec();
        let tracks: Mutex<BTreeMap<u32, Encoded>> = Mutex::default();
        let points = self.encode_slices(frame, budget, target, pose, &|slice| {
            let mut tracks = tracks.lock();
            let track = tracks.entry(slice.alias);
            track.or_insert(Encoded::new(codec)).push(slice.slice);
        });
        let tracks = tracks.into_inner().into_iter().collect();
        EncodedFrame { tracks, points }
    }

    /// As [`Encoders::encode`], and hands over each slice as soon as it is encoded. Returns the number of
    /// points, or of pixels with depth.
    pub(super) fn encode_slices(
        &mut self,
        frame: Frame,
        budget: usize,
        target: ByteSize,
        pose: Option<&Pose>,
        slices: Slices<'_>,
    ) -> usize {
        match (&mut self.0, frame) {
            (Tracks::Views(cameras), Frame::Views(views)) => {
                encode_views(cameras, &views, target, slices)
            }
            (Tracks::Cloud(encoder, rate), frame) => {
                let cloud = sampled(frame.into_cloud(), budget);
                encode_cloud(encoder, rate, cloud, target, (pose, slices))
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

/// Encodes views at the same time. Each has the share of the target that it has of the points. Returns
/// the number of pixels with depth.
fn encode_views(
    cameras: &mut [(RgbdEncoder, RateControl)],
    views: &[View],
    target: ByteSize,
    slices: Slices<'_>,
) -> usize {
    let points: Vec<usize> = views.iter().map(View::points).collect();
    let all = points.iter().sum::<usize>().max(1);
    let share = |points: usize| ByteSize((target.0 as f64 * points as f64 / all as f64) as u64);
    thread::scope(|scope| {
        let cameras = cameras.iter_mut().zip(views.iter().zip(&points));
        for (alias, ((encoder, rate), (view, points))) in (0..).zip(cameras) {
            let target = share(*points);
            scope.spawn(move || {
                let plan = rate.plan(*points, target);
                let size = sliced((alias, Codec::Rgbd), slices, |done| {
                    encoder.encode_slices(view, plan.setting, done);
                });
                rate.handle_encoded(&plan, *points, size, target);
            });
        }
    });
    all
}

/// Encodes a cloud as a pose sees it. Returns the number of points.
fn encode_cloud(
    encoder: &mut CloudEncoder,
    rate: &mut RateControl,
    cloud: Cloud,
    target: ByteSize,
    (pose, slices): (Option<&Pose>, Slices<'_>),
) -> usize {
    let plan = rate.plan(cloud.len(), target);
    let cloud = match pose {
        Some(pose) => FieldOfView::default().sample(&cloud, pose, plan.points),
        None => sampled(cloud, plan.points),
    };
    let track = (0, encoder.codec());
    let size = sliced(track, slices, |done| {
        encoder.encode_slices(&cloud, plan.setting, done);
    });
    rate.handle_encoded(&plan, cloud.len(), size, target);
    cloud.len()
}

/// Hands over the slices of a track that `encode` makes. Returns their size.
fn sliced(
    (alias, codec): (u32, Codec),
    slices: Slices<'_>,
    encode: impl FnOnce(&mut dyn FnMut(Slice)),
) -> ByteSize {
    let (mut layer, mut size) = (0, 0);
    encode(&mut |slice| {
        size += slice.bytes();
        let next = layer + u8::from(slice.ends_layer);
        slices(TrackSlice {
            alias,
            codec,
            layer,
            slice,
        });
        layer = next;
    });
    ByteSize(size as u64)
}

/// Returns a cloud with at most `budget` points.
fn sampled(cloud: Cloud, budget: usize) -> Cloud {
    match cloud.len() <= budget {
        true => cloud,
        false => cloud.sample(budget),
    }
}
