use super::EndReason;
use super::channel::UsedUp;
use super::client::{Accepted, Client, SenderMessage, SessionTimes, ViewerError, ViewerStats};
use crate::epochs::HopKeys;
use crate::gaps::Gaps;
use crate::keys::AccessSecret;
use crate::refusal::{Refusal, Refusals};
use crate::reports::{ReportConfig, Reports};
use crate::seen::SeenPackets;
use hawser_packets::feedback::{Pose, Totals};
use hawser_packets::media::{DEFAULT_DATAGRAM, Header, Hop, Packet, VERSION, is_from_hop};
use hawser_packets::session::{Accept, Announcement, Goodbye, MAX_RELAYS, Status};
use hawser_units::{Ecn, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// The settings of an [`Upstream`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamConfig {
    /// The random number of the relay.
    pub relay: u64,
    /// The number of objects of a track whose packets are each accepted once.
    pub objects: usize,
    /// The maximum number of packets of an object.
    pub packets: u16,
    /// The settings of the reports.
    pub reports: ReportConfig,
    /// The times of the session.
    pub times: SessionTimes,
}

/// A relay's session with the publisher, or with the previous relay: requests it, receives packets that it
/// cannot decrypt, sends reports.
///
/// The hop tag authenticates the header of a packet. Only viewers can tell whether the payload is the
/// publisher's. A datagram is no longer than [`DEFAULT_DATAGRAM`].
#[derive(Debug)]
pub struct Upstream {
    config: UpstreamConfig,
    access: AccessSecret,
    client: Client,
    open: Option<Box<Open>>,
    events: VecDeque<UpstreamEvent>,
}

#[derive(Debug)]
struct Open {
    status: Status,
    hops: HopKeys,
    /// The key with which the kernel tags the packets that it has verified, if it does.
    retagged: Option<Hop>,
    reports: Reports,
    tracks: BTreeMap<u32, Track>,
    refusals: Refusals,
}

#[derive(Debug)]
struct Track {
    /// The number of layers that were announced.
    layers: u8,
    seen: SeenPackets,
    gaps: Gaps,
}

/// An event of an [`Upstream`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamEvent {
    /// The session is open. The sender sends no media until the relay subscribes.
    Opened {
        /// The publisher's announcement with its authenticator, which a relay cannot verify.
        bytes: Vec<u8>,
        /// The same without its authenticator.
        announcement: Announcement,
    },
    /// The session has ended.
    Ended(UpstreamEnd),
}

/// The reason why a session with the publisher ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamEnd {
    /// The session ended as any other may.
    Session(EndReason),
    /// The stream has passed this relay before.
    Loop,
    /// The maximum number of relays on the path is reached.
    TooFar,
}

impl fmt::Display for UpstreamEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamEnd::Session(reason) => reason.fmt(f),
            UpstreamEnd::Loop => f.write_str("the stream has passed this relay before"),
            UpstreamEnd::TooFar => f.write_str("there are too many relays on the path"),
        }
    }
}

/// A packet for the viewers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayedPacket {
    /// The header, which does not change.
    pub header: Header,
    /// The UDP payload, with the tag of its sender.
    pub datagram: Arc<[u8]>,
}

impl UpstreamConfig {
    /// Returns the settings of the relay with this random number.
    pub fn new(relay: u64) -> Self {
        UpstreamConfig {
            relay,
            objects: 512,
            packets: 8192,
            reports: ReportConfig::default(),
            times: SessionTimes::default(),
        }
    }
}

impl Upstream {
    /// Requests a session. `random` has 16 random bytes, new for each session.
    pub fn new(config: UpstreamConfig, access: AccessSecret, random: [u8; 16]) -> Self {
        Upstream {
            config,
            client: Client::new(config.times, access.clone(), random),
            access,
            open: None,
            events: VecDeque::new(),
        }
    }

