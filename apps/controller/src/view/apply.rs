//! Application of the store's changes to the view.

use super::{FlowView, NodeView, Versioned, View};
use crate::record::{
    AliveRecord, AuditRecord, EventRecord, FlowRecord, NodeRecord, TokenRecord, key, parse,
};
use crate::store::{Change, Revision};
use hawser_control::Name;
use hawser_control::resource::Event;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The subject of a change, for the tasks that react to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Touched {
    /// The certificates of a node changed.
    Node(Name),
    /// A node was deleted. There may already be another node of that name.
    Deleted(Name),
    /// The registration of a node changed.
    Registration(Name),
    /// A node lost its lease.
    Lost(Name),
    Health(Name),
    Flow {
        name: Name,
        nodes: [Name; 2],
    },
    /// The egress of a flow has become ready: it deduplicates its copies.
    Received(Name),
    Policy {
        flow: Name,
        nodes: [Name; 2],
    },
    Event,
    /// An observation waits for the leader, under this key.
    Observation(Arc<str>),
    Nothing,
}

impl View {
    /// Applies a change and returns its subject.
    pub(crate) fn apply(&mut self, change: Change) -> Touched {
        let (key, revision) = (change.key().clone(), change.revision());
        let value = match change {
            Change::Put(entry) => Some(entry.value),
            Change::Delete { .. } => None,
        };
        self.latest = self.latest.max(revision);
        // The changes that a task waits for either end with the write of their event, delete
        // events, or consist of one of these keys.
        if [key::EVENT, key::HEALTH, key::TUNNEL]
            .iter()
            .any(|kind| key.starts_with(kind))
        {
            self.complete = self.complete.max(revision);
        }
        let Some(slash) = key.find('/') else {
            return Touched::Nothing;
        };
        let (kind, rest) = key.split_at(slash + 1);
        match kind {
            key::EVENT => self.apply_event(&key, value.as_deref(), revision),
            key::AUDIT => {
                match value.and_then(|value| parse::<AuditRecord>(&key, &value)) {
                    Some(record) => self.audit.insert(&key, revision, record.entry(revision)),
                    None => self.audit.remove(&key),
                }
                Touched::Nothing
            }
            key::OBSERVATION => {
                let Some(value) = value else {
                    self.observations.remove(&key);
                    return Touched::Nothing;
                };
                self.observations
                    .insert(key.clone(), Versioned { value, revision });
                Touched::Observation(key)
            }
            key::INNER => self.apply_inner(&key, rest, value.as_deref()),
            key::USED => {
                match value {
                    Some(_) => self.used.insert(key, revision),
                    None => self.used.remove(&key),
                };
                Touched::Nothing
            }
            key::NUMBER => self.apply_number(&key, rest, value.as_deref(), revision),
            _ => {
                let Ok(name) = rest.parse::<Name>() else {
                    return Touched::Nothing;
                };
                self.apply_named(kind, &key, name, value.as_deref(), revision)
            }
        }
    }

    fn apply_named(
        &mut self,
        kind: &str,
        key: &str,
        name: Name,
        value: Option<&[u8]>,
        revision: Revision,
    ) -> Touched {
        match kind {
            key::TENANT => {
                set(&mut self.tenants, &name, at(key, value, revision));
                Touched::Nothing
            }
            key::TOKEN => {
                if let Some(old) = self.tokens.remove(&name) {
                    self.token_by_secret.remove(&old.value.secret_sha256);
                }
                if let Some(token) = at::<TokenRecord>(key, value, revision) {
                    self.token_by_secret
                        .insert(token.value.secret_sha256.clone(), name.clone());
                    self.tokens.insert(name, token);
                }
                Touched::Nothing
            }
            key::NODE => self.apply_node(name, at(key, value, revision)),
            key::REGISTRATION => self.with_node(
                name,
                |node| node.registration = at(key, value, revision),
                Touched::Registration,
            ),
            key::SEEN => self.with_node(
                name,
                |node| node.seen = at(key, value, revision),
                |_| Touched::Nothing,
            ),
            key::HEALTH => self.with_node(
                name,
                |node| node.health = at(key, value, revision),
                Touched::Health,
            ),
            key::TUNNEL => {
                let tunnel = value.and_then(|value| parse(key, value));
                self.with_node(name, |node| node.tunnel = tunnel, |_| Touched::Nothing)
            }
            key::ALIVE => {
                let alive: Option<AliveRecord> = value.and_then(|value| parse(key, value));
                let is_lost = Option::is_none(&alive);
                self.with_node(
                    name,
                    |node| node.alive = alive,
                    |name| {
                        if is_lost {
                            Touched::Lost(name)
                        } else {
                            Touched::Nothing
                        }
                    },
                )
            }
            key::FLOW => self.apply_flow(name, at(key, value, revision)),
            key::POLICY => {
                let flow = self.flows.entry(name.clone()).or_default();
                flow.policy = at(key, value, revision);
                let nodes = flow.record.as_ref().map(nodes_of);
                self.remove_if_empty(&name);
                nodes.map_or(Touched::Nothing, |nodes| Touched::Policy {
                    flow: name,
                    nodes,
                })
            }
            _ => Touched::Nothing,
        }
    }

