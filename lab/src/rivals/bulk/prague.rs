use super::window::{Acknowledged, INITIAL_SEGMENTS, Window};
use hawser_congestion::{REFERENCE_RTT, Round};
use hawser_units::{Ecn, Instant};

/// The weight of the newest round in the moving average (RFC 8257, section 3.3).
const GAIN: f64 = 1.0 / 16.0;

/// The smallest window in segments.
const SMALLEST: f64 = 2.0;

/// The window of TCP Prague (draft-briscoe-iccrg-prague-congestion-control): DCTCP with reduced
/// dependence on the round-trip time.
#[derive(Debug, Clone)]
pub struct PragueWindow {
    segments: f64,
    alpha: f64,
    is_starting: bool,
    acked: f64,
    marked: f64,
    average_round: Round,
    response_round: Round,
    newest_sent: u64,
}

impl Default for PragueWindow {
    fn default() -> Self {
        PragueWindow {
            segments: INITIAL_SEGMENTS,
            alpha: 1.0,
            is_starting: true,
            acked: 0.0,
            marked: 0.0,
            average_round: Round::default(),
            response_round: Round::default(),
            newest_sent: 0,
        }
    }
}

impl PragueWindow {
    /// Returns the moving average of the marked share.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    fn update_average(&mut self, acknowledged: &Acknowledged) {
        self.acked += acknowledged.segments;
        self.marked += acknowledged.marked;
        let length = acknowledged.smoothed_rtt.max(REFERENCE_RTT);
        let (now, newest) = (acknowledged.now, acknowledged.newest);
        if self.average_round.has_passed(now, newest, length) {
            self.alpha += GAIN * (self.marked / self.acked - self.alpha);
            (self.acked, self.marked) = (0.0, 0.0);
            self.average_round.begin(now, Some(self.newest_sent));
        }
    }

    fn reduce(&mut self, acknowledged: &Acknowledged) {
        let length = acknowledged.smoothed_rtt.max(REFERENCE_RTT);
        let (now, newest) = (acknowledged.now, acknowledged.newest);
        if acknowledged.marked > 0.0 && self.response_round.has_passed(now, newest, length) {
            self.is_starting = false;
            self.segments = (self.segments * (1.0 - self.alpha / 2.0)).max(SMALLEST);
            self.response_round.begin(now, Some(self.newest_sent));
        }
    }

    fn grow(&mut self, acknowledged: &Acknowledged) {
        let unmarked = acknowledged.segments - acknowledged.marked;
        if self.is_starting {
            self.segments += unmarked;
            return;
        }
        let rtt = acknowledged.smoothed_rtt.as_secs_f64();
        let slowdown = (rtt / REFERENCE_RTT.as_secs_f64()).min(1.0);
        self.segments += unmarked / self.segments * slowdown * slowdown;
    }
}

impl Window for PragueWindow {
    fn handle_acknowledged(&mut self, acknowledged: &Acknowledged) {
        self.newest_sent = acknowledged.newest_sent;
        self.update_average(acknowledged);
        self.reduce(acknowledged);
        if acknowledged.is_limiting {
            self.grow(acknowledged);
        }
    }

    fn handle_loss(&mut self, now: Instant) {
        self.is_starting = false;
        self.segments = (self.segments / 2.0).max(SMALLEST);
        self.response_round.begin(now, Some(self.newest_sent));
    }

    fn handle_timeout(&mut self, _now: Instant) {
        self.segments = SMALLEST;
        self.is_starting = true;
    }

    fn segments(&self) -> f64 {
        self.segments
    }

    fn pacing_gain(&self) -> f64 {
        if self.is_starting { 2.0 } else { 1.0 }
    }

    fn ecn(&self) -> Ecn {
        Ecn::Ect1
    }
}
