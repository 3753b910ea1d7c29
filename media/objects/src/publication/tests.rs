//! Any sequence of frames, slices, changes of keys and of selections, and a viewer that gets every packet.

use super::*;
use crate::checks::{TRACKS, publication, secret};
use crate::object::LayerContent;
use crate::packetiser::PacketiseError;
use crate::receiver::ReceiverEvent;
use crate::refusal::Refusal;
use crate::sender::{Rule, SenderEvent};
use crate::session::{Viewer, ViewerConfig, ViewerError, ViewerEvent};
use hawser_congestion::{Prague, PragueConfig, Spread};
use hawser_packets::media::{Header, MAX_LAYER, ObjectId, Packet};
use proptest::collection::vec;
use proptest::prelude::*;

/// The payload of a full packet.
const PAYLOAD: usize = 1148;

/// The time that a datagram takes.
const TICK: Duration = Duration::from_millis(1);

/// The time between two changes of the hop key, in which the viewer reports and is answered.
const BETWEEN_KEYS: Duration = Duration::from_millis(1100);

/// The size of the in-flight buffer.
const CAPACITY: ByteSize = ByteSize(60_000);

#[derive(Debug, Clone)]
enum Operation {
    Begin,
    /// A slice of a layer: its length, in chunks or not, and whether it is the last.
    Slice {
        alias: u32,
        layer: u8,
        length: usize,
        in_chunks: bool,
        ends_layer: bool,
    },
    End,
    /// A frame of one track, with the lengths of its layers.
    Publish(Vec<usize>),
    RotateHopKey,
    /// The viewer selects a number of layers.
    Select(u8),
    Pass(Duration),
}

fn operation() -> impl Strategy<Value = Operation> {
    let length = || prop_oneof![8 => 1..4000usize, 1 => Just(0)];
    let alias = prop_oneof![8 => Just(0u32), 4 => Just(1), 1 => Just(9)];
    let layer = prop_oneof![8 => 0..3u8, 1 => Just(MAX_LAYER + 1)];
    let slice = (alias, layer, length(), any::<bool>(), any::<bool>());
    prop_oneof![
        3 => Just(Operation::Begin),
        8 => slice.prop_map(|(alias, layer, length, in_chunks, ends_layer)| Operation::Slice {
            alias,
            layer,
            length,
            in_chunks,
            ends_layer,
        }),
        2 => Just(Operation::End),
        1 => vec(length(), 0..4).prop_map(Operation::Publish),
        1 => Just(Operation::RotateHopKey),
        1 => (0..4u8).prop_map(Operation::Select),
        4 => (1..40u64).prop_map(|millis| Operation::Pass(Duration::from_millis(millis))),
    ]
}

/// An object as far as it was published.
#[derive(Debug, Default)]
struct Expected {
    bytes: Vec<u8>,
    /// The bytes of the UDP payloads.
    sealed: u64,
    is_complete: bool,
    /// The buffer has delivered or dropped it.
    has_left: bool,
    is_delivered: bool,
    /// The viewer has got it, or a packet of it after its deadline.
    is_received: bool,
    is_late: bool,
}

struct World {
    now: Instant,
    publication: Publication,
    viewer: Viewer,
    there: Vec<Outgoing>,
    back: Vec<Vec<u8>>,
    /// The group of the frame that was begun, and of the next one.
    current: Option<u32>,
    next_group: u32,
    expected: BTreeMap<ObjectId, Expected>,
    published: usize,
    refused: usize,
    /// The objects that were taken besides those of viewers.
    taken: usize,
}

impl World {
    fn new(rule: Rule, spread: Spread) -> Self {
        let control = |now| Box::new(Prague::new(PragueConfig::default(), now)) as _;
        let mut publication = publication(CAPACITY, Box::new(control));
        publication.config.flow.sender.rule = rule;
        publication.config.flow.spread = spread;
        publication.keep_objects();
        let mut world = World {
            now: Instant::ZERO + Duration::from_secs(10),
            publication,
            viewer: Viewer::new(ViewerConfig::default(), secret(), [5; 16]),
            there: Vec::new(),
            back: Vec::new(),
            current: None,
            next_group: 0,
            expected: BTreeMap::new(),
            published: 0,
            refused: 0,
            taken: 0,
        };
        world.pass(TICK * 10);
        assert_eq!(world.publication.viewers(), 1);
        world
    }

    fn apply(&mut self, operation: &Operation) {
        let now = self.now;
        match operation {
            Operation::Begin => {
                self.publication.begin_frame(now, now);
                self.current = Some(self.begin_group());
            }
            Operation::Slice {
                alias,
                layer,
                length,
                in_chunks,
                ends_layer,
            } => self.slice(*alias, *layer, *length, *in_chunks, *ends_layer),
            Operation::End => {
                self.publication.end_frame(now);
                self.current = None;
            }
            Operation::Publish(lengths) => self.publish(lengths),
            Operation::RotateHopKey => {
                // No frame waits for its end while the key changes twice.
                if !self.publication.leaves_in_slices() {
                    self.apply(&Operation::End);
                }
                self.publication.rotate_hop_key();
                self.pass(BETWEEN_KEYS);
            }
            Operation::Select(layers) => {
                let tracks = TRACKS.map(|alias| (alias, *layers));
                self.viewer.subscribe(now, tracks.into());
            }
            Operation::Pass(time) => self.pass(*time),
        }
    }

