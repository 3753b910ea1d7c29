//! The store's content in memory: parsed, and indexed by node.
//!
//! The view follows the store, so it may lag behind. A writer therefore passes the revisions that
//! it has read, and the store rejects writes that are based on outdated ones.

mod apply;
mod discovery;
mod journal;
#[cfg(test)]
mod stored;

pub(crate) use apply::Touched;
pub(crate) use journal::Journal;

use crate::age::RunTime;
use crate::authority::Presented;
use crate::record::{
    AliveRecord, FlowRecord, HealthRecord, Issued, KeysRecord, NodeRecord, NumberRecord,
    PathsRecord, SeenRecord, SourceRecord, TokenRecord, TokenUseRecord, TrackRecord,
    TunnelClientRecord, TunnelRecord, key,
};
use crate::store::{Change, Entry, Revision};
use hawser_model::Name;
use hawser_model::audit::AuditEntry;
use hawser_model::decide::Situation;
use hawser_model::discovery::Discovery;
use hawser_model::node::{Assignment, Receive, Registration, Send};
use hawser_model::pair::{AssignedKeys, Peer};
use hawser_model::resource::{Event, Flow, Node, Path, PathHealth, Policy, Tenant};
use hawser_model::track::{Track, TrackSource};
use hawser_model::tunnel::TunnelSettings;
use hawser_units::PathSet;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// The kinds of records that no decision depends on. One that is damaged is counted, and missing in lists.
pub(crate) const INFORMATIVE: [&str; 5] = [
    key::EVENT,
    key::AUDIT,
    key::OBSERVATION,
    key::TOKEN_USE,
    key::TUNNEL_CLIENT,
];

/// A value and the revision in which it was written.
#[derive(Debug, Clone)]
pub(crate) struct Versioned<T> {
    pub(crate) value: T,
    pub(crate) revision: Revision,
}

#[derive(Default)]
pub(crate) struct View {
    pub(crate) tenants: BTreeMap<Name, Versioned<Tenant>>,
    pub(crate) nodes: BTreeMap<Name, NodeView>,
    pub(crate) flows: BTreeMap<Name, FlowView>,
    pub(crate) tracks: BTreeMap<Name, Versioned<TrackRecord>>,
    /// Those who serve a track, by its name.
    pub(crate) sources: BTreeMap<Name, BTreeMap<key::Server, Versioned<SourceRecord>>>,
    pub(crate) tokens: BTreeMap<Name, Versioned<TokenRecord>>,
    pub(crate) events: Journal<Event>,
    pub(crate) audit: Journal<AuditEntry>,
    /// Observations of nodes to controllers that do not lead, by key.
    pub(crate) observations: BTreeMap<Arc<str>, Versioned<Arc<[u8]>>>,
    /// The owners of the inner addresses of tunnels, by the offset of the address within each
    /// prefix, and the reverse.
    inner: BTreeMap<u64, Name>,
    inner_of: HashMap<Name, u64>,
    token_by_secret: HashMap<String, Name>,
    token_uses: BTreeMap<Name, Versioned<TokenUseRecord>>,
    /// The revision of the last reference to each tenant and node, by `used` key.
    used: HashMap<Arc<str>, Revision>,
    /// The keys of the records that cannot be read.
    damaged: BTreeSet<Arc<str>>,
    /// Events up to this number may have been removed because there were too many.
    pub(crate) trimmed: Revision,
    /// The time for which leaders have run, from which ages are taken.
    pub(crate) run_time: RunTime,
    /// The common settings of the leader.
    pub(crate) settings: Option<Map<String, Value>>,
    /// The incarnation of the store; `None` before it is known.
    pub(crate) incarnation: Option<String>,
    /// Everything written up to this revision is in the view, and possibly some later writes.
    pub(crate) complete: Revision,
    /// The revision of the last change.
    latest: Revision,
}

