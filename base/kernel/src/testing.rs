//! Frames and addresses for the tests of programs.

use hawser_wire::ip;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The IPv4 address of the node under test.
pub const HERE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
/// The IPv4 address of the node at the other end.
pub const THERE_V4: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// The IPv6 address of the node under test.
pub const HERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1);
/// The IPv6 address of the node at the other end.
pub const THERE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 2);

/// An IP packet in a frame.
pub fn ethernet(destination: [u8; 6], source: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let ethertype: [u8; 2] = if packet[0] >> 4 == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    [&destination[..], &source, &ethertype, packet].concat()
}

/// A frame in transit from another host, as received by a test run, which uses the loopback device.
pub fn transit(packet: &[u8]) -> Vec<u8> {
    ethernet([0; 6], [2, 0, 0, 0, 0, 9], packet)
}

/// Changes bytes of an IPv4 header and updates its checksum.
pub fn with_ipv4(mut packet: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
    change(&mut packet);
    let header_bytes = usize::from(packet[0] & 0xf) * 4;
    packet[10..12].fill(0);
    let sum = ip::checksum(&packet[..header_bytes]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}
