//! The publisher's end of a broadcast: its tracks, and a session and a flow for each viewer.

mod shares;
mod watching;

use crate::flow::FlowConfig;
use crate::keys::{Seed, TrackSecret};
use crate::object::{LayerContent, ObjectInfo, SealedObject};
use crate::packetiser::{OpenObject, PacketiseError, Packetiser, PacketiserConfig};
use crate::sender::SenderEvent;
use crate::session::{EndReason, Host, HostConfig, HostError, HostEvent, HostStats};
use hawser_congestion::{DepartureFinding, RateControl, Spread};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use hawser_wire::feedback::{Feedback, Pose};
use hawser_wire::media::{Flags, Hop, ObjectId};
use hawser_wire::session::{Announcement, Goodbye, MessageError};
use shares::Shares;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
pub use watching::ViewerStatus;
use watching::Watching;

/// The settings of a [`Publication`].
#[derive(Debug, Clone)]
pub struct PublicationConfig {
    /// The tracks. The incarnation in it has to be random at each start.
    pub announcement: Announcement,
    /// The time from the capture of a frame to its deadline.
    pub lifetime: Duration,
    /// The settings of the flow to each viewer. The headers follow from the viewer's address.
    pub flow: FlowConfig,
    /// The maximum number of viewers.
    pub viewers: usize,
    /// Random bytes from which hop keys are derived, new for each start.
    pub hop_salt: [u8; 16],
    /// Random bytes for cookies and sessions.
    pub seed: Seed,
}

/// Makes the rate control of a viewer who comes now.
pub type MakeControl = Box<dyn Fn(Instant) -> Box<dyn RateControl + Send> + Send>;

/// The publisher's end of a broadcast, without clock and socket.
///
/// Each layer is sealed once, for all viewers.
pub struct Publication {
    config: PublicationConfig,
    make_control: MakeControl,
    host: Host,
    packetisers: BTreeMap<u32, Packetiser>,
    viewers: BTreeMap<u32, Watching>,
    shares: Shares,
    /// The size of the newest object of each layer of each track.
    sizes: BTreeMap<(u32, u8), ByteSize>,
    group: u32,
    /// The frame that was begun and has not ended.
    current: Option<CurrentFrame>,
    events: VecDeque<PublicationEvent>,
}

/// A frame of which slices may follow.
struct CurrentFrame {
    group: u32,
    captured: Instant,
    /// The layers as far as they are encoded.
    objects: Vec<SealedObject>,
    /// The layer of each track of which slices may follow.
    open: BTreeMap<u32, OpenObject>,
}

/// An encoded layer of a frame.
#[derive(Debug, Clone, Copy)]
pub struct EncodedLayer<'a> {
    /// The track.
    pub alias: u32,
    /// The layer; 0 is the base.
    pub layer: u8,
    /// The bytes.
    pub content: LayerContent<'a>,
}

/// A slice of a layer, which can leave while the next one is encoded.
#[derive(Debug, Clone, Copy)]
pub struct EncodedSlice<'a> {
    /// The layer, with the bytes of the slice.
    pub layer: EncodedLayer<'a>,
    /// Whether it is the last slice of its layer.
    pub ends_layer: bool,
    /// Whether no higher layer of the frame follows.
    pub is_top: bool,
}

/// A datagram to a viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The viewer's address.
    pub to: SocketAddr,
    /// The UDP payload.
    pub datagram: Arc<[u8]>,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// When it is to leave, if the driver gives it to the kernel with a departure time
    /// ([`FlowConfig::departure_times`]); otherwise it leaves now.
    pub at: Option<Instant>,
    /// Whether the driver says when it left ([`Publication::handle_left`]).
    pub is_stamped: bool,
}

/// An event of a [`Publication`].
#[derive(Debug, Clone, PartialEq)]
pub enum PublicationEvent {
    /// A viewer has selected tracks for the first time.
    Joined {
        /// The session.
        session: u32,
        /// The viewer's address.
        address: SocketAddr,
    },
    /// A viewer's session has ended.
    Left {
        /// The last state of the flow.
        status: Box<ViewerStatus>,
        /// The reason.
        reason: EndReason,
    },
    /// It was found whether the kernel obeys departure times on the way to a viewer.
    Paced {
        /// The viewer's address.
        address: SocketAddr,
        /// What was found.
        finding: DepartureFinding,
    },
    /// The in-flight buffer of a viewer is done with an object.
    Object {
        /// The session.
        session: u32,
        /// The end of the object.
        event: SenderEvent,
    },
}

/// A frame that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The number of its group. Each frame is a group.
    pub group: u32,
    /// The bytes of all UDP payloads.
    pub size: ByteSize,
    /// The number of packets.
    pub packets: u64,
}

