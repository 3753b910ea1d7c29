//! Random operations for property tests: publishers that lose, repeat and reorder packets, and
//! subscribers that join and leave.
//!
//! [`steps`] executes a list of [`Operation`]s of a publisher and returns what the relay is asked to
//! do. [`Step::apply`] applies a step to the specification; other implementations run the same steps. A failing list shrinks to a readable sequence that can be kept as a named test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by several programs of tests, each of which uses only a part"
)]

use hawser_fanout::{
    Budget, Delivery, Frame, LEVELS, Level, REMEMBERED_OBJECTS, Rate, Refusal, Relay, Selection,
    Share, SlotIndex, Subscriber, TrackHop, TrackIndex,
};
use hawser_packets::media::{Flags, Header, Hop, MediaTime, ObjectId, PacketId, write_hop};
use hawser_units::{Bitrate, ByteSize, Instant};
use hawser_wire::Key;
use proptest::prelude::*;
use std::num::NonZeroU16;
use std::time::Duration;

/// The longest datagram of the relay under test.
pub const DATAGRAM: usize = 300;

/// The number of tracks. Each upstream has all of them.
pub const TRACKS: usize = 2;

/// The number of upstreams, which send the same objects.
pub const UPSTREAMS: u32 = 2;

/// The number of hop keys of an upstream, after which the first one is used again.
const HOPS: u16 = 100;

/// The initial time, which is late enough for buckets to begin full.
pub const START: Instant = Instant::from_nanos(100_000_000_000);

/// An operation on a relay with a few subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Time passes.
    Pause {
        /// In microseconds.
        micros: u32,
    },
    /// A frame is sent.
    Frame {
        /// The track.
        track: usize,
        /// The frame begins a group.
        begins_group: bool,
        /// The number of packets of each layer.
        layers: Vec<u8>,
        /// Only the last packet of an object names the number of its packets.
        counts_late: bool,
        /// The seed of the order, of the packets that are lost and of those that arrive twice.
        seed: u64,
    },
    /// Objects of one packet are sent, which makes the relay forget older ones. The oldest object that
    /// it may remember, and the newest that it has forgotten, arrive again.
    Burst {
        /// The track.
        track: usize,
        /// The number of objects.
        objects: u8,
    },
    /// A packet that was sent, lost or not, arrives now.
    Again {
        /// The packet, counted back from the last one.
        back: u16,
    },
    /// Packets that were lost are sent again.
    Repair {
        /// The number of them, counted back from the last one that was lost.
        packets: u8,
    },
    /// A packet of the next object that was changed by an attacker.
    Forged {
        /// The track.
        track: usize,
        /// The change.
        change: Change,
    },
    /// The upstreams tag with another key.
    Rotate,
    /// The relay tags with another key, or keeps that of the upstreams.
    SetHop {
        /// The track.
        track: usize,
        /// The number of the key; `None`: the upstreams'.
        number: Option<u16>,
    },
    /// An object of the frame that is `back` before the next one was lost.
    Lose {
        /// The track.
        track: usize,
        /// The number of frames.
        back: u8,
        /// The layer.
        layer: u8,
    },
    /// A subscriber joins, in place of the previous one.
    Add {
        /// The slot.
        slot: usize,
        /// It is reached over IPv6.
        is_ipv6: bool,
        /// The time after which its slot expires, in milliseconds.
        expires_millis: u32,
        /// Its budget.
        budget: Budget,
    },
    /// A subscriber leaves.
    Remove {
        /// The slot.
        slot: usize,
    },
    /// A slot is renewed.
    Renew {
        /// The slot.
        slot: usize,
        /// The time after which it expires, in milliseconds.
        expires_millis: u32,
    },
    /// The budget of a subscriber changes.
    SetBudget {
        /// The slot.
        slot: usize,
        /// Its budget.
        budget: Budget,
    },
    /// A subscriber is charged for bytes that the relay did not send.
    Spend {
        /// The slot.
        slot: usize,
        /// The priority.
        priority: u8,
        /// The bytes.
        bytes: u16,
    },
    /// A subscriber begins to get a track.
    Subscribe {
        /// The track.
        track: usize,
        /// The slot.
        slot: usize,
        /// The number of layers.
        layers: u8,
        /// The number of frames from the next one to the one that it joins at; negative if that has
        /// been.
        ahead: i8,
    },
    /// A subscriber gets other layers.
    Select {
        /// The track.
        track: usize,
        /// The slot.
        slot: usize,
        /// The number of layers.
        layers: u8,
    },
    /// A track ends for a subscriber.
    Unsubscribe {
        /// The track.
        track: usize,
        /// The slot.
        slot: usize,
    },
}

