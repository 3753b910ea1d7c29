//! Traffic while agents are killed, restarted or reconfigured, and while their network changes.

use crate::rig::{IN_FLIGHT, Rig, assert_losses, await_copies, egress_copies, unplugged};
use crate::support::{TIMEOUT, hawser, wait};
use hawser_agent::Status;
use hawser_testbed::edges::{FLOW, Replication};
use hawser_testbed::process::Process;
use hawser_testbed::topology::Edge;
use hawser_units::PathSet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

#[test]
fn a_killed_ingress_leaves_the_default_route() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, _| edges.ingress_agent.kill().unwrap());
    assert_losses(&reports, IN_FLIGHT, 0);
}

#[test]
fn copies_are_deduplicated_after_the_egress_agent_was_killed() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, _| edges.egress_agent.kill().unwrap());
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_restart_of_the_egress_agent_loses_nothing() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, _| {
        assert!(edges.egress_agent.terminate().unwrap().success());
        edges.egress_agent.start_again().unwrap();
        await_copies(edges, 2, 0);
        // A killed agent hands nothing over, and the next one still takes over.
        edges.egress_agent.kill().unwrap();
        edges.egress_agent.start_again().unwrap();
        await_copies(edges, 2, 0);
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_restart_of_the_ingress_loses_only_what_is_in_flight() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, _| {
        for _ in 0..2 {
            assert!(edges.ingress_agent.terminate().unwrap().success());
            let before = egress_copies(edges, 2);
            edges.ingress_agent.start_again().unwrap();
            await_copies(edges, 2, before);
        }
    });
    assert_losses(&reports, 2 * IN_FLIGHT, 2 * IN_FLIGHT);
}

#[test]
fn policies_change_while_packets_fly() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, _| {
        let mut paths = "[1, 2]";
        for next in ["[1]", "[2]", "[1, 2]", "[2]", "[]", "[1, 2]"] {
            let change =
                |text: &str| text.replace(&format!("paths = {paths}"), &format!("paths = {next}"));
            let status = edges.ingress_agent.reconfigure(change).unwrap();
            assert_eq!(status.configuration.error, None);
            let code = ["1", "2"]
                .iter()
                .zip([1, 2])
                .filter(|(path, _)| next.contains(*path))
                .map(|(_, bit)| bit);
            assert_eq!(status.send[&FLOW].policy, code.sum::<u8>());
            paths = next;
        }
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn keys_are_rotated_while_packets_fly() {
    let mut rig = Rig::new();
    hawser_agent::generate_key(&rig.file("next.key")).unwrap();
    let reports = rig.under_traffic(|edges, _| {
        let both = "slot0 = \"pair.key\", slot1 = \"next.key\"";
        let add = |text: &str| text.replace("slot0 = \"pair.key\"", both);
        let switch = |text: &str| add(text).replace("[[peer]]\n", "[[peer]]\nsend_slot = 1\n");
        let remove = |text: &str| text.replace(both, "slot1 = \"next.key\"");
        edges.egress_agent.reconfigure(add).unwrap();
        edges.ingress_agent.reconfigure(switch).unwrap();
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
        // A receiver does not use `send_slot`, but it must name an existing key.
        let status = edges
            .egress_agent
            .reconfigure(|text| remove(text).replace("[[peer]]\n", "[[peer]]\nsend_slot = 1\n"));
        assert_eq!(status.unwrap().configuration.error, None);
    });
    assert_losses(&reports, 0, 0);
    let status = rig.edges.egress().unwrap();
    assert!(
        status.receive[&FLOW]
            .values()
            .all(|path| path.tag_failures == 0),
        "{status:?}"
    );
}

#[test]
fn a_configuration_that_is_refused_changes_nothing() {
    let mut rig = Rig::new();
    let reports = rig.under_traffic(|edges, _| {
        let file = edges.ingress_agent.configuration_file();
        let good = fs::read_to_string(&file).unwrap();
        for (from, to, why) in [
            ("paths = [1, 2]", "paths = [1, 3]", "path 3 is used here"),
            ("[node]", "[[node]]", "invalid type"),
            (
                "local = \"10.1.2.1\"",
                "local = \"10.1.2.3\"",
                "restart it for other changes",
            ),
        ] {
            let status = edges
                .ingress_agent
                .reconfigure(|_| good.replace(from, to))
                .unwrap();
            let error = status.configuration.error.unwrap();
            assert!(error.contains(why), "{error}");
            assert_eq!(status.send[&FLOW].policy, 0b11);
        }
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
    });
    assert_losses(&reports, 0, 0);
}

/// Whether a process has a handler for a signal (proc(5), `SigCgt`).
fn handles(process: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigCgt:"))
        .unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (signal as i32 - 1) != 0
}

#[test]
fn a_signal_during_a_start_is_obeyed_when_the_agent_runs() {
    for (signal, ends) in [(Signal::SIGHUP, false), (Signal::SIGTERM, true)] {
        let mut rig = Rig::new();
        assert!(rig.edges.ingress_agent.terminate().unwrap().success());
        let log = rig.file("start.log");
        let output = File::create(&log).unwrap();
        let mut command = Command::new(hawser());
        command
            .args(["agent", "--config"])
            .arg(rig.edges.ingress_agent.configuration_file());
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let mut starting = Process::spawn(rig.lab.ingress(), command).unwrap();
        let process = starting.id();
        wait("a handler", || handles(process, signal).then_some(()));
        let is_running = || fs::read_to_string(&log).unwrap().contains("running");
        assert!(!is_running(), "it is too late to interrupt the start");
        kill(Pid::from_raw(process.try_into().unwrap()), signal).unwrap();
        wait("the end of the start", || is_running().then_some(()));
        if ends {
            assert!(wait("the end", || starting.ended().unwrap()).success());
        } else {
            let has_status = |status: Status| (status.pid == process).then_some(());
            wait("its status", || {
                rig.edges.ingress().ok().and_then(has_status)
            });
            assert!(starting.stop(TIMEOUT).unwrap().success());
        }
    }
}

#[test]
fn one_agent_a_node() {
    let rig = Rig::new();
    let mut second = rig
        .lab
        .ingress()
        .command(hawser().to_str().unwrap())
        .unwrap();
    let output = second
        .args(["agent", "--config"])
        .arg(rig.edges.ingress_agent.configuration_file())
        .output()
        .unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        error.contains("another agent of node \"ingress\" is running"),
        "{error}"
    );
}

