use hawser_units::PathId;
use std::collections::{BTreeMap, BTreeSet};

/// Copies between two looks that tell a path which brings them from one that does not.
const ENOUGH: u64 = 8;

/// Which paths bring nothing while others do.
#[derive(Debug, Default)]
pub(super) struct Heard {
    copies: BTreeMap<PathId, u64>,
    quiet: BTreeSet<PathId>,
}

impl Heard {
    /// Takes in how many copies have arrived by each path so far.
    pub(super) fn look(&mut self, copies: BTreeMap<PathId, u64>) {
        let before = std::mem::replace(&mut self.copies, copies);
        let came = |path: &PathId| {
            self.copies[path].saturating_sub(before.get(path).copied().unwrap_or(0))
        };
        // When nobody sends, nothing tells one path from the other.
        if self.copies.keys().any(|path| came(path) >= ENOUGH) {
            self.quiet = self
                .copies
                .keys()
                .filter(|path| came(path) == 0)
                .copied()
                .collect();
        }
    }

    pub(super) fn is_quiet(&self, path: PathId) -> bool {
        self.quiet.contains(&path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(looks: &[[u64; 2]]) -> Vec<u8> {
        let mut heard = Heard::default();
        for copies in looks {
            heard.look(PathId::all().zip(*copies).collect());
        }
        PathId::all()
            .take(2)
            .filter(|path| heard.is_quiet(*path))
            .map(u8::from)
            .collect()
    }

    #[test]
    fn a_path_is_quiet_that_brings_nothing_while_the_other_does() {
        assert_eq!(heard(&[[100, 100], [130, 100]]), [1]);
        assert_eq!(heard(&[[100, 100], [130, 101]]), [0; 0]);
        assert_eq!(heard(&[[100, 100], [130, 100], [160, 130]]), [0; 0]);
    }

    #[test]
    fn silence_of_all_paths_says_nothing() {
        assert_eq!(heard(&[[100, 100], [100, 100]]), [0; 0]);
        assert_eq!(heard(&[[100, 100], [130, 100], [130, 100]]), [1]);
        // A stray packet is no traffic.
        assert_eq!(heard(&[[100, 100], [101, 100]]), [0; 0]);
    }
}