/// A change of a packet in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A bit of the header, which the hop tag covers.
    Bit(u16),
    /// Bytes at the end are missing.
    Cut(u16),
    /// Bytes were added.
    Lengthened(u16),
    /// The packet is of an alias that the upstream has not.
    Alias,
    /// Tagged by a holder of the key: the index.
    Index(u16),
    /// Tagged with the key of another number, from the one that was used two changes before on.
    Hop(u16),
}

/// A call of a relay, at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A datagram arrives.
    Datagram {
        /// The upstream.
        upstream: u32,
        /// The payload of UDP.
        bytes: Vec<u8>,
    },
    /// See [`Relay::set_upstream`].
    SetUpstream(u32, [Option<Hop>; 3]),
    /// See [`Relay::set_hop`].
    SetHop(TrackIndex, TrackHop),
    /// See [`Relay::lose`].
    Lose(TrackIndex, Frame, u8),
    /// See [`Relay::add_subscriber`].
    Add(SlotIndex, Subscriber),
    /// See [`Relay::remove_subscriber`].
    Remove(SlotIndex),
    /// See [`Relay::renew`].
    Renew(SlotIndex, Instant),
    /// See [`Relay::set_budget`].
    SetBudget(SlotIndex, Budget),
    /// See [`Relay::spend`].
    Spend(SlotIndex, u8, u64),
    /// See [`Relay::subscribe`].
    Subscribe(TrackIndex, SlotIndex, Selection),
    /// See [`Relay::select`].
    Select(TrackIndex, SlotIndex, u8),
    /// See [`Relay::unsubscribe`].
    Unsubscribe(TrackIndex, SlotIndex),
}

impl Step {
    /// Applies it to the specification. Returns the outcome of a datagram.
    pub fn apply(&self, relay: &mut Relay, now: Instant) -> Option<Result<Delivery, Refusal>> {
        match self {
            Step::Datagram { upstream, bytes } => {
                return Some(relay.handle_datagram(now, *upstream, &mut bytes.clone()));
            }
            Step::SetUpstream(upstream, hops) => relay.set_upstream(*upstream, hops.clone()),
            Step::SetHop(track, hop) => relay.set_hop(*track, hop.clone()),
            Step::Lose(track, frame, layer) => relay.lose(*track, *frame, *layer),
            Step::Add(slot, subscriber) => relay.add_subscriber(*slot, *subscriber),
            Step::Remove(slot) => relay.remove_subscriber(*slot),
            Step::Renew(slot, expires) => relay.renew(*slot, *expires),
            Step::SetBudget(slot, budget) => relay.set_budget(*slot, *budget),
            Step::Spend(slot, priority, bytes) => relay.spend(*slot, *priority, *bytes),
            Step::Subscribe(track, slot, selection) => relay.subscribe(*track, *slot, *selection),
            Step::Select(track, slot, layers) => relay.select(*track, *slot, *layers),
            Step::Unsubscribe(track, slot) => relay.unsubscribe(*track, *slot),
        }
        None
    }
}

/// Generates operations that begin with a few subscribers.
pub fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let subscriber = |slot: usize| {
        let add = (any::<bool>(), budget()).prop_map(move |(is_ipv6, budget)| Operation::Add {
            slot,
            is_ipv6,
            expires_millis: 2_000,
            budget,
        });
        let subscribe = (0..TRACKS, 1..4u8).prop_map(move |(track, layers)| Operation::Subscribe {
            track,
            slot,
            layers,
            ahead: 0,
        });
        (add, subscribe).prop_map(|(add, subscribe)| vec![add, subscribe])
    };
    let others = prop::collection::vec(operation(), 1..60);
    (subscriber(0), subscriber(1), subscriber(64), others)
        .prop_map(|(one, two, three, others)| [one, two, three, others].concat())
}

