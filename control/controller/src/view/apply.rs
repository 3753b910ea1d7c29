//! Application of the store's changes to the view.

use super::{FlowView, NodeView, Versioned, View};
use crate::record::{
    AliveRecord, AuditRecord, EventRecord, FlowRecord, NodeRecord, PathsRecord, TokenRecord,
    decode, key,
};
use crate::store::{Change, Revision};
use hawser_model::Name;
use hawser_model::resource::Policy;
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
    /// The keys of a node changed, or its statement about those that it shares.
    Keys(Name),
    /// The discovered paths between two nodes changed.
    Paths([Name; 2]),
    /// A node is no longer alive.
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
    /// The store was restored from a backup.
    Incarnation,
    /// The leader has other common settings than before.
    Settings,
    /// An observation waits for the leader, under this key.
    Observation(Arc<str>),
    Nothing,
}

/// The subject of an applied change, or why its record cannot be read.
type Applied = Result<Touched, serde_json::Error>;

impl View {
    /// Applies a change and returns its subject. A record that cannot be read changes nothing.
    pub(crate) fn apply(&mut self, change: Change) -> Touched {
        let (key, revision) = (change.key().clone(), change.revision());
        let value = match change {
            Change::Put(entry) => Some(entry.value),
            Change::Delete { .. } => None,
        };
        self.advance(&key, revision);
        match self.apply_value(&key, value, revision) {
            Ok(touched) => {
                self.damaged.remove(&key);
                touched
            }
            Err(error) => {
                tracing::error!(%key, "the store contains a record that cannot be read: {error}");
                self.damaged.insert(key);
                Touched::Nothing
            }
        }
    }

    /// Applies the value of a key, or its deletion.
    fn apply_value(
        &mut self,
        key: &Arc<str>,
        value: Option<Arc<[u8]>>,
        revision: Revision,
    ) -> Applied {
        let bytes = value.as_deref();
        let Some((kind, rest)) = key::split(key) else {
            return self.apply_single(key, bytes);
        };
        match kind {
            key::EVENT => self.apply_event(key, bytes, revision),
            key::AUDIT => self.apply_audit(key, bytes, revision),
            key::OBSERVATION => Ok(self.apply_observation(key.clone(), value, revision)),
            key::INNER => self.apply_inner(rest, bytes),
            key::USED => Ok(self.apply_used(key.clone(), value.is_some().then_some(revision))),
            key::NUMBER => self.apply_number(rest, bytes, revision),
            key::PATHS => self.apply_paths(rest, bytes, revision),
            key::SOURCE => self.apply_source(rest, bytes, revision),
            _ => match rest.parse::<Name>() {
                Ok(name) => self.apply_named(kind, name, bytes, revision),
                Err(_) => Ok(Touched::Nothing),
            },
        }
    }

    /// Applies a key of which there is only one.
    fn apply_single(&mut self, key: &str, value: Option<&[u8]>) -> Applied {
        match key {
            key::INCARNATION => {
                self.incarnation = value.map(decode).transpose()?;
                return Ok(Touched::Incarnation);
            }
            key::TRIMMED => self.trimmed = value.map(decode).transpose()?.unwrap_or(0),
            key::RUN_TIME => self.run_time = value.map(decode).transpose()?.unwrap_or_default(),
            key::SETTINGS => {
                self.settings = value.map(decode).transpose()?;
                return Ok(Touched::Settings);
            }
            _ => {}
        }
        Ok(Touched::Nothing)
    }

    fn advance(&mut self, key: &str, revision: Revision) {
        self.latest = self.latest.max(revision);
        // The changes that a task waits for either end with the write of their event, delete
        // events, or consist of one of these keys.
        let ends = [
            key::EVENT,
            key::HEALTH,
            key::TUNNEL,
            key::TUNNEL_CLIENT,
            key::KEYS,
            key::SOURCE,
        ];
        if ends.iter().any(|kind| key.starts_with(kind)) {
            self.complete = self.complete.max(revision);
        }
    }

    fn apply_used(&mut self, key: Arc<str>, written: Option<Revision>) -> Touched {
        match written {
            Some(revision) => self.used.insert(key, revision),
            None => self.used.remove(&key),
        };
        Touched::Nothing
    }

    fn apply_audit(&mut self, key: &Arc<str>, value: Option<&[u8]>, revision: Revision) -> Applied {
        match value.map(decode::<AuditRecord>).transpose()? {
            Some(record) => self.audit.insert(key, revision, record.entry(revision)),
            None => self.audit.remove(key),
        }
        Ok(Touched::Nothing)
    }

