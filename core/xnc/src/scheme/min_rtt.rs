use super::{Behaviour, Candidate, Place, View, fastest};

/// The path of the lowest smoothed round-trip time that has window, as multipath TCP's default scheduler takes it
/// (Raiciu et al., "How Hard Can It Be?", NSDI 2012) and multipath QUIC after it (De Coninck and Bonaventure, CoNEXT 2017).
#[derive(Debug)]
pub(crate) struct MinRtt;

impl Behaviour for MinRtt {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        fastest(view.paths.iter().filter(|path| path.fits(candidate.size)))
            .map(|path| path.id)
            .into()
    }
}
