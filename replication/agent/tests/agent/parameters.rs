//! Parameters of the kernel that deduplication needs: the agent sets them, and puts back what it found.

use crate::rig::{Rig, assert_losses, brings_copies, reverse_path_filter};
use crate::support::hawser;
use hawser_replication_bpf::Link;
use hawser_testbed::edges::Replication;
use hawser_testbed::topology::Lab;
use hawser_units::PathSet;
use std::process::Output;

/// Makes the reverse path filter of path 2 at the egress edge strict: packets from the source do not
/// arrive on the route back there.
fn strict(lab: &Lab) {
    lab.egress()
        .sysctl("net.ipv4.conf.path2.rp_filter", "1")
        .unwrap();
}

/// Runs `hawser agent` with the egress edge's file after `prepare`, commands of a shell in a mount
/// namespace of its own.
fn agent(rig: &Rig, prepare: &str, argument: &str) -> Output {
    let script = format!("{prepare} exec \"$0\" agent --config \"$1\" {argument}");
    let mut command = rig.lab.egress().command("unshare").unwrap();
    command
        .args(["-m", "sh", "-c", &script])
        .arg(hawser())
        .arg(rig.file("egress.toml"));
    command.output().unwrap()
}

#[test]
fn a_reverse_path_filter_is_loose_while_deduplicating() {
    let replication = Replication::on(PathSet::from_bits(0b11));
    let mut rig = Rig::prepared(&replication, strict);
    let filter = |rig: &Rig| reverse_path_filter(rig.lab.egress(), "path2");
    assert_eq!(filter(&rig), "2");
    let log = rig.edges.egress_agent.log();
    assert!(
        log.contains("the reverse path filter is loose now"),
        "{log}"
    );
    let reports = rig.under_traffic(|edges, lab| {
        (1..=2).for_each(|path| brings_copies(edges, path));
        // From here on, all packets come by the path that a strict filter would not accept.
        lab.network().ip("link set bridge0 down").unwrap();
        brings_copies(edges, 2);
    });
    assert_losses(&reports, 0, 0);
    rig.edges.egress_agent.terminate().unwrap();
    assert_eq!(filter(&rig), "2", "deduplication goes on");
    let detached = agent(&rig, "", "--detach");
    assert!(detached.status.success(), "{detached:?}");
    assert_eq!(filter(&rig), "1");
}

#[test]
fn a_reverse_path_filter_that_is_made_strict_is_loosened_again() {
    let mut rig = Rig::new();
    let set = |rig: &Rig, scope: &str, value| {
        let key = format!("net.ipv4.conf.{scope}.rp_filter");
        rig.lab.egress().sysctl(&key, value).unwrap();
    };
    // The filter of `all` is in force where that of the interface is smaller.
    for (changes, expected) in [
        ([("path2", "1")].as_slice(), [("path2", 1)].as_slice()),
        (
            &[("path1", "0"), ("path2", "0"), ("all", "1")],
            &[("path1", 1), ("path2", 2)],
        ),
        (&[("path1", "1")], &[("path1", 2)]),
    ] {
        for (scope, value) in changes {
            set(&rig, scope, value);
        }
        let is_loose = |status: &hawser_agent::Status| {
            expected.iter().all(|(path, count)| {
                let name = format!("net.ipv4.conf.{path}.rp_filter");
                let mut found = status.deviations.iter();
                found.any(|found| found.name == name && found.restored && found.count == *count)
            })
        };
        rig.edges
            .egress_agent
            .wait_until("loosened it", is_loose)
            .unwrap();
        for (path, _) in expected {
            assert_eq!(reverse_path_filter(rig.lab.egress(), path), "2");
        }
    }
}

