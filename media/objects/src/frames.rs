//! The frames of a viewer, assembled from the objects of all tracks and layers.

use crate::encodings::Encodings;
use crate::object::Begun;
use crate::reassembly::PACKET_OVERHEAD;
use crate::receiver::{REPAIR, ReceivedObject, ReceiverEvent};
use hawser_packets::media::{MediaTime, ObjectId};
use hawser_units::Instant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

/// The name of a frame: group and object of its layers.
pub type FrameId = (u32, u32);

/// The layers of a frame that arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Group and object.
    pub id: FrameId,
    /// The deadline by the publisher's clock; `None` if no packet arrived in time.
    pub deadline: Option<MediaTime>,
    /// The arrival of the first packet.
    pub first_arrival: Option<Instant>,
    /// The time at which the last of its layers was complete or given up.
    pub completed: Instant,
    /// Whether all layers of all tracks that the publisher made arrived.
    pub is_whole: bool,
    /// Whether a packet was marked CE.
    pub marked: bool,
    /// The payloads of each layer of each track, by alias, from the base on. Where packets decode
    /// alone, some may be missing.
    pub tracks: BTreeMap<u32, Vec<Vec<Arc<[u8]>>>>,
}

/// The settings of a [`FrameAssembler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameConfig {
    /// The selected number of layers of each track, by alias.
    pub selected: BTreeMap<u32, u8>,
    /// The encodings of the same source, of which one is enough. Each track without other encodings is a
    /// source.
    pub encodings: Encodings,
    /// The lifetime of frames: the time after its first layer is complete at which an incomplete frame is
    /// ready.
    pub lifetime: Duration,
}

/// Assembles frames, in order. Bounded by [`FrameAssembler::MAX_PENDING`] frames and
/// [`FrameAssembler::MAX_BYTES`].
///
/// A frame is ready when it is whole, when a layer of it was given up, when a later one is whole,
/// when its time is over, or when it has its bases, layers of two later frames are complete, and a
/// lost packet would have been repaired: the publisher then dropped the rest before it left. Where layers
/// are left out of half of the frames or more, a layer of one later frame is enough, and where they are left out of
/// all frames, none. A frame has every layer whose lower layers arrived.
#[derive(Debug)]
pub struct FrameAssembler {
    config: FrameConfig,
    sources: Sources,
    /// A selection of more layers, of which none has arrived yet, and the time at which it takes effect
    /// anyway.
    selecting: Option<(BTreeMap<u32, u8>, Instant)>,
    round_trip: Duration,
    pending: BTreeMap<FrameId, Pending>,
    /// The layers of which a packet arrived that decodes alone, and that have not ended.
    begun: BTreeSet<(FrameId, u32, u8)>,
    newest_ready: Option<FrameId>,
    left_out: LeftOut,
    bytes: usize,
    ready: VecDeque<ReceivedFrame>,
    stats: FrameStats,
}

/// Counts of a [`FrameAssembler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameStats {
    /// Frames with all layers.
    pub whole: u64,
    /// Frames with the bases of all tracks, without some layers or packets.
    pub reduced: u64,
    /// Frames with the bases of some tracks only.
    pub without_track: u64,
    /// Frames that cannot be decoded: packets arrived, but no base.
    pub undecodable: u64,
    /// Objects that arrived after their frame was ready.
    pub late_objects: u64,
    /// Frames that have another than the best selected encoding of a source.
    pub lesser_encoding: u64,
}

impl AddAssign for FrameStats {
    fn add_assign(&mut self, other: FrameStats) {
        self.whole += other.whole;
        self.reduced += other.reduced;
        self.without_track += other.without_track;
        self.undecodable += other.undecodable;
        self.late_objects += other.late_objects;
        self.lesser_encoding += other.lesser_encoding;
    }
}

/// The newest frames of which layers were left out: of which nothing had arrived, though the bases had.
/// The newest frame is the lowest bit.
#[derive(Debug, Default)]
struct LeftOut(u32);

