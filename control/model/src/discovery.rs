//! Discovery of paths: which pairs of the uplinks of two nodes are paths between them.
//!
//! A node registers its uplinks. Where two nodes share a flow, each pair of their uplinks of one IP
//! version is a *candidate*. Both nodes probe the candidates, and report those on which the other
//! node answers. [`proposed`] makes paths of these. An uplink carries one path at most, because the
//! kernel sends the packets that leave by an interface as copies of one path.
//!
//! The number of candidates is bounded: a node has up to [`Uplink::MAX`] uplinks, and gets up to
//! [`Discovery::MAX_CANDIDATES`] candidates.

use crate::name::Name;
use hawser_units::{PathId, PathSet};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

/// An interface of a node that may carry a path, with one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Uplink {
    /// The interface.
    pub interface: String,
    /// The address. A node registers one address of each IP version for an interface.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: IpAddr,
    /// Whether the interface leads into a tunnel (TUN, WireGuard), such as the coded one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tunnel: bool,
}

impl fmt::Display for Uplink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.tunnel { "tunnel " } else { "" };
        write!(f, "{kind}{} {}", self.interface, self.address)
    }
}

impl Uplink {
    /// The maximum number of uplinks of a node: eight interfaces, with an address of each IP version.
    pub const MAX: usize = 16;
}

/// The addresses of a candidate, as one of its nodes sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Ends {
    /// The address of the node.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub local: IpAddr,
    /// The address of the other node.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub remote: IpAddr,
}

/// A way to another node that may be a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Candidate {
    /// The other node.
    pub peer: Name,
    /// The interface of the node that gets this.
    pub interface: String,
    /// The addresses.
    #[serde(flatten)]
    pub ends: Ends,
}

/// A path that the controller has made of a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssignedPath {
    /// The path number, the same at both ends.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 8))]
    pub number: u8,
    /// The way of the path.
    #[serde(flatten)]
    pub way: Candidate,
}

/// The paths of a node that the controller has made, and the candidates for others.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Discovery {
    /// The paths, by number. A path with the number of one in the node's configuration is ignored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<AssignedPath>,
    /// The candidates that the node probes. Those of the paths are among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
}

impl Discovery {
    /// The maximum number of candidates of a node.
    pub const MAX_CANDIDATES: usize = 64;
}

/// A path between two nodes that the controller has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscoveredPath {
    /// The path number.
    pub number: u8,
    /// The uplinks, in the order of the nodes' names.
    pub ends: [Uplink; 2],
    /// The reason that no flow may take the path any more; it is removed when none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawn: Option<String>,
}

/// One of two nodes, as far as discovery needs it.
#[derive(Debug, Clone)]
pub struct Side<'a> {
    /// The node.
    pub node: &'a Name,
    /// The uplinks of the node.
    pub uplinks: &'a [Uplink],
    /// The interfaces that carry other paths: those of the node's configuration, and those to other
    /// nodes.
    pub busy: BTreeSet<&'a str>,
    /// The numbers of these paths.
    pub taken: PathSet,
    /// The candidates on which the other node answers.
    pub reached: &'a [Ends],
}

/// A pair of uplinks, in the order of the sides.
pub type Pair<'a> = [&'a Uplink; 2];

/// Returns the candidates between two nodes, those of IPv4 first.
pub fn candidates<'a>(sides: &[Side<'a>; 2]) -> Vec<Pair<'a>> {
    let [first, second] = sides.each_ref().map(Side::free);
    let pairs = first.iter().flat_map(|one| {
        let others = second.iter().map(|other| [*one, *other]);
        others.filter(|[one, other]| can_talk(one, other))
    });
    let mut pairs: Vec<Pair<'a>> = pairs.collect();
    pairs.sort_by_key(|[one, other]| (one.address.is_ipv6(), *one, *other));
    pairs
}

