use hawser_xnc::experiment::{
    Candidate, Path, PathChoice, QUIC_OVERHEAD, Scheduler, View, fastest,
};

/// Earliest completion first (Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous
/// Paths", CoNEXT 2017, algorithm 1). When the fastest path has no window, a slower one is used
/// only if the packet is expected to arrive there before the fastest path could have carried all
/// waiting packets.
#[derive(Debug, Default)]
pub(super) struct Ecf {
    waiting: bool,
}

/// The hysteresis of the paper.
const BETA: f64 = 0.25;

impl Scheduler for Ecf {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        let Some(first) = fastest(view.paths.iter().filter(|path| path.may_send())) else {
            return PathChoice::Wait;
        };
        if first.fits(candidate.size) {
            return PathChoice::On(first.id);
        }
        let Some(second) = fastest(view.paths.iter().filter(|path| path.fits(candidate.size)))
        else {
            return PathChoice::Wait;
        };
        if self.is_worth_waiting(
            view.waiting as f64,
            PathEstimate::of(first, candidate),
            PathEstimate::of(second, candidate),
        ) {
            PathChoice::Wait
        } else {
            PathChoice::On(second.id)
        }
    }
}

impl Ecf {
    /// Returns whether to wait for the fast path `f` rather than use the slow path `s`, with `k`
    /// waiting packets. The symbols are those of the paper's algorithm.
    fn is_worth_waiting(&mut self, k: f64, f: PathEstimate, s: PathEstimate) -> bool {
        let n = 1.0 + k / f.window;
        let delta = f.deviation.max(s.deviation);
        let margin = if self.waiting { 1.0 + BETA } else { 1.0 };
        if n * f.rtt < margin * (s.rtt + delta) {
            let is_too_slow = (k / s.window).max(1.0) * s.rtt >= 2.0 * f.rtt + delta;
            self.waiting |= is_too_slow;
            is_too_slow
        } else {
            self.waiting = false;
            false
        }
    }
}

/// The round-trip time and its deviation in seconds, and the window in packets.
#[derive(Debug, Clone, Copy)]
struct PathEstimate {
    rtt: f64,
    deviation: f64,
    window: f64,
}

impl PathEstimate {
    fn of(path: &Path, candidate: Candidate) -> PathEstimate {
        let packet = candidate.size as u64 + QUIC_OVERHEAD;
        PathEstimate {
            rtt: path.state.rtt.smoothed.as_secs_f64(),
            deviation: path.state.rtt.variation.as_secs_f64(),
            window: (path.state.congestion_window.0 as f64 / packet as f64).max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rtt_ms: f64, window: f64) -> PathEstimate {
        PathEstimate {
            rtt: rtt_ms / 1e3,
            deviation: 0.0,
            window,
        }
    }

    #[test]
    fn few_packets_wait_for_the_fast_path_and_many_do_not() {
        let mut ecf = Ecf::default();
        let (fast, slow) = (figures(20.0, 10.0), figures(100.0, 10.0));
        assert!(
            ecf.is_worth_waiting(10.0, fast, slow),
            "two rounds of 20 ms against 100 ms"
        );
        assert!(
            !ecf.is_worth_waiting(100.0, fast, slow),
            "eleven rounds of 20 ms against 100 ms"
        );
    }

    #[test]
    fn hysteresis_prolongs_waiting() {
        let (fast, slow) = (figures(20.0, 10.0), figures(100.0, 10.0));
        assert!(!Ecf { waiting: false }.is_worth_waiting(45.0, fast, slow));
        assert!(Ecf { waiting: true }.is_worth_waiting(45.0, fast, slow));
    }

    #[test]
    fn a_path_that_is_hardly_slower_is_used() {
        assert!(!Ecf::default().is_worth_waiting(5.0, figures(20.0, 10.0), figures(30.0, 10.0)));
    }
}
