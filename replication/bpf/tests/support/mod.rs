//! Frames, nodes and counters for the tests of the programs.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by all tests, each of which uses only a part"
)]

pub use hawser_kernel::testing::*;
use hawser_replication_bpf::{
    Prefix, Reason, Receiver, ReceiverOptions, Rule, SendFlow, SendPath, SendPolicy, Sender,
    SenderOptions,
};
use hawser_shim::{Addresses, DEFAULT_PORT, Encapsulation, SealKey, SealRing, Shim};
use hawser_units::{FlowId, PathId, PathSet, PolicyCode};
use hawser_wire::{Key, ip};
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Once;
use std::time::Duration;

pub const XDP_DROP: u32 = 1;
pub const XDP_PASS: u32 = 2;
pub const XDP_REDIRECT: u32 = 4;

/// Link-layer addresses of the node under test and of the node at the other end of every path.
pub const HERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// That of the loopback device, on which test runs of programs take place.
pub const LOOPBACK_MAC: [u8; 6] = [0; 6];
pub const THERE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Length of the handover metadata in front of the shim.
pub const HANDOVER: usize = 40;

/// Number of paths of the senders.
pub const SENDER_PATHS: usize = 5;

pub fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

pub fn flow(index: u16) -> FlowId {
    FlowId::try_from(index).unwrap()
}

/// A receiver with path 0 at [`HERE_V4`], path 1 at [`HERE_V6`] and flow 7 without keys.
pub fn receiver() -> Receiver {
    let receiver = Receiver::load(&receiver_options()).unwrap();
    receiver.set_path(path(0), Some(HERE_V4.into())).unwrap();
    receiver.set_path(path(1), Some(HERE_V6.into())).unwrap();
    receiver
        .set_flow(flow(7), Some(&Default::default()))
        .unwrap();
    receiver
}

pub fn receiver_options() -> ReceiverOptions {
    ReceiverOptions {
        port: DEFAULT_PORT,
        transparent_within: Duration::from_secs(1),
        max_age: Duration::from_secs(2),
        fingerprint_key: [1, 2],
        recording_cpus: hawser_io::sysctl::online_cpus().unwrap(),
        pins: None,
    }
}

pub fn sender_options() -> SenderOptions {
    let paths = PathId::all().take(SENDER_PATHS).collect();
    SenderOptions {
        port: DEFAULT_PORT,
        clock_offset_micros: 1 << 40,
        paths,
        transit: true,
        local: false,
    }
}

/// The key of one direction.
pub fn seal_key(byte: u8) -> SealKey {
    SealKey::derive(&Key::from_bytes([byte; 16]), "here", "there")
}

/// A receiver's keys, by slot.
pub fn ring(zero: Option<&SealKey>, one: Option<&SealKey>) -> SealRing {
    SealRing {
        slots: [zero.cloned(), one.cloned()],
        ..SealRing::default()
    }
}

/// A sender with path 0 over IPv4 and path 1 over IPv6, both on the loopback device.
pub fn sender() -> Sender {
    let mut sender = Sender::load(&sender_options()).unwrap();
    sender
        .set_path(path(0), Some(send_path(HERE_V4.into(), THERE_V4.into())))
        .unwrap();
    sender
        .set_path(path(1), Some(send_path(HERE_V6.into(), THERE_V6.into())))
        .unwrap();
    sender
}

pub fn send_path(local: IpAddr, remote: IpAddr) -> SendPath {
    let (source_mac, next_hop_mac) = (HERE_MAC, THERE_MAC);
    SendPath {
        ifindex: 1,
        local,
        remote,
        source_mac,
        next_hop_mac,
        mtu_bytes: 1500,
        takes_frames: true,
        is_tunnel: false,
    }
}

pub fn send_flow(label: u16) -> SendFlow {
    SendFlow {
        label: flow(label),
        transparent: false,
        key: None,
        first_sequence: 1 << 40,
    }
}

/// Puts a policy without probes into force, regardless of the previous epoch.
/// A node that replicates all packets as flow 7 over path 0.
pub fn replicating_all(flow_row: &SendFlow) -> Sender {
    let mut sender = sender();
    sender.set_flow(flow(7), flow_row).unwrap();
    for everything in ["0.0.0.0/0", "::/0"] {
        sender
            .select(prefix(everything), &[everything_of(7)])
            .unwrap();
    }
    set_policy(&sender, 7, 0b01, 3);
    sender
}