/// Returns the paths that follow from the present ones. Those that are withdrawn already are left
/// out, and those that cannot stay are withdrawn with the reason.
pub fn proposed(sides: &[Side<'_>; 2], present: &[DiscoveredPath]) -> Vec<DiscoveredPath> {
    let stays = present.iter().filter(|path| path.withdrawn.is_none());
    let mut paths: Vec<DiscoveredPath> = stays.map(|path| followed(path, sides)).collect();
    let mut reached = candidates(sides);
    reached.retain(|pair| silent_to(sides, pair).is_empty() && carried_by(pair, &paths).is_none());
    let taken = sides[0].taken.union(sides[1].taken);
    let taken: PathSet = (present.iter())
        .filter_map(|path| PathId::from_number(path.number))
        .fold(taken, PathSet::with);
    let free = PathId::all().filter(|path| !taken.contains(*path));
    let found = free
        .zip(matched(&reached))
        .map(|(path, ends)| DiscoveredPath {
            number: path.number(),
            ends: ends.map(Uplink::clone),
            withdrawn: None,
        });
    paths.extend(found.collect::<Vec<_>>());
    paths.sort_by_key(|path| path.number);
    paths
}

/// Returns why a candidate is not a path.
pub fn obstacle(sides: &[Side<'_>; 2], pair: &Pair<'_>, present: &[DiscoveredPath]) -> String {
    let silent = silent_to(sides, pair);
    if !silent.is_empty() {
        return format!("no answer at {}", silent.join(" and "));
    }
    match carried_by(pair, present) {
        Some((index, path)) => {
            let (interface, node) = (&pair[index].interface, sides[index].node);
            format!("{interface} of {node} carries path {}", path.number)
        }
        None => "no path number is free, or the controller has not decided yet".to_owned(),
    }
}

/// Returns the first path that one of the uplinks carries, with the index of that uplink.
fn carried_by<'p>(
    pair: &Pair<'_>,
    paths: &'p [DiscoveredPath],
) -> Option<(usize, &'p DiscoveredPath)> {
    paths.iter().find_map(|path| {
        let mut ends = path.ends.iter().zip(pair);
        let index = ends.position(|(end, uplink)| end.interface == uplink.interface)?;
        Some((index, path))
    })
}

impl<'a> Side<'a> {
    /// Returns the uplinks that carry no other path.
    fn free(&self) -> Vec<&'a Uplink> {
        let uplinks = self.uplinks.iter();
        uplinks
            .filter(|uplink| !self.busy.contains(&*uplink.interface))
            .collect()
    }
}

fn can_talk(one: &Uplink, other: &Uplink) -> bool {
    one.address.is_ipv4() == other.address.is_ipv4() && one.address != other.address
}

/// Returns the nodes that get no answer on a candidate.
fn silent_to<'a>(sides: &[Side<'a>; 2], pair: &Pair<'_>) -> Vec<&'a str> {
    let [one, other] = pair.map(|uplink| uplink.address);
    let seen = [(one, other), (other, one)].map(|(local, remote)| Ends { local, remote });
    let silent = sides.iter().zip(seen);
    let silent = silent.filter(|(side, ends)| !side.reached.contains(ends));
    silent.map(|(side, _)| side.node.as_str()).collect()
}

/// Returns a path with the present addresses of its uplinks, withdrawn if it cannot stay.
fn followed(path: &DiscoveredPath, sides: &[Side<'_>; 2]) -> DiscoveredPath {
    let mut path = path.clone();
    for (end, side) in path.ends.iter_mut().zip(sides) {
        match present(end, path.number, side) {
            Ok(now) => *end = now.clone(),
            Err(reason) => {
                path.withdrawn = Some(reason);
                break;
            }
        }
    }
    path
}

/// Returns the uplink of a path as it is now, or why the path cannot stay.
fn present<'a>(end: &Uplink, number: u8, side: &Side<'a>) -> Result<&'a Uplink, String> {
    let (node, interface) = (side.node, &end.interface);
    let is_ipv4 = end.address.is_ipv4();
    let mut uplinks = side.uplinks.iter();
    let found = uplinks
        .find(|uplink| uplink.interface == *interface && uplink.address.is_ipv4() == is_ipv4);
    let version = if is_ipv4 { "IPv4" } else { "IPv6" };
    let found = found
        .ok_or_else(|| format!("{node} has no uplink {interface} with an {version} address"))?;
    if side.busy.contains(&**interface) {
        return Err(format!("another path of {node} uses {interface}"));
    }
    if PathId::from_number(number).is_none_or(|path| side.taken.contains(path)) {
        return Err(format!("{node} has another path {number}"));
    }
    Ok(found)
}

