use super::Sender;
use super::buffer::{Ended, Named};
use crate::flights::{Flight, REORDERING};
use hawser_packets::feedback::{Arrival, Feedback, Pose, Totals};
use hawser_packets::media::{ObjectId, PacketId};
use hawser_units::{ByteSize, Ecn, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of ended objects that are remembered.
const REMEMBERED: usize = 512;

/// The results of a report or of a timeout, for congestion control.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// Packets that were acknowledged, in the order of the report.
    pub acknowledged: Vec<Acknowledged>,
    /// Packets that were declared lost, in the order of sending. They are sent again.
    pub lost: Vec<Lost>,
    /// The numbers of transmissions that were lost: other ones than those of a timeout, which may
    /// arrive yet, and those of a timeout after which only the repeated packet arrived.
    pub lost_numbers: Vec<u64>,
    /// The numbers of transmissions that are given up, and may have arrived.
    pub abandoned_numbers: Vec<u64>,
    /// The growth of the totals since the newest report before; zero for an older report.
    pub growth: Totals,
    /// The round trip of the newest of the acknowledged packets that were sent once.
    pub round_trip: Option<Duration>,
    /// The viewer's pose, if this is the newest report.
    pub pose: Option<Pose>,
}

/// An acknowledged packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledged {
    /// The packet.
    pub id: PacketId,
    /// The number of its last transmission.
    pub number: u64,
    /// The length of its UDP payload.
    pub size: ByteSize,
    /// The time of its last transmission.
    pub sent: Instant,
    /// The time of its arrival by the viewer's clock; `None` if the report does not have it.
    pub arrived: Option<Instant>,
    /// The ECN field with which it arrived.
    pub ecn: Ecn,
    /// Whether it was sent more than once, so that `sent` may not be of the copy that arrived.
    pub is_repeated: bool,
}

/// A lost packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The packet.
    pub id: PacketId,
    /// The length of its UDP payload.
    pub size: ByteSize,
    /// The time of its last transmission.
    pub sent: Instant,
    /// Whether the reason is that nothing was acknowledged, rather than later packets.
    pub by_timeout: bool,
}

/// The reason why a report is refused as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FeedbackError {
    /// The totals have more marked bytes than bytes.
    #[error("the totals of the report are impossible")]
    ImpossibleTotals,
    /// The totals or the time of a later report are less than those of an earlier one.
    #[error("the report has lower totals or times than an earlier one")]
    GoesBack,
}

/// The viewer's reports so far.
#[derive(Debug, Default)]
pub(super) struct Reported {
    newest: Option<Newest>,
    finished: BTreeMap<ObjectId, Vec<bool>>,
    order: VecDeque<ObjectId>,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    number: u64,
    time: Instant,
    totals: Totals,
}

/// Transmissions that were declared lost and may arrive yet, the newest of each packet, with whether
/// a timeout was the reason.
#[derive(Debug, Default)]
pub(super) struct Doubtful {
    by_packet: BTreeMap<PacketId, (Flight, bool)>,
    order: VecDeque<(u64, PacketId)>,
    /// Transmissions that timed out and are not known to be lost, in the order of sending.
    timed_out: VecDeque<(u64, PacketId)>,
}

/// The time by which a packet may be sooner than all before it.
const SOONER: Duration = Duration::from_micros(500);

/// The number of transmissions that are remembered as doubtful.
const DOUBTFUL: usize = 4096;

impl Doubtful {
    fn insert(&mut self, flight: Flight, by_timeout: bool) {
        self.by_packet.insert(flight.packet, (flight, by_timeout));
        self.order.push_back((flight.number, flight.packet));
        if by_timeout {
            self.timed_out.push_back((flight.number, flight.packet));
        }
        while self.timed_out.len() > DOUBTFUL {
            self.timed_out.pop_front();
        }
        while self.order.len() > DOUBTFUL {
            let Some((number, packet)) = self.order.pop_front() else {
                return;
            };
            if self
                .by_packet
                .get(&packet)
                .is_some_and(|(f, _)| f.number == number)
            {
                self.by_packet.remove(&packet);
            }
        }
    }

    fn remove(&mut self, packet: &PacketId) -> Option<(Flight, bool)> {
        self.by_packet.remove(packet)
    }

    /// Returns the next transmission that timed out and is lost, since one that left `REORDERING`
    /// packets later was acknowledged.
    fn lost_by_timeout(&mut self, acknowledged: u64) -> Option<u64> {
        loop {
            let (number, packet) = *self.timed_out.front()?;
            if number + REORDERING > acknowledged {
                return None;
            }
            self.timed_out.pop_front();
            if let Some((flight, by_timeout)) = self.by_packet.get_mut(&packet) {
                *by_timeout &= flight.number != number;
                return Some(number);
            }
        }
    }
}