/// The tracks of each source with their selected number of layers, the best one first.
#[derive(Debug)]
struct Sources(Vec<Vec<(u32, u8)>>);

/// A frame that is not ready.
#[derive(Debug)]
struct Pending {
    layers: BTreeMap<(u32, u8), Layer>,
    /// The time at which the frame is ready, complete or not.
    due: Instant,
    /// The time at which the bases of all tracks were complete.
    based_at: Option<Instant>,
}

/// A layer of a track that is complete or was given up.
#[derive(Debug)]
struct Layer {
    payloads: Vec<Arc<[u8]>>,
    is_complete: bool,
    begun: Option<Begun>,
}

impl FrameAssembler {
    /// The maximum number of frames that are assembled at the same time. Older ones are ready at once.
    pub const MAX_PENDING: usize = 64;

    /// The maximum number of layers that are known to have begun.
    const MAX_BEGUN: usize = 1024;

    /// The maximum number of bytes of all of them.
    pub const MAX_BYTES: usize = 32 << 20;

    /// Creates an assembler.
    pub fn new(config: FrameConfig) -> Self {
        FrameAssembler {
            sources: Sources::of(&config),
            config,
            selecting: None,
            round_trip: Duration::ZERO,
            pending: BTreeMap::new(),
            begun: BTreeSet::new(),
            newest_ready: None,
            left_out: LeftOut::default(),
            bytes: 0,
            ready: VecDeque::new(),
            stats: FrameStats::default(),
        }
    }

