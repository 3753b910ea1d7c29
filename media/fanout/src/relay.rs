use crate::broken::Broken;
use crate::budget::Bucket;
use crate::objects::{Object, Objects};
use crate::{
    Budget, Frame, LEVELS, MAX_PACKETS, MAX_SLOTS, MAX_TRACKS, Refusal, SlotIndex, SlotSet,
    TrackIndex, Verdict,
};
use hawser_packets::media::{Header, Hop, ObjectId, Packet, VERSION, is_from_hop, write_hop};
use hawser_units::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;

/// The hop fields of the packets that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackHop {
    /// The relay tags each packet with its own key.
    Own(Hop),
    /// The packets keep the tag of the upstream, whose hop salt the subscribers are told.
    Upstreams,
}

/// A subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subscriber {
    /// It is reached over IPv6, not IPv4.
    pub is_ipv6: bool,
    /// Objects that began earlier are not sent to it.
    pub since: Instant,
    /// The time from which on nothing is sent to it.
    pub expires: Instant,
    /// Its budget.
    pub budget: Budget,
}

/// The part of a track that a subscriber gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// The number of layers, from the base on.
    pub layers: u8,
    /// The lowest frame at which the relay may begin to send the track.
    pub join: Frame,
}

/// A packet that goes to subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The track.
    pub track: TrackIndex,
    /// The subscribers to which the datagram, as [`Relay::handle_datagram`] left it, is to be sent.
    pub to: Vec<SlotIndex>,
}

/// The record of an object: the packets that were sent, and their subscribers. A record is made when the
/// object has begun, and another one when it is complete or has to make room. An object of one packet has
/// the second one only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The track.
    pub track: TrackIndex,
    /// The object. Its alias is that of the upstream whose packet began it.
    pub object: ObjectId,
    /// The priority.
    pub priority: u8,
    /// Whether it was complete or had to make room.
    pub ended: bool,
    /// The arrival of the first packet.
    pub begun: Instant,
    /// The arrival of the last packet.
    pub newest: Instant,
    /// The packets that arrived.
    pub packets: u16,
    /// The number of packets that the object has, if one of its headers had it.
    pub count: Option<NonZeroU16>,
    /// The bytes of the datagrams that arrived.
    pub bytes: u64,
    /// The subscribers that were sent these packets.
    pub served: SlotSet,
    /// The subscribers that have selected the object, but were not sent it.
    pub dropped: SlotSet,
}

/// The counters of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
    /// The bytes that are left in the bucket of all levels, without what was earned since an object
    /// began. Negative if more was sent.
    pub balance: i64,
    /// Objects, by [`Verdict`].
    pub objects: [u64; Verdict::ALL.len()],
}

/// A relay of media: verifies packets, decides who gets them, and tags them for the next hop.
pub struct Relay {
    datagram_bytes: usize,
    upstreams: BTreeMap<u32, [Option<Hop>; 3]>,
    aliases: BTreeMap<(u32, u32), TrackIndex>,
    tracks: Vec<Option<Track>>,
    slots: Vec<Option<Slot>>,
    registrations: VecDeque<Registration>,
}

struct Track {
    hop: TrackHop,
    subscriptions: BTreeMap<SlotIndex, Subscription>,
    objects: Objects,
    /// The objects that no subscriber can decode, because an object that they depend on was lost upstream.
    lost: Broken,
}

struct Subscription {
    selection: Selection,
    /// The frame from which on the subscriber is sent the track, once an object has begun.
    joined: Option<Frame>,
    broken: Broken,
}

struct Slot {
    subscriber: Subscriber,
    total: Bucket,
    levels: [Bucket; LEVELS],
    stats: SlotStats,
}

