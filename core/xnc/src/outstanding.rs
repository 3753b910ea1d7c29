//! What was sent over one path and what became of it. Every transmission has a number of its own, so that it can be told
//! which of them was lost, whatever it carried.

use crate::Refused;
use crate::memory::give_back;
use crate::numbers::Named;
use crate::timing::{GRANULARITY, PAUSE, Timing};
use hawser_units::Instant;
use hawser_wire::xnc::AckBlock;
use std::collections::VecDeque;
use std::time::Duration;

/// Transmissions that may be unacknowledged: fewer than half of what 16 bits tell apart, so that the receiver always
/// finds the number that was cut short.
const MAX_UNACKNOWLEDGED: u64 = (1 << 15) - 1;

/// RFC 9002, section 6.1.1.
const PACKET_THRESHOLD: u64 = 3;

/// How long what counts as lost is remembered, to tell whether it arrived after all.
const MEMORY: Duration = Duration::from_secs(2);

/// When QUIC's detection, which waits for ever, is not waited for: by then its connection has usually timed out.
const LONGEST: Duration = Duration::from_secs(10);

/// When a transmission counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LossRule {
    /// As soon as a later one shows it, or unacknowledged after this time or the probe timeout, whichever is shorter
    /// (Ni, section 4.4.1).
    Quality(Duration),
    /// When a later one shows it, as QUIC does it (RFC 9002, section 6); the probe timeout only repeats. Where nothing
    /// later is acknowledged, pings count as lost after two seconds and the others after ten, so that none is kept for
    /// ever.
    Quic,
}

/// What a transmission carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    Original(u64),
    Coded { start: u64, count: u8 },
    Ping,
}

/// What became known of a transmission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Arrived(Content),
    /// It counted as lost, and arrived.
    ArrivedLate(Content),
    Lost(Content),
    /// Nothing is known, and it is time to send it once more.
    Repeat(Content),
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: Instant,
    bytes: u64,
    /// Bytes that were under way when it was sent.
    under_way: u64,
    /// How long it was expected to take until its acknowledgement.
    predicted: Duration,
    content: Content,
    fate: Fate,
}

impl Sent {
    /// Counts it as lost, also in the average `loss`.
    fn lose(&mut self, loss: &mut f64) -> Outcome {
        self.fate = Fate::Lost;
        *loss += (1.0 - *loss) / LOSS_MEMORY;
        Outcome::Lost(self.content)
    }

