//! Events or audit entries, in the order in which they were written.

use crate::store::Revision;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeBounds;
use std::sync::Arc;

/// Entries by the revision that wrote each.
pub(crate) struct Journal<T> {
    entries: BTreeMap<Revision, (Arc<str>, T)>,
    /// The number of the entry under each key.
    numbers: HashMap<Arc<str>, Revision>,
}

impl<T> Default for Journal<T> {
    fn default() -> Self {
        Journal {
            entries: BTreeMap::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T> Journal<T> {
    pub(crate) fn insert(&mut self, key: &Arc<str>, number: Revision, entry: T) {
        self.remove(key);
        self.numbers.insert(key.clone(), number);
        self.entries.insert(number, (key.clone(), entry));
    }

    pub(crate) fn remove(&mut self, key: &str) {
        if let Some(number) = self.numbers.remove(key) {
            self.entries.remove(&number);
        }
    }

    /// Returns the number of the entry under a key.
    pub(crate) fn number(&self, key: &str) -> Option<Revision> {
        self.numbers.get(key).copied()
    }

    /// Returns the number of the newest entry; 0 if there is none.
    pub(crate) fn newest(&self) -> Revision {
        self.entries
            .last_key_value()
            .map_or(0, |(number, _)| *number)
    }

    /// Returns entries with their numbers, oldest first.
    pub(crate) fn range(
        &self,
        numbers: impl RangeBounds<Revision>,
    ) -> impl Iterator<Item = (Revision, &T)> {
        self.entries
            .range(numbers)
            .map(|(number, (_, entry))| (*number, entry))
    }

    /// Returns entries with their keys, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&Arc<str>, &T)> {
        self.entries.values().map(|(key, entry)| (key, entry))
    }
}
