//! A session with a publisher, and the frames that are put together from it.

use crate::EncodingName;
use crate::sound::{SoundPacket, SoundTrack};
use anyhow::Context;
use hawser_objects::{
    Encodings, FrameAssembler, FrameConfig, FrameId, ReceivedFrame, ReceiverConfig, ReceiverEvent,
    TrackSecret, TrackTiming, Viewer, ViewerConfig,
};
use hawser_packets::feedback::Pose;
use hawser_packets::media::ObjectId;
use hawser_packets::session::{Announcement, Track};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The lifetime of frames if the publisher does not announce it.
const LIFETIME: Duration = Duration::from_millis(150);

/// A session, and what it has announced.
pub(crate) struct Session {
    /// Tells sessions apart, in which frames may have the same numbers.
    pub(crate) number: u64,
    pub(crate) viewer: Viewer,
    /// Chunks that have arrived, for the decoder.
    pub(crate) chunks: Vec<(ObjectId, Arc<[u8]>)>,
    pub(crate) sound: SoundTrack,
    pub(crate) assembler: FrameAssembler,
    pub(crate) tracks: Arc<BTreeMap<u32, Track>>,
    encodings: Encodings,
    encoding: EncodingName,
    /// The time from capture to deadline, if the publisher tells it.
    lifetime: Option<Duration>,
    /// The start of the publisher that makes the stream, or that of the session before.
    incarnation: Option<[u8; 16]>,
    /// The first frame that is put together, until it is taken, and the newest one that was taken.
    first: Option<ReceivedFrame>,
    taken: Option<FrameId>,
    /// The time at which a new session is asked for, if this one has ended.
    pub(crate) again_at: Option<Instant>,
}

