//! The path indices of a session.

use hawser_units::{PathId, PathSet};
use std::collections::VecDeque;

/// All path indices, least recently used first, so that packets still in flight on a closed path
/// are not attributed to the path that reuses its index.
#[derive(Debug, Clone)]
pub(crate) struct Indices(VecDeque<PathId>);

impl Indices {
    pub(crate) fn new() -> Indices {
        Indices(PathId::all().collect())
    }

    /// Returns the index that was unused for the longest time, if any is not in use.
    pub(crate) fn free(&self, in_use: PathSet) -> Option<PathId> {
        self.0.iter().copied().find(|id| !in_use.contains(*id))
    }

    /// Records that an index was in use until now.
    pub(crate) fn release(&mut self, id: PathId) {
        self.0.retain(|other| *other != id);
        self.0.push_back(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::MAX_PATHS;

    #[test]
    fn an_index_in_use_is_not_given_out_again() {
        let mut indices = Indices::new();
        let healthy = indices.free(PathSet::EMPTY).unwrap();
        let in_use = PathSet::EMPTY.with(healthy);
        let mut before = None;
        for _ in 0..3 * MAX_PATHS {
            let flapping = indices.free(in_use).unwrap();
            assert_ne!(flapping, healthy);
            assert_ne!(
                Some(flapping),
                before,
                "the index used last is not reused at once"
            );
            indices.release(flapping);
            before = Some(flapping);
        }
        let all = PathId::all().collect::<PathSet>();
        assert_eq!(indices.free(all), None);
        assert_eq!(indices.free(all.without(healthy)), Some(healthy));
    }
}
