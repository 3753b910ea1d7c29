//! The transmissions of one path and their fates. Every transmission has its own number, whatever
//! it carries, so that losses can be attributed.

use crate::RejectReason;
use crate::frame::AckBlock;
use crate::memory::shrink_if_sparse;
use crate::numbers::AckedRanges;
use crate::timing::{GRANULARITY, PAUSE, Timing};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes that QUIC adds to a frame: a short header with an 8-byte connection ID, a packet number,
/// the type and length of the datagram frame, and the AEAD tag.
pub const QUIC_OVERHEAD: u64 = 32;

/// The maximum number of transmissions that may be unacknowledged. It is less than half of what 16
/// bits can distinguish, so the receiver always expands truncated numbers correctly.
const MAX_UNACKNOWLEDGED: u64 = (1 << 15) - 1;

/// The reordering threshold of RFC 9002, section 6.1.1.
const PACKET_THRESHOLD: u64 = 3;

/// The time for which lost transmissions are remembered, to detect that they arrived late.
const LOSS_RETENTION: Duration = Duration::from_secs(2);

/// The time after which a transmission counts as lost with QUIC's loss detection, which itself has
/// no such limit. Its connection has usually timed out by then.
const MAX_LOSS_DELAY: Duration = Duration::from_secs(10);

/// The rule by which a transmission counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossRule {
    /// When a later transmission was acknowledged, or after this time or the probe timeout,
    /// whichever is shorter (Ni, section 4.4.1).
    Quality(Duration),
    /// After this time or the probe timeout, whichever is shorter, whatever was acknowledged.
    Timeout(Duration),
    /// When a later transmission was acknowledged, as in QUIC (RFC 9002, section 6); the probe
    /// timeout only retransmits. If nothing later is acknowledged, pings count as lost after two
    /// seconds and other transmissions after ten, so that none is kept forever.
    Quic,
}

/// The content of a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Original(u64),
    Coded { start: u64, count: u8 },
    Ping,
}

/// A change of what is known about a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Arrived(Content),
    /// It had counted as lost, and arrived.
    ArrivedLate(Content),
    Lost(Content),
    /// It counts as lost early, because the rest of its frame is useless without it. Most stragglers
    /// arrive.
    Straggles(Content),
    /// Its fate is unknown, and the probe timeout requires a retransmission.
    Retransmit(Content),
}

#[derive(Debug, Clone, Copy)]
struct SentTransmission {
    at: Instant,
    bytes: u64,
    /// Bytes that were in flight when it was sent.
    in_flight: u64,
    /// The expected time to its acknowledgement.
    predicted: Duration,
    content: Content,
    fate: Fate,
}

impl SentTransmission {
    /// Marks it as lost, updates the average `loss`, and returns its content.
    fn mark_lost(&mut self, loss: &mut f64) -> Content {
        self.fate = Fate::Lost;
        *loss += (1.0 - *loss) / LOSS_WINDOW;
        self.content
    }

    /// Returns when it becomes a straggler. Its acknowledgement is expected after at most
    /// `longest`.
    fn straggles_from(&self, longest: Duration, straggler_delay: Duration) -> Instant {
        self.at + self.predicted.min(longest) + straggler_delay
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Unknown,
    Arrived,
    Lost,
}

/// The transmissions of one path.
#[derive(Debug, Default)]
pub(crate) struct SentTransmissions {
    sent: VecDeque<SentTransmission>,
    /// The number of the first element of `sent`.
    base: u64,
    /// All transmissions below this number have arrived or count as lost.
    first_undecided: u64,
    largest_acked: Option<u64>,
    /// The acknowledged numbers from `base` on, which later acknowledgements repeat.
    acked: AckedRanges,
    /// The estimated rate of the path in bytes per second.
    rate: Option<f64>,
    /// The time by which the last acknowledgement was later than expected.
    lateness: Duration,
    /// When a queue of the path last delayed an acknowledgement.
    had_queue_at: Option<Instant>,
    /// When the largest acknowledged transmission was sent.
    largest_acked_sent_at: Option<Instant>,
    /// When the largest acknowledged number last increased.
    acknowledged_at: Option<Instant>,
    /// The largest transmission number that was ever counted as lost.
    last_lost: Option<u64>,
    timing: Timing,
    pto_count: u32,
    last_sent: Instant,
    /// The average loss over about the last hundred transmissions, 0 to 1.
    loss: f64,
}

impl SentTransmissions {
    /// Continues the numbers of a removed path with the same index, so that late acknowledgements
    /// of that path are not taken for this one's.
    pub(crate) fn after(before: &SentTransmissions) -> Self {
        let next = before.next();
        SentTransmissions {
            base: next,
            first_undecided: next,
            largest_acked: before.largest_acked,
            ..SentTransmissions::default()
        }
    }