impl Relay {
    /// Creates a relay of datagrams of at most this length.
    pub fn new(datagram_bytes: usize) -> Self {
        Relay {
            datagram_bytes,
            upstreams: BTreeMap::new(),
            aliases: BTreeMap::new(),
            tracks: (0..MAX_TRACKS).map(|_| None).collect(),
            slots: (0..MAX_SLOTS).map(|_| None).collect(),
            registrations: VecDeque::new(),
        }
    }

    /// Sets the hop keys of an upstream, such as the previous, the current and the next one; none
    /// to refuse its packets.
    pub fn set_upstream(&mut self, upstream: u32, hops: [Option<Hop>; 3]) {
        self.upstreams.insert(upstream, hops);
    }

    /// Gives a name at an upstream to a track; `None`: refuses packets of this name.
    pub fn name_track(&mut self, upstream: u32, alias: u32, track: Option<TrackIndex>) {
        match track {
            Some(track) => self.aliases.insert((upstream, alias), track),
            None => self.aliases.remove(&(upstream, alias)),
        };
    }

    /// Starts to relay a new track.
    pub fn add_track(&mut self, track: TrackIndex, hop: TrackHop) {
        self.tracks[track.get()] = Some(Track {
            hop,
            subscriptions: BTreeMap::new(),
            objects: Objects::new(),
            lost: Broken::NOTHING,
        });
    }

    /// Changes the hop fields of a track.
    pub fn set_hop(&mut self, track: TrackIndex, hop: TrackHop) {
        if let Some(track) = &mut self.tracks[track.get()] {
            track.hop = hop;
        }
    }

    /// Records that an object was lost upstream: objects that depend on it are sent to no subscriber, unless
    /// they have begun.
    pub fn lose(&mut self, track: TrackIndex, frame: Frame, layer: u8) {
        if let Some(track) = &mut self.tracks[track.get()] {
            track.lost.insert(frame, layer);
        }
    }

    /// Gives a slot to a subscriber.
    pub fn add_subscriber(&mut self, slot: SlotIndex, subscriber: Subscriber) {
        self.remove_subscriber(slot);
        self.slots[slot.get()] = Some(Slot {
            subscriber,
            total: Bucket::default(),
            levels: [Bucket::default(); LEVELS],
            stats: SlotStats::default(),
        });
    }

    /// Removes the subscriber of a slot.
    pub fn remove_subscriber(&mut self, slot: SlotIndex) {
        self.slots[slot.get()] = None;
        for track in self.tracks.iter_mut().flatten() {
            track.subscriptions.remove(&slot);
        }
    }

    /// Changes the time at which a slot expires.
    pub fn renew(&mut self, slot: SlotIndex, expires: Instant) {
        if let Some(slot) = &mut self.slots[slot.get()] {
            slot.subscriber.expires = expires;
        }
    }

    /// Changes the budget of a subscriber. A debt remains.
    pub fn set_budget(&mut self, slot: SlotIndex, budget: Budget) {
        if let Some(slot) = &mut self.slots[slot.get()] {
            slot.subscriber.budget = budget;
        }
    }

    /// Charges a subscriber for bytes that the relay did not send.
    pub fn spend(&mut self, slot: SlotIndex, priority: u8, bytes: u64) {
        if let Some(slot) = &mut self.slots[slot.get()] {
            slot.spend(Budget::level(priority), bytes);
        }
    }

    /// Sends a track to a subscriber, which joins at a frame of which nothing has begun yet
    /// ([`Relay::joined`]). It gets earlier frames from the cache, so later objects may depend on
    /// that.
    pub fn subscribe(&mut self, track: TrackIndex, slot: SlotIndex, selection: Selection) {
        let subscription = Subscription {
            selection,
            joined: None,
            broken: Broken::NOTHING,
        };
        if let Some(track) = &mut self.tracks[track.get()] {
            track.subscriptions.insert(slot, subscription);
        }
    }

    /// Returns the frame from which on a subscriber is sent a track; `None` until an object begins. The
    /// cache has to send it exactly the frames before that one.
    pub fn joined(&self, track: TrackIndex, slot: SlotIndex) -> Option<Frame> {
        let track = self.tracks[track.get()].as_ref()?;
        track.subscriptions.get(&slot)?.joined
    }