    /// From when on it is a straggler, if not acknowledged `longest` after it was sent or sooner.
    fn straggles_from(&self, longest: Duration, patience: Duration) -> Instant {
        self.at + self.predicted.min(longest) + patience
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
pub(crate) struct Outstanding {
    sent: VecDeque<Sent>,
    /// The number of the first in `sent`.
    base: u64,
    /// Everything below is known to have arrived or counts as lost.
    decided: u64,
    largest_acked: Option<u64>,
    /// What acknowledgements said from `base` on, which their next ones repeat.
    acked: Named,
    /// Bytes a second that the path was seen to take.
    rate: Option<f64>,
    /// How much later than expected the last acknowledgement came.
    late: Duration,
    /// When the last transmission was sent that is known to have arrived.
    heard: Option<Instant>,
    /// When the last acknowledgement came that said of a later transmission than the ones before.
    acknowledged_at: Option<Instant>,
    /// The latest transmission that counts, or counted, as lost.
    last_lost: Option<u64>,
    timing: Timing,
    repeats: u32,
    last_sent: Instant,
    /// The share of transmissions that were lost, over the last hundred or so.
    loss: f64,
}

impl Outstanding {
    /// Goes on counting where a path of the same index ended, so that what is said of that one is not taken for this one's.
    pub(crate) fn after(before: &Outstanding) -> Self {
        let next = before.next();
        Outstanding {
            base: next,
            decided: next,
            largest_acked: before.largest_acked,
            ..Outstanding::default()
        }
    }

    /// The number that the next transmission has.
    pub(crate) fn next(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    pub(crate) fn may_send(&self) -> bool {
        self.next() - self.largest_acked.map_or(0, |largest| largest + 1) < MAX_UNACKNOWLEDGED
    }

    /// Takes a transmission of `bytes`, while `under_way` others are.
    pub(crate) fn push(&mut self, now: Instant, content: Content, bytes: u64, under_way: u64) {
        let predicted = self
            .drain(under_way.saturating_add(bytes))
            .unwrap_or(Duration::MAX);
        self.sent.push_back(Sent {
            at: now,
            bytes,
            under_way,
            predicted,
            content,
            fate: Fate::Unknown,
        });
        self.last_sent = now;
    }

    /// The time from a transmission to its acknowledgement.
    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Whether two probe timeouts passed without an acknowledgement. Then multipath QUIC, as multipath TCP, sends all that
    /// is under way over other paths and avoids this one (De Coninck, CoNEXT 2017, section 3).
    pub(crate) fn has_failed(&self) -> bool {
        self.repeats >= FAILED
    }

    /// The path was silent and delivers again. What was lost meanwhile does not say what it loses now.
    pub(crate) fn forgive(&mut self) {
        self.loss = 0.0;
    }

    pub(crate) fn loss(&self) -> f64 {
        self.loss
    }

    /// When the last transmission was sent that is known to have arrived.
    pub(crate) fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// When the last acknowledgement came that said of a later transmission than the ones before.
    pub(crate) fn acknowledged_at(&self) -> Option<Instant> {
        self.acknowledged_at
    }

    /// When the first transmission was sent that no acknowledgement has reached or passed.
    pub(crate) fn waiting_since(&self) -> Option<Instant> {
        let first = self
            .largest_acked
            .map_or(0, |largest| largest + 1)
            .max(self.base);
        self.sent
            .get((first - self.base) as usize)
            .map(|sent| sent.at)
    }

    /// Whether something counts as lost that no acknowledgement has passed: the path may have paused.
    pub(crate) fn is_doubted(&self) -> bool {
        self.last_lost > self.largest_acked
    }

    /// Takes what the receiver says of this path.
    pub(crate) fn acknowledge(
        &mut self,
        now: Instant,
        block: &AckBlock,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Refused> {
        let largest = block.ranges.first().map_or(0, |range| *range.end());
        if largest >= self.next() {
            return Err(Refused::NeverSent);
        }
        let is_new = self.largest_acked.is_none_or(|before| largest > before);
        for range in &block.ranges {
            let (start, end) = ((*range.start()).max(self.base), range.end() + 1);
            if start < end {
                let new = self.acked.add(start..end);
                new.into_iter()
                    .flatten()
                    .for_each(|number| self.arrived(number, outcomes));
            }
            if *range.start() < self.base {
                break;
            }
        }
        if is_new {
            self.largest_acked = Some(largest);
            self.repeats = 0;
            self.acknowledged_at = Some(now);
            if let Some(sent) = largest
                .checked_sub(self.base)
                .and_then(|index| self.sent.get(index as usize))
            {
                let (sent, before) = (*sent, self.timing.min());
                self.heard = Some(sent.at);
                self.timing
                    .sample(now, now.saturating_since(sent.at), sent.under_way <= ALONE);
                self.learn(now, sent, before);
            }
        }
        Ok(())
    }

    fn arrived(&mut self, number: u64, outcomes: &mut Vec<Outcome>) {
        let Some(sent) = self.sent.get_mut((number - self.base) as usize) else {
            return;
        };
        match sent.fate {
            Fate::Unknown => {
                outcomes.push(Outcome::Arrived(sent.content));
                self.loss -= self.loss / LOSS_MEMORY;
            }
            Fate::Lost => {
                outcomes.push(Outcome::ArrivedLate(sent.content));
                self.loss = (self.loss - 1.0 / LOSS_MEMORY).max(0.0);
            }
            Fate::Arrived => return,
        }
        sent.fate = Fate::Arrived;
    }

    /// Bytes that may be under way without a queue that takes longer than `queue` to drain.
    ///
    /// Congestion control remembers for seconds what a path could carry; a cellular one loses that within a step of a
    /// traffic light.
    pub(crate) fn limit(&self, queue: Duration) -> u64 {
        self.limit_of(|least| least + queue)
    }

    /// Bytes with which the path has no queue for certain, even if its least time is not quite its own.
    pub(crate) fn limit_without_queue(&self) -> u64 {
        self.limit_of(|least| least / 2)
    }

    fn limit_of(&self, time: impl FnOnce(Duration) -> Duration) -> u64 {
        match (self.timing.min(), self.rate) {
            (Some(least), Some(rate)) => {
                ((rate * time(least).as_secs_f64()) as u64).max(LEAST_LIMIT)
            }
            _ => u64::MAX,
        }
    }

    /// How long it is expected to take until `bytes` are acknowledged, those under way among them; none as long as nothing
    /// was.
    pub(crate) fn expected(&self, bytes: u64) -> Option<Duration> {
        self.drain(bytes).map(|time| time.saturating_add(self.late))
    }

    /// The same by the rate alone, were no acknowledgement late.
    pub(crate) fn drain(&self, bytes: u64) -> Option<Duration> {
        let time = |rate| Duration::try_from_secs_f64(bytes as f64 / rate).unwrap_or(Duration::MAX);
        let busy = self.rate.map_or(Duration::ZERO, time);
        self.timing.min().map(|least| least.max(busy))
    }

    /// What was under way with a transmission was delivered until its acknowledgement came. Where a queue made that late,
    /// the path takes no more; else it may.
    fn learn(&mut self, now: Instant, sent: Sent, least: Option<Duration>) {
        let took = now.saturating_since(sent.at).max(GRANULARITY);
        self.late = took.saturating_sub(sent.predicted);
        if sent.under_way <= ALONE {
            return;
        }
        let seen = sent.under_way.saturating_add(sent.bytes) as f64 / took.as_secs_f64();
        let had_queue = least.is_some_and(|least| took > least + JITTER);
        self.rate = Some(match self.rate {
            None => seen,
            Some(rate) if had_queue => rate + (seen - rate) * RATE_GAIN,
            Some(rate) => rate.max(seen * TRIAL),
        });
    }

    /// Decides which transmissions count as lost.
    pub(crate) fn detect(
        &mut self,
        now: Instant,
        rule: LossRule,
        slack: Duration,
        outcomes: &mut Vec<Outcome>,
    ) {
        while let Some((_, due)) = self.next_loss(rule, slack) {
            if due > now {
                break;
            }
            let index = (self.decided - self.base) as usize;
            outcomes.push(self.sent[index].lose(&mut self.loss));
            self.last_lost = self.last_lost.max(Some(self.decided));
        }
        if rule == LossRule::Quic && self.repeat_due(slack).is_some_and(|due| due <= now) {
            self.repeats += 1;
            self.last_sent = now;
            let undecided = self.sent.range((self.decided - self.base) as usize..);
            let count = if self.repeats == FAILED {
                usize::MAX
            } else {
                PROBES
            };
            let repeated = undecided
                .filter(|sent| sent.fate == Fate::Unknown)
                .take(count);
            outcomes.extend(repeated.map(|sent| Outcome::Repeat(sent.content)));
        }
        self.forget(now);
    }

    /// When [`Outstanding::detect`] has something to say.
    pub(crate) fn deadline(&mut self, rule: LossRule, slack: Duration) -> Option<Instant> {
        let loss = self
            .next_loss(rule, slack)
            .map(|(_, due)| due)
            .filter(|due| *due < Instant::MAX);
        let repeat = self.repeat_due(slack).filter(|_| rule == LossRule::Quic);
        loss.into_iter().chain(repeat).min()
    }

    /// The first transmission of unknown fate, and when it counts as lost if it stays unknown.
    fn next_loss(&mut self, rule: LossRule, slack: Duration) -> Option<(Sent, Instant)> {
        let sent = loop {
            let sent = *self.sent.get((self.decided - self.base) as usize)?;
            if sent.fate == Fate::Unknown {
                break sent;
            }
            self.decided += 1;
        };
        let shown = match self.largest_acked {
            Some(largest) if largest >= self.decided + PACKET_THRESHOLD => sent.at,
            Some(largest) if largest > self.decided => sent.at + self.timing.loss_delay(),
            _ => Instant::MAX,
        };
        let late = match rule {
            LossRule::Quality(threshold) => sent.at + self.timing.patience(threshold, slack),
            LossRule::Quic if sent.content == Content::Ping => sent.at + MEMORY,
            LossRule::Quic => sent.at + LONGEST,
        };
        Some((sent, shown.min(late)))
    }

    fn repeat_due(&self, slack: Duration) -> Option<Instant> {
        let unknown = self.decided < self.next();
        unknown.then(|| self.last_sent + self.timing.timeout(slack) * 2u32.pow(self.repeats.min(6)))
    }

    fn forget(&mut self, now: Instant) {
        while let Some(sent) = self.sent.front() {
            let done = match sent.fate {
                Fate::Unknown => false,
                Fate::Arrived => true,
                Fate::Lost => sent.at + MEMORY <= now,
            };
            if !done {
                break;
            }
            self.sent.pop_front();
            self.base += 1;
        }
        give_back(&mut self.sent);
        self.decided = self.decided.max(self.base);
        self.acked.forget_before(self.base);
    }

    /// Counts as lost what is later than expected by `patience`, if `is_worth` says so of the packet.
    pub(crate) fn detect_stragglers(
        &mut self,
        now: Instant,
        patience: Duration,
        is_worth: impl Fn(u64) -> bool,
        outcomes: &mut Vec<Outcome>,
    ) {
        let longest = self.longest_expected();
        let undecided =
            (self.decided..).zip(self.sent.range_mut((self.decided - self.base) as usize..));
        for (number, sent) in
            undecided.take_while(|(_, sent)| sent.straggles_from(longest, patience) <= now)
        {
            if let Content::Original(id) = sent.content
                && sent.fate == Fate::Unknown
                && is_worth(id)
            {
                outcomes.push(sent.lose(&mut self.loss));
                self.last_lost = self.last_lost.max(Some(number));
            }
        }
    }

    /// When the next transmission is later than expected by `patience`.
    pub(crate) fn next_straggler(&self, now: Instant, patience: Duration) -> Option<Instant> {
        let longest = self.longest_expected();
        let undecided = self.sent.range((self.decided - self.base) as usize..);
        let unknown = undecided.filter(|sent| sent.fate == Fate::Unknown);
        unknown
            .map(|sent| sent.straggles_from(longest, patience))
            .find(|from| *from > now)
    }

    /// What is later than this says that the path paused, whatever was under way.
    fn longest_expected(&self) -> Duration {
        self.timing.min().unwrap_or_default().saturating_add(PAUSE)
    }

    /// Everything whose fate is unknown, when the path vanishes.
    pub(crate) fn abandon(&mut self) -> impl Iterator<Item = Content> {
        let unknown = |sent: &Sent| sent.fate == Fate::Unknown;
        (self.base, self.decided) = (self.next(), self.next());
        self.acked = Named::default();
        std::mem::take(&mut self.sent)
            .into_iter()
            .filter(unknown)
            .map(|sent| sent.content)
    }
}

/// Bytes under way besides which a transmission meets no queue of ours.
const ALONE: u64 = 3_000;

/// What acknowledgements are late by without a queue.
const JITTER: Duration = Duration::from_millis(10);

/// A path may be tried with so much more than it was seen to take without a queue.
const TRIAL: f64 = 1.25;

/// The weight of one acknowledgement in the rate of a path with a queue.
const RATE_GAIN: f64 = 0.03;

/// Bytes that may always be under way.
const LEAST_LIMIT: u64 = 10_000;

/// Transmissions over which the loss is averaged.
const LOSS_MEMORY: f64 = 100.0;

/// Probe timeouts after which a path counts as failed.
const FAILED: u32 = 2;

/// RFC 9002, section 6.2.4.
const PROBES: usize = 2;

#[cfg(test)]
mod tests;