    /// Returns the number of the next transmission.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    pub(crate) fn may_send(&self) -> bool {
        self.next() - self.largest_acked.map_or(0, |largest| largest + 1) < MAX_UNACKNOWLEDGED
    }

    /// Records a transmission of `bytes`, sent while `in_flight` bytes were in flight.
    pub(crate) fn push(&mut self, now: Instant, content: Content, bytes: u64, in_flight: u64) {
        let predicted = self
            .drain_time(in_flight.saturating_add(bytes))
            .unwrap_or(Duration::MAX);
        self.sent.push_back(SentTransmission {
            at: now,
            bytes,
            in_flight,
            predicted,
            content,
            fate: Fate::Unknown,
        });
        self.last_sent = now;
    }

    /// Returns the estimated time from a transmission to its acknowledgement.
    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns whether two probe timeouts passed without an acknowledgement. Multipath QUIC, like
    /// multipath TCP, then retransmits everything in flight over other paths and avoids this one
    /// (De Coninck, CoNEXT 2017, section 3). It is a part of QUIC's loss detection, for the
    /// schemes that XNC is compared with, which do not use the liveness of paths.
    pub(crate) fn is_potentially_failed(&self) -> bool {
        self.pto_count >= FAILED_PTO_COUNT
    }

    /// Resets the average loss, when a silent path delivers again. The losses during the silence do
    /// not predict those from now on.
    pub(crate) fn reset_loss(&mut self) {
        self.loss = 0.0;
    }

    pub(crate) fn loss(&self) -> f64 {
        self.loss
    }

    /// Returns when the largest acknowledged transmission was sent.
    pub(crate) fn largest_acked_sent_at(&self) -> Option<Instant> {
        self.largest_acked_sent_at
    }

    /// Returns when the largest acknowledged number last increased.
    pub(crate) fn acknowledged_at(&self) -> Option<Instant> {
        self.acknowledged_at
    }

    /// Returns when the first transmission beyond the largest acknowledged one was sent.
    pub(crate) fn unacked_since(&self) -> Option<Instant> {
        let first = self
            .largest_acked
            .map_or(0, |largest| largest + 1)
            .max(self.base);
        self.sent
            .get((first - self.base) as usize)
            .map(|sent| sent.at)
    }

    /// Returns whether a transmission beyond the largest acknowledged one counts as lost. The path
    /// may have paused.
    pub(crate) fn has_unconfirmed_loss(&self) -> bool {
        self.last_lost > self.largest_acked
    }

    /// Handles the receiver's acknowledgements for this path.
    pub(crate) fn acknowledge(
        &mut self,
        now: Instant,
        block: &AckBlock,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), RejectReason> {
        let largest = block.ranges.first().map_or(0, |range| *range.end());
        if largest >= self.next() {
            return Err(RejectReason::NeverSent);
        }
        for range in &block.ranges {
            let (start, end) = ((*range.start()).max(self.base), range.end() + 1);
            if start < end {
                let new = self.acked.add(start..end);
                new.into_iter()
                    .flatten()
                    .for_each(|number| self.mark_arrived(number, outcomes));
            }
            if *range.start() < self.base {
                break;
            }
        }
        if self.largest_acked.is_none_or(|before| largest > before) {
            self.raise_largest_acked(now, largest);
        }
        Ok(())
    }

