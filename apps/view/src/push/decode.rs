//! The thread that decodes frames.

use super::metrics::DecodedFrames;
use super::record::Recorder;
use super::row::PushRow;
use super::summary::Decoded;
use hawser_cloud::Cloud;
use hawser_codec::{Codec, DecodeError, Decoder, Frame, FrameDecoder};
use hawser_io::clock::SteadyClock;
use hawser_objects::ReceivedFrame;
use hawser_units::Instant;
use hawser_wire::session::Track;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;

/// A frame to be decoded.
pub(super) struct ToDecode {
    /// The time of its capture by the own clock; `None` if the clocks are not related yet.
    pub(super) captured: Option<Instant>,
    pub(super) frame: ReceivedFrame,
    pub(super) tracks: Arc<BTreeMap<u32, Track>>,
}

/// The decoder's thread.
pub(super) struct Decoding {
    clock: SteadyClock,
    frames: Receiver<ToDecode>,
    /// A decoder for each track, by alias.
    decoders: BTreeMap<u32, FrameDecoder>,
    recorder: Recorder,
    /// The counts, for others.
    decoded: Arc<Mutex<DecodedFrames>>,
}

impl Decoding {
    pub(super) fn new(
        clock: SteadyClock,
        frames: Receiver<ToDecode>,
        recorder: Recorder,
        decoded: Arc<Mutex<DecodedFrames>>,
    ) -> Self {
        Decoding {
            clock,
            frames,
            decoders: BTreeMap::new(),
            recorder,
            decoded,
        }
    }

    /// Decodes until no more frames follow.
    pub(super) fn run(mut self) -> anyhow::Result<Decoded> {
        while let Ok(ToDecode {
            captured,
            frame,
            tracks,
        }) = self.frames.recv()
        {
            let started = self.clock.now();
            match self.decode(&frame, &tracks) {
                Ok(cloud) => {
                    let times = [captured, Some(started), Some(self.clock.now())];
                    let row = PushRow::new(&frame, times, cloud.len());
                    self.recorder.record(row, cloud)?;
                    let mut decoded = self.decoded.lock();
                    decoded.frames += 1;
                    decoded.delay = row.delay();
                }
                Err(error) => {
                    let (group, object) = frame.id;
                    tracing::warn!(group, object, "frame cannot be decoded: {error}");
                    self.recorder.failed();
                    self.decoded.lock().failed += 1;
                }
            }
        }
        self.recorder.finish(self.clock.now())
    }

    /// Returns the points of all tracks, which are decoded at the same time.
    fn decode(
        &mut self,
        frame: &ReceivedFrame,
        tracks: &BTreeMap<u32, Track>,
    ) -> Result<Cloud, DecodeError> {
        for alias in frame.tracks.keys() {
            self.decoders.entry(*alias).or_default();
        }
        let codec = |alias| {
            let track: Option<&Track> = tracks.get(alias);
            track.and_then(|track| Codec::from_tag(track.codec))
        };
        let decoders = self.decoders.iter_mut();
        let jobs = decoders
            .filter_map(|(alias, decoder)| Some((codec(alias), decoder, frame.tracks.get(alias)?)));
        let decoded: Vec<Result<Frame, DecodeError>> = thread::scope(|scope| {
            let started: Vec<_> = jobs
                .map(|(codec, decoder, layers)| {
                    scope.spawn(move || decode_track(codec, decoder, layers))
                })
                .collect();
            let joined = started.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let mut cloud = Cloud::new();
        for frame in decoded {
            match frame? {
                Frame::View(view) => view.add_to(&mut cloud),
                Frame::Cloud(points) => points.points().for_each(|point| cloud.push(point)),
            }
        }
        Ok(cloud)
    }
}

fn decode_track(
    codec: Option<Codec>,
    decoder: &mut FrameDecoder,
    layers: &[Vec<Arc<[u8]>>],
) -> Result<Frame, DecodeError> {
    match codec {
        None => Err(DecodeError::Malformed("a codec that is not known")),
        Some(Codec::Chunks) => {
            let parts: Vec<&[u8]> = layers.iter().flatten().map(|part| &part[..]).collect();
            decoder.decode(&parts)
        }
        Some(_) => {
            let whole: Vec<Vec<u8>> = layers.iter().map(|payloads| payloads.concat()).collect();
            let parts: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
            decoder.decode(&parts)
        }
    }
}