#[test]
fn a_node_tells_people_and_programs_what_it_does() {
    let mut rig = Rig::new();
    assert_losses(
        &rig.under_traffic(|edges, _| await_copies(edges, 2, 0)),
        0,
        0,
    );
    let ask = |arguments: &[&str]| {
        let mut status = Command::new(hawser());
        let status = status.arg("status").args(arguments).arg("--config");
        let output = status
            .arg(rig.edges.egress_agent.configuration_file())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    };
    let table = ask(&[]);
    assert!(
        table.starts_with("node egress, hawser ") && table.contains("\nreceived\n"),
        "{table}"
    );
    let status: serde_json::Value = serde_json::from_str(&ask(&["--json"])).unwrap();
    assert!(
        status["receive"]["1"]["2"]["packets"].as_u64() > Some(100),
        "{status}"
    );
}

#[test]
fn detaching_removes_deduplication_from_the_kernel() {
    let mut rig = Rig::new();
    let pins = rig.lab.pins("egress").join("egress");
    let device = rig.lab.addressing().paths[1].far.device.clone();
    let has_program = || {
        let mut show = rig.lab.egress().command("ip").unwrap();
        let output = show
            .args(["link", "show", "dev", &device])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().contains("xdp")
    };
    assert!(rig.edges.ingress_agent.terminate().unwrap().success());
    assert!(rig.edges.egress_agent.terminate().unwrap().success());
    assert!(has_program() && pins.exists());
    // Also where the rest of the file is wrong, or a key file is gone.
    let config = rig.edges.egress_agent.configuration_file();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + "\n[unknown]\n").unwrap();
    let mut detach = rig
        .lab
        .egress()
        .command(hawser().to_str().unwrap())
        .unwrap();
    assert!(
        detach
            .args(["agent", "--detach", "--config"])
            .arg(config)
            .status()
            .unwrap()
            .success()
    );
    assert!(!pins.exists());
    // The kernel detaches a program after its last link is closed.
    wait("the end of the program", || (!has_program()).then_some(()));
    assert_losses(&rig.under_traffic(|_, _| ()), 0, 0);
}

