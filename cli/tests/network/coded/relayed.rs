//! A relay at the tunnel's server, which takes its broadcast through the tunnel: the device has no Ethernet header.

use super::rig::{CLIENT_INSIDE, HAWSER, SERVER_INSIDE, TIMEOUT, Tunnel, lab};
use hawser_testbed::logs::{last_log_lines, redirect};
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const FRAMES: usize = 20;

fn start(namespace: &Namespace, folder: &Path, log: &str, line: &str) -> Process {
    let mut command = Command::new(HAWSER);
    command.args(line.split_whitespace()).current_dir(folder);
    redirect(&mut command, &folder.join(log)).unwrap();
    Process::spawn(namespace, command).unwrap()
}

#[test]
fn a_relay_serves_through_the_tunnel_and_on_its_machine() {
    let lab = lab(false);
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path();
    let _tunnel = Tunnel::start(&lab, folder);
    for line in [
        "keygen --media stage.key",
        "keygen --relay-of stage.key relay.key",
    ] {
        let mut command = Command::new(HAWSER);
        command.args(line.split(' ')).current_dir(folder);
        assert!(command.status().unwrap().success());
    }
    let [car, pop] = [CLIENT_INSIDE[0], SERVER_INSIDE[0]];
    let relay = format!(
        "state = \"relay\"\n[[broadcast]]\nname = \"stage\"\nupstream = \"{car}:14748\"\n\
         listen = \"{pop}:14755\"\nkey = \"relay.key\"\n"
    );
    fs::write(folder.join("relay.toml"), relay).unwrap();
    let publish = format!(
        "publish --key stage.key --recording synthetic --level nfov --fps 10 --listen {car}:14748"
    );
    let _publisher = start(lab.ingress(), folder, "publish.log", &publish);
    let _relay = start(
        lab.egress(),
        folder,
        "relay.log",
        "relay --config relay.toml",
    );
    let viewers = [
        ("own", lab.egress()),
        ("tunnel", lab.ingress()),
        ("ethernet", lab.viewer()),
    ];
    let watch = |(name, namespace): &(&str, &Namespace)| {
        let line = format!("view --key stage.key --timeline {name}.csv {pop}:14755");
        start(namespace, folder, &format!("{name}.log"), &line)
    };
    let _viewers: Vec<Process> = viewers.iter().map(watch).collect();
    let deadline = Instant::now() + TIMEOUT;
    for (name, _) in viewers {
        let shown = || {
            let rows = fs::read_to_string(folder.join(format!("{name}.csv"))).unwrap_or_default();
            rows.lines().count().saturating_sub(1)
        };
        while shown() < FRAMES {
            let logs = [name, "relay", "publish"]
                .map(|log| last_log_lines(&folder.join(format!("{log}.log")), 10));
            assert!(
                Instant::now() < deadline,
                "{name}: {} frames\n{}",
                shown(),
                logs.join("\n")
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}