    /// Sets the round-trip time, from which follows how long a repair takes.
    pub fn set_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip;
    }

    /// Changes the selected numbers of layers of the tracks. Frames do not wait for layers that are no longer
    /// selected. The sender begins with additional layers some frames later: frames wait for them as soon as
    /// one of them arrives, or a round trip and the lifetime of a frame have passed.
    pub fn select(&mut self, now: Instant, selected: BTreeMap<u32, u8>) {
        let before = &mut self.config.selected;
        before.retain(|alias, _| selected.contains_key(alias));
        for (alias, layers) in before.iter_mut() {
            *layers = selected[alias].min(*layers);
        }
        self.sources = Sources::of(&self.config);
        let before = &self.config.selected;
        let by = now + self.config.lifetime + self.round_trip;
        self.selecting = (*before != selected).then_some((selected, by));
    }

    /// Processes an event of the receiver. Frames wait for layers of which a packet is an event.
    pub fn handle_event(&mut self, now: Instant, event: ReceiverEvent) {
        match event {
            ReceiverEvent::Packet { id, .. } => self.begin(&id.object),
            ReceiverEvent::Object(object) => self.add(now, object.id, object.into()),
            ReceiverEvent::GivenUp {
                id,
                begun,
                payloads,
                ..
            } => {
                let layer = Layer {
                    payloads,
                    is_complete: false,
                    begun,
                };
                self.add(now, id, layer);
                if self.pending.contains_key(&frame_of(&id)) {
                    self.finish_until(now, frame_of(&id));
                }
            }
        }
    }

    /// Returns the next frame.
    pub fn poll_frame(&mut self) -> Option<ReceivedFrame> {
        self.ready.pop_front()
    }

    /// Returns the next time at which [`FrameAssembler::handle_timeout`] has to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.pending.values().map(|pending| pending.due);
        let selecting = self.selecting.as_ref().map(|(_, by)| *by);
        due.chain(selecting).min()
    }

    /// Makes frames ready whose time is over.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some((selected, _)) = self.selecting.take_if(|(_, by)| *by <= now) {
            self.set_selected(selected);
        }
        let mut newest_first = self.pending.iter().rev();
        let over = newest_first.find(|(_, pending)| pending.due <= now);
        if let Some(id) = over.map(|(id, _)| *id) {
            self.finish_until(now, id);
        }
    }

    /// Makes all frames ready, complete or not: no further packets arrive.
    pub fn finish(&mut self, now: Instant) {
        self.finish_until(now, (u32::MAX, u32::MAX));
    }

    /// Returns the counts.
    pub const fn stats(&self) -> &FrameStats {
        &self.stats
    }

    fn set_selected(&mut self, selected: BTreeMap<u32, u8>) {
        self.config.selected = selected;
        self.sources = Sources::of(&self.config);
    }

    fn begin(&mut self, id: &ObjectId) {
        let is_selected = self.config.selected.get(&id.alias) > Some(&id.layer);
        let is_ready = self
            .newest_ready
            .is_some_and(|newest| frame_of(id) <= newest);
        if is_selected && !is_ready {
            self.begun.insert((frame_of(id), id.alias, id.layer));
            if self.begun.len() > FrameAssembler::MAX_BEGUN {
                self.begun.pop_first();
            }
        }
    }

    /// Returns whether packets of a layer of a frame arrived, and more may.
    fn has_begun(&self, id: FrameId) -> bool {
        let all = (id, 0, 0)..=(id, u32::MAX, u8::MAX);
        self.begun.range(all).next().is_some()
    }

    fn add(&mut self, now: Instant, id: ObjectId, layer: Layer) {
        let is_of = |selected: &BTreeMap<u32, u8>| selected.get(&id.alias) > Some(&id.layer);
        let has_begun = !is_of(&self.config.selected);
        let begins = |(selected, _): &mut (BTreeMap<u32, u8>, _)| has_begun && is_of(selected);
        if let Some((selected, _)) = self.selecting.take_if(begins) {
            self.set_selected(selected);
        }
        let selected = &self.config.selected;
        if selected.get(&id.alias).is_none_or(|n| id.layer >= *n) {
            return;
        }
        let frame = frame_of(&id);
        self.begun.remove(&(frame, id.alias, id.layer));
        if self.newest_ready.is_some_and(|newest| frame <= newest) {
            self.stats.late_objects += u64::from(layer.is_complete);
            if layer.is_complete {
                self.left_out = LeftOut::default();
            }
            return;
        }
        let pending = self.pending.entry(frame).or_insert_with(|| Pending {
            layers: BTreeMap::new(),
            due: now + self.config.lifetime,
            based_at: None,
        });
        self.bytes += layer.size();
        if let Some(before) = pending.layers.insert((id.alias, id.layer), layer) {
            self.bytes -= before.size();
        }
        if pending.based_at.is_none() && pending.has_bases(&self.sources) {
            pending.based_at = Some(now);
        }
        if pending.is_whole(&self.sources) {
            self.finish_until(now, frame);
        } else if let Some(passed) = self.passed(now) {
            self.finish_until(now, passed);
        }
    }

    /// Returns the newest frame that no longer waits.
    fn passed(&self, now: Instant) -> Option<FrameId> {
        let followers = self.left_out.followers();
        let repair = match followers {
            LeftOut::UNKNOWN => self.round_trip * 3 / 2 + REPAIR,
            _ => Duration::ZERO,
        };
        let is_repaired = |pending: &Pending| pending.based_at.is_some_and(|at| at + repair <= now);
        let mut followed = self.pending.iter().rev().skip(followers);
        let passed = followed.find(|(id, pending)| is_repaired(pending) && !self.has_begun(**id));
        let surplus = || {
            let is_full = self.bytes > FrameAssembler::MAX_BYTES;
            let oldest = || self.pending.iter().next().filter(|_| is_full);
            let mut newest_first = self.pending.iter().rev();
            newest_first
                .nth(FrameAssembler::MAX_PENDING)
                .or_else(oldest)
        };
        passed.or_else(surplus).map(|(id, _)| *id)
    }

    /// Makes a frame ready, and those before it.
    fn finish_until(&mut self, now: Instant, last: FrameId) {
        while let Some(entry) = self.pending.first_entry().filter(|e| *e.key() <= last) {
            let (id, pending) = entry.remove_entry();
            self.bytes -= pending.size();
            self.newest_ready = Some(id);
            if self.config.selected.is_empty() {
                continue;
            }
            let has_bases = pending.has_bases(&self.sources);
            if has_bases {
                let lacks = pending.lacks_layers(&self.sources);
                self.left_out.add(lacks && !self.has_begun(id));
            }
            self.begun.retain(|(frame, _, _)| *frame > id);
            let frame = pending.into_frame(id, now, &self.sources);
            let is_lesser = self.sources.has_lesser(&frame);
            self.stats.lesser_encoding += u64::from(is_lesser);
            let count = match (frame.tracks.is_empty(), frame.is_whole, has_bases) {
                (true, _, _) => &mut self.stats.undecodable,
                (false, true, _) => &mut self.stats.whole,
                (false, false, true) => &mut self.stats.reduced,
                (false, false, false) => &mut self.stats.without_track,
            };
            *count += 1;
            if !frame.tracks.is_empty() {
                self.ready.push_back(frame);
            }
        }
    }
}

