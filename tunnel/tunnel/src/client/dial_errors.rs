//! The errors that keep uplinks from being connected. Each is logged once, and shown in the status
//! until it is resolved.

use hawser_units::Line;
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use tracing::warn;

/// The last error of each uplink with each server, since the uplink was last connected.
#[derive(Debug, Default)]
pub(crate) struct DialErrors(Mutex<BTreeMap<String, BTreeMap<String, Line>>>);

impl DialErrors {
    /// Records why an uplink has no connection to a server. The error is logged unless it is the
    /// same as before.
    pub(crate) fn record(&self, interface: &str, server: &str, error: &anyhow::Error) {
        let error = Line::new(&format!("{error:#}"));
        let before = self
            .lock()
            .entry(interface.to_owned())
            .or_default()
            .insert(server.to_owned(), error.clone());
        // Times and ports differ between attempts.
        let words = |text: &str| text.split(|c: char| c.is_ascii_digit()).collect::<String>();
        if before.is_none_or(|before| words(&before) != words(&error)) {
            warn!(server, interface, "{error}");
        }
    }

    /// Removes the errors of an uplink that is connected.
    pub(crate) fn clear(&self, interface: &str) {
        self.lock().remove(interface);
    }

    /// Returns the errors of an uplink, server by server.
    pub(crate) fn of(&self, interface: &str) -> Option<String> {
        let by_uplink = self.lock();
        let by_server = by_uplink.get(interface)?;
        let all: Vec<_> = by_server
            .iter()
            .map(|(server, error)| format!("{server}: {error}"))
            .collect();
        Some(all.join("; "))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<String, Line>>> {
        self.0.lock()
    }
}
