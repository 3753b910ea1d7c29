use crate::arrivals::Arrivals;
use crate::base_check::BaseCheck;
use crate::breaker::{CircuitBreaker, Permission, Silence, TcpPath};
use crate::classic::ClassicAqm;
use crate::control::RateControl;
use crate::feedback::{Feedback, Refusals};
use crate::forward::ForwardDelay;
use crate::loss_cause::LossCause;
use crate::marking::MarkedShare;
use crate::round::Round;
use crate::rtt::Rtt;
use crate::sent::{Confirmed, SentPackets};
use crate::steady::Steady;
use crate::throughput::Throughput;
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::BTreeSet;
use std::time::Duration;

mod config;
mod respond;

pub use config::{PragueConfig, PragueStats};

/// The share of the borne rate at which the encoder works. The rest empties the pacer between frames
/// and the queue of the path.
const ENCODED_SHARE: f64 = 0.94;

/// The maximum share, while the borne rate is below its average.
const FULLEST_SHARE: f64 = 0.96;

/// The multiple of the rate that is really sent up to which the estimate grows. Frames are sent at
/// the estimate, so their packets test it also when there is nothing to send between them.
const HEADROOM: f64 = 2.5;

/// The bytes after which bleached ECN fields are believed.
const BLEACHED_BYTES: u64 = 60_000;

/// The time by which the window exceeds the round trip: jitter of feedback and bursts of the pacer.
const WINDOW_SLACK: Duration = Duration::from_millis(5);

