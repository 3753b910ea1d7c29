//! The publisher's end of a stream to one viewer.

mod buffer;
mod dependencies;
mod event;
mod report;
mod stats;
#[cfg(test)]
mod tests;

pub use event::{AdmitError, DropReason, SenderEvent};
pub use report::{Acknowledged, FeedbackError, Lost, Outcome};
pub use stats::SenderStats;

use crate::clock::Clock;
use crate::flights::Flights;
use crate::object::{ObjectInfo, SealedObject, SealedPacket};
use crate::reordering::Reordering;
use crate::rtt::RttEstimate;
use buffer::{Buffer, Ended, Progress};
use dependencies::Dependencies;
use hawser_packets::media::{ObjectId, PacketId};
use hawser_units::{ByteSize, Instant};
use report::{Doubtful, Reported};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// The time by which a viewer may be late with a report because its processor does other things:
/// with the usual interval of 5 ms, the 25 ms of RFC 9000, section 18.2.
const REPORT_LATENESS: Duration = Duration::from_millis(20);

/// The settings of a [`Sender`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SenderConfig {
    /// The bytes that the in-flight buffer holds. An object is admitted when there is room, or when
    /// the buffer is empty.
    pub capacity: ByteSize,
    /// The rule by which objects are admitted and kept.
    pub rule: Rule,
    /// The time between the viewer's reports.
    pub report_interval: Duration,
}

/// The rule of the in-flight buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Rule {
    /// Objects are kept until they are acknowledged or past their deadline. Where there is no room,
    /// higher layers that have not begun to leave make room for lower ones.
    #[default]
    Deadline,
    /// Objects are kept until they are acknowledged, and new ones are refused while there is no room
    /// (De Fré et al., section 3.5).
    UntilAcknowledged,
}

/// The in-flight buffer of one viewer: admits objects, chooses the next packet, sends lost packets
/// again.
///
/// The caller paces: each packet of [`Sender::poll_transmit`] leaves when it is taken.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    is_urgent: bool,
    buffer: Buffer,
    dependencies: Dependencies,
    flights: Flights,
    rtt: RttEstimate,
    clock: Clock,
    reported: Reported,
    doubtful: Doubtful,
    reordering: Reordering,
    /// The shortest time from sending to arrival of packets that were sent once.
    soonest: Option<Duration>,
    events: VecDeque<SenderEvent>,
    stats: SenderStats,
}

/// A packet to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The packet.
    pub id: PacketId,
    /// The number of this transmission. It rises with each one.
    pub number: u64,
    /// The deadline of the object.
    pub deadline: Instant,
    /// The UDP payload.
    pub datagram: Arc<[u8]>,
    /// Whether the packet was sent before.
    pub is_repeated: bool,
}

impl SenderConfig {
    /// Returns the settings for a buffer of this size: the rule of deadlines, reports every 5 ms.
    pub const fn new(capacity: ByteSize) -> Self {
        SenderConfig {
            capacity,
            rule: Rule::Deadline,
            report_interval: Duration::from_millis(5),
        }
    }
}

impl Sender {
    /// Creates an empty buffer.
    pub fn new(config: SenderConfig) -> Self {
        Sender {
            config,
            is_urgent: true,
            buffer: Buffer::default(),
            dependencies: Dependencies::default(),
            flights: Flights::default(),
            rtt: RttEstimate::default(),
            clock: Clock::default(),
            reported: Reported::default(),
            doubtful: Doubtful::default(),
            reordering: Reordering::default(),
            soonest: None,
            events: VecDeque::new(),
            stats: SenderStats::default(),
        }
    }

    /// Admits an object with all of its packets.
    pub fn offer(&mut self, now: Instant, object: &SealedObject) -> Result<(), AdmitError> {
        self.admit(now, object.info, object.size())?;
        self.push(&object.info.id, &object.packets);
        self.finish(&object.info.id);
        Ok(())
    }

    /// Admits an object that is still encoded. `expected` is reserved until the packets need more.
    pub fn admit(
        &mut self,
        now: Instant,
        info: ObjectInfo,
        expected: ByteSize,
    ) -> Result<(), AdmitError> {
        let admitted = self.try_admit(now, info, expected);
        match admitted {
            Ok(()) => self.stats.admitted += 1,
            Err(error) => self.refuse(info.id, error),
        }
        admitted
    }