impl Reported {
    pub(super) fn has_finished(&self, id: &ObjectId) -> bool {
        self.finished.contains_key(id)
    }

    /// Remembers which packets of an ended object were sent.
    pub(super) fn finish(&mut self, ended: &Ended) {
        self.finished.insert(ended.id, ended.sent.clone());
        self.order.push_back(ended.id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.finished.remove(&oldest);
        }
    }

    fn was_sent(&self, id: &PacketId) -> bool {
        let sent = self.finished.get(&id.object);
        sent.and_then(|sent| sent.get(usize::from(id.index))) == Some(&true)
    }

    /// Records the time of a report and its totals. Returns the growth of these; `None` if the report is
    /// not the newest.
    fn advance(
        &mut self,
        number: u64,
        report: &Feedback,
        totals: Totals,
    ) -> Result<Option<Totals>, FeedbackError> {
        let time = report.clock.sent;
        let before = match &self.newest {
            Some(newest) if number <= newest.number => return Ok(None),
            Some(newest) if time < newest.time => return Err(FeedbackError::GoesBack),
            newest => newest.map(|newest| newest.totals).unwrap_or_default(),
        };
        let growth = grown(&before, &totals).ok_or(FeedbackError::GoesBack)?;
        self.newest = Some(Newest {
            number,
            time,
            totals,
        });
        Ok(Some(growth))
    }
}

fn grown(before: &Totals, after: &Totals) -> Option<Totals> {
    Some(Totals {
        packets: after.packets.checked_sub(before.packets)?,
        bytes: after.bytes.checked_sub(before.bytes)?,
        ce_bytes: after.ce_bytes.checked_sub(before.ce_bytes)?,
        refused: after.refused.checked_sub(before.refused)?,
    })
}

impl Acknowledged {
    fn new(flight: &Flight, arrived: Option<Instant>, ecn: Ecn) -> Self {
        Acknowledged {
            id: flight.packet,
            number: flight.number,
            size: flight.size,
            sent: flight.sent,
            arrived,
            ecn,
            is_repeated: !flight.is_first(),
        }
    }
}

impl Sender {
    /// Processes an authenticated report. `number` is the number of its message, which tells newer reports
    /// from older ones.
    pub fn handle_feedback(
        &mut self,
        now: Instant,
        number: u64,
        report: &Feedback,
    ) -> Result<Outcome, FeedbackError> {
        let growth = self.check_totals(number, report)?;
        if self.clock.handle_stamp(now, &report.clock).is_err() {
            self.stats.impossible_times += 1;
        }
        let mut outcome = Outcome {
            growth: growth.unwrap_or_default(),
            pose: growth.and(report.pose),
            ..Outcome::default()
        };
        let mut newest = None;
        for (id, arrival) in arrivals(report) {
            let flight = self.acknowledge(report.clock.sent, id, &arrival, &mut outcome);
            newest = newer(newest, flight.map(|flight| (flight, arrival)));
        }
        outcome.round_trip = newest.and_then(|(flight, a)| self.round_trip(now, &flight, &a));
        let acknowledged = outcome.acknowledged.iter();
        let once = acknowledged.filter(|packet| !packet.is_repeated);
        self.reordering
            .add(now, once.map(|packet| (packet.number, packet.sent)));
        self.detect_lost(now, &mut outcome);
        Ok(outcome)
    }

    fn check_totals(
        &mut self,
        number: u64,
        report: &Feedback,
    ) -> Result<Option<Totals>, FeedbackError> {
        if report.totals.ce_bytes > report.totals.bytes {
            self.stats.refused_reports += 1;
            return Err(FeedbackError::ImpossibleTotals);
        }
        let totals = self.sent_of(&report.totals);
        let growth = self.reported.advance(number, report, totals);
        growth.inspect_err(|_| self.stats.refused_reports += 1)
    }

    /// Returns totals that are no more than what was sent. A viewer also counts packets of other
    /// viewers, if an attacker repeats them to it.
    fn sent_of(&mut self, totals: &Totals) -> Totals {
        let (packets, bytes) = (self.stats.packets, self.stats.bytes);
        if totals.packets > packets || totals.bytes > bytes {
            self.stats.excessive_totals += 1;
        }
        Totals {
            packets: totals.packets.min(packets),
            bytes: totals.bytes.min(bytes),
            ce_bytes: totals.ce_bytes.min(bytes),
            refused: totals.refused,
        }
    }

    fn named(&self, id: &PacketId) -> Named {
        match self.buffer.named(id) {
            Named::Unknown if !self.reported.was_sent(id) => Named::Unsent,
            named => named,
        }
    }