/// A node and its data. An entry also exists while only parts of the node are known.
#[derive(Default)]
pub(crate) struct NodeView {
    pub(crate) record: Option<Versioned<NodeRecord>>,
    pub(crate) registration: Option<Versioned<Registration>>,
    pub(crate) alive: Option<Versioned<AliveRecord>>,
    pub(crate) seen: Option<Versioned<SeenRecord>>,
    pub(crate) health: Option<Versioned<HealthRecord>>,
    pub(crate) keys: Option<Versioned<KeysRecord>>,
    /// The discovered paths to other nodes.
    pub(crate) discovered: BTreeMap<Name, Versioned<PathsRecord>>,
    /// The node's last report as a tunnel server.
    pub(crate) tunnel: Option<TunnelRecord>,
    /// The node's last statement as a tunnel client.
    pub(crate) tunnel_client: Option<TunnelClientRecord>,
    /// The settings of the node as a tunnel client.
    pub(crate) tunnel_settings: Option<Versioned<TunnelSettings>>,
    pub(crate) numbers: BTreeMap<u16, Versioned<NumberRecord>>,
    /// The flows that the node replicates.
    pub(crate) sends: BTreeSet<Name>,
    /// The flows that the node deduplicates.
    pub(crate) receives: BTreeSet<Name>,
}

impl NodeView {
    /// Returns whether the node was alive and is not any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.record.is_some() && self.alive.is_none() && self.seen.is_some()
    }
}

#[derive(Default)]
pub(crate) struct FlowView {
    pub(crate) record: Option<Versioned<FlowRecord>>,
    pub(crate) policy: Option<Versioned<Policy>>,
}

impl View {
    /// Creates a view of all of the store's entries.
    pub(crate) fn of(entries: Vec<Entry>) -> View {
        let mut view = View::default();
        let revision = entries
            .iter()
            .map(|entry| entry.revision)
            .max()
            .unwrap_or(0);
        for entry in entries {
            view.apply(Change::Put(entry));
        }
        (view.complete, view.latest) = (revision, revision);
        view
    }

    /// Returns why the view does not show all that decisions depend on, and what to do; `None` if it does.
    pub(crate) fn fault(&self) -> Option<String> {
        let counts = |key: &&Arc<str>| {
            let kind = key::split(key).map(|(kind, _)| kind);
            !kind.is_some_and(|kind| INFORMATIVE.contains(&kind))
        };
        let first = self.damaged.iter().find(counts)?;
        Some(format!(
            "the record {first} of the store cannot be read: restore a backup, or repair the record"
        ))
    }

    /// Returns the number of records that cannot be read.
    pub(crate) fn damaged_len(&self) -> usize {
        self.damaged.len()
    }

    /// Returns the names of a tenant's nodes.
    pub(crate) fn nodes_of(&self, tenant: &Name) -> impl Iterator<Item = &Name> {
        self.nodes.iter().filter_map(move |(name, node)| {
            let record = node.record.as_ref()?;
            (record.value.tenant == *tenant).then_some(name)
        })
    }

    /// Returns the token with that secret. It may have expired.
    pub(crate) fn token(&self, secret_sha256: &str) -> Option<&Versioned<TokenRecord>> {
        let name = self.token_by_secret.get(secret_sha256)?;
        let token = self.tokens.get(name)?;
        token.value.has_secret(secret_sha256).then_some(token)
    }

    /// Returns when a token was last used, milliseconds since 1970.
    pub(crate) fn token_used_unix_ms(&self, name: &Name) -> Option<u64> {
        let used = self.token_uses.get(name)?;
        Some(used.value.at_unix_ms)
    }

    /// Returns the revision of the last reference to a tenant or a node, by its `used` key.
    pub(crate) fn used(&self, key: &str) -> Option<Revision> {
        self.used.get(key).copied()
    }

    /// Returns a node, unless only parts of it are known.
    pub(crate) fn node(&self, name: &Name) -> Option<(&NodeView, &Versioned<NodeRecord>)> {
        let node = self.nodes.get(name)?;
        Some((node, node.record.as_ref()?))
    }

    /// Returns the node whose certificate was presented, and the certificate, unless it was revoked
    /// or replaced.
    pub(crate) fn accepted(
        &self,
        presented: &Presented,
    ) -> Option<(&Versioned<NodeRecord>, &Issued)> {
        let (_, record) = self.node(&presented.node)?;
        Some((record, record.value.certificate(&presented.serial)?))
    }