#[test]
fn a_program_that_another_one_detaches_is_attached_again() {
    let mut rig = Rig::new();
    let index = || hawser_io::interface::index("path1").unwrap();
    let number = rig.lab.egress().run(index).unwrap();
    let config = hawser_agent::Config::read(&rig.file("egress.toml")).unwrap();
    let pin = config
        .pins
        .join(&config.name)
        .join(format!("link-{number}"));
    Link::open(&pin).unwrap().detach().unwrap();
    let is_attached = |status: &hawser_agent::Status| {
        let mut found = status.deviations.iter();
        found.any(|found| found.name == "deduplication on path1" && found.restored)
    };
    rig.edges
        .egress_agent
        .wait_until("attached it", is_attached)
        .unwrap();
    let link = Link::open(&pin).unwrap();
    assert_eq!(link.interface().unwrap(), Some(number));
}

/// Returns the attachments of a process to an interface.
fn attachments(process: u32, interface: u32) -> Vec<Link> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap();
    let texts = descriptors.filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok());
    let numbers = texts.filter_map(|text| {
        let number = text
            .lines()
            .find_map(|line| line.strip_prefix("link_id:"))?;
        number.trim().parse().ok()
    });
    let links = numbers.map(|number| Link::by_number(number).unwrap());
    links
        .filter(|link| link.interface().unwrap() == Some(interface))
        .collect()
}

#[test]
fn icmp_errors_are_read_again_after_another_program_stopped_it() {
    let mut rig = Rig::new();
    let index = || hawser_io::interface::index("path1").unwrap();
    let number = rig.lab.ingress().run(index).unwrap();
    let process = rig.edges.ingress().unwrap().pid;
    let [link] = &attachments(process, number)[..] else {
        panic!("this edge deduplicates nothing, so nothing else is attached");
    };
    link.detach().unwrap();
    let is_attached = |status: &hawser_agent::Status| {
        let mut found = status.deviations.iter();
        found.any(|found| found.name == "reading of ICMP errors on path1" && found.restored)
    };
    let agent = &mut rig.edges.ingress_agent;
    agent.wait_until("attached it", is_attached).unwrap();
    assert_eq!(attachments(process, number).len(), 1);
}

#[test]
fn rules_and_parameters_that_drop_packets_are_named() {
    let mut rig = Rig::new();
    let rules = "table inet firewalld { chain filter_PREROUTING { type filter hook prerouting priority 10 ; \
                 meta nfproto ipv6 fib saddr . mark . iif oif missing drop ; } ; } ; \
                 table ip filter { chain FORWARD { type filter hook forward priority 0 ; policy drop ; } ; }";
    let nft = |lab: &Lab, rules: &str| {
        let mut nft = lab.egress().command("nft").unwrap();
        assert!(nft.arg(rules).status().unwrap().success());
    };
    let forward = |lab: &Lab, value| lab.egress().sysctl("net.ipv4.ip_forward", value).unwrap();
    const NAMES: [&str; 3] = [
        "reverse path filter of the firewall",
        "forwarding of path1 through the firewall",
        "net.ipv4.ip_forward",
    ];
    let named = |status: &hawser_agent::Status| {
        let unrestored = status.deviations.iter().filter(|found| !found.restored);
        let names: Vec<_> = unrestored.map(|found| found.name.as_str()).collect();
        NAMES.iter().all(|name| names.contains(name))
    };
    rig.under_traffic(|edges, lab| {
        nft(lab, rules);
        forward(lab, "0");
        edges.egress_agent.wait_until("named them", named).unwrap();
        forward(lab, "1");
        nft(lab, "delete table inet firewalld; delete table ip filter");
    });
}

#[test]
fn a_read_only_reverse_path_filter_refuses_the_start() {
    let mut rig = Rig::new();
    rig.edges.egress_agent.terminate().unwrap();
    assert!(agent(&rig, "", "--detach").status.success());
    strict(&rig.lab);
    let read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys &&";
    let refused = agent(&rig, read_only, "");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success());
    let command = "sysctl -w net.ipv4.conf.path2.rp_filter=2";
    assert!(said.contains(command), "{said}");
}
