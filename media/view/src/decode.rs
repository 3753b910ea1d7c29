//! The thread that decodes frames.

use crate::ahead::Ahead;
use crate::metrics::DecodedFrames;
use crate::record::Recorder;
use crate::row::Row;
use crate::sound::SoundPacket;
use crate::summary::Decoded;
use hawser_cloud::{Cloud, Extent, Pose};
use hawser_codec::{Codec, Damage, FrameDecoder, TrackJob, decode_tracks};
use hawser_io::clock::SteadyClock;
use hawser_objects::ReceivedFrame;
use hawser_packets::media::ObjectId;
use hawser_packets::session::Track;
use hawser_units::Instant;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// The work of the decoder's thread.
pub(crate) enum ToDecode {
    /// A chunk that arrived.
    Chunk {
        /// The number of the session.
        session: u64,
        object: ObjectId,
        bytes: Arc<[u8]>,
    },
    /// A frame as far as it arrived.
    Frame(FrameToDecode),
    /// Sound, which is passed on to the files.
    Sound(SoundPacket),
}

/// A frame to be decoded.
pub(crate) struct FrameToDecode {
    /// The number of the session.
    pub(crate) session: u64,
    /// The time of its capture by the own clock; `None` if the clocks are not related yet.
    pub(crate) captured: Option<Instant>,
    /// The time of its deadline by the own clock, likewise.
    pub(crate) deadline: Option<Instant>,
    pub(crate) frame: ReceivedFrame,
    pub(crate) tracks: Arc<BTreeMap<u32, Track>>,
    /// Whether the viewer looks at it.
    pub(crate) is_looked_at: bool,
    /// The viewer's pose, if it changes over time.
    pub(crate) pose: Option<Pose>,
}

/// The way to the decoder's thread.
pub(crate) struct ToDecoder {
    work: SyncSender<ToDecode>,
    waiting: Arc<Waiting>,
}

/// The decoder's end of the way.
pub(crate) struct Work {
    work: Receiver<ToDecode>,
    waiting: Arc<Waiting>,
}

/// The numbers of chunks, frames and packets of sound that wait.
#[derive(Debug, Default)]
struct Waiting {
    chunks: AtomicUsize,
    frames: AtomicUsize,
    sound: AtomicUsize,
}

/// The reason why a frame is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The decoder is busy with earlier frames.
    Busy,
    /// The decoder has ended.
    Ended,
}

/// The number of frames that wait to be decoded, that of chunks, 5 MB of datagrams, and that of packets of sound, five
/// seconds.
const WAITING_FRAMES: usize = 4;
const WAITING_CHUNKS: usize = 4096;
const WAITING_SOUND: usize = 256;

/// The time after its deadline from which on a frame is passed over if a later one waits: a few bytes may take
/// long to decode, and what is shown is not to fall behind ever more.
const TOO_LATE: Duration = Duration::from_secs(1);

/// The time between two looks at where the points are.
const EXTENT_INTERVAL: Duration = Duration::from_millis(100);

/// Creates a way to the decoder's thread.
pub(crate) fn work() -> (ToDecoder, Work) {
    let (sender, receiver) = sync_channel(WAITING_CHUNKS + WAITING_FRAMES + WAITING_SOUND);
    let waiting: Arc<Waiting> = Arc::default();
    let to_decoder = ToDecoder {
        work: sender,
        waiting: Arc::clone(&waiting),
    };
    let work = Work {
        work: receiver,
        waiting,
    };
    (to_decoder, work)
}

impl ToDecoder {
    /// Hands over a chunk. One for which there is no room is decoded with its frame.
    pub(crate) fn send_chunk(&self, session: u64, object: ObjectId, bytes: Arc<[u8]>) {
        let chunk = ToDecode::Chunk {
            session,
            object,
            bytes,
        };
        // If the decoder has ended, the next frame finds out.
        let _ = send(&self.work, chunk, &self.waiting.chunks, WAITING_CHUNKS);
    }

    /// Hands over a packet of sound. One for which there is no room is missing.
    pub(crate) fn send_sound(&self, packet: SoundPacket) {
        // If the decoder has ended, the next frame finds out.
        let sound = ToDecode::Sound(packet);
        let _ = send(&self.work, sound, &self.waiting.sound, WAITING_SOUND);
    }

    /// Hands over a frame.
    pub(crate) fn send_frame(&self, frame: FrameToDecode) -> Result<(), NotTaken> {
        let frame = ToDecode::Frame(frame);
        send(&self.work, frame, &self.waiting.frames, WAITING_FRAMES)
    }
}

/// Hands over work, unless as much of its kind waits as may.
fn send(
    work: &SyncSender<ToDecode>,
    one: ToDecode,
    waiting: &AtomicUsize,
    most: usize,
) -> Result<(), NotTaken> {
    if waiting.load(Relaxed) >= most {
        return Err(NotTaken::Busy);
    }
    // Counted first, so that the decoder never counts below zero.
    waiting.fetch_add(1, Relaxed);
    work.try_send(one).map_err(|error| {
        waiting.fetch_sub(1, Relaxed);
        match error {
            TrySendError::Full(_) => NotTaken::Busy,
            TrySendError::Disconnected(_) => NotTaken::Ended,
        }
    })
}