    /// Returns the nodes of this view that a later one does not contain, or contains as a different
    /// node of the same name: changed, and without a certificate in common.
    pub(crate) fn nodes_gone_in(&self, later: &View) -> impl Iterator<Item = Name> {
        let stays = move |name: &Name, before: &Versioned<NodeRecord>| {
            later.node(name).is_some_and(|(_, now)| {
                let mut certificates = before.value.certificates.iter();
                now.revision == before.revision
                    || certificates.any(|issued| now.value.certificate(&issued.serial).is_some())
            })
        };
        let before = self
            .nodes
            .iter()
            .filter_map(|(name, node)| Some((name, node.record.as_ref()?)));
        before
            .filter(move |(name, record)| !stays(name, record))
            .map(|(name, _)| name.clone())
    }

    /// Returns a flow.
    pub(crate) fn flow(&self, name: &Name) -> Option<&Versioned<FlowRecord>> {
        self.flows.get(name)?.record.as_ref()
    }

    /// Returns the tracks that a node may publish, watch or relay.
    pub(crate) fn tracks_of<'a>(
        &'a self,
        node: &'a Name,
    ) -> impl Iterator<Item = (&'a Name, &'a Versioned<TrackRecord>)> {
        let is_member = |record: &Versioned<TrackRecord>| record.value.track.role(node).is_some();
        self.tracks
            .iter()
            .filter(move |(_, record)| is_member(record))
    }

    /// Returns those who serve a track and may.
    pub(crate) fn sources_of<'a>(
        &'a self,
        track: &'a Track,
    ) -> impl Iterator<Item = TrackSource> + 'a {
        let sources = self.sources.get(&track.name).into_iter().flatten();
        let may = |node: &Name, role| track.role(node).is_some_and(|of| of.serves_as(role));
        sources
            .filter(move |((node, role, _), _)| may(node, *role))
            .map(|((node, role, _), record)| TrackSource {
                node: node.clone(),
                role: *role,
                serving: record.value.serving,
            })
    }

    /// Returns the policy in force for a flow.
    pub(crate) fn policy(&self, flow: &Name) -> Option<&Versioned<Policy>> {
        let flow = self.flows.get(flow)?;
        flow.policy.as_ref().filter(|_| flow.record.is_some())
    }

    /// Returns what is known for a decision about a flow.
    pub(crate) fn situation<'a>(&'a self, flow: &'a Flow) -> Situation<'a> {
        let health = self
            .nodes
            .get(&flow.ingress)
            .and_then(|node| node.health.as_ref());
        Situation {
            flow,
            paths: self.paths_of(flow),
            health: health.map_or(&[], |health| &health.value.paths),
            egress_ready: self
                .flow(&flow.name)
                .is_some_and(|record| record.value.received),
        }
    }

    /// Returns the flow if it waits for its egress and a report for an assignment of this revision
    /// ends the wait.
    pub(crate) fn awaited(&self, flow: &Name, revision: u64) -> Option<&Versioned<FlowRecord>> {
        let record = self.flow(flow)?;
        let FlowRecord { flow, received, .. } = &record.value;
        // An earlier assignment may have had a different flow of this name.
        (flow.needs_help_always() && !received && record.revision <= revision).then_some(record)
    }

    /// Returns the paths that both nodes have and that the flow may use.
    fn paths_of(&self, flow: &Flow) -> PathSet {
        let pair = discovery::ordered(&flow.ingress, &flow.egress);
        let of = |is_discovered| {
            let of = |node: &Name| {
                let node = self.nodes.get(node);
                node.map_or(0, |node| node.path_bits(is_discovered))
            };
            of(&flow.ingress) & of(&flow.egress)
        };
        let allowed = if flow.paths.is_empty() {
            u8::MAX
        } else {
            path_bits(flow.paths.iter().copied())
        };
        let discovered = of(true) & self.usable_between(pair).bits();
        match (of(false) | discovered) & allowed {
            // All eight bits are the code that stops a flow.
            0xff => PathSet::from_bits(0x7f),
            bits => PathSet::from_bits(bits),
        }
    }

    /// Returns the offset of a node's inner addresses within each prefix.
    pub(crate) fn inner_of(&self, node: &Name) -> Option<u64> {
        self.inner_of.get(node).copied()
    }

    /// Returns the first offset from `first` on that is free.
    pub(crate) fn free_inner(&self, first: u64) -> u64 {
        let taken = self.inner.range(first..).map(|(number, _)| *number);
        first
            + taken
                .zip(first..)
                .take_while(|(taken, number)| taken == number)
                .count() as u64
    }

    /// Returns the assignment of a node, which reports every `report_every_ms`.
    pub(crate) fn assignment(&self, name: &Name, report_every_ms: u32) -> Assignment {
        let assignment = Assignment {
            revision: self.latest,
            incarnation: self.incarnation.clone(),
            report_every_ms,
            reconnect_within_ms: 0,
            signal_key: None,
            sends: vec![],
            receives: vec![],
            keys: AssignedKeys::default(),
            discovery: Discovery::default(),
        };
        let Some((node, record)) = self.node(name) else {
            return assignment;
        };
        let known = |flow: &Name| Some((&self.flow(flow)?.value, self.policy(flow)?.value.clone()));
        let sends = node.sends.iter().filter_map(known);
        let receives = node.receives.iter().filter_map(known);
        Assignment {
            signal_key: record.value.signal_key.clone(),
            keys: self.keys_for(name, node),
            discovery: self.discovery_for(name),
            sends: sends
                .map(|(record, policy)| self.send(record, policy))
                .collect(),
            receives: receives
                .map(|(record, policy)| self.receive(record, policy))
                .collect(),
            ..assignment
        }
    }

    /// Returns the nodes that share a flow with a node.
    pub(crate) fn ends_of<'a>(&'a self, name: &Name) -> impl Iterator<Item = &'a Name> + use<'a> {
        let flow_of = |flow| Some(&self.flow(flow)?.value.flow);
        let node = self.nodes.get(name).into_iter();
        let ends = node.flat_map(move |node| {
            let egresses = node.sends.iter().filter_map(flow_of);
            let ingresses = node.receives.iter().filter_map(flow_of);
            egresses
                .map(|flow| &flow.egress)
                .chain(ingresses.map(|flow| &flow.ingress))
        });
        ends.collect::<BTreeSet<_>>().into_iter()
    }

    /// Returns the public keys in a node's assignment.
    fn keys_for(&self, name: &Name, node: &NodeView) -> AssignedKeys {
        let own = node.keys.as_ref();
        AssignedKeys {
            incarnation: node.incarnation(),
            least_generation: own.map_or(0, |keys| keys.value.least_generation),
            peers: self.ends_of(name).map(|end| self.peer(end, name)).collect(),
        }
    }

    /// Returns a node as its peer `other` sees it.
    fn peer(&self, name: &Name, other: &Name) -> Peer {
        let node = self.nodes.get(name);
        let keys = node.and_then(|node| node.keys.as_ref());
        let stated = keys.map(|keys| &keys.value.stated);
        let mut pairs = stated.into_iter().flat_map(|stated| &stated.pairs);
        Peer {
            node: name.clone(),
            incarnation: node.map(NodeView::incarnation).unwrap_or_default(),
            keys: stated.map_or_else(Vec::new, |stated| stated.keys.clone()),
            pair: pairs.find(|pair| pair.node == *other).cloned(),
        }
    }

    /// Returns why a node cannot send packets to another one, or receive those from it, for lack of a
    /// key, for people; `None` if nothing is known to be missing.
    pub(crate) fn missing_key(&self, name: &Name, other: &Name, sends: bool) -> Option<String> {
        let [own, far] = [self.peer(name, other), self.peer(other, name)];
        let by_hand = |peer: &Peer| peer.pair.as_ref().is_some_and(|pair| pair.by_hand);
        if by_hand(&own) {
            return None;
        }
        if by_hand(&far) {
            return Some(format!(
                "{other} has a key file for {name}, and {name} has none for {other}: name one in `keys` of [[peer]] at \
                 both, or at neither"
            ));
        }
        for peer in [&own, &far] {
            if peer.keys.is_empty() {
                let node = &peer.node;
                return Some(format!(
                    "{node} has registered no public key, so the nodes share none: check that its agent is connected; a node \
                     that was revoked has to be enrolled again"
                ));
            }
        }
        let accepts = |peer: &Peer| {
            let pair = peer.pair.as_ref();
            pair.is_some_and(|pair| !pair.accepts.is_empty())
        };
        (sends && !accepts(&far)).then(|| {
            format!("{other} has not confirmed that it accepts packets under the key that it shares with {name}")
        })
    }

    /// Returns the part of a flow's ingress.
    fn send(&self, record: &FlowRecord, policy: Policy) -> Send {
        let flow = &record.flow;
        Send {
            flow: flow.name.clone(),
            number: record.number,
            peer: flow.egress.clone(),
            select: flow.select.clone(),
            policy,
            transparent: flow.transparent.then(|| self.paths_of(flow)),
        }
    }

    /// Returns the part of a flow's egress.
    fn receive(&self, record: &FlowRecord, policy: Policy) -> Receive {
        let flow = &record.flow;
        Receive {
            flow: flow.name.clone(),
            number: record.number,
            peer: flow.ingress.clone(),
            mode: flow.mode,
            pruning: flow.pruning.clone(),
            paths: self.paths_of(flow),
            trigger: flow.trigger.clone(),
            policy,
            transparent: flow.transparent.then(|| flow.select.clone()),
            select: Some(flow.select.clone()),
        }
    }
}

