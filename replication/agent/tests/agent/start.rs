//! An agent starts even if parts of its network do not work yet, and the state in the kernel then
//! matches its file.

use crate::rig::{
    Agent, Edges, IN_FLIGHT, RATE_PPS, Rig, assert_losses, await_copies, egress_copies, unplugged,
    xdp,
};
use crate::support::wait;
use hawser_testbed::edges::{Replication, Sender};
use hawser_testbed::topology::{Edge, Lab};
use hawser_units::PathSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Starts the ingress agent while path 2 does not work. The agent reports `why`, and uses the other
/// path.
fn start_without_path_2(edges: &mut Edges, why: &str) {
    let before = egress_copies(edges, 1);
    edges.ingress_agent.start_again().unwrap();
    await_copies(edges, 1, before);
    let status = edges.ingress().unwrap();
    assert_eq!(
        (status.paths[&1].up, &status.paths[&1].reason),
        (true, &None)
    );
    let path = &status.paths[&2];
    assert!(
        !path.up && path.reason.as_ref().is_some_and(|text| text.contains(why)),
        "{path:?}"
    );
    assert!(
        edges.ingress_agent.log().contains(why),
        "{}",
        edges.ingress_agent.log()
    );
}

fn await_path_2(edges: &mut Edges) {
    edges
        .ingress_agent
        .wait_until("used path 2", |status| status.paths[&2].up)
        .unwrap();
    let before = egress_copies(edges, 2);
    await_copies(edges, 2, before);
}

/// Changes the configuration of an agent that is not running.
fn change(agent: &Agent, change: impl FnOnce(String) -> String) {
    let file = agent.configuration_file();
    fs::write(&file, change(fs::read_to_string(&file).unwrap())).unwrap();
}

/// Returns a configuration without the sections that start with `header` and contain `line`.
fn without(text: &str, header: &str, line: &str) -> String {
    let remaining = text
        .split("\n\n")
        .filter(|part| !(part.trim().starts_with(header) && part.contains(line)));
    remaining.collect::<Vec<_>>().join("\n\n")
}

#[test]
fn a_missing_interface_is_used_when_it_comes() {
    let mut rig = Rig::new();
    rig.edges.ingress_agent.terminate().unwrap();
    let reports = rig.under_traffic(|edges, lab| {
        unplugged(lab, Edge::Ingress, || {
            start_without_path_2(edges, "path2 does not exist")
        });
        await_path_2(edges);
    });
    assert_losses(&reports, IN_FLIGHT, 0);
}

#[test]
fn an_interface_that_is_down_is_used_when_it_is_up() {
    let mut rig = Rig::new();
    rig.edges.ingress_agent.terminate().unwrap();
    let reports = rig.under_traffic(|edges, lab| {
        lab.ingress().ip("link set path2 down").unwrap();
        start_without_path_2(edges, "path2 is down");
        lab.ingress().ip("link set path2 up").unwrap();
        await_path_2(edges);
    });
    assert_losses(&reports, IN_FLIGHT, 0);
}

#[test]
fn a_silent_next_hop_is_used_when_it_answers() {
    let mut rig = Rig::new();
    rig.edges.ingress_agent.terminate().unwrap();
    silence(&rig.lab, 1);
    let reports = rig.under_traffic(|edges, lab| {
        start_without_path_2(edges, "10.1.2.2 does not answer on path2");
        lab.bridge_for_xdp(lab.paths().nth(1).unwrap()).unwrap();
        await_path_2(edges);
    });
    assert_losses(&reports, IN_FLIGHT, 0);
}

#[test]
fn an_agent_without_any_path_starts_and_waits() {
    let mut rig = Rig::new();
    rig.edges.ingress_agent.terminate().unwrap();
    (0..2).for_each(|path| silence(&rig.lab, path));
    rig.edges.ingress_agent.start_again().unwrap();
    let status = rig.edges.ingress().unwrap();
    assert!(
        status
            .paths
            .values()
            .all(|path| !path.up && path.reason.is_some()),
        "{status:?}"
    );
    rig.lab
        .paths()
        .for_each(|path| rig.lab.bridge_for_xdp(path).unwrap());
    let is_up = |status: &hawser_agent::Status| status.paths.values().all(|path| path.up);
    rig.edges
        .ingress_agent
        .wait_until("used both paths", is_up)
        .unwrap();
    let reports =
        rig.under_traffic(|edges, _| (1..=2).for_each(|path| await_copies(edges, path, 0)));
    assert_losses(&reports, 0, 0);
}

