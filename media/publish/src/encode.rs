//! The encoders of a stream: one for each track.

use crate::CodecName;
use anyhow::{Result, bail, ensure};
use hawser_cloud::{Cloud, FieldOfView, MAX_PIXELS, Pose, View};
use hawser_codec::{
    ChunkConfig, ChunkEncoder, Codec, DracoEncoder, Encoded, Encoder, RateControl, RgbdEncoder,
    Slice, ZstdEncoder, rgbd,
};
use hawser_objects::{IPV4_UDP, TrackTiming};
use hawser_packets::media::{DEFAULT_DATAGRAM, Header};
use hawser_packets::session::{MAX_TRACKS, Track};
use hawser_recording::Frame;
use hawser_units::ByteSize;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;

/// A frame of all tracks.
pub struct EncodedFrame {
    /// The tracks by alias.
    pub tracks: Vec<(u32, Encoded)>,
    /// The number of points, or of pixels with depth.
    pub points: usize,
}

/// A slice of a track's frame, which can leave while the next one is encoded.
pub(crate) struct TrackSlice {
    /// The track.
    pub(crate) alias: u32,
    /// Its codec.
    pub(crate) codec: Codec,
    /// The number of the layer; 0 is the base.
    pub(crate) layer: u8,
    /// The slice.
    pub(crate) slice: Slice,
}

/// The sizes of an encoded frame in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sizes {
    pub(crate) bytes: usize,
    /// The bytes of the bases of all tracks.
    pub(crate) base: usize,
}

impl Sizes {
    pub(crate) fn add(&mut self, slice: &TrackSlice) {
        let bytes = slice.slice.bytes();
        self.bytes += bytes;
        self.base += if slice.layer == 0 { bytes } else { 0 };
    }
}

/// Receives slices from the threads that encode.
type Slices<'a> = &'a (dyn Fn(TrackSlice) + Sync);

/// The share of the rate that the small encoding has: it fits a path that bears a tenth of the stream.
const SMALL: f64 = 1.0 / 12.0;

/// The encoders of all tracks of a stream, with their rate controls.
pub struct Encoders {
    best: Tracks,
    /// The encoders of a second encoding of each track, for viewers whose paths do not bear the base of the
    /// first.
    small: Option<Tracks>,
}

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
        Ok(Encoders {
            best: Tracks::new(codec, first, rgbd::Layers::Two)?,
            small: None,
        })
    }

    /// Adds a small encoding of each track, with a twelfth of the rate.
    ///
    /// # Errors
    /// If there are too many tracks then.
    pub fn with_small(mut self, codec: CodecName, first: &Frame) -> Result<Self> {
        let tracks = 2 * self.best.count();
        if tracks > MAX_TRACKS {
            bail!("two encodings make {tracks} tracks; at most {MAX_TRACKS} can be published");
        }
        self.small = Some(Tracks::new(codec, first, rgbd::Layers::One)?);
        Ok(self)
    }

    /// Sets the length of full datagrams, for which further frames are encoded.
    pub(crate) fn set_datagram(&mut self, datagram: usize) {
        for tracks in std::iter::once(&mut self.best).chain(&mut self.small) {
            if let Tracks::Cloud(encoder, _) = tracks {
                encoder.set_payload(datagram.saturating_sub(Header::OVERHEAD));
            }
        }
    }

    /// Returns the tracks to announce. Those with the same name are encodings of the same source.
    pub(crate) fn tracks(&self, timing: TrackTiming) -> Vec<Track> {
        let encodings = [Some(&self.best), self.small.as_ref()];
        let tracks = encodings.into_iter().flatten().flat_map(|tracks| {
            let (codec, layers) = (tracks.codec().tag(), tracks.layers());
            tracks.names().map(move |name| (codec, layers, name))
        });
        let tracks = (0..).zip(tracks);
        tracks
            .map(|(alias, (codec, layers, name))| Track {
                alias,
                codec,
                layers,
                name,
                parameters: timing.emit().to_vec(),
            })
            .collect()
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
        let codec = self.best.codec();
        let tracks: Mutex<BTreeMap<u32, Encoded>> = Mutex::default();
        let points = self.encode_slices(frame, budget, target, pose, &|slice| {
            let mut tracks = tracks.lock();
            let track = tracks.entry(slice.alias);
            track.or_insert(Encoded::new(codec)).push(slice.slice);
        });
        let tracks = tracks.into_inner().into_iter().collect();
        EncodedFrame { tracks, points }
    }

    /// Encodes a frame as [`Encoders::encode`], and passes on each slice when it is encoded. Returns the number of
    /// points, or of pixels with depth, of the best encoding.
    pub(crate) fn encode_slices(
        &mut self,
        frame: Frame,
        budget: usize,
        target: ByteSize,
        pose: Option<&Pose>,
        slices: Slices<'_>,
    ) -> usize {
        let frame = match frame {
            Frame::Views(views) if matches!(self.best, Tracks::Views(_)) => Frame::Views(views),
            other => Frame::Cloud(sampled(other.into_cloud(), budget)),
        };
        let Some(small) = &mut self.small else {
            return self.best.encode(&frame, 0, target, pose, slices);
        };
        // The small encoding follows, so that it does not delay the best one. Its size is a share of that of
        // the best one, which may be less than the target.
        let of_best = ByteSize((target.0 as f64 * (1.0 - SMALL)) as u64);
        let taken = AtomicUsize::new(0);
        let counted = |slice: TrackSlice| {
            taken.fetch_add(slice.slice.bytes(), Relaxed);
            slices(slice);
        };
        let first = self.best.count() as u32;
        let points = self.best.encode(&frame, 0, of_best, pose, &counted);
        let of_small = ByteSize((taken.into_inner() as f64 * SMALL / (1.0 - SMALL)) as u64);
        small.encode(&frame, first, of_small, pose, slices);
        points
    }
}