impl NodeView {
    fn is_empty(&self) -> bool {
        self.record.is_none()
            && self.registration.is_none()
            && self.alive.is_none()
            && self.seen.is_none()
            && self.health.is_none()
            && self.keys.is_none()
            && self.discovered.is_empty()
            && self.tunnel.is_none()
            && self.tunnel_client.is_none()
            && self.tunnel_settings.is_none()
            && self.numbers.is_empty()
            && self.sends.is_empty()
            && self.receives.is_empty()
    }

    /// Returns the incarnation of the node; empty if it has none.
    fn incarnation(&self) -> String {
        let record = self.record.as_ref();
        let incarnation = record.and_then(|record| record.value.incarnation.clone());
        incarnation.unwrap_or_default()
    }

    /// Returns the registered paths that were discovered, or that are in the node's configuration.
    fn path_bits(&self, is_discovered: bool) -> u8 {
        let ends = self.registration.iter();
        let ends = ends.flat_map(|registration| &registration.value.paths);
        let ends = ends.filter(|end| end.discovered == is_discovered);
        path_bits(ends.map(|end| end.number))
    }

    /// Returns whether the node is no longer alive and its loss has not been reported.
    pub(crate) fn is_missing(&self) -> bool {
        self.alive.is_none() && self.seen.as_ref().is_some_and(|seen| seen.value.is_alive)
    }

