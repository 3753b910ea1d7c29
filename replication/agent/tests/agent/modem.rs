//! A path over interfaces whose packets have no Ethernet header, as those of an LTE modem in raw IP
//! mode: copies of both IP versions leave and arrive there, in transit and from the node itself.

use crate::rig::{Edges, PAYLOAD_BYTES, RATE_PPS, Rig, StopOnDrop, assert_losses, brings_copies};
use crate::support::hawser;
use hawser_agent::Status;
use hawser_io::tun;
use hawser_testbed::edges::{Cover, Outer, Replication, Sender};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{End, Lab, Stop};
use hawser_testbed::traffic::Kind;
use hawser_units::PathSet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// The modems of the two edges and the network between them.
struct Modems {
    ends: [OwnedFd; 2],
    is_connected: AtomicBool,
}

impl Modems {
    /// Replaces the devices of path 2 by modems.
    fn instead_of_path_2(lab: &Lab) -> Self {
        let link = lab.path(lab.paths().nth(1).unwrap());
        Modems {
            ends: [
                modem(lab.ingress(), &link.near),
                modem(lab.egress(), &link.far),
            ],
            is_connected: AtomicBool::new(true),
        }
    }

    /// Forwards the packets of each modem to the other one, one by one, until `stop` is requested.
    fn forward(&self, stop: &Stop) {
        let mut buffer = [0; 65_535];
        let [near, far] = &self.ends;
        while !stop.requested() {
            let mut waiting = [near, far].map(|end| PollFd::new(end.as_fd(), PollFlags::POLLIN));
            poll(&mut waiting, PollTimeout::from(10u8)).unwrap();
            for (from, to) in [(near, far), (far, near)] {
                while let Ok(length) = nix::unistd::read(from, &mut buffer) {
                    if self.is_connected.load(Ordering::Relaxed) {
                        nix::unistd::write(to, &buffer[..length]).unwrap();
                    }
                }
            }
        }
    }
}

fn modem(namespace: &Namespace, end: &End) -> OwnedFd {
    let device = &end.device;
    namespace.ip(&format!("link del {device}")).unwrap();
    let open = || tun::open(device, nix::libc::IFF_TUN).unwrap().0;
    let tun = namespace.run(open).unwrap();
    let addresses = format!(
        "link set {device} up\naddr add {}/30 dev {device}\naddr add {}/64 dev {device} nodad",
        end.v4, end.v6
    );
    namespace.ip(&addresses).unwrap();
    tun
}

/// Runs `act` while agents replicate onto an Ethernet path and a path over modems.
fn with_modems(replication: &Replication, act: impl FnOnce(&mut Rig, &Modems)) {
    let mut modems = None;
    let mut rig = Rig::prepared(replication, |lab| {
        modems = Some(Modems::instead_of_path_2(lab));
    });
    let (modems, stop) = (modems.unwrap(), Stop::default());
    thread::scope(|scope| {
        let _ends = StopOnDrop(stop.clone());
        scope.spawn(|| modems.forward(&stop));
        act(&mut rig, &modems);
    });
}

/// Sends traffic of both IP versions while each path fails once.
fn assert_no_loss(replication: &Replication, kind: Kind) {
    with_modems(replication, |rig, modems| {
        let reports = rig.under_traffic_of(
            replication.sender,
            kind,
            (RATE_PPS, PAYLOAD_BYTES),
            |edges, lab| {
                both_paths_bring_copies(edges);
                modems.is_connected.store(false, Ordering::Relaxed);
                brings_copies(edges, 1);
                modems.is_connected.store(true, Ordering::Relaxed);
                both_paths_bring_copies(edges);
                let cut = |state: &str| {
                    lab.network()
                        .ip(&format!("link set bridge0 {state}"))
                        .unwrap();
                };
                cut("down");
                brings_copies(edges, 2);
                cut("up");
                both_paths_bring_copies(edges);
            },
        );
        assert_losses(&reports, 0, 0);
        assert_modes(&rig.edges);
    });
}