    fn begin_group(&mut self) -> u32 {
        self.next_group += 1;
        self.next_group - 1
    }

    fn content(&mut self, length: usize) -> Vec<u8> {
        self.published += 1;
        vec![self.published as u8; length]
    }

    fn slice(&mut self, alias: u32, layer: u8, length: usize, in_chunks: bool, ends_layer: bool) {
        let bytes = self.content(length);
        let chunks: Vec<&[u8]> = bytes.chunks(PAYLOAD / 2).collect();
        let content = match in_chunks {
            true => LayerContent::Chunks(&chunks),
            false => LayerContent::Whole(&bytes),
        };
        let packets = match in_chunks {
            true => chunks.len(),
            false => length.div_ceil(PAYLOAD),
        };
        let slice = EncodedSlice {
            layer: EncodedLayer {
                alias,
                layer,
                content,
            },
            ends_layer,
            is_top: false,
        };
        let published = self.publication.publish_slice(self.now, &slice);
        let Some(group) = self.current else {
            assert_eq!(published, Ok(()), "ignored");
            return;
        };
        let id = id(alias, group, layer);
        if published.is_ok() {
            let expected = self.expected.entry(id).or_default();
            assert!(!expected.is_complete && TRACKS.contains(&alias));
            expected.bytes.extend(&bytes);
            expected.sealed += (length + packets * Header::OVERHEAD) as u64;
            expected.is_complete = ends_layer;
        }
        self.refused += usize::from(published.is_err());
        let is_unknown = matches!(published, Err(PacketiseError::Unknown(_)));
        let is_known = TRACKS.contains(&alias) && layer <= MAX_LAYER;
        assert_eq!(is_unknown, !is_known);
    }

    fn publish(&mut self, lengths: &[usize]) {
        let contents: Vec<Vec<u8>> = lengths.iter().map(|length| self.content(*length)).collect();
        let layers = (0..).zip(&contents).map(|(layer, bytes)| EncodedLayer {
            alias: 0,
            layer,
            content: LayerContent::Whole(bytes),
        });
        let layers: Vec<EncodedLayer<'_>> = layers.collect();
        let group = self.begin_group();
        let published = self.publication.publish(self.now, self.now, &layers);
        assert_eq!(published.is_ok(), !lengths.contains(&0));
        let Ok(published) = published else { return };
        assert_eq!(published.group, group);
        for (layer, bytes) in (0..).zip(contents) {
            let packets = bytes.len().div_ceil(PAYLOAD);
            let expected = Expected {
                sealed: (bytes.len() + packets * Header::OVERHEAD) as u64,
                bytes,
                is_complete: true,
                ..Expected::default()
            };
            self.expected.insert(id(0, group, layer), expected);
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            for outgoing in std::mem::take(&mut self.there) {
                let taken = self
                    .viewer
                    .handle_datagram(self.now, &outgoing.datagram, outgoing.ecn);
                if taken == Err(ViewerError::Packet(Refusal::Late)) {
                    // A slice may be published, or kept, until after the deadline.
                    let packet = Packet::parse(&outgoing.datagram).unwrap();
                    let id = packet.header.id.object;
                    self.expected.get_mut(&id).unwrap().is_late = true;
                } else {
                    assert!(taken.is_ok(), "{taken:?}");
                }
            }
            for message in std::mem::take(&mut self.back) {
                let taken = self
                    .publication
                    .handle_datagram(self.now, address(), &message);
                assert!(taken.is_ok(), "{taken:?}");
            }
            self.viewer.handle_timeout(self.now);
            self.publication.handle_timeout(self.now);
            self.take_events();
            self.back
                .extend(std::iter::from_fn(|| self.viewer.poll_transmit(self.now)));
            self.there.extend(std::iter::from_fn(|| {
                self.publication.poll_transmit(self.now)
            }));
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(_) => {
                    let tracks = TRACKS.map(|alias| (alias, 2));
                    self.viewer.subscribe(self.now, tracks.into());
                }
                ViewerEvent::Ended(reason) => panic!("{reason:?}"),
            }
        }
        while let Some(event) = self.viewer.poll_media() {
            if let ReceiverEvent::Object(object) = event {
                let expected = self.expected.get_mut(&object.id).unwrap();
                assert!(expected.is_complete && !expected.is_received);
                assert_eq!(object.payloads.concat(), expected.bytes);
                expected.is_received = true;
            }
        }
        while let Some(object) = self.publication.poll_object() {
            let expected = &self.expected[&object.info.id];
            assert_eq!(object.size(), ByteSize(expected.sealed));
            assert!(expected.is_complete);
            self.taken += 1;
        }
        while let Some(event) = self.publication.poll_event() {
            let PublicationEvent::Object { event, .. } = event else {
                continue;
            };
            let (SenderEvent::Delivered { id, .. } | SenderEvent::Dropped { id, .. }) = event;
            let expected = self.expected.entry(id).or_default();
            assert!(!expected.has_left, "left twice");
            expected.has_left = true;
            expected.is_delivered = matches!(event, SenderEvent::Delivered { .. });
        }
    }

    fn check(&mut self) {
        self.take_events();
        let layers = TRACKS.len() * (usize::from(MAX_LAYER) + 1);
        assert!(self.publication.sizes.len() <= layers);
        let frame = self.publication.current.as_ref();
        assert_eq!(frame.is_some(), self.current.is_some());
        let flow = &self.publication.viewers.values().next().unwrap().flow;
        let kept = self.expected.values().filter(|object| !object.has_left);
        let kept: u64 = kept.map(|object| object.sealed).sum();
        // Nothing is reserved for layers of which no slice follows.
        assert!(frame.is_some() || flow.sender().buffered().0 <= kept);
        assert!(flow.sender().waiting() <= flow.sender().buffered());
    }
}

