use super::{Behaviour, Candidate, Place, View, fastest};
use crate::path::{Path, QUIC_OVERHEAD};

/// Earliest completion first (Lim et al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017,
/// algorithm 1): when the fastest path has no window, a slower one is used only if the packet is expected there before the
/// fastest path could have carried all that waits.
#[derive(Debug, Default)]
pub(crate) struct Ecf {
    waiting: bool,
}

/// The paper's hysteresis.
const BETA: f64 = 0.25;

impl Behaviour for Ecf {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        let Some(first) = fastest(view.paths.iter().filter(|path| path.outstanding.may_send()))
        else {
            return Place::Wait;
        };
        if first.fits(candidate.size) {
            return Place::On(first.id);
        }
        let Some(second) = fastest(view.paths.iter().filter(|path| path.fits(candidate.size)))
        else {
            return Place::Wait;
        };
        if self.is_worth_waiting(
            view.waiting as f64,
            Figures::of(first, candidate),
            Figures::of(second, candidate),
        ) {
            Place::Wait
        } else {
            Place::On(second.id)
        }
    }
}

impl Ecf {
    /// `k` packets wait; the symbols are those of the paper's algorithm.
    fn is_worth_waiting(&mut self, k: f64, f: Figures, s: Figures) -> bool {
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

/// Seconds, and packets.
#[derive(Debug, Clone, Copy)]
struct Figures {
    rtt: f64,
    deviation: f64,
    window: f64,
}

impl Figures {
    fn of(path: &Path, candidate: Candidate) -> Figures {
        let packet = candidate.size as u64 + QUIC_OVERHEAD;
        Figures {
            rtt: path.state.rtt.smoothed.as_secs_f64(),
            deviation: path.state.rtt.variation.as_secs_f64(),
            window: (path.state.congestion_window.0 as f64 / packet as f64).max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rtt_ms: f64, window: f64) -> Figures {
        Figures {
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
    fn who_waited_goes_on_waiting_a_little_longer() {
        let (fast, slow) = (figures(20.0, 10.0), figures(100.0, 10.0));
        assert!(!Ecf { waiting: false }.is_worth_waiting(45.0, fast, slow));
        assert!(Ecf { waiting: true }.is_worth_waiting(45.0, fast, slow));
    }

    #[test]
    fn a_path_that_is_hardly_slower_is_used() {
        assert!(!Ecf::default().is_worth_waiting(5.0, figures(20.0, 10.0), figures(30.0, 10.0)));
    }
}
