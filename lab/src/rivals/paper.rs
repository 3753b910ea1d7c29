use hawser_congestion::{
    Bounds, CircuitBreaker, Confirmed, Feedback, Permission, RateControl, Refusals, Round, Rtt,
    SentPackets, Silence, Spread,
};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::time::Duration;

/// The time over which the paper spreads the packets of a frame (equation 1).
pub const SPREAD: Spread = Spread::Interval(Duration::from_millis(20));

/// Parameters of the paper's controller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaperConfig {
    /// The bounds of section 4.2.
    pub bounds: Bounds,
    /// The target RTT of section 3.2.
    pub target_rtt: Duration,
    /// The growth per second without marks. The paper gives none; its figure 7 shows a straight line
    /// from 12.5 to 90 Mb/s in 10 s.
    pub growth: Bitrate,
}

impl Default for PaperConfig {
    fn default() -> Self {
        PaperConfig {
            bounds: Bounds::default(),
            target_rtt: Duration::from_millis(25),
            growth: Bitrate::from_mbps(7.75),
        }
    }
}

/// The controller of De Fré et al., section 3.2, in the simplest reading.
///
/// The text says: the marking probability is computed from the bytes marked CE, the rate is
/// increased or decreased by it with a target RTT of 25 ms, and a loss halves the rate. It leaves
/// open how large an increase or a decrease is, whether the probability is smoothed, what the target
/// RTT does, how often a loss halves, and what happens without feedback. This reading:
///
/// - every target RTT, or every round trip if that is longer, the share p of marked bytes decides:
///   without marks the rate grows by a constant, with marks it decreases by p / 2 (as DCTCP and
///   Prague with their average taken as the latest share);
/// - a loss halves once per round trip, as Reno does;
/// - silence is treated as [`Prague`](hawser_congestion::Prague) treats it, because a sender must not ignore it.
#[derive(Debug, Clone)]
pub struct PaperL4s {
    config: PaperConfig,
    sent: SentPackets,
    rtt: Rtt,
    breaker: CircuitBreaker,
    rate: f64,
    acked: u64,
    marked: u64,
    adjusted: Instant,
    loss_round: Round,
}

impl PaperL4s {
    /// Creates a controller that starts at the initial rate.
    pub fn new(config: PaperConfig, now: Instant) -> Self {
        PaperL4s {
            sent: SentPackets::default(),
            rtt: Rtt::default(),
            breaker: CircuitBreaker::default(),
            rate: config.bounds.initial().bps() as f64,
            acked: 0,
            marked: 0,
            adjusted: now,
            loss_round: Round::default(),
            config,
        }
    }

    fn interval(&self) -> Duration {
        self.config
            .target_rtt
            .max(self.rtt.smoothed_or_assumed())
            .max(Duration::from_millis(1))
    }

    fn handle_loss(&mut self, now: Instant, confirmed: &Confirmed) {
        let newest = confirmed.lost.iter().map(|lost| lost.number).max();
        let length = self.rtt.smoothed_or_assumed();
        if newest.is_some_and(|newest| self.loss_round.has_passed(now, newest, length)) {
            self.set_rate(self.rate / 2.0);
            self.loss_round.begin(now, self.sent.newest());
        }
    }

    fn adjust(&mut self, now: Instant, app_limited: bool) {
        let interval = self.interval();
        let elapsed = now.saturating_since(self.adjusted);
        if elapsed < interval || self.acked == 0 {
            return;
        }
        let share = self.marked as f64 / self.acked as f64;
        if self.marked > 0 {
            self.set_rate(self.rate * (1.0 - share / 2.0));
        } else if !app_limited {
            let growth = self.config.growth.bps() as f64;
            self.set_rate(self.rate + growth * elapsed.min(2 * interval).as_secs_f64());
        }
        (self.acked, self.marked, self.adjusted) = (0, 0, now);
    }

    fn set_rate(&mut self, bps: f64) {
        self.rate = self.config.bounds.limit(bps).bps() as f64;
    }
}

impl RateControl for PaperL4s {
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
        if let Some(newest) = confirmed.newest() {
            self.rtt.add(now, newest.rtt(), newest.rtt());
            self.breaker
                .handle_feedback(now, self.sent.in_flight().0 > 0);
        }
        self.acked = self.acked.saturating_add(confirmed.acked.0);
        self.marked = self.marked.saturating_add(confirmed.marked.0);
        self.handle_loss(now, &confirmed);
        self.adjust(now, feedback.app_limited);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.breaker.poll_timeout(self.rtt.smoothed_or_assumed())
    }

    fn handle_timeout(&mut self, now: Instant) {
        match self.breaker.handle_silence(now, &self.rtt, &mut self.sent) {
            Silence::Short => {}
            Silence::HalvesRate => self.set_rate(self.rate / 2.0),
            Silence::Stops => self.set_rate(0.0),
        }
    }

    fn target(&self) -> Bitrate {
        self.config.bounds.limit(self.rate)
    }

    /// Returns the target: the paper paces by the frame interval alone ([`SPREAD`]), which takes no
    /// rate.
    fn pacing_rate(&self) -> Bitrate {
        self.target()
    }

    /// Returns twice the target over the target RTT. The paper has no window but the in-flight
    /// buffer of section 3.5.
    fn window(&self) -> ByteSize {
        let seconds = self.interval().as_secs_f64();
        ByteSize((self.rate / 8.0 * 2.0 * seconds) as u64).max(ByteSize(3000))
    }

    fn in_flight(&self) -> ByteSize {
        self.sent.in_flight()
    }

    fn ecn(&self) -> Ecn {
        Ecn::Ect1
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
