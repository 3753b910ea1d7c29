//! The interfaces of which the controller may make paths, with their current addresses.

use crate::config::{Config, PathConfig};
use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_model::discovery::{AssignedPath, Discovery, Uplink};
use hawser_units::PathId;
use std::collections::BTreeMap;

/// Returns the uplinks of the node: the smallest address of each IP version of each interface, for up
/// to [`Uplink::MAX`] addresses.
pub(crate) fn current(config: &Config) -> Result<Vec<Uplink>> {
    if config.uplinks.is_empty() {
        return Ok(Vec::new());
    }
    let all = interface::all().context("cannot read the interfaces of this node")?;
    let is_written = |name: &str| {
        let mut paths = config.paths.values();
        paths.any(|path| !path.discovered && path.interface == name)
    };
    let mut interfaces = all;
    interfaces.retain(|found| config.uplinks.contains(&found.name) && !is_written(&found.name));
    interfaces.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut uplinks = Vec::new();
    for found in interfaces {
        // An interface may vanish in between.
        let addresses = interface::addresses_of(&found.name).unwrap_or_default();
        for is_ipv4 in [true, false] {
            let mut addresses = addresses
                .iter()
                .filter(|address| interface::is_reachable(**address));
            let address = addresses.find(|address| address.is_ipv4() == is_ipv4);
            uplinks.extend(address.map(|address| Uplink {
                interface: found.name.clone(),
                address: *address,
                tunnel: found.is_tunnel(),
            }));
        }
    }
    uplinks.truncate(Uplink::MAX);
    Ok(uplinks)
}

/// Returns the paths that the controller has made.
pub(crate) fn paths(discovery: &Discovery) -> BTreeMap<PathId, PathConfig> {
    let described = |AssignedPath { number, way }: &AssignedPath| {
        let path = PathConfig {
            interface: way.interface.clone(),
            local: Some(way.ends.local),
            remote: way.ends.remote,
            next_hop: None,
            mtu_bytes: None,
            peer: Some(way.peer.to_string()),
            discovered: true,
        };
        Some((PathId::from_number(*number)?, path))
    };
    discovery.paths.iter().filter_map(described).collect()
}