impl Tracks {
    /// Creates encoders for frames like the first one; those of views make so many layers.
    fn new(codec: CodecName, first: &Frame, layers: rgbd::Layers) -> Result<Self> {
        let cloud: CloudEncoder = match (codec, first) {
            (CodecName::Rgbd, Frame::Views(views)) => return Tracks::of_views(views, layers),
            (CodecName::Rgbd, Frame::Cloud(_)) => bail!(
                "--codec rgbd encodes the views of cameras, and this recording has merged points; \
                 use chunks"
            ),
            (CodecName::Chunks, _) => Box::new(ChunkEncoder::new(ChunkConfig {
                payload: DEFAULT_DATAGRAM - Header::OVERHEAD,
                ..ChunkConfig::default()
            })),
            (CodecName::Draco, _) => Box::new(DracoEncoder::new()),
            (CodecName::Zstd, _) => Box::new(ZstdEncoder::new()),
        };
        let rate = RateControl::new(&cloud.choices());
        Ok(Tracks::Cloud(cloud, rate))
    }

    fn of_views(views: &[View], layers: rgbd::Layers) -> Result<Self> {
        if views.len() > MAX_TRACKS {
            bail!("{} cameras are more than {MAX_TRACKS}", views.len());
        }
        for (number, view) in (1..).zip(views) {
            let (width, height) = view.size();
            ensure!(
                rgbd::is_valid_size((width, height)),
                "the images of camera {number} have {width} x {height} pixels; --codec rgbd takes at most {} in all \
                 and {} a side: record smaller ones, such as 2560 x 1440, or use --codec chunks",
                MAX_PIXELS,
                rgbd::MAX_SIDE
            );
        }
        let encoder = |_| {
            let encoder = RgbdEncoder::new(layers);
            let rate = RateControl::new(&encoder.choices());
            (encoder, rate)
        };
        let cameras = views.iter().map(encoder).collect();
        Ok(Tracks::Views(cameras))
    }

    fn codec(&self) -> Codec {
        match self {
            Tracks::Views(_) => Codec::Rgbd,
            Tracks::Cloud(encoder, _) => encoder.codec(),
        }
    }

    /// Returns the number of tracks.
    fn count(&self) -> usize {
        match self {
            Tracks::Views(cameras) => cameras.len(),
            Tracks::Cloud(..) => 1,
        }
    }

    fn names(&self) -> impl Iterator<Item = String> + use<> {
        let prefix = match self {
            Tracks::Views(_) => "camera",
            Tracks::Cloud(..) => "merged",
        };
        (1..=self.count()).map(move |number| format!("{prefix} {number}"))
    }

    /// Returns the number of layers of the encoders.
    fn layers(&self) -> u8 {
        match self {
            Tracks::Views(cameras) => cameras.first().map_or(1, |(encoder, _)| encoder.layers()),
            Tracks::Cloud(encoder, _) => match encoder.codec() {
                Codec::Rgbd | Codec::Chunks => 2,
                Codec::Zstd | Codec::Draco => 1,
            },
        }
    }

    /// Encodes a frame to about `target` bytes. The tracks have the aliases from `first` on.
    fn encode(
        &mut self,
        frame: &Frame,
        first: u32,
        target: ByteSize,
        pose: Option<&Pose>,
        slices: Slices<'_>,
    ) -> usize {
        match (self, frame) {
            (Tracks::Views(cameras), Frame::Views(views)) => {
                encode_views(cameras, views, first, target, slices)
            }
            (Tracks::Cloud(encoder, rate), Frame::Cloud(cloud)) => {
                let sink = (first, slices);
                encode_cloud(encoder, rate, cloud, target, (pose, sink))
            }
            _ => unreachable!("all frames of a player are alike"),
        }
    }
}

