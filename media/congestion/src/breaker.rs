use crate::loss::LossCount;
use crate::rtt::Rtt;
use crate::sent::{Confirmed, SentPackets};
use hawser_units::Instant;
use std::time::Duration;

/// The silence after which the rate is halved: four round trips within these bounds. A Wi-Fi station
/// that scans pauses for up to 100 ms, and the window lets no more than a round trip leave meanwhile.
const SHORTEST_SILENCE: Duration = Duration::from_millis(200);
const LONGEST_SILENCE: Duration = Duration::from_secs(1);

/// The silence after which sending stops.
const STOPS_AFTER: Duration = Duration::from_secs(2);

/// The time between the packets that test a stopped path.
const PROBE_INTERVAL: Duration = Duration::from_millis(500);

/// The interval over which loss is judged, and the number of intervals in a row that stop the
/// sender (RFC 8083, section 4.3).
const LOSS_INTERVAL: Duration = Duration::from_secs(1);
const LOSS_INTERVALS: u32 = 3;

/// The time for which excessive loss stops the sender.
const LOSS_PAUSE: Duration = Duration::from_secs(5);

/// How many times the rate of a TCP flow may be exceeded (RFC 8083, section 4.3).
const TCP_MULTIPLE: f64 = 10.0;

/// The share of losses up to which a sender does not stop if they are not those of congestion.
const TOLERATED_LOSS: f64 = 0.25;

/// Whether a sender may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Media may be sent.
    Send,
    /// The circuit breaker has opened: nothing may be sent but one packet at or after this time. An
    /// acknowledgement of any packet closes it.
    Probe {
        /// The earliest time of the packet.
        at: Instant,
    },
}

/// Stops a sender that gets no feedback, or whose packets are mostly lost (RFC 8083).
#[derive(Debug, Clone, Default)]
pub struct CircuitBreaker {
    waits_since: Option<Instant>,
    halvings: u32,
    stopped: Option<Stop>,
    loss: LossIntervals,
}

/// The effect of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// None: the timeout is not due.
    Short,
    /// The sender halves its rate.
    HalvesRate,
    /// The breaker has opened.
    Stops,
}

#[derive(Debug, Clone, Copy)]
struct Stop {
    probe_at: Instant,
    until: Instant,
}

impl CircuitBreaker {
    /// Records a packet that leaves `now`.
    pub fn handle_sent(&mut self, now: Instant) {
        if let Some(stop) = &mut self.stopped {
            stop.probe_at = now + PROBE_INTERVAL;
        } else {
            self.waits_since.get_or_insert(now);
        }
    }

    /// Processes feedback that counts. Returns whether the breaker closed.
    pub fn handle_feedback(&mut self, now: Instant, is_waiting: bool) -> bool {
        self.halvings = 0;
        self.waits_since = is_waiting.then_some(now);
        let closes = self.stopped.is_some_and(|stop| now >= stop.until);
        if closes {
            self.stopped = None;
        }
        closes
    }

    /// Processes an acknowledgement, also of a packet that measures nothing: it is no silence.
    pub fn handle_answer(&mut self, now: Instant, is_waiting: bool) {
        if self.stopped.is_none() {
            self.halvings = 0;
            self.waits_since = is_waiting.then_some(now);
        }
    }

    /// Judges the losses of a sender at `bps` with packets of `packet_bits`. Returns whether the
    /// breaker opened.
    pub(crate) fn handle_losses(
        &mut self,
        now: Instant,
        confirmed: &Confirmed,
        bps: f64,
        tcp: TcpPath,
    ) -> bool {
        if self.stopped.is_some() || !self.loss.are_excessive(now, confirmed, bps, tcp) {
            return false;
        }
        self.stop(now, now + LOSS_PAUSE);
        true
    }

    /// Returns when [`CircuitBreaker::handle_silence`] is due.
    pub fn poll_timeout(&self, rtt: Duration) -> Option<Instant> {
        if self.stopped.is_some() {
            return None;
        }
        let since = self.waits_since?;
        let next = silence(rtt) * (self.halvings + 1);
        Some(since + next.min(STOPS_AFTER))
    }

    fn handle_timeout(&mut self, now: Instant, rtt: Duration) -> Silence {
        if self.poll_timeout(rtt).is_none_or(|due| now < due) {
            return Silence::Short;
        }
        let waited = self
            .waits_since
            .map_or(Duration::ZERO, |since| now.saturating_since(since));
        if waited >= STOPS_AFTER {
            self.stop(now, now);
            return Silence::Stops;
        }
        self.halvings += 1;
        Silence::HalvesRate
    }

