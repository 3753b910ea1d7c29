//! Paths that refuse native XDP, paths on which something drops packets, and next hops that move.

use crate::narrow::route_path_2;
use crate::rig::{Edges, RATE_PPS, Rig, assert_losses, brings_copies};
use crate::support::hawser;
use hawser_agent::Status;
use hawser_shim::echo::{Echo, EchoKind};
use hawser_testbed::edges::{Replication, Sender};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{End, Lab, Link, network_egress, network_ingress};
use hawser_testbed::traffic::Kind;
use hawser_units::{PathId, PathSet};
use std::net::{SocketAddr, UdpSocket};

const PAYLOAD_BYTES: usize = 200;

/// Gives the interfaces of all paths an MTU with which veth devices refuse native XDP.
fn make_jumbo(lab: &Lab) {
    for path in lab.paths() {
        let set = |namespace: &Namespace, device: &str| {
            namespace
                .ip(&format!("link set {device} mtu 9000"))
                .unwrap();
        };
        set(lab.network(), &network_ingress(path));
        set(lab.network(), &network_egress(path));
        set(lab.ingress(), &lab.path(path).near.device);
        set(lab.egress(), &lab.path(path).far.device);
    }
}

#[test]
fn an_interface_that_refuses_native_xdp_is_used_otherwise() {
    for sender in [Sender::Source, Sender::Ingress] {
        let replication = Replication {
            sender,
            both_ways: true,
            ..Replication::on(PathSet::from_bits(0b11))
        };
        let mut rig = Rig::prepared(&replication, make_jumbo);
        let kind = (RATE_PPS, PAYLOAD_BYTES);
        let reports = rig.under_traffic_of(sender, Kind::UdpConnected, kind, |edges, _| {
            (1..=2).for_each(|path| brings_copies(edges, path));
        });
        assert_losses(&reports, 0, 0);
        let status = rig.edges.egress().unwrap();
        let mode = &status.modes["path1"]["deduplicate"];
        assert_ne!(mode.mode, "native");
        assert!(mode.reason.contains("native XDP is refused"), "{mode:?}");
        let log = rig.edges.egress_agent.log();
        assert!(log.contains("native mode does not work"), "{log}");
    }
}

/// Drops packets to UDP ports on a path, and nothing else.
fn block(lab: &Lab, path: usize, ports: &str) {
    act_on(lab, path, &format!("udp dport {ports} drop"));
}

/// Adds a rule of a firewall to a path, in the direction of the egress edge.
fn act_on(lab: &Lab, path: usize, rule: &str) {
    let path = lab.paths().nth(path - 1).unwrap();
    let rules = format!(
        "table bridge firewall {{ chain forward {{ type filter hook forward priority 0; iifname \"{}\" {rule}; }}; }}",
        network_ingress(path)
    );
    run_nft(lab.network(), &rules);
}

fn unblock(lab: &Lab) {
    run_nft(lab.network(), "delete table bridge firewall");
}

fn run_nft(namespace: &Namespace, rules: &str) {
    let command = namespace.command("nft").unwrap().arg(rules).status();
    assert!(command.unwrap().success(), "{rules:?}");
}