    fn apply_observation(
        &mut self,
        key: Arc<str>,
        value: Option<Arc<[u8]>>,
        revision: Revision,
    ) -> Touched {
        let Some(value) = value else {
            self.observations.remove(&key);
            return Touched::Nothing;
        };
        self.observations
            .insert(key.clone(), Versioned { value, revision });
        Touched::Observation(key)
    }

    fn apply_named(
        &mut self,
        kind: &str,
        name: Name,
        value: Option<&[u8]>,
        revision: Revision,
    ) -> Applied {
        Ok(match kind {
            key::TENANT => {
                set(&mut self.tenants, &name, at(value, revision)?);
                Touched::Nothing
            }
            key::TRACK => {
                set(&mut self.tracks, &name, at(value, revision)?);
                Touched::Nothing
            }
            key::TUNNEL_SETTINGS => {
                let settings = at(value, revision)?;
                let set = |node: &mut NodeView| node.tunnel_settings = settings;
                self.with_node(name, set, |_| Touched::Nothing)
            }
            key::TOKEN => self.apply_token(name, at(value, revision)?),
            key::TOKEN_USE => {
                set(&mut self.token_uses, &name, at(value, revision)?);
                Touched::Nothing
            }
            key::NODE => self.apply_node(name, at(value, revision)?),
            key::ALIVE => self.apply_alive(name, at(value, revision)?),
            key::FLOW => self.apply_flow(name, at(value, revision)?),
            key::POLICY => self.apply_policy(name, at(value, revision)?),
            _ => self.apply_statement(kind, name, value, revision)?,
        })
    }

    /// Applies a statement of a node about itself.
    fn apply_statement(
        &mut self,
        kind: &str,
        name: Name,
        value: Option<&[u8]>,
        revision: Revision,
    ) -> Applied {
        Ok(match kind {
            key::REGISTRATION => {
                let registration = at(value, revision)?;
                let set = |node: &mut NodeView| node.registration = registration;
                self.with_node(name, set, Touched::Registration)
            }
            key::SEEN => {
                let seen = at(value, revision)?;
                self.with_node(name, |node| node.seen = seen, |_| Touched::Nothing)
            }
            key::KEYS => {
                let keys = at(value, revision)?;
                self.with_node(name, |node| node.keys = keys, Touched::Keys)
            }
            key::HEALTH => {
                let health = at(value, revision)?;
                self.with_node(name, |node| node.health = health, Touched::Health)
            }
            key::TUNNEL => {
                let tunnel = value.map(decode).transpose()?;
                self.with_node(name, |node| node.tunnel = tunnel, |_| Touched::Nothing)
            }
            key::TUNNEL_CLIENT => {
                let client = value.map(decode).transpose()?;
                let set = |node: &mut NodeView| node.tunnel_client = client;
                self.with_node(name, set, |_| Touched::Nothing)
            }
            _ => Touched::Nothing,
        })
    }

    fn apply_token(&mut self, name: Name, token: Option<Versioned<TokenRecord>>) -> Touched {
        if let Some(old) = self.tokens.remove(&name) {
            for secret in old.value.secrets() {
                self.token_by_secret.remove(secret);
            }
        }
        if let Some(token) = token {
            for secret in token.value.secrets() {
                self.token_by_secret.insert(secret.clone(), name.clone());
            }
            self.tokens.insert(name, token);
        }
        Touched::Nothing
    }

    fn apply_alive(&mut self, name: Name, alive: Option<Versioned<AliveRecord>>) -> Touched {
        let touched: fn(Name) -> Touched = match alive {
            None => Touched::Lost,
            Some(_) => |_| Touched::Nothing,
        };
        self.with_node(name, |node| node.alive = alive, touched)
    }

    fn apply_policy(&mut self, name: Name, policy: Option<Versioned<Policy>>) -> Touched {
        let flow = self.flows.entry(name.clone()).or_default();
        flow.policy = policy;
        let nodes = flow.record.as_ref().map(nodes_of);
        self.remove_if_empty(&name);
        nodes.map_or(Touched::Nothing, |nodes| Touched::Policy {
            flow: name,
            nodes,
        })
    }