impl Sources {
    fn of(config: &FrameConfig) -> Self {
        let selected = |alias: &u32| {
            let layers = *config.selected.get(alias)?;
            (layers > 0).then_some((*alias, layers))
        };
        let encodings = config.encodings.sources().iter();
        let mut sources: Vec<Vec<(u32, u8)>> = encodings
            .map(|source| source.iter().filter_map(selected).collect())
            .collect();
        sources.retain(|source| !source.is_empty());
        let is_in_none = |alias: &&u32| {
            let mut sources = config.encodings.sources().iter();
            !sources.any(|source| source.contains(alias))
        };
        let alone = config.selected.keys().filter(is_in_none);
        sources.extend(alone.filter_map(selected).map(|track| vec![track]));
        Sources(sources)
    }

    /// Returns whether every source has a track with its number of layers that has data.
    fn all_have(&self, has: impl Fn(u32, u8) -> bool) -> bool {
        let mut sources = self.0.iter();
        sources.all(|source| source.iter().any(|(alias, count)| has(*alias, *count)))
    }

    /// Returns whether a frame has a track that is not the best encoding of its source.
    fn has_lesser(&self, frame: &ReceivedFrame) -> bool {
        let lesser = self.0.iter().flat_map(|source| &source[1..]);
        let mut aliases = lesser.map(|(alias, _)| alias);
        aliases.any(|alias| frame.tracks.contains_key(alias))
    }
}

impl LeftOut {
    /// The number of later frames that have to have arrived where layers are not left out.
    const UNKNOWN: usize = 2;

    fn add(&mut self, is_left_out: bool) {
        self.0 = self.0 << 1 | u32::from(is_left_out);
    }

    /// Returns the number of later frames of which a layer has to be complete before a frame is ready that has its
    /// bases only.
    const fn followers(&self) -> usize {
        match self.0 {
            u32::MAX => 0,
            newest if (newest & 0xff).count_ones() >= 4 => 1,
            _ => LeftOut::UNKNOWN,
        }
    }
}

impl Pending {
    /// Returns whether a layer is missing of which nothing has arrived.
    fn lacks_layers(&self, sources: &Sources) -> bool {
        let lacks = |(alias, count): &(u32, u8)| {
            !self.has_all(*alias, *count)
                && (0..*count).all(|layer| {
                    let layer = self.layers.get(&(*alias, layer));
                    layer.is_none_or(|layer| layer.is_complete)
                })
        };
        let mut best = sources.0.iter().filter_map(|source| self.best(source));
        best.any(lacks)
    }

    /// Returns whether the base of every source has data.
    fn has_bases(&self, sources: &Sources) -> bool {
        sources.all_have(|alias, _| self.has_base(alias))
    }