    /// Returns the node as operators see it.
    pub(crate) fn resource(
        &self,
        name: &Name,
        record: &NodeRecord,
        seen_unix_ms: Option<u64>,
    ) -> Node {
        let registration = self
            .registration
            .as_ref()
            .map(|registration| &registration.value);
        let mut paths =
            registration.map_or_else(Vec::new, |registration| registration.paths.clone());
        paths.sort_by_key(|end| end.number);
        let keys = self.keys.as_ref().map(|keys| &keys.value.stated.keys);
        Node {
            name: name.clone(),
            keys: keys.cloned().unwrap_or_default(),
            authorities: registration.map_or_else(Vec::new, |known| known.authorities.clone()),
            tenant: record.tenant.clone(),
            description: record.description.clone(),
            version: registration.map(|registration| registration.version.clone()),
            alive: self.alive.is_some(),
            seen_unix_ms: seen_unix_ms.max(self.seen.as_ref().map(|seen| seen.value.at_unix_ms)),
            paths,
            uplinks: registration.map_or_else(Vec::new, |known| known.uplinks.clone()),
        }
    }

    /// Returns the node's paths as operators see them.
    pub(crate) fn paths(&self, name: &Name) -> Vec<Path> {
        let ends = self
            .registration
            .iter()
            .flat_map(|registration| &registration.value.paths);
        let health = self
            .health
            .as_ref()
            .map_or(&[][..], |health| &health.value.paths);
        let health_of = |number| {
            health
                .iter()
                .find(|health: &&PathHealth| health.number == number)
                .cloned()
        };
        let path = |end: &hawser_model::resource::PathEnd| Path {
            node: name.clone(),
            end: end.clone(),
            health: health_of(end.number),
        };
        let mut paths: Vec<Path> = ends.map(path).collect();
        paths.sort_by_key(|path| path.end.number);
        paths
    }
}