/// Returns pairs of which no two share an interface: as many as there can be.
fn matched<'a>(pairs: &[Pair<'a>]) -> Vec<Pair<'a>> {
    let mut edges: BTreeMap<&str, BTreeMap<&str, Pair<'a>>> = BTreeMap::new();
    for pair in pairs {
        let [one, other] = pair.map(|uplink| &*uplink.interface);
        // The first pair of two interfaces is the preferred one.
        let edges = edges.entry(one).or_default();
        edges.entry(other).or_insert(*pair);
    }
    let mut chosen = BTreeMap::new();
    for one in edges.keys() {
        assign(one, &edges, &mut chosen, &mut BTreeSet::new());
    }
    let mut chosen: Vec<Pair<'a>> = chosen
        .into_iter()
        .map(|(other, one)| edges[one][other])
        .collect();
    chosen.sort();
    chosen
}

/// Finds a second interface for the first interface `one`, if necessary by giving others to those
/// that have it (an augmenting path). Returns whether there is one.
fn assign<'e>(
    one: &'e str,
    edges: &BTreeMap<&'e str, BTreeMap<&'e str, Pair<'_>>>,
    chosen: &mut BTreeMap<&'e str, &'e str>,
    tried: &mut BTreeSet<&'e str>,
) -> bool {
    for other in edges[one].keys() {
        if !tried.insert(other) {
            continue;
        }
        let holder = chosen.get(other).copied();
        if holder.is_none_or(|holder| assign(holder, edges, chosen, tried)) {
            chosen.insert(other, one);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The uplinks and the answers of the nodes a and b, which are in the order of their names.
    struct Nodes {
        names: [Name; 2],
        uplinks: [Vec<Uplink>; 2],
        reached: [Vec<Ends>; 2],
    }

    fn uplink(interface: &str, address: &str) -> Uplink {
        Uplink {
            interface: interface.to_owned(),
            address: address.parse().unwrap(),
            tunnel: false,
        }
    }

    impl Nodes {
        fn new(first: &[(&str, &str)], second: &[(&str, &str)]) -> Self {
            let uplinks = [first, second].map(|uplinks| {
                let uplinks = uplinks.iter();
                uplinks.map(|(name, at)| uplink(name, at)).collect()
            });
            Nodes {
                names: ["a", "b"].map(|name| name.parse().unwrap()),
                uplinks,
                reached: Default::default(),
            }
        }

        /// Makes both nodes answer on a candidate.
        fn reach(mut self, one: &str, other: &str) -> Self {
            let (local, remote) = (one.parse().unwrap(), other.parse().unwrap());
            self.reached[0].push(Ends { local, remote });
            self.reached[1].push(Ends {
                local: remote,
                remote: local,
            });
            self
        }

        fn sides(&self) -> [Side<'_>; 2] {
            [0, 1].map(|index| Side {
                node: &self.names[index],
                uplinks: &self.uplinks[index],
                busy: BTreeSet::new(),
                taken: PathSet::EMPTY,
                reached: &self.reached[index],
            })
        }
    }

    fn path(number: u8, one: Uplink, other: Uplink) -> DiscoveredPath {
        DiscoveredPath {
            number,
            ends: [one, other],
            withdrawn: None,
        }
    }

    /// Describes paths as `number interface-interface`.
    fn words(paths: &[DiscoveredPath]) -> Vec<String> {
        let word = |path: &DiscoveredPath| {
            let [one, other] = path.ends.each_ref().map(|end| &end.interface);
            format!("{} {one}-{other}", path.number)
        };
        paths.iter().map(word).collect()
    }

    const TWO: [(&str, &str); 2] = [("w1", "10.1.0.1"), ("w2", "10.2.0.1")];
    const OTHER_TWO: [(&str, &str); 2] = [("e1", "10.1.0.2"), ("e2", "10.2.0.2")];

    #[test]
    fn only_candidates_that_both_nodes_reach_are_paths() {
        let mut nodes = Nodes::new(&TWO, &OTHER_TWO).reach("10.1.0.1", "10.1.0.2");
        nodes.reached[0].push(Ends {
            local: "10.2.0.1".parse().unwrap(),
            remote: "10.2.0.2".parse().unwrap(),
        });
        let sides = nodes.sides();
        assert_eq!(candidates(&sides).len(), 4);
        assert_eq!(words(&proposed(&sides, &[])), ["1 w1-e1"]);
        let second = [&nodes.uplinks[0][1], &nodes.uplinks[1][1]];
        assert_eq!(obstacle(&sides, &second, &[]), "no answer at b");
        let crossed = [&nodes.uplinks[0][0], &nodes.uplinks[1][1]];
        assert_eq!(obstacle(&sides, &crossed, &[]), "no answer at a and b");
    }

    #[test]
    fn as_many_uplinks_as_possible_get_a_path_and_each_only_one() {
        // w2 reaches e1 only, so w1 has to take e2.
        let nodes = Nodes::new(&TWO, &OTHER_TWO)
            .reach("10.1.0.1", "10.1.0.2")
            .reach("10.1.0.1", "10.2.0.2")
            .reach("10.2.0.1", "10.1.0.2");
        let paths = proposed(&nodes.sides(), &[]);
        assert_eq!(words(&paths), ["1 w1-e2", "2 w2-e1"]);
        // Paths that exist stay, even if others would be more.
        let present = [path(5, uplink("w1", "10.1.0.1"), uplink("e1", "10.1.0.2"))];
        assert_eq!(words(&proposed(&nodes.sides(), &present)), ["5 w1-e1"]);
        let crossed = [&nodes.uplinks[0][0], &nodes.uplinks[1][1]];
        let why = obstacle(&nodes.sides(), &crossed, &present);
        assert_eq!(why, "w1 of a carries path 5");
    }

    #[test]
    fn configured_paths_keep_numbers_and_interfaces() {
        let nodes = Nodes::new(&TWO, &OTHER_TWO)
            .reach("10.1.0.1", "10.1.0.2")
            .reach("10.2.0.1", "10.2.0.2");
        let mut sides = nodes.sides();
        sides[0].taken = PathSet::from_bits(0b1);
        sides[1].taken = PathSet::from_bits(0b10);
        sides[1].busy = ["e2"].into();
        assert_eq!(words(&proposed(&sides, &[])), ["3 w1-e1"]);
        let present = [
            path(2, uplink("w1", "10.1.0.1"), uplink("e1", "10.1.0.2")),
            path(3, uplink("w2", "10.2.0.1"), uplink("e2", "10.2.0.2")),
        ];
        let paths = proposed(&sides, &present);
        let why = |index: usize| paths[index].withdrawn.clone().unwrap();
        assert_eq!(why(0), "b has another path 2");
        assert_eq!(
            paths[1].withdrawn.as_deref(),
            Some("another path of b uses e2")
        );
        // The uplinks of a withdrawn path are free for another one when it is gone.
        assert_eq!(words(&paths), ["2 w1-e1", "3 w2-e2"]);
        assert_eq!(words(&proposed(&sides, &paths)), ["4 w1-e1"]);
    }

    #[test]
    fn a_path_follows_its_uplink_and_is_withdrawn_with_it() {
        let moved = [("w1", "10.1.0.77"), ("w1", "fd00::1")];
        let nodes = Nodes::new(&moved, &OTHER_TWO);
        let present = [
            path(1, uplink("w1", "10.1.0.1"), uplink("e1", "10.1.0.2")),
            path(2, uplink("w2", "10.2.0.1"), uplink("e2", "10.2.0.2")),
        ];
        let paths = proposed(&nodes.sides(), &present);
        assert_eq!(paths[0].ends[0], uplink("w1", "10.1.0.77"));
        assert_eq!(paths[0].withdrawn, None);
        let why = "a has no uplink w2 with an IPv4 address";
        assert_eq!(paths[1].withdrawn.as_deref(), Some(why));
        assert_eq!(words(&proposed(&nodes.sides(), &paths)), ["1 w1-e1"]);
    }

    #[test]
    fn a_path_that_is_not_answered_stays() {
        let nodes = Nodes::new(&TWO, &OTHER_TWO);
        let present = [path(1, uplink("w1", "10.1.0.1"), uplink("e1", "10.1.0.2"))];
        assert_eq!(proposed(&nodes.sides(), &present), present);
    }

    #[test]
    fn ipv4_is_preferred_and_there_are_no_more_than_eight_paths() {
        let mut nodes = Nodes::new(&[], &[]);
        for index in 0..9 {
            let interface = format!("p{index}");
            for address in ["fd00:0:0:INDEX::", "10.INDEX.0."] {
                let at =
                    |node: usize| format!("{address}{node}").replace("INDEX", &index.to_string());
                for node in 0..2 {
                    nodes.uplinks[node].push(uplink(&interface, &at(node)));
                }
                nodes = nodes.reach(&at(0), &at(1));
            }
        }
        let paths = proposed(&nodes.sides(), &[]);
        assert_eq!(paths.len(), 8);
        assert!(paths.iter().all(|path| path.ends[0].address.is_ipv4()));
    }
}