    fn has_base(&self, alias: u32) -> bool {
        let base = self.layers.get(&(alias, 0));
        base.is_some_and(|base| !base.payloads.is_empty())
    }

    /// Returns the best track of a source that is whole, or else the best one with a whole base, or else the
    /// best one with data.
    fn best<'a>(&self, source: &'a [(u32, u8)]) -> Option<&'a (u32, u8)> {
        let find = |is_enough: &dyn Fn(u32, u8) -> bool| {
            let mut tracks = source.iter();
            tracks.find(|(alias, count)| self.has_base(*alias) && is_enough(*alias, *count))
        };
        find(&|alias, count| self.has_all(alias, count))
            .or_else(|| find(&|alias, _| self.has_all(alias, 1)))
            .or_else(|| find(&|_, _| true))
    }

    fn is_whole(&self, sources: &Sources) -> bool {
        sources.all_have(|alias, count| self.has_all(alias, count))
    }

    /// Returns whether all layers of a track are complete: those that are selected and were made.
    fn has_all(&self, alias: u32, count: u8) -> bool {
        for layer in 0..count {
            match self.layers.get(&(alias, layer)) {
                Some(layer) if !layer.is_complete => return false,
                Some(layer) if layer.is_top() => return true,
                Some(_) => {}
                None => return false,
            }
        }
        true
    }

    fn into_frame(mut self, id: FrameId, completed: Instant, sources: &Sources) -> ReceivedFrame {
        let is_whole = self.is_whole(sources);
        let begun = || self.layers.values().filter_map(|layer| layer.begun);
        let mut frame = ReceivedFrame {
            id,
            deadline: begun().map(|begun| begun.deadline).next(),
            first_arrival: begun().map(|begun| begun.first_arrival).min(),
            completed,
            is_whole,
            marked: begun().any(|begun| begun.marked),
            tracks: BTreeMap::new(),
        };
        for source in &sources.0 {
            let Some((alias, count)) = self.best(source) else {
                continue;
            };
            let usable = (0..*count).map_while(|layer| {
                let layer = self.layers.remove(&(*alias, layer))?;
                (!layer.payloads.is_empty()).then_some(layer.payloads)
            });
            frame.tracks.insert(*alias, usable.collect());
        }
        frame
    }

    fn size(&self) -> usize {
        self.layers.values().map(Layer::size).sum()
    }
}

impl Layer {
    /// Returns whether the publisher made no higher layer.
    fn is_top(&self) -> bool {
        self.begun.is_some_and(|begun| begun.flags.top_layer)
    }

    /// Returns the number of bytes that the layer takes.
    fn size(&self) -> usize {
        let payloads = self.payloads.iter();
        payloads
            .map(|payload| payload.len() + PACKET_OVERHEAD)
            .sum()
    }
}

impl From<ReceivedObject> for Layer {
    fn from(object: ReceivedObject) -> Self {
        Layer {
            payloads: object.payloads,
            is_complete: true,
            begun: Some(object.begun),
        }
    }
}