#[test]
fn an_agent_waits_for_an_interface_that_traffic_is_to_come_by() {
    let mut rig = Rig::new();
    let agent = &mut rig.edges.ingress_agent;
    agent.terminate().unwrap();
    change(agent, |text| {
        text.replace("transit = [", "transit = [\"late0\", ")
    });
    agent.start_again().unwrap();
    assert!(agent.status().unwrap().unattached["late0"].contains("does not exist"));
    rig.lab
        .ingress()
        .ip("link add late0 type veth peer name late1\nlink set late0 up")
        .unwrap();
    agent
        .wait_until("attached to it", |status| status.unattached.is_empty())
        .unwrap();
    assert!(xdp(rig.lab.ingress(), "late0").is_some());
    let reports = rig.under_traffic(|edges, _| await_copies(edges, 2, 0));
    assert_losses(&reports, 0, 0);
}

/// Makes a path's next hop unreachable, and removes its neighbour entry.
fn silence(lab: &Lab, path: usize) {
    lab.network()
        .ip(&format!("link set in{} nomaster", path + 1))
        .unwrap();
    let far = &lab.addressing().paths[path].far;
    lab.ingress()
        .ip(&format!("neigh del {} dev path{}", far.v4, path + 1))
        .unwrap();
}

#[test]
fn a_refused_start_leaves_deduplication_as_it_was() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, lab| {
        let agent = &mut edges.egress_agent;
        agent.terminate().unwrap();
        let file = agent.configuration_file();
        let good = fs::read_to_string(&file).unwrap();
        // One flow less, and a path whose interface no program can be attached to.
        let bad = without(&good, "[[receive]]", "flow = 2").replace("\"path2\"", "\"lo\"");
        let bad = bad.replace("[node]\n", "[node]\ngeneric_xdp = false\n");
        fs::write(&file, bad).unwrap();
        let refusal = agent.start_again().unwrap_err().to_string();
        assert!(
            refusal.contains("lo") && refusal.contains("no native XDP"),
            "{refusal}"
        );
        assert_eq!(xdp(lab.egress(), "path2").as_deref(), Some("xdp"));
        fs::write(&file, good).unwrap();
        agent.start_again().unwrap();
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn what_the_file_no_longer_says_ends_with_a_restart() {
    let mut rig = Rig::new();
    let pins = rig.lab.pins("egress").join("egress");
    let links = || {
        names(&pins)
            .into_iter()
            .filter(|name| name.starts_with("link-"))
            .count()
    };
    assert_eq!(links(), 2);
    let reports = rig.under_traffic(|edges, lab| {
        let agent = &mut edges.egress_agent;
        agent.terminate().unwrap();
        change(agent, |text| {
            without(
                &without(&text, "[[receive]]", "flow = 2"),
                "[[path]]",
                "number = 2",
            )
        });
        agent.start_again().unwrap();
        let before = egress_copies(edges, 1);
        await_copies(edges, 1, before);
        let refuses = |status: &hawser_agent::Status| {
            status
                .not_deduplicated
                .get("dropped_unknown_flow")
                .is_some_and(|count| *count > 100)
        };
        edges
            .egress_agent
            .wait_until("refused the flow", refuses)
            .unwrap();
        assert_eq!((xdp(lab.egress(), "path2"), links()), (None, 1));
    });
    assert_losses(&reports[..1], 0, 0);
}

#[test]
fn without_flows_to_receive_a_restart_ends_deduplication() {
    let mut rig = Rig::new();
    rig.edges.ingress_agent.terminate().unwrap();
    let agent = &mut rig.edges.egress_agent;
    agent.terminate().unwrap();
    change(agent, |text| {
        without(
            &without(&text, "[[receive]]", "flow = 1"),
            "[[receive]]",
            "flow = 2",
        )
    });
    agent.start_again().unwrap();
    assert!(!rig.lab.pins("egress").join("egress").exists());
    wait("the end of the program", || {
        xdp(rig.lab.egress(), "path2").is_none().then_some(())
    });
}

#[test]
fn the_mode_of_xdp_follows_the_file_and_nothing_is_lost() {
    const GENERIC: &str = "[node]\ngeneric_xdp = true\n";
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, lab| {
        for (from, to, mode) in [
            ("[node]\n", GENERIC, "xdpgeneric"),
            (GENERIC, "[node]\n", "xdp"),
        ] {
            edges.egress_agent.terminate().unwrap();
            change(&edges.egress_agent, |text| text.replace(from, to));
            edges.egress_agent.start_again().unwrap();
            for path in 1..=2 {
                assert_eq!(
                    xdp(lab.egress(), &format!("path{path}")).as_deref(),
                    Some(mode)
                );
                let before = egress_copies(edges, path);
                await_copies(edges, path, before);
            }
            assert!(edges.egress_agent.log().contains("in another mode"));
        }
    });
    assert_losses(&reports, 0, 0);
}