    /// Processes a datagram from the sender's address, with its ECN field. Returns the packet, if it is a new
    /// one of media.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<Option<RelayedPacket>, ViewerError> {
        let taken = if datagram.first() == Some(&VERSION) {
            self.handle_packet(now, datagram, ecn).map(Some)
        } else {
            self.handle_message(now, datagram).map(|()| None)
        };
        taken.inspect_err(|error| self.client.count(error))
    }

    /// Selects the tracks and the number of their layers, once the session is open.
    pub fn subscribe(&mut self, now: Instant, tracks: Vec<(u32, u8)>) {
        self.client.subscribe(now, tracks, false);
    }

    /// Expects packets with the tag of this key instead of that of the sender: the kernel verifies and tags
    /// them.
    pub fn expect_retagged(&mut self, hop: Hop) {
        if let Some(open) = &mut self.open {
            open.retagged = Some(hop);
        }
    }

    /// Sets the pose in reports: that of the only viewer.
    pub fn set_pose(&mut self, pose: Option<Pose>) {
        self.client.set_pose(pose);
    }

    /// Takes word of the network that nobody receives at the sender's address.
    pub fn handle_refused(&mut self, now: Instant) {
        self.client.handle_refused(now);
    }

    /// Leaves the session.
    pub fn close(&mut self, reason: Goodbye) {
        self.client.close(reason);
    }

    /// Returns the next datagram to the sender.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        let open = &mut self.open;
        let report = |pose| open.as_mut()?.reports.poll(now, pose);
        let sent = self.client.poll_transmit(now, report);
        sent.unwrap_or_else(|UsedUp| {
            self.end(UpstreamEnd::Session(EndReason::KeyUsedUp));
            None
        })
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<UpstreamEvent> {
        self.events.pop_front()
    }

    /// Returns the next time at which [`Upstream::handle_timeout`] and [`Upstream::poll_transmit`]
    /// have to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let open = self.open.as_ref().filter(|_| self.client.is_open());
        let report = open.map(|open| open.reports.due());
        let times = [self.client.poll_timeout(), report];
        times.into_iter().flatten().min()
    }

    /// Ends the session if no authentic datagram arrives.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.client.has_timed_out(now) {
            self.end(UpstreamEnd::Session(EndReason::TimedOut));
        }
    }

    /// Returns whether the session is open.
    pub const fn is_open(&self) -> bool {
        self.client.is_open()
    }

    /// Returns the newest status of the sender, once a session was open.
    pub fn status(&self) -> Option<&Status> {
        self.open.as_ref().map(|open| &open.status)
    }

    /// Returns the keys with which the sender tags packets: the one before, the current one and the one
    /// after; none before the session was open.
    pub fn hops(&self) -> Option<&[Hop; 3]> {
        self.open.as_ref().map(|open| open.hops.all())
    }

    /// Returns the relays between the publisher and this relay's viewers, this one last.
    pub fn relays(&self) -> Vec<u64> {
        let before = self.status().map(|status| status.relays.as_slice());
        let own = [self.config.relay];
        before.into_iter().flatten().chain(&own).copied().collect()
    }

    /// Returns the publisher's clock less the own one, in nanoseconds; `None` before the first exchange
    /// with the sender.
    pub fn publisher_ahead_nanos(&self) -> Option<i64> {
        self.open.as_ref()?.reports.publisher_ahead_nanos()
    }

    /// Returns the totals of the next report, once a session was open.
    pub fn totals(&self) -> Option<Totals> {
        self.open.as_ref().map(|open| open.reports.totals())
    }

    /// Returns the counts of refused packets.
    pub fn refusals(&self) -> Refusals {
        let open = self.open.as_ref();
        open.map(|open| open.refusals).unwrap_or_default()
    }

    /// Returns the counts of the session's messages.
    pub const fn stats(&self) -> &ViewerStats {
        self.client.stats()
    }

    fn handle_packet(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<RelayedPacket, ViewerError> {
        let packets = self.config.packets;
        let open = self.open.as_mut().filter(|_| self.client.is_open());
        let open = open.ok_or(ViewerError::Unexpected)?;
        let taken = open.take(now, datagram, ecn, packets);
        let packet = taken.inspect_err(|refusal| {
            open.refusals.count(*refusal);
            open.reports.count_refused();
        })?;
        self.client.hear(now);
        Ok(packet)
    }

    fn handle_message(&mut self, now: Instant, datagram: &[u8]) -> Result<(), ViewerError> {
        match self.client.handle_message(now, datagram)? {
            SenderMessage::Handled => {}
            SenderMessage::Accept(plaintext, accepted) => {
                self.handle_accept(now, &plaintext, accepted)?
            }
            SenderMessage::Status(status) => self.handle_status(now, status),
            SenderMessage::Goodbye(reason) => {
                self.end(UpstreamEnd::Session(EndReason::Left(reason)))
            }
        }
        Ok(())
    }

    fn handle_accept(
        &mut self,
        now: Instant,
        plaintext: &[u8],
        accepted: Accepted,
    ) -> Result<(), ViewerError> {
        let accept = Accept::parse(plaintext)?;
        let (covered, _) = Announcement::split(accept.announcement)?;
        let announcement = Announcement::parse(covered)?;
        let tracks = announcement.tracks.iter().map(|announced| {
            let track = Track {
                layers: announced.layers,
                seen: SeenPackets::new(self.config.objects),
                gaps: Gaps::default(),
            };
            (announced.alias, track)
        });
        let (salt, hop) = (accept.hop_salt, accept.status.hop);
        self.open = Some(Box::new(Open {
            hops: HopKeys::new(self.access.clone(), salt, hop),
            retagged: None,
            reports: Reports::new(self.config.reports, &accept.status),
            tracks: tracks.collect(),
            refusals: Refusals::default(),
            status: accept.status,
        }));
        self.client.open(now, accepted);
        let bytes = accept.announcement.to_vec();
        self.events.push_back(UpstreamEvent::Opened {
            bytes,
            announcement,
        });
        self.check_relays();
        Ok(())
    }

    fn handle_status(&mut self, now: Instant, status: Status) {
        let Some(open) = &mut self.open else { return };
        open.hops.announce(status.hop);
        if open.reports.handle_status(now, &status).is_err() {
            self.client.count_impossible_time();
        }
        open.status = status;
        self.check_relays();
    }

    /// Ends the session if the stream has passed this relay before, or too many relays.
    fn check_relays(&mut self) {
        let relays = self.status().map(|status| status.relays.as_slice());
        let relays = relays.unwrap_or_default();
        let reason = if relays.contains(&self.config.relay) {
            UpstreamEnd::Loop
        } else if relays.len() >= MAX_RELAYS {
            UpstreamEnd::TooFar
        } else {
            return;
        };
        self.close(Goodbye::Ended);
        self.events.push_back(UpstreamEvent::Ended(reason));
    }

    fn end(&mut self, reason: UpstreamEnd) {
        self.client.end();
        self.events.push_back(UpstreamEvent::Ended(reason));
    }
}

