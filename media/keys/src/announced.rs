//! The address that others are told.

use hawser_io::peer::parse_address;
use std::net::{IpAddr, SocketAddr};

/// Parses an address and a port at which others reach a program.
///
/// # Errors
/// With the reason.
pub fn parse_announced(text: &str) -> Result<SocketAddr, String> {
    reachable(parse_address(text)?)
}

/// Returns the address, if others can reach one program there.
///
/// # Errors
/// If it stands for all addresses or for a group, or has no port.
pub fn reachable(address: SocketAddr) -> Result<SocketAddr, String> {
    let is_of_one = match address.ip() {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
    };
    match is_of_one && address.port() != 0 {
        true => Ok(address),
        false => Err(format!(
            "{address} is not the address and port of one program"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_the_address_of_one_program() {
        assert!(parse_announced("192.0.2.7:14748").is_ok());
        assert!(parse_announced("[2001:db8::7]:14748").is_ok());
        for wrong in [
            "0.0.0.0:7",
            "[::]:7",
            "224.0.0.1:7",
            "255.255.255.255:7",
            "[ff02::1]:7",
            "192.0.2.7:0",
        ] {
            assert!(parse_announced(wrong).is_err(), "{wrong}");
        }
    }
}
