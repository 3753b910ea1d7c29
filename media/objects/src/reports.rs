use crate::arrivals::Arrivals;
use crate::clock::{Clock, ClockError, Relation, shifted};
use hawser_packets::feedback::{Block, Feedback, Pose, Totals};
use hawser_packets::media::{AEAD_TAG, MediaTime, PacketId};
use hawser_packets::session::{Sealed, Status};
use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// The settings of the reports to a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportConfig {
    /// The least time between reports, in which lost packets are reported. The usual time is the one
    /// that the sender requests, and at least this.
    pub interval: Duration,
    /// The number of packets in this time after which a report is due before its time.
    pub packets: usize,
    /// The time between reports while nothing arrives. The sender answers each, so that one that is gone is noticed.
    pub keepalive: Duration,
    /// The maximum length of a report's datagram in bytes.
    pub datagram: usize,
}

/// The number of packets that a report has room for, whatever their objects.
const FULL_REPORT: usize = 400;

/// The reports to a sender of packets, and the relation of the clocks.
#[derive(Debug)]
pub(crate) struct Reports {
    config: ReportConfig,
    clock: Clock,
    publisher_ahead_nanos: i64,
    totals: Totals,
    arrivals: Arrivals,
    /// The time between reports that the sender requests.
    asked_interval: Duration,
    last: Option<Instant>,
    /// Whether packets are missing of which no report was made.
    has_gap: bool,
}

impl Default for ReportConfig {
    fn default() -> Self {
        ReportConfig {
            interval: Duration::from_millis(5),
            packets: 64,
            keepalive: Duration::from_millis(250),
            datagram: hawser_packets::media::DEFAULT_DATAGRAM,
        }
    }
}

impl Reports {
    /// Begins with the status that opened the session. Its time stamps are too old to relate the clocks.
    pub(crate) fn new(config: ReportConfig, status: &Status) -> Self {
        Reports {
            config,
            clock: Clock::default(),
            publisher_ahead_nanos: status.publisher_ahead_nanos,
            totals: Totals::default(),
            arrivals: Arrivals::default(),
            asked_interval: interval(status),
            last: None,
            has_gap: false,
        }
    }

    /// Processes an authenticated status of the sender. Returns an error if its time stamps cannot be used.
    pub(crate) fn handle_status(
        &mut self,
        now: Instant,
        status: &Status,
    ) -> Result<(), ClockError> {
        self.publisher_ahead_nanos = status.publisher_ahead_nanos;
        self.asked_interval = interval(status);
        self.clock.handle_stamp(now, &status.clock).map(drop)
    }

    /// Counts a packet that arrived.
    pub(crate) fn count(&mut self, now: Instant, id: PacketId, size: usize, ecn: Ecn) {
        self.totals.packets += 1;
        self.totals.bytes += size as u64;
        if ecn == Ecn::Ce {
            self.totals.ce_bytes += size as u64;
        }
        self.count_again(now, id, ecn);
    }

    /// Reports the arrival of a packet that was counted before: the previous report may be lost.
    pub(crate) fn count_again(&mut self, now: Instant, id: PacketId, ecn: Ecn) {
        let limit = self.config.packets.saturating_mul(64);
        self.arrivals.add(now, id, ecn, limit);
    }

    /// Counts a datagram that was refused.
    pub(crate) fn count_refused(&mut self) {
        self.totals.refused += 1;
    }

    /// Advances the next report, because packets are missing.
    pub(crate) fn note_gap(&mut self) {
        self.has_gap = true;
    }

    /// Returns the next report if one is due. The first is due at once, to relate the clocks. Called
    /// until there is none, because much may have to be reported at once.
    pub(crate) fn poll(&mut self, now: Instant, pose: Option<Pose>) -> Option<Feedback> {
        if now < self.due() {
            return None;
        }
        self.last = Some(now);
        self.has_gap = false;
        let fixed = Sealed::LEN + AEAD_TAG + Feedback::LEN + Pose::LEN;
        let space = self.config.datagram.saturating_sub(fixed);
        let space = space.max(Block::LEN + Block::PACKET);
        Some(Feedback {
            clock: self.clock.stamp(now),
            totals: self.totals,
            pose,
            blocks: self.arrivals.report(now, space),
        })
    }

    /// Returns when the next report is due.
    pub(crate) fn due(&self) -> Instant {
        let Some(last) = self.last else {
            return Instant::ZERO;
        };
        let least = self.config.interval;
        let usual = self.asked_interval.max(least);
        // As many as in the shortest time, in proportion, as far as they fit a report.
        let packets = self.config.packets as f64 * usual.div_duration_f64(least);
        if self.arrivals.unreported() >= (packets as usize).min(FULL_REPORT) {
            return last;
        }
        last + match (self.arrivals.is_empty(), self.has_gap) {
            (true, _) => self.config.keepalive,
            (false, true) => least,
            (false, false) => usual,
        }
    }

    pub(crate) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the relation between the own clock and the sender's.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the publisher's clock less the own one, in nanoseconds; `None` before the first exchange
    /// with the sender.
    pub(crate) fn publisher_ahead_nanos(&self) -> Option<i64> {
        let relation = self.clock.relation()?;
        relation.ahead_nanos.checked_add(self.publisher_ahead_nanos)
    }

    /// Returns the time of the own clock at an instant of the publisher's; `None` before the first
    /// exchange with the sender.
    pub(crate) fn local_time_of(&self, publisher: Instant) -> Option<Instant> {
        let sender = shifted(publisher, -i128::from(self.publisher_ahead_nanos));
        self.clock
            .relation()
            .map(|relation| relation.to_local(sender))
    }

    /// Returns the time of the own clock at a deadline that is near `now`; `None` before the first
    /// exchange with the sender.
    pub(crate) fn local_time_of_deadline(
        &self,
        now: Instant,
        deadline: MediaTime,
    ) -> Option<Instant> {
        let publisher = self.publisher_time(&self.clock.relation()?, now);
        self.local_time_of(deadline.nearest(publisher))
    }

    /// Returns the publisher's time at an instant of the own clock.
    pub(crate) fn publisher_time(&self, relation: &Relation, now: Instant) -> Instant {
        shifted(relation.to_remote(now), self.publisher_ahead_nanos.into())
    }
}

fn interval(status: &Status) -> Duration {
    Duration::from_millis(status.report_interval_ms.get().into())
}
