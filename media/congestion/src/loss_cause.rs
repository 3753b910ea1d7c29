use crate::loss::LossCount;
use crate::round::Round;
use crate::sent::Confirmed;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

/// The queueing delay above which a loss may be that of a full queue, or of an AQM: below the target of CoDel
/// (RFC 8289).
const DELAYED: Duration = Duration::from_millis(3);

/// The share of marked bytes above which a queue that marks may also drop (RFC 9332, section 2.5.1.1).
const MOSTLY_MARKED: f64 = 0.5;

/// The time for which marks and losses are evidence.
const MEMORY: Duration = Duration::from_secs(10);

/// The evidence that losses are not congestion where nothing marks: this many rounds with losses over this time, of
/// which these shares met no delay, and were at a rate well below that of others.
const LEAST_TIME: Duration = Duration::from_secs(3);
const LEAST_ROUNDS: usize = 16;
const UNDELAYED: f64 = 0.75;
const SLOW: f64 = 0.4;

/// A rate that is well below another one, and a rate that hardly can be lower, as multiples of that and of the lowest.
const SLOW_RATE: f64 = 0.7;
const LOWEST_RATE: f64 = 1.3;

/// The share of losses above which those at the lowest rate are no evidence: that rate may be more than a policer passes.
const MOST_LOSSES: f64 = 0.15;

/// The number of rounds that are remembered, of at least 25 ms each.
const CAPACITY: usize = 400;

/// The packets, or the time, over which the share of losses is taken, the least packets, and its weight in the average.
const INTERVAL_PACKETS: u64 = 2000;
const INTERVAL: Duration = Duration::from_secs(1);
const LEAST_PACKETS: u64 = 200;
const GAIN: f64 = 0.2;

/// The multiple of the average share, and what more, that a sudden share exceeds.
const SUDDEN: (f64, f64) = (2.0, 0.03);

/// The multiple of the average share when the losses were judged, what more, and the part of the mean deviation of an
/// interval, that an average which has grown exceeds.
const GROWN: (f64, f64, f64) = (1.5, 0.0005, 0.8);

/// The number of intervals in a row with a sudden share after which the evidence is forgotten. A radio link fades.
const FADE: u32 = 2;

/// Tells losses by congestion from those of a radio link.
///
/// A loss is not congestion if there was no delay and the bottleneck marks, or if for several seconds losses came without
/// delay and also at low rates. It is in any case if the share of losses has grown since, as by a policer.
#[derive(Debug, Clone, Default)]
pub(crate) struct LossCause {
    delayed_at: Option<Instant>,
    marked_at: Option<Instant>,
    round: Round,
    rounds: VecDeque<LossRound>,
    share: LossShare,
    is_known: bool,
    was_congestion: bool,
}

/// A round in which packets were lost.
#[derive(Debug, Clone, Copy)]
struct LossRound {
    at: Instant,
    bps: f64,
    is_delayed: bool,
}

/// The moving average of the share of lost packets.
#[derive(Debug, Clone, Default)]
struct LossShare {
    count: LossCount,
    average: f64,
    /// The moving average of the deviation from it.
    deviation: f64,
    /// The number of intervals in the averages.
    intervals: u32,
    /// The average that is congestion since the losses were judged.
    limit: Option<f64>,
    /// The number of intervals in a row with a sudden share.
    sudden: u32,
    is_excessive: bool,
}

/// The path as the sender knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sending {
    /// The rate, and the lowest one to which it is reduced, bits per second.
    pub(crate) bps: f64,
    pub(crate) lowest_bps: f64,
    /// The virtual round-trip time.
    pub(crate) rtt: Duration,
    /// The number of the newest packet.
    pub(crate) newest: Option<u64>,
}

