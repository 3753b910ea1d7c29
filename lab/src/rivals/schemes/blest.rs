use hawser_units::Instant;
use hawser_xnc::experiment::{
    Candidate, Path, PathChoice, QUIC_OVERHEAD, Scheduler, View, fastest,
};

/// Blocking estimation (Ferlin et al., "BLEST: Blocking Estimation-based MPTCP Scheduler for
/// Heterogeneous Networks", IFIP Networking 2016). A slower path is not used if its packets would
/// fill the send window before the fastest path could have carried as much as possible in the
/// meantime.
#[derive(Debug)]
pub(super) struct Blest {
    /// The correction factor of the estimate.
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
        Blest {
            lambda: FIRST_LAMBDA,
            updated: Instant::ZERO,
            was_blocked: false,
        }
    }
}

impl Scheduler for Blest {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        let fast = fastest(view.paths.iter().filter(|path| path.may_send()));
        let best = fastest(view.paths.iter().filter(|path| path.fits(candidate.size)));
        let (Some(fast), Some(best)) = (fast, best) else {
            return PathChoice::Wait;
        };
        self.was_blocked |=
            view.sent_packets.bytes() + candidate.size as u64 > view.config.packet_memory.0;
        if best.id == fast.id {
            return PathChoice::On(best.id);
        }
        self.adapt(view.now, fast);
        let packet = candidate.size as u64 + QUIC_OVERHEAD;
        let left = view
            .config
            .packet_memory
            .0
            .saturating_sub(best.outstanding_bytes() + packet);
        if self.sent_meanwhile(fast, best, packet) > left as f64 {
            PathChoice::Wait
        } else {
            PathChoice::On(best.id)
        }
    }
}

impl Blest {
    /// Returns the bytes that the fast path can send during a round trip of the slow one, if its
    /// window grows by one packet in each of its own round trips (equation 1 of the paper, times
    /// lambda).
    fn sent_meanwhile(&self, fast: &Path, slow: &Path, packet: u64) -> f64 {
        let rtt = |path: &Path| path.state.rtt.smoothed.as_secs_f64().max(1e-6);
        let rounds = (rtt(slow) / rtt(fast)).max(1.0);
        let window = fast.state.congestion_window.0 as f64 / packet as f64;
        packet as f64 * (window + (rounds - 1.0) / 2.0) * rounds * self.lambda
    }

    /// Updates lambda once per round trip: increases it after the send window was full, decreases
    /// it otherwise.
    fn adapt(&mut self, now: Instant, fast: &Path) {
        if now.saturating_since(self.updated) < fast.state.rtt.smoothed {
            return;
        }
        let step = if self.was_blocked {
            AFTER_BLOCKING
        } else {
            -WITHOUT_BLOCKING
        };
        self.lambda = (self.lambda + step).clamp(*LAMBDA.start(), *LAMBDA.end());
        self.was_blocked = false;
        self.updated = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rivals::schemes::Scheme;
    use hawser_units::ByteSize;
    use hawser_xnc::experiment::scene::{Scene, candidate, path};

    /// Two paths of 20 and 200 ms, and a send window. The first path has a window of 30 packets,
    /// which is full if `is_full`.
    fn scene(is_full: bool, send_window: u64) -> Scene {
        let mut scene = Scene::new(Scheme::Blest.config(), &[(20, 30_960), (200, 100_000)]);
        if is_full {
            scene.fill(path(0));
        }
        scene.config.packet_memory = ByteSize(send_window);
        scene
    }

    #[test]
    fn the_slow_path_waits_when_it_would_fill_the_send_window() {
        // Equation 1: 10 rounds of 30 packets, growing by one packet each, times 1.19 are 423,688
        // bytes. The packet has 1,032.
        let meanwhile = 423_688 + 1_032;
        let choice = |scene: &Scene| Blest::default().select_path(&scene.view(), candidate(0));
        let scene_with = |send_window| {
            let mut scene = scene(true, send_window);
            scene.wait(20);
            scene
        };
        assert_eq!(choice(&scene_with(meanwhile)), PathChoice::On(path(1)));
        assert_eq!(choice(&scene_with(meanwhile - 1)), PathChoice::Wait);
    }

    #[test]
    fn a_fast_path_with_window_is_taken_whatever_the_send_window() {
        assert_eq!(
            Blest::default().select_path(&scene(false, 1).view(), candidate(0)),
            PathChoice::On(path(0))
        );
    }

    #[test]
    fn caution_grows_after_blocking() {
        let mut blest = Blest::default();
        let mut blocked = scene(true, 999);
        blocked.wait(20);
        blest.select_path(&blocked.view(), candidate(0));
        assert!(blest.lambda > FIRST_LAMBDA);
    }
}
