use hawser_units::PathId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;

/// The free path indices, least recently used first, so that packets still in flight on a closed
/// path are not attributed to the path that reuses its index.
#[derive(Debug, Clone)]
pub(crate) struct Indices(Arc<Mutex<VecDeque<PathId>>>);

/// The index of a path, which is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) id: PathId,
    of: Indices,
}

impl Indices {
    /// Returns all indices but `first`, which the session's first path has.
    pub(crate) fn new(first: PathId) -> Indices {
        Indices(Arc::new(Mutex::new(
            PathId::all().filter(|id| *id != first).collect(),
        )))
    }

    /// Returns the index of the session's first path.
    pub(crate) fn first(&self, first: PathId) -> Arc<Index> {
        Arc::new(Index {
            id: first,
            of: self.clone(),
        })
    }

    /// Takes a free index, if any.
    pub(crate) fn take(&self) -> Option<Arc<Index>> {
        let id = self.lock().pop_front()?;
        Some(Arc::new(Index {
            id,
            of: self.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<PathId>> {
        self.0.lock()
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
                "the index used last is not reused at once"
            );
            before = Some(flapping.id);
        }
        let all: Vec<_> = std::iter::from_fn(|| indices.take()).collect();
        assert_eq!(all.len(), MAX_PATHS - 1);
        drop(healthy);
        assert_eq!(indices.take().unwrap().id, first);
    }
}
