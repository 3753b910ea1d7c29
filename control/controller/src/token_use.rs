//! The times of the last uses of operators' tokens.

use crate::limit::Checked;
use crate::store::Revision;
use hawser_model::Name;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The time between two writes of a token's last use, milliseconds: an hour, so that requests cost
/// no writes.
const WRITE_EVERY_MS: u64 = 3600 * 1000;

/// The token of a request and the revision that wrote it, once they are known. Its use is stored when the
/// request has succeeded, so that a refused one costs no write.
#[derive(Clone, Default)]
pub(crate) struct TokenUse(Arc<OnceLock<(Checked, Name, Revision)>>);

impl TokenUse {
    pub(crate) fn set(&self, checked: &Checked, token: &Name, revision: Revision) {
        // A request has one token.
        let _ = self.0.set((checked.clone(), token.clone(), revision));
    }

    pub(crate) fn get(&self) -> Option<&(Checked, Name, Revision)> {
        self.0.get()
    }
}

/// The times of the last writes by this controller, milliseconds since 1970.
#[derive(Default)]
pub(crate) struct TokenUses(Mutex<HashMap<Name, u64>>);

impl TokenUses {
    /// Returns whether a use is to be written, and takes it for written if so.
    pub(crate) fn begin_write(&self, token: &Name, known_unix_ms: u64, now_unix_ms: u64) -> bool {
        let mut written = self.0.lock();
        let last = written.get(token).copied().unwrap_or(0).max(known_unix_ms);
        let is_due = last.saturating_add(WRITE_EVERY_MS) <= now_unix_ms;
        if is_due {
            written.insert(token.clone(), now_unix_ms);
        }
        is_due
    }

    pub(crate) fn forget(&self, token: &Name) {
        self.0.lock().remove(token);
    }
}
