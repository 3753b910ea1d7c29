use noq_proto::RttEstimator;
use noq_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Gains of draft-ietf-ccwg-bbr, sections 2.4 and 5.6.
const STARTUP_GAIN: f64 = 2.77;
const DRAIN_GAIN: f64 = 0.5;
const DOWN_GAIN: f64 = 0.9;
const UP_GAIN: f64 = 1.25;
const WINDOW_GAIN: f64 = 2.0;
const UP_WINDOW_GAIN: f64 = 2.25;

/// Share of the known maximum in flight that is used while nothing is probed; the rest is left for
/// other traffic.
const HEADROOM: f64 = 0.85;

/// Factor by which a bound is reduced after a round trip with too many losses.
const BETA: f64 = 0.7;

/// Factor by which the data in flight is reduced after a round trip with marks of the network (RFC
/// 8511). QUIC's packets are ECT(0), which a queue marks where it would drop; the
/// library does not tell how many were marked.
const MARKED_BETA: f64 = 0.85;

/// Share of a round trip's packets that may be lost before the loss counts as congestion.
const LOSS_THRESHOLD: f64 = 0.02;

/// Startup ends after this many round trips in which the bandwidth grew by less than the factor.
const FULL_ROUNDS: u32 = 3;
const FULL_GROWTH: f64 = 1.25;

/// Length of a bandwidth probing cycle, to which up to half as much is added. Samples expire after
/// one to two of these.
const CYCLE: Duration = Duration::from_secs(2);

/// Minimum window in packets.
const MIN_PACKETS: u64 = 4;

const INITIAL_WINDOW: u64 = 14_720;

/// Burst for one send operation (draft-ietf-ccwg-bbr, section 5.6.3): this much time at the pacing
/// rate, up to a maximum in bytes.
const QUANTUM: Duration = Duration::from_millis(1);
const MAX_QUANTUM: u64 = 64 << 10;

/// While the bandwidth is unknown, a window may be sent within this share of a round trip.
const BURST: f64 = 0.25;

/// The pacing rate before the first sample: the initial window within a millisecond.
const INITIAL_PACING: f64 = STARTUP_GAIN * INITIAL_WINDOW as f64 / 1e-3;

/// After this time without an acknowledgement, the model of the path is restarted.
const OUTAGE: Duration = Duration::from_millis(500);

/// The congestion controller: a model of the path as in BBR version 3, of the maximum recent
/// bandwidth, the minimum round-trip time, and bounds learnt from losses and congestion marks.
///
/// It follows draft-ietf-ccwg-bbr, with differences that suit a tunnel of live media:
///
/// - A round trip whose loss is below the threshold lowers nothing, because radio links lose
///   packets without being congested. A single mark of the network (ECN CE) does, because only a
///   queue marks: less is in flight from the next round trip on, until bandwidth is probed again.
/// - Bounds come only from round trips in which the connection was not application-limited.
/// - Bandwidth and minimum round-trip time expire within seconds even when the application is the
///   limit, because both change on a moving car's path. Bandwidth probing empties the queue often
///   enough to measure the round-trip time again.
/// - A path that recovers from an outage is treated like a new one.
///
/// Random numbers come from a seed, so that connections can be simulated; noq's own BBR 3 cannot be
/// seeded from outside.
#[derive(Debug, Clone)]
pub struct Bbr {
    random: u64,
    packet: u64,
    window: u64,
    pacing: f64,
    sent: VecDeque<Sent>,
    in_flight: u64,
    delivery: Delivery,
    phase: Phase,
    is_bandwidth_full: bool,
    full_bandwidth: f64,
    full_rounds: u32,
    /// The maximum bandwidth of this cycle and of the previous one, in bytes per second.
    bandwidth: [f64; 2],
    bandwidth_bound: f64,
    /// The maximum in flight without excessive loss in the long term (draft: `inflight_longterm`),
    /// and its short-term bound (`inflight_shortterm`).
    long_bound: u64,
    short_bound: u64,
    /// The minimum round-trip time of this period and of the previous one.
    min_rtt: [Option<Duration>; 2],
    round: Round,
    /// Marks of packets that were sent before this time caused a reduction already.
    reduced_at: Option<Instant>,
    /// The longest time without an acknowledgement before the acknowledgements being processed.
    outage: Duration,
    cycle_end: Option<Instant>,
    /// When the current period of samples began, and whether the application used the full
    /// bandwidth since then.
    period_began: Option<Instant>,
    was_saturated: bool,
}