    /// Handles the first acknowledgement of a transmission later than those acknowledged before.
    fn raise_largest_acked(&mut self, now: Instant, largest: u64) {
        self.largest_acked = Some(largest);
        self.pto_count = 0;
        self.acknowledged_at = Some(now);
        let index = largest.checked_sub(self.base);
        let Some(sent) = index.and_then(|index| self.sent.get(index as usize)) else {
            return;
        };
        let (sent, before) = (*sent, self.timing.min());
        self.largest_acked_sent_at = Some(sent.at);
        let (time, is_alone) = (
            now.saturating_since(sent.at),
            sent.in_flight <= NO_QUEUE_BYTES,
        );
        self.timing.sample(now, time, is_alone);
        self.update_rate(now, sent, before);
    }

    fn mark_arrived(&mut self, number: u64, outcomes: &mut Vec<Outcome>) {
        let Some(sent) = self.sent.get_mut((number - self.base) as usize) else {
            return;
        };
        match sent.fate {
            Fate::Unknown => {
                outcomes.push(Outcome::Arrived(sent.content));
                self.loss -= self.loss / LOSS_WINDOW;
            }
            Fate::Lost => {
                outcomes.push(Outcome::ArrivedLate(sent.content));
                self.loss = (self.loss - 1.0 / LOSS_WINDOW).max(0.0);
            }
            Fate::Arrived => return,
        }
        sent.fate = Fate::Arrived;
    }

    /// Returns the bytes that may be in flight without a queue that takes longer than `queue` to
    /// drain.
    ///
    /// Congestion control remembers for seconds what a path could carry. A cellular path can lose
    /// that capacity much sooner.
    pub(crate) fn limit(&self, queue: Duration) -> u64 {
        self.limit_of(|min_time| min_time.saturating_add(queue))
    }

    /// Returns the bytes that may be in flight with certainly no queue, even if the measured
    /// minimum time includes some queueing.
    pub(crate) fn limit_without_queue(&self) -> u64 {
        self.limit_of(|min_time| min_time / 2)
    }

    /// Returns when a queue of the path last delayed an acknowledgement.
    pub(crate) fn had_queue_at(&self) -> Option<Instant> {
        self.had_queue_at
    }

    fn limit_of(&self, time: impl FnOnce(Duration) -> Duration) -> u64 {
        match (self.timing.min(), self.rate) {
            (Some(min_time), Some(rate)) => {
                ((rate * time(min_time).as_secs_f64()) as u64).max(MIN_LIMIT)
            }
            _ => u64::MAX,
        }
    }

    /// Returns the expected time until `bytes`, including those in flight, are acknowledged; `None`
    /// before the first acknowledgement.
    pub(crate) fn expected_delay(&self, bytes: u64) -> Option<Duration> {
        self.drain_time(bytes)
            .map(|time| time.saturating_add(self.lateness))
    }

    /// Same as [`SentTransmissions::expected_delay`], by the rate alone, without the lateness of
    /// the last acknowledgement.
    pub(crate) fn drain_time(&self, bytes: u64) -> Option<Duration> {
        let time = |rate| Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(Duration::MAX);
        let busy = self.rate.map_or(Duration::ZERO, time);
        self.timing.min().map(|min_time| min_time.max(busy))
    }