fn path_bits(numbers: impl Iterator<Item = u8>) -> u8 {
    numbers
        .filter(|number| (1..=8).contains(number))
        .fold(0, |bits, number| bits | 1 << (number - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::emit;
    use hawser_model::resource::Cause;
    use hawser_units::PolicyCode;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const NODES: [&str; 3] = ["a", "b", "c"];

    /// A key and its value; `None` deletes the key.
    fn entry() -> impl Strategy<Value = (String, Option<Vec<u8>>)> {
        let name = prop::sample::select(&NODES[..]);
        let flow = prop::sample::select(&["x", "y"][..]);
        prop_oneof![
            name.clone().prop_map(|node| {
                (format!("node/{node}"), emit(&NodeRecord::of("t".parse().unwrap())))
            }),
            (name.clone(), 0..4u8).prop_map(|(node, paths)| {
                let end = |number| json!({ "number": number, "interface": "i", "local": "::1", "remote": "::1" });
                let paths: Vec<Value> = (1..=paths).map(end).collect();
                (format!("registration/{node}"), emit(&json!({ "version": "1", "paths": paths })))
            }),
            (flow.clone(), name.clone(), name, 0..9u16).prop_map(|(flow, ingress, egress, number)| {
                let record = json!({ "number": number, "flow": { "name": flow, "tenant": "t", "ingress": ingress,
                    "egress": egress, "mode": "evidence", "select": { "destination": "::/0" } } });
                (format!("flow/{flow}"), emit(&record))
            }),
            (flow, 1..9u32).prop_map(|(flow, epoch)| {
                let flow: Name = flow.parse().unwrap();
                let key = format!("policy/{flow}");
                let reason = Cause::Judged;
                let (code, probes) = (PolicyCode(1), PathSet::EMPTY);
                let policy = Policy { flow, epoch, code, probes, probe_every: 0, reason, decided_unix_ms: 0 };
                (key, emit(&policy))
            }),
        ]
        .prop_flat_map(|(key, value)| (Just(key), prop::option::weighted(0.7, Just(value))))
    }

    /// The assignments of all nodes, without their revision.
    fn assignments(view: &View) -> Vec<Value> {
        let assignment = |node: &&str| Assignment {
            revision: 0,
            ..view.assignment(&node.parse().unwrap(), 5000)
        };
        NODES
            .iter()
            .map(|node| serde_json::to_value(assignment(node)).unwrap())
            .collect()
    }

    proptest! {
        #[test]
        fn a_followed_view_yields_the_same_assignments_as_a_new_one(changes in prop::collection::vec(entry(), 0..60)) {
            let (mut view, mut store) = (View::default(), BTreeMap::new());
            for ((key, value), revision) in changes.into_iter().zip(1..) {
                let key: Arc<str> = key.into();
                let change = match value {
                    Some(value) => {
                        let entry = Entry { key: key.clone(), value: value.into(), revision };
                        store.insert(key, entry.clone());
                        Change::Put(entry)
                    }
                    None => {
                        store.remove(&key);
                        Change::Delete { key, revision }
                    }
                };
                view.apply(change);
            }
            let new = View::of(store.into_values().collect());
            prop_assert_eq!(assignments(&view), assignments(&new));
            prop_assert_eq!(view.nodes.len(), new.nodes.len());
            prop_assert_eq!(view.flows.len(), new.flows.len());
        }
    }
    #[test]
    fn nodes_deleted_or_recreated_unseen_are_gone() {
        let node = |name: &str, serial: Option<&str>, revision| {
            let issued = |serial: &str| Issued {
                serial: serial.to_owned(),
                expires_unix_ms: 0,
                run_time_s: None,
            };
            let certificates = serial.map(issued).into_iter().collect();
            let record = NodeRecord {
                certificates,
                ..NodeRecord::of("t".parse().unwrap())
            };
            Entry {
                key: format!("node/{name}").into(),
                value: emit(&record).into(),
                revision,
            }
        };
        let before = View::of(vec![
            node("idle", None, 1),
            node("changed", Some("01"), 2),
            node("deleted", Some("02"), 3),
            node("recreated", Some("03"), 4),
        ]);
        let later = View::of(vec![
            node("idle", None, 1),
            node("changed", Some("01"), 5),
            node("recreated", Some("04"), 6),
            node("new", Some("05"), 7),
        ]);
        let gone: Vec<Name> = before.nodes_gone_in(&later).collect();
        assert_eq!(
            gone.iter().map(Name::as_str).collect::<Vec<_>>(),
            ["deleted", "recreated"]
        );
    }
}
