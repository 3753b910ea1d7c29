//! What keeps uplinks from being connected: said once, and shown as long as it is so.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::warn;

/// The last failure of each uplink with each server, since the uplink was connected last.
#[derive(Debug, Default)]
pub(crate) struct Complaints(Mutex<BTreeMap<String, BTreeMap<String, String>>>);

impl Complaints {
    /// Notes why an uplink has no connection to a server. It is logged unless it was so before.
    pub(crate) fn note(&self, interface: &str, server: &str, error: &anyhow::Error) {
        let error = format!("{error:#}");
        let before = self
            .lock()
            .entry(interface.to_owned())
            .or_default()
            .insert(server.to_owned(), error.clone());
        // Times and ports differ from one attempt to the next.
        let words = |text: &str| text.split(|c: char| c.is_ascii_digit()).collect::<String>();
        if before.is_none_or(|before| words(&before) != words(&error)) {
            warn!(server, interface, "{error}");
        }
    }

    /// The uplink is connected.
    pub(crate) fn settle(&self, interface: &str) {
        self.lock().remove(interface);
    }

    /// What is known of the uplink, server by server.
    pub(crate) fn of(&self, interface: &str) -> Option<String> {
        let by_uplink = self.lock();
        let by_server = by_uplink.get(interface)?;
        let all: Vec<_> = by_server
            .iter()
            .map(|(server, error)| format!("{server}: {error}"))
            .collect();
        Some(all.join("; "))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
