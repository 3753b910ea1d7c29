use super::{Behaviour, Candidate, Place, View};
use crate::path::Path;

/// Each flow stays on one path: that which its hash names, as bonding routers do it, or the first.
#[derive(Debug)]
pub(crate) enum Fixed {
    ByHash,
    First,
}

impl Behaviour for Fixed {
    fn place(&mut self, view: &View<'_>, candidate: Candidate) -> Place {
        let paths: Vec<&Path> = view.paths.iter().collect();
        let index = match self {
            Fixed::ByHash => (candidate.flow_hash % paths.len().max(1) as u64) as usize,
            Fixed::First => 0,
        };
        paths.get(index).filter(|path| path.fits(candidate.size)).map(|path| path.id).into()
    }
}