    fn apply_node(&mut self, name: Name, record: Option<Versioned<NodeRecord>>) -> Touched {
        let before = self.nodes.get(&name).and_then(|node| node.record.as_ref());
        let is_deletion = record.is_none();
        // A change of unused enrolment tokens does not concern the node itself.
        let only_tokens = before
            .zip(record.as_ref())
            .is_some_and(|(before, now)| before.value.is_same_except_tokens(&now.value));
        self.with_node(
            name,
            |node| node.record = record,
            |name| match (is_deletion, only_tokens) {
                (true, _) => Touched::Deleted(name),
                (_, true) => Touched::Nothing,
                _ => Touched::Node(name),
            },
        )
    }

    fn with_node(
        &mut self,
        name: Name,
        set: impl FnOnce(&mut NodeView),
        touched: impl FnOnce(Name) -> Touched,
    ) -> Touched {
        let node = self.nodes.entry(name.clone()).or_default();
        set(node);
        if node.is_empty() {
            self.nodes.remove(&name);
        }
        touched(name)
    }

    fn apply_number(
        &mut self,
        key: &str,
        rest: &str,
        value: Option<&[u8]>,
        revision: Revision,
    ) -> Touched {
        let parts = rest.split_once('/');
        let parsed = parts
            .and_then(|(node, number)| Some((node.parse::<Name>().ok()?, number.parse().ok()?)));
        if let Some((node, number)) = parsed {
            let record = at(key, value, revision);
            self.with_node(
                node,
                |node| set(&mut node.numbers, &number, record),
                |_| Touched::Nothing,
            );
        }
        Touched::Nothing
    }

    fn apply_inner(&mut self, key: &str, rest: &str, value: Option<&[u8]>) -> Touched {
        let Ok(number) = rest.parse() else {
            return Touched::Nothing;
        };
        if let Some(before) = self.inner.remove(&number) {
            self.inner_of.remove(&before);
        }
        if let Some(name) = value.and_then(|value| parse::<Name>(key, value)) {
            self.inner_of.insert(name.clone(), number);
            self.inner.insert(number, name);
        }
        Touched::Nothing
    }

    fn apply_flow(&mut self, name: Name, record: Option<Versioned<FlowRecord>>) -> Touched {
        let flow = self.flows.entry(name.clone()).or_default();
        let before = std::mem::replace(&mut flow.record, record);
        if let (Some(before), Some(now)) = (&before, &flow.record)
            && now.value
                == (FlowRecord {
                    received: true,
                    changed_in: now.value.changed_in,
                    ..before.value.clone()
                })
        {
            return Touched::Received(name);
        }
        let now = flow.record.as_ref().map(nodes_of);
        let before = before.as_ref().map(nodes_of);
        self.remove_if_empty(&name);
        if let Some([ingress, egress]) = &before {
            self.with_node(
                ingress.clone(),
                |node| _ = node.sends.remove(&name),
                Touched::Node,
            );
            self.with_node(
                egress.clone(),
                |node| _ = node.receives.remove(&name),
                Touched::Node,
            );
        }
        if let Some([ingress, egress]) = &now {
            self.with_node(
                ingress.clone(),
                |node| _ = node.sends.insert(name.clone()),
                Touched::Node,
            );
            self.with_node(
                egress.clone(),
                |node| _ = node.receives.insert(name.clone()),
                Touched::Node,
            );
        }
        now.or(before)
            .map_or(Touched::Nothing, |nodes| Touched::Flow { name, nodes })
    }

    fn remove_if_empty(&mut self, name: &Name) {
        let is_empty = |flow: &FlowView| flow.record.is_none() && flow.policy.is_none();
        if self.flows.get(name).is_some_and(is_empty) {
            self.flows.remove(name);
        }
    }

    fn apply_event(&mut self, key: &Arc<str>, value: Option<&[u8]>, revision: Revision) -> Touched {
        match value {
            Some(value) => {
                let Some(record) = parse::<EventRecord>(key, value) else {
                    return Touched::Nothing;
                };
                let EventRecord {
                    at_unix_ms,
                    tenant,
                    node,
                    flow,
                    kind,
                    message,
                } = record;
                let event = Event {
                    number: revision,
                    at_unix_ms,
                    tenant,
                    node,
                    flow,
                    kind,
                    message,
                };
                self.events.insert(key, revision, event);
            }
            None => self.events.remove(key),
        }
        Touched::Event
    }
}

fn nodes_of(record: &Versioned<FlowRecord>) -> [Name; 2] {
    let flow = &record.value.flow;
    [flow.ingress.clone(), flow.egress.clone()]
}

fn at<T: DeserializeOwned>(
    key: &str,
    value: Option<&[u8]>,
    revision: Revision,
) -> Option<Versioned<T>> {
    Some(Versioned {
        value: parse(key, value?)?,
        revision,
    })
}

fn set<K: Ord + Clone, T>(map: &mut BTreeMap<K, T>, key: &K, value: Option<T>) {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    };
}