    fn apply_node(&mut self, name: Name, record: Option<Versioned<NodeRecord>>) -> Touched {
        let before = self.nodes.get(&name).and_then(|node| node.record.as_ref());
        let is_deletion = record.is_none();
        // A change of its description or of unused enrolment tokens does not concern the node itself.
        let is_same = before
            .zip(record.as_ref())
            .is_some_and(|(before, now)| before.value.is_same_to_itself(&now.value));
        self.with_node(
            name,
            |node| node.record = record,
            |name| match (is_deletion, is_same) {
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

    fn apply_number(&mut self, rest: &str, value: Option<&[u8]>, revision: Revision) -> Applied {
        if let Some((node, number)) = key::split_number(rest) {
            let record = at(value, revision)?;
            self.with_node(
                node,
                |node| set(&mut node.numbers, &number, record),
                |_| Touched::Nothing,
            );
        }
        Ok(Touched::Nothing)
    }

    fn apply_paths(&mut self, rest: &str, value: Option<&[u8]>, revision: Revision) -> Applied {
        let Some(pair) = key::split_pair(rest) else {
            return Ok(Touched::Nothing);
        };
        let record: Option<Versioned<PathsRecord>> = at(value, revision)?;
        let [first, second] = &pair;
        for (node, other) in [(first, second), (second, first)] {
            let record = record.clone();
            let set = |node: &mut NodeView| set(&mut node.discovered, other, record);
            self.with_node(node.clone(), set, |_| Touched::Nothing);
        }
        Ok(Touched::Paths(pair))
    }

    fn apply_source(&mut self, rest: &str, value: Option<&[u8]>, revision: Revision) -> Applied {
        if let Some((track, source)) = key::split_source(rest) {
            let record = at(value, revision)?;
            let sources = self.sources.entry(track.clone()).or_default();
            set(sources, &source, record);
            if sources.is_empty() {
                self.sources.remove(&track);
            }
        }
        Ok(Touched::Nothing)
    }

    fn apply_inner(&mut self, rest: &str, value: Option<&[u8]>) -> Applied {
        let Ok(number) = rest.parse() else {
            return Ok(Touched::Nothing);
        };
        let name = value.map(decode::<Name>).transpose()?;
        if let Some(before) = self.inner.remove(&number) {
            self.inner_of.remove(&before);
        }
        if let Some(name) = name {
            self.inner_of.insert(name.clone(), number);
            self.inner.insert(number, name);
        }
        Ok(Touched::Nothing)
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
        if let Some(nodes) = &before {
            self.unlink(&name, nodes.clone());
        }
        if let Some(nodes) = &now {
            self.link(&name, nodes.clone());
        }
        now.or(before)
            .map_or(Touched::Nothing, |nodes| Touched::Flow { name, nodes })
    }

    /// Adds a flow to its ingress and egress.
    fn link(&mut self, flow: &Name, [ingress, egress]: [Name; 2]) {
        let send = |node: &mut NodeView| _ = node.sends.insert(flow.clone());
        self.with_node(ingress, send, Touched::Node);
        let receive = |node: &mut NodeView| _ = node.receives.insert(flow.clone());
        self.with_node(egress, receive, Touched::Node);
    }

    /// Removes a flow from its ingress and egress.
    fn unlink(&mut self, flow: &Name, [ingress, egress]: [Name; 2]) {
        self.with_node(ingress, |node| _ = node.sends.remove(flow), Touched::Node);
        self.with_node(egress, |node| _ = node.receives.remove(flow), Touched::Node);
    }

    fn remove_if_empty(&mut self, name: &Name) {
        let is_empty = |flow: &FlowView| flow.record.is_none() && flow.policy.is_none();
        if self.flows.get(name).is_some_and(is_empty) {
            self.flows.remove(name);
        }
    }

    fn apply_event(&mut self, key: &Arc<str>, value: Option<&[u8]>, revision: Revision) -> Applied {
        match value.map(decode::<EventRecord>).transpose()? {
            Some(record) => self.events.insert(key, revision, record.event(revision)),
            None => self.events.remove(key),
        }
        Ok(Touched::Event)
    }
}

fn nodes_of(record: &Versioned<FlowRecord>) -> [Name; 2] {
    let flow = &record.value.flow;
    [flow.ingress.clone(), flow.egress.clone()]
}

fn at<T: DeserializeOwned>(
    value: Option<&[u8]>,
    revision: Revision,
) -> Result<Option<Versioned<T>>, serde_json::Error> {
    let value = value.map(decode).transpose()?;
    Ok(value.map(|value| Versioned { value, revision }))
}

fn set<K: Ord + Clone, T>(map: &mut BTreeMap<K, T>, key: &K, value: Option<T>) {
    match value {
        Some(value) => map.insert(key.clone(), value),
        None => map.remove(key),
    };
}
