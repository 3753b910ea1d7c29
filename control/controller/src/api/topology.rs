//! The nodes and the paths between them, from their registrations.

use super::filter::{Filtered, OwnerFilter};
use crate::access::{Operator, Read};
use crate::controller::Controller;
use crate::refusal::{CommonErrors, HandlerError, Refusal};
use crate::view::{NodeView, View};
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use hawser_model::Name;
use hawser_model::resource::{Path, PathEnd};
use hawser_model::topology::{
    Topology, TopologyCandidate, TopologyEnd, TopologyNode, TopologyPath,
};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// No page: the topology is returned whole.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Whole {}

/// Get the nodes and the paths between them, with health, round-trip times and the flows that take them
///
/// A path has two ends with the same number, of which each has registered the address of the other,
/// or between which there is a flow. With `node`, the node and those that it shares a path with.
#[utoipa::path(operation_id = "get_topology", get, path = "/v1/topology", tag = "operators", params(OwnerFilter), security(("token" = [])),
    responses((status = 200, body = Topology), CommonErrors))]
pub(super) async fn topology(
    State(controller): State<Arc<Controller>>,
    operator: Operator<Read>,
    Filtered { filter, .. }: Filtered<Whole, OwnerFilter>,
) -> Result<Json<Topology>, HandlerError> {
    let view = controller.view();
    let nodes = view.nodes.iter().filter_map(|(name, node)| {
        let tenant = &node.record.as_ref()?.value.tenant;
        let is_wanted = operator.sees(tenant) && filter.is_tenant(tenant);
        is_wanted.then_some((name, (node, tenant)))
    });
    let nodes: Nodes<'_> = nodes.collect();
    let joined = joined(&view, &nodes, filter.node());
    let mut topology = topology_of(&nodes, joined, filter.node());
    if topology.nodes.len() > Topology::MAX_NODES {
        let what = format!(
            "there are more than {} nodes; choose some with ?tenant= or ?node=",
            Topology::MAX_NODES
        );
        return Err(Refusal::new(StatusCode::BAD_REQUEST, what).into());
    }
    topology.candidates = candidates(&view, &nodes, filter.node());
    Ok(Json(topology))
}

/// The nodes that an operator sees, with their tenants.
type Nodes<'a> = BTreeMap<&'a Name, (&'a NodeView, &'a Name)>;

/// The two nodes of a path in the order of their names, and its number.
type Place<'a> = (&'a Name, &'a Name, u8);

/// A path between two nodes, by what it was found.
#[derive(Default)]
struct Joined<'a> {
    addresses_match: bool,
    flows: Vec<&'a Name>,
}

/// Returns the paths between the nodes, of those that begin or end at `only`.
fn joined<'a>(
    view: &'a View,
    nodes: &Nodes<'a>,
    only: Option<&Name>,
) -> BTreeMap<Place<'a>, Joined<'a>> {
    let mut joined: BTreeMap<Place<'a>, Joined<'a>> = BTreeMap::new();
    let mut ends: HashMap<(u8, IpAddr, IpAddr), Vec<&'a Name>> = HashMap::new();
    for (name, (node, _)) in nodes {
        for end in ends_of(node) {
            let others = ends.get(&(end.number, end.remote, end.local));
            for other in others.into_iter().flatten() {
                joined
                    .entry(place(name, other, end.number))
                    .or_default()
                    .addresses_match = true;
            }
            let own = (end.number, end.local, end.remote);
            ends.entry(own).or_default().push(name);
        }
    }
    for (ingress, (node, _)) in nodes {
        for flow in &node.sends {
            add_flow(view, nodes, ingress, flow, &mut joined);
        }
    }
    joined.retain(|(first, second, _), _| {
        first != second && only.is_none_or(|only| only == *first || only == *second)
    });
    joined
}