#[test]
fn detaching_leaves_a_folder_that_is_not_in_a_bpf_file_system() {
    let folder = std::env::temp_dir().join(format!("hawser-test-{}-pins", std::process::id()));
    let precious = folder.join("egress/precious");
    fs::create_dir_all(precious.parent().unwrap()).unwrap();
    fs::write(&precious, "").unwrap();
    let config = folder.join("egress.toml");
    let text = format!(
        r#"
        node = {{ name = "egress", pins = {folder:?}, state = {folder:?} }}
        peer = [{{ name = "ingress", authenticate = false }}]
        receive = [{{ flow = 1, peer = "ingress" }}]
        [[path]]
        number = 1
        interface = "lo"
        local = "127.0.0.1"
        remote = "127.0.0.2"
        "#
    );
    fs::write(&config, text).unwrap();
    let detach = Command::new(hawser())
        .args(["agent", "--detach", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    let errors = String::from_utf8(detach.stderr).unwrap();
    assert!(!detach.status.success(), "{errors}");
    assert!(errors.contains("is not in a bpf file system"), "{errors}");
    assert!(precious.exists());
    fs::remove_dir_all(&folder).unwrap();
}

/// The pins of the earlier agent are below the other file system, as the refusal supposes.
#[test]
fn pins_below_a_mount_are_used_when_it_is_unmounted() {
    const SCRIPT: &str = "mount -t bpf bpf \"$2\"; \"$0\" agent --config \"$1\" 2> \"$3\" && exit 9; umount \"$2\"; \
                          exec \"$0\" agent --config \"$1\"";
    let mut rig = Rig::new();
    assert!(rig.edges.egress_agent.terminate().unwrap().success());
    let (file, refusal) = (rig.file("egress.toml"), rig.file("refusal"));
    let pins = hawser_agent::Config::read(&file).unwrap().pins;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", SCRIPT]).arg(hawser());
    command.arg(&file).arg(pins).arg(&refusal);
    let mut agent = Process::spawn(rig.lab.egress(), command).unwrap();
    let own = agent.id();
    wait("an agent that runs", || {
        assert_eq!(
            agent.ended().unwrap(),
            None,
            "{:?}",
            fs::read_to_string(&refusal)
        );
        let is_own = |status: Status| (status.pid == own).then_some(());
        rig.edges.egress().ok().and_then(is_own)
    });
    let refusal = fs::read_to_string(&refusal).unwrap();
    let advice = "mounted over the pins of an earlier agent, unmount it and start again";
    assert!(refusal.contains(advice), "{refusal}");
    assert_losses(&rig.under_traffic(|_, _| ()), 0, 0);
    assert!(agent.stop(TIMEOUT).unwrap().success());
}

#[test]
fn a_next_hop_that_moves_to_another_address_is_followed() {
    let mut rig = Rig::new();
    // A neighbour entry that the kernel verifies after a second, as with a real neighbour.
    let ingress = rig.lab.ingress();
    for (parameter, value) in [
        ("base_reachable_time_ms", "1000"),
        ("delay_first_probe_time", "1"),
        ("retrans_time_ms", "100"),
    ] {
        ingress
            .sysctl(&format!("net.ipv4.neigh.path2.{parameter}"), value)
            .unwrap();
    }
    let far = rig.lab.addressing().paths[1].far.v4;
    ingress.ip(&format!("neigh del {far} dev path2")).unwrap();
    rig.edges.ingress_agent.terminate().unwrap();
    rig.edges.ingress_agent.start_again().unwrap();
    let reports = rig.under_traffic(|edges, lab| {
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
        // The bridge must not forward frames to an address that no longer exists, as on a wire.
        let old = lab.addressing().paths[1].far.mac.to_string();
        let mut bridge = lab.network().command("bridge").unwrap();
        let forget = bridge.args(["fdb", "replace", &old, "dev", "in2", "master", "static"]);
        assert!(forget.status().unwrap().success());
        lab.egress()
            .ip("link set path2 address 02:00:00:00:00:99")
            .unwrap();
        edges
            .ingress_agent
            .wait_until_logged("another link-layer address or next hop")
            .unwrap();
        let before = egress_copies(edges, 2);
        await_copies(edges, 2, before);
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn an_interface_may_go_and_come_back() {
    let replication = Replication {
        both_ways: true,
        ..Replication::on(PathSet::from_bits(0b11))
    };
    let mut rig = Rig::replicating(&replication);
    let reports = rig.under_traffic(|edges, lab| {
        for edge in [Edge::Ingress, Edge::Egress] {
            let agent = match edge {
                Edge::Ingress => &mut edges.ingress_agent,
                Edge::Egress => &mut edges.egress_agent,
            };
            unplugged(lab, edge, || {
                agent
                    .wait_until_logged("its interface path2 does not exist")
                    .unwrap()
            });
            let before = egress_copies(edges, 2);
            await_copies(edges, 2, before);
        }
    });
    assert_losses(&reports, 0, 0);
}

#[test]
fn a_full_disk_does_not_end_the_agent() {
    let mut rig = Rig::new();
    rig.edges.ingress_agent.terminate().unwrap();
    let disk = Disk::mount(rig.file("ingress"));
    rig.edges.ingress_agent.start_again().unwrap();
    let reports = rig.under_traffic(|edges, _| {
        let filler = disk.fill();
        edges
            .ingress_agent
            .wait_until_logged("No space left on device")
            .unwrap();
        for _ in 0..2 {
            let before = egress_copies(edges, 2);
            await_copies(edges, 2, before);
        }
        assert_eq!(
            edges.ingress_agent.log().matches("No space left").count(),
            1,
            "logged once"
        );
        fs::remove_file(filler).unwrap();
        edges
            .ingress_agent
            .wait_until_logged("the status can be written again")
            .unwrap();
    });
    assert_losses(&reports, 0, 0);
}

/// A small file system. Unmounted when this is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(at: PathBuf) -> Self {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
            .arg(&at)
            .status();
        assert!(mount.unwrap().success());
        Disk(at)
    }

    fn fill(&self) -> PathBuf {
        let file = self.0.join("filler");
        let error = fs::write(&file, vec![1; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        file
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily, because the agent still has its lock file open.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
