//! The tracks of a frame, which are decoded at the same time.

use crate::{Codec, DecodeError, Frame, FrameDecoder, PartialCloud};
use hawser_cloud::Cloud;
use parking_lot::Mutex;
use std::borrow::Cow;
use std::mem;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

/// A track of a frame that is to be decoded, with its payloads.
pub struct TrackJob<'a> {
    decoder: &'a mut FrameDecoder,
    parts: Vec<Cow<'a, [u8]>>,
    /// The points that were decoded as they arrived.
    ahead: PartialCloud,
}

/// The reason why a frame of several tracks cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// A track cannot be decoded.
    #[error("{0}")]
    Invalid(#[from] DecodeError),
    /// The tracks have too many points.
    #[error("its tracks announce {points} points or pixels; {most} are allowed in a frame")]
    TooManyPoints {
        /// The number that they announce.
        points: usize,
        /// The number that is allowed.
        most: usize,
    },
}

/// Returns the points of all tracks.
///
/// # Errors
/// As those of [`decode_frames`].
pub fn decode_tracks(jobs: Vec<TrackJob<'_>>, most: usize) -> Result<Cloud, Damage> {
    let mut frames = decode_frames(jobs, most)?;
    Ok(match &mut frames[..] {
        [Frame::Cloud(only)] => mem::take(only),
        several => merge_frames(several),
    })
}

/// Returns the views or points of each track.
///
/// # Errors
/// If a track cannot be decoded, or the tracks announce more than `most` points; then nothing is decoded.
pub fn decode_frames(jobs: Vec<TrackJob<'_>>, most: usize) -> Result<Vec<Frame>, Damage> {
    let points = jobs.iter().map(TrackJob::max_points).sum();
    if points > most {
        return Err(Damage::TooManyPoints { points, most });
    }
    let frames: Result<Vec<Frame>, DecodeError> = decode_all(jobs).into_iter().collect();
    Ok(frames?)
}

/// Returns the points of several tracks, in memory for no more of them.
pub fn merge_frames(frames: &[Frame]) -> Cloud {
    let points = frames.iter().map(|frame| match frame {
        Frame::View(view) => view.points(),
        Frame::Cloud(points) => points.len(),
    });
    let mut cloud = Cloud::with_capacity(points.sum());
    for frame in frames {
        match frame {
            Frame::View(view) => view.add_to(&mut cloud),
            Frame::Cloud(points) => points.points().for_each(|point| cloud.push(point)),
        }
    }
    cloud
}