#[test]
fn a_firewall_that_drops_copies_is_named_and_avoided() {
    let mut rig = Rig::new();
    let blocked = |status: &Status| {
        let path = &status.paths[&2];
        let reason = path.reason.as_deref().unwrap_or_default();
        !path.up && reason.contains("copies do not arrive: UDP 14747 seems to be dropped")
    };
    let works = |status: &Status| status.paths[&2].up;
    // Without traffic, too.
    block(&rig.lab, 2, "14747");
    let agent = &mut rig.edges.ingress_agent;
    let status = agent.wait_until("named the firewall", blocked).unwrap();
    assert!(status.paths[&1].up);
    agent.wait_until_logged("copies do not arrive").unwrap();
    let reports = rig.under_traffic(|edges, lab| {
        brings_copies(edges, 1);
        unblock(lab);
        (edges.ingress_agent)
            .wait_until("used the path again", works)
            .unwrap();
        brings_copies(edges, 2);
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_flow_whose_only_path_drops_copies_takes_the_default_route() {
    let only_path_2 = Replication::on(PathSet::from_bits(0b10));
    let mut rig = Rig::replicating(&only_path_2);
    block(&rig.lab, 2, "14747");
    let left_out = |status: &Status| !status.paths[&2].up;
    let agent = &mut rig.edges.ingress_agent;
    agent.wait_until("left the path out", left_out).unwrap();
    let reports = rig.under_traffic(|edges, _| {
        let passes = |status: &Status| status.not_replicated.contains_key("passed_no_path");
        (edges.ingress_agent)
            .wait_until("passed packets on", passes)
            .unwrap();
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_firewall_in_front_of_measurements_alone_changes_nothing() {
    let mut rig = Rig::new();
    block(&rig.lab, 2, "14751");
    let reports = rig.under_traffic(|edges, _| {
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
    assert!(rig.edges.ingress().unwrap().paths[&2].up);
}

/// More requests than after which a path is left out, on each of two paths.
const REQUESTS: u64 = 60;

/// Returns how many echo requests an edge's own firewall has dropped on the port of copies.
fn dropped_requests(edge: &Namespace) -> u64 {
    let mut nft = edge.command("nft").unwrap();
    let list = ["list", "counter", "inet", "own", "requests"];
    let output = nft.args(list).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace();
    words.find(|word| *word == "packets").unwrap();
    words.next().unwrap().parse().unwrap()
}

#[test]
fn a_nodes_own_firewall_and_forged_requests_take_no_path_out() {
    let mut rig = Rig::new();
    let rules = "table inet own { counter requests { } ; chain input { type filter hook input priority 0 ; \
                 udp sport 14747 udp dport 14747 counter name requests drop ; udp dport 14747 drop ; } ; }";
    let mut nft = rig.lab.egress().command("nft").unwrap();
    assert!(nft.arg(rules).status().unwrap().success());
    let remotes = rig.lab.paths().map(|path| rig.lab.path(path).far.v4);
    let forged: Vec<_> = remotes
        .zip(1..)
        .map(|(remote, path)| {
            let request = Echo {
                kind: EchoKind::Request,
                path: PathId::from_number(path).unwrap(),
                number: 666,
                held_micros: 0,
            };
            (SocketAddr::new(remote.into(), 14747), request.emit(None))
        })
        .collect();
    let open = || UdpSocket::bind("0.0.0.0:0").unwrap();
    let forger = rig.lab.ingress().run(open).unwrap();
    let lab = &rig.lab;
    let agent = &mut rig.edges.ingress_agent;
    let status = agent.wait_until("sent enough requests", |_| {
        for (remote, request) in &forged {
            forger.send_to(request, remote).unwrap();
        }
        dropped_requests(lab.egress()) >= REQUESTS
    });
    let paths = status.unwrap().paths;
    assert!(paths[&1].up && paths[&2].up, "{paths:?}");
}

#[test]
fn a_firewall_that_drops_all_is_named() {
    let mut rig = Rig::new();
    let blocked = |status: &Status| {
        let path = &status.paths[&2];
        let reason = path.reason.as_deref().unwrap_or_default();
        !path.up && reason.contains("nothing arrives") && reason.contains("UDP 14747")
    };
    block(&rig.lab, 2, "{ 14747, 14751 }");
    for agent in [&mut rig.edges.ingress_agent, &mut rig.edges.egress_agent] {
        let status = agent.wait_until("named the path", blocked).unwrap();
        assert!(status.paths[&1].up);
    }
    let reports = rig.under_traffic(|edges, lab| {
        brings_copies(edges, 1);
        unblock(lab);
        let works = |status: &Status| status.paths[&2].up;
        let agent = &mut edges.ingress_agent;
        agent.wait_until("found the path again", works).unwrap();
        brings_copies(edges, 2);
    });
    assert_losses(&reports, 0, 0);
}

/// Waits until the ingress edge's packets take the default route because the other node is silent, and
/// acts. Returns when both paths work again.
fn assert_default_route_until(rig: &mut Rig, act: impl FnOnce(&mut Edges, &Lab)) {
    let is_named = |status: &Status| {
        (1..=2).all(|path| {
            let path = &status.paths[&path];
            let reason = path.reason.as_deref().unwrap_or_default();
            !path.up && reason.contains("answers on no path") && reason.contains("UDP 14747")
        })
    };
    let works = |status: &Status| status.paths[&1].up && status.paths[&2].up;
    let agent = &mut rig.edges.ingress_agent;
    agent.wait_until("named the silence", is_named).unwrap();
    agent.wait_until_logged("answers on no path").unwrap();
    let reports = rig.under_traffic(|edges, lab| {
        let passes = |status: &Status| status.not_replicated.contains_key("passed_no_path");
        let agent = &mut edges.ingress_agent;
        agent.wait_until("passed packets on", passes).unwrap();
        act(edges, lab);
        let agent = &mut edges.ingress_agent;
        agent.wait_until("found the paths again", works).unwrap();
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_flow_takes_the_default_route_while_all_paths_drop_all() {
    let mut rig = Rig::new();
    block(&rig.lab, 1, "14700-14800");
    block(&rig.lab, 2, "14700-14800");
    assert_default_route_until(&mut rig, |edges, lab| {
        let reason = edges.egress().unwrap().paths[&1].reason.clone();
        assert!(reason.is_some_and(|why| why.contains("answers on no path")));
        unblock(lab);
    });
}

#[test]
fn a_flow_takes_the_default_route_until_the_other_agent_runs() {
    let mut rig = Rig::new();
    assert!(rig.edges.egress_agent.terminate().unwrap().success());
    let program = hawser();
    let mut detach = rig.lab.egress().command(program.to_str().unwrap()).unwrap();
    let detach = detach.args(["agent", "--detach", "--config"]);
    let file = rig.edges.egress_agent.configuration_file();
    assert!(detach.arg(file).status().unwrap().success());
    assert_default_route_until(&mut rig, |edges, _| {
        edges.egress_agent.start_again().unwrap();
    });
}

#[test]
fn a_firewall_of_the_sender_is_named_and_ends_nothing() {
    let mut rig = Rig::new();
    let dropped = "table inet own { counter requests { } ; chain output { type filter hook output priority 0 ; \
                   udp dport 14747 counter name requests drop ; } ; }";
    run_nft(rig.lab.ingress(), dropped);
    let lab = &rig.lab;
    let agent = &mut rig.edges.ingress_agent;
    let status = agent.wait_until("dropped enough requests", |_| {
        dropped_requests(lab.ingress()) >= REQUESTS
    });
    let status = status.unwrap();
    assert!(status.paths[&1].up && status.paths[&2].up, "{status:?}");
    for name in ["measurement of path 1", "measurement of path 2"] {
        let mut found = status.deviations.iter();
        let found = found.find(|found| found.name == name).unwrap();
        assert!(found.what.contains("this node's firewall") && !found.restored);
    }
    let reports = rig.under_traffic(|edges, _| {
        (1..=2).for_each(|path| brings_copies(edges, path));
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_router_that_refuses_copies_is_named_and_its_path_left_out() {
    let replication = Replication::on(PathSet::from_bits(0b11));
    let mut rig = Rig::prepared(&replication, |lab| {
        route_path_2(lab);
        let inward = network_ingress(PathId::from_number(2).unwrap());
        let rules = format!(
            "table inet firewall {{ chain forward {{ type filter hook forward priority 0; \
             iifname \"{inward}\" udp dport 14747 reject; }}; }}"
        );
        run_nft(lab.network(), &rules);
    });
    let named = |status: &Status| {
        let path = &status.paths[&2];
        let reason = path.reason.as_deref().unwrap_or_default();
        !path.up && reason.contains("copies do not arrive: UDP 14747")
    };
    let agent = &mut rig.edges.ingress_agent;
    let status = agent.wait_until("named the firewall", named).unwrap();
    assert!(status.paths[&1].up);
    let reports = rig.under_traffic(|edges, _| brings_copies(edges, 1));
    assert_losses(&reports, 0, 0);
}
#[test]
fn a_path_that_carries_small_packets_only_is_left_out() {
    let mut rig = Rig::new();
    act_on(&rig.lab, 2, "udp dport 14747 udp length > 300 drop");
    let named = |status: &Status| {
        let path = &status.paths[&2];
        let reason = path.reason.as_deref().unwrap_or_default();
        !path.up && reason.contains("large packets do not arrive")
    };
    let works = |status: &Status| status.paths[&2].up;
    let agent = &mut rig.edges.ingress_agent;
    let status = agent.wait_until("named the path", named).unwrap();
    assert!(status.paths[&1].up);
    let reports = rig.under_traffic(|edges, lab| {
        brings_copies(edges, 1);
        unblock(lab);
        let agent = &mut edges.ingress_agent;
        agent.wait_until("used the path again", works).unwrap();
        brings_copies(edges, 2);
    });
    assert_losses(&reports, 0, 0);
}

fn second_path(lab: &Lab) -> &Link {
    lab.path(PathId::from_number(2).unwrap())
}

/// Returns whether the last deviation of path 2's next hop has ended, and how many there were.
fn next_hop(status: &Status) -> Option<(bool, u64)> {
    let mut deviations = status.deviations.iter();
    let found = deviations.find(|found| found.name == "next hop of path 2")?;
    Some((found.restored, found.count))
}

/// As a router does that takes over another one's address where ARP requests are suppressed.
#[test]
fn a_next_hop_that_gets_another_address_without_arp_is_found() {
    const RULES: &str = "table arp suppressed { chain out { type filter hook output priority 0; arp operation request drop; }; }";
    let replication = Replication::on(PathSet::from_bits(0b11));
    let mut rig = Rig::prepared(&replication, |lab| {
        let Link { near, far, .. } = second_path(lab);
        let forget =
            |own: &End, other: &End| format!("neigh delete {} dev {}", other.v4, own.device);
        lab.ingress().ip(&forget(near, far)).unwrap();
        lab.egress().ip(&forget(far, near)).unwrap();
    });
    let reports = rig.under_traffic(|edges, lab| {
        brings_copies(edges, 2);
        let count = |status: &Status| next_hop(status).map_or(0, |found| found.1);
        let before = count(&edges.ingress().unwrap());
        run_nft(lab.egress(), RULES);
        let far = &second_path(lab).far.device;
        let moved = format!("link set {far} address 02:00:00:00:0d:02");
        lab.egress().ip(&moved).unwrap();
        let is_found = |status: &Status| {
            count(status) > before && next_hop(status).is_some_and(|found| found.0)
        };
        let agent = &mut edges.ingress_agent;
        agent.wait_until("found the next hop", is_found).unwrap();
        brings_copies(edges, 2);
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn packets_that_no_flow_selects_are_said_with_an_example() {
    let mut rig = Rig::new();
    let status = rig.edges.ingress_agent.reconfigure(|text| {
        let tcp_alone = "protocol = \"tcp\", destination = ";
        text.replace("destination = ", tcp_alone)
    });
    assert_eq!(status.unwrap().configuration.error, None);
    let reports = rig.under_traffic(|edges, _| {
        let is_said = |status: &Status| {
            let unselected = status.unselected.as_ref();
            unselected.is_some_and(|found| found.packets > 0 && found.example.contains("UDP port"))
        };
        let agent = &mut edges.ingress_agent;
        agent.wait_until("named an example", is_said).unwrap();
        agent.wait_until_logged("packets match no flow").unwrap();
    });
    assert_losses(&reports, 0, 0);
}
