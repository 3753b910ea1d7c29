use crate::arrivals::Arrivals;
use crate::breaker::{CircuitBreaker, Permission, Silence, TcpPath};
use crate::classic::ClassicAqm;
use crate::control::{Bounds, RateControl};
use crate::feedback::{Feedback, Refusals};
use crate::marking::MarkedShare;
use crate::round::Round;
use crate::rtt::Rtt;
use crate::sent::{Confirmed, SentPackets};
use crate::throughput::Throughput;
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::BTreeSet;
use std::time::Duration;

/// The share of the borne rate at which the encoder works. The rest empties the pacer between frames
/// and the queue of the path.
const ENCODED_SHARE: f64 = 0.94;

/// The multiple of the rate that is really sent up to which the estimate grows. Frames are sent at
/// the estimate, so their packets test it also when there is nothing to send between them.
const HEADROOM: f64 = 2.5;

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

/// The queueing delay of all packets of a report above which the estimate, where it is more than the
/// encoder can use, decreases: half of the usual step threshold, so that no mark is needed.
const SPARE_DELAY: Duration = Duration::from_micros(500);

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

/// The bytes after which bleached ECN fields are believed.
const BLEACHED_BYTES: u64 = 60_000;

/// The time by which the window exceeds the round trip: jitter of feedback and bursts of the pacer.
const WINDOW_SLACK: Duration = Duration::from_millis(5);

/// Parameters of [`Prague`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PragueConfig {
    /// The bounds of the target.
    pub bounds: Bounds,
    /// The additive increase per virtual round trip: the segment of a TCP flow that competes.
    pub segment: ByteSize,
    /// The time between reports of the receiver.
    pub feedback_interval: Duration,
    /// Whether packets are sent as ECT(1). Otherwise they are not ECN-capable, and loss is the only
    /// signal (RFC 9331, section 4.3: a scalable control can be replaced by a classic one).
    pub l4s: bool,
}

impl Default for PragueConfig {
    fn default() -> Self {
        PragueConfig {
            bounds: Bounds::default(),
            segment: ByteSize(1500),
            feedback_interval: Duration::from_millis(10),
            l4s: true,
        }
    }
}

/// Counters of [`Prague`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PragueStats {
    /// The moving average of the marked share, from 0 to 1.
    pub alpha: f64,
    /// Reductions in proportion to the marked share.
    pub mark_responses: u64,
    /// Reductions by half because of loss, or of marks by a classic AQM.
    pub halvings: u64,
    /// Reductions to the rate of arrivals.
    pub overloads: u64,
    /// Halvings that were undone because the packets arrived after all.
    pub undone: u64,
    /// Halvings because of silence.
    pub silences: u64,
    /// Times at which the circuit breaker opened.
    pub stops: u64,
    /// Whether a classic AQM marks.
    pub classic_aqm: bool,
    /// Whether the path removes ECT(1).
    pub bleached: bool,
}

/// Prague congestion control for real-time media.
///
/// It controls the rate that the path bears, at which packets are paced; the encoder's target is a
/// fixed share of it, within the bounds. `docs/design/l4s.md` describes the responses.
#[derive(Debug, Clone)]
pub struct Prague {
    config: PragueConfig,
    sent: SentPackets,
    rtt: Rtt,
    marks: MarkedShare,
    arrivals: Arrivals,
    throughput: Throughput,
    classic: ClassicAqm,
    breaker: CircuitBreaker,
    borne: f64,
    phase: Phase,
    quiet_rounds: u32,
    ceiling: Option<f64>,
    mark_round: Round,
    loss_round: Round,
    undo: Option<Undo>,
    acked: u64,
    bleached: u64,
    stats: PragueStats,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Multiplicative growth until the first mark.
    Probing,
    /// Additive growth.
    Linear,
}

/// A halving that may prove wrong.
#[derive(Debug, Clone)]
struct Undo {
    borne: f64,
    lost: BTreeSet<u64>,
}