const fn frame_of(id: &ObjectId) -> FrameId {
    (id.group, id.object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_packets::media::Flags;
    use hawser_packets::session::{Announcement, Track};
    use proptest::prelude::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn id(alias: u32, group: u32, layer: u8) -> ObjectId {
        ObjectId {
            alias,
            group,
            object: 0,
            layer,
        }
    }

    fn assembler(selected: &[(u32, u8)]) -> FrameAssembler {
        FrameAssembler::new(FrameConfig {
            selected: selected.iter().copied().collect(),
            encodings: Encodings::default(),
            lifetime: Duration::from_millis(150),
        })
    }

    fn begun(id: ObjectId) -> Begun {
        Begun {
            flags: Flags::default(),
            deadline: MediaTime(id.group * 33),
            first_arrival: at(u64::from(id.layer) + 1),
            marked: false,
        }
    }

    fn object(id: ObjectId) -> ReceiverEvent {
        ReceiverEvent::Object(ReceivedObject {
            id,
            begun: begun(id),
            payloads: vec![[id.layer].into(), [id.alias as u8].into()],
        })
    }

    fn given_up(id: ObjectId, payloads: &[u8]) -> ReceiverEvent {
        ReceiverEvent::GivenUp {
            id,
            arrived: 1,
            count: None,
            begun: Some(begun(id)),
            payloads: payloads.iter().map(|byte| [*byte].into()).collect(),
        }
    }

    fn groups(assembler: &mut FrameAssembler) -> Vec<(u32, bool)> {
        let frames = std::iter::from_fn(|| assembler.poll_frame());
        frames.map(|frame| (frame.id.0, frame.is_whole)).collect()
    }

    #[test]
    fn a_frame_is_ready_when_all_layers_of_all_tracks_are_there() {
        let mut assembler = assembler(&[(1, 2), (2, 1)]);
        for id in [id(1, 7, 1), id(2, 7, 0)] {
            assembler.handle_event(at(20), object(id));
            assert_eq!(assembler.poll_frame(), None);
        }
        assembler.handle_event(at(30), object(id(1, 7, 0)));
        let frame = assembler.poll_frame().unwrap();
        assert_eq!((frame.id, frame.is_whole), ((7, 0), true));
        assert_eq!(frame.first_arrival, Some(at(1)));
        assert_eq!(
            (frame.deadline, frame.completed),
            (Some(MediaTime(231)), at(30))
        );
        let layers: Vec<usize> = frame.tracks.values().map(Vec::len).collect();
        assert_eq!(layers, [2, 1]);
        assert_eq!(assembler.stats().whole, 1);
    }

    #[test]
    fn a_later_whole_frame_ends_the_wait_for_refinement() {
        let mut assembler = assembler(&[(1, 2)]);
        assembler.handle_event(at(1), object(id(1, 1, 0)));
        assembler.handle_event(at(1), object(id(1, 2, 1)));
        for layer in [0, 1] {
            assembler.handle_event(at(2), object(id(1, 3, layer)));
        }
        assert_eq!(groups(&mut assembler), [(1, false), (3, true)]);
        let stats = *assembler.stats();
        assert_eq!((stats.reduced, stats.undecodable, stats.whole), (1, 1, 1));
        assembler.handle_event(at(3), object(id(1, 2, 0)));
        assert_eq!(assembler.stats().late_objects, 1, "group 2 was passed over");
        assert_eq!(assembler.poll_frame(), None);
    }

    #[test]
    fn an_unsent_refinement_is_waited_for_two_frames_and_a_repair() {
        for (round_trip, expected) in [(0, [0, 0, 1, 1, 1]), (70, [0, 0, 0, 0, 1])] {
            let mut assembler = assembler(&[(1, 2)]);
            assembler.set_round_trip(Duration::from_millis(round_trip));
            let ready = [0, 1, 2, 3, 4].map(|group| {
                assembler.handle_event(at(33 * u64::from(group)), object(id(1, group, 0)));
                groups(&mut assembler).len()
            });
            assert_eq!(ready, expected, "{round_trip} ms");
        }
    }

    #[test]
    fn layers_that_are_left_out_of_most_frames_are_waited_for_less() {
        let mut assembler = assembler(&[(1, 2)]);
        assembler.set_round_trip(Duration::from_millis(70));
        let mut add = |group: u32, layer| {
            assembler.handle_event(at(33 * u64::from(group)), object(id(1, group, layer)));
            groups(&mut assembler)
        };
        // The refinement of the first ones may still come.
        let ready: Vec<usize> = (0..10).map(|group| add(group, 0).len()).collect();
        assert_eq!(ready, [0, 0, 0, 0, 1, 1, 1, 1, 4, 1]);
        assert_eq!(add(9, 1), [(9, true)]);
        for group in 10..42 {
            let ready = add(group, 0);
            assert!(ready.iter().all(|(ready, _)| *ready < group), "{ready:?}");
        }
        let ready = [42, 43].map(|group| add(group, 0));
        assert_eq!(ready, [vec![(41, false)], vec![(42, false), (43, false)]]);
        // One that comes late is the last that does.
        assert_eq!(add(43, 1), []);
        assert_eq!(add(44, 0), []);
        assert_eq!(add(44, 1), [(44, true)]);
    }

    #[test]
    fn a_frame_of_which_the_publisher_made_no_more_layers_is_whole() {
        let mut assembler = assembler(&[(1, 2)]);
        let ReceiverEvent::Object(mut base) = object(id(1, 1, 0)) else {
            unreachable!()
        };
        base.begun.flags.top_layer = true;
        assembler.handle_event(at(1), ReceiverEvent::Object(base));
        assert_eq!(groups(&mut assembler), [(1, true)]);
    }

    #[test]
    fn a_frame_is_ready_when_its_time_is_over() {
        let mut assembler = assembler(&[(1, 1), (2, 1)]);
        for group in [1, 2] {
            assembler.handle_event(at(10 * u64::from(group)), object(id(1, group, 0)));
        }
        assert_eq!(assembler.poll_timeout(), Some(at(160)));
        assembler.handle_timeout(at(159));
        assert_eq!(assembler.poll_frame(), None);
        assembler.handle_timeout(at(160));
        assert_eq!(groups(&mut assembler), [(1, false)]);
        assembler.finish(at(161));
        assert_eq!(groups(&mut assembler), [(2, false)]);
        let stats = *assembler.stats();
        assert_eq!((stats.without_track, stats.reduced), (2, 0));
        assert_eq!((assembler.bytes, assembler.poll_timeout()), (0, None));
    }

    #[test]
    fn one_encoding_of_each_source_makes_a_frame() {
        let track = |alias, name: &str| Track {
            alias,
            codec: 1,
            layers: 2,
            name: name.to_owned(),
            parameters: Vec::new(),
        };
        let announcement = Announcement {
            incarnation: [0; 16],
            started_unix_millis: 0,
            tracks: vec![track(1, "left"), track(2, "right"), track(3, "left")],
        };
        let mut assembler = FrameAssembler::new(FrameConfig {
            selected: [(1, 2), (2, 1), (3, 1)].into(),
            encodings: Encodings::of(&announcement),
            lifetime: Duration::from_millis(150),
        });
        let arrived: [&[ObjectId]; 3] = [
            &[id(1, 0, 0), id(1, 0, 1), id(2, 0, 0)],
            &[id(3, 1, 0), id(2, 1, 0)],
            &[id(2, 2, 0), id(1, 2, 0), id(3, 2, 0)],
        ];
        for objects in arrived {
            for id in objects {
                assembler.handle_event(at(1), object(*id));
            }
        }
        let frames: Vec<ReceivedFrame> = std::iter::from_fn(|| assembler.poll_frame()).collect();
        let tracks = frames
            .iter()
            .map(|frame| frame.tracks.keys().copied().collect());
        let tracks: Vec<Vec<u32>> = tracks.collect();
        // The best encoding of the last one is not whole, and the other is.
        assert_eq!(tracks, [[1, 2], [2, 3], [2, 3]]);
        assert!(frames.iter().all(|frame| frame.is_whole));
        assert_eq!(assembler.stats().lesser_encoding, 2);
    }

    #[test]
    fn a_partial_layer_is_used_if_packets_decode_alone() {
        let mut assembler = assembler(&[(1, 2)]);
        assembler.handle_event(at(1), object(id(1, 1, 0)));
        assembler.handle_event(at(9), given_up(id(1, 1, 1), &[4, 5]));
        let frame = assembler.poll_frame().unwrap();
        assert_eq!(frame.tracks[&1][1].len(), 2);
        assert!(!frame.is_whole && frame.completed == at(9));

        assembler.handle_event(at(10), given_up(id(1, 2, 0), &[]));
        assembler.handle_event(at(10), object(id(1, 2, 1)));
        assert_eq!(assembler.poll_frame(), None);
        assert_eq!(assembler.stats().undecodable, 1);
    }

    #[test]
    fn a_layer_that_was_not_selected_is_ignored() {
        let mut assembler = assembler(&[(1, 1)]);
        assembler.handle_event(at(1), object(id(1, 1, 1)));
        assembler.handle_event(at(1), object(id(9, 1, 0)));
        assert_eq!(assembler.poll_frame(), None);
        assembler.handle_event(at(1), object(id(1, 1, 0)));
        assert_eq!(groups(&mut assembler), [(1, true)]);
    }

    #[test]
    fn layers_that_are_not_selected_any_more_are_not_waited_for() {
        let mut assembler = assembler(&[(1, 2)]);
        assembler.select(at(0), [(1, 1)].into());
        assembler.handle_event(at(1), object(id(1, 1, 0)));
        assert_eq!(groups(&mut assembler), [(1, true)]);
        assembler.handle_event(at(2), object(id(1, 1, 1)));
        assert_eq!(assembler.stats().late_objects, 0);
        assembler.handle_event(at(3), given_up(id(1, 3, 0), &[]));
        assembler.select(at(4), BTreeMap::new());
        assembler.finish(at(5));
        assert_eq!(assembler.stats().undecodable, 1);
    }

    #[test]
    fn more_layers_are_waited_for_when_the_first_of_them_has_come() {
        let mut assembler = assembler(&[(1, 1)]);
        assembler.select(at(0), [(1, 2)].into());
        assembler.handle_event(at(1), object(id(1, 1, 0)));
        assert_eq!(groups(&mut assembler), [(1, true)]);
        assembler.handle_event(at(2), object(id(1, 2, 1)));
        assembler.handle_event(at(3), object(id(1, 2, 0)));
        let frame = assembler.poll_frame().unwrap();
        assert!(frame.is_whole && frame.tracks[&1].len() == 2);
        assembler.handle_event(at(4), object(id(1, 3, 0)));
        assert_eq!(groups(&mut assembler), []);
    }

    #[test]
    fn added_layers_that_do_not_arrive_are_missing_after_a_time() {
        let mut assembler = assembler(&[(1, 1)]);
        assembler.set_round_trip(Duration::from_millis(20));
        assembler.select(at(0), [(1, 2), (2, 1)].into());
        assert_eq!(assembler.poll_timeout(), Some(at(170)));
        assembler.handle_timeout(at(170));
        assert_eq!(assembler.poll_timeout(), None);
        assembler.handle_event(at(171), object(id(1, 1, 0)));
        assert_eq!(groups(&mut assembler), []);
    }

    proptest! {
        #[test]
        fn frames_come_once_and_in_order_and_their_number_is_bounded(
            events in prop::collection::vec((0u32..40, 0u8..3, 1u32..3, any::<bool>()), 0..300),
            selections in prop::collection::btree_map(0u64..300, (0u8..3, 0u8..4), 0..5),
        ) {
            let mut assembler = assembler(&[(1, 2), (2, 3)]);
            let mut last = None;
            for (time, (group, layer, alias, is_complete)) in (0..).zip(events) {
                if let Some((one, two)) = selections.get(&time) {
                    assembler.select(at(time), [(1, *one), (2, *two)].into());
                }
                let id = id(alias, group, layer);
                let event = if is_complete { object(id) } else { given_up(id, &[1]) };
                assembler.handle_event(at(time), event);
                prop_assert!(assembler.pending.len() <= FrameAssembler::MAX_PENDING);
                while let Some(frame) = assembler.poll_frame() {
                    prop_assert!(Some(frame.id) > last);
                    last = Some(frame.id);
                    prop_assert!(!frame.tracks.is_empty());
                }
            }
        }
    }
}