fn id(alias: u32, group: u32, layer: u8) -> ObjectId {
    ObjectId {
        alias,
        group,
        object: 0,
        layer,
    }
}

fn address() -> SocketAddr {
    ([192, 0, 2, 1], 1).into()
}

/// Applies the operations, then ends the frame and lets everything leave.
fn check(operations: &[Operation], rule: Rule, spread: Spread) -> World {
    let mut world = World::new(rule, spread);
    for operation in operations {
        world.apply(operation);
        world.check();
    }
    world.apply(&Operation::End);
    world.check();
    world.pass(Duration::from_secs(1));
    world.check();
    let [status] = world.publication.status()[..] else {
        panic!("one viewer");
    };
    assert_eq!((status.in_flight, status.waiting), Default::default());
    let flow = &world.publication.viewers.values().next().unwrap().flow;
    assert_eq!(flow.sender().buffered(), ByteSize(0));
    let complete = world.expected.values().filter(|object| object.is_complete);
    assert_eq!(world.taken, complete.count());
    for (id, object) in &world.expected {
        let is_whole = object.is_delivered && object.is_complete && !object.is_late;
        assert!(!is_whole || object.is_received, "{id:?}");
    }
    let receiver = world.viewer.receiver().unwrap();
    assert_eq!(receiver.totals().packets, status.sender.packets);
    assert_eq!(receiver.buffered(), 0);
    world
}

proptest! {
    #[test]
    fn objects_consist_of_their_slices_and_leave_nothing(
        operations in vec(operation(), 0..60),
        keeps in any::<bool>(),
        spreads in any::<bool>(),
    ) {
        let rule = if keeps { Rule::UntilAcknowledged } else { Rule::Deadline };
        let interval = Spread::Interval(Duration::from_millis(20));
        let spread = if spreads { interval } else { Spread::BorneRate };
        check(&operations, rule, spread);
    }
}

/// The operations reach objects that arrive whole, that never end, and that cannot be made into packets.
#[test]
fn the_operations_reach_all_ends_of_an_object() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let [mut received, mut unfinished, mut refused, mut delivered] = [0; 4];
    for _ in 0..50 {
        let operations = vec(operation(), 0..60).new_tree(&mut runner).unwrap();
        let world = check(
            &operations.current(),
            Rule::UntilAcknowledged,
            Spread::BorneRate,
        );
        refused += world.refused;
        let objects = world.expected.values();
        received += objects.clone().filter(|object| object.is_received).count();
        unfinished += objects.filter(|object| !object.is_complete).count();
        delivered += world.publication.status()[0].sender.delivered as usize;
    }
    assert!(received > 50 && unfinished > 50 && refused > 50);
    // Also of those that never end, all packets that were sent are acknowledged.
    assert!(delivered > received + 20, "{delivered}, {received}");
}

fn slice(layer: u8, length: usize, ends_layer: bool) -> Operation {
    Operation::Slice {
        alias: 0,
        layer,
        length,
        in_chunks: false,
        ends_layer,
    }
}

/// The buffer waited for further packets of it for ever.
#[test]
fn a_layer_that_another_one_follows_frees_its_reservation() {
    let operations = [
        Operation::Begin,
        slice(0, 3000, false),
        slice(1, 1000, true),
    ];
    check(&operations, Rule::UntilAcknowledged, Spread::BorneRate);
}

#[test]
fn a_layer_with_an_invalid_slice_frees_its_reservation() {
    let operations = [Operation::Begin, slice(0, 3000, false), slice(0, 0, true)];
    check(&operations, Rule::UntilAcknowledged, Spread::BorneRate);
}

#[test]
fn a_layer_deselected_while_published_arrives_whole() {
    let operations = [
        Operation::Begin,
        slice(0, 2000, false),
        Operation::Select(0),
        Operation::Pass(TICK * 5),
        slice(0, 2000, true),
    ];
    let world = check(&operations, Rule::Deadline, Spread::BorneRate);
    assert!(world.expected[&id(0, 0, 0)].is_received);
}
