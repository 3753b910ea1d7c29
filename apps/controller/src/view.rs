//! The store's content as this controller works with it: parsed, in memory, indexed by node.
//!
//! It follows the store, so it may be a little behind; whoever writes says what it has read, and the store refuses what
//! was read too early.

mod apply;
mod journal;

pub(crate) use apply::Touched;
pub(crate) use journal::Journal;

use crate::authority::Presented;
use crate::record::{
    AliveRecord, FlowRecord, HealthRecord, Issued, NodeRecord, NumberRecord, SeenRecord,
    TokenRecord, TunnelRecord,
};
use crate::store::{Change, Entry, Revision};
use hawser_control::Name;
use hawser_control::audit::AuditEntry;
use hawser_control::decide::Situation;
use hawser_control::node::{Assignment, Receive, Registration, Send};
use hawser_control::resource::{Event, Flow, Node, Path, PathHealth, Policy, Tenant};
use hawser_units::PathSet;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Something and when it was written.
#[derive(Debug, Clone)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) revision: Revision,
}

#[derive(Default)]
pub(crate) struct View {
    pub(crate) tenants: BTreeMap<Name, At<Tenant>>,
    pub(crate) nodes: BTreeMap<Name, NodeView>,
    pub(crate) flows: BTreeMap<Name, FlowView>,
    pub(crate) tokens: BTreeMap<Name, At<TokenRecord>>,
    pub(crate) events: Journal<Event>,
    pub(crate) audit: Journal<AuditEntry>,
    /// What nodes said to controllers that do not lead, by key.
    pub(crate) observations: BTreeMap<Arc<str>, At<Arc<[u8]>>>,
    /// Whose the inner addresses of tunnels are, by their number within each prefix, and the other way round.
    inner: BTreeMap<u64, Name>,
    inner_of: HashMap<Name, u64>,
    token_by_secret: HashMap<String, Name>,
    /// The revision of the last reference to each tenant and node, by `used` key.
    used: HashMap<Arc<str>, Revision>,
    /// Everything written up to here is in the view, and perhaps some of what was written after.
    pub(crate) complete: Revision,
    /// Of the last change.
    latest: Revision,
}

/// A node and what belongs to it. Kept also while only parts of it are known.
#[derive(Default)]
pub(crate) struct NodeView {
    pub(crate) record: Option<At<NodeRecord>>,
    pub(crate) registration: Option<At<Registration>>,
    pub(crate) alive: Option<AliveRecord>,
    pub(crate) seen: Option<At<SeenRecord>>,
    pub(crate) health: Option<At<HealthRecord>>,
    /// What it says of itself as a server of tunnels.
    pub(crate) tunnel: Option<TunnelRecord>,
    pub(crate) numbers: BTreeMap<u16, At<NumberRecord>>,
    /// Flows that it replicates.
    pub(crate) sends: BTreeSet<Name>,
    /// Flows that it eliminates.
    pub(crate) receives: BTreeSet<Name>,
}

#[derive(Default)]
pub(crate) struct FlowView {
    pub(crate) record: Option<At<FlowRecord>>,
    pub(crate) policy: Option<At<Policy>>,
}

impl View {
    /// All of the store's entries.
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

    /// The token with that secret.
    pub(crate) fn token(&self, secret_sha256: &str) -> Option<&TokenRecord> {
        let name = self.token_by_secret.get(secret_sha256)?;
        Some(&self.tokens.get(name)?.value)
    }

    /// The revision of the last reference to a tenant or a node, by its `used` key.
    pub(crate) fn used(&self, key: &str) -> Option<Revision> {
        self.used.get(key).copied()
    }

    /// A node that exists, not only parts of one.
    pub(crate) fn node(&self, name: &Name) -> Option<(&NodeView, &At<NodeRecord>)> {
        let node = self.nodes.get(name)?;
        Some((node, node.record.as_ref()?))
    }

    /// The node whose certificate was presented, and the certificate, unless it was revoked or replaced.
    pub(crate) fn accepted(&self, presented: &Presented) -> Option<(&At<NodeRecord>, &Issued)> {
        let (_, record) = self.node(&presented.node)?;
        Some((record, record.value.certificate(&presented.serial)?))
    }

