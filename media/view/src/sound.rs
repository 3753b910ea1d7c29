//! Sound: packets as they arrive, and their file in the order of their capture.

use anyhow::Context;
use hawser_io::file;
use hawser_objects::{ReceiverEvent, TrackTiming};
use hawser_packets::media::{MediaTime, ObjectId};
use hawser_packets::session::Track;
use hawser_recording::{OpusWriter, PACKET, add_sound, is_packet, missing_beside};
use hawser_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most packets that wait to be taken from a session: five seconds.
const WAITING: usize = 256;

/// A packet of sound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SoundPacket {
    /// The start of the publisher.
    pub(crate) incarnation: [u8; 16],
    /// The number of the packet: those of a start of the publisher follow each other.
    pub(crate) number: u32,
    /// The time of the capture of its first sample by the own clock.
    pub(crate) captured: Instant,
    pub(crate) bytes: Vec<u8>,
}

/// The track of sound of a session, if there is one.
#[derive(Debug, Default)]
pub(crate) struct SoundTrack {
    alias: Option<u32>,
    lifetime: Duration,
    waiting: VecDeque<(ObjectId, MediaTime, Vec<u8>)>,
    counts: Option<Counts>,
}

/// The numbers of the packets that arrived.
#[derive(Debug, Clone, Copy)]
struct Counts {
    first: u32,
    newest: u32,
    arrived: u64,
}

impl SoundTrack {
    /// Returns the track among those that are announced.
    pub(crate) fn of(tracks: &[Track]) -> Self {
        let timed = |track: &Track| Some((track.alias, TrackTiming::parse(&track.parameters)?));
        let found = tracks.iter().find(|track| track.is_sound()).and_then(timed);
        SoundTrack {
            alias: found.map(|(alias, _)| alias),
            lifetime: found.map(|(_, timing)| timing.lifetime).unwrap_or_default(),
            ..SoundTrack::default()
        }
    }

    /// Returns the track's number.
    pub(crate) const fn alias(&self) -> Option<u32> {
        self.alias
    }

    /// Takes an event, if it is one of this track.
    pub(crate) fn take(&mut self, event: &ReceiverEvent) -> bool {
        let id = match event {
            ReceiverEvent::Packet { id, .. } => &id.object,
            ReceiverEvent::Object(object) => &object.id,
            ReceiverEvent::GivenUp { id, .. } => id,
        };
        if Some(id.alias) != self.alias {
            return false;
        }
        let ReceiverEvent::Object(object) = event else {
            return true;
        };
        let bytes = object.payloads.concat();
        // Others are not made, and count as missing.
        if is_packet(&bytes) {
            self.add(object.id, object.begun.deadline, bytes);
        }
        true
    }

    fn add(&mut self, id: ObjectId, deadline: MediaTime, bytes: Vec<u8>) {
        let counts = self.counts.get_or_insert(Counts {
            first: id.group,
            newest: id.group,
            arrived: 0,
        });
        counts.first = counts.first.min(id.group);
        counts.newest = counts.newest.max(id.group);
        counts.arrived += 1;
        self.waiting.push_back((id, deadline, bytes));
        if self.waiting.len() > WAITING {
            self.waiting.pop_front();
        }
    }

    /// Returns the next packet that has arrived. `local` returns the time of the own clock at a deadline; packets of
    /// which it is not known are left out.
    pub(crate) fn poll(
        &mut self,
        incarnation: [u8; 16],
        local: impl Fn(MediaTime) -> Option<Instant>,
    ) -> Option<SoundPacket> {
        loop {
            let (id, deadline, bytes) = self.waiting.pop_front()?;
            if let Some(deadline) = local(deadline) {
                return Some(SoundPacket {
                    incarnation,
                    number: id.group,
                    captured: deadline - self.lifetime,
                    bytes,
                });
            }
        }
    }

    /// Returns the numbers of packets that arrived, and that are missing between these.
    pub(crate) fn counts(&self) -> (u64, u64) {
        self.counts.map_or((0, 0), |counts| {
            let all = u64::from(counts.newest - counts.first) + 1;
            (counts.arrived, all.saturating_sub(counts.arrived))
        })
    }
}

/// The difference of a packet's capture from its place in the file beyond which it has another place: at most as much
/// as picture and sound may be apart.
const JUMP: Duration = Duration::from_millis(40);

/// The number of packets for which later ones wait, so that they are in order.
const REORDERED: i64 = 25;

/// The time before the first frame from which on packets are kept: decoders need it to begin well.
const BEFORE: Duration = Duration::from_millis(80);

/// The longest pause in a file.
const LONGEST: Duration = Duration::from_secs(3600);