/// Prague congestion control for real-time media.
///
/// It controls the rate that the path bears, at which packets are paced; the encoder's target is a
/// fixed share of its average, within the bounds. `docs/design/l4s.md` describes the responses.
#[derive(Debug, Clone)]
pub struct Prague {
    config: PragueConfig,
    sent: SentPackets,
    rtt: Rtt,
    forward: ForwardDelay,
    base_check: BaseCheck,
    marks: MarkedShare,
    arrivals: Arrivals,
    throughput: Throughput,
    classic: ClassicAqm,
    breaker: CircuitBreaker,
    loss_cause: LossCause,
    borne: f64,
    steady: Steady,
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
            forward: ForwardDelay::default(),
            base_check: BaseCheck::default(),
            marks: MarkedShare::default(),
            arrivals: Arrivals::default(),
            throughput: Throughput::new(now, initial),
            classic: ClassicAqm::default(),
            breaker: CircuitBreaker::default(),
            loss_cause: LossCause::default(),
            borne: initial / ENCODED_SHARE,
            steady: Steady::new(now, initial / ENCODED_SHARE),
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
            self.forward.add(now, confirmed);
            let arriving = self.throughput.bps();
            if self.base_check.handle_sample(now, &self.rtt, arriving) {
                self.rtt.raise_base(now);
                self.loss_cause.forget();
                self.stats.raised_bases += 1;
            }
            let is_waiting = self.sent.in_flight().0 > 0;
            if self.breaker.handle_feedback(now, is_waiting) {
                self.restart(now);
            }
        }
        let queue = self.forward.queue().max(self.rtt.standing_queue());
        let is_l4s = self.ecn() == Ecn::Ect1 && !self.classic.is_detected();
        self.loss_cause.add(now, confirmed, queue, is_l4s);
        self.arrivals.add(confirmed);
        self.throughput.add(now, confirmed.acked);
        self.acked = self.acked.saturating_add(confirmed.acked.0);
        self.bleached = self.bleached.saturating_add(confirmed.bleached.0);
        let base = self.rtt.base();
        for packet in confirmed.arrived.iter().filter(|p| p.ecn == Ecn::Ce) {
            self.classic.add_mark(packet.rtt().saturating_sub(base));
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
        let lowest = self.lowest();
        let highest = (bounds.maximum().bps() as f64 * HEADROOM).max(lowest);
        self.borne = bps.clamp(lowest, highest);
    }

    fn lowest(&self) -> f64 {
        self.config.bounds.minimum().bps() as f64 / ENCODED_SHARE
    }

    /// Returns the rate that the window lets pass, bits per second.
    fn passing(&self) -> f64 {
        self.window_bytes() * 8.0 / self.round_trip_s()
    }

    /// Returns the bytes that may be on their way.
    fn window_bytes(&self) -> f64 {
        let slack = self.config.feedback_interval + WINDOW_SLACK;
        let time = self.rtt.base() + slack + self.rtt.jitter();
        let usual = self.borne * time.as_secs_f64() / 8.0;
        let checking = self.base_check.allowed_bps();
        checking.map_or(usual, |bps| usual.min(bps * self.round_trip_s() / 8.0))
    }

    fn round_trip_s(&self) -> f64 {
        let round_trip = self.rtt.smoothed_or_assumed();
        round_trip.as_secs_f64().max(1e-3)
    }

    fn is_bleached(&self) -> bool {
        self.acked >= BLEACHED_BYTES && self.bleached > self.acked / 2
    }

    fn tcp_path(&self) -> TcpPath {
        TcpPath {
            segment_bits: self.config.segment.bits() as f64,
            rtt: self.rtt.smoothed_or_assumed(),
            is_lossy: self.loss_cause.is_random(),
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
        let now = feedback.now;
        if feedback.is_answer && feedback.acked.is_empty() {
            self.breaker.handle_answer(now, self.sent.in_flight().0 > 0);
        }
        if confirmed.is_empty() {
            return;
        }
        self.measure(now, &confirmed);
        let bps = self.throughput.bps();
        if self
            .breaker
            .handle_losses(now, &confirmed, bps, self.tcp_path())
        {
            return self.stop();
        }
        self.count_rounds(now, &confirmed, feedback.app_limited);
        self.undo_spurious(&confirmed.spurious);
        self.respond(now, &confirmed, feedback.app_limited);
        // Nothing is averaged while the rate is searched for, or where the maximum is the target.
        if self.phase == Phase::Probing || self.borne >= self.usable() {
            self.steady = Steady::new(now, self.borne);
        } else {
            self.steady.follow(now, self.borne);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.breaker.poll_timeout(self.rtt.smoothed_or_assumed())
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self.breaker.handle_silence(now, &self.rtt, &mut self.sent) {
            Silence::Short => {}
            Silence::HalvesRate => {
                self.set_borne(self.borne / 2.0);
                self.steady = Steady::new(now, self.borne);
                self.phase = Phase::Probing;
                self.stats.silences += 1;
            }
            Silence::Stops => self.stop(),
        }
    }

    fn target(&self) -> Bitrate {
        let usual = self.steady.bps().min(self.passing()) * ENCODED_SHARE;
        let fullest = self.borne * FULLEST_SHARE;
        self.config.bounds.limit(usual.min(fullest))
    }

    fn pacing_rate(&self) -> Bitrate {
        Bitrate::from_bps(self.borne as u64).max(self.target())
    }

    fn window(&self) -> ByteSize {
        let bytes = self.window_bytes();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Acked;

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    /// Sends packets from 0 on at once, and reports those in `acked` and `lost` 20 ms later.
    fn report(control: &mut Prague, now: Instant, acked: &[u64], lost: &[u64], ecn: Ecn) {
        let acked: Vec<Acked> = acked
            .iter()
            .map(|number| Acked {
                number: *number,
                held: Duration::ZERO,
                ecn,
            })
            .collect();
        control.handle_feedback(&Feedback {
            now,
            reported: now,
            acked: &acked,
            lost,
            abandoned: &[],
            is_answer: true,
            app_limited: true,
        });
    }

    fn fast(packets: u64) -> Prague {
        let mut control = Prague::new(PragueConfig::default(), Instant::ZERO);
        control.set_borne(80e6);
        (0..packets).for_each(|number| control.handle_sent(at(0), number, ByteSize(1200)));
        control
    }

    #[test]
    fn loss_halves_once_per_round_trip() {
        let mut control = fast(10);
        report(&mut control, at(20), &[1], &[0], Ecn::Ect1);
        assert_eq!(control.pacing_rate().mbps(), 40.0);
        report(&mut control, at(22), &[3], &[2], Ecn::Ect1);
        assert_eq!(control.pacing_rate().mbps(), 40.0);

        control.handle_sent(at(41), 20, ByteSize(1200));
        control.handle_sent(at(42), 21, ByteSize(1200));
        report(&mut control, at(62), &[21], &[20], Ecn::Ect1);
        assert_eq!(control.pacing_rate().mbps(), 20.0);
    }

    #[test]
    fn a_halving_is_undone_when_all_lost_packets_arrive() {
        let mut control = fast(10);
        report(&mut control, at(20), &[2], &[0, 1], Ecn::Ect1);
        report(&mut control, at(22), &[0], &[], Ecn::Ect1);
        assert_eq!(control.pacing_rate().mbps(), 40.0);
        report(&mut control, at(23), &[1], &[], Ecn::Ect1);
        assert_eq!(control.pacing_rate().mbps(), 80.0);
        assert_eq!(control.stats().undone, 1);
    }

    #[test]
    fn probing_ends_near_the_rate_at_which_marks_came_last() {
        for (ceiling, expected) in [
            (40e6, Phase::Probing),
            (85e6, Phase::Linear),
            (100e6, Phase::Probing),
        ] {
            let mut control = fast(10);
            control.ceiling = Some(ceiling);
            let acked = [1, 2, 3].map(|number| Acked {
                number,
                held: Duration::ZERO,
                ecn: Ecn::Ect1,
            });
            control.handle_feedback(&Feedback {
                now: at(20),
                reported: at(20),
                acked: &acked,
                lost: &[],
                abandoned: &[],
                is_answer: true,
                app_limited: false,
            });
            assert_eq!(control.phase, expected, "{ceiling}");
        }
    }

    #[test]
    fn a_path_that_removes_ect1_gets_no_more_of_it() {
        let mut control = fast(100);
        assert_eq!(control.ecn(), Ecn::Ect1);
        let numbers: Vec<u64> = (0..60).collect();
        report(&mut control, at(20), &numbers, &[], Ecn::NotEct);
        assert_eq!(control.ecn(), Ecn::NotEct);
        assert!(control.stats().bleached);
    }

    #[test]
    fn the_window_lasts_a_round_trip_and_at_most_15_ms_more() {
        let mut control = fast(1);
        report(&mut control, at(20), &[0], &[], Ecn::Ect1);
        let allowed = control.pacing_rate().bps() as f64 / 8.0 * 0.035;
        assert!((control.window().0 as f64 / allowed - 1.0).abs() < 0.01);
    }
}
