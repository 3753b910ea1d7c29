use crate::SoundPacket;
use crate::sound::{PublisherClock, Sound};
use hawser_codec::{Codec, Damage, Frame, FrameDecoder, PartialCloud, TrackJob, decode_frames};
use hawser_objects::{
    Encodings, FrameAssembler, FrameConfig, ReceivedFrame, Receiver, ReceiverConfig, TrackSecret,
    TrackTiming,
};
use hawser_packets::feedback::ClockStamp;
use hawser_packets::media::Hop;
use hawser_packets::moq;
use hawser_packets::session::{Accept, Announcement, MessageError, Status};
use hawser_units::{Ecn, Instant};
use std::collections::BTreeMap;
use std::num::NonZeroU8;
use std::time::Duration;

/// The lifetime of frames if the publisher does not announce it.
const LIFETIME: Duration = Duration::from_millis(150);

/// The maximum number of points, or pixels of views, of a frame: two views of 1920 x 1080 pixels. Bounds the memory of
/// the page.
const MAX_POINTS: usize = 1 << 22;

/// The salt of the hop key, which stays within the page: MoQ carries packets without the tags of a hop.
const HOP_SALT: [u8; 16] = [0; 16];

/// The objects of a broadcast, from the payloads of MoQ to points.
#[derive(Debug)]
pub struct Stream {
    hop: Hop,
    receiver: Receiver,
    assembler: FrameAssembler,
    /// The lifetime of frames.
    lifetime: Duration,
    sound: Sound,
    clock: PublisherClock,
    /// The codec of each track, by alias; `None`: one that is not known.
    codecs: BTreeMap<u32, Option<Codec>>,
    decoders: Decoders,
    /// The newest frame that is assembled and not decoded.
    newest: Option<ReceivedFrame>,
    counts: Counts,
}

/// The numbers of what a [`Stream`] did not show, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets that were refused: not of the publisher, damaged, late or received before.
    pub refused: u64,
    /// Frames that were passed over, because a newer one was there before they were decoded.
    pub passed_over: u64,
    /// Frames that cannot be decoded.
    pub damaged: u64,
}

/// A frame that was decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The view or the points of each track.
    pub frames: Vec<Frame>,
    /// The arrival of its first packet.
    pub arrived: Option<Instant>,
    /// Its capture, in milliseconds of the clock that [`SoundPacket`] also has.
    pub captured_ms: Option<f64>,
}

/// The reason not to open a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The announcement was not made by a holder of the secret.
    #[error("the secret is not that of this broadcast: {0}")]
    NotOfSecret(#[from] MessageError),
}

/// A decoder for each track, by alias.
#[derive(Default)]
struct Decoders(BTreeMap<u32, FrameDecoder>);

impl Stream {
    /// Opens the stream of a publisher, from its announcement with authenticator and the key epochs of its tracks by
    /// alias, ascending, as a catalog has them.
    ///
    /// # Errors
    /// If the announcement was not made by a holder of the secret.
    pub fn open(
        secret: &TrackSecret,
        announced: &[u8],
        epochs: Vec<(u32, u16)>,
    ) -> Result<Self, OpenError> {
        let announcement = secret.verify(announced)?;
        let accept = Accept {
            status: Status {
                clock: ClockStamp {
                    sent: Instant::ZERO,
                    echo: None,
                },
                publisher_ahead_nanos: 0,
                hop: 0,
                subscription: 0,
                report_interval_ms: NonZeroU8::MIN,
                relays: Vec::new(),
                epochs,
            },
            hop_salt: HOP_SALT,
            announcement: announced,
        };
        let config = ReceiverConfig::default();
        let frames = frames_of(&announcement);
        let tracks = announcement.tracks.iter();
        Ok(Stream {
            hop: secret.access().hop(&HOP_SALT, accept.status.hop),
            receiver: Receiver::new(config, secret, &announcement, &accept),
            lifetime: frames.lifetime,
            assembler: FrameAssembler::new(frames),
            sound: Sound::of(&announcement),
            clock: PublisherClock::default(),
            codecs: tracks
                .map(|track| (track.alias, Codec::from_tag(track.codec)))
                .collect(),
            decoders: Decoders::default(),
            newest: None,
            counts: Counts::default(),
        })
    }

    /// Takes an object of a track of MoQ. Its content is ignored until it is authenticated.
    pub fn take(&mut self, now: Instant, payload: &[u8]) {
        for packet in moq::packets(payload) {
            let taken = packet.is_ok_and(|packet| {
                let datagram = packet.datagram(&self.hop);
                let taken = self.receiver.handle_packet(now, &datagram, Ecn::NotEct);
                taken.is_ok()
            });
            self.counts.refused += u64::from(!taken);
        }
        // MoQ has no way for them.
        while self.receiver.poll_report(now, None).is_some() {}
        self.assemble(now);
    }

    /// Decodes the newest frame, if there is one that was not decoded before.
    pub fn decode(&mut self, now: Instant) -> Option<Decoded> {
        self.receiver.handle_timeout(now);
        self.assemble(now);
        let frame = self.newest.take()?;
        match self.decoders.decode(&frame, &self.codecs) {
            Ok(frames) => Some(Decoded {
                frames,
                arrived: frame.first_arrival,
                captured_ms: frame
                    .deadline
                    .map(|deadline| self.clock.captured_ms(deadline, self.lifetime)),
            }),
            Err(_) => {
                self.counts.damaged += 1;
                None
            }
        }
    }

    /// Takes the next packet of sound that has arrived.
    pub fn poll_sound(&mut self) -> Option<SoundPacket> {
        self.sound.poll()
    }

    /// Returns the numbers of what was not shown.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    fn assemble(&mut self, now: Instant) {
        while let Some(event) = self.receiver.poll_event() {
            if !self.sound.take(&event, &mut self.clock) {
                self.assembler.handle_event(now, event);
            }
        }
        self.assembler.handle_timeout(now);
        while let Some(frame) = self.assembler.poll_frame() {
            let before = self.newest.replace(frame);
            self.counts.passed_over += u64::from(before.is_some());
        }
    }
}

/// Returns the frames of all tracks and layers of pictures.
fn frames_of(announcement: &Announcement) -> FrameConfig {
    let tracks = announcement.tracks.iter();
    let tracks = tracks.filter(|track| !track.is_sound());
    let timings = { tracks.clone() }.filter_map(|track| TrackTiming::parse(&track.parameters));
    FrameConfig {
        selected: tracks.map(|track| (track.alias, track.layers)).collect(),
        encodings: Encodings::of(announcement),
        lifetime: timings.map(|of| of.lifetime).max().unwrap_or(LIFETIME),
    }
}

impl Decoders {
    /// Returns the view or the points of each track.
    fn decode(
        &mut self,
        frame: &ReceivedFrame,
        codecs: &BTreeMap<u32, Option<Codec>>,
    ) -> Result<Vec<Frame>, Damage> {
        for alias in frame.tracks.keys() {
            self.0.entry(*alias).or_default();
        }
        let jobs = self.0.iter_mut().filter_map(|(alias, decoder)| {
            let codec = codecs.get(alias).copied().flatten();
            let layers = frame.tracks.get(alias)?;
            let ahead = PartialCloud::default();
            Some(TrackJob::new(codec, decoder, layers, ahead))
        });
        let jobs: Vec<TrackJob<'_>> = jobs.collect::<Result<_, _>>()?;
        decode_frames(jobs, MAX_POINTS)
    }
}

impl std::fmt::Debug for Decoders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