    /// Changes the number of layers that a subscriber gets. More layers take effect with the next
    /// group.
    pub fn select(&mut self, track: TrackIndex, slot: SlotIndex, layers: u8) {
        let track = self.tracks[track.get()].as_mut();
        if let Some(subscription) = track.and_then(|track| track.subscriptions.get_mut(&slot)) {
            subscription.selection.layers = layers;
        }
    }

    /// Begins no further objects of a track for a subscriber.
    pub fn unsubscribe(&mut self, track: TrackIndex, slot: SlotIndex) {
        if let Some(track) = &mut self.tracks[track.get()] {
            track.subscriptions.remove(&slot);
        }
    }

    /// Returns the highest frame of a track of which an object has begun.
    pub fn newest(&self, track: TrackIndex) -> Option<Frame> {
        self.tracks[track.get()].as_ref()?.objects.newest()
    }

    /// Decides on a datagram from an upstream, and tags it for the next hop if its own tag is right.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        upstream: u32,
        datagram: &mut [u8],
    ) -> Result<Delivery, Refusal> {
        let header = self.verify(upstream, datagram)?;
        let alias = (upstream, header.id.object.alias);
        let index = *self.aliases.get(&alias).ok_or(Refusal::NoTrack)?;
        let track = self.tracks[index.get()].as_mut().ok_or(Refusal::NoTrack)?;
        if let (TrackHop::Own(hop), Some(fields)) = (&track.hop, datagram.first_chunk_mut()) {
            write_hop(fields, hop);
        }
        let count = header.count.map_or(0, NonZeroU16::get);
        if header.id.index >= MAX_PACKETS || count > MAX_PACKETS {
            return Err(Refusal::TooManyPackets);
        }
        let (position, replaced) = match track.objects.find(&header.id.object) {
            Some(position) => (position, None),
            None if track.objects.is_outdated(&header.id.object) => return Err(Refusal::Outdated),
            None => track.begin(now, &header, &mut self.slots),
        };
        if let Some(object) = replaced.filter(|object| !object.is_registered) {
            self.registrations
                .push_back(registration(index, &object, true));
        }
        let object = track.objects.at(position);
        object.add(now, &header, datagram.len())?;
        if object.is_complete() {
            object.is_registered = true;
            self.registrations
                .push_back(registration(index, object, true));
        } else if object.packets == 1 {
            self.registrations
                .push_back(registration(index, object, false));
        }
        let level = Budget::level(object.priority);
        let to = object.served.iter().filter(|slot| {
            let slot = self.slots[slot.get()].as_mut();
            slot.is_some_and(|slot| slot.send(now, object.begun, level, &header, datagram.len()))
        });
        Ok(Delivery {
            track: index,
            to: to.collect(),
        })
    }

    /// Returns the header of a packet if the upstream made it.
    fn verify(&self, upstream: u32, datagram: &[u8]) -> Result<Header, Refusal> {
        if datagram.first() != Some(&VERSION) {
            return Err(Refusal::NotMedia);
        }
        if datagram.len() > self.datagram_bytes {
            return Err(Refusal::Oversize);
        }
        if datagram.len() <= Header::OVERHEAD {
            return Err(Refusal::Truncated);
        }
        let packet = Packet::parse(datagram).map_err(|_| Refusal::Header)?;
        let hops = self.upstreams.get(&upstream).into_iter().flatten();
        let hop = hops.flatten().find(|hop| hop.number == packet.hop);
        let hop = hop.ok_or(Refusal::HopKey)?;
        is_from_hop(datagram, &hop.key)
            .then_some(packet.header)
            .ok_or(Refusal::Tag)
    }

    /// Returns the next object that ended.
    pub fn poll_registration(&mut self) -> Option<Registration> {
        self.registrations.pop_front()
    }

    /// Returns the counters of a subscriber; `None` if the slot has none.
    pub fn slot_stats(&self, slot: SlotIndex) -> Option<SlotStats> {
        let slot = self.slots[slot.get()].as_ref()?;
        Some(SlotStats {
            bytes: slot.total.spent(),
            balance: slot.total.balance(),
            ..slot.stats
        })
    }
}