impl Session {
    pub(crate) fn new(
        number: u64,
        secret: &TrackSecret,
        pose: Option<Pose>,
        encoding: EncodingName,
    ) -> anyhow::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).context("the system has no random numbers")?;
        let config = ViewerConfig {
            receiver: ReceiverConfig {
                packet_events: true,
                ..ReceiverConfig::default()
            },
            ..ViewerConfig::default()
        };
        let mut viewer = Viewer::new(config, secret.clone(), random);
        viewer.set_pose(pose);
        Ok(Session {
            number,
            viewer,
            chunks: Vec::new(),
            sound: SoundTrack::default(),
            assembler: FrameAssembler::new(FrameConfig {
                selected: BTreeMap::new(),
                encodings: Encodings::default(),
                lifetime: LIFETIME,
            }),
            tracks: Arc::default(),
            encodings: Encodings::default(),
            encoding,
            lifetime: None,
            incarnation: None,
            first: None,
            taken: None,
            again_at: None,
        })
    }

    /// Returns whether the session is open, or was when it ended.
    pub(crate) fn was_open(&self) -> bool {
        self.viewer.receiver().is_some()
    }

    /// Returns whether the session is open.
    pub(crate) fn is_open(&self) -> bool {
        self.was_open() && self.again_at.is_none()
    }

    /// Selects up to `layers` of each announced track, or of one encoding of each source.
    pub(crate) fn subscribe(&mut self, now: Instant, announcement: Announcement, layers: u8) {
        if self.incarnation.replace(announcement.incarnation) != Some(announcement.incarnation) {
            // The frames of another start of the publisher are numbered from the beginning.
            self.taken = None;
        }
        self.encodings = Encodings::of(&announcement);
        self.sound = SoundTrack::of(&announcement.tracks);
        let selected = self.selection(&announcement.tracks, layers);
        let tracks = announcement.tracks.iter();
        let timings = tracks.filter_map(|track| TrackTiming::parse(&track.parameters));
        self.lifetime = timings.map(|timing| timing.lifetime).max();
        self.assembler = FrameAssembler::new(FrameConfig {
            selected: selected.clone(),
            encodings: self.encodings.clone(),
            lifetime: self.lifetime.unwrap_or(LIFETIME),
        });
        self.request(now, selected);
        let tracks = announcement.tracks.into_iter();
        self.tracks = Arc::new(tracks.map(|track| (track.alias, track)).collect());
    }

    /// Selects another number of layers of each announced track, if the session is open.
    pub(crate) fn select(&mut self, now: Instant, layers: u8) {
        if self.is_open() {
            let selected = self.selection(self.tracks.values(), layers);
            self.assembler.select(now, selected.clone());
            self.request(now, selected);
        }
    }

    /// Asks for layers of pictures, and for the sound: that is heard whatever one looks at.
    fn request(&mut self, now: Instant, selected: BTreeMap<u32, u8>) {
        let sound = self.sound.alias().map(|alias| (alias, 1));
        let tracks = selected.into_iter().chain(sound);
        self.viewer.subscribe_to_any_encoding(now, tracks.collect());
    }

    /// Returns up to `layers` of each track of pictures, or of one encoding of each source.
    fn selection<'a>(
        &self,
        tracks: impl IntoIterator<Item = &'a Track>,
        layers: u8,
    ) -> BTreeMap<u32, u8> {
        let selected = tracks.into_iter().filter(|track| !track.is_sound());
        let selected = selected.map(|track| (track.alias, track.layers.min(layers)));
        let mut selected: BTreeMap<u32, u8> = selected.filter(|(_, layers)| *layers > 0).collect();
        let number = match self.encoding {
            EncodingName::Auto => return selected,
            EncodingName::Best => 0,
            EncodingName::Small => usize::MAX,
        };
        let chosen = self.encodings.choose(&selected, number);
        selected.retain(|alias, _| chosen.contains(alias));
        selected
    }

    /// Returns the next time at which [`Session::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let times = [self.viewer.poll_timeout(), self.assembler.poll_timeout()];
        times.into_iter().flatten().min()
    }

    /// Does what is due, and puts together what has arrived.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if self.viewer.poll_timeout().is_some_and(|due| due <= now) {
            self.viewer.handle_timeout(now);
        }
        if let Some(round_trip) = self.round_trip() {
            self.assembler.set_round_trip(round_trip);
        }
        while let Some(event) = self.viewer.poll_media() {
            if self.sound.take(&event) {
                continue;
            }
            if let ReceiverEvent::Packet { id, payload } = &event {
                self.chunks.push((id.object, payload.clone()));
            }
            self.assembler.handle_event(now, event);
        }
        self.assembler.handle_timeout(now);
    }

    /// Takes the next packet of sound.
    pub(crate) fn poll_sound(&mut self, now: Instant) -> Option<SoundPacket> {
        let receiver = self.viewer.receiver()?;
        let local = |deadline| receiver.local_time_of_deadline(now, deadline);
        self.sound.poll(self.incarnation?, local)
    }

    /// Returns whether a frame can be taken.
    pub(crate) fn has_frame(&mut self) -> bool {
        if self.first.is_none() {
            self.first = self.assembler.poll_frame();
        }
        self.first.is_some()
    }

    /// Takes the next frame.
    pub(crate) fn poll_frame(&mut self) -> Option<ReceivedFrame> {
        loop {
            let first = self.first.take();
            let frame = first.or_else(|| self.assembler.poll_frame())?;
            if self.taken < Some(frame.id) {
                self.taken = Some(frame.id);
                return Some(frame);
            }
        }
    }

    /// Returns whether both sessions are open and have the stream of one start of a publisher.
    pub(crate) fn is_of_stream_of(&self, other: &Session) -> bool {
        self.is_open() && self.incarnation == other.incarnation
    }

    /// Leaves out the frames up to the newest one that was taken from the session before, if the stream is the same.
    pub(crate) fn go_on_after(&mut self, before: &Session) {
        if !self.was_open() || self.is_of_stream_of(before) {
            (self.incarnation, self.taken) = (before.incarnation, before.taken);
            self.chunks
                .retain(|(object, _)| self.taken < Some((object.group, object.object)));
        }
    }

    /// Returns the round trip that relates the clocks; `None` before the first one.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let relation = self.viewer.receiver()?.clock().relation()?;
        Some(relation.round_trip)
    }

    /// Makes all frames ready: nothing more arrives.
    pub(crate) fn finish(&mut self, now: Instant) {
        self.handle_timeout(now);
        self.assembler.finish(now);
    }

    /// Returns the time of a frame's capture by the own clock.
    pub(crate) fn captured(&self, now: Instant, frame: &ReceivedFrame) -> Option<Instant> {
        Some(self.deadline(now, frame)? - self.lifetime?)
    }

    /// Returns the time of a frame's deadline by the own clock.
    pub(crate) fn deadline(&self, now: Instant, frame: &ReceivedFrame) -> Option<Instant> {
        let receiver = self.viewer.receiver()?;
        receiver.local_time_of_deadline(now, frame.deadline?)
    }
}
