//! The frames of a viewer, put together from the objects of all tracks and layers.

use crate::receiver::{ReceivedObject, ReceiverEvent};
use hawser_units::Instant;
use hawser_wire::media::{MediaTime, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// The name of a frame: group and object of its layers.
pub type FrameId = (u32, u32);

/// A frame as far as it arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Group and object.
    pub id: FrameId,
    /// The deadline by the publisher's clock; `None` if no layer is complete.
    pub deadline: Option<MediaTime>,
    /// The arrival of the first packet of the layers that are complete.
    pub first_arrival: Option<Instant>,
    /// The time at which the last of what is here was complete or given up.
    pub completed: Instant,
    /// Whether all layers of all tracks arrived.
    pub is_whole: bool,
    /// Whether a packet was marked CE.
    pub marked: bool,
    /// The payloads of each layer of each track, by alias, from the base on. Where packets decode
    /// alone, some may be missing.
    pub tracks: BTreeMap<u32, Vec<Vec<Arc<[u8]>>>>,
}

/// Puts frames together, in order. Bounded by [`FrameAssembler::MAX_PENDING`] frames.
///
/// A frame is ready when it is whole, when a layer of it was given up, when a later one is whole, or
/// when it has its bases and layers of two later frames are complete: the publisher then dropped the
/// rest before it left. It has every layer whose lower layers arrived.
#[derive(Debug)]
pub struct FrameAssembler {
    /// The selected number of layers of each track.
    selected: BTreeMap<u32, u8>,
    pending: BTreeMap<FrameId, Pending>,
    newest_ready: Option<FrameId>,
    ready: VecDeque<ReceivedFrame>,
    stats: FrameStats,
}

/// Counts of a [`FrameAssembler`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameStats {
    /// Frames with all layers.
    pub whole: u64,
    /// Frames without some layers or packets that can be decoded.
    pub reduced: u64,
    /// Frames of which something arrived, but no base.
    pub undecodable: u64,
    /// Objects that arrived after their frame was ready.
    pub late_objects: u64,
}

#[derive(Debug, Default)]
struct Pending {
    layers: BTreeMap<(u32, u8), Layer>,
}

#[derive(Debug)]
struct Layer {
    payloads: Vec<Arc<[u8]>>,
    is_complete: bool,
    deadline: Option<MediaTime>,
    first_arrival: Option<Instant>,
    marked: bool,
}

impl FrameAssembler {
    /// The number of frames that are put together at the same time. An older one is ready as it is.
    pub const MAX_PENDING: usize = 16;

    /// Creates an assembler of the selected tracks: alias and number of layers.
    pub fn new(selected: impl IntoIterator<Item = (u32, u8)>) -> Self {
        FrameAssembler {
            selected: selected.into_iter().collect(),
            pending: BTreeMap::new(),
            newest_ready: None,
            ready: VecDeque::new(),
            stats: FrameStats::default(),
        }
    }