impl Prague {
    /// Creates a controller that starts at the initial rate.
    pub fn new(config: PragueConfig, now: Instant) -> Self {
        let initial = config.bounds.initial().bps() as f64;
        Prague {
            sent: SentPackets::default(),
            rtt: Rtt::default(),
            marks: MarkedShare::default(),
            arrivals: Arrivals::default(),
            throughput: Throughput::new(now, initial),
            classic: ClassicAqm::default(),
            breaker: CircuitBreaker::default(),
            borne: initial / ENCODED_SHARE,
            phase: Phase::Probing,
            quiet_rounds: 0,
            ceiling: None,
            mark_round: Round::default(),
            loss_round: Round::default(),
            undo: None,
            acked: 0,
            bleached: 0,
            stats: PragueStats::default(),
            config,
        }
    }

    /// Returns the counters.
    pub fn stats(&self) -> PragueStats {
        PragueStats {
            alpha: self.marks.alpha(),
            classic_aqm: self.classic.is_detected(),
            bleached: self.is_bleached(),
            ..self.stats
        }
    }

    fn measure(&mut self, now: Instant, confirmed: &Confirmed) {
        if let (Some(newest), Some(lowest)) = (confirmed.newest(), confirmed.shortest_rtt()) {
            self.rtt.add(now, newest.rtt(), lowest);
            let is_waiting = self.sent.in_flight().0 > 0;
            if self.breaker.handle_feedback(now, is_waiting) {
                self.restart(now);
            }
        }
        self.arrivals.add(confirmed);
        self.throughput.add(now, confirmed.acked);
        self.acked = self.acked.saturating_add(confirmed.acked.0);
        self.bleached = self.bleached.saturating_add(confirmed.bleached.0);
        let base = self.rtt.base();
        for packet in confirmed.arrived.iter().filter(|p| p.ecn == Ecn::Ce) {
            self.classic.add_mark(packet.rtt().saturating_sub(base));
        }
    }

    /// Counts virtual round trips with and without marks.
    fn count_rounds(&mut self, now: Instant, confirmed: &Confirmed, app_limited: bool) {
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
        if f64::from(self.quiet_rounds) > enough && !self.ceiling.is_some_and(is_near) {
            self.phase = Phase::Probing;
        }
    }

    /// Applies the strongest response that the report calls for, or grows.
    fn respond(&mut self, now: Instant, confirmed: &Confirmed, app_limited: bool) {
        let overload = self.overload(confirmed);
        if !confirmed.lost.is_empty() {
            self.respond_to_loss(now, confirmed);
        }
        if let Some(bps) = overload {
            self.respond_to_overload(bps);
        } else if confirmed.marked.0 > 0 {
            self.respond_to_marks(now, confirmed);
        }
        let is_delayed = self.rtt.queue() > PROBING_DELAY;
        if self.phase == Phase::Probing && is_delayed {
            self.leave_probing();
        }
        if confirmed.lost.is_empty() && overload.is_none() && !app_limited {
            self.grow(confirmed);
        }
        self.yield_spare(confirmed);
    }

