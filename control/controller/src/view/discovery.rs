//! The uplinks of nodes, and the paths that were made of them.

use super::{NodeView, Versioned, View};
use crate::record::{PathsRecord, emit, key};
use crate::store::{Expect, Write};
use hawser_model::Name;
use hawser_model::discovery::{
    AssignedPath, Candidate, DiscoveredPath, Discovery, Ends, Side, Uplink, candidates, obstacle,
    proposed,
};
use hawser_model::topology::{TopologyCandidate, TopologyUplink};
use hawser_units::{PathId, PathSet};
use std::collections::BTreeSet;

/// A change of the discovered paths between two nodes.
pub(crate) struct PathsChange {
    /// The tenant of the nodes; `None` if both were deleted.
    pub(crate) tenant: Option<Name>,
    pub(crate) write: Write,
    /// The kind and the message of its event.
    pub(crate) event: (&'static str, String),
    /// The flows that may not take a path any more.
    pub(crate) flows: Vec<Name>,
}

/// Returns two nodes in the order of their names.
pub(super) fn ordered<'a>(one: &'a Name, other: &'a Name) -> [&'a Name; 2] {
    [one.min(other), one.max(other)]
}

impl View {
    /// Returns whether a node has uplinks, or had some of which paths are left.
    pub(crate) fn is_discovering(&self, node: &Name) -> bool {
        let node = self.nodes.get(node);
        node.is_some_and(|node| !node.uplinks().is_empty() || !node.discovered.is_empty())
    }

    /// Returns the nodes to which a node has discovered paths, or may have some.
    pub(crate) fn partners(&self, node: &Name) -> Vec<Name> {
        if !self.is_discovering(node) {
            return Vec::new();
        }
        let discovered = self.nodes.get(node).into_iter();
        let discovered = discovered.flat_map(|node| node.discovered.keys());
        let partners: BTreeSet<&Name> = self.ends_of(node).chain(discovered).collect();
        partners.into_iter().cloned().collect()
    }

    /// Returns the discovered paths between two nodes that flows may take.
    pub(super) fn usable_between(&self, pair: [&Name; 2]) -> PathSet {
        let paths = self.discovered_between(pair).iter();
        paths
            .filter(|path| path.withdrawn.is_none())
            .filter_map(|path| PathId::from_number(path.number))
            .collect()
    }

    /// Returns the change that follows from the uplinks of two nodes and the answers that they get;
    /// `None` if the paths between them can stay.
    pub(crate) fn paths_change(&self, one: &Name, other: &Name) -> Option<PathsChange> {
        let pair = ordered(one, other);
        let record = self.paths_record(pair);
        let before = self.discovered_between(pair);
        let flows = self.flows_between(pair);
        let after = match flows.is_empty() {
            true => Vec::new(),
            false => proposed(&self.sides(pair), before),
        };
        if after == *before {
            return None;
        }
        let mut nodes = pair.iter().filter_map(|name| self.node(name));
        let tenant = nodes.next().map(|(_, node)| node.value.tenant.clone());
        let key = key::paths(pair);
        let write = if after.is_empty() {
            Write::delete(key)
        } else {
            let record = PathsRecord {
                paths: after.clone(),
            };
            Write::put(key, emit(&record))
        };
        let read = record.map_or(Expect::Absent, |record| Expect::Revision(record.revision));
        Some(PathsChange {
            tenant,
            write: write.when(read),
            event: event_of(pair, before, &after),
            flows,
        })
    }

    /// Returns the paths and candidates of a node for its assignment.
    pub(super) fn discovery_for(&self, name: &Name) -> Discovery {
        let mut discovery = Discovery::default();
        let mut others = Vec::new();
        for peer in self.partners(name) {
            let pair = ordered(name, &peer);
            let own = usize::from(pair[0] != name);
            let way = |ends: [&Uplink; 2]| Candidate {
                peer: peer.clone(),
                interface: ends[own].interface.clone(),
                ends: Ends {
                    local: ends[own].address,
                    remote: ends[1 - own].address,
                },
            };
            for path in self.discovered_between(pair) {
                let way = way(path.ends.each_ref());
                discovery.candidates.push(way.clone());
                let number = path.number;
                discovery.paths.push(AssignedPath { number, way });
            }
            let of_peer = candidates(&self.sides(pair)).into_iter().map(way);
            others.extend(of_peer.enumerate());
        }
        // The peers take turns, so that none has all places.
        others.sort_by_key(|(turn, _)| *turn);
        let mut others: Vec<_> = others.into_iter().map(|(_, candidate)| candidate).collect();
        others.retain(|candidate| !discovery.candidates.contains(candidate));
        discovery.candidates.extend(others);
        discovery.candidates.truncate(Discovery::MAX_CANDIDATES);
        discovery.paths.sort_by_key(|path| path.number);
        discovery
    }

    /// Returns the candidates between two nodes that are not paths.
    pub(crate) fn unused_candidates(&self, one: &Name, other: &Name) -> Vec<TopologyCandidate> {
        let pair = ordered(one, other);
        let (sides, present) = (self.sides(pair), self.discovered_between(pair));
        let is_path = |ends: &[&Uplink; 2]| {
            let mut paths = present.iter();
            paths.any(|path| path.ends.each_ref() == *ends)
        };
        let unused = candidates(&sides).into_iter().filter(|ends| !is_path(ends));
        let unused = unused.map(|ends| TopologyCandidate {
            reason: obstacle(&sides, &ends, present),
            ends: (pair.iter().zip(ends))
                .map(|(node, uplink)| TopologyUplink {
                    node: (*node).clone(),
                    uplink: uplink.clone(),
                })
                .collect(),
        });
        unused.collect()
    }

