//! Parameters of the kernel that deduplication needs: the agent sets them, and puts back what it found.

use crate::rig::{Rig, assert_losses, brings_copies, reverse_path_filter};
use crate::support::hawser;
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
fn a_strict_reverse_path_filter_is_loose_while_copies_are_deduplicated() {
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
fn a_strict_reverse_path_filter_that_cannot_be_changed_is_refused_with_the_command() {
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