impl Publication {
    /// Creates a publication without viewers.
    ///
    /// # Errors
    /// If the tracks do not fit an announcement.
    pub fn new(
        config: PublicationConfig,
        secret: &TrackSecret,
        make_control: MakeControl,
    ) -> Result<Self, MessageError> {
        let access = secret.access();
        let announced = secret.announce(&config.announcement)?;
        let hop = access.hop(&config.hop_salt, 0);
        let tracks = config.announcement.tracks.iter();
        let packetisers = tracks.map(|track| {
            let settings = PacketiserConfig::new(track.alias, config.announcement.incarnation);
            let hop = Hop::clone(&hop);
            (track.alias, Packetiser::new(settings, secret.clone(), hop))
        });
        let host = HostConfig {
            sessions: config.viewers,
            ..HostConfig::new(access, announced, config.hop_salt, config.seed.clone())
        };
        let mut publication = Publication {
            packetisers: packetisers.collect(),
            host: Host::new(host),
            config,
            make_control,
            viewers: BTreeMap::new(),
            shares: Shares::default(),
            sizes: BTreeMap::new(),
            group: 0,
            current: None,
            events: VecDeque::new(),
        };
        publication.announce_epochs();
        Ok(publication)
    }

    /// Takes a datagram from an address.
    ///
    /// # Errors
    /// If it is not a valid message of a viewer. The host counts it.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        from: SocketAddr,
        datagram: &[u8],
    ) -> Result<(), HostError> {
        let taken = self.host.handle_datagram(now, from, datagram);
        self.take_events(now);
        taken
    }

    /// Seals a frame and offers it to all viewers. The layers are ascending by alias and layer.
    ///
    /// # Errors
    /// If a layer cannot be made into packets. [`PacketiseError::Exhausted`] lasts until a new start.
    pub fn publish(
        &mut self,
        now: Instant,
        captured: Instant,
        layers: &[EncodedLayer<'_>],
    ) -> Result<Published, PacketiseError> {
        let group = self.next_group();
        let mut objects = Vec::with_capacity(layers.len());
        for (at, layer) in layers.iter().enumerate() {
            let next = layers.get(at + 1);
            let is_top = next.is_none_or(|next| next.alias != layer.alias);
            objects.push(self.seal(group, captured, layer, is_top)?);
        }
        self.announce_epochs();
        self.shares.add(&objects);
        self.offer(now, &objects);
        Ok(Published {
            group,
            size: objects.iter().map(SealedObject::size).sum(),
            packets: objects
                .iter()
                .map(|object| object.packets.len() as u64)
                .sum(),
        })
    }

    /// Begins a frame, whose slices follow as they are encoded: the first ones can leave while the last
    /// ones are encoded. A frame that was begun before ends.
    pub fn begin_frame(&mut self, now: Instant, captured: Instant) {
        self.end_frame(now);
        let group = self.next_group();
        self.current = Some(CurrentFrame {
            group,
            captured,
            objects: Vec::new(),
            open: BTreeMap::new(),
        });
    }

    /// Seals a slice of the frame that was begun, and offers it to all viewers; with [`Spread::Interval`]
    /// only at the end of the frame, because its size decides when its packets leave. The layers of a
    /// track are ascending. Does nothing without such a frame.
    ///
    /// # Errors
    /// If the slice cannot be made into packets. [`PacketiseError::Exhausted`] lasts until a new start.
    pub fn publish_slice(
        &mut self,
        now: Instant,
        slice: &EncodedSlice<'_>,
    ) -> Result<(), PacketiseError> {
        let Some(mut frame) = self.current.take() else {
            return Ok(());
        };
        let published = self.publish_slice_of(now, &mut frame, slice);
        self.current = Some(frame);
        published
    }

    fn publish_slice_of(
        &mut self,
        now: Instant,
        frame: &mut CurrentFrame,
        slice: &EncodedSlice<'_>,
    ) -> Result<(), PacketiseError> {
        let EncodedLayer { alias, layer, .. } = slice.layer;
        let mut open = match frame.open.remove(&alias) {
            Some(open) if open.info().id.layer == layer => open,
            _ => self.begin_object(now, frame, slice)?,
        };
        let info = *open.info();
        let packetiser = self.packetisers.get_mut(&alias);
        let packetiser = packetiser.ok_or(PacketiseError::Unknown(info.id))?;
        let packets = if slice.ends_layer {
            packetiser.finish(open, slice.layer.content)?
        } else {
            let packets = packetiser.push(&mut open, slice.layer.content)?;
            frame.open.insert(alias, open);
            packets
        };
        if self.leaves_in_slices() {
            for watching in self.viewers.values_mut() {
                watching.push(now, &info, &packets);
                if slice.ends_layer {
                    watching.flow.finish(&info.id);
                }
            }
        }
        let mut objects = frame.objects.iter_mut();
        if let Some(object) = objects.find(|object| object.info.id == info.id) {
            object.packets.extend(packets);
        }
        Ok(())
    }

    /// Begins the object of a slice's layer.
    fn begin_object(
        &mut self,
        now: Instant,
        frame: &mut CurrentFrame,
        slice: &EncodedSlice<'_>,
    ) -> Result<OpenObject, PacketiseError> {
        let info = self.info(frame.group, frame.captured, &slice.layer, slice.is_top);
        let packetiser = self.packetisers.get_mut(&info.id.alias);
        let packetiser = packetiser.ok_or(PacketiseError::Unknown(info.id))?;
        let open = packetiser.begin(info)?;
        self.announce_epochs();
        frame.objects.push(SealedObject {
            info,
            packets: Vec::new(),
        });
        if self.leaves_in_slices() {
            let expected = self.sizes.get(&(info.id.alias, info.id.layer));
            let expected = expected.copied().unwrap_or_default();
            for watching in self.viewers.values_mut() {
                watching.admit(now, info, expected);
            }
        }
        Ok(open)
    }

    /// Ends the frame that was begun.
    pub fn end_frame(&mut self, now: Instant) {
        let Some(CurrentFrame { objects, open, .. }) = self.current.take() else {
            return;
        };
        self.shares.add(&objects);
        for object in &objects {
            let id = &object.info.id;
            self.sizes.insert((id.alias, id.layer), object.size());
        }
        if !self.leaves_in_slices() {
            self.offer(now, &objects);
        }
        // A layer that did not end is kept no longer than what was sent of it.
        for open in open.values() {
            for watching in self.viewers.values_mut() {
                watching.flow.finish(&open.info().id);
            }
        }
    }

    /// Returns whether slices leave before their frame is complete.
    fn leaves_in_slices(&self) -> bool {
        self.config.flow.spread == Spread::BorneRate
    }

    /// Returns the next datagram that leaves now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some((to, message)) = self.host.poll_transmit() {
            let mut watching = self.watching_at(to);
            let at = watching.find_map(|watching| watching.poll_trial(now));
            return Some(Outgoing {
                to,
                datagram: message.into(),
                ecn: Ecn::NotEct,
                at,
                is_stamped: at.is_some(),
            });
        }
        let mut viewers = self.viewers.values_mut();
        viewers.find_map(|watching| watching.poll_transmit(now))
    }

    /// Takes the time at which a datagram to an address left that was to leave at `planned`.
    pub fn handle_left(&mut self, now: Instant, to: SocketAddr, planned: Instant, left: Instant) {
        for watching in self.watching_at(to) {
            watching.handle_left(now, planned, left);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<PublicationEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let mut viewers = self.viewers.iter_mut();
        viewers.find_map(|(session, watching)| {
            if let Some(finding) = watching.poll_finding() {
                let address = watching.address;
                return Some(PublicationEvent::Paced { address, finding });
            }
            let event = watching.flow.poll_event()?;
            let session = *session;
            Some(PublicationEvent::Object { session, event })
        })
    }

    /// Returns when [`Publication::handle_timeout`] or [`Publication::poll_transmit`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flows = self.viewers.values();
        let flows = flows.filter_map(|watching| watching.flow.poll_timeout());
        flows.chain(self.host.poll_timeout()).min()
    }

    /// Reacts to the time that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for watching in self.viewers.values_mut() {
            watching.flow.handle_timeout(now);
        }
        if self.host.poll_timeout().is_some_and(|due| due <= now) {
            self.host.handle_timeout(now);
            self.take_events(now);
        }
    }

    /// Ends all sessions; the goodbyes are still to be transmitted.
    pub fn close(&mut self, reason: Goodbye) {
        for session in std::mem::take(&mut self.viewers).into_keys() {
            self.host.close(session, reason);
        }
    }

    /// Returns the rate at which to encode a frame now, with all headers: so that the fastest viewer gets all
    /// layers that it has selected, and the slowest one the base. `None` if nobody watches.
    pub fn target(&self, now: Instant) -> Option<Bitrate> {
        let target = |watching: &Watching| watching.target();
        // One who has vanished lowers nobody's quality, as long as somebody is there.
        let is_anyone_heard = self.watching().any(|watching| watching.is_heard(now));
        let counts = |watching: &&Watching| watching.is_heard(now) || !is_anyone_heard;
        let of_layers = self
            .watching()
            .filter(counts)
            .map(|watching| target(watching) / self.shares.of(&watching.selected));
        let of_base = self
            .watching()
            .filter(counts)
            .map(|watching| target(watching) / self.shares.base());
        let fastest = of_layers.max_by(f64::total_cmp)?;
        let slowest = of_base.min_by(f64::total_cmp)?;
        Some(Bitrate::from_bps(fastest.min(slowest) as u64))
    }

    /// Returns the newest pose of the only viewer; `None` if there are several, who look elsewhere.
    pub fn pose(&self) -> Option<Pose> {
        let mut viewers = self.watching();
        match (viewers.next(), viewers.next()) {
            (Some(only), None) => only.pose,
            _ => None,
        }
    }

    /// Returns the number of viewers who have selected layers.
    pub fn viewers(&self) -> usize {
        self.watching().count()
    }

    /// Returns the viewers who have selected layers that there are.
    fn watching(&self) -> impl Iterator<Item = &Watching> {
        let is_watching = |watching: &&Watching| {
            let mut selected = watching.selected.iter();
            selected.any(|(alias, layers)| *layers > 0 && self.packetisers.contains_key(alias))
        };
        self.viewers.values().filter(is_watching)
    }

    /// Returns the state of each viewer.
    pub fn status(&self) -> Vec<ViewerStatus> {
        let viewers = self.viewers.iter();
        viewers
            .map(|(session, watching)| watching.status(*session))
            .collect()
    }

    /// Returns the counts of the sessions.
    pub const fn host_stats(&self) -> &HostStats {
        self.host.stats()
    }

    fn watching_at(&mut self, address: SocketAddr) -> impl Iterator<Item = &mut Watching> {
        let viewers = self.viewers.values_mut();
        viewers.filter(move |watching| watching.address == address)
    }

    fn next_group(&mut self) -> u32 {
        let group = self.group;
        self.group += 1;
        group
    }

    fn offer(&mut self, now: Instant, objects: &[SealedObject]) {
        for watching in self.viewers.values_mut() {
            watching.offer(now, objects);
        }
    }

    fn seal(
        &mut self,
        group: u32,
        captured: Instant,
        layer: &EncodedLayer<'_>,
        is_top: bool,
    ) -> Result<SealedObject, PacketiseError> {
        let info = self.info(group, captured, layer, is_top);
        let packetiser = self.packetisers.get_mut(&layer.alias);
        let packetiser = packetiser.ok_or(PacketiseError::Unknown(info.id))?;
        match layer.content {
            LayerContent::Whole(bytes) => packetiser.packetise(info, bytes),
            LayerContent::Chunks(chunks) => packetiser.packetise_chunks(info, chunks),
        }
    }

    fn info(
        &self,
        group: u32,
        captured: Instant,
        layer: &EncodedLayer<'_>,
        is_top: bool,
    ) -> ObjectInfo {
        ObjectInfo {
            id: ObjectId {
                alias: layer.alias,
                group,
                object: 0,
                layer: layer.layer,
            },
            priority: layer.layer,
            deadline: captured + self.config.lifetime,
            flags: Flags {
                last_in_group: true,
                packets_alone: matches!(layer.content, LayerContent::Chunks(_)),
                top_layer: is_top,
            },
        }
    }

    fn announce_epochs(&mut self) {
        let epochs = self.packetisers.iter();
        let epochs = epochs.map(|(alias, packetiser)| (*alias, packetiser.epoch()));
        self.host.set_keys(0, epochs.collect());
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.host.poll_event() {
            match event {
                HostEvent::Opened { .. } => {}
                HostEvent::Subscribed { session, tracks } => self.select(now, session, tracks),
                HostEvent::Report {
                    session,
                    number,
                    report,
                } => self.report(now, session, number, &report),
                HostEvent::Ended { session, reason } => {
                    if let Some(watching) = self.viewers.remove(&session) {
                        let status = Box::new(watching.status(session));
                        let left = PublicationEvent::Left { status, reason };
                        self.events.push_back(left);
                    }
                }
            }
        }
    }

    fn select(&mut self, now: Instant, session: u32, tracks: Vec<(u32, u8)>) {
        let Some(address) = self.host.address(session) else {
            return;
        };
        let selected = tracks.into_iter().collect();
        if let Some(watching) = self.viewers.get_mut(&session) {
            watching.selected = selected;
        } else {
            let control = (self.make_control)(now);
            let watching = Watching::new(now, address, selected, self.config.flow, control);
            self.viewers.insert(session, watching);
            let joined = PublicationEvent::Joined { session, address };
            self.events.push_back(joined);
        }
        self.send_status(now, session);
    }

    fn report(&mut self, now: Instant, session: u32, number: u64, report: &Feedback) {
        if let Some(watching) = self.viewers.get_mut(&session) {
            watching.handle_feedback(now, number, report);
            self.send_status(now, session);
        }
    }

    fn send_status(&mut self, now: Instant, session: u32) {
        if let Some(watching) = self.viewers.get_mut(&session) {
            let stamp = watching.flow.stamp(now);
            self.host.send_status(session, stamp);
        }
    }
}

impl fmt::Debug for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publication")
            .field("config", &self.config)
            .field("host", &self.host)
            .field("viewers", &self.viewers)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
