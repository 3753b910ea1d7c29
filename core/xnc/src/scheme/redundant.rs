use super::{Behaviour, Candidate, Place, View};

/// Every packet on every path that has window, as ReMP TCP does it (Froemmgen et al., "ReMP TCP: Low Latency Multipath
/// TCP", ICC 2016).
#[derive(Debug)]
pub(crate) struct Redundant;

impl Behaviour for Redundant {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        let fitting = view.paths.fitting(candidate.size);
        if fitting.is_empty() {
            Place::Wait
        } else {
            Place::OnAll(fitting)
        }
    }
}
