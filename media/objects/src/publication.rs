//! The publisher's end of a broadcast: its tracks, and a session and a flow for each viewer.

mod event;
mod frame;
mod hop;
mod outgoing;
mod path_size;
mod shares;
#[cfg(test)]
mod tests;
mod viewer_flow;

pub use event::PublicationEvent;
pub use frame::{EncodedLayer, EncodedSlice, Published};
pub use outgoing::Outgoing;
pub use viewer_flow::ViewerStatus;

use crate::encodings::Encodings;
use crate::flow::FlowConfig;
use crate::keys::{AccessSecret, Seed, TrackSecret};
use crate::object::SealedObject;
use crate::packetiser::{Packetiser, PacketiserConfig};
use crate::session::{Host, HostConfig, HostError, HostEvent, HostStats};
use frame::CurrentFrame;
use hawser_congestion::RateControl;
use hawser_packets::feedback::{Feedback, Pose};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::session::{Announcement, Goodbye, MessageError};
use hawser_units::{Bitrate, ByteSize, Instant};
use hop::HopKey;
use shares::Shares;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use viewer_flow::ViewerFlow;

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

/// Creates the rate control of a viewer that joins now.
pub type MakeControl = Box<dyn Fn(Instant) -> Box<dyn RateControl + Send> + Send>;

/// The publisher's end of a broadcast, without clock and socket.
///
/// Each layer is sealed once, for all viewers.
pub struct Publication {
    config: PublicationConfig,
    make_control: MakeControl,
    host: Host,
    packetisers: BTreeMap<u32, Packetiser>,
    hop: HopKey,
    viewers: BTreeMap<u32, ViewerFlow>,
    shares: Shares,
    /// The size of the newest object of each layer of each track.
    sizes: BTreeMap<(u32, u8), ByteSize>,
    group: u32,
    /// The track of sound, if there is one, and the number of its next group.
    sound: Option<(u32, u32)>,
    /// The frame that was begun and has not ended.
    current: Option<CurrentFrame>,
    /// The complete objects that wait for [`Publication::poll_object`]; `None` before [`Publication::keep_objects`].
    complete: Option<VecDeque<SealedObject>>,
    events: VecDeque<PublicationEvent>,
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
        let hop = HopKey::new(access.clone(), config.hop_salt);
        let mut tracks = config.announcement.tracks.iter();
        let sound = tracks
            .find(|track| track.is_sound())
            .map(|track| (track.alias, 0));
        let tracks = config.announcement.tracks.iter();
        let packetisers = tracks.map(|track| {
            let settings = PacketiserConfig::new(track.alias, config.announcement.incarnation);
            let hop = hop.hop.clone();
            (track.alias, Packetiser::new(settings, secret.clone(), hop))
        });
        let host = HostConfig {
            sessions: config.viewers,
            ..HostConfig::new(access, announced, config.hop_salt, config.seed.clone())
        };
        let mut publication = Publication {
            packetisers: packetisers.collect(),
            hop,
            host: Host::new(host),
            config,
            make_control,
            viewers: BTreeMap::new(),
            shares: Shares::default(),
            sizes: BTreeMap::new(),
            group: 0,
            sound,
            current: None,
            complete: None,
            events: VecDeque::new(),
        };
        publication.announce_keys();
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