/// Adds a flow to the paths that it takes, and the paths that it may take.
fn add_flow<'a>(
    view: &'a View,
    nodes: &Nodes<'a>,
    ingress: &'a Name,
    flow: &'a Name,
    joined: &mut BTreeMap<Place<'a>, Joined<'a>>,
) {
    let (Some(record), Some(policy)) = (view.flow(flow), view.policy(flow)) else {
        return;
    };
    let record = &record.value.flow;
    let Some((egress, _)) = nodes.get_key_value(&record.egress) else {
        return;
    };
    let taken = policy.value.code.paths().union(policy.value.probes);
    for path in view.situation(record).paths.iter() {
        let found = joined
            .entry(place(ingress, egress, path.number()))
            .or_default();
        if taken.contains(path) {
            found.flows.push(flow);
        }
    }
}

/// Returns the candidates for paths between the nodes, of those that begin or end at `only`.
fn candidates(view: &View, nodes: &Nodes<'_>, only: Option<&Name>) -> Vec<TopologyCandidate> {
    let mut candidates = Vec::new();
    for name in nodes.keys() {
        for partner in view.partners(name) {
            let is_wanted = only.is_none_or(|only| only == *name || *only == partner);
            if **name < partner && nodes.contains_key(&partner) && is_wanted {
                candidates.extend(view.unused_candidates(name, &partner));
            }
        }
    }
    candidates
}

fn topology_of(
    nodes: &Nodes<'_>,
    joined: BTreeMap<Place<'_>, Joined<'_>>,
    only: Option<&Name>,
) -> Topology {
    let mut matched: HashMap<&Name, Vec<u8>> = HashMap::new();
    for (first, second, number) in joined.keys() {
        matched.entry(*first).or_default().push(*number);
        matched.entry(*second).or_default().push(*number);
    }
    let unmatched = |name: &Name, node: &NodeView| {
        let matched = matched.get(name).map_or(&[][..], Vec::as_slice);
        let numbers = ends_of(node).map(|end| end.number);
        let mut numbers: Vec<u8> = numbers.filter(|number| !matched.contains(number)).collect();
        numbers.sort_unstable();
        numbers
    };
    let is_wanted =
        |name: &Name| only.is_none_or(|only| only == name || matched.contains_key(name));
    let listed = nodes.iter().filter(|(name, _)| is_wanted(name));
    Topology {
        nodes: listed
            .map(|(name, (node, tenant))| TopologyNode {
                name: (*name).clone(),
                tenant: (*tenant).clone(),
                alive: node.alive.is_some(),
                unmatched: match only {
                    // The paths of a neighbour to others are not searched.
                    Some(only) if only != *name => Vec::new(),
                    _ => unmatched(name, node),
                },
            })
            .collect(),
        paths: joined
            .into_iter()
            .filter_map(|(place, found)| path_of(nodes, place, found))
            .collect(),
        candidates: Vec::new(),
    }
}

fn path_of(
    nodes: &Nodes<'_>,
    (first, second, number): Place<'_>,
    found: Joined<'_>,
) -> Option<TopologyPath> {
    let end = |name: &Name| {
        let (node, _) = nodes.get(name)?;
        let paths = node.paths(name).into_iter();
        let Path { node, end, health } =
            paths.into_iter().find(|path| path.end.number == number)?;
        Some(TopologyEnd { node, end, health })
    };
    let mut flows: Vec<Name> = found.flows.into_iter().cloned().collect();
    flows.sort_unstable();
    Some(TopologyPath {
        number,
        ends: vec![end(first)?, end(second)?],
        addresses_match: found.addresses_match,
        flows,
    })
}

fn place<'a>(one: &'a Name, other: &'a Name, number: u8) -> Place<'a> {
    (one.min(other), one.max(other), number)
}

fn ends_of(node: &NodeView) -> impl Iterator<Item = &PathEnd> {
    let registration = node.registration.iter();
    registration.flat_map(|registration| &registration.value.paths)
}
