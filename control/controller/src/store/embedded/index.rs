//! The store's content in memory, and the latest changes to it.

use crate::store::{Change, Entry, LeaseId, Page, Revision};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

/// The number of changes that are retained for watchers. A watcher that is further behind lists
/// again.
const HISTORY: usize = 1 << 16;

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) value: Arc<[u8]>,
    pub(super) revision: Revision,
    pub(super) lease: Option<LeaseId>,
}

pub(super) struct Index {
    entries: BTreeMap<Arc<str>, Stored>,
    revision: Revision,
    history: VecDeque<Change>,
    /// The changes up to this revision are no longer in the history.
    forgotten: Revision,
}

impl Index {
    pub(super) fn new(entries: BTreeMap<Arc<str>, Stored>, revision: Revision) -> Index {
        Index {
            entries,
            revision,
            history: VecDeque::new(),
            forgotten: revision,
        }
    }

    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    pub(super) fn stored(&self, key: &str) -> Option<(&Arc<str>, &Stored)> {
        self.entries.get_key_value(key)
    }

    /// Returns the entries that are also in the file.
    pub(super) fn durable(&self) -> impl Iterator<Item = (&Arc<str>, &Stored)> {
        self.entries
            .iter()
            .filter(|(_, stored)| stored.lease.is_none())
    }

    pub(super) fn get(&self, key: &str) -> Option<Entry> {
        self.entries
            .get_key_value(key)
            .map(|(key, stored)| entry(key, stored))
    }

    pub(super) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Page {
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut matching = self
            .entries
            .range::<str, _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, stored)| entry(key, stored));
        let entries: Vec<Entry> = matching.by_ref().take(limit).collect();
        Page {
            entries,
            more: matching.next().is_some(),
        }
    }

    pub(super) fn list_all(&self, prefix: &str) -> (Vec<Entry>, Revision) {
        (self.list(prefix, None, usize::MAX).entries, self.revision)
    }

    /// Returns about `max` changes after a revision, and the revision that they reach; `None` if
    /// some of them are no longer retained. The changes of one revision are never split.
    pub(super) fn changes(
        &self,
        prefix: &str,
        after: Revision,
        max: usize,
    ) -> Option<(Vec<Change>, Revision)> {
        if after < self.forgotten {
            return None;
        }
        let first = self
            .history
            .partition_point(|change| change.revision() <= after);
        let (mut found, mut looked_at, mut reached) = (Vec::new(), 0, after);
        for change in self.history.range(first..) {
            if looked_at >= max && change.revision() > reached {
                return Some((found, reached));
            }
            looked_at += 1;
            reached = change.revision();
            if change.key().starts_with(prefix) {
                found.push(change.clone());
            }
        }
        Some((found, reached))
    }

    /// Applies committed changes, in order.
    pub(super) fn apply(&mut self, changes: impl IntoIterator<Item = (Change, Option<LeaseId>)>) {
        for (change, lease) in changes {
            self.revision = change.revision();
            self.apply_to_entries(&change, lease);
            self.history.push_back(change);
        }
        while self.history.len() > HISTORY {
            let oldest = self.history.pop_front().map(|change| change.revision());
            self.forgotten = oldest.unwrap_or(self.forgotten);
        }
    }

    fn apply_to_entries(&mut self, change: &Change, lease: Option<LeaseId>) {
        match change {
            Change::Put(entry) => {
                let stored = Stored {
                    value: entry.value.clone(),
                    revision: entry.revision,
                    lease,
                };
                self.entries.insert(entry.key.clone(), stored);
            }
            Change::Delete { key, .. } => {
                self.entries.remove(key);
            }
        }
    }
}

fn entry(key: &Arc<str>, stored: &Stored) -> Entry {
    Entry {
        key: key.clone(),
        value: stored.value.clone(),
        revision: stored.revision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, revision: Revision) -> (Change, Option<LeaseId>) {
        (
            Change::Put(Entry {
                key: key.into(),
                value: [1].into(),
                revision,
            }),
            None,
        )
    }

    #[test]
    fn a_watcher_behind_the_history_is_detected() {
        let mut index = Index::new(BTreeMap::new(), 0);
        index.apply((1..=HISTORY as u64 + 1).map(|revision| put("a", revision)));

        assert_eq!(index.changes("a", 0, 10), None);
        let (changes, reached) = index.changes("a", 1, 10).expect("known");
        assert_eq!((changes.len(), reached), (10, 11));
    }

    #[test]
    fn a_revision_is_delivered_whole() {
        let mut index = Index::new(BTreeMap::new(), 0);
        index.apply([
            put("a", 1),
            put("b", 2),
            put("c", 2),
            put("d", 2),
            put("e", 3),
        ]);

        let (changes, reached) = index.changes("", 0, 2).expect("known");
        assert_eq!((changes.len(), reached), (4, 2));
    }

    #[test]
    fn a_list_goes_on_after_a_key_that_is_gone() {
        let mut index = Index::new(BTreeMap::new(), 0);
        index.apply([put("a/1", 1), put("a/3", 2), put("b/1", 3)]);

        let page = index.list("a/", Some("a/2"), 10);
        assert_eq!(
            page.entries.iter().map(|e| &*e.key).collect::<Vec<_>>(),
            ["a/3"]
        );
        assert!(!page.more);
        assert!(index.list("a/", None, 1).more);
    }
}
