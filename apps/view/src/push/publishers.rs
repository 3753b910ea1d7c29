//! The addresses of the publisher.

use anyhow::{Context, anyhow};
use hawser_io::udp::UdpSocket;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

/// The addresses that the publisher's name has. The name is resolved again when they are of no use any
/// more, in a thread of its own, because that can take long.
pub(super) struct Publishers {
    name: String,
    /// At least one, of which the first is tried next.
    addresses: Vec<SocketAddr>,
    resolving: Option<Receiver<io::Result<Vec<SocketAddr>>>>,
}

impl Publishers {
    /// Resolves host and port.
    ///
    /// # Errors
    /// If the name is not `HOST:PORT`, or has no address.
    pub(super) fn resolve(name: &str) -> anyhow::Result<Self> {
        let addresses = resolve(name).with_context(|| format!("\"{name}\" is not HOST:PORT"))?;
        if addresses.is_empty() {
            return Err(anyhow!("{name} has no address"));
        }
        Ok(Publishers {
            name: name.to_owned(),
            addresses,
            resolving: None,
        })
    }

    /// Returns the address that is tried next.
    pub(super) fn next(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Tries another address next, if there are several.
    pub(super) fn pass_over(&mut self) {
        self.addresses.rotate_left(1);
    }

    /// Takes the addresses of a resolution that has ended, and begins another one.
    pub(super) fn refresh(&mut self) {
        match self.resolving.as_ref().map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(Ok(addresses))) => self.replace(addresses),
            Some(Ok(Err(error))) => tracing::debug!("{} cannot be resolved: {error}", self.name),
            Some(Err(TryRecvError::Disconnected)) | None => {}
        }
        let (done, resolving) = channel();
        let name = self.name.clone();
        let resolver = thread::Builder::new().name("resolver".to_owned());
        let started = resolver.spawn(move || {
            // The viewer may have ended meanwhile.
            let _ = done.send(resolve(&name));
        });
        self.resolving = started.is_ok().then_some(resolving);
    }

    /// Opens a socket to the first address to which there is a route, which is the next one then. Returns
    /// the error of the first one if there is none.
    pub(super) fn connect(&mut self) -> anyhow::Result<UdpSocket> {
        let mut first_error = None;
        for _ in 0..self.addresses.len() {
            match connected_to(self.next()) {
                Ok(socket) => return Ok(socket),
                Err(error) => first_error = first_error.or(Some(error)),
            }
            self.pass_over();
        }
        Err(first_error.unwrap_or_else(|| anyhow!("the publisher has no address")))
    }

    /// Takes new addresses. Where they are the same ones, their order stays.
    fn replace(&mut self, addresses: Vec<SocketAddr>) {
        let is_same = addresses.len() == self.addresses.len()
            && addresses.iter().all(|new| self.addresses.contains(new));
        if !addresses.is_empty() && !is_same {
            tracing::info!(?addresses, "{} has other addresses", self.name);
            self.addresses = addresses;
        }
    }
}

fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(name.to_socket_addrs()?.collect())
}

/// Opens a socket that is connected to an address.
pub(super) fn connected_to(publisher: SocketAddr) -> anyhow::Result<UdpSocket> {
    let any = match publisher {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let socket = UdpSocket::bind((any, 0).into()).context("cannot open a UDP socket")?;
    socket
        .connect(publisher)
        .with_context(|| format!("there is no route to {publisher}"))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publishers(addresses: &[&str]) -> Publishers {
        Publishers {
            name: "127.0.0.1:9".to_owned(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            resolving: None,
        }
    }

    #[test]
    fn an_address_without_a_route_is_passed_over() {
        // Broadcast is refused at once, as an address without a route is.
        let mut both = publishers(&["255.255.255.255:9", "127.0.0.1:9"]);
        both.connect().unwrap();
        assert_eq!(both.next(), "127.0.0.1:9".parse().unwrap());
        let mut none = publishers(&["255.255.255.255:9"]);
        let error = none.connect().unwrap_err();
        assert!(error.to_string().contains("no route to 255.255"), "{error}");
        assert!(Publishers::resolve("nothing").is_err());
    }

    #[test]
    fn the_name_is_resolved_again() {
        let mut publishers = publishers(&["192.0.2.1:9"]);
        publishers.refresh();
        let resolved = publishers.resolving.take().unwrap();
        let addresses = resolved.recv().unwrap().unwrap();
        publishers.replace(addresses);
        assert_eq!(publishers.next(), "127.0.0.1:9".parse().unwrap());
    }

    #[test]
    fn the_same_addresses_keep_their_order() {
        let mut known = publishers(&["192.0.2.1:9", "192.0.2.2:9"]);
        known.pass_over();
        known.replace(publishers(&["192.0.2.1:9", "192.0.2.2:9"]).addresses);
        assert_eq!(known.next(), "192.0.2.2:9".parse().unwrap());
        known.replace(Vec::new());
        assert_eq!(known.addresses.len(), 2);
    }
}
