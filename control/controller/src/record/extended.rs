//! Fields that this version does not know.

use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut};

/// The fields of a record that a later version has added.
pub(crate) type Later = serde_json::Map<String, serde_json::Value>;

/// A value in a record, with the fields that a later version has added to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extended<T> {
    #[serde(flatten)]
    known: T,
    #[serde(flatten)]
    later: Later,
}

impl<T> Extended<T> {
    /// Returns the value with another part that this version knows.
    pub(crate) fn with_known(&self, known: T) -> Self {
        let later = self.later.clone();
        Extended { known, later }
    }

    /// Returns the part that this version knows.
    pub(crate) fn into_known(self) -> T {
        self.known
    }
}

impl<T> From<T> for Extended<T> {
    fn from(known: T) -> Self {
        let later = Later::new();
        Extended { known, later }
    }
}

impl<T> Deref for Extended<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.known
    }
}

impl<T> DerefMut for Extended<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.known
    }
}
