//! The responses to a report, from the strongest to growth.

use super::{ENCODED_SHARE, HEADROOM, Phase, Prague, Undo};
use crate::loss_cause::Sending;
use crate::sent::Confirmed;
use hawser_units::Instant;
use std::collections::BTreeSet;
use std::time::Duration;

/// The growth per virtual round trip while no marks come: 4 % more rate is a queue of 1 ms after a
/// round trip of 25 ms.
const PROBING_GAIN: f64 = 0.04;

/// The reduction by the mark that ends probing: what was gained in the two round trips until the mark
/// was known.
const PROBING_EXIT: f64 = 0.92;

/// The part of the usual growth above what the encoder can use.
const SPARE_GROWTH: f64 = 0.25;

/// The number of unmarked virtual round trips after which probing begins again: a constant, and one
/// more for each of these bits per second (as `udp_prague`).
const QUIET_ROUNDS: f64 = 7.0;
const QUIET_ROUND_PER_BPS: f64 = 1.0 / 15_360_000.0;

/// The multiples of the rate at which marks came last between which growth stays additive. A rate
/// beyond shows that the path has changed.
const NEAR_CEILING: std::ops::Range<f64> = 0.85..1.08;

/// The weight of a lower rate in the ceiling.
const CEILING_GAIN: f64 = 1.0 / 8.0;

/// The queueing delay of all packets of a moment above which the estimate, where it is more than the
/// encoder can use, decreases: so far below the usual step threshold that what is added until the
/// decrease has an effect needs no mark.
const SPARE_DELAY: Duration = Duration::from_micros(400);

/// The time in which a queue drains after a response to it.
const DRAIN_TIME: Duration = Duration::from_millis(50);

/// The queueing delay that ends probing where nothing marks.
const PROBING_DELAY: Duration = Duration::from_millis(5);

/// Signs that the path bears far less than is sent: most packets marked by a queue of this delay, or a
/// longer delay and packets that arrive at less than this share of the rate at which they left.
const OVERLOAD_DELAY: Duration = Duration::from_millis(3);
const OVERLOAD_MARKED: f64 = 0.5;
const OVERLOAD_DELAY_UNMARKED: Duration = Duration::from_millis(25);
const OVERLOAD_DISPERSION: f64 = 0.7;

/// The share of the rate of arrivals that is sent after an overload, so that the queue drains.
const OVERLOAD_SHARE: f64 = 0.85;

/// The number of lost packets of which a reduction is undone if all of them arrive.
const UNDOABLE_LOSSES: usize = 64;

impl Prague {
    /// Counts virtual round trips with and without marks.
    pub(super) fn count_rounds(&mut self, now: Instant, confirmed: &Confirmed, app_limited: bool) {
        if confirmed.marked.0 > 0 {
            self.quiet_rounds = 0;
        }
        let length = self.rtt.virtual_rtt();
        if !self.marks.add(now, confirmed, self.sent.newest(), length) {
            return;
        }
        self.classic.end_round();
        if app_limited {
            return;
        }
        self.quiet_rounds = self.quiet_rounds.saturating_add(1);
        let enough = QUIET_ROUNDS + self.borne * QUIET_ROUND_PER_BPS;
        let is_near = |ceiling| NEAR_CEILING.contains(&(self.borne / ceiling));
        if self.ceiling.is_some_and(is_near) || self.loss_cause.is_only_sign() {
            self.phase = Phase::Linear;
        } else if f64::from(self.quiet_rounds) > enough {
            self.phase = Phase::Probing;
        }
    }

    /// Applies the strongest response that the report calls for, or grows.
    pub(super) fn respond(&mut self, now: Instant, confirmed: &Confirmed, app_limited: bool) {
        let overload = self.overload(confirmed);
        let is_congested = !confirmed.lost.is_empty() && self.respond_to_loss(now, confirmed);
        if let Some(bps) = overload {
            self.respond_to_overload(bps);
        } else if confirmed.marked.0 > 0 {
            self.respond_to_marks(now, confirmed);
        }
        let is_delayed = self.rtt.standing_queue() > PROBING_DELAY;
        if self.phase == Phase::Probing && is_delayed {
            self.leave_probing();
        }
        if !is_congested && overload.is_none() && !app_limited {
            self.grow(confirmed);
        }
        self.yield_spare();
    }

    /// Returns whether the losses are those of congestion.
    fn respond_to_loss(&mut self, now: Instant, confirmed: &Confirmed) -> bool {
        let numbers = confirmed.lost.iter().map(|lost| lost.number);
        let newest = numbers.clone().max().unwrap_or_default();
        let length = self.rtt.smoothed_or_assumed();
        if self.loss_round.has_passed(now, newest, length) {
            let sending = Sending {
                bps: self.borne,
                lowest_bps: self.lowest(),
                rtt: self.rtt.virtual_rtt(),
                newest: self.sent.newest(),
            };
            if !self.loss_cause.is_congestion(now, newest, sending) {
                self.stats.tolerated_losses += confirmed.lost.len() as u64;
                return false;
            }
            self.undo = Some(Undo {
                borne: self.borne,
                lost: BTreeSet::new(),
            });
            self.halve(now);
        }
        if let Some(undo) = &mut self.undo {
            undo.lost.extend(numbers);
        }
        self.undo.take_if(|undo| undo.lost.len() > UNDOABLE_LOSSES);
        true
    }

