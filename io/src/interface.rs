//! The interfaces, routes and neighbours of the current network namespace, through iproute2.

use nix::net::if_::InterfaceFlags;
use nix::sys::socket::SockaddrStorage;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::process::Command;

/// The reason that a command of iproute2 failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// iproute2 is not installed.
    #[error("`ip` is not installed: install the package iproute2")]
    Missing,
    /// The command failed: for example, there is no such interface, route or address.
    #[error("`{command}`: {message}")]
    Failed {
        /// The command.
        command: String,
        /// The error message of iproute2.
        message: String,
    },
    /// The output is not what this version expects.
    #[error("`{command}` printed unexpected output: {answer}")]
    Unexpected {
        /// The command.
        command: String,
        /// The output.
        answer: String,
    },
    /// Any other failure.
    #[error("cannot run `ip`")]
    Io(#[from] io::Error),
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest IP packet, bytes.
    pub mtu_bytes: u32,
    /// Its link-layer address.
    pub mac: [u8; 6],
}

/// The route of packets to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The router, or the destination itself if it is on the link.
    pub next_hop: IpAddr,
    /// The interface that they leave by.
    pub interface: String,
    /// The MTU that the route sets, if any.
    pub mtu_bytes: Option<u32>,
}

/// Returns the interface called `name`.
pub fn find(name: &str) -> Result<Interface, Error> {
    #[derive(Deserialize)]
    struct Link {
        ifindex: u32,
        mtu: u32,
        address: Option<String>,
    }
    let arguments = ["link", "show", "dev", name];
    let link: Link = ask(&arguments)?;
    let mac = link.address.as_deref().and_then(parse_mac);
    let mac =
        mac.ok_or_else(|| unexpected(&arguments, "an interface without an Ethernet address"))?;
    Ok(Interface {
        name: name.to_owned(),
        index: link.ifindex,
        mtu_bytes: link.mtu,
        mac,
    })
}

/// Returns the route to `destination`, by `interface` if given.
pub fn route(destination: IpAddr, interface: Option<&str>) -> Result<Route, Error> {
    #[derive(Deserialize)]
    struct Metrics {
        mtu: Option<u32>,
    }
    #[derive(Deserialize)]
    struct Found {
        gateway: Option<IpAddr>,
        dev: String,
        #[serde(default)]
        metrics: Vec<Metrics>,
    }
    let address = destination.to_string();
    let mut arguments = vec!["route", "get", &address];
    arguments.extend(interface.iter().flat_map(|name| ["oif", name]));
    let found: Found = ask(&arguments)?;
    Ok(Route {
        next_hop: found.gateway.unwrap_or(destination),
        interface: found.dev,
        mtu_bytes: found.metrics.iter().find_map(|metrics| metrics.mtu),
    })
}

/// Returns the number of the interface called `name`, if it exists.
pub fn index(name: &str) -> Option<u32> {
    nix::net::if_::if_nametoindex(name).ok()
}

/// Returns the names of the interfaces that are up and have a carrier.
pub fn running() -> io::Result<BTreeSet<String>> {
    having(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING)
}

/// Returns the names of the interfaces that are up, with or without a carrier.
pub fn up() -> io::Result<BTreeSet<String>> {
    having(InterfaceFlags::IFF_UP)
}

fn having(wanted: InterfaceFlags) -> io::Result<BTreeSet<String>> {
    let entries = nix::ifaddrs::getifaddrs()?;
    Ok(entries
        .filter(|entry| entry.flags.contains(wanted))
        .map(|entry| entry.interface_name)
        .collect())
}

/// Returns every address of every interface, with the length of its link's prefix.
pub fn addresses() -> io::Result<BTreeSet<(IpAddr, u8)>> {
    let found = nix::ifaddrs::getifaddrs()?.filter_map(|entry| {
        let address = ip(entry.address.as_ref()?)?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        Some((
            address,
            entry
                .netmask
                .as_ref()
                .and_then(ip)
                .map_or(whole, leading_ones),
        ))
    });
    Ok(found.collect())
}

