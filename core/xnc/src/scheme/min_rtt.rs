use super::{Behaviour, Candidate, Place, View};

/// The path of the lowest smoothed round-trip time that has window, as multipath TCP's default scheduler takes it
/// (Raiciu et al., "How Hard Can It Be?", NSDI 2012) and multipath QUIC after it (De Coninck and Bonaventure, CoNEXT 2017).
#[derive(Debug)]
pub(crate) struct MinRtt;

impl Behaviour for MinRtt {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        let fitting = view.paths.iter().filter(|path| path.fits(candidate.size));
        fitting.min_by_key(|path| path.state.rtt.smoothed).map(|path| path.id).into()
    }
}
