use hawser_units::PathId;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which indices of paths are free, those first that were not used for the longest time: what is still under way for a
/// path that has ended is not taken for its successor's.
#[derive(Debug, Clone)]
pub(crate) struct Indices(Arc<Mutex<VecDeque<PathId>>>);

/// A path's index, which is free again when nobody has this any more.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) id: PathId,
    of: Indices,
}

impl Indices {
    /// Those of a session whose first path has the index `first`.
    pub(crate) fn new(first: PathId) -> Indices {
        Indices(Arc::new(Mutex::new(
            PathId::all().filter(|id| *id != first).collect(),
        )))
    }

    /// The index of the session's first path.
    pub(crate) fn first(&self, first: PathId) -> Arc<Index> {
        Arc::new(Index {
            id: first,
            of: self.clone(),
        })
    }

    /// A free one, if there is one.
    pub(crate) fn take(&self) -> Option<Arc<Index>> {
        let id = self.lock().pop_front()?;
        Some(Arc::new(Index {
            id,
            of: self.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<PathId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        self.of.lock().push_back(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::MAX_PATHS;

    #[test]
    fn an_index_in_use_is_not_given_out_again() {
        let first = PathId::all().next().unwrap();
        let indices = Indices::new(first);
        let healthy = indices.first(first);
        let mut before = None;
        for _ in 0..3 * MAX_PATHS {
            let flapping = indices.take().unwrap();
            assert_ne!(flapping.id, healthy.id);
            assert_ne!(
                Some(flapping.id),
                before,
                "the one that has just ended rests"
            );
            before = Some(flapping.id);
        }
        let all: Vec<_> = std::iter::from_fn(|| indices.take()).collect();
        assert_eq!(all.len(), MAX_PATHS - 1);
        drop(healthy);
        assert_eq!(indices.take().unwrap().id, first);
    }
}