    fn respond_to_loss(&mut self, now: Instant, confirmed: &Confirmed) {
        let numbers = confirmed.lost.iter().map(|lost| lost.number);
        let newest = numbers.clone().max().unwrap_or_default();
        let length = self.rtt.smoothed_or_assumed();
        if self.loss_round.has_passed(now, newest, length) {
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

    /// Records the rate at which marks came. The marks that still come after a reduction lower it
    /// slowly.
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
        let by_delay = queue > OVERLOAD_DELAY_UNMARKED
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

    /// Gives up what the encoder cannot use if there is a queue.
    fn yield_spare(&mut self, confirmed: &Confirmed) {
        let queue = self.queue_of_all(confirmed);
        if self.is_spare() && queue > SPARE_DELAY {
            let lowest = self.config.bounds.maximum().bps() as f64 / ENCODED_SHARE;
            self.set_borne(self.draining(self.borne, queue).max(lowest));
        }
    }

    fn is_spare(&self) -> bool {
        self.borne * ENCODED_SHARE > self.config.bounds.maximum().bps() as f64
    }

    /// Returns the queueing delay that all packets of a report met.
    fn queue_of_all(&self, confirmed: &Confirmed) -> Duration {
        let shortest = confirmed.shortest_rtt().unwrap_or_default();
        shortest.saturating_sub(self.rtt.base())
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
    fn undo_spurious(&mut self, spurious: &[u64]) {
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

    fn restart(&mut self, now: Instant) {
        let initial = self.config.bounds.initial().bps() as f64;
        self.throughput = Throughput::new(now, initial);
        self.set_borne(initial / ENCODED_SHARE);
        self.phase = Phase::Probing;
        self.quiet_rounds = 0;
    }

    fn stop(&mut self) {
        self.set_borne(0.0);
        self.undo = None;
        self.stats.stops += 1;
    }

    fn set_borne(&mut self, bps: f64) {
        let bounds = &self.config.bounds;
        let lowest = bounds.minimum().bps() as f64 / ENCODED_SHARE;
        let highest = (bounds.maximum().bps() as f64 * HEADROOM).max(lowest);
        self.borne = bps.clamp(lowest, highest);
    }

    fn is_bleached(&self) -> bool {
        self.acked >= BLEACHED_BYTES && self.bleached > self.acked / 2
    }

    fn tcp_path(&self) -> TcpPath {
        TcpPath {
            segment_bits: self.config.segment.bits() as f64,
            rtt: self.rtt.smoothed_or_assumed(),
        }
    }
}

impl RateControl for Prague {
    fn handle_sent(&mut self, now: Instant, number: u64, size: ByteSize) {
        self.sent.insert(now, number, size);
        self.breaker.handle_sent(now);
    }

    fn handle_feedback(&mut self, feedback: &Feedback<'_>) {
        let confirmed = self.sent.confirm(feedback);
        if confirmed.is_empty() {
            return;
        }
        let now = feedback.now;
        self.measure(now, &confirmed);
        let (bps, tcp) = (self.throughput.bps(), self.tcp_path());
        if self.breaker.handle_losses(now, &confirmed, bps, tcp) {
            return self.stop();
        }
        self.count_rounds(now, &confirmed, feedback.app_limited);
        self.undo_spurious(&confirmed.spurious);
        self.respond(now, &confirmed, feedback.app_limited);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.breaker.poll_timeout(self.rtt.smoothed_or_assumed())
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self
            .breaker
            .handle_timeout(now, self.rtt.smoothed_or_assumed())
        {
            Silence::Short => {}
            Silence::HalvesRate => {
                self.sent.give_up(now - self.rtt.smoothed_or_assumed() * 2);
                self.set_borne(self.borne / 2.0);
                self.phase = Phase::Probing;
                self.stats.silences += 1;
            }
            Silence::Stops => self.stop(),
        }
    }

    fn target(&self) -> Bitrate {
        self.config.bounds.limit(self.borne * ENCODED_SHARE)
    }

    fn pacing_rate(&self) -> Bitrate {
        Bitrate::from_bps(self.borne as u64).max(self.target())
    }

    fn window(&self) -> ByteSize {
        let time = self.rtt.base() + self.config.feedback_interval + WINDOW_SLACK;
        let bytes = self.borne / 8.0 * time.as_secs_f64();
        ByteSize(bytes as u64).max(ByteSize(2 * self.config.segment.0.max(1)))
    }

    fn in_flight(&self) -> ByteSize {
        self.sent.in_flight()
    }

    fn ecn(&self) -> Ecn {
        if self.config.l4s && !self.is_bleached() {
            Ecn::Ect1
        } else {
            Ecn::NotEct
        }
    }

    fn permission(&self) -> Permission {
        self.breaker.permission()
    }

    fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    fn refusals(&self) -> Refusals {
        self.sent.refusals()
    }
}