/// Duplicates that pass while one interface has the new tables and the other one does not yet. The
/// kernel waits for its readers in between: tens of milliseconds, and hundreds while other tests
/// replace their tables. Without new tables all packets would be duplicated until the next start,
/// for more than a second.
const MAX_DUPLICATES_WHILE_REPLACED: u64 = RATE_PPS as u64;

#[test]
fn tables_of_another_layout_are_replaced_and_nothing_is_lost() {
    let mut rig = Rig::new();
    let pins = rig.lab.pins("egress").join("egress");
    let reports = rig.under_traffic(|edges, _| {
        edges.egress_agent.terminate().unwrap();
        // Each table then has the size of the other one.
        let [windows, seen] = ["windows", "seen"].map(|name| find(&pins, name));
        let aside = windows.with_file_name("aside");
        for (from, to) in [(&windows, &aside), (&seen, &windows), (&aside, &seen)] {
            fs::rename(from, to).unwrap();
        }
        edges.egress_agent.start_again().unwrap();
        assert!(
            edges
                .egress_agent
                .log()
                .contains("another layout and are replaced: windows, seen")
        );
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
        // The tables have the current layout now.
        edges.egress_agent.terminate().unwrap();
        edges.egress_agent.start_again().unwrap();
        assert!(!edges.egress_agent.log().contains("another layout"));
    });
    assert_losses(&reports, 0, MAX_DUPLICATES_WHILE_REPLACED);
}

#[test]
fn tables_that_have_no_layout_are_replaced_and_nothing_is_lost() {
    let mut rig = Rig::new();
    let pins = rig.lab.pins("egress").join("egress");
    let reports = rig.under_traffic(|edges, _| {
        edges.egress_agent.terminate().unwrap();
        let tables = find(&pins, "windows").parent().unwrap().to_owned();
        for name in names(&tables) {
            fs::rename(tables.join(&name), pins.join(&name)).unwrap();
        }
        fs::remove_dir(&tables).unwrap();
        edges.egress_agent.start_again().unwrap();
        assert!(
            edges
                .egress_agent
                .log()
                .contains("another layout and are replaced")
        );
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
    });
    assert_losses(&reports, 0, MAX_DUPLICATES_WHILE_REPLACED);
    assert!(!pins.join("windows").exists() && find(&pins, "windows").exists());
}

/// Returns the path at which a table is pinned.
fn find(pins: &Path, name: &str) -> PathBuf {
    let folders = names(pins)
        .into_iter()
        .map(|folder| pins.join(folder))
        .filter(|path| path.is_dir());
    let mut places = folders
        .chain([pins.to_owned()])
        .map(|folder| folder.join(name));
    places.find(|path| path.exists()).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn trains_of_local_senders_survive_the_end_of_the_agent() {
    let replication = Replication {
        sender: Sender::Ingress,
        ..Replication::on(PathSet::from_bits(0b11))
    };
    let mut rig = Rig::replicating(&replication);
    let reports = rig.under_local_trains(|edges, _| {
        for _ in 0..2 {
            let before = egress_copies(edges, 2);
            await_copies(edges, 2, before);
            assert!(edges.ingress_agent.terminate().unwrap().success());
            edges.ingress_agent.start_again().unwrap();
        }
    });
    assert_losses(&reports, 0, 0);
}
