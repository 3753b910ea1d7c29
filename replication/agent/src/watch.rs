//! Watches the viewers' requests at the egress.

use anyhow::{Context, Result};
use hawser_node::WatchedRequests;
use hawser_replication_bpf::{Request, WatchStats, Watcher};
use hawser_units::FlowId;
use std::collections::BTreeMap;
use tracing::{info, warn};

/// The watch on the interfaces that face viewers.
pub(crate) struct Watch {
    watcher: Watcher,
    /// The indices of the interfaces to which the program is attached, by name.
    attached: BTreeMap<String, u32>,
    watched: WatchedRequests,
    requests: Vec<Request>,
}

impl Watch {
    /// Loads the eBPF program.
    pub(crate) fn start() -> Result<Self> {
        Ok(Watch {
            watcher: Watcher::load().context("cannot load the program that watches requests")?,
            attached: BTreeMap::new(),
            watched: WatchedRequests::default(),
            requests: Vec::new(),
        })
    }

    /// Watches the current interfaces.
    pub(crate) fn follow(
        &mut self,
        interfaces: &[String],
        number_of: impl Fn(&str) -> Option<u32>,
    ) {
        for name in interfaces {
            let (now, before) = (number_of(name), self.attached.get(name).copied());
            if now == before {
                continue;
            }
            before
                .into_iter()
                .for_each(|number| self.watcher.detach(number));
            self.attached.remove(name);
            let Some(number) = now else { continue };
            match self.watcher.attach(number) {
                Ok(()) => info!(interface = name, "watching requests"),
                // Logged once: the next attempt is made when the interface has another index.
                Err(error) => warn!(interface = name, "cannot watch requests: {error}"),
            }
            self.attached.insert(name.clone(), number);
        }
    }

    /// Watches these requests instead of the previous ones. Flows that are already watched keep
    /// their state.
    pub(crate) fn set_requests(&mut self, new: WatchedRequests) -> Result<()> {
        let (old, watcher) = (&self.watched, &self.watcher);
        for (flow, watched) in &new.flows {
            if old.flows.get(flow) != Some(watched) {
                let (min, max) = watched.1.request_bytes;
                watcher.set_flow(*flow, Some(min..=max))?;
            }
        }
        for flow in old.flows.keys() {
            if !new.flows.contains_key(flow) {
                watcher.set_flow(*flow, None)?;
            }
        }
        for (prefix, rules) in &new.selectors {
            watcher.select(*prefix, rules)?;
        }
        for prefix in old.selectors.keys() {
            if !new.selectors.contains_key(prefix) {
                watcher.select(*prefix, &[])?;
            }
        }
        self.watched = new;
        Ok(())
    }

    /// Returns the requests since the last call, in order.
    pub(crate) fn drain(&mut self) -> &[Request] {
        self.requests.clear();
        self.watcher.drain(&mut self.requests);
        &self.requests
    }

    /// Returns the number of requests of every watched flow that can be read.
    pub(crate) fn request_counts(&self) -> impl Iterator<Item = (FlowId, u64)> {
        let flows = self.watched.flows.keys();
        flows.filter_map(|flow| Some((*flow, self.watcher.stats(*flow).ok()?.requests)))
    }

    /// Returns the counters of a flow.
    pub(crate) fn stats(&self, flow: FlowId) -> WatchStats {
        // A table that cannot be read is reported elsewhere.
        self.watcher.stats(flow).unwrap_or_default()
    }
}
