use hawser_xnc::experiment::{Candidate, PathChoice, Scheduler, View, fastest};

/// Selects the path with the lowest smoothed round-trip time of those with window, as the default
/// scheduler of multipath TCP (Raiciu et al., "How Hard Can It Be?", NSDI 2012) and multipath QUIC
/// (De Coninck and Bonaventure, CoNEXT 2017).
#[derive(Debug)]
pub(super) struct MinRtt;

impl Scheduler for MinRtt {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
        fastest(view.paths.iter().filter(|path| path.fits(candidate.size)))
            .map(|path| path.id)
            .into()
    }
}