    /// Updates the estimated rate. The bytes in flight with a transmission were delivered by the
    /// time of its acknowledgement. If a queue made the acknowledgement late, this is the rate of
    /// the path; otherwise it is a lower bound.
    fn update_rate(&mut self, now: Instant, sent: SentTransmission, min_time: Option<Duration>) {
        let took = now.saturating_since(sent.at).max(GRANULARITY);
        self.lateness = took.saturating_sub(sent.predicted);
        if sent.in_flight <= NO_QUEUE_BYTES {
            return;
        }
        let seen = sent.in_flight.saturating_add(sent.bytes) as f64 / took.as_secs_f64();
        let had_queue = min_time.is_some_and(|min_time| took > min_time + JITTER);
        if had_queue {
            self.had_queue_at = Some(now);
        }
        self.rate = Some(match self.rate {
            None => seen,
            Some(rate) if had_queue => rate + (seen - rate) * RATE_GAIN,
            Some(rate) => rate.max(seen * RATE_PROBE_GAIN),
        });
    }

    /// Determines which transmissions count as lost.
    pub(crate) fn detect_losses(
        &mut self,
        now: Instant,
        rule: LossRule,
        max_ack_delay: Duration,
        outcomes: &mut Vec<Outcome>,
    ) {
        while let Some((_, due)) = self.next_loss(rule, max_ack_delay) {
            if due > now {
                break;
            }
            let index = (self.first_undecided - self.base) as usize;
            outcomes.push(Outcome::Lost(self.sent[index].mark_lost(&mut self.loss)));
            self.last_lost = self.last_lost.max(Some(self.first_undecided));
        }
        if rule == LossRule::Quic && self.pto_due(max_ack_delay).is_some_and(|due| due <= now) {
            self.expire_pto(now, outcomes);
        }
        self.forget(now);
    }

    /// Handles a probe timeout.
    fn expire_pto(&mut self, now: Instant, outcomes: &mut Vec<Outcome>) {
        self.pto_count += 1;
        self.last_sent = now;
        let count = match self.pto_count {
            FAILED_PTO_COUNT => usize::MAX,
            _ => PROBE_PACKETS,
        };
        let first = (self.first_undecided - self.base) as usize;
        let undecided = self.sent.range(first..);
        let unknown = undecided.filter(|sent| sent.fate == Fate::Unknown);
        let retransmitted = unknown.take(count);
        outcomes.extend(retransmitted.map(|sent| Outcome::Retransmit(sent.content)));
    }

    /// Returns when to call [`SentTransmissions::detect_losses`] next.
    pub(crate) fn deadline(&mut self, rule: LossRule, max_ack_delay: Duration) -> Option<Instant> {
        let loss = self
            .next_loss(rule, max_ack_delay)
            .map(|(_, due)| due)
            .filter(|due| *due < Instant::MAX);
        let pto = self
            .pto_due(max_ack_delay)
            .filter(|_| rule == LossRule::Quic);
        loss.into_iter().chain(pto).min()
    }

    /// Returns the first transmission of unknown fate, and when it counts as lost.
    fn next_loss(
        &mut self,
        rule: LossRule,
        max_ack_delay: Duration,
    ) -> Option<(SentTransmission, Instant)> {
        let sent = loop {
            let sent = *self.sent.get((self.first_undecided - self.base) as usize)?;
            if sent.fate == Fate::Unknown {
                break sent;
            }
            self.first_undecided += 1;
        };
        let shown = match self.largest_acked {
            _ if matches!(rule, LossRule::Timeout(_)) => Instant::MAX,
            Some(largest) if largest >= self.first_undecided + PACKET_THRESHOLD => sent.at,
            Some(largest) if largest > self.first_undecided => sent.at + self.timing.loss_delay(),
            _ => Instant::MAX,
        };
        let late = match rule {
            LossRule::Quality(threshold) => {
                sent.at + self.timing.loss_timeout(threshold, max_ack_delay)
            }
            LossRule::Timeout(threshold) => {
                sent.at + threshold.min(self.timing.probe_timeout(max_ack_delay))
            }
            LossRule::Quic if sent.content == Content::Ping => sent.at + LOSS_RETENTION,
            LossRule::Quic => sent.at + MAX_LOSS_DELAY,
        };
        Some((sent, shown.min(late)))
    }