impl Open {
    fn take(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
        packets: u16,
    ) -> Result<RelayedPacket, Refusal> {
        if datagram.len() > DEFAULT_DATAGRAM {
            return Err(Refusal::TooLong);
        }
        let packet = Packet::parse(datagram).map_err(Refusal::Header)?;
        let header = packet.header;
        let is_right = match &self.retagged {
            Some(hop) => packet.hop == hop.number && is_from_hop(datagram, &hop.key),
            None => self.hops.accepts(datagram, packet.hop),
        };
        if !is_right {
            return Err(Refusal::HopTag);
        }
        if header.id.index >= packets {
            return Err(Refusal::TooManyPackets);
        }
        let track = self.tracks.get_mut(&header.id.object.alias);
        let track = track.ok_or(Refusal::UnknownTrack)?;
        if header.id.object.layer >= track.layers {
            return Err(Refusal::UnknownLayer);
        }
        if let Err(refusal) = track.seen.add(header.id) {
            if refusal == Refusal::Duplicate {
                self.reports.count_again(now, header.id, ecn);
            }
            return Err(refusal);
        }
        self.reports.count(now, header.id, datagram.len(), ecn);
        if track
            .gaps
            .add(header.id, header.count, header.flags.packets_alone)
        {
            self.reports.note_gap();
        }
        Ok(RelayedPacket {
            header,
            datagram: datagram.into(),
        })
    }
}
