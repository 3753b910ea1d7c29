//! Sockets that are bound to an interface and carry a firewall mark.

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

/// Opens a socket that is to be bound to `address`, on `interface` only if that is given.
pub(crate) fn open(
    kind: Type,
    protocol: Protocol,
    address: SocketAddr,
    interface: Option<&str>,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if let Some(interface) = interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    Ok(socket)
}

/// Sets the firewall mark of the packets of a socket, if there is one to set.
pub(crate) fn set_mark(socket: &impl AsFd, mark: Option<u32>) -> Result<()> {
    match mark {
        Some(mark) => SockRef::from(socket)
            .set_mark(mark)
            .context("cannot set the mark of packets: CAP_NET_ADMIN is needed"),
        None => Ok(()),
    }
}