/// Creates [`Bbr`] controllers with one seed.
#[derive(Debug, Clone, Copy)]
pub struct BbrConfig {
    /// Seed of the random number generator for the length of probing cycles.
    pub seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    Startup,
    Drain { rounds: u32 },
    Down,
    Cruise,
    Refill,
    Up,
}

/// A packet in flight, with the progress of delivery at the time it was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    number: u64,
    at: Instant,
    bytes: u64,
    in_flight: u64,
    delivered: u64,
    delivered_at: Instant,
    flight_began: Instant,
    is_app_limited: bool,
}

/// Progress of delivery (draft-ietf-ccwg-bbr, section 4.1).
#[derive(Debug, Clone, Copy, Default)]
struct Delivery {
    bytes: u64,
    at: Option<Instant>,
    /// Send time of the packet delivered last, where the next sampled flight begins.
    flight_began: Option<Instant>,
    /// Samples are application-limited until more than this has been delivered.
    limited_until: Option<u64>,
    newest: Option<Sent>,
    acknowledged: u64,
}

/// A round trip, from a packet's departure to its acknowledgement.
#[derive(Debug, Clone, Copy, Default)]
struct Round {
    end: u64,
    delivered_before: u64,
    lost: u64,
    /// Whether the network marked a packet.
    is_marked: bool,
    is_app_limited: bool,
    /// The maximum bandwidth sample.
    bandwidth: f64,
    in_flight: u64,
}

impl Bbr {
    fn new(seed: u64, packet: u16) -> Self {
        Bbr {
            random: seed,
            packet: packet.into(),
            window: INITIAL_WINDOW,
            pacing: INITIAL_PACING,
            sent: VecDeque::new(),
            in_flight: 0,
            delivery: Delivery::default(),
            phase: Phase::Startup,
            is_bandwidth_full: false,
            full_bandwidth: 0.0,
            full_rounds: 0,
            bandwidth: [0.0; 2],
            bandwidth_bound: f64::INFINITY,
            long_bound: u64::MAX,
            short_bound: u64::MAX,
            min_rtt: [None; 2],
            round: Round::default(),
            reduced_at: None,
            outage: Duration::ZERO,
            cycle_end: None,
            period_began: None,
            was_saturated: false,
        }
    }

    /// Returns the bandwidth of the path in bytes per second.
    fn bandwidth(&self) -> f64 {
        self.bandwidth[0].max(self.bandwidth[1])
    }

