use crate::echo::Echoes;
use crate::node::Node;
use hawser_io::interface;
use hawser_node::PathState;
use hawser_units::{Instant, PathId};
use std::collections::BTreeSet;
use tracing::warn;

/// The health of the paths.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// Interfaces that are up.
    running: BTreeSet<String>,
}

impl Health {
    /// Updates the list of interfaces that are up.
    pub(super) fn update(&mut self) {
        match interface::running() {
            Ok(running) => self.running = running,
            Err(error) => warn!("cannot read the state of the interfaces: {error}"),
        }
    }

    /// Returns the states of all paths.
    pub(super) fn states(&self, node: &Node, echoes: &Echoes, now: Instant) -> Vec<PathState> {
        let state = |path: &PathId| PathState {
            path: *path,
            up: self.is_up(node, *path),
            rtt_us: round_trip_us(echoes, *path, now),
        };
        node.config().paths.keys().map(state).collect()
    }

    /// Returns whether a path's interface is up and its next hop known.
    fn is_up(&self, node: &Node, path: PathId) -> bool {
        let interface = &node.config().paths[&path].interface;
        self.running.contains(interface) && node.is_up(path)
    }
}

/// Returns the smoothed round-trip time of a path, microseconds.
fn round_trip_us(echoes: &Echoes, path: PathId, now: Instant) -> Option<u32> {
    echoes
        .round_trip(path, now)
        .map(|rtt| u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX))
}
