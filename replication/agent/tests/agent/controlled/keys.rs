//! The keys of a pair are made by its nodes: without a key file on either of them, while they are
//! replaced, and after a node was revoked.

use super::rig::{Controlled, stage, with_key_file};
use crate::rig::{Edges, Rig, assert_losses};
use hawser_agent::Status;
use hawser_agent::status::PeerStatus;
use hawser_model::Name;
use hawser_model::resource::{Event, Mode};
use hawser_testbed::traffic::{Family, StreamReport};
use hawser_testing::Control;
use std::fs;
use std::os::unix::fs::PermissionsExt;

fn ingress() -> Name {
    "ingress".parse().unwrap()
}

/// Returns the keys that an edge shares with the other one.
fn shared(status: &Status) -> &PeerStatus {
    let peers = &status.controller.as_ref().unwrap().peers;
    peers.values().next().unwrap()
}

/// Returns the generations from which the key for packets to the other edge is derived, if it is the
/// only one that is in use.
fn settled(status: &Status) -> Option<[u64; 2]> {
    let PeerStatus {
        own, peer, sends, ..
    } = shared(status);
    let sends = sends.filter(|_| (own.len(), peer.len()) == (1, 1))?;
    Some([sends.own, sends.peer])
}

/// Returns the number of replicas that an edge refused because of their key or flow.
fn refused(status: &Status) -> u64 {
    let reasons = ["dropped_tag", "dropped_unknown_flow"];
    let counts = reasons.map(|reason| status.not_deduplicated.get(reason).copied());
    counts.into_iter().flatten().sum()
}

fn replicas(status: &Status) -> u64 {
    let paths = status.receive.values().flat_map(|paths| paths.values());
    paths.map(|path| path.packets).sum()
}

/// Waits until that many more copies have arrived.
fn await_copies(edges: &mut Edges, count: u64) {
    let before = replicas(&edges.egress().unwrap());
    let arrived = |status: &Status| replicas(status) > before + count;
    edges
        .egress_agent
        .wait_until("got copies", arrived)
        .unwrap();
}

fn rekey(control: &Control, node: &Name) {
    let rekeyed = control.ask(async |client| client.rekey_node(node).await);
    rekeyed.unwrap();
}

/// Waits until both edges use one key of each, from other generations than before.
fn await_other_keys(edges: &mut Edges, before: [u64; 2]) -> [u64; 2] {
    let changed = |status: &Status| {
        settled(status).is_some_and(|[own, peer]| [own, peer] != before && [peer, own] != before)
    };
    let what = "used other keys";
    let status = edges.ingress_agent.wait_until(what, changed).unwrap();
    let [own, peer] = settled(&status).unwrap();
    let same = |status: &Status| settled(status) == Some([peer, own]);
    edges.egress_agent.wait_until(what, same).unwrap();
    [own, peer]
}

fn of_the_flow(reports: Vec<StreamReport>) -> Vec<StreamReport> {
    let is_v4 = |report: &StreamReport| report.stream.family == Family::Ipv4;
    reports.into_iter().filter(is_v4).collect()
}

#[test]
fn a_flow_works_without_a_key_file_and_its_packets_are_tagged() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    let reports = controlled.rig.under_traffic(|edges, _| {
        await_copies(edges, 1_000);
    });
    assert_losses(&of_the_flow(reports), 0, 0);
    let Rig { edges, .. } = &controlled.rig;
    for (status, node, other) in [
        (edges.ingress().unwrap(), "ingress", "egress"),
        (edges.egress().unwrap(), "egress", "ingress"),
    ] {
        assert_eq!(shared(&status).source, "nodes", "{node}");
        assert_eq!(refused(&status), 0);
        let private = controlled.rig.file("identity").join(node).join("pair.keys");
        let mode = fs::metadata(&private).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // The other node has the public key, and the controller no private one.
        let known = controlled
            .control
            .ask(async |client| client.node(&node.parse().unwrap()).await)
            .unwrap();
        assert_eq!(known.keys, shared(&status).own, "{other}");
    }
    assert!(!controlled.rig.file("pair.key").exists());
}