    fn pto_due(&self, max_ack_delay: Duration) -> Option<Instant> {
        let unknown = self.first_undecided < self.next();
        unknown.then(|| {
            self.last_sent
                + self.timing.probe_timeout(max_ack_delay) * 2u32.pow(self.pto_count.min(6))
        })
    }

    fn forget(&mut self, now: Instant) {
        while let Some(sent) = self.sent.front() {
            let done = match sent.fate {
                Fate::Unknown => false,
                Fate::Arrived => true,
                Fate::Lost => sent.at + LOSS_RETENTION <= now,
            };
            if !done {
                break;
            }
            self.sent.pop_front();
            self.base += 1;
        }
        shrink_if_sparse(&mut self.sent);
        self.first_undecided = self.first_undecided.max(self.base);
        self.acked.forget_before(self.base);
    }

    /// Counts packets as lost whose acknowledgement is later than expected by `straggler_delay`, if
    /// `is_worth` returns `true` for the packet.
    pub(crate) fn detect_stragglers(
        &mut self,
        now: Instant,
        straggler_delay: Duration,
        is_worth: impl Fn(u64) -> bool,
        outcomes: &mut Vec<Outcome>,
    ) {
        let longest = self.longest_expected();
        let undecided = (self.first_undecided..).zip(
            self.sent
                .range_mut((self.first_undecided - self.base) as usize..),
        );
        for (number, sent) in
            undecided.take_while(|(_, sent)| sent.straggles_from(longest, straggler_delay) <= now)
        {
            let id = match sent.content {
                Content::Original(id) => id,
                Content::Coded { start, .. } => start,
                Content::Ping => continue,
            };
            if sent.fate == Fate::Unknown && is_worth(id) {
                outcomes.push(Outcome::Straggles(sent.mark_lost(&mut self.loss)));
                self.last_lost = self.last_lost.max(Some(number));
            }
        }
    }

    /// Returns when the next transmission will be later than expected by `straggler_delay`.
    pub(crate) fn next_straggler(
        &self,
        now: Instant,
        straggler_delay: Duration,
    ) -> Option<Instant> {
        let longest = self.longest_expected();
        let undecided = self
            .sent
            .range((self.first_undecided - self.base) as usize..);
        let unknown = undecided.filter(|sent| sent.fate == Fate::Unknown);
        unknown
            .map(|sent| sent.straggles_from(longest, straggler_delay))
            .find(|from| *from > now)
    }

    /// Returns the upper bound of the expected time: any transmission that takes longer shows that
    /// the path paused.
    fn longest_expected(&self) -> Duration {
        self.timing.min().unwrap_or_default().saturating_add(PAUSE)
    }

    /// Returns the content of all transmissions of unknown fate, when the path is removed.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Content> {
        let unknown = |sent: &SentTransmission| sent.fate == Fate::Unknown;
        (self.base, self.first_undecided) = (self.next(), self.next());
        self.acked = AckedRanges::default();
        std::mem::take(&mut self.sent)
            .into_iter()
            .filter(unknown)
            .map(|sent| sent.content)
    }
}

/// The maximum of bytes in flight at which a transmission meets no queue of the sender's own.
const NO_QUEUE_BYTES: u64 = 3_000;

/// The maximum lateness of acknowledgements without a queue.
const JITTER: Duration = Duration::from_millis(10);

/// The factor by which a path without a queue may exceed the rate that was seen.
const RATE_PROBE_GAIN: f64 = 1.25;

/// The weight of one acknowledgement in the rate of a path with a queue.
const RATE_GAIN: f64 = 0.03;

/// Bytes that may always be in flight.
const MIN_LIMIT: u64 = 10_000;

/// The number of transmissions over which the loss is averaged.
const LOSS_WINDOW: f64 = 100.0;

/// The number of consecutive probe timeouts after which a path counts as failed.
const FAILED_PTO_COUNT: u32 = 2;

/// The number of packets sent at a probe timeout (RFC 9002, section 6.2.4).
const PROBE_PACKETS: usize = 2;

#[cfg(test)]
mod tests;
