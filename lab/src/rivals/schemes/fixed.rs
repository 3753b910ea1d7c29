use hawser_xnc::experiment::{Candidate, Path, PathChoice, Scheduler, View};

/// Keeps each flow on one path: the one selected by its hash, as bonding routers do, or the first.
#[derive(Debug)]
pub(super) enum Fixed {
    ByHash,
    First,
}

impl Scheduler for Fixed {
    fn select_path(&mut self, view: &View<'_>, candidate: Candidate) -> PathChoice {
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
    use super::*;
    use crate::rivals::schemes::Scheme;
    use hawser_xnc::experiment::scene::{Scene, candidate, path};
    use std::collections::BTreeSet;

    #[test]
    fn a_flow_keeps_its_path_and_flows_are_spread() {
        let mut scene = Scene::new(
            Scheme::Bonding.config(),
            &[(90, 100_000), (20, 100_000), (50, 100_000)],
        );
        let choice =
            |scene: &Scene, flow| Fixed::ByHash.select_path(&scene.view(), candidate(flow));
        let choices: Vec<PathChoice> = (0..3).map(|flow| choice(&scene, flow)).collect();
        let distinct: BTreeSet<String> =
            choices.iter().map(|choice| format!("{choice:?}")).collect();
        assert_eq!(distinct.len(), 3, "{choices:?}");
        let PathChoice::On(taken) = choices[0] else {
            panic!("no path selected")
        };
        scene.update(taken, 500, 50_000);
        assert_eq!(choice(&scene, 0), choices[0], "even if it has become slow");
        scene.update(taken, 500, 0);
        assert_eq!(choice(&scene, 0), PathChoice::Wait, "and without window");
        assert_eq!(choice(&scene, 1), choices[1]);
    }

    #[test]
    fn a_single_path_is_the_first() {
        let scene = Scene::new(Scheme::Single.config(), &[(90, 100_000), (20, 100_000)]);
        for flow in 0..3 {
            assert_eq!(
                Fixed::First.select_path(&scene.view(), candidate(flow)),
                PathChoice::On(path(0))
            );
        }
    }
}