/// Decodes tracks, as many at the same time as there are processors: each needs memory besides that of its
/// points.
fn decode_all(jobs: Vec<TrackJob<'_>>) -> Vec<Result<Frame, DecodeError>> {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let further = processors.min(jobs.len()).saturating_sub(1);
    let waiting = Mutex::new(jobs.into_iter().enumerate());
    let decode = || {
        let next = || waiting.lock().next();
        let decoded = std::iter::from_fn(next).map(|(number, job)| (number, job.decode()));
        decoded.collect::<Vec<_>>()
    };
    let mut decoded = thread::scope(|scope| {
        let started: Vec<_> = (0..further).map(|_| scope.spawn(decode)).collect();
        let mut decoded = decode();
        for thread in started {
            decoded.extend(thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        decoded
    });
    decoded.sort_unstable_by_key(|(number, _)| *number);
    decoded.into_iter().map(|(_, frame)| frame).collect()
}

impl<'a> TrackJob<'a> {
    /// Takes the payloads of each layer.
    ///
    /// # Errors
    /// If the codec is not known.
    pub fn new(
        codec: Option<Codec>,
        decoder: &'a mut FrameDecoder,
        layers: &'a [Vec<Arc<[u8]>>],
        ahead: PartialCloud,
    ) -> Result<Self, DecodeError> {
        let parts = match codec {
            None => return Err(DecodeError::Malformed("a codec that is not known")),
            Some(Codec::Chunks) => {
                let parts = layers.iter().flatten();
                parts.map(|part| Cow::Borrowed(&part[..])).collect()
            }
            Some(_) => {
                let whole = layers.iter().map(|payloads| payloads.concat());
                whole.map(Cow::Owned).collect()
            }
        };
        Ok(TrackJob {
            decoder,
            parts,
            ahead,
        })
    }

    /// Returns a number of points, or pixels of a view, that the track does not exceed.
    fn max_points(&self) -> usize {
        FrameDecoder::max_points(&self.ahead, &borrowed(&self.parts))
    }

    fn decode(mut self) -> Result<Frame, DecodeError> {
        let ahead = mem::take(&mut self.ahead);
        self.decoder.complete(ahead, &borrowed(&self.parts))
    }
}

fn borrowed<'a>(parts: &'a [Cow<'_, [u8]>]) -> Vec<&'a [u8]> {
    parts.iter().map(|part| &part[..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rgbd::Layers;
    use crate::{ChunkEncoder, Encoded, Encoder, RgbdEncoder, Setting, ZstdEncoder};
    use hawser_cloud::{Camera, Extrinsics, Intrinsics, Performer, View};
    use std::time::Duration;

    type Payloads = Vec<Vec<Arc<[u8]>>>;

    /// Returns a view of a wall.
    fn view(width: usize, height: usize) -> Encoded {
        let extrinsics = Extrinsics {
            rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [0.0; 3],
        };
        let camera = Camera {
            intrinsics: Intrinsics::centred(width, height, 1000.0),
            extrinsics,
        };
        let pixels = width * height;
        let view = View::new(camera, 1.0, vec![90; 3 * pixels], vec![900; pixels]).unwrap();
        RgbdEncoder::new(Layers::Two).encode(&view, Setting::BEST)
    }

    fn payloads(encoded: &Encoded) -> Payloads {
        let layers = encoded.layers.iter();
        layers
            .map(|parts| parts.iter().map(|part| part.as_slice().into()).collect())
            .collect()
    }

    fn decoded(tracks: &[(Codec, &Payloads)], most: usize) -> Result<Cloud, Damage> {
        let mut decoders: Vec<FrameDecoder> = tracks.iter().map(|_| FrameDecoder::new()).collect();
        let jobs = decoders.iter_mut().zip(tracks);
        let jobs = jobs.map(|(decoder, (codec, layers))| {
            TrackJob::new(Some(*codec), decoder, layers, PartialCloud::default()).unwrap()
        });
        decode_tracks(jobs.collect(), most)
    }

    #[test]
    fn too_many_large_views_are_rejected_before_decoding() {
        let view = payloads(&view(2048, 2048));
        let error = decoded(&[(Codec::Rgbd, &view); 16], 1 << 24).unwrap_err();
        let Damage::TooManyPoints { points, most } = error else {
            panic!("{error}");
        };
        assert_eq!((points, most), (16 << 22, 1 << 24));
    }

    #[test]
    fn the_points_of_all_tracks_and_codecs_are_counted_together() {
        let cloud = Performer::new(1, 700).cloud(Duration::ZERO);
        let view = payloads(&view(40, 30));
        let chunks = payloads(&ChunkEncoder::default().encode(&cloud, Setting::BEST));
        let zstd = payloads(&ZstdEncoder::new().encode(&cloud, Setting::BEST));
        let tracks = [
            (Codec::Rgbd, &view),
            (Codec::Chunks, &chunks),
            (Codec::Zstd, &zstd),
        ];
        let points = 40 * 30 + 700 + 700;
        assert_eq!(decoded(&tracks, points).unwrap().len(), points);
        let error = decoded(&tracks, points - 1).unwrap_err();
        assert!(matches!(error, Damage::TooManyPoints { .. }), "{error}");
        // A base alone has a quarter of the pixels.
        let base = vec![view[0].clone()];
        assert_eq!(decoded(&[(Codec::Rgbd, &base)], 300).unwrap().len(), 300);
    }

    #[test]
    fn damaged_bytes_are_no_matter_of_points() {
        let invalid: Payloads = vec![vec![Arc::new([1, 2, 3])]];
        let error = decoded(&[(Codec::Zstd, &invalid)], 10).unwrap_err();
        assert!(matches!(error, Damage::Invalid(_)), "{error}");
    }
}
