//! The addresses of a peer that has a name, and may get others while a program runs.

use crate::failures::{Change, Failures};
use crate::udp::UdpSocket;
use anyhow::{Context, anyhow, ensure};
use nix::net::if_::if_nametoindex;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time between two looks at whether to stop, and the pause between two attempts to find an
/// address with a route.
const STOP_POLL: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_secs(1);

/// The addresses that a name has. It is resolved again when they are of no use any more, in a thread of
/// its own, because that can take long.
#[derive(Debug)]
pub struct PeerAddresses {
    name: String,
    /// Those that are known, of which the first is tried next.
    addresses: Vec<SocketAddr>,
    resolving: Option<Receiver<io::Result<Vec<SocketAddr>>>>,
}

impl PeerAddresses {
    /// Takes host and port, and does not resolve the host.
    ///
    /// # Errors
    /// If the name is not `HOST:PORT`.
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        ensure!(
            is_host_and_port(name),
            "\"{name}\" is not HOST:PORT: for example 192.0.2.7:14748, [2001:db8::7]:14748 or \
             stage.example:14748"
        );
        Ok(PeerAddresses {
            name: name.to_owned(),
            addresses: Vec::new(),
            resolving: None,
        })
    }

    /// Opens a socket to the first address to which there is a route. Waits until there is one, because a
    /// program may be started before its network is. Returns `None` if `is_over` before.
    pub fn find(&mut self, is_over: impl Fn() -> bool) -> Option<(UdpSocket, SocketAddr)> {
        let mut failures = Failures::default();
        while !is_over() {
            let found = match self.resolve(&is_over)? {
                Ok(()) => self.connect(),
                Err(error) => {
                    let failed = format!("the host of {} cannot be resolved", self.name);
                    Err(anyhow::Error::new(error).context(failed))
                }
            };
            let failed = match found {
                Ok(found) => return Some(found),
                Err(failed) => failed,
            };
            if let Some(Change::Failed(failed)) = failures.record(Err::<(), _>(failed)) {
                tracing::warn!("{failed:#}; trying again until it works");
            }
            let until = Instant::now() + PAUSE;
            while Instant::now() < until && !is_over() {
                thread::sleep(STOP_POLL);
            }
        }
        None
    }

    /// Resolves the name. Returns `None` if `is_over` before.
    fn resolve(&mut self, is_over: &impl Fn() -> bool) -> Option<io::Result<()>> {
        self.begin_to_resolve();
        let Some(resolving) = self.resolving.take() else {
            return Some(Err(io::Error::other("no thread can be started")));
        };
        loop {
            match resolving.recv_timeout(STOP_POLL) {
                Ok(resolved) => return Some(resolved.map(|addresses| self.replace(addresses))),
                Err(RecvTimeoutError::Timeout) if is_over() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err(io::Error::other("the resolver has failed")));
                }
            }
        }
    }

    /// Tries another address next, if there are several.
    pub fn pass_over(&mut self) {
        self.addresses.rotate_left(1);
    }

    /// Takes the addresses of a resolution that has ended, and begins another one.
    pub fn refresh(&mut self) {
        match self.resolving.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(Ok(addresses))) => self.replace(addresses),
            Some(Ok(Err(error))) => tracing::debug!("{} cannot be resolved: {error}", self.name),
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        self.begin_to_resolve();
    }

    fn begin_to_resolve(&mut self) {
        let (done, resolving) = channel();
        let name = self.name.clone();
        let resolver = thread::Builder::new().name("resolver".to_owned());
        let started = resolver.spawn(move || {
            // The caller may have ended.
            let _ = done.send(resolve(&name));
        });
        self.resolving = started.is_ok().then_some(resolving);
    }

    /// Opens a socket to the first address to which there is a route, which is the next one then.
    ///
    /// # Errors
    /// That of the first address, if there is a route to none. If no address is known.
    pub fn connect(&mut self) -> anyhow::Result<(UdpSocket, SocketAddr)> {
        let mut first_error = None;
        for _ in 0..self.addresses.len() {
            let next = self.addresses[0];
            match connected_to(next) {
                Ok(socket) => return Ok((socket, next)),
                Err(error) => first_error = first_error.or(Some(error)),
            }
            self.pass_over();
        }
        Err(first_error.unwrap_or_else(|| anyhow!("no address of {} is known", self.name)))
    }

    /// Takes new addresses. Where they are the same ones, their order stays.
    fn replace(&mut self, addresses: Vec<SocketAddr>) {
        let is_same = addresses.len() == self.addresses.len()
            && addresses.iter().all(|new| self.addresses.contains(new));
        if !addresses.is_empty() && !is_same {
            if !self.addresses.is_empty() {
                tracing::info!(?addresses, "{} has other addresses", self.name);
            }
            self.addresses = addresses;
        }
    }
}

/// Returns whether a text is a host, or its address, and a port.
fn is_host_and_port(name: &str) -> bool {
    let is_name = |host: &str| {
        let is_other = |c: char| c.is_whitespace() || c.is_control() || "/:[]".contains(c);
        !host.is_empty() && !host.contains(is_other)
    };
    let named = name.rsplit_once(':');
    let named = named.is_some_and(|(host, port)| is_name(host) && port.parse::<u16>().is_ok());
    named || zone(name).is_some() || name.parse::<SocketAddr>().is_ok()
}