/// Generates an operation; frequent events are more likely.
fn operation() -> impl Strategy<Value = Operation> {
    let track = 0..TRACKS;
    let slot = prop_oneof![0..4usize, Just(63), Just(64), Just(1023)];
    let millis = prop_oneof![4 => 100..10_000u32, 1 => 0..20u32];
    prop_oneof![
        6 => prop_oneof![0..2_000u32, 0..200_000u32].prop_map(|micros| Operation::Pause { micros }),
        12 => (track.clone(), prop::bool::weighted(0.2), prop::collection::vec(1..6u8, 1..4), any::<bool>(), any::<u64>())
            .prop_map(|(track, begins_group, layers, counts_late, seed)| Operation::Frame {
                track, begins_group, layers, counts_late, seed,
            }),
        1 => (track.clone(), 1..90u8).prop_map(|(track, objects)| Operation::Burst { track, objects }),
        4 => prop_oneof![0..300u16, 60..70u16].prop_map(|back| Operation::Again { back }),
        2 => (1..10u8).prop_map(|packets| Operation::Repair { packets }),
        3 => (track.clone(), change()).prop_map(|(track, change)| Operation::Forged { track, change }),
        1 => (track.clone(), 0..4u8, 0..3u8)
            .prop_map(|(track, back, layer)| Operation::Lose { track, back, layer }),
        1 => Just(Operation::Rotate),
        1 => (track.clone(), prop::option::of(0..4u16)).prop_map(|(track, number)| Operation::SetHop { track, number }),
        4 => (slot.clone(), any::<bool>(), millis.clone(), budget()).prop_map(
            |(slot, is_ipv6, expires_millis, budget)| Operation::Add { slot, is_ipv6, expires_millis, budget }
        ),
        1 => slot.clone().prop_map(|slot| Operation::Remove { slot }),
        1 => (slot.clone(), millis).prop_map(|(slot, expires_millis)| Operation::Renew { slot, expires_millis }),
        1 => (slot.clone(), budget()).prop_map(|(slot, budget)| Operation::SetBudget { slot, budget }),
        1 => (slot.clone(), any::<u8>(), any::<u16>())
            .prop_map(|(slot, priority, bytes)| Operation::Spend { slot, priority, bytes }),
        6 => (track.clone(), slot.clone(), 0..4u8, -2..4i8)
            .prop_map(|(track, slot, layers, ahead)| Operation::Subscribe { track, slot, layers, ahead }),
        2 => (track.clone(), slot.clone(), 0..4u8)
            .prop_map(|(track, slot, layers)| Operation::Select { track, slot, layers }),
        1 => (track, slot).prop_map(|(track, slot)| Operation::Unsubscribe { track, slot }),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        prop_oneof![0..288u16, 0..32u16, 208..224u16].prop_map(Change::Bit),
        (1..80u16).prop_map(Change::Cut),
        (1..400u16).prop_map(Change::Lengthened),
        Just(Change::Alias),
        prop_oneof![any::<u16>(), 0..6u16, 8190..8194u16].prop_map(Change::Index),
        (0..5u16).prop_map(Change::Hop),
    ]
}

/// Generates budgets of which a frame or two exhaust the bucket.
fn budget() -> impl Strategy<Value = Budget> {
    let rate = || {
        (0..2_000_000u64, 0..30u64)
            .prop_map(|(bps, depth)| Rate::new(Bitrate::from_bps(bps), ByteSize(100 * depth)))
    };
    let level =
        (-20..20i64, prop::option::weighted(0.3, rate())).prop_map(|(floor, limit)| Level {
            floor: 100 * floor,
            limit,
        });
    let levels = prop::collection::vec(level, LEVELS);
    let least = prop_oneof![2 => Just(255u8), 1 => 0..4u8];
    let share = prop_oneof![1 => Just(1.0), 3 => 0.0..1.0].prop_map(Share::of);
    (prop::option::weighted(0.7, rate()), levels, least, share).prop_map(
        |(total, levels, least_priority, share)| Budget {
            total,
            levels: std::array::from_fn(|level| levels[level]),
            least_priority,
            share,
        },
    )
}

/// Returns a relay of all tracks without subscribers, as it is before the first step.
pub fn relay() -> Relay {
    let mut relay = Relay::new(DATAGRAM);
    for upstream in 0..UPSTREAMS {
        relay.set_upstream(
            upstream,
            [None, Some(upstream_hop(0)), Some(upstream_hop(1))],
        );
    }
    for index in 0..TRACKS {
        relay.add_track(track(index), own_hop(0));
        for upstream in 0..UPSTREAMS {
            relay.name_track(upstream, alias(upstream, index), Some(track(index)));
        }
    }
    relay
}

/// Returns the alias of a track at an upstream.
pub fn alias(upstream: u32, track: usize) -> u32 {
    100 * (upstream + 1) + track as u32
}

/// Returns the key of the upstreams with this number.
pub fn upstream_hop(number: u16) -> Hop {
    Hop {
        number,
        key: Key::from_bytes([number as u8; 16]),
    }
}