pub fn set_policy(sender: &Sender, index: u16, code: u8, epoch: u32) {
    let policy = SendPolicy {
        code: PolicyCode(code),
        epoch,
        ..SendPolicy::default()
    };
    sender.replace_policy(flow(index), policy).unwrap();
}

pub fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

pub fn everything_of(index: u16) -> Rule {
    Rule {
        flow: flow(index),
        protocol: None,
        ports: None,
    }
}

/// The outer headers of replicas on `path` that this node receives: path 0 over IPv4, all others
/// over IPv6.
pub fn towards_here(path: PathId) -> Encapsulation {
    let addresses = match path.index() {
        0 => Addresses::V4 {
            source: THERE_V4,
            destination: HERE_V4,
        },
        _ => Addresses::V6 {
            source: THERE_V6,
            destination: HERE_V6,
        },
    };
    Encapsulation {
        destination_mac: LOOPBACK_MAC,
        source_mac: THERE_MAC,
        addresses,
        port: DEFAULT_PORT,
    }
}

/// The shim of a copy on `path` of flow 7.
pub fn shim(path: PathId, sequence: u64) -> Shim {
    Shim {
        path,
        paths: PathSet::from_bits(0b11),
        epoch: 3,
        flow: flow(7),
        sequence,
        sent_micros: 42,
        seal: None,
    }
}

/// The frame of packet `sequence` of flow 7 on `path`, as this node receives it.
pub fn replica(path: PathId, sequence: u64, inner: &[u8]) -> Vec<u8> {
    towards_here(path)
        .frame(&shim(path, sequence), inner)
        .unwrap()
}

/// The frame after decapsulation: the inner packet with the Ethernet header of the replica.
pub fn decapsulated(inner: &[u8]) -> Vec<u8> {
    ethernet(LOOPBACK_MAC, THERE_MAC, inner)
}

/// A UDP packet from port 1000 to port 2000.
pub fn udp4(to: &str, payload: &[u8]) -> Vec<u8> {
    ip::udp_packet(
        "192.0.2.1:1000".parse().unwrap(),
        format!("{to}:2000").parse().unwrap(),
        0,
        payload,
    )
}

pub fn udp6(to: &str, payload: &[u8]) -> Vec<u8> {
    let to = format!("[{to}]:2000").parse().unwrap();
    ip::udp_packet("[2001:db8:a::1]:1000".parse().unwrap(), to, 0, payload)
}

pub fn with_id(packet: Vec<u8>, id: u16) -> Vec<u8> {
    with_ipv4(packet, |packet| {
        packet[4..6].copy_from_slice(&id.to_be_bytes())
    })
}

pub fn with_tos(packet: Vec<u8>, tos: u8) -> Vec<u8> {
    with_ipv4(packet, |packet| packet[1] = tos)
}

/// Returns the packet after one more hop.
pub fn one_hop_on(packet: &[u8]) -> Vec<u8> {
    if packet[0] >> 4 == 4 {
        return with_ipv4(packet.to_vec(), |packet| packet[8] -= 1);
    }
    let mut packet = packet.to_vec();
    packet[7] -= 1;
    packet
}

/// Returns the bpf file system, mounting it if necessary.
pub fn bpf_file_system() -> &'static Path {
    static MOUNTED: Once = Once::new();
    let folder = Path::new("/sys/fs/bpf");
    MOUNTED.call_once(|| {
        let is_mounted = std::fs::read_to_string("/proc/mounts")
            .unwrap()
            .lines()
            .any(|mount| mount.split(' ').nth(1) == folder.to_str());
        if !is_mounted {
            let mount = Command::new("mount")
                .args(["-t", "bpf", "bpf"])
                .arg(folder)
                .status()
                .unwrap();
            assert!(mount.success());
        }
    });
    folder
}

/// Returns the reasons counted since `before`.
pub fn counted_since(
    before: &[(Reason, u64)],
    mut after: Vec<(Reason, u64)>,
) -> Vec<(&'static str, u64)> {
    for ((_, count), (_, earlier)) in after.iter_mut().zip(before) {
        *count -= earlier;
    }
    counted(after)
}

/// Returns the reasons that have been counted.
pub fn counted(reasons: Vec<(Reason, u64)>) -> Vec<(&'static str, u64)> {
    reasons
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.name, count))
        .collect()
}