    fn paths_record(&self, [first, second]: [&Name; 2]) -> Option<&Versioned<PathsRecord>> {
        self.nodes.get(first)?.discovered.get(second)
    }

    fn discovered_between(&self, pair: [&Name; 2]) -> &[DiscoveredPath] {
        let record = self.paths_record(pair);
        record.map_or(&[], |record| &record.value.paths)
    }

    /// Returns the flows between two nodes, in both directions.
    fn flows_between(&self, [first, second]: [&Name; 2]) -> Vec<Name> {
        let of = |name: &Name| self.nodes.get(name);
        let (Some(first), Some(second)) = (of(first), of(second)) else {
            return Vec::new();
        };
        let there = first.sends.intersection(&second.receives);
        let back = second.sends.intersection(&first.receives);
        there.chain(back).cloned().collect()
    }

    fn sides<'a>(&'a self, [first, second]: [&'a Name; 2]) -> [Side<'a>; 2] {
        [self.side(first, second), self.side(second, first)]
    }

    fn side<'a>(&'a self, name: &'a Name, peer: &Name) -> Side<'a> {
        let mut side = Side {
            node: name,
            uplinks: &[],
            busy: BTreeSet::new(),
            taken: PathSet::EMPTY,
            reached: &[],
        };
        let Some(node) = self.nodes.get(name) else {
            return side;
        };
        let written = node.registration.iter();
        let written = written.flat_map(|registration| &registration.value.paths);
        let written = written.filter(|end| !end.discovered);
        let written = written.map(|end| (&*end.interface, end.number));
        let others = node.discovered.iter().filter(|(other, _)| *other != peer);
        let others = others.flat_map(|(other, record)| {
            let own = usize::from(other < name);
            let paths = record.value.paths.iter();
            paths.map(move |path| (&*path.ends[own].interface, path.number))
        });
        for (interface, number) in written.chain(others) {
            side.busy.insert(interface);
            side.taken =
                (PathId::from_number(number)).map_or(side.taken, |path| side.taken.with(path));
        }
        side.uplinks = node.uplinks();
        side.reached = (node.health.as_ref()).map_or(&[], |health| &health.value.reached);
        side
    }
}

impl NodeView {
    fn uplinks(&self) -> &[Uplink] {
        let registration = self.registration.as_ref();
        registration.map_or(&[], |registration| &registration.value.uplinks)
    }
}

/// Returns the kind and the message of the event for a change of the paths between two nodes.
fn event_of(
    [first, second]: [&Name; 2],
    before: &[DiscoveredPath],
    after: &[DiscoveredPath],
) -> (&'static str, String) {
    let of = |paths: &[DiscoveredPath], number: u8| {
        let mut paths = paths.iter();
        paths.find(|path| path.number == number).cloned()
    };
    let (mut kind, mut texts) = ("path_removed", Vec::new());
    for number in 1..=8 {
        let (kind_of_one, text) = match (of(before, number), of(after, number)) {
            (Some(before), None) => match before.withdrawn {
                Some(_) => ("path_removed", "is removed".to_owned()),
                None => (
                    "path_withdrawn",
                    "is removed: no flow connects the nodes".to_owned(),
                ),
            },
            (None, Some(now)) => ("path_found", format!("was found, from {}", words(&now))),
            (Some(before), Some(now)) if before != now => match &now.withdrawn {
                Some(reason) => ("path_withdrawn", format!("is withdrawn: {reason}")),
                None => ("path_moved", format!("is now from {}", words(&now))),
            },
            _ => continue,
        };
        if kind == "path_removed" || kind_of_one == "path_withdrawn" {
            kind = kind_of_one;
        }
        texts.push(format!("path {number} {text}"));
    }
    let texts = texts.join("; ");
    (kind, format!("between {first} and {second}: {texts}"))
}

/// Describes the ends of a path.
fn words(path: &DiscoveredPath) -> String {
    let [one, other] = &path.ends;
    format!("{one} to {other}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Entry;

    #[test]
    fn the_paths_of_nodes_that_were_deleted_go() {
        let [first, second] = ["a", "b"].map(|name| name.parse::<Name>().unwrap());
        let uplink = |last: u8| Uplink {
            interface: "wan0".to_owned(),
            address: [192, 0, 2, last].into(),
            tunnel: false,
        };
        let path = DiscoveredPath {
            number: 1,
            ends: [uplink(1), uplink(2)],
            withdrawn: None,
        };
        let record = PathsRecord { paths: vec![path] };
        let entry = Entry {
            key: key::paths([&first, &second]).into(),
            value: emit(&record).into(),
            revision: 3,
        };
        let change = View::of(vec![entry]).paths_change(&second, &first).unwrap();
        let write = Write::delete("paths/a/b").when(Expect::Revision(3));
        assert_eq!((change.write, change.tenant), (write, None));
        let message = "between a and b: path 1 is removed: no flow connects the nodes";
        assert_eq!(change.event, ("path_withdrawn", message.to_owned()));
    }
}