    /// Handles a timeout. When it halves the rate, packets older than two round trips no longer count as
    /// in flight: the reports on them may be lost.
    pub fn handle_silence(&mut self, now: Instant, rtt: &Rtt, sent: &mut SentPackets) -> Silence {
        let rtt = rtt.smoothed_or_assumed();
        let silence = self.handle_timeout(now, rtt);
        if silence == Silence::HalvesRate {
            sent.give_up(now - rtt * 2);
        }
        silence
    }

    /// Returns whether the sender may send.
    pub fn permission(&self) -> Permission {
        self.stopped
            .map_or(Permission::Send, |stop| Permission::Probe {
                at: stop.probe_at.max(stop.until),
            })
    }

    fn stop(&mut self, now: Instant, until: Instant) {
        self.waits_since = None;
        self.halvings = 0;
        self.loss = LossIntervals::default();
        self.stopped = Some(Stop {
            probe_at: now + PROBE_INTERVAL,
            until,
        });
    }
}

/// The path as the throughput equation of TCP needs it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpPath {
    pub(crate) segment_bits: f64,
    pub(crate) rtt: Duration,
    /// Whether its losses are not those of congestion.
    pub(crate) is_lossy: bool,
}

impl TcpPath {
    /// Returns the throughput in bits per second by the simplified equation of RFC 8083, section
    /// 4.3: s / (R * sqrt(2p / 3)).
    fn throughput(self, loss: f64) -> f64 {
        self.segment_bits / (self.rtt.as_secs_f64().max(1e-4) * (2.0 * loss / 3.0).sqrt())
    }
}

#[derive(Debug, Clone, Default)]
struct LossIntervals {
    count: LossCount,
    excessive: u32,
}

impl LossIntervals {
    fn are_excessive(
        &mut self,
        now: Instant,
        confirmed: &Confirmed,
        bps: f64,
        tcp: TcpPath,
    ) -> bool {
        if self.count.add(now, confirmed) < LOSS_INTERVAL {
            return false;
        }
        let loss = self.count.end(now);
        let tolerated = if tcp.is_lossy { TOLERATED_LOSS } else { 0.0 };
        let is_excessive = loss > tolerated && bps > TCP_MULTIPLE * tcp.throughput(loss);
        self.excessive = if is_excessive { self.excessive + 1 } else { 0 };
        self.excessive >= LOSS_INTERVALS
    }
}

fn silence(rtt: Duration) -> Duration {
    (rtt * 4).clamp(SHORTEST_SILENCE, LONGEST_SILENCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u32) -> Instant {
        Instant::ZERO + MS * ms
    }

    #[test]
    fn silence_halves_and_then_stops() {
        let mut breaker = CircuitBreaker::default();
        assert_eq!(breaker.poll_timeout(20 * MS), None);
        breaker.handle_sent(at(0));

        assert_eq!(breaker.poll_timeout(20 * MS), Some(at(200)));
        assert_eq!(breaker.handle_timeout(at(199), 20 * MS), Silence::Short);
        assert_eq!(
            breaker.handle_timeout(at(200), 20 * MS),
            Silence::HalvesRate
        );
        assert_eq!(breaker.poll_timeout(20 * MS), Some(at(400)));
        assert_eq!(breaker.handle_timeout(at(2000), 20 * MS), Silence::Stops);
        assert_eq!(breaker.permission(), Permission::Probe { at: at(2500) });
        assert_eq!(breaker.poll_timeout(20 * MS), None);

        breaker.handle_sent(at(2500));
        assert_eq!(breaker.permission(), Permission::Probe { at: at(3000) });
        assert!(breaker.handle_feedback(at(2520), false));
        assert_eq!(breaker.permission(), Permission::Send);
    }

    #[test]
    fn nothing_in_flight_is_no_silence() {
        let mut breaker = CircuitBreaker::default();
        breaker.handle_sent(at(0));
        breaker.handle_feedback(at(20), false);
        assert_eq!(breaker.poll_timeout(20 * MS), None);

        breaker.handle_sent(at(100));
        breaker.handle_answer(at(150), true);
        assert_eq!(breaker.poll_timeout(20 * MS), Some(at(350)));
        breaker.handle_answer(at(160), false);
        assert_eq!(breaker.poll_timeout(20 * MS), None);
    }
}