#[test]
fn a_node_is_told_that_only_its_peer_has_a_key_file() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    let untagged = |text: &str| {
        text.replace(
            "name = \"egress\"\n",
            "name = \"egress\"\nauthenticate = false\n",
        )
    };
    let edges = &mut controlled.rig.edges;
    let status = edges.ingress_agent.reconfigure(untagged).unwrap();
    assert_eq!(status.configuration.error, None);
    let told = |status: &Status| shared(status).obstacle.is_some();
    let status = edges.egress_agent.wait_until("knew", told).unwrap();
    let obstacle = shared(&status).obstacle.clone().unwrap();
    assert!(obstacle.contains("ingress uses a key file"), "{obstacle}");
}

#[test]
fn keys_are_replaced_under_traffic_and_nothing_is_lost() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    let Controlled { rig, control, .. } = &mut controlled;
    let reports = rig.under_traffic(|edges, _| {
        let status = edges
            .ingress_agent
            .wait_until("used a key", |status| settled(status).is_some())
            .unwrap();
        let mut keys = settled(&status).unwrap();
        for node in ["ingress", "egress"] {
            rekey(control, &node.parse().unwrap());
            keys = await_other_keys(edges, keys);
        }
        // Both at the same time: one after the other replaces its key.
        let both = ["ingress", "egress"].map(|node| node.parse().unwrap());
        both.iter().for_each(|node| rekey(control, node));
        let [own, peer] = keys;
        let changed = |status: &Status| {
            settled(status).is_some_and(|[new, other]| new != own && other != peer)
        };
        edges
            .ingress_agent
            .wait_until("changed both", changed)
            .unwrap();
    });
    assert_losses(&of_the_flow(reports), 0, 0);
    assert_eq!(refused(&controlled.rig.edges.egress().unwrap()), 0);
}

#[test]
fn the_peer_of_a_revoked_node_refuses_its_packets() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    let Controlled { rig, control, .. } = &mut controlled;
    rig.under_traffic(|edges, _| {
        await_copies(edges, 100);
        // The node continues to send: nobody can make it stop.
        control
            .ask(async |client| client.revoke_node(&ingress()).await)
            .unwrap();
        let refuses = |status: &Status| refused(status) > 100;
        edges
            .egress_agent
            .wait_until("refused copies", refuses)
            .unwrap();
        let status = edges.egress().unwrap();
        let obstacle = shared(&status).obstacle.clone().unwrap();
        assert!(obstacle.contains("was revoked"), "{obstacle}");
    });
    let is_of_flow = |event: &Event| event.flow == Some(stage());
    let events = controlled.control.events().unwrap();
    assert!(events.iter().any(is_of_flow));
}

#[test]
fn a_deleted_flow_takes_the_keys_of_the_pair_with_it() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    controlled
        .control
        .ask(async |client| client.delete_flow(&stage()).await)
        .unwrap();
    let edges = &mut controlled.rig.edges;
    for agent in [&mut edges.ingress_agent, &mut edges.egress_agent] {
        let dropped = |status: &Status| {
            let controller = status.controller.as_ref().unwrap();
            controller.peers.is_empty() && status.receive.is_empty()
        };
        agent.wait_until("dropped the keys", dropped).unwrap();
    }
}

#[test]
fn a_key_file_on_both_nodes_wins() {
    let mut controlled = Controlled::with_flow(Mode::Replicate, None);
    hawser_agent::generate_key(&controlled.rig.file("pair.key")).unwrap();
    let edges = &mut controlled.rig.edges;
    for (agent, peer) in [
        (&mut edges.egress_agent, "ingress"),
        (&mut edges.ingress_agent, "egress"),
    ] {
        agent.reconfigure(with_key_file(peer, "pair.key")).unwrap();
    }
    let by_hand = |status: &Status| shared(status).source == "file";
    for agent in [&mut edges.ingress_agent, &mut edges.egress_agent] {
        agent.wait_until("used the file", by_hand).unwrap();
    }
    let reports = controlled.rig.under_traffic(|edges, _| {
        await_copies(edges, 100);
    });
    assert_losses(&of_the_flow(reports), 0, 0);
}