impl Drop for Work {
    fn drop(&mut self) {
        // The next frame finds that the way has ended, instead of waiting for those before it.
        self.waiting.frames.store(0, Relaxed);
    }
}

/// The decoder's thread.
pub(crate) struct Decoding {
    clock: SteadyClock,
    work: Work,
    ahead: Ahead,
    /// A decoder for each track, by alias.
    decoders: BTreeMap<u32, FrameDecoder>,
    recorder: Recorder,
    /// The number of points that all tracks of a frame may have together.
    max_points: usize,
    /// The counts, for others.
    decoded: Arc<Mutex<DecodedFrames>>,
    extents: Option<Extents>,
}

/// Says where the points of the newest frames are.
pub(crate) struct Extents {
    to: Sender<Extent>,
    next: Instant,
}

impl Extents {
    pub(crate) fn new(to: Sender<Extent>) -> Self {
        Extents {
            to,
            next: Instant::ZERO,
        }
    }

    fn take(&mut self, now: Instant, cloud: &Cloud) {
        if self.next <= now {
            self.next = now + EXTENT_INTERVAL;
            // Who is not there any more does not need it.
            let _ = self.to.send(Extent::of(cloud));
        }
    }
}

impl Decoding {
    pub(crate) fn new(
        clock: SteadyClock,
        work: Work,
        recorder: Recorder,
        max_points: usize,
        decoded: Arc<Mutex<DecodedFrames>>,
        extents: Option<Extents>,
    ) -> Self {
        Decoding {
            clock,
            work,
            ahead: Ahead::new(max_points),
            decoders: BTreeMap::new(),
            recorder,
            max_points,
            decoded,
            extents,
        }
    }

    /// Decodes until no more work follows.
    pub(crate) fn run(mut self) -> (Decoded, Vec<anyhow::Error>) {
        while let Ok(work) = self.work.work.recv() {
            match work {
                ToDecode::Chunk {
                    session,
                    object,
                    bytes,
                } => {
                    self.work.waiting.chunks.fetch_sub(1, Relaxed);
                    // It is no gain any more when a frame waits that is to be decoded as a whole.
                    if self.work.waiting.frames.load(Relaxed) == 0 {
                        self.ahead.add(session, &object, &bytes);
                    }
                }
                ToDecode::Sound(packet) => {
                    self.work.waiting.sound.fetch_sub(1, Relaxed);
                    self.recorder.record_sound(packet);
                }
                ToDecode::Frame(frame) => {
                    self.work.waiting.frames.fetch_sub(1, Relaxed);
                    if self.is_passed_over(&frame) {
                        self.decoded.lock().passed_over += 1;
                    } else {
                        self.finish_frame(&frame);
                    }
                }
            }
        }
        let damaged = self.decoded.lock().damaged;
        self.recorder.finish(damaged, self.clock.now())
    }

    fn is_passed_over(&self, frame: &FrameToDecode) -> bool {
        let is_late = |deadline: Instant| deadline + TOO_LATE < self.clock.now();
        self.work.waiting.frames.load(Relaxed) > 0 && frame.deadline.is_some_and(is_late)
    }

    fn finish_frame(&mut self, to_decode: &FrameToDecode) {
        let started = self.clock.now();
        let FrameToDecode {
            captured,
            frame,
            is_looked_at,
            pose,
            ..
        } = to_decode;
        match self.decode(to_decode) {
            Ok(cloud) => {
                let now = self.clock.now();
                let times = [*captured, Some(started), Some(now)];
                let row = Row::new(frame, times, cloud.len(), *is_looked_at);
                if let Some(extents) = &mut self.extents {
                    extents.take(now, &cloud);
                }
                self.recorder.record(row, cloud, *pose);
                let mut decoded = self.decoded.lock();
                decoded.frames += 1;
                decoded.delay = row.delay();
            }
            Err(damage) => {
                let (group, object) = frame.id;
                let damaged = &mut self.decoded.lock().damaged;
                let (count, hint) = match damage {
                    Damage::Invalid(_) => (&mut damaged.invalid, ""),
                    Damage::TooManyPoints { .. } => {
                        (&mut damaged.too_many_points, "; --max-points allows more")
                    }
                };
                *count += 1;
                tracing::warn!(group, object, "frame cannot be decoded: {damage}{hint}");
            }
        }
    }

