//! Records that this version cannot read, because a later version has written them or they are
//! damaged.

use super::discovery::ordered;
use super::{NodeView, Versioned, View};
use crate::age::RunTime;
use crate::format;
use crate::record::{emit, key};
use crate::store::{Entry, Error, Revision};
use hawser_model::Name;
use hawser_model::resource::Flow;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The kinds of records that no decision depends on.
const INFORMATIVE: [&str; 5] = [
    key::EVENT,
    key::AUDIT,
    key::OBSERVATION,
    key::TOKEN_USE,
    key::TUNNEL_CLIENT,
];

/// The keys of the records that cannot be read, and whether the view has an earlier value.
#[derive(Default)]
pub(super) struct Unreadable(BTreeMap<Arc<str>, bool>);

impl Unreadable {
    pub(super) fn insert(&mut self, key: Arc<str>, is_known: bool) {
        self.0.insert(key, is_known);
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }
}

impl View {
    /// Creates the view of all of the store's entries that follows this one. Where an entry cannot
    /// be read, its earlier value stays.
    pub(crate) fn followed_by(&self, entries: Vec<Entry>) -> View {
        let mut view = View::of(entries);
        let kept = view.unreadable.0.keys();
        let kept: Vec<Entry> = kept.filter_map(|key| self.entry(key)).collect();
        for Entry {
            key,
            value,
            revision,
        } in kept
        {
            // This version has read the value before.
            if view.apply_value(&key, Some(value), revision).is_ok() {
                view.unreadable.insert(key, true);
            }
        }
        view
    }

    /// Returns the number of records that cannot be read.
    pub(crate) fn unreadable_len(&self) -> usize {
        self.unreadable.0.len()
    }

    /// Returns why the view does not show the whole store, and what to do; `None` if it does.
    pub(crate) fn fault(&self) -> Option<String> {
        if let Some(fault) = self.format.as_ref().and_then(format::fault) {
            return Some(fault);
        }
        let first = self.unreadable.0.keys().next()?;
        let count = self.unreadable.0.len();
        Some(format!(
            "{count} records of the store cannot be read by this version, the first is {first}: \
             update this controller, or repair the records"
        ))
    }

    /// Returns the first record that decisions depend on and of which no value is known; `None` if
    /// there is none.
    pub(crate) fn missing_record(&self) -> Option<&str> {
        let is_missing = |(key, is_known): &(&Arc<str>, &bool)| {
            let is_informative = INFORMATIVE.iter().any(|kind| key.starts_with(kind));
            !**is_known && !is_informative
        };
        let missing = self.unreadable.0.iter().find(is_missing);
        missing.map(|(key, _)| &**key)
    }

    /// Returns whether there is a record under the key that cannot be read, and no value of it is
    /// known.
    pub(crate) fn is_missing(&self, key: &str) -> bool {
        self.unreadable.0.get(key) == Some(&false)
    }

    /// Returns a missing record on which the policy of a flow depends; `None` if there is none.
    pub(crate) fn missing_for_flow(&self, flow: &Name) -> Option<String> {
        let mut keys = vec![key::of(key::FLOW, flow), key::of(key::POLICY, flow)];
        if let Some(record) = self.flow(flow) {
            let Flow {
                ingress, egress, ..
            } = &record.value.flow;
            keys.extend([ingress, egress].map(|node| key::of(key::REGISTRATION, node)));
        }
        keys.into_iter().find(|key| self.is_missing(key))
    }