    /// The nodes of this view that a later one does not have any more, or that it has as others of the same name: changed, and
    /// without a certificate in common.
    pub(crate) fn nodes_gone_in(&self, later: &View) -> impl Iterator<Item = Name> {
        let stays = move |name: &Name, before: &At<NodeRecord>| {
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

    /// A flow that exists.
    pub(crate) fn flow(&self, name: &Name) -> Option<&At<FlowRecord>> {
        self.flows.get(name)?.record.as_ref()
    }

    /// The policy in force for a flow that exists.
    pub(crate) fn policy(&self, flow: &Name) -> Option<&At<Policy>> {
        let flow = self.flows.get(flow)?;
        flow.policy.as_ref().filter(|_| flow.record.is_some())
    }

    /// What is known for a decision about a flow.
    pub(crate) fn situation<'a>(&'a self, flow: &'a Flow) -> Situation<'a> {
        let health = self
            .nodes
            .get(&flow.ingress)
            .and_then(|node| node.health.as_ref());
        Situation {
            flow,
            paths: self.paths_of(flow),
            health: health.map_or(&[], |health| &health.value.paths),
            received: self
                .flow(&flow.name)
                .is_some_and(|record| record.value.received),
        }
    }

    /// The flow, if it waits for its egress and a report by an assignment of this revision is what it waits for.
    pub(crate) fn awaited(&self, flow: &Name, revision: u64) -> Option<&At<FlowRecord>> {
        let record = self.flow(flow)?;
        let FlowRecord { flow, received, .. } = &record.value;
        // An assignment before may have had another flow of this name.
        (flow.needs_help_always() && !received && record.revision <= revision).then_some(record)
    }

    /// The paths that both nodes have and that the flow may use.
    fn paths_of(&self, flow: &Flow) -> PathSet {
        let of = |node: &Name| self.nodes.get(node).map_or(0, NodeView::path_bits);
        let allowed = if flow.paths.is_empty() {
            u8::MAX
        } else {
            path_bits(flow.paths.iter().copied())
        };
        match of(&flow.ingress) & of(&flow.egress) & allowed {
            // All eight would be the code that stops a flow.
            0xff => PathSet::from_bits(0x7f),
            bits => PathSet::from_bits(bits),
        }
    }

    /// The number of a node's inner addresses within each prefix.
    pub(crate) fn inner_of(&self, node: &Name) -> Option<u64> {
        self.inner_of.get(node).copied()
    }

    /// The first number from `first` on that is nobody's.
    pub(crate) fn free_inner(&self, first: u64) -> u64 {
        let taken = self.inner.range(first..).map(|(number, _)| *number);
        first
            + taken
                .zip(first..)
                .take_while(|(taken, number)| taken == number)
                .count() as u64
    }

    /// What a node has to do. It reports every `report_every_ms`.
    pub(crate) fn assignment(&self, name: &Name, report_every_ms: u32) -> Assignment {
        let mut assignment = Assignment {
            revision: self.latest,
            report_every_ms,
            signal_key: None,
            sends: vec![],
            receives: vec![],
        };
        let Some((node, record)) = self.node(name) else {
            return assignment;
        };
        assignment.signal_key.clone_from(&record.value.signal_key);
        let known = |flow: &Name| Some((&self.flow(flow)?.value, self.policy(flow)?.value.clone()));
        for (FlowRecord { flow, number, .. }, policy) in node.sends.iter().filter_map(known) {
            assignment.sends.push(Send {
                flow: flow.name.clone(),
                number: *number,
                peer: flow.egress.clone(),
                select: flow.select.clone(),
                policy,
            });
        }
        for (FlowRecord { flow, number, .. }, policy) in node.receives.iter().filter_map(known) {
            assignment.receives.push(Receive {
                flow: flow.name.clone(),
                number: *number,
                peer: flow.ingress.clone(),
                mode: flow.mode,
                elimination: flow.elimination.clone(),
                paths: self.paths_of(flow).bits(),
                trigger: flow.trigger.clone(),
                policy,
            });
        }
        assignment
    }
}

impl NodeView {
    fn is_empty(&self) -> bool {
        self.record.is_none()
            && self.registration.is_none()
            && self.alive.is_none()
            && self.seen.is_none()
            && self.health.is_none()
            && self.tunnel.is_none()
            && self.numbers.is_empty()
            && self.sends.is_empty()
            && self.receives.is_empty()
    }

    fn path_bits(&self) -> u8 {
        let ends = self
            .registration
            .iter()
            .flat_map(|registration| &registration.value.paths);
        path_bits(ends.map(|end| end.number))
    }

    /// Whether the node has lost its lease and its loss has not been reported.
    pub(crate) fn is_missing(&self) -> bool {
        self.alive.is_none() && self.seen.as_ref().is_some_and(|seen| seen.value.is_alive)
    }

    /// As operators see it.
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
        Node {
            name: name.clone(),
            tenant: record.tenant.clone(),
            version: registration.map(|registration| registration.version.clone()),
            alive: self.alive.is_some(),
            seen_unix_ms: seen_unix_ms.max(self.seen.as_ref().map(|seen| seen.value.at_unix_ms)),
            paths,
        }
    }

    /// Its paths, as operators see them.
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
        let path = |end: &hawser_control::resource::PathEnd| Path {
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
    use hawser_control::resource::Cause;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const NODES: [&str; 3] = ["a", "b", "c"];

    /// A key and what it is to hold.
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
                let because = Cause::Judged;
                let policy = Policy { flow, epoch, code: 1, probes: 0, probe_every: 0, because, decided_unix_ms: 0 };
                (key, emit(&policy))
            }),
        ]
        .prop_flat_map(|(key, value)| (Just(key), prop::option::weighted(0.7, Just(value))))
    }

    /// What nodes are told, whatever the revision.
    fn told(view: &View) -> Vec<Value> {
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
        fn a_view_that_followed_tells_nodes_what_a_new_one_does(changes in prop::collection::vec(entry(), 0..60)) {
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
            prop_assert_eq!(told(&view), told(&new));
            prop_assert_eq!(view.nodes.len(), new.nodes.len());
            prop_assert_eq!(view.flows.len(), new.flows.len());
        }
    }
    #[test]
    fn nodes_that_went_or_were_made_anew_unseen_are_gone() {
        let node = |name: &str, serial: Option<&str>, revision| {
            let issued = |serial: &str| Issued {
                serial: serial.to_owned(),
                expires_unix_ms: 0,
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
            node("made-anew", Some("03"), 4),
        ]);
        let later = View::of(vec![
            node("idle", None, 1),
            node("changed", Some("01"), 5),
            node("made-anew", Some("04"), 6),
            node("new", Some("05"), 7),
        ]);
        let gone: Vec<Name> = before.nodes_gone_in(&later).collect();
        assert_eq!(
            gone.iter().map(Name::as_str).collect::<Vec<_>>(),
            ["deleted", "made-anew"]
        );
    }
}