/// A file of sound that begins with the first frame.
struct SoundFile {
    to: OpusWriter<File>,
    /// The capture of the packet at place 0.
    origin: Instant,
    /// The number of a packet of a start of the publisher, and its place.
    known: Option<([u8; 16], u32, i64)>,
    /// The packets that are not written, by place.
    waiting: BTreeMap<i64, Vec<u8>>,
    /// The place that is written next.
    next: i64,
}

impl SoundFile {
    /// Creates the file of sound that begins with this packet or, if the first frame was captured later, with that frame.
    fn create(path: &Path, frame: Instant, first: &SoundPacket) -> anyhow::Result<Self> {
        let late = first.captured.saturating_since(frame);
        // The packets that are missing at the beginning.
        let places = late.as_nanos().div_ceil(PACKET.as_nanos());
        let places = u32::try_from(places).unwrap_or(u32::MAX);
        let begins = first.captured - PACKET.saturating_mul(places);
        let skipped = frame.saturating_since(begins);
        let file = file::create(path).with_context(|| writing(path))?;
        let to = OpusWriter::create(file, skipped).with_context(|| writing(path))?;
        Ok(SoundFile {
            to,
            origin: first.captured,
            known: None,
            waiting: BTreeMap::new(),
            next: -i64::from(places),
        })
    }

    /// Adds a packet. The file ends before one that is more than an hour later than the one before.
    ///
    /// # Errors
    /// If the file cannot be written.
    fn add(&mut self, packet: &SoundPacket) -> anyhow::Result<()> {
        let place = self.place(packet);
        if place < self.next {
            // It was replaced by one without a frame, or is there already.
            return Ok(());
        }
        if PACKET.as_millis() as i64 * (place - self.next) > LONGEST.as_millis() as i64 {
            tracing::error!(
                "more than an hour without sound: the file of sound ends here, the pictures go on"
            );
            self.write(i64::MAX)?;
            self.next = i64::MAX;
            return Ok(());
        }
        self.waiting.insert(place, packet.bytes.clone());
        self.write(place - REORDERED)
    }

    /// Returns the place of a packet in the file.
    fn place(&mut self, packet: &SoundPacket) -> i64 {
        let period = PACKET.as_nanos() as f64;
        let nanos = |at: Instant| at.as_nanos() as f64;
        let captured = (nanos(packet.captured) - nanos(self.origin)) / period;
        let counted = self.known.and_then(|(incarnation, number, place)| {
            let after = i64::from(packet.number) - i64::from(number);
            (incarnation == packet.incarnation).then_some(place + after)
        });
        let jump = JUMP.as_nanos() as f64 / period;
        let place = counted.filter(|place| (*place as f64 - captured).abs() <= jump);
        let place = place.unwrap_or_else(|| captured.round() as i64);
        self.known = Some((packet.incarnation, packet.number, place));
        place
    }

    /// Writes what is there in order, and all before a place.
    fn write(&mut self, before: i64) -> anyhow::Result<()> {
        while let Some(entry) = self.waiting.first_entry() {
            let place = *entry.key();
            if place > self.next && place >= before {
                return Ok(());
            }
            let bytes = entry.remove();
            let missing = missing_beside(&bytes);
            for _ in self.next..place {
                self.to.write(&missing)?;
            }
            self.to.write(&bytes)?;
            self.next = place + 1;
        }
        Ok(())
    }

    /// Completes the file.
    fn finish(mut self) -> anyhow::Result<()> {
        self.write(i64::MAX)?;
        Ok(self.to.finish()?)
    }
}