    /// Returns a missing record that belongs to the assignment of a node, which would seem to have
    /// fewer flows; `None` if there is none.
    pub(crate) fn missing_for_node(&self, node: &Name) -> Option<String> {
        if self.unreadable.0.is_empty() {
            return None;
        }
        let mut keys = vec![key::of(key::NODE, node)];
        let numbers = key::numbers(node);
        let numbers = (self.unreadable.0.range(Arc::from(&*numbers)..))
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(&numbers));
        keys.extend(numbers.map(|key| key.to_string()));
        let known = self.nodes.get(node).into_iter();
        let known = known.flat_map(|node| node.numbers.values());
        let flows = known.filter_map(|number| number.value.flow.as_ref());
        keys.extend(flows.flat_map(|flow| [key::of(key::FLOW, flow), key::of(key::POLICY, flow)]));
        keys.extend(self.ends_of(node).flat_map(|peer| {
            let pair = ordered(node, peer);
            [key::of(key::KEYS, peer), key::paths(pair)]
        }));
        keys.into_iter().find(|key| self.is_missing(key))
    }

    /// Returns the entry of a key as the view knows it. Events, audit entries and observations are
    /// written only once, so there is no earlier value of them.
    pub(super) fn entry(&self, key: &Arc<str>) -> Option<Entry> {
        let (value, revision) = self.encoded(key)?;
        Some(Entry {
            key: key.clone(),
            value: value.into(),
            revision,
        })
    }

    fn encoded(&self, key: &str) -> Option<(Vec<u8>, Revision)> {
        let Some((kind, rest)) = key::split(key) else {
            return self.encoded_single(key);
        };
        match kind {
            key::NUMBER => {
                let (node, number) = key::split_number(rest)?;
                self.nodes.get(&node)?.numbers.get(&number).map(encoded)
            }
            key::PATHS => {
                let [first, second] = key::split_pair(rest)?;
                self.nodes.get(&first)?.discovered.get(&second).map(encoded)
            }
            key::INNER => {
                let name = self.inner.get(&rest.parse().ok()?)?;
                Some((emit(name), 0))
            }
            _ => self.encoded_named(kind, &rest.parse().ok()?),
        }
    }

    fn encoded_single(&self, key: &str) -> Option<(Vec<u8>, Revision)> {
        let value = match key {
            key::FORMAT => emit(self.format.as_ref()?),
            key::INCARNATION => emit(self.incarnation.as_ref()?),
            key::TRIMMED if self.trimmed > 0 => emit(&self.trimmed),
            key::RUN_TIME if self.run_time != RunTime::default() => emit(&self.run_time),
            key::SETTINGS => emit(self.settings.as_ref()?),
            _ => return None,
        };
        Some((value, 0))
    }

    fn encoded_named(&self, kind: &str, name: &Name) -> Option<(Vec<u8>, Revision)> {
        match kind {
            key::TENANT => self.tenants.get(name).map(encoded),
            key::TRACK => self.tracks.get(name).map(encoded),
            key::TUNNEL_TENANT => self.tunnel_settings.get(name).map(encoded),
            key::TOKEN => self.tokens.get(name).map(encoded),
            key::TOKEN_USE => self.token_uses.get(name).map(encoded),
            key::FLOW => self.flows.get(name)?.record.as_ref().map(encoded),
            key::POLICY => self.flows.get(name)?.policy.as_ref().map(encoded),
            _ => self.nodes.get(name)?.encoded(kind),
        }
    }
}

impl NodeView {
    fn encoded(&self, kind: &str) -> Option<(Vec<u8>, Revision)> {
        match kind {
            key::NODE => self.record.as_ref().map(encoded),
            key::REGISTRATION => self.registration.as_ref().map(encoded),
            key::SEEN => self.seen.as_ref().map(encoded),
            key::KEYS => self.keys.as_ref().map(encoded),
            key::HEALTH => self.health.as_ref().map(encoded),
            key::ALIVE => self.alive.as_ref().map(encoded),
            key::TUNNEL_NODE => self.tunnel_settings.as_ref().map(encoded),
            key::TUNNEL_CLIENT => Some((emit(self.tunnel_client.as_ref()?), 0)),
            key::TUNNEL => Some((emit(self.tunnel.as_ref()?), 0)),
            _ => None,
        }
    }
}

fn encoded<T: Serialize>(record: &Versioned<T>) -> (Vec<u8>, Revision) {
    (emit(&record.value), record.revision)
}

/// Returns the error of a request that depends on a record that this version cannot read.
pub(crate) fn unreadable(key: &str) -> Error {
    Error::Unavailable(format!(
        "the record {key} cannot be read by this version; ask another controller, or update this one"
    ))
}
