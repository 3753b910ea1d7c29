use hawser_units::PathId;
use std::collections::{BTreeMap, BTreeSet};

/// The least number of copies between two updates that shows that traffic arrives.
const MIN_COPIES: u64 = 8;

/// The paths on which no copy arrives while copies arrive on others.
#[derive(Debug, Default)]
pub(super) struct QuietPaths {
    copies: BTreeMap<PathId, u64>,
    quiet: BTreeSet<PathId>,
}

impl QuietPaths {
    /// Updates the paths from the total number of copies that have arrived on each.
    pub(super) fn update(&mut self, copies: BTreeMap<PathId, u64>) {
        let before = std::mem::replace(&mut self.copies, copies);
        let arrived = |path: &PathId| {
            self.copies[path].saturating_sub(before.get(path).copied().unwrap_or(0))
        };
        // Without traffic, the paths cannot be told apart.
        if self.copies.keys().any(|path| arrived(path) >= MIN_COPIES) {
            self.quiet = self
                .copies
                .keys()
                .filter(|path| arrived(path) == 0)
                .copied()
                .collect();
        }
    }

    pub(super) fn contains(&self, path: PathId) -> bool {
        self.quiet.contains(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet(counts: &[[u64; 2]]) -> Vec<u8> {
        let mut paths = QuietPaths::default();
        for copies in counts {
            paths.update(PathId::all().zip(*copies).collect());
        }
        PathId::all()
            .take(2)
            .filter(|path| paths.contains(*path))
            .map(u8::from)
            .collect()
    }

    #[test]
    fn a_path_is_quiet_that_brings_nothing_while_the_other_does() {
        assert_eq!(quiet(&[[100, 100], [130, 100]]), [1]);
        assert_eq!(quiet(&[[100, 100], [130, 101]]), [0; 0]);
        assert_eq!(quiet(&[[100, 100], [130, 100], [160, 130]]), [0; 0]);
    }

    #[test]
    fn silence_of_all_paths_says_nothing() {
        assert_eq!(quiet(&[[100, 100], [100, 100]]), [0; 0]);
        assert_eq!(quiet(&[[100, 100], [130, 100], [130, 100]]), [1]);
        // A single stray packet does not count as traffic.
        assert_eq!(quiet(&[[100, 100], [101, 100]]), [0; 0]);
    }
}
