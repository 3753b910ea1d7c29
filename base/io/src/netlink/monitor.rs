use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use std::io;

/// Notifications of the kernel that interfaces, addresses or routes of a network namespace have
/// changed.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    /// The protocol number of routes that are ignored.
    own_protocol: u8,
}

/// `linux/rtnetlink.h`: the groups of the notifications.
const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV4_ROUTE: u32 = 0x40;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;
const RTMGRP_IPV6_ROUTE: u32 = 0x400;

/// The types of messages.
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;

/// The length of a message's header, bytes.
const HEADER: usize = 16;

/// Maximum number of datagrams that one call reads.
const MAX_DATAGRAMS: usize = 256;

/// The number of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

impl Monitor {
    /// Starts to listen in the calling thread's network namespace. Routes whose protocol number is
    /// `own_protocol` and addresses of the loopback interface are ignored: the caller installs them.
    pub fn start(own_protocol: u8) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let groups = RTMGRP_LINK
            | RTMGRP_IPV4_IFADDR
            | RTMGRP_IPV4_ROUTE
            | RTMGRP_IPV6_IFADDR
            | RTMGRP_IPV6_ROUTE;
        socket.bind(&SocketAddr::new(0, groups))?;
        socket.set_non_blocking(true)?;
        Ok(Monitor {
            socket,
            own_protocol,
        })
    }

    /// Returns whether something has changed since the last call, without waiting. Notifications that
    /// were lost count as a change.
    pub fn has_changed(&self) -> bool {
        let mut has_changed = false;
        let mut buffer = Vec::with_capacity(1 << 16);
        for _ in 0..MAX_DATAGRAMS {
            buffer.clear();
            match self.socket.recv(&mut buffer, 0) {
                Ok(_) => has_changed |= self.is_relevant(&buffer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => {
                    has_changed = true;
                }
                Err(_) => break,
            }
        }
        has_changed
    }

    /// Returns whether a datagram has a message about something that the caller does not install.
    fn is_relevant(&self, mut datagram: &[u8]) -> bool {
        while let Some((header, _)) = datagram.split_at_checked(HEADER) {
            let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let kind = u16::from_ne_bytes([header[4], header[5]]);
            let body = datagram.get(HEADER..length).unwrap_or_default();
            let is_own = match kind {
                RTM_NEWADDR | RTM_DELADDR => interface_of_address(body) == Some(LOOPBACK),
                RTM_NEWROUTE | RTM_DELROUTE => protocol_of_route(body) == Some(self.own_protocol),
                _ => false,
            };
            if !is_own {
                return true;
            }
            let next = length.next_multiple_of(super::ALIGNMENT).max(HEADER);
            datagram = datagram.get(next..).unwrap_or_default();
        }
        false
    }
}

/// Returns the interface of a `struct ifaddrmsg`.
fn interface_of_address(body: &[u8]) -> Option<u32> {
    let number = body.get(4..8)?.try_into().ok()?;
    Some(u32::from_ne_bytes(number))
}

/// Returns the protocol number of a `struct rtmsg`.
fn protocol_of_route(body: &[u8]) -> Option<u8> {
    body.get(5).copied()
}