fn both_paths_bring_copies(edges: &mut Edges) {
    (1..=2).for_each(|path| brings_copies(edges, path));
}

fn assert_modes(edges: &Edges) {
    let mode = |status: &Status, usage: &str| {
        let mode = &status.modes["path2"][usage];
        (mode.mode.clone(), mode.reason.clone())
    };
    let why = "its packets have no Ethernet header";
    let (sent, received) = (
        mode(&edges.ingress().unwrap(), "send"),
        mode(&edges.egress().unwrap(), "deduplicate"),
    );
    assert_eq!(sent, ("generic".to_owned(), why.to_owned()));
    assert_eq!(received, ("tc".to_owned(), why.to_owned()));
}

fn replication(sender: Sender, outer: Outer) -> Replication {
    Replication {
        sender,
        outer,
        ..Replication::on(PathSet::from_bits(0b11))
    }
}

#[test]
fn transit_copies_over_a_modem_replace_those_of_a_wire() {
    assert_no_loss(&replication(Sender::Source, Outer::V4), Kind::UdpConnected);
}

#[test]
fn copies_over_ipv6_and_a_modem_replace_those_of_a_wire() {
    assert_no_loss(&replication(Sender::Source, Outer::V6), Kind::UdpConnected);
}

#[test]
fn local_copies_over_a_modem_replace_those_of_a_wire() {
    assert_no_loss(&replication(Sender::Ingress, Outer::V4), Kind::UdpConnected);
}

#[test]
fn local_trains_over_a_modem_replace_those_of_a_wire() {
    assert_no_loss(&replication(Sender::Ingress, Outer::V4), Kind::UdpGso);
}

#[test]
fn the_tags_of_whole_packets_are_checked_on_a_modem() {
    let whole = Replication {
        authenticate: Some(Cover::Whole),
        ..replication(Sender::Source, Outer::V4)
    };
    assert_no_loss(&whole, Kind::UdpConnected);
}

/// The next agent takes the attachment over.
#[test]
fn deduplication_on_a_modem_continues_without_an_agent() {
    let replication = replication(Sender::Source, Outer::V4);
    with_modems(&replication, |rig, _| {
        let reports = rig.under_traffic_of(
            replication.sender,
            Kind::UdpConnected,
            (RATE_PPS, PAYLOAD_BYTES),
            |edges, _| {
                both_paths_bring_copies(edges);
                edges.egress_agent.kill().unwrap();
                edges.egress_agent.start_again().unwrap();
                both_paths_bring_copies(edges);
            },
        );
        assert_losses(&reports, 0, 0);
    });
}

#[test]
fn impossible_uses_of_a_modem_are_refused_with_the_remedy() {
    let replication = replication(Sender::Source, Outer::V4);
    with_modems(&replication, |rig, _| {
        let directory = rig.directory.path().to_owned();
        let refused = |rig: &Rig, change: &dyn Fn(&str) -> String| {
            let text = fs::read_to_string(rig.file("egress.toml")).unwrap();
            let file = directory.join("refused.toml");
            let other = text.replace("name = \"egress\"", "name = \"refused\"");
            fs::write(&file, change(&other)).unwrap();
            let mut command = rig
                .lab
                .egress()
                .command(hawser().to_str().unwrap())
                .unwrap();
            let output = command.arg("agent").arg("--config").arg(&file).output();
            String::from_utf8(output.unwrap().stderr).unwrap()
        };
        let native = refused(rig, &|text| {
            text.replace("[node]\n", "[node]\ngeneric_xdp = false\n")
        });
        assert!(native.contains("remove `generic_xdp`"), "{native}");
        let local = refused(rig, &|text| {
            let send = "\n[[send]]\nflow = 9\npeer = \"peer\"\nselect = { destination = \"203.0.113.1/32\" }\npaths = [1]\n";
            text.replace("[node]\n", "[node]\nlocal = [\"path2\"]\n") + send
        });
        assert!(local.contains("use a [device]"), "{local}");
    });
}