/// Returns the relay's key with this number.
pub fn own_hop(number: u16) -> TrackHop {
    TrackHop::Own(Hop {
        number,
        key: Key::from_bytes([0xa0 | number as u8; 16]),
    })
}

/// # Panics
/// If there is no such track.
pub fn track(index: usize) -> TrackIndex {
    TrackIndex::try_from(index).expect("an index of a track")
}

fn slot(index: usize) -> SlotIndex {
    SlotIndex::try_from(index).expect("an index of a slot")
}

/// Returns the steps with their times.
pub fn steps(operations: &[Operation]) -> Vec<(Instant, Step)> {
    let mut publisher = Publisher {
        now: START,
        hop: 0,
        next: [Frame::FIRST; TRACKS],
        sent: Vec::new(),
        lost: Vec::new(),
        steps: Vec::new(),
    };
    operations
        .iter()
        .for_each(|operation| publisher.execute(operation));
    publisher.steps
}

struct Publisher {
    now: Instant,
    hop: u16,
    /// The next frame of each track.
    next: [Frame; TRACKS],
    /// Every packet, lost or not.
    sent: Vec<(usize, Header)>,
    lost: Vec<(usize, Header)>,
    steps: Vec<(Instant, Step)>,
}

impl Publisher {
    fn execute(&mut self, operation: &Operation) {
        let after = |millis: u32| self.now + Duration::from_millis(millis.into());
        let step = match *operation {
            Operation::Pause { micros } => {
                self.now += Duration::from_micros(micros.into());
                return;
            }
            Operation::Frame {
                track,
                begins_group,
                ref layers,
                counts_late,
                seed,
            } => return self.send_frame(track, begins_group, layers, counts_late, seed),
            Operation::Burst { track, objects } => return self.send_burst(track, objects),
            Operation::Again { back } => {
                let position = self.sent.len().checked_sub(usize::from(back) + 1);
                if let Some((track, header)) = position.map(|position| self.sent[position]) {
                    self.arrive(track, &header);
                }
                return;
            }
            Operation::Repair { packets } => {
                let first = self.lost.len().saturating_sub(packets.into());
                for (track, header) in self.lost.split_off(first) {
                    self.arrive(track, &header);
                }
                return;
            }
            Operation::Forged { track, change } => return self.forge(track, change),
            Operation::Rotate => return self.rotate(),
            Operation::SetHop {
                track: index,
                number,
            } => {
                let hop = number.map_or(TrackHop::Upstreams, own_hop);
                Step::SetHop(track(index), hop)
            }
            Operation::Lose {
                track: of,
                back,
                layer,
            } => {
                let next = self.next[of].word();
                let frame = Frame::from_word(next.saturating_sub(back.into()));
                Step::Lose(track(of), frame, layer)
            }
            Operation::Add {
                slot: index,
                is_ipv6,
                expires_millis,
                budget,
            } => Step::Add(
                slot(index),
                Subscriber {
                    is_ipv6,
                    since: self.now,
                    expires: after(expires_millis),
                    budget,
                },
            ),
            Operation::Remove { slot: index } => Step::Remove(slot(index)),
            Operation::Renew {
                slot: index,
                expires_millis,
            } => Step::Renew(slot(index), after(expires_millis)),
            Operation::SetBudget {
                slot: index,
                budget,
            } => Step::SetBudget(slot(index), budget),
            Operation::Spend {
                slot: index,
                priority,
                bytes,
            } => Step::Spend(slot(index), priority, bytes.into()),
            Operation::Subscribe {
                track: of,
                slot: index,
                layers,
                ahead,
            } => {
                let next = self.next[of].word();
                let join = Frame::from_word(next.saturating_add_signed(ahead.into()));
                Step::Subscribe(track(of), slot(index), Selection { layers, join })
            }
            Operation::Select {
                track: of,
                slot: index,
                layers,
            } => Step::Select(track(of), slot(index), layers),
            Operation::Unsubscribe {
                track: of,
                slot: index,
            } => Step::Unsubscribe(track(of), slot(index)),
        };
        self.steps.push((self.now, step));
    }

    fn send_burst(&mut self, track: usize, objects: u8) {
        let mut sent = Vec::new();
        for _ in 0..objects {
            let header = self.header(track, 0, [0, 1]);
            self.send(track, header);
            self.next[track] = self.next[track].next();
            sent.push(header);
        }
        for back in [REMEMBERED_OBJECTS, REMEMBERED_OBJECTS + 1] {
            if let Some(position) = sent.len().checked_sub(back) {
                self.arrive(track, &sent[position]);
            }
        }
    }