    fn respond_to_marks(&mut self, now: Instant, confirmed: &Confirmed) {
        let newest = confirmed.newest_marked().unwrap_or_default();
        let length = self.rtt.virtual_rtt();
        let rounds = [self.mark_round, self.loss_round];
        if !rounds
            .iter()
            .all(|round| round.has_passed(now, newest, length))
        {
            return;
        }
        if self.classic.is_detected() || !self.config.l4s {
            return self.halve(now);
        }
        self.lower_ceiling();
        if self.phase == Phase::Probing {
            self.leave_probing();
        } else {
            self.set_borne(self.borne * (1.0 - self.marks.alpha() / 2.0));
        }
        self.stats.mark_responses += 1;
        self.mark_round.begin(now, self.sent.newest());
    }

    /// Records the rate at which marks, or a queue, came. Those that still come after a reduction lower
    /// it slowly.
    fn lower_ceiling(&mut self) {
        let previous = self.ceiling.unwrap_or(self.borne);
        let lowered = previous + CEILING_GAIN * (self.borne - previous);
        self.ceiling = Some(lowered.max(self.borne));
    }

    /// Reduces the rate below that of the arrivals. The arrivals follow a reduction only after a round
    /// trip, so reports of the same round trip repeat the same reduction.
    fn respond_to_overload(&mut self, bps: f64) {
        if bps < self.borne {
            self.set_borne(bps);
            self.ceiling = Some(bps / OVERLOAD_SHARE);
            self.phase = Phase::Linear;
            self.quiet_rounds = 0;
            self.stats.overloads += 1;
        }
    }

    /// Returns the rate to which an overload calls.
    fn overload(&self, confirmed: &Confirmed) -> Option<f64> {
        let rates = self.arrivals.dispersion()?;
        let queue = self.rtt.queue();
        let marked = confirmed.marked.0 as f64 / confirmed.acked.0.max(1) as f64;
        let by_marks = queue > OVERLOAD_DELAY && marked > OVERLOAD_MARKED;
        let by_delay = self.rtt.standing_queue() > OVERLOAD_DELAY_UNMARKED
            && rates.arrived_bps < OVERLOAD_DISPERSION * rates.sent_bps;
        (by_marks || by_delay).then_some(rates.arrived_bps * OVERLOAD_SHARE)
    }

    fn grow(&mut self, confirmed: &Confirmed) {
        if self.borne > HEADROOM * self.throughput.bps() {
            return;
        }
        let rtt = self.rtt.virtual_rtt().as_secs_f64();
        let unmarked = confirmed.acked.0.saturating_sub(confirmed.marked.0) as f64 * 8.0;
        let rounds = (unmarked / (self.borne * ENCODED_SHARE * rtt)).min(1.0);
        let gain = match self.phase {
            Phase::Probing => self.borne * PROBING_GAIN,
            Phase::Linear => self.config.segment.bits() as f64 / rtt / ENCODED_SHARE,
        };
        let part = if self.is_spare() { SPARE_GROWTH } else { 1.0 };
        self.set_borne(self.borne + gain * part * rounds);
    }

    /// Gives up what the encoder cannot use if there is a queue, and then grows as after a mark.
    fn yield_spare(&mut self) {
        let queue = self.forward.queue();
        if self.is_spare() && queue > SPARE_DELAY {
            self.lower_ceiling();
            self.phase = Phase::Linear;
            self.quiet_rounds = 0;
            self.set_borne(self.draining(self.borne, queue).max(self.usable()));
        }
    }

    fn is_spare(&self) -> bool {
        self.borne > self.usable()
    }

    /// Returns the rate at which the target is the maximum.
    pub(super) fn usable(&self) -> f64 {
        self.config.bounds.maximum().bps() as f64 / ENCODED_SHARE
    }

    fn draining(&self, bps: f64, queue: Duration) -> f64 {
        bps * (1.0 - queue.as_secs_f64() / DRAIN_TIME.as_secs_f64()).max(0.5)
    }

    fn halve(&mut self, now: Instant) {
        self.set_borne(self.borne / 2.0);
        self.phase = Phase::Linear;
        self.quiet_rounds = 0;
        self.stats.halvings += 1;
        self.loss_round.begin(now, self.sent.newest());
    }

    fn leave_probing(&mut self) {
        self.phase = Phase::Linear;
        self.quiet_rounds = 0;
        self.marks.raise(1.0 - PROBING_EXIT);
        self.set_borne(self.borne * PROBING_EXIT);
    }

    /// Undoes a halving if all packets that caused it arrived.
    pub(super) fn undo_spurious(&mut self, spurious: &[u64]) {
        let Some(undo) = &mut self.undo else { return };
        for number in spurious {
            undo.lost.remove(number);
        }
        if !spurious.is_empty() && undo.lost.is_empty() {
            let borne = undo.borne.max(self.borne);
            self.undo = None;
            self.stats.undone += 1;
            self.set_borne(borne);
        }
    }
}