    /// Returns the round-trip time without queueing.
    fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt.into_iter().flatten().min()
    }

    /// Restarts with Startup, as on a new path, but with the known bandwidth.
    fn restart(&mut self) {
        self.phase = Phase::Startup;
        self.is_bandwidth_full = false;
        (self.full_bandwidth, self.full_rounds) = (0.0, 0);
        self.bandwidth_bound = f64::INFINITY;
        (self.long_bound, self.short_bound) = (u64::MAX, u64::MAX);
        self.cycle_end = None;
    }

    fn acknowledge(&mut self, now: Instant, sent: Instant, bytes: u64, number: u64) {
        let Some(packet) = self.take_sent(sent, number) else {
            return;
        };
        self.in_flight = self.in_flight.saturating_sub(packet.bytes);
        let silent_since = self.delivery.at.unwrap_or(now);
        self.outage = self.outage.max(now.saturating_duration_since(silent_since));
        self.delivery.bytes += bytes;
        self.delivery.acknowledged += bytes;
        self.delivery.at = Some(now);
        if self
            .delivery
            .newest
            .is_none_or(|newest| packet.at >= newest.at)
        {
            self.delivery.flight_began = Some(packet.at);
            self.delivery.newest = Some(packet);
        }
    }

    /// Removes a packet from those that were sent.
    fn take_sent(&mut self, at: Instant, number: u64) -> Option<Sent> {
        let is_wanted = |packet: &Sent| packet.number == number && packet.at == at;
        let index = self.sent.iter().position(is_wanted)?;
        self.sent.remove(index)
    }

    fn sample(&mut self, now: Instant) {
        let Some(packet) = self.delivery.newest.take() else {
            return;
        };
        let rtt = now.saturating_duration_since(packet.at);
        self.min_rtt[0] = Some(self.min_rtt[0].map_or(rtt, |min| min.min(rtt)));
        let rate = self.delivery_rate(now, &packet);
        self.round.bandwidth = self.round.bandwidth.max(rate);
        self.round.in_flight = self.round.in_flight.max(packet.in_flight);
        self.round.is_app_limited |= packet.is_app_limited;
        self.bandwidth[0] = self.bandwidth[0].max(rate);
        if packet.delivered >= self.round.end {
            let round = self.round;
            self.round = Round {
                end: self.delivery.bytes,
                delivered_before: self.delivery.bytes,
                ..Round::default()
            };
            self.end_round(now, round);
        }
    }

    /// Returns the rate at which bytes were delivered since the packet was sent, in bytes per second.
    fn delivery_rate(&self, now: Instant, packet: &Sent) -> f64 {
        let delivered = self.delivery.bytes - packet.delivered;
        let sending = packet.at.saturating_duration_since(packet.flight_began);
        let arriving = now.saturating_duration_since(packet.delivered_at);
        let interval = sending.max(arriving).as_secs_f64();
        if interval > 0.0 {
            delivered as f64 / interval
        } else {
            0.0
        }
    }

    fn end_round(&mut self, now: Instant, round: Round) {
        let delivered = self.delivery.bytes - round.delivered_before;
        let is_lossy = round.lost as f64 > LOSS_THRESHOLD * (round.lost + delivered) as f64
            && round.lost >= MIN_PACKETS * self.packet;
        if !round.is_app_limited {
            self.was_saturated = true;
            self.check_growth();
        }
        if round.is_marked && !round.is_app_limited {
            self.respond_to_marks(now, round);
        }
        match self.phase {
            Phase::Startup if is_lossy && !round.is_app_limited => {
                self.is_bandwidth_full = true;
                self.long_bound = self.bdp(1.0).max(delivered);
                self.phase = Phase::Drain { rounds: 0 };
            }
            Phase::Startup if self.is_bandwidth_full => self.phase = Phase::Drain { rounds: 0 },
            Phase::Drain { rounds } if rounds >= FULL_ROUNDS => self.begin_cycle(now),
            Phase::Drain { rounds } => self.phase = Phase::Drain { rounds: rounds + 1 },
            Phase::Refill => {
                (self.full_bandwidth, self.full_rounds) = (self.bandwidth(), 0);
                self.phase = Phase::Up;
            }
            Phase::Up => self.end_round_up(now, round, is_lossy),
            Phase::Down | Phase::Cruise if is_lossy && !round.is_app_limited => {
                self.lower_bounds(round.bandwidth, delivered);
            }
            _ => {}
        }
    }

    /// Notes whether the bandwidth has stopped growing.
    fn check_growth(&mut self) {
        if self.is_bandwidth_full {
            return;
        }
        if self.bandwidth() >= self.full_bandwidth * FULL_GROWTH {
            (self.full_bandwidth, self.full_rounds) = (self.bandwidth(), 0);
        } else {
            self.full_rounds += 1;
        }
        self.is_bandwidth_full = self.full_rounds >= FULL_ROUNDS;
    }

    /// Lowers the short-term bounds after a round with loss, but not below what the round
    /// delivered.
    fn lower_bounds(&mut self, round_bandwidth: f64, delivered: u64) {
        let bandwidth = self.bandwidth_bound.min(self.bandwidth());
        self.bandwidth_bound = round_bandwidth.max(BETA * bandwidth);
        let bound = self.short_bound.min(self.window);
        self.short_bound = delivered.max((BETA * bound as f64) as u64);
    }

    /// Reduces what is in flight after a round with marks of the network, until bandwidth is probed
    /// again. The bound of the long term is left alone: while all packets are marked, it would
    /// become so low that probing takes minutes afterwards.
    fn respond_to_marks(&mut self, now: Instant, round: Round) {
        match self.phase {
            // The next round shows the bandwidth, and drains the queue.
            Phase::Startup => self.is_bandwidth_full = true,
            Phase::Drain { .. } | Phase::Refill => {}
            Phase::Down | Phase::Cruise | Phase::Up => {
                let in_flight = self.short_bound.min(round.in_flight);
                self.short_bound = (MARKED_BETA * in_flight as f64) as u64;
                if self.phase == Phase::Up {
                    self.begin_cycle(now);
                }
            }
        }
        self.reduced_at = Some(now);
    }

    /// Raises the bound while probing, until there is too much loss or the bandwidth grows no
    /// further.
    fn end_round_up(&mut self, now: Instant, round: Round, is_lossy: bool) {
        if is_lossy {
            if !round.is_app_limited {
                let target = (BETA * self.bdp(1.0).min(self.window) as f64) as u64;
                self.long_bound = round.in_flight.max(target);
            }
            self.begin_cycle(now);
            return;
        }
        if round.in_flight >= self.long_bound {
            self.long_bound = round.in_flight.saturating_add(round.in_flight / 4);
        }
        let grew = self.bandwidth() >= self.full_bandwidth * FULL_GROWTH;
        (self.full_bandwidth, self.full_rounds) = if grew {
            (self.bandwidth(), 0)
        } else {
            (self.full_bandwidth, self.full_rounds + 1)
        };
        if self.full_rounds >= FULL_ROUNDS {
            self.begin_cycle(now);
        }
    }

    fn begin_cycle(&mut self, now: Instant) {
        self.phase = Phase::Down;
        let extra = CYCLE.mul_f64(0.5 * self.next_random());
        self.cycle_end = Some(now + CYCLE + extra);
    }

    fn update_phase(&mut self, now: Instant) {
        if let Phase::Drain { .. } = self.phase
            && self.in_flight <= self.bdp(1.0)
        {
            self.begin_cycle(now);
        }
        if self.phase == Phase::Down
            && self.in_flight <= self.bdp(1.0).min(self.bound_with_headroom())
        {
            self.phase = Phase::Cruise;
        }
        let is_due = self.cycle_end.is_some_and(|end| end <= now);
        if matches!(self.phase, Phase::Down | Phase::Cruise) && is_due {
            self.bandwidth_bound = f64::INFINITY;
            self.short_bound = u64::MAX;
            self.round.end = self.delivery.bytes;
            self.phase = Phase::Refill;
        }
        self.expire_samples(now);
    }

    /// Expires samples from before the previous period, also when the application is the limit: a
    /// fading link must be noticed. If the application never used the full bandwidth in a period,
    /// the bandwidth of the path is unknown, so exploration restarts, which corrects an
    /// underestimate within round trips.
    fn expire_samples(&mut self, now: Instant) {
        let began = *self.period_began.get_or_insert(now);
        if now.saturating_duration_since(began) < CYCLE {
            return;
        }
        self.period_began = Some(now);
        self.bandwidth = [0.0, self.bandwidth[0]];
        if self.min_rtt[0].is_some() {
            self.min_rtt = [None, self.min_rtt[0]];
        }
        if self.is_bandwidth_full && !std::mem::take(&mut self.was_saturated) {
            self.restart();
        }
    }

    fn gains(&self) -> (f64, f64) {
        match self.phase {
            Phase::Startup => (STARTUP_GAIN, WINDOW_GAIN),
            Phase::Drain { .. } => (DRAIN_GAIN, WINDOW_GAIN),
            Phase::Down => (DOWN_GAIN, WINDOW_GAIN),
            Phase::Cruise | Phase::Refill => (1.0, WINDOW_GAIN),
            Phase::Up => (UP_GAIN, UP_WINDOW_GAIN),
        }
    }

    fn update_window(&mut self, acknowledged: u64) {
        let (pacing, gain) = self.gains();
        let bandwidth = self.bandwidth().min(self.bandwidth_bound);
        let Some(rtt) = self
            .min_rtt()
            .filter(|rtt| bandwidth > 0.0 && !rtt.is_zero())
        else {
            return;
        };
        // Packets may wait at the sender for a burst, and acknowledgements at the receiver, without
        // congestion.
        let rate = pacing * bandwidth;
        let quantum = (rate * QUANTUM.as_secs_f64()) as u64;
        let target = self.bdp(gain) + 3 * quantum.clamp(MIN_PACKETS * self.packet, MAX_QUANTUM);
        self.window = (self.window + acknowledged).min(target.max(INITIAL_WINDOW));
        let burst = self.window as f64 / (rtt.as_secs_f64() * BURST);
        self.pacing = if self.is_bandwidth_full {
            rate
        } else {
            rate.max(burst)
        };
        let bound = self.window_bound();
        self.window = self.window.min(bound).max(MIN_PACKETS * self.packet);
    }

    fn window_bound(&self) -> u64 {
        match self.phase {
            Phase::Startup | Phase::Drain { .. } => u64::MAX,
            Phase::Refill | Phase::Up => self.long_bound,
            Phase::Down | Phase::Cruise => self.bound_with_headroom().min(self.short_bound),
        }
    }

    /// Returns `gain` times the bandwidth-delay product, in bytes.
    fn bdp(&self, gain: f64) -> u64 {
        match self.min_rtt() {
            Some(rtt) => {
                (gain * self.bandwidth().min(self.bandwidth_bound) * rtt.as_secs_f64()) as u64
            }
            None => INITIAL_WINDOW,
        }
    }

    fn bound_with_headroom(&self) -> u64 {
        match self.long_bound {
            u64::MAX => u64::MAX,
            bound => (HEADROOM * bound as f64) as u64,
        }
    }

    /// Returns the next random number from 0 to 1 (SplitMix64).
    fn next_random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Controller for Bbr {
    fn on_packet_sent(&mut self, now: Instant, bytes: u16, pn: u64) {
        if self.in_flight == 0 {
            self.delivery.flight_began = Some(now);
            self.delivery.at = Some(now);
        }
        self.in_flight += u64::from(bytes);
        self.sent.push_back(Sent {
            number: pn,
            at: now,
            bytes: bytes.into(),
            in_flight: self.in_flight,
            delivered: self.delivery.bytes,
            delivered_at: self.delivery.at.unwrap_or(now),
            flight_began: self.delivery.flight_began.unwrap_or(now),
            is_app_limited: self
                .delivery
                .limited_until
                .is_some_and(|until| self.delivery.bytes <= until),
        });
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        pn: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.acknowledge(now, sent, bytes, pn);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest: Option<u64>,
    ) {
        self.in_flight = in_flight;
        if app_limited {
            self.delivery.limited_until = Some(self.delivery.bytes + in_flight);
        }
        if self.outage >= OUTAGE {
            // Probing cycles would take many seconds to detect that the path now has ten times the
            // bandwidth.
            self.restart();
        }
        self.outage = Duration::ZERO;
        self.sample(now);
        self.update_phase(now);
        let acknowledged = std::mem::take(&mut self.delivery.acknowledged);
        self.update_window(acknowledged);
    }

    fn on_congestion_event(
        &mut self,
        _now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        is_ecn: bool,
        _lost_bytes: u64,
        _largest_lost_pn: u64,
    ) {
        if is_persistent_congestion {
            self.window = MIN_PACKETS * self.packet;
        }
        // One reduction in a round trip (RFC 9002, section 7.3.2).
        self.round.is_marked |= is_ecn && self.reduced_at.is_none_or(|at| at <= sent);
    }

    fn on_packet_lost(&mut self, lost_bytes: u16, pn: u64, _now: Instant) {
        let Some(index) = self.sent.iter().position(|packet| packet.number == pn) else {
            return;
        };
        self.sent.remove(index);
        self.in_flight = self.in_flight.saturating_sub(lost_bytes.into());
        self.round.lost += u64::from(lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.packet = new_mtu.into();
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window;
        metrics.pacing_rate = Some(self.pacing as u64);
        metrics.bandwidth_estimate =
            (self.bandwidth() > 0.0).then(|| (self.bandwidth() * 8.0) as u64);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl ControllerFactory for BbrConfig {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Bbr::new(self.seed, current_mtu))
    }
}

#[cfg(test)]
mod tests;
