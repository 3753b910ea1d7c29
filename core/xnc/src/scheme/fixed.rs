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
        paths
            .get(index)
            .filter(|path| path.fits(candidate.size))
            .map(|path| path.id)
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::super::scene::{Scene, candidate, path};
    use super::*;
    use crate::Scheme;
    use std::collections::BTreeSet;

    #[test]
    fn a_flow_keeps_its_path_and_flows_are_spread() {
        let mut scene = Scene::new(
            Scheme::Bonding,
            &[(90, 100_000), (20, 100_000), (50, 100_000)],
        );
        let place = |scene: &Scene, flow| Fixed::ByHash.place(&scene.view(), candidate(flow));
        let places: Vec<Place> = (0..3).map(|flow| place(&scene, flow)).collect();
        let distinct: BTreeSet<String> = places.iter().map(|place| format!("{place:?}")).collect();
        assert_eq!(distinct.len(), 3, "{places:?}");
        let Place::On(taken) = places[0] else {
            panic!("a path")
        };
        scene.update(taken, 500, 50_000);
        assert_eq!(place(&scene, 0), places[0], "however slow it has become");
        scene.update(taken, 500, 0);
        assert_eq!(
            place(&scene, 0),
            Place::Wait,
            "nor does it change when there is no window"
        );
        assert_eq!(place(&scene, 1), places[1]);
    }

    #[test]
    fn a_single_path_is_the_first() {
        let scene = Scene::new(Scheme::Single, &[(90, 100_000), (20, 100_000)]);
        for flow in 0..3 {
            assert_eq!(
                Fixed::First.place(&scene.view(), candidate(flow)),
                Place::On(path(0))
            );
        }
    }
}