    /// Takes an event of the receiver.
    pub fn handle_event(&mut self, now: Instant, event: ReceiverEvent) {
        match event {
            ReceiverEvent::Packet { .. } => {}
            ReceiverEvent::Object(object) => self.add(now, object.id, object.into()),
            ReceiverEvent::GivenUp { id, payloads, .. } => {
                self.add(now, id, Layer::given_up(payloads));
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

    /// Returns the counts.
    pub const fn stats(&self) -> &FrameStats {
        &self.stats
    }

    fn add(&mut self, now: Instant, id: ObjectId, layer: Layer) {
        let is_selected = self.selected.get(&id.alias).is_some_and(|n| id.layer < *n);
        if !is_selected {
            return;
        }
        let frame = frame_of(&id);
        if self.newest_ready.is_some_and(|newest| frame <= newest) {
            self.stats.late_objects += u64::from(layer.is_complete);
            return;
        }
        let pending = self.pending.entry(frame).or_default();
        pending.layers.insert((id.alias, id.layer), layer);
        if pending.is_whole(&self.selected) {
            self.finish_until(now, frame);
        } else if let Some(passed) = self.passed() {
            self.finish_until(now, passed);
        }
    }

    /// Returns the newest frame that is not to be waited for any more.
    fn passed(&self) -> Option<FrameId> {
        let has_bases = |pending: &Pending| {
            let mut aliases = self.selected.keys();
            aliases.all(|alias| {
                pending
                    .layers
                    .get(&(*alias, 0))
                    .is_some_and(|l| l.is_complete)
            })
        };
        let third = self.pending.iter().rev().nth(2);
        let third = third.filter(|(_, pending)| has_bases(pending));
        let surplus = || self.pending.iter().rev().nth(FrameAssembler::MAX_PENDING);
        third.or_else(surplus).map(|(id, _)| *id)
    }

    /// Makes a frame ready, and those before it.
    fn finish_until(&mut self, now: Instant, last: FrameId) {
        while let Some(entry) = self.pending.first_entry().filter(|e| *e.key() <= last) {
            let (id, pending) = entry.remove_entry();
            self.newest_ready = Some(id);
            let frame = pending.into_frame(id, now, &self.selected);
            match (frame.tracks.is_empty(), frame.is_whole) {
                (true, _) => self.stats.undecodable += 1,
                (false, true) => self.stats.whole += 1,
                (false, false) => self.stats.reduced += 1,
            }
            if !frame.tracks.is_empty() {
                self.ready.push_back(frame);
            }
        }
    }
}

impl Pending {
    fn is_whole(&self, selected: &BTreeMap<u32, u8>) -> bool {
        let mut wanted = selected
            .iter()
            .flat_map(|(alias, layers)| (0..*layers).map(|layer| (*alias, layer)));
        wanted.all(|layer| self.layers.get(&layer).is_some_and(|l| l.is_complete))
    }

    fn into_frame(
        mut self,
        id: FrameId,
        completed: Instant,
        selected: &BTreeMap<u32, u8>,
    ) -> ReceivedFrame {
        let is_whole = self.is_whole(selected);
        let layers = || self.layers.values();
        let mut frame = ReceivedFrame {
            id,
            deadline: layers().find_map(|layer| layer.deadline),
            first_arrival: layers().filter_map(|layer| layer.first_arrival).min(),
            completed,
            is_whole,
            marked: layers().any(|layer| layer.marked),
            tracks: BTreeMap::new(),
        };
        for (alias, count) in selected {
            let usable = (0..*count).map_while(|layer| {
                let layer = self.layers.remove(&(*alias, layer))?;
                (!layer.payloads.is_empty()).then_some(layer.payloads)
            });
            let usable: Vec<Vec<Arc<[u8]>>> = usable.collect();
            if !usable.is_empty() {
                frame.tracks.insert(*alias, usable);
            }
        }
        frame
    }
}

impl Layer {
    fn given_up(payloads: Vec<Arc<[u8]>>) -> Self {
        Layer {
            payloads,
            is_complete: false,
            deadline: None,
            first_arrival: None,
            marked: false,
        }
    }
}

impl From<ReceivedObject> for Layer {
    fn from(object: ReceivedObject) -> Self {
        Layer {
            payloads: object.payloads,
            is_complete: true,
            deadline: Some(object.deadline),
            first_arrival: Some(object.first_arrival),
            marked: object.marked,
        }
    }
}

const fn frame_of(id: &ObjectId) -> FrameId {
    (id.group, id.object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::media::Flags;
    use proptest::prelude::*;
    use std::time::Duration;

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

    fn object(id: ObjectId) -> ReceiverEvent {
        ReceiverEvent::Object(ReceivedObject {
            id,
            flags: Flags::default(),
            deadline: MediaTime(id.group * 33),
            payloads: vec![[id.layer].into(), [id.alias as u8].into()],
            first_arrival: at(u64::from(id.layer) + 1),
            marked: false,
        })
    }

    fn given_up(id: ObjectId, payloads: &[u8]) -> ReceiverEvent {
        ReceiverEvent::GivenUp {
            id,
            arrived: 1,
            count: None,
            payloads: payloads.iter().map(|byte| [*byte].into()).collect(),
        }
    }

    fn groups(assembler: &mut FrameAssembler) -> Vec<(u32, bool)> {
        let frames = std::iter::from_fn(|| assembler.poll_frame());
        frames.map(|frame| (frame.id.0, frame.is_whole)).collect()
    }

    #[test]
    fn a_frame_is_ready_when_all_layers_of_all_tracks_are_there() {
        let mut assembler = FrameAssembler::new([(1, 2), (2, 1)]);
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
    fn a_frame_without_refinement_is_ready_when_a_later_one_is_whole() {
        let mut assembler = FrameAssembler::new([(1, 2)]);
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
    fn where_the_refinement_is_never_sent_a_frame_waits_for_two_others() {
        let mut assembler = FrameAssembler::new([(1, 2)]);
        let ready: Vec<usize> = (0..5)
            .map(|group| {
                assembler.handle_event(at(group.into()), object(id(1, group, 0)));
                groups(&mut assembler).len()
            })
            .collect();
        assert_eq!(ready, [0, 0, 1, 1, 1]);
    }

    #[test]
    fn what_arrived_of_a_layer_that_was_given_up_is_used_if_packets_decode_alone() {
        let mut assembler = FrameAssembler::new([(1, 2)]);
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
        let mut assembler = FrameAssembler::new([(1, 1)]);
        assembler.handle_event(at(1), object(id(1, 1, 1)));
        assembler.handle_event(at(1), object(id(9, 1, 0)));
        assert_eq!(assembler.poll_frame(), None);
        assembler.handle_event(at(1), object(id(1, 1, 0)));
        assert_eq!(groups(&mut assembler), [(1, true)]);
    }

    proptest! {
        #[test]
        fn frames_come_once_and_in_order_and_their_number_is_bounded(
            events in prop::collection::vec((0u32..40, 0u8..3, 1u32..3, any::<bool>()), 0..300),
        ) {
            let mut assembler = FrameAssembler::new([(1, 2), (2, 3)]);
            let mut last = None;
            for (time, (group, layer, alias, is_complete)) in (0..).zip(events) {
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