    /// Returns the next datagram to send now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        if let Some((to, message)) = self.host.poll_message() {
            let mut viewer = self.viewers_at(to);
            let at = viewer.find_map(|viewer| viewer.poll_trial(now));
            return Some(Outgoing::message(to, message, at));
        }
        let mut viewers = self.viewers.values_mut();
        let media = viewers.find_map(|viewer| viewer.poll_transmit(now));
        // Answers to unverified addresses have the lowest priority.
        media.or_else(|| {
            let (to, answer) = self.host.poll_answer()?;
            Some(Outgoing::message(to, answer, None))
        })
    }

    /// Records the departure of a datagram to an address that was planned for `planned`.
    pub fn handle_left(&mut self, now: Instant, to: SocketAddr, planned: Instant, left: Instant) {
        for viewer in self.viewers_at(to) {
            viewer.handle_left(now, planned, left);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<PublicationEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        let mut viewers = self.viewers.iter_mut();
        viewers.find_map(|(session, viewer)| {
            if let Some(finding) = viewer.poll_finding() {
                let address = viewer.address;
                return Some(PublicationEvent::Paced { address, finding });
            }
            let event = viewer.flow.poll_event()?;
            let session = *session;
            Some(PublicationEvent::Object { session, event })
        })
    }

    /// Keeps the complete objects from now on, for [`Publication::poll_object`].
    pub fn keep_objects(&mut self) {
        self.complete.get_or_insert_default();
    }

    /// Returns the next object that was sealed completely, for receivers without a session here.
    pub fn poll_object(&mut self) -> Option<SealedObject> {
        self.complete.as_mut()?.pop_front()
    }

    /// Returns the announcement with its authenticator.
    pub fn announced(&self) -> &[u8] {
        self.host.announced()
    }

    /// Returns the epoch of the key of each track, by alias.
    pub fn epochs(&self) -> Vec<(u32, u16)> {
        let epochs = self.packetisers.iter();
        let epochs = epochs.map(|(alias, packetiser)| (*alias, packetiser.epoch()));
        epochs.collect()
    }

    /// Returns the secret for relays.
    pub const fn access(&self) -> &AccessSecret {
        self.hop.access()
    }

    /// Returns when [`Publication::handle_timeout`] or [`Publication::poll_transmit`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flows = self.viewers.values();
        let flows = flows.filter_map(|viewer| viewer.flow.poll_timeout());
        flows.chain(self.host.poll_timeout()).min()
    }

    /// Reacts to the time that has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for viewer in self.viewers.values_mut() {
            viewer.flow.handle_timeout(now);
        }
        if self.host.poll_timeout().is_some_and(|due| due <= now) {
            self.host.handle_timeout(now);
            self.take_events(now);
        }
    }

    /// Ends all sessions; the goodbyes are still to be transmitted.
    pub fn close(&mut self, reason: Goodbye) {
        self.host.close_all(reason);
        self.viewers.clear();
    }

    /// Returns the rate at which to encode a frame now, with all headers: so that the fastest viewer gets all
    /// layers that it has selected, and the slowest one the bases of them. A viewer that selects fewer layers than
    /// before does not get larger ones instead: it leaves its path to other flows. `None` without viewers of pictures.
    pub fn target(&self, now: Instant) -> Option<Bitrate> {
        let target = |viewer: &ViewerFlow| viewer.target();
        // A vanished viewer does not lower the quality of the others.
        let is_anyone_heard = self.looking().any(|viewer| viewer.is_heard(now));
        let counts = |viewer: &&ViewerFlow| viewer.is_heard(now) || !is_anyone_heard;
        let of_layers = self
            .looking()
            .filter(counts)
            .map(|viewer| target(viewer) / self.shares.of(&viewer.most));
        let of_base = self
            .looking()
            .filter(counts)
            .map(|viewer| target(viewer) / self.shares.bases(&viewer.selected));
        let fastest = of_layers.max_by(f64::total_cmp)?;
        let slowest = of_base.min_by(f64::total_cmp)?;
        Some(Bitrate::from_bps(fastest.min(slowest) as u64))
    }

    /// Returns the newest pose of the only viewer; `None` if there are several.
    pub fn pose(&self) -> Option<Pose> {
        let mut viewers = self.active();
        match (viewers.next(), viewers.next()) {
            (Some(only), None) => only.pose,
            _ => None,
        }
    }

    /// Returns the length of a full UDP payload, which all viewers' paths carry. Chunks should fit it.
    pub fn datagram(&self) -> usize {
        let viewers = self.viewers.values();
        let carried = viewers.map(|viewer| viewer.path.datagram());
        carried.min().unwrap_or(DEFAULT_DATAGRAM)
    }

    /// Returns the number of viewers that have selected layers.
    pub fn viewers(&self) -> usize {
        self.active().count()
    }

    /// Returns the viewers that have selected announced layers.
    fn active(&self) -> impl Iterator<Item = &ViewerFlow> {
        self.having_selected(|_| true)
    }

    /// Returns the viewers that have selected layers of pictures.
    fn looking(&self) -> impl Iterator<Item = &ViewerFlow> {
        let sound = self.sound.map(|(alias, _)| alias);
        self.having_selected(move |alias| Some(alias) != sound)
    }

    fn having_selected(&self, counts: impl Fn(u32) -> bool) -> impl Iterator<Item = &ViewerFlow> {
        let is_active = move |viewer: &&ViewerFlow| {
            let mut selected = viewer.selected.iter();
            selected.any(|(alias, layers)| {
                *layers > 0 && counts(*alias) && self.packetisers.contains_key(alias)
            })
        };
        self.viewers.values().filter(is_active)
    }

    /// Returns the state of each viewer.
    pub fn status(&self) -> Vec<ViewerStatus> {
        let viewers = self.viewers.iter();
        viewers
            .map(|(session, viewer)| viewer.status(*session))
            .collect()
    }

    /// Returns the counts of the sessions.
    pub const fn host_stats(&self) -> HostStats {
        self.host.stats()
    }

    fn viewers_at(&mut self, address: SocketAddr) -> impl Iterator<Item = &mut ViewerFlow> {
        let viewers = self.viewers.values_mut();
        viewers.filter(move |viewer| viewer.address == address)
    }

    fn announce_keys(&mut self) {
        let epochs = self.epochs();
        self.host.set_keys(self.hop.hop.number, epochs);
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.host.poll_event() {
            match event {
                HostEvent::Opened { .. } => {}
                HostEvent::Subscribed {
                    session,
                    tracks,
                    any_encoding,
                } => self.select(now, session, tracks, any_encoding),
                HostEvent::Report {
                    session,
                    number,
                    report,
                } => self.report(now, session, number, &report),
                HostEvent::Ended { session, reason } => {
                    if let Some(viewer) = self.viewers.remove(&session) {
                        let status = Box::new(viewer.status(session));
                        let left = PublicationEvent::Left { status, reason };
                        self.events.push_back(left);
                    }
                }
            }
        }
    }

    fn select(&mut self, now: Instant, session: u32, tracks: Vec<(u32, u8)>, any_encoding: bool) {
        let Some(address) = self.host.address(session) else {
            return;
        };
        let mut selected: BTreeMap<u32, u8> = tracks.into_iter().collect();
        if any_encoding {
            // The rate of the best one follows the viewer's.
            let best = Encodings::of(&self.config.announcement).choose(&selected, 0);
            selected.retain(|alias, _| best.contains(alias));
        }
        if let Some(viewer) = self.viewers.get_mut(&session) {
            viewer.select(selected);
        } else {
            let control = (self.make_control)(now);
            let mut viewer = ViewerFlow::new(now, address, selected, self.config.flow, control);
            viewer.path.leave_out(self.sound.map(|(alias, _)| alias));
            self.viewers.insert(session, viewer);
            let joined = PublicationEvent::Joined { session, address };
            self.events.push_back(joined);
        }
        self.send_status(now, session);
    }

    fn report(&mut self, now: Instant, session: u32, number: u64, report: &Feedback) {
        if let Some(viewer) = self.viewers.get_mut(&session) {
            let before = viewer.path.datagram();
            let acknowledged = viewer.handle_feedback(now, number, report);
            let datagram = viewer.path.datagram();
            if datagram < before {
                let address = viewer.address;
                let narrow = PublicationEvent::Narrow { address, datagram };
                self.events.push_back(narrow);
            }
            self.host.handle_acknowledged(session, acknowledged);
            self.send_status(now, session);
        }
    }

    fn send_status(&mut self, now: Instant, session: u32) {
        if let Some(viewer) = self.viewers.get_mut(&session) {
            let stamp = viewer.flow.stamp(now);
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