/// Returns the addresses of a host and a port. An IPv6 address may name the interface of its link:
/// `[fe80::1%eth0]:14748`.
pub fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    match zone(name) {
        Some(_) => parse_address(name)
            .map(|address| vec![address])
            .map_err(io::Error::other),
        None => Ok(name.to_socket_addrs()?.collect()),
    }
}

/// Parses an address and a port. An IPv6 address may name the interface of its link.
///
/// # Errors
/// With the reason.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let Some((address, interface)) = zone(text) else {
        return text.parse().map_err(|error| format!("{error}"));
    };
    let index =
        if_nametoindex(interface).map_err(|_| format!("there is no interface {interface}"))?;
    Ok(SocketAddrV6::new(*address.ip(), address.port(), 0, index).into())
}

/// Returns the address and the interface of an IPv6 address of a link whose interface is named, not numbered.
fn zone(text: &str) -> Option<(SocketAddrV6, &str)> {
    let (ip, rest) = text.strip_prefix('[')?.split_once('%')?;
    let (interface, port) = rest.split_once("]:")?;
    let is_number = interface.bytes().all(|byte| byte.is_ascii_digit());
    let address = format!("[{ip}]:{port}").parse().ok()?;
    (!is_number).then_some((address, interface))
}

/// Opens a socket that is connected to an address.
///
/// # Errors
/// If there is no route to it.
pub fn connected_to(peer: SocketAddr) -> anyhow::Result<UdpSocket> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0).into()).context("cannot open a UDP socket")?;
    socket
        .connect(peer)
        .with_context(|| format!("there is no route to {peer}"))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn known(addresses: &[&str]) -> PeerAddresses {
        PeerAddresses {
            name: "127.0.0.1:9".to_owned(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            resolving: None,
        }
    }

    #[test]
    fn an_address_without_a_route_is_passed_over() {
        // Broadcast is refused at once, as an address without a route is.
        let mut both = known(&["255.255.255.255:9", "127.0.0.1:9"]);
        let (_, address) = both.connect().unwrap();
        assert_eq!(address, "127.0.0.1:9".parse().unwrap());
        let mut none = known(&["255.255.255.255:9"]);
        let error = none.connect().unwrap_err();
        assert!(error.to_string().contains("no route to 255.255"), "{error}");
    }

    #[test]
    fn the_interface_of_a_link_is_named_or_numbered() {
        let index = if_nametoindex("lo").unwrap();
        let named = resolve("[fe80::1%lo]:9").unwrap();
        assert_eq!(named, resolve(&format!("[fe80::1%{index}]:9")).unwrap());
        assert_eq!(parse_address("[fe80::1%lo]:9"), Ok(named[0]));
        assert_eq!(parse_address("[::1]:9"), Ok("[::1]:9".parse().unwrap()));
        assert!(PeerAddresses::parse("[ff02::1%lo]:9").is_ok());
        let missing = parse_address("[fe80::1%nowhere]:9").unwrap_err();
        assert_eq!(missing, "there is no interface nowhere");
        for wrong in [
            "[fe80::1%lo]:",
            "[fe80%lo]:9",
            "fe80::1%lo:9",
            "[192.0.2.1%lo]:9",
        ] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn host_and_port_are_told_from_other_texts() {
        for right in ["a.example:1", "192.0.2.1:14748", "[2001:db8::1]:9"] {
            assert!(PeerAddresses::parse(right).is_ok(), "{right}");
        }
        for wrong in [
            "nothing",
            ":9",
            "a:",
            "a:70000",
            "::1:9",
            "a b:9",
            "http://a:9",
        ] {
            let error = PeerAddresses::parse(wrong).err().unwrap();
            assert!(error.to_string().contains("is not HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn a_host_that_cannot_be_resolved_is_waited_for() {
        let mut peer = PeerAddresses::parse("nohost.invalid:1").unwrap();
        let looks = Cell::new(0);
        let is_over = || looks.replace(looks.get() + 1) > 2;
        assert!(peer.find(is_over).is_none());
        peer.name = "127.0.0.1:9".to_owned();
        let (_, address) = peer.find(|| false).unwrap();
        assert_eq!(address, "127.0.0.1:9".parse().unwrap());
    }

    #[test]
    fn the_name_is_resolved_again() {
        let mut peer = known(&["192.0.2.1:9"]);
        peer.refresh();
        let resolved = peer.resolving.take().unwrap();
        let addresses = resolved.recv().unwrap().unwrap();
        peer.replace(addresses);
        assert_eq!(peer.addresses[0], "127.0.0.1:9".parse().unwrap());
    }

    #[test]
    fn the_same_addresses_keep_their_order() {
        let mut peer = known(&["192.0.2.1:9", "192.0.2.2:9"]);
        peer.pass_over();
        peer.replace(known(&["192.0.2.1:9", "192.0.2.2:9"]).addresses);
        assert_eq!(peer.addresses[0], "192.0.2.2:9".parse().unwrap());
        peer.replace(Vec::new());
        assert_eq!(peer.addresses.len(), 2);
    }
}