/// Returns the payload of full packets that have so many bytes with all headers, if they are datagrams of this
/// length.
pub fn payload(size: ByteSize, datagram: usize) -> ByteSize {
    let packet = datagram as u64 + IPV4_UDP.0;
    let headers = Header::OVERHEAD as u64 + IPV4_UDP.0;
    ByteSize(size.0 * (packet - headers) / packet)
}

/// Encodes views at the same time. Each has the share of the target that it has of the points. Returns
/// the number of pixels with depth.
fn encode_views(
    cameras: &mut [(RgbdEncoder, RateControl)],
    views: &[View],
    first: u32,
    target: ByteSize,
    slices: Slices<'_>,
) -> usize {
    let points: Vec<usize> = views.iter().map(View::points).collect();
    let all = points.iter().sum::<usize>().max(1);
    let share = |points: usize| ByteSize((target.0 as f64 * points as f64 / all as f64) as u64);
    thread::scope(|scope| {
        let cameras = cameras.iter_mut().zip(views.iter().zip(&points));
        for (alias, ((encoder, rate), (view, points))) in (first..).zip(cameras) {
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

/// Encodes a cloud for a pose. Returns the number of points.
fn encode_cloud(
    encoder: &mut CloudEncoder,
    rate: &mut RateControl,
    cloud: &Cloud,
    target: ByteSize,
    (pose, (alias, slices)): (Option<&Pose>, (u32, Slices<'_>)),
) -> usize {
    let plan = rate.plan(cloud.len(), target);
    let chosen;
    let cloud = match pose {
        Some(pose) => {
            chosen = FieldOfView::default().sample(cloud, pose, plan.points);
            &chosen
        }
        None if cloud.len() <= plan.points => cloud,
        None => {
            chosen = cloud.sample(plan.points);
            &chosen
        }
    };
    let track = (alias, encoder.codec());
    let size = sliced(track, slices, |done| {
        encoder.encode_slices(cloud, plan.setting, done);
    });
    rate.handle_encoded(&plan, cloud.len(), size, target);
    cloud.len()
}

/// Passes on the slices of a track that `encode` makes. Returns their size.
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

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::{Camera, Extrinsics, Intrinsics, Point};
    use std::time::Duration;

    fn cloud(points: i32) -> Cloud {
        let mut cloud = Cloud::new();
        for n in 0..points {
            let position = [n % 31, n / 31 % 37, n / 1147].map(|steps| 7.0 * steps as f32);
            let color = [n as u8, (n / 3) as u8, (n / 7) as u8];
            cloud.push(Point::at(position, color).unwrap());
        }
        cloud
    }

    #[test]
    fn views_that_are_too_large_are_refused_when_opened() {
        let opened = |width, height| {
            let camera = Camera {
                intrinsics: Intrinsics::centred(width, height, 1000.0),
                extrinsics: Extrinsics {
                    rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
                    translation_mm: [0.0; 3],
                },
            };
            let pixels = width * height;
            let view = View::new(camera, 1.0, vec![0; 3 * pixels], vec![0; pixels]).unwrap();
            Encoders::new(CodecName::Rgbd, &Frame::Views(vec![view])).map(|_| ())
        };
        for (width, height) in [(2560, 1440), (8192, 512), (1, 1)] {
            opened(width, height).unwrap();
        }
        for (width, height) in [(3840, 2160), (4096, 2048), (8193, 1), (1, 65_536)] {
            let error = opened(width, height).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{width} x {height} pixels")),
                "{error}"
            );
            assert!(error.contains("--codec chunks"), "{error}");
        }
    }

    #[test]
    fn the_small_encoding_has_a_twelfth_of_what_both_take() {
        let frame = Frame::Cloud(cloud(20_000));
        let encoders = Encoders::new(CodecName::Chunks, &frame).unwrap();
        let mut encoders = encoders.with_small(CodecName::Chunks, &frame).unwrap();
        let timing = TrackTiming {
            lifetime: Duration::from_millis(150),
            frames_per_1000_s: 30_000,
        };
        let tracks = encoders.tracks(timing);
        assert_eq!(tracks[0].name, tracks[1].name);
        for target in [60_000, 100_000_000] {
            let mut shares = Vec::new();
            for _ in 0..20 {
                let encoded = encoders.encode(frame.clone(), usize::MAX, ByteSize(target), None);
                let sizes = encoded.tracks.iter().map(|(_, track)| track.bytes() as f64);
                let [best, small] = sizes.collect::<Vec<_>>()[..] else {
                    panic!("two tracks");
                };
                shares.push(small / (best + small));
            }
            let is_a_twelfth = |share: &f64| (0.055..0.1).contains(share);
            assert!(
                shares[10..].iter().all(is_a_twelfth),
                "{target}: {shares:?}"
            );
        }
    }
}
