//! This node's addresses on its paths, which may change while the agent runs (DHCP).

use crate::config::{Config, PathConfig};
use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_units::PathId;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The current address of each path, or the reason that it has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Locals(BTreeMap<PathId, Result<IpAddr, String>>);

impl Locals {
    pub(super) fn read(config: &Config) -> Result<Self> {
        let own = interface::addresses().context("cannot read the addresses of this node")?;
        let own = own.into_iter().map(|(address, _)| address).collect();
        let paths = config.paths.iter();
        Ok(Locals(
            paths
                .map(|(path, description)| (*path, local(description, &own)))
                .collect(),
        ))
    }

    /// Returns the current address of a path.
    pub(super) fn get(&self, path: PathId) -> Option<IpAddr> {
        self.0.get(&path)?.as_ref().ok().copied()
    }

    /// Returns the reason that a path has no address.
    pub(super) fn obstacle(&self, path: PathId) -> Option<&str> {
        self.0.get(&path)?.as_ref().err().map(String::as_str)
    }
}

fn local(path: &PathConfig, own: &BTreeSet<IpAddr>) -> Result<IpAddr, String> {
    let name = &path.interface;
    match path.local {
        Some(fixed) if own.contains(&fixed) => Ok(fixed),
        Some(fixed) => Err(format!(
            "its address {fixed} is not an address of this node: set it on {name}, or remove `local` to use the current \
             address of {name}"
        )),
        None => current_local(path).ok_or_else(|| {
            format!(
                "its interface {name} has no address from which {} is reached",
                path.remote
            )
        }),
    }
}

/// Returns the address that the kernel would use on a path.
pub(crate) fn current_local(path: &PathConfig) -> Option<IpAddr> {
    let name = &path.interface;
    let source = interface::route(path.remote, Some(name)).ok()?.source?;
    // Without an address on the interface, the kernel chooses one of another interface.
    let own = interface::addresses_of(name).ok()?;
    own.contains(&source).then_some(source)
}
