use super::{Behaviour, Candidate, Place, View, fastest};
use crate::path::{Path, QUIC_OVERHEAD};
use hawser_units::Instant;

/// Blocking estimation (Ferlin et al., "BLEST: Blocking Estimation-based MPTCP Scheduler for Heterogeneous Networks", IFIP
/// Networking 2016): a slower path is not used when what it carries would fill the send window before the fastest path had
/// carried what it could in the meantime.
#[derive(Debug)]
pub(crate) struct Blest {
    /// The correction of the estimate.
    lambda: f64,
    updated: Instant,
    was_blocked: bool,
}

/// Bounds and steps of lambda, as in the authors' implementation for Linux.
const LAMBDA: std::ops::RangeInclusive<f64> = 1.0..=1.3;
const FIRST_LAMBDA: f64 = 1.2;
const AFTER_BLOCKING: f64 = 0.04;
const WITHOUT_BLOCKING: f64 = 0.01;

impl Default for Blest {
    fn default() -> Self {
        Blest { lambda: FIRST_LAMBDA, updated: Instant::ZERO, was_blocked: false }
    }
}

impl Behaviour for Blest {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        let fast = fastest(view.paths.iter().filter(|path| path.outstanding.may_send()));
        let best = fastest(view.paths.iter().filter(|path| path.fits(candidate.size)));
        let (Some(fast), Some(best)) = (fast, best) else { return Place::Wait };
        self.was_blocked |= view.pool.bytes() + candidate.size as u64 > view.config.pool_limit.0;
        if best.id == fast.id {
            return Place::On(best.id);
        }
        self.adapt(view.now, fast);
        let packet = candidate.size as u64 + QUIC_OVERHEAD;
        let left = view.config.pool_limit.0.saturating_sub(best.outstanding_bytes() + packet);
        if self.sent_meanwhile(fast, best, packet) > left as f64 { Place::Wait } else { Place::On(best.id) }
    }
}

impl Blest {
    /// Bytes that the fast path can send during a round trip of the slow one, were its window to grow by one packet in
    /// each of its own (equation 1 of the paper, times lambda).
    fn sent_meanwhile(&self, fast: &Path, slow: &Path, packet: u64) -> f64 {
        let rtt = |path: &Path| path.state.rtt.smoothed.as_secs_f64().max(1e-6);
        let rounds = (rtt(slow) / rtt(fast)).max(1.0);
        let window = fast.state.congestion_window.0 as f64 / packet as f64;
        packet as f64 * (window + (rounds - 1.0) / 2.0) * rounds * self.lambda
    }

    /// Once in a round trip: more caution after the window was full, less otherwise.
    fn adapt(&mut self, now: Instant, fast: &Path) {
        if now.saturating_since(self.updated) < fast.state.rtt.smoothed {
            return;
        }
        let step = if self.was_blocked { AFTER_BLOCKING } else { -WITHOUT_BLOCKING };
        self.lambda = (self.lambda + step).clamp(*LAMBDA.start(), *LAMBDA.end());
        self.was_blocked = false;
        self.updated = now;
    }
}
