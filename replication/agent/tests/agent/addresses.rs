//! Addresses and routes of paths that change while agents run, as DHCP changes them.

use crate::rig::{Edges, Rig, assert_losses, brings_copies};
use hawser_agent::Status;
use hawser_io::clock::unix_ms;
use hawser_testbed::edges::Replication;
use hawser_testbed::topology::Lab;
use hawser_units::PathSet;
use std::fs;

fn rig() -> Rig {
    Rig::replicating(&Replication::on(PathSet::from_bits(0b11)))
}

/// Restarts both agents without fixed addresses on their paths.
fn follow_addresses(edges: &mut Edges) {
    for agent in [&mut edges.egress_agent, &mut edges.ingress_agent] {
        agent.terminate().unwrap();
        let file = agent.configuration_file();
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("local ="));
        fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
        agent.start_again().unwrap();
    }
}

/// Waits until the second path of the ingress edge has changed in a way that contains `words`.
fn await_change(edges: &mut Edges, since_unix_ms: u64, words: &str) {
    let changed = |status: &Status| {
        let change = status.paths[&2].changed.as_ref();
        change
            .is_some_and(|change| change.at_unix_ms >= since_unix_ms && change.what.contains(words))
    };
    let agent = &mut edges.ingress_agent;
    agent.wait_until("noticed the change", changed).unwrap();
    assert!(agent.log().contains(words), "{}", agent.log());
}

#[test]
fn a_path_follows_the_address_of_its_interface() {
    let mut rig = rig();
    follow_addresses(&mut rig.edges);
    let reports = rig.under_traffic(|edges, lab| {
        (1..=2).for_each(|path| brings_copies(edges, path));
        let before = unix_ms();
        lab.ingress().ip("addr del 10.1.2.1/30 dev path2").unwrap();
        await_change(edges, before, "address none instead of 10.1.2.1");
        let has_none = |status: &Status| {
            let path = &status.paths[&2];
            let reason = path.reason.as_deref().unwrap_or_default();
            !path.up && reason.contains("has no address")
        };
        let agent = &mut edges.ingress_agent;
        agent.wait_until("lost its address", has_none).unwrap();
        brings_copies(edges, 1);
        let before = unix_ms();
        lab.ingress().ip("addr add 10.1.2.77/24 dev path2").unwrap();
        await_change(edges, before, "address 10.1.2.77 instead of none");
        let is_up = |status: &Status| {
            let path = &status.paths[&2];
            path.up && path.local == Some([10, 1, 2, 77].into())
        };
        let agent = &mut edges.ingress_agent;
        agent.wait_until("used its address", is_up).unwrap();
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_path_without_its_fixed_address_returns_with_it() {
    let mut rig = rig();
    let reports = rig.under_traffic(|edges, lab| {
        let change = |what: &str| {
            lab.ingress()
                .ip(&format!("addr {what} 10.1.2.1/30 dev path2"))
                .unwrap();
        };
        change("del");
        let says_so = |status: &Status| {
            let path = &status.paths[&2];
            let reason = path.reason.as_deref().unwrap_or_default();
            !path.up && reason.contains("its address 10.1.2.1 is not an address of this node")
        };
        let agent = &mut edges.ingress_agent;
        agent.wait_until("lost its address", says_so).unwrap();
        brings_copies(edges, 1);
        change("add");
        let is_up = |status: &Status| status.paths[&2].up;
        let agent = &mut edges.ingress_agent;
        agent.wait_until("used its address", is_up).unwrap();
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
}

/// Returns the link-layer address of the bridge in path 2.
fn mac_of_bridge(lab: &Lab) -> String {
    let mut command = lab.network().command("ip").unwrap();
    let output = command
        .args(["-o", "link", "show", "dev", "bridge1"])
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    let mut words = text.split_whitespace();
    words.find(|word| *word == "link/ether").unwrap();
    words.next().unwrap().to_owned()
}

#[test]
fn a_path_follows_the_route_to_another_router() {
    let mut rig = rig();
    let reports = rig.under_traffic(|edges, lab| {
        (1..=2).for_each(|path| brings_copies(edges, path));
        // The router is the bridge, which forwards nothing: copies on this path are lost until the
        // route is as before.
        let other = format!(
            "addr add 10.1.2.65/26 dev path2\n\
             neigh replace 10.1.2.66 lladdr {} nud permanent dev path2\n",
            mac_of_bridge(lab)
        );
        lab.ingress().ip(&other).unwrap();
        let before = unix_ms();
        lab.ingress()
            .ip("route add 10.1.2.2/32 via 10.1.2.66 dev path2")
            .unwrap();
        await_change(edges, before, "another link-layer address or next hop");
        brings_copies(edges, 1);
        let before = unix_ms();
        lab.ingress().ip("route del 10.1.2.2/32 dev path2").unwrap();
        await_change(edges, before, "another link-layer address or next hop");
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
}
