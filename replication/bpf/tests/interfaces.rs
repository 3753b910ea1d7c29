//! Interfaces that are removed and created again: each time they have a new number.

mod support;

use hawser_replication_bpf::{Loop, SendPath, Sender, SenderOptions};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::{Port, wait};
use nix::net::if_::if_nametoindex;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use support::*;

/// Number of interfaces that are created and removed.
const COMING: usize = 1000;

/// Number of interfaces that are removed at once, which is quicker than one by one.
const GOING: usize = 100;

/// Programs are attached to one interface in this many, because attaching is slow; still to more
/// than the tables hold.
const ATTACHED: usize = 10;

/// The maximum time to wait for a condition.
const TIMEOUT: Duration = Duration::from_secs(60);

fn number(name: &str) -> u32 {
    if_nametoindex(name).unwrap()
}

/// Creates devices named `NAME`, each with the peer `far-NAME`, in a group that can be removed at
/// once.
fn plug(namespace: &Namespace, names: &[String], group: u32) {
    let mut batch = String::new();
    for name in names {
        writeln!(
            batch,
            "link add {name} group {group} type veth peer name far-{name}"
        )
        .unwrap();
        for end in [name.clone(), format!("far-{name}")] {
            writeln!(batch, "link set {end} addrgenmode none up").unwrap();
        }
    }
    namespace.ip(&batch).unwrap();
}

fn path_by(device: u32) -> SendPath {
    SendPath {
        ifindex: device,
        ..send_path(HERE_V4.into(), THERE_V4.into())
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Sends a packet of the flow through this node and waits for its copy on every path.
fn assert_replicates(sender: &Sender, lan: &Port, ends: &mut [Port]) {
    lan.sender
        .send(&[ethernet(HERE_MAC, THERE_MAC, &udp4("203.0.113.9", b"x"))])
        .unwrap();
    let deadline = Instant::now() + TIMEOUT;
    for end in ends {
        let mut copies = 0;
        while copies == 0 {
            assert!(
                Instant::now() < deadline,
                "no copy: {:?}",
                counted(sender.reasons().unwrap())
            );
            wait(&[end.receiver.as_fd()], Some(Duration::from_millis(100))).unwrap();
            end.receiver.receive(|_| copies += 1);
        }
    }
}

/// Held by each test: one of them counts the descriptors of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn replication_survives_a_thousand_changes_of_interfaces() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace =
        Namespace::create(format!("hawser-test-{}-coming", std::process::id())).unwrap();
    let result = namespace.run(|| catch_unwind(AssertUnwindSafe(|| come_and_go(&namespace))));
    namespace.delete().unwrap();
    result.unwrap().unwrap();
}

fn come_and_go(namespace: &Namespace) {
    plug(namespace, &["lan", "wan0", "wan1"].map(str::to_owned), 1);
    namespace
        .ip("link set lan address 02:00:00:00:00:01")
        .unwrap();
    let lan = Port::open("far-lan").unwrap();
    let mut ends = ["far-wan0", "far-wan1"].map(|end| Port::open(end).unwrap());
    let mut sender = Sender::load(&SenderOptions {
        local: true,
        ..sender_options()
    })
    .unwrap();
    sender
        .set_path(path(0), Some(path_by(number("wan0"))))
        .unwrap();
    sender
        .set_path(path(1), Some(path_by(number("wan1"))))
        .unwrap();
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    sender
        .select(prefix("203.0.113.0/24"), &[everything_of(7)])
        .unwrap();
    set_policy(&sender, 7, 0b11, 1);
    sender.attach_transit(number("lan")).unwrap();
    assert_replicates(&sender, &lan, &mut ends);

    let mut before: Option<u32> = None;
    let mut open = None;
    for batch in 0..COMING / GOING {
        let names: Vec<_> = (0..GOING)
            .map(|index| format!("c{batch}-{index}"))
            .collect();
        plug(namespace, &names, 2);
        for (index, name) in names.iter().enumerate() {
            let (device, exit) = (number(name), number(&format!("far-{name}")));
            sender.set_path(path(0), Some(path_by(device))).unwrap();
            if index % ATTACHED != 0 {
                continue;
            }
            sender.attach_transit(device).unwrap();
            sender.attach_local(device).unwrap();
            sender
                .attach_loop(Loop {
                    device,
                    entry: device,
                    exit,
                })
                .unwrap();
            if let Some(gone) = before.replace(device) {
                sender.detach(gone).unwrap();
            }
        }
        namespace.ip("link del group 2").unwrap();
        assert_eq!(
            *open.get_or_insert_with(open_files),
            open_files(),
            "no descriptors are leaked"
        );
    }

    sender
        .set_path(path(0), Some(path_by(number("wan0"))))
        .unwrap();
    assert_replicates(&sender, &lan, &mut ends);
}

/// A veth accepts redirected frames only while its far end polls.
#[test]
fn dropped_copies_stay_counted_when_their_device_is_removed() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let namespace = Namespace::create(format!("hawser-test-{}-gone", std::process::id())).unwrap();
    let result = namespace.run(|| catch_unwind(AssertUnwindSafe(|| refuse_and_go(&namespace))));
    namespace.delete().unwrap();
    result.unwrap().unwrap();
}

fn refuse_and_go(namespace: &Namespace) {
    plug(
        namespace,
        &["lan", "wan0", "wan1", "wan2"].map(str::to_owned),
        1,
    );
    namespace
        .ip("link set lan address 02:00:00:00:00:01")
        .unwrap();
    let lan = Port::open("far-lan").unwrap();
    let mut end = Port::open("far-wan0").unwrap();
    let mut sender = sender();
    sender
        .set_path(path(0), Some(path_by(number("wan0"))))
        .unwrap();
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    sender
        .select(prefix("203.0.113.0/24"), &[everything_of(7)])
        .unwrap();
    set_policy(&sender, 7, 0b11, 1);
    sender.attach_transit(number("lan")).unwrap();
    for (refused, device) in (0..).zip(["wan1", "wan2", "wan1"]) {
        sender
            .set_path(path(1), Some(path_by(number(device))))
            .unwrap();
        assert_eq!(sender.device_drops(path(1)).unwrap(), refused);
        assert_replicates(&sender, &lan, std::slice::from_mut(&mut end));
        // A copy may arrive before the other one is counted.
        let deadline = Instant::now() + TIMEOUT;
        while sender.device_drops(path(1)).unwrap() != refused + 1 {
            assert!(
                Instant::now() < deadline,
                "{device}: the copy is not counted"
            );
        }
    }
    sender.set_path(path(1), None).unwrap();
    assert_eq!(
        [0, 1].map(|index| sender.device_drops(path(index)).unwrap()),
        [0, 3]
    );
}