/// Returns the link-layer address of a next hop if the kernel knows it, without waiting.
///
/// The kernel probes only neighbours that its own stack sends to. Packets that are sent past the
/// stack do not count, so this asks the kernel to probe a neighbour whose entry is stale.
pub fn follow_neighbour(address: IpAddr, interface: &Interface) -> Result<Option<[u8; 6]>, Error> {
    /// States in which an entry needs no probe: set by hand, confirmed, or being probed.
    const NO_PROBE_NEEDED: [&str; 6] = [
        "PERMANENT",
        "NOARP",
        "REACHABLE",
        "DELAY",
        "PROBE",
        "INCOMPLETE",
    ];
    #[derive(Deserialize)]
    struct Neighbour {
        lladdr: Option<String>,
        #[serde(default)]
        state: Vec<String>,
    }
    let text = address.to_string();
    let found: Vec<Neighbour> = ask_list(&["neigh", "show", "to", &text, "dev", &interface.name])?;
    let states = || {
        found
            .iter()
            .flat_map(|neighbour| &neighbour.state)
            .map(String::as_str)
    };
    if !states().any(|state| NO_PROBE_NEEDED.contains(&state)) {
        run(&["neigh", "replace", &text, "dev", &interface.name, "use"])?;
    }
    let has_failed = states().any(|state| state == "FAILED");
    let mac = found
        .first()
        .filter(|_| !has_failed)
        .and_then(|neighbour| neighbour.lladdr.as_deref());
    Ok(mac.and_then(parse_mac))
}

/// Runs a command of iproute2, given without the leading `ip`, that changes an interface, an
/// address or a route.
pub fn change(command: &str) -> Result<(), Error> {
    run(&command.split_whitespace().collect::<Vec<_>>()).map(drop)
}

fn ask<T: DeserializeOwned>(arguments: &[&str]) -> Result<T, Error> {
    let mut answers = ask_list(arguments)?;
    if answers.len() != 1 {
        return Err(unexpected(arguments, &format!("{} answers", answers.len())));
    }
    Ok(answers.remove(0))
}

fn ask_list<T: DeserializeOwned>(arguments: &[&str]) -> Result<Vec<T>, Error> {
    let answer = run(arguments)?;
    // iproute2 prints nothing for an empty list of neighbours.
    let answer = if answer.trim().is_empty() {
        "[]"
    } else {
        &answer
    };
    serde_json::from_str(answer).map_err(|_| unexpected(arguments, answer))
}

fn run(arguments: &[&str]) -> Result<String, Error> {
    let output = Command::new("ip")
        .args(["-json", "-details"])
        .args(arguments)
        .output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::Missing,
        _ => error.into(),
    })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Failed {
            command: command(arguments),
            message,
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn unexpected(arguments: &[&str], answer: &str) -> Error {
    Error::Unexpected {
        command: command(arguments),
        answer: answer.to_owned(),
    }
}

fn command(arguments: &[&str]) -> String {
    format!("ip {}", arguments.join(" "))
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = || address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4().or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

fn leading_ones(mask: IpAddr) -> u8 {
    let ones = match mask {
        IpAddr::V4(v4) => u32::from(v4).leading_ones(),
        IpAddr::V6(v6) => u128::from(v6).leading_ones(),
    };
    ones as u8
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut octets = text
        .split(':')
        .map(|octet| u8::from_str_radix(octet, 16).ok());
    let mac = [
        octets.next()??,
        octets.next()??,
        octets.next()??,
        octets.next()??,
        octets.next()??,
        octets.next()??,
    ];
    octets.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_layer_addresses() {
        assert_eq!(parse_mac("02:00:00:00:0a:ff"), Some([2, 0, 0, 0, 10, 255]));
        assert_eq!(parse_mac("02:00:00:00:0a"), None);
        assert_eq!(parse_mac("02:00:00:00:0a:ff:00"), None);
        assert_eq!(parse_mac("none"), None);
    }

    #[test]
    fn the_loopback_interface_has_its_address() {
        assert!(addresses().unwrap().contains(&([127, 0, 0, 1].into(), 8)));
    }

    #[test]
    fn the_loopback_interface_runs() {
        assert!(running().unwrap().contains("lo"));
    }

    #[test]
    fn an_error_names_the_command() {
        let error = find("no-such-device").unwrap_err().to_string();
        assert!(error.contains("ip link show dev no-such-device"), "{error}");
    }
}