    /// Processes one acknowledgement. Returns the packet if it was in flight.
    fn acknowledge(
        &mut self,
        report: Instant,
        id: PacketId,
        arrival: &Arrival,
        outcome: &mut Outcome,
    ) -> Option<Flight> {
        let named = self.named(&id);
        if named == Named::Unsent {
            self.stats.acknowledged_unsent += 1;
            return None;
        }
        let flight = self.flights.acknowledge(&id);
        let arrived_at = flight.and_then(|flight| self.arrival_time(report, &flight, arrival));
        let before = self.doubtful.remove(&id);
        let is_original = before.is_some() && arrived_at.is_none();
        if let Some(flight) = flight.filter(|_| !is_original) {
            let packet = Acknowledged::new(&flight, arrived_at, arrival.ecn);
            outcome.acknowledged.push(packet);
            let lost = before.filter(|(_, by_timeout)| *by_timeout);
            outcome
                .lost_numbers
                .extend(lost.map(|(lost, _)| lost.number));
        } else if let Some((lost, _)) = before {
            // The transmission that was declared lost has arrived after all.
            let at = arrival.age.duration().map(|age| report - age);
            let packet = Acknowledged::new(&lost, at, arrival.ecn);
            outcome.acknowledged.push(packet);
            outcome
                .abandoned_numbers
                .extend(flight.map(|flight| flight.number));
            self.stats.spurious += 1;
        }
        if let Some(ended) = self.buffer.acknowledge(&id) {
            self.deliver(ended);
        }
        flight
    }

    /// Returns the time of an arrival by the viewer's clock, unless it is before the packet was sent.
    fn arrival_time(
        &mut self,
        report: Instant,
        flight: &Flight,
        arrival: &Arrival,
    ) -> Option<Instant> {
        let arrived = report - arrival.age.duration()?;
        let Some(relation) = self.clock.relation() else {
            return Some(arrived);
        };
        let local = relation.to_local(arrived);
        if !flight.is_first() {
            // A copy that arrived sooner than any packet after its sending was sent before.
            let soonest = self.soonest.unwrap_or_default().saturating_sub(SOONER);
            return (local >= flight.sent + soonest).then_some(arrived);
        }
        if local + relation.round_trip / 2 < flight.sent {
            self.stats.impossible_times += 1;
            return None;
        }
        let took = local.saturating_since(flight.sent);
        self.soonest = Some(self.soonest.map_or(took, |soonest| soonest.min(took)));
        Some(arrived)
    }

    /// Adds the round trip of a packet that was sent once.
    fn round_trip(&mut self, now: Instant, flight: &Flight, arrival: &Arrival) -> Option<Duration> {
        let age = arrival.age.duration()?;
        let elapsed = now.saturating_since(flight.sent);
        let Some(round_trip) = elapsed.checked_sub(age) else {
            self.stats.impossible_times += 1;
            return None;
        };
        self.rtt.update(round_trip, elapsed);
        Some(round_trip)
    }

    pub(super) fn detect_lost(&mut self, now: Instant, outcome: &mut Outcome) {
        let reordering = self.reordering_time();
        while let Some(flight) = self.flights.lost(now, &self.rtt, reordering) {
            self.lose(flight, false, outcome);
        }
        if let Some(acknowledged) = self.flights.largest_acknowledged() {
            let doubtful = &mut self.doubtful;
            let lost = std::iter::from_fn(|| doubtful.lost_by_timeout(acknowledged));
            outcome.lost_numbers.extend(lost);
        }
    }

    pub(super) fn lose(&mut self, flight: Flight, by_timeout: bool, outcome: &mut Outcome) {
        self.stats.lost += 1;
        self.buffer.send_again(&flight.packet);
        self.doubtful.insert(flight, by_timeout);
        match by_timeout {
            true => outcome.abandoned_numbers.push(flight.number),
            false => outcome.lost_numbers.push(flight.number),
        }
        outcome.lost.push(Lost {
            id: flight.packet,
            size: flight.size,
            sent: flight.sent,
            by_timeout,
        });
    }
}

/// Returns the packets of a report that have arrived.
fn arrivals(report: &Feedback) -> impl Iterator<Item = (PacketId, Arrival)> {
    report.blocks.iter().flat_map(|block| {
        let object = block.object;
        let packets = (block.base..=u16::MAX).zip(&block.packets);
        packets.filter_map(move |(index, arrival)| Some((PacketId { object, index }, (*arrival)?)))
    })
}

/// Returns the packet that was sent later, of those that were sent once.
fn newer(
    one: Option<(Flight, Arrival)>,
    other: Option<(Flight, Arrival)>,
) -> Option<(Flight, Arrival)> {
    let both = [one, other].into_iter().flatten();
    let once = both.filter(|(flight, _)| flight.is_first());
    once.max_by_key(|(flight, _)| flight.first)
}
