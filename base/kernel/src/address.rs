//! Addresses in tables.

use std::net::IpAddr;

/// Returns the address family's number, and the address at the start of a 16-byte array.
pub fn family_and_address(address: IpAddr) -> (u16, [u8; 16]) {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => {
            bytes[..4].copy_from_slice(&v4.octets());
            (libc::AF_INET as u16, bytes)
        }
        IpAddr::V6(v6) => (libc::AF_INET6 as u16, v6.octets()),
    }
}

/// Returns the address at the start of a 16-byte array, by its family's number.
pub fn address(family: u16, bytes: [u8; 16]) -> IpAddr {
    let [a, b, c, d, ..] = bytes;
    match i32::from(family) {
        libc::AF_INET6 => IpAddr::from(bytes),
        _ => IpAddr::from([a, b, c, d]),
    }
}

/// Returns the address as an IPv6 address, into which an IPv4 address is mapped.
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
