//! The settings of the kernel that an agent needs beside its programs, and that other programs may change.

use crate::node::Node;
use anyhow::{Context, Result};
use hawser_io::kept::{
    Filters, ForwardedPass, Forwarding, Item, LooseFilter, NoReversePathRule, Rules, Watch,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// The consequence for hosts behind a node.
const BEHIND: &str = "receivers on other hosts get nothing";

/// Keeps what the node needs as long as the returned value exists.
pub(crate) fn watch(node: &Node) -> Result<Watch> {
    let filters = node.filters();
    let forwarding = [false, true].map(|is_ipv6| Forwarding {
        is_ipv6,
        consequence: BEHIND.to_owned(),
    });
    // The agent does not know whether its flows are for other hosts. A machine that forwards packets
    // when the agent starts is a router, and should stay one.
    let is_router = forwarding.map(|item| item.examine().is_none());
    let items = move |rules: &mut Rules| items(&filters, is_router, rules);
    Watch::start(items).context("cannot start the thread that restores settings of the kernel")
}

fn items(
    filters: &Arc<Mutex<Filters>>,
    is_router: [bool; 2],
    rules: &mut Rules,
) -> Vec<Box<dyn Item>> {
    let used = filters.lock().used().clone();
    if used.is_empty() {
        return Vec::new();
    }
    let rules = rules.current();
    let mut items: Vec<Box<dyn Item>> = vec![Box::new(NoReversePathRule {
        interfaces: used.iter().cloned().collect(),
        peers: None,
        rules: Arc::clone(&rules),
    })];
    for (is_ipv6, is_router) in [false, true].into_iter().zip(is_router) {
        if is_router {
            items.push(Box::new(Forwarding {
                is_ipv6,
                consequence: BEHIND.to_owned(),
            }));
        }
    }
    for interface in used {
        if is_router.contains(&true) {
            items.push(Box::new(ForwardedPass {
                interface: interface.clone(),
                networks: Vec::new(),
                consequence: BEHIND.to_owned(),
                rules: Arc::clone(&rules),
            }));
        }
        items.push(Box::new(LooseFilter {
            interface,
            filters: Some(Arc::clone(filters)),
        }));
    }
    items
}