fn writing(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// A file of sound that begins with the first frame, once both are there.
pub(crate) struct SavedSound {
    path: PathBuf,
    frame: Option<Instant>,
    /// The newest packets before the first frame.
    early: VecDeque<SoundPacket>,
    file: Option<SoundFile>,
}

impl SavedSound {
    pub(crate) fn new(path: PathBuf) -> Self {
        SavedSound {
            path,
            frame: None,
            early: VecDeque::new(),
            file: None,
        }
    }

    /// Returns whether there is a file.
    pub(crate) const fn has_begun(&self) -> bool {
        self.file.is_some()
    }

    /// Begins with a frame that was captured then, unless one has been before.
    pub(crate) fn begin(&mut self, frame: Instant) -> anyhow::Result<()> {
        self.frame.get_or_insert(frame);
        self.create()
    }

    pub(crate) fn add(&mut self, packet: SoundPacket) -> anyhow::Result<()> {
        if let Some(file) = &mut self.file {
            return file.add(&packet);
        }
        self.early.push_back(packet);
        if self.early.len() > WAITING {
            self.early.pop_front();
        }
        self.create()
    }

    fn create(&mut self) -> anyhow::Result<()> {
        let (Some(frame), None) = (self.frame, &self.file) else {
            return Ok(());
        };
        let mut packets = Vec::from(std::mem::take(&mut self.early));
        packets.retain(|packet| packet.captured + BEFORE >= frame);
        packets.sort_by_key(|packet| packet.captured);
        let Some(first) = packets.first() else {
            return Ok(());
        };
        let mut file = SoundFile::create(&self.path, frame, first)?;
        for packet in &packets {
            file.add(packet)?;
        }
        self.file = Some(file);
        Ok(())
    }

    /// Makes the file, if there is one, a part of a video.
    pub(crate) fn add_to(&mut self, video: &Path) -> anyhow::Result<()> {
        if !self.has_begun() {
            return Ok(());
        }
        self.finish()?;
        add_sound(video, &self.path)?;
        fs::remove_file(&self.path).with_context(|| writing(&self.path))
    }

    /// Completes the file, if there is one.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.file.take().map_or(Ok(()), SoundFile::finish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(1_000_000) + Duration::from_millis(millis)
    }

    fn packet(number: u32, captured: Instant) -> SoundPacket {
        SoundPacket {
            incarnation: [1; 16],
            number,
            captured,
            bytes: vec![0x78, number as u8, 7],
        }
    }

    /// Returns the packets of a file as ffprobe reads them: the time in milliseconds and the length of each.
    fn packets_of(path: &Path) -> Vec<(i64, usize)> {
        let shown = Command::new("ffprobe")
            .args([
                "-v",
                "error",
                "-show_entries",
                "packet=pts,size",
                "-of",
                "csv=p=0",
            ])
            .arg(path)
            .output()
            .unwrap();
        let lines = String::from_utf8(shown.stdout).unwrap();
        // Lines of other things have no packet.
        let packet = |line: &str| {
            let (time, size) = line.split_once(',')?;
            let time: i64 = time.parse().ok()?;
            Some((time / 48, size.trim_end_matches(',').parse().ok()?))
        };
        lines.lines().filter_map(packet).collect()
    }

    fn written(frame: Instant, packets: &[SoundPacket]) -> Vec<(i64, usize)> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sound.opus");
        let mut file = SoundFile::create(&path, frame, &packets[0]).unwrap();
        for packet in packets {
            file.add(packet).unwrap();
        }
        file.finish().unwrap();
        packets_of(&path)
    }

    #[test]
    fn a_file_has_each_packet_in_its_place() {
        let captured = |number: u32| at(40 + 20 * u64::from(number) + u64::from(number % 3));
        let packets = [3, 5, 4, 9, 8, 3].map(|number| packet(number, captured(number)));
        let expected = [
            (0, 3),
            (20, 3),
            (40, 3),
            (60, 1),
            (80, 1),
            (100, 3),
            (120, 3),
        ];
        assert_eq!(written(at(100), &packets), expected);
    }

    #[test]
    fn a_file_begins_with_the_first_frame() {
        let packets = [0, 1, 2].map(|number| packet(number, at(1000 + 20 * u64::from(number))));
        let later = written(at(1030), &packets);
        assert_eq!(later, [(-30, 3), (-10, 3), (10, 3)]);
        let earlier = written(at(950), &packets);
        assert_eq!(
            earlier,
            [(-10, 1), (10, 1), (30, 1), (50, 3), (70, 3), (90, 3)]
        );
    }

    #[test]
    fn sound_after_a_pause_is_where_it_was_captured() {
        let mut packets = vec![packet(0, at(0)), packet(1, at(20)), packet(2, at(110))];
        let again = SoundPacket {
            incarnation: [2; 16],
            ..packet(0, at(160))
        };
        packets.push(again);
        let whole: Vec<i64> = written(at(0), &packets)
            .into_iter()
            .filter(|(_, size)| *size > 1)
            .map(|(millis, _)| millis)
            .collect();
        assert_eq!(whole, [0, 20, 120, 160]);
    }

    #[test]
    fn a_file_waits_for_the_first_frame_with_the_newest_packets() {
        let directory = tempfile::tempdir().unwrap();
        let mut saved = SavedSound::new(directory.path().join("sound.opus"));
        for number in 0..1000 {
            saved
                .add(packet(number, at(20 * u64::from(number))))
                .unwrap();
        }
        assert_eq!((saved.has_begun(), saved.early.len()), (false, WAITING));
        saved.begin(at(19_930)).unwrap();
        assert!(saved.has_begun());
        saved.add(packet(1000, at(20_000))).unwrap();
        saved.finish().unwrap();
        let packets = packets_of(&saved.path);
        assert_eq!((packets[0], packets.len()), ((-70, 3), 8));
    }
}