impl LossCause {
    /// Takes a report, the delay of the queue, and whether marks are those of an L4S queue.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        confirmed: &Confirmed,
        queue: Duration,
        is_l4s: bool,
    ) {
        let marked = confirmed.marked.0 as f64 / confirmed.acked.0.max(1) as f64;
        if queue > DELAYED || marked > MOSTLY_MARKED {
            self.delayed_at = Some(now);
        }
        let is_old = |at: Instant| now.saturating_since(at) > MEMORY;
        self.marked_at.take_if(|at| is_old(*at));
        if marked > 0.0 && is_l4s {
            self.marked_at = Some(now);
        }
        if self.rounds.back().is_some_and(|round| is_old(round.at))
            || self.share.add(now, confirmed)
        {
            self.forget();
        }
    }

    /// Forgets the evidence: the losses, or the path, have changed.
    pub(crate) fn forget(&mut self) {
        self.rounds.clear();
        self.marked_at = None;
        self.share.limit = None;
        self.share.intervals = 0;
        self.is_known = false;
    }

    /// Returns whether losses of a report, of which this is the newest packet, are answered.
    pub(crate) fn is_congestion(&mut self, now: Instant, lost: u64, sending: Sending) -> bool {
        // The time in which a loss is known, and its report arrives.
        let known_after = sending.rtt * 2;
        let is_delayed = self
            .delayed_at
            .is_some_and(|at| now.saturating_since(at) <= known_after);
        if self.round.has_passed(now, lost, sending.rtt) {
            self.round.begin(now, sending.newest);
            self.record(LossRound {
                at: now,
                bps: sending.bps,
                is_delayed,
            });
            self.judge(sending.lowest_bps);
        }
        let is_tolerable = self.marked_at.is_some() || self.is_known;
        let is_excessive = mem::take(&mut self.share.is_excessive);
        self.was_congestion = is_excessive || is_delayed || !is_tolerable;
        self.was_congestion
    }

    /// Returns whether the latest losses were not congestion.
    pub(crate) fn is_random(&self) -> bool {
        !self.rounds.is_empty() && !self.was_congestion
    }

    /// Returns whether only losses say how much the path bears.
    pub(crate) fn is_only_sign(&self) -> bool {
        self.is_known && self.marked_at.is_none()
    }

    fn record(&mut self, round: LossRound) {
        let is_old = |old: &LossRound| round.at.saturating_since(old.at) > MEMORY;
        while self.rounds.len() >= CAPACITY || self.rounds.front().is_some_and(is_old) {
            self.rounds.pop_front();
        }
        if self.rounds.is_empty() {
            self.share.intervals = 0;
        }
        self.rounds.push_back(round);
    }

    /// Judges the rounds in memory. What is known once stays known while losses come without delay, also at a rate that
    /// has returned.
    fn judge(&mut self, lowest_bps: f64) {
        let count = self.rounds.len() as f64;
        let share = |is: &dyn Fn(&&LossRound) -> bool| {
            self.rounds.iter().filter(|round| is(round)).count() as f64 / count
        };
        let rates = self.rounds.iter().map(|round| round.bps);
        let slow = SLOW_RATE * rates.fold(0.0, f64::max);
        let is_at_lowest =
            |bps| bps <= LOWEST_RATE * lowest_bps && self.share.average < MOST_LOSSES;
        let ends = self.rounds.front().zip(self.rounds.back());
        let lasts =
            ends.is_some_and(|(first, last)| last.at.saturating_since(first.at) >= LEAST_TIME);
        let is_undelayed = share(&|round| !round.is_delayed) >= UNDELAYED;
        let is_slow = |round: &&LossRound| round.bps <= slow || is_at_lowest(round.bps);
        let is_slow = self.marked_at.is_some() || share(&is_slow) >= SLOW;
        let is_evident = self.rounds.len() >= LEAST_ROUNDS && lasts && is_slow;
        self.is_known = is_undelayed && (self.is_known || is_evident);
        if self.is_known && self.marked_at.is_none() {
            self.share.judge();
        }
    }
}

impl LossShare {
    /// Takes a report. Returns whether the losses are no longer those that were judged.
    fn add(&mut self, now: Instant, confirmed: &Confirmed) -> bool {
        let time = self.count.add(now, confirmed);
        let packets = self.count.packets();
        let lasts = time >= INTERVAL && packets >= LEAST_PACKETS;
        if !lasts && packets < INTERVAL_PACKETS {
            return false;
        }
        let share = self.count.end(now);
        let is_sudden = share > SUDDEN.0 * self.average + SUDDEN.1;
        self.sudden = if is_sudden { self.sudden + 1 } else { 0 };
        self.intervals += 1;
        let gain = GAIN.max(1.0 / f64::from(self.intervals));
        self.average += gain * (share - self.average);
        self.deviation += gain * ((share - self.average).abs() - self.deviation);
        let has_grown = self.limit.is_some_and(|limit| self.average > limit);
        self.is_excessive |= is_sudden || has_grown;
        has_grown || self.sudden >= FADE
    }

    /// Keeps the limit of later averages.
    fn judge(&mut self) {
        let (times, more, deviations) = GROWN;
        let limit = times * self.average + more + deviations * self.deviation;
        self.limit.get_or_insert(limit);
    }
}
