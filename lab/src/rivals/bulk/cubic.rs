use super::window::{Acknowledged, INITIAL_SEGMENTS, Window};
use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// The constants of RFC 9438, sections 4.1 and 4.6.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// The smallest window in segments.
const SMALLEST: f64 = 2.0;

/// The delay that ends slow start (RFC 9406, section 4.3).
const SHORTEST_DELAY: Duration = Duration::from_millis(4);
const LONGEST_DELAY: Duration = Duration::from_millis(16);

/// The samples of a round trip that slow start considers (RFC 9406, section 4.3).
const SAMPLES: u32 = 8;

/// The window of TCP CUBIC (RFC 9438), without ECN. Slow start ends at the delay of HyStart++
/// (RFC 9406), without its conservative phase.
#[derive(Debug, Clone)]
pub struct CubicWindow {
    segments: f64,
    threshold: f64,
    maximum: f64,
    epoch: Option<Epoch>,
    start: SlowStart,
}

/// The time since congestion avoidance began.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    began: Instant,
    /// K of RFC 9438, section 4.2, in seconds.
    plateau_after: f64,
    /// The window at the plateau.
    plateau: f64,
    /// The window of a Reno flow (section 4.3).
    reno: f64,
}

/// The lowest round-trip times of this round and of the one before.
#[derive(Debug, Clone, Copy, Default)]
struct SlowStart {
    ends_with: u64,
    samples: u32,
    lowest: Option<Duration>,
    previous: Option<Duration>,
}

impl Default for CubicWindow {
    fn default() -> Self {
        CubicWindow {
            segments: INITIAL_SEGMENTS,
            threshold: f64::INFINITY,
            maximum: 0.0,
            epoch: None,
            start: SlowStart::default(),
        }
    }
}

impl SlowStart {
    /// Takes a sample. Returns whether the delay grew so much that slow start ends.
    fn add(&mut self, acknowledged: &Acknowledged) -> bool {
        if acknowledged.newest > self.ends_with {
            self.previous = self.lowest.take();
            self.samples = 0;
            self.ends_with = acknowledged.newest_sent;
        }
        self.samples += 1;
        let lowest = self.lowest.unwrap_or(Duration::MAX).min(acknowledged.rtt);
        self.lowest = Some(lowest);
        let Some(previous) = self.previous else {
            return false;
        };
        let allowed = (previous / 8).clamp(SHORTEST_DELAY, LONGEST_DELAY);
        self.samples >= SAMPLES && lowest >= previous + allowed
    }
}

impl CubicWindow {
    fn begin_epoch(&self, now: Instant) -> Epoch {
        let plateau = self.maximum.max(self.segments);
        Epoch {
            began: now,
            plateau_after: ((plateau - self.segments) / C).cbrt(),
            plateau,
            reno: self.segments,
        }
    }

    /// Congestion avoidance (RFC 9438, sections 4.2 to 4.5).
    fn avoid_congestion(&mut self, acknowledged: &Acknowledged) {
        let now = acknowledged.now;
        let mut epoch = self.epoch.unwrap_or_else(|| self.begin_epoch(now));
        let time = now.saturating_since(epoch.began) + acknowledged.smoothed_rtt;
        let offset = time.as_secs_f64() - epoch.plateau_after;
        let cubic = C * offset.powi(3) + epoch.plateau;
        let target = cubic.clamp(self.segments, 1.5 * self.segments);
        epoch.reno += self.reno_increase(epoch.reno) * acknowledged.segments / self.segments;
        self.segments += (target - self.segments) / self.segments * acknowledged.segments;
        self.segments = self.segments.max(epoch.reno);
        self.epoch = Some(epoch);
    }

    fn reno_increase(&self, reno: f64) -> f64 {
        if reno < self.maximum {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        }
    }
}

impl Window for CubicWindow {
    fn handle_acknowledged(&mut self, acknowledged: &Acknowledged) {
        if !acknowledged.is_limiting {
            return;
        }
        if self.segments >= self.threshold {
            return self.avoid_congestion(acknowledged);
        }
        self.segments += acknowledged.segments;
        if self.start.add(acknowledged) {
            self.threshold = self.segments;
            self.maximum = self.segments;
        }
    }

    fn handle_loss(&mut self, _now: Instant) {
        let is_shrinking = self.segments < self.maximum;
        // Fast convergence, section 4.7.
        let factor = if is_shrinking {
            (1.0 + BETA) / 2.0
        } else {
            1.0
        };
        self.maximum = self.segments * factor;
        self.segments = (self.segments * BETA).max(SMALLEST);
        self.threshold = self.segments;
        self.epoch = None;
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_loss(now);
        self.segments = 1.0;
        self.start = SlowStart::default();
    }

    fn segments(&self) -> f64 {
        self.segments
    }

    fn pacing_gain(&self) -> f64 {
        if self.segments < self.threshold {
            2.0
        } else {
            1.2
        }
    }

    fn ecn(&self) -> Ecn {
        Ecn::NotEct
    }
}
