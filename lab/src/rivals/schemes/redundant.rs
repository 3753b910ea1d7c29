use hawser_xnc::experiment::{Candidate, PathChoice, Scheduler, View};

/// Sends every packet on every path with window, as ReMP TCP (Froemmgen et al., "ReMP TCP: Low
/// Latency Multipath TCP", ICC 2016).
#[derive(Debug)]
pub(super) struct Redundant;

impl Scheduler for Redundant {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        let fitting = view.paths.fitting(candidate.size);
        if fitting.is_empty() {
            PathChoice::Wait
        } else {
            PathChoice::OnAll(fitting)
        }
    }
}