    /// Sets whether bases that are admitted from now on go ahead of the backlog. They do at first. If the
    /// backlog is small, a base interrupts an earlier frame without need.
    pub fn set_urgent(&mut self, is_urgent: bool) {
        self.is_urgent = is_urgent;
    }

    /// Adds packets to an admitted object; those of a dropped one are ignored.
    pub fn push(&mut self, id: &ObjectId, packets: &[SealedPacket]) {
        self.buffer.push(id, packets);
    }

    /// Returns whether an object was admitted, and is neither delivered nor dropped.
    pub(crate) fn keeps(&self, id: &ObjectId) -> bool {
        self.buffer.contains(id)
    }

    /// Records that an object has no more packets. It is delivered when all are acknowledged.
    pub fn finish(&mut self, id: &ObjectId) {
        if let Some(ended) = self.buffer.finish(id) {
            self.deliver(ended);
        }
    }

    /// Returns the next packet: of a base that goes ahead ([`Sender::set_urgent`]), then of the
    /// object with the earliest deadline, then the lowest priority number. Objects that can no longer
    /// arrive in time are dropped first.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let deadline = loop {
            let info = self.buffer.next_object()?;
            if !self.is_too_late(now, &info) {
                break info.deadline;
            }
            self.drop_late(info.id);
        };
        let next = self.buffer.take_packet()?;
        let size = next.packet.size();
        let flight = self.flights.add(now, next.packet.id, size, next.first);
        self.buffer.sent(&next.packet.id, flight.first);
        match next.first {
            Some(_) => self.stats.repeated += 1,
            None => {
                self.stats.packets += 1;
                self.stats.bytes += size.0;
            }
        }
        Some(Transmit {
            id: next.packet.id,
            number: flight.number,
            deadline,
            datagram: next.packet.datagram,
            is_repeated: next.first.is_some(),
        })
    }

    /// Returns whether a packet is queued. It may be late.
    pub fn has_transmit(&self) -> bool {
        self.buffer.next_object().is_some()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// Returns the next time at which [`Sender::handle_timeout`] has to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let lost = self
            .flights
            .timeout(&self.rtt, self.reordering_time(), self.report_delay());
        let expiry = match self.config.rule {
            Rule::Deadline => self.buffer.first_deadline(),
            Rule::UntilAcknowledged => None,
        };
        lost.into_iter().chain(expiry).min()
    }

    /// Declares packets lost and drops objects, by the time that has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Outcome {
        let mut outcome = Outcome::default();
        self.detect_lost(now, &mut outcome);
        let timeout = self.flights.probe_timeout(&self.rtt, self.report_delay());
        let before = outcome.lost.len();
        while let Some(flight) = self.flights.timed_out(now, timeout) {
            self.lose(flight, true, &mut outcome);
        }
        if outcome.lost.len() > before {
            self.flights.back_off();
        }
        if self.config.rule == Rule::Deadline {
            while let Some(id) = self.buffer.past_deadline(now) {
                self.drop_late(id);
            }
        }
        outcome
    }

    /// Returns the bytes that are sent and neither acknowledged nor lost.
    pub fn in_flight(&self) -> ByteSize {
        self.flights.bytes()
    }

    /// Returns the bytes that the buffer holds or has reserved.
    pub fn buffered(&self) -> ByteSize {
        self.buffer.bytes()
    }

    /// Returns the bytes that wait to be sent, for the first time or again.
    pub fn waiting(&self) -> ByteSize {
        self.buffer.waiting()
    }

    /// Returns the estimate of the round-trip time.
    pub const fn rtt(&self) -> &RttEstimate {
        &self.rtt
    }

    /// Returns the relation between the own clock and the viewer's.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the relation between the own clock and the viewer's, for the time stamps of messages.
    pub const fn clock_mut(&mut self) -> &mut Clock {
        &mut self.clock
    }

    /// Returns the counts.
    pub const fn stats(&self) -> &SenderStats {
        &self.stats
    }

    fn try_admit(
        &mut self,
        now: Instant,
        info: ObjectInfo,
        expected: ByteSize,
    ) -> Result<(), AdmitError> {
        if self.buffer.contains(&info.id) || self.reported.has_finished(&info.id) {
            return Err(AdmitError::Duplicate);
        }
        if self.dependencies.is_broken(&info.id) {
            return Err(AdmitError::Dependent);
        }
        if self.is_too_late(now, &info) {
            return Err(AdmitError::Expired);
        }
        self.make_room(&info, expected)?;
        let goes_ahead = self.is_urgent && self.config.rule == Rule::Deadline && info.id.layer == 0;
        self.buffer.admit(now, info, expected, goes_ahead);
        Ok(())
    }

    fn make_room(&mut self, info: &ObjectInfo, expected: ByteSize) -> Result<(), AdmitError> {
        let used = self.buffer.bytes();
        let needed = used
            .0
            .saturating_add(expected.0)
            .saturating_sub(self.config.capacity.0);
        if needed == 0 || used == ByteSize(0) {
            return Ok(());
        }
        if self.config.rule == Rule::UntilAcknowledged {
            return Err(AdmitError::NoRoom);
        }
        let displaced = self.buffer.displaced_by(info, ByteSize(needed));
        for id in displaced.ok_or(AdmitError::NoRoom)? {
            self.drop_object(id, DropReason::Displaced);
        }
        Ok(())
    }

    fn refuse(&mut self, id: ObjectId, error: AdmitError) {
        match error {
            AdmitError::NoRoom => self.stats.refused_no_room += 1,
            AdmitError::Expired => self.stats.refused_expired += 1,
            AdmitError::Dependent => self.stats.refused_dependent += 1,
            AdmitError::Duplicate => {
                self.stats.refused_duplicate += 1;
                return;
            }
        }
        self.break_dependents(id);
    }

    /// Returns the longest time for which a responsive viewer holds a report.
    fn report_delay(&self) -> Duration {
        self.config.report_interval + REPORT_LATENESS
    }

    /// Returns the time after which an overtaken packet is lost: at most a round trip and, if packets were
    /// overtaken recently, at least a quarter of the shortest one (RFC 8985, section 6.2).
    fn reordering_time(&self) -> Duration {
        let window = self.reordering.window();
        if window.is_zero() {
            return window;
        }
        let least = self.rtt.min().unwrap_or_default() / 4;
        let most = self.rtt.smoothed().unwrap_or_default();
        window.max(least).min(most)
    }

    /// Returns whether a packet that is sent now arrives too late. While nothing is in flight, no sample corrects the
    /// estimate of a queue that was full and has drained, so the shortest round trip counts.
    fn is_too_late(&self, now: Instant, info: &ObjectInfo) -> bool {
        let one_way = match self.in_flight() {
            ByteSize(0) => self.rtt.min().unwrap_or_default() / 2,
            _ => self.rtt.one_way(),
        };
        self.config.rule == Rule::Deadline && now + one_way > info.deadline
    }

    fn drop_late(&mut self, id: ObjectId) {
        let reason = match self.buffer.progress(&id) {
            Progress::Waiting => DropReason::Expired,
            Progress::Begun => DropReason::Late,
            Progress::Sent => DropReason::Unconfirmed,
        };
        self.drop_object(id, reason);
    }

    fn drop_object(&mut self, id: ObjectId, reason: DropReason) {
        let Some(ended) = self.buffer.remove(&id) else {
            return;
        };
        self.reported.finish(&ended);
        match reason {
            DropReason::Expired => self.stats.expired += 1,
            DropReason::Late => self.stats.late += 1,
            DropReason::Unconfirmed => self.stats.unconfirmed += 1,
            DropReason::Displaced => self.stats.displaced += 1,
            DropReason::Dependent => self.stats.dependent += 1,
        }
        self.events.push_back(SenderEvent::Dropped { id, reason });
        if !matches!(reason, DropReason::Dependent | DropReason::Unconfirmed) {
            self.break_dependents(id);
        }
    }

    /// Drops the objects that depend on an object and have not begun to leave.
    fn break_dependents(&mut self, id: ObjectId) {
        self.dependencies.break_at(id);
        for dependent in self.buffer.waiting_dependents(&id) {
            self.drop_object(dependent, DropReason::Dependent);
        }
    }

    fn deliver(&mut self, ended: Ended) {
        self.reported.finish(&ended);
        self.stats.delivered += 1;
        self.events.push_back(SenderEvent::Delivered {
            id: ended.id,
            admitted: ended.admitted,
        });
    }
}
