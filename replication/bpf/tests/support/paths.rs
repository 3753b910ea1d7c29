//! A namespace with a device on which flows arrive, the devices of three paths, and the pairs of loops.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by tests, each of which uses only a part"
)]

use crate::support::*;
use hawser_replication_bpf::{Loop, SendPath, Sender, SenderOptions};
use hawser_shim::{Addresses, DEFAULT_PORT, Encapsulation};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::{Port, wait};
use nix::net::if_::if_nametoindex;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub const PATHS: u8 = 3;

/// The maximum time to wait for a condition.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// The paths differ in the last part of their addresses; path 1 is over IPv6.
pub fn path_end(index: u8) -> SendPath {
    let (local, remote) = match index {
        1 => (HERE_V6.into(), THERE_V6.into()),
        _ => ([198, 51, 100, index].into(), [203, 0, 113, index].into()),
    };
    SendPath {
        ifindex: if_nametoindex(format!("wan{index}").as_str()).unwrap(),
        local,
        remote,
        source_mac: [2, 0, 0, 0, 1, index],
        next_hop_mac: [2, 0, 0, 0, 2, index],
        mtu_bytes: 1500,
        takes_frames: true,
        is_tunnel: false,
    }
}

pub fn encapsulation(index: u8) -> Encapsulation {
    let addresses = match index {
        1 => Addresses::V6 {
            source: HERE_V6,
            destination: THERE_V6,
        },
        _ => Addresses::V4 {
            source: [198, 51, 100, index].into(),
            destination: [203, 0, 113, index].into(),
        },
    };
    let SendPath {
        source_mac,
        next_hop_mac: destination_mac,
        ..
    } = path_end(index);
    Encapsulation {
        destination_mac,
        source_mac,
        addresses,
        port: DEFAULT_PORT,
    }
}

/// Runs `test` in a namespace with pairs of devices: `lan`, `wan0` to `wan2`, `loop` and `trans` and
/// their peers, `far-*`.
pub fn in_namespace(name: &str, test: impl FnOnce() + Send) {
    let namespace =
        Namespace::create(format!("hawser-test-{}-{name}", std::process::id())).unwrap();
    let mut batch = String::new();
    for device in ["lan", "wan0", "wan1", "wan2", "loop", "trans"] {
        batch += &format!("link add {device} type veth peer name far-{device}\n");
        for end in [device.to_owned(), format!("far-{device}")] {
            batch += &format!("link set {end} addrgenmode none up\n");
        }
    }
    let mac = HERE_MAC.map(|byte| format!("{byte:02x}")).join(":");
    batch += &format!("link set lan address {mac}\n");
    batch += "addr add 192.0.2.1/24 dev lan\nroute add default via 192.0.2.254\n";
    batch += "neigh add 192.0.2.254 lladdr 02:00:00:00:00:09 dev lan\n";
    let result = namespace.ip(&batch).and_then(|()| {
        for entry in ["loop", "trans"] {
            namespace.offloads(entry, &[("tx", false), ("gso", false), ("tso", false)])?;
        }
        namespace.run(|| catch_unwind(AssertUnwindSafe(test)))
    });
    namespace.delete().unwrap();
    result.unwrap().unwrap();
}

/// A sender that replicates all packets as flow 7 over path 0.
pub fn replicating() -> Sender {
    let mut sender = Sender::load(&SenderOptions {
        local: true,
        ..sender_options()
    })
    .unwrap();
    for index in 0..PATHS {
        sender.set_path(path(index), Some(path_end(index))).unwrap();
    }
    sender.set_flow(flow(7), &send_flow(7)).unwrap();
    sender
        .select(prefix("203.0.113.0/24"), &[everything_of(7)])
        .unwrap();
    sender
        .select(prefix("2001:db8::/32"), &[everything_of(7)])
        .unwrap();
    set_policy(&sender, 7, 0b001, 3);
    sender
}

/// A frame from another host that passes through this node, arriving on `lan`.
pub fn arriving(packet: &[u8]) -> Vec<u8> {
    ethernet(HERE_MAC, [2, 0, 0, 0, 0, 9], packet)
}

pub fn far_ends() -> Vec<Port> {
    (0..PATHS)
        .map(|index| Port::open(&format!("far-wan{index}")).unwrap())
        .collect()
}

/// Receives the next `count` frames of a port.
pub fn receive(port: &mut Port, count: usize) -> Vec<Vec<u8>> {
    let deadline = Instant::now() + TIMEOUT;
    let mut frames = Vec::new();
    while frames.len() < count {
        assert!(
            Instant::now() < deadline,
            "{} of {count} frames arrived",
            frames.len()
        );
        wait(&[port.receiver.as_fd()], Some(Duration::from_millis(100))).unwrap();
        port.receiver
            .receive(|frame| frames.push(frame.unwrap().to_vec()));
    }
    frames
}

/// Waits until a condition holds. A copy may arrive before the other ones of its packet are counted.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn number(device: &str) -> u32 {
    if_nametoindex(device).unwrap()
}

/// The pair called `entry` and `far-ENTRY`, as the loop of `lan`.
pub fn loop_of_lan(entry: &str) -> Loop {
    Loop {
        device: number("lan"),
        entry: number(entry),
        exit: number(&format!("far-{entry}")),
    }
}