impl Track {
    /// Begins an object, and decides who is served it.
    fn begin(
        &mut self,
        now: Instant,
        header: &Header,
        slots: &mut [Option<Slot>],
    ) -> (usize, Option<Object>) {
        let next = self.objects.newest().map_or(Frame::FIRST, Frame::next);
        let (position, replaced) = self.objects.begin(now, header);
        let object = self.objects.at(position);
        for (index, subscription) in &mut self.subscriptions {
            let Some(slot) = &mut slots[index.get()] else {
                continue;
            };
            let join = subscription.selection.join.max(next);
            subscription.joined.get_or_insert(join);
            let verdict = slot.judge(now, header, subscription, &self.lost);
            slot.stats.objects[verdict as usize] += 1;
            if verdict == Verdict::Served {
                object.served.insert(*index);
            }
            if verdict.drops() {
                object.dropped.insert(*index);
            }
            if !matches!(verdict, Verdict::Served | Verdict::BeforeJoin) {
                let id = &header.id.object;
                subscription.broken.insert(Frame::of(id), id.layer);
            }
        }
        (position, replaced)
    }
}

impl Slot {
    /// Decides whether an object that begins is served.
    fn judge(
        &mut self,
        now: Instant,
        header: &Header,
        to: &Subscription,
        lost: &Broken,
    ) -> Verdict {
        let id = &header.id.object;
        let frame = Frame::of(id);
        let Subscriber {
            expires, budget, ..
        } = self.subscriber;
        if to.joined.is_none_or(|joined| frame < joined) {
            return Verdict::BeforeJoin;
        }
        if expires <= now {
            return Verdict::Expired;
        }
        if id.layer >= to.selection.layers {
            return Verdict::NotSelected;
        }
        if to.broken.contains(frame, id.layer) || lost.contains(frame, id.layer) {
            return Verdict::Broken;
        }
        if header.priority > budget.least_priority {
            return Verdict::Priority;
        }
        if !budget.has_object(header) {
            return Verdict::Thinned;
        }
        let level = Budget::level(header.priority);
        let limits = budget.levels[level];
        self.total.fill(budget.total, now);
        if budget.total.is_some() && self.total.balance() <= limits.floor {
            return Verdict::Tokens;
        }
        self.levels[level].fill(limits.limit, now);
        if limits.limit.is_some() && self.levels[level].balance() <= 0 {
            return Verdict::Limit;
        }
        Verdict::Served
    }

    /// Sends a datagram of an object that is served; returns whether it leaves.
    fn send(
        &mut self,
        now: Instant,
        begun: Instant,
        level: usize,
        header: &Header,
        bytes: usize,
    ) -> bool {
        let Subscriber { since, expires, .. } = self.subscriber;
        if begun < since || expires <= now || !self.subscriber.budget.has_packet(header) {
            return false;
        }
        let headers = if self.subscriber.is_ipv6 { 48 } else { 28 };
        self.spend(level, (bytes + headers) as u64);
        self.stats.packets += 1;
        true
    }

    fn spend(&mut self, level: usize, bytes: u64) {
        self.total.spend(bytes);
        self.levels[level].spend(bytes);
    }
}

fn registration(track: TrackIndex, object: &Object, ended: bool) -> Registration {
    Registration {
        track,
        object: object.id,
        priority: object.priority,
        ended,
        begun: object.begun,
        newest: object.newest,
        packets: object.packets,
        count: object.count,
        bytes: object.bytes,
        served: object.served,
        dropped: object.dropped,
    }
}