    /// Returns the points of all tracks.
    fn decode(&mut self, to_decode: &FrameToDecode) -> Result<Cloud, Damage> {
        let FrameToDecode {
            session,
            frame,
            tracks,
            ..
        } = to_decode;
        let mut ahead = self.ahead.take(*session, frame.id);
        // A publisher that starts again may have other tracks.
        self.decoders.retain(|alias, _| tracks.contains_key(alias));
        for alias in frame
            .tracks
            .keys()
            .filter(|alias| tracks.contains_key(alias))
        {
            self.decoders.entry(*alias).or_default();
        }
        let jobs = self.decoders.iter_mut().filter_map(|(alias, decoder)| {
            let codec = tracks.get(alias).and_then(|t| Codec::from_tag(t.codec));
            let layers = frame.tracks.get(alias)?;
            let ahead = ahead.remove(alias).unwrap_or_default();
            Some(TrackJob::new(codec, decoder, layers, ahead))
        });
        let jobs: Vec<TrackJob<'_>> = jobs.collect::<Result<_, _>>()?;
        decode_tracks(jobs, self.max_points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use hawser_codec::{Encoder, Setting, ZstdEncoder};
    use std::path::PathBuf;

    fn frame() -> FrameToDecode {
        FrameToDecode {
            session: 0,
            captured: None,
            deadline: None,
            frame: ReceivedFrame {
                id: (1, 0),
                deadline: None,
                first_arrival: None,
                completed: Instant::ZERO,
                is_whole: false,
                marked: false,
                tracks: BTreeMap::new(),
            },
            tracks: Arc::default(),
            is_looked_at: true,
            pose: None,
        }
    }

    fn decoding(work: Work) -> Decoding {
        let recorder = Recorder::create(&Config::new("192.0.2.1:1", PathBuf::from("media.key")));
        let clock = SteadyClock::start();
        Decoding::new(clock, work, recorder.unwrap(), 1, Arc::default(), None)
    }

    /// A frame of a session whose tracks have these aliases, with an empty cloud in each.
    fn frame_of(session: u64, aliases: std::ops::Range<u32>) -> FrameToDecode {
        let track = |alias: u32| Track {
            alias,
            codec: Codec::Zstd.tag(),
            layers: 1,
            name: alias.to_string(),
            parameters: Vec::new(),
        };
        let encoded = ZstdEncoder::new().encode(&Cloud::new(), Setting::BEST);
        let base: Vec<Arc<[u8]>> = vec![encoded.layers[0][0].as_slice().into()];
        let mut of = frame();
        of.session = session;
        of.frame.tracks = aliases
            .clone()
            .map(|alias| (alias, vec![base.clone()]))
            .collect();
        of.tracks = Arc::new(aliases.map(|alias| (alias, track(alias))).collect());
        of
    }

    #[test]
    fn a_publisher_that_starts_again_leaves_no_decoders_behind() {
        let mut decoding = decoding(work().1);
        for session in 0..100 {
            let first = 16 * session as u32;
            let cloud = decoding.decode(&frame_of(session, first..first + 16));
            assert_eq!(cloud.unwrap().len(), 0);
            let aliases: Vec<u32> = decoding.decoders.keys().copied().collect();
            assert_eq!(aliases, Vec::from_iter(first..first + 16));
        }
        // A track that was not announced is not decoded, even if it was received.
        let mut unannounced = frame_of(100, 0..16);
        unannounced.tracks = Arc::default();
        assert_eq!(decoding.decode(&unannounced).unwrap().len(), 0);
        assert!(decoding.decoders.is_empty());
    }

    #[test]
    fn chunks_that_wait_leave_room_for_frames() {
        let (to_decoder, work) = work();
        let object = ObjectId {
            alias: 0,
            group: 1,
            object: 0,
            layer: 0,
        };
        for _ in 0..2 * WAITING_CHUNKS {
            to_decoder.send_chunk(0, object, Arc::default());
        }
        for _ in 0..WAITING_FRAMES {
            assert_eq!(to_decoder.send_frame(frame()), Ok(()));
        }
        let chunks = work.work.try_iter();
        let chunks = chunks.filter(|work| matches!(work, ToDecode::Chunk { .. }));
        assert_eq!(chunks.count(), WAITING_CHUNKS);
    }

    #[test]
    fn late_frames_are_passed_over_while_later_ones_wait() {
        let (to_decoder, work) = work();
        let clock = SteadyClock::start();
        let decoded: Arc<Mutex<DecodedFrames>> = Arc::default();
        let recorder = Recorder::create(&Config::new("192.0.2.1:1", PathBuf::from("media.key")));
        let recorder = recorder.unwrap();
        let decoding = Decoding::new(clock, work, recorder, 1, Arc::clone(&decoded), None);
        let late = clock.now() - 2 * TOO_LATE;
        let later = clock.now() + 1000 * TOO_LATE;
        for deadline in [Some(late), Some(later), None, Some(late)] {
            let frame = FrameToDecode {
                deadline,
                ..frame()
            };
            assert_eq!(to_decoder.send_frame(frame), Ok(()));
        }
        drop(to_decoder);
        decoding.run();
        // Nothing waits behind the last one.
        let decoded = *decoded.lock();
        assert_eq!((decoded.passed_over, decoded.frames), (1, 3));
    }

    #[test]
    fn a_busy_decoder_takes_few_frames_and_an_ended_one_none() {
        let (to_decoder, work) = work();
        for _ in 0..WAITING_FRAMES {
            assert_eq!(to_decoder.send_frame(frame()), Ok(()));
        }
        assert_eq!(to_decoder.send_frame(frame()), Err(NotTaken::Busy));
        drop(work);
        assert_eq!(to_decoder.send_frame(frame()), Err(NotTaken::Ended));
    }
}