    fn send_frame(
        &mut self,
        track: usize,
        begins_group: bool,
        layers: &[u8],
        counts_late: bool,
        seed: u64,
    ) {
        if begins_group {
            let group = self.next[track].group + 1;
            self.next[track] = Frame { group, object: 0 };
        }
        let mut random = Random(seed);
        let mut packets = Vec::new();
        for (layer, count) in (0u8..).zip(layers) {
            let count = u16::from(*count);
            for index in 0..count {
                let told = if counts_late && index + 1 < count {
                    0
                } else {
                    count
                };
                packets.push(self.header(track, layer, [index, told]));
            }
        }
        // Each packet changes places with one of the next two, one time in four.
        for at in 0..packets.len() {
            let other = at + 1 + random.below(2);
            if random.below(4) == 0 && other < packets.len() {
                packets.swap(at, other);
            }
        }
        for header in packets {
            match random.below(8) {
                0 => {
                    self.sent.push((track, header));
                    self.lost.push((track, header));
                }
                1 => {
                    self.send(track, header);
                    self.arrive(track, &header);
                }
                _ => self.send(track, header),
            }
        }
        self.next[track] = self.next[track].next();
    }

    fn header(&self, track: usize, layer: u8, [index, count]: [u16; 2]) -> Header {
        let Frame { group, object } = self.next[track];
        let packets_alone = (group + object + u32::from(layer)).is_multiple_of(3);
        let object = ObjectId {
            alias: alias(0, track),
            group,
            object,
            layer,
        };
        Header {
            flags: Flags {
                packets_alone,
                ..Flags::default()
            },
            priority: layer + 3 * (track as u8),
            id: PacketId { object, index },
            count: NonZeroU16::new(count),
            deadline: MediaTime(0),
            epoch: 0,
        }
    }

    fn send(&mut self, track: usize, header: Header) {
        self.sent.push((track, header));
        self.arrive(track, &header);
    }

    /// Every other packet is sent by another upstream.
    fn arrive(&mut self, track: usize, header: &Header) {
        let upstream = self.sent.len() as u32 % UPSTREAMS;
        let mut header = *header;
        header.id.object.alias = alias(upstream, track);
        let bytes = self.datagram(&header);
        self.push(upstream, bytes);
    }

    fn datagram(&self, header: &Header) -> Vec<u8> {
        // 100 or 200 bytes over IPv4, so that budgets are used up exactly.
        let PacketId { object, index } = header.id;
        let length = 72 + 100 * (usize::from(index) + usize::from(object.layer)) % 200;
        let mut bytes = header.emit(&upstream_hop(self.hop)).to_vec();
        bytes.resize(length, 0x77);
        bytes
    }

    fn push(&mut self, upstream: u32, bytes: Vec<u8>) {
        self.steps
            .push((self.now, Step::Datagram { upstream, bytes }));
    }

    fn forge(&mut self, track: usize, change: Change) {
        let mut header = self.header(track, 0, [0, 0]);
        match change {
            Change::Alias => header.id.object.alias += 50,
            Change::Index(index) => header.id.index = index,
            _ => {}
        }
        let mut bytes = self.datagram(&header);
        match change {
            Change::Bit(bit) => bytes[usize::from(bit / 8)] ^= 1 << (bit % 8),
            Change::Cut(cut) => bytes.truncate(bytes.len().saturating_sub(cut.into()).max(1)),
            Change::Lengthened(more) => bytes.resize(bytes.len() + usize::from(more), 0),
            Change::Hop(step) => {
                let number = (self.hop + HOPS + step - 2) % HOPS;
                if let Some(fields) = bytes.first_chunk_mut() {
                    write_hop(fields, &upstream_hop(number));
                }
            }
            Change::Alias | Change::Index(_) => {}
        }
        self.push(0, bytes);
    }

    fn rotate(&mut self) {
        let before = self.hop;
        self.hop = (self.hop + 1) % HOPS;
        let next = (self.hop + 1) % HOPS;
        let hops = [before, self.hop, next].map(|number| Some(upstream_hop(number)));
        for upstream in 0..UPSTREAMS {
            self.steps
                .push((self.now, Step::SetUpstream(upstream, hops.clone())));
        }
    }
}

/// The generator of Knuth's MMIX.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}
