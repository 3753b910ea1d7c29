//! The flows that the kernel's connection tracking knows, over ctnetlink (`linux/netfilter/nfnetlink_conntrack.h`).

use super::{ALIGNMENT, Error, find};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use std::io;
use std::net::IpAddr;

// linux/netfilter/nfnetlink.h, nfnetlink_conntrack.h and netlink.h
const NFNL_SUBSYS_CTNETLINK: u16 = 1 << 8;
const IPCTNL_MSG_CT_GET: u16 = NFNL_SUBSYS_CTNETLINK | 1;
const IPCTNL_MSG_CT_DELETE: u16 = NFNL_SUBSYS_CTNETLINK | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_IP_SOURCE: [u16; 2] = [1, 3];
const CTA_IP_DESTINATION: [u16; 2] = [2, 4];
const NLA_F_NESTED: u16 = 1 << 15;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

// linux/socket.h
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The length of a message's header, and of that of netfilter which follows it.
const HEADER: usize = 16;
const NETFILTER_HEADER: usize = 4;

/// A flow that the kernel tracks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackedFlow {
    /// The source of the packets that began it, before any translation.
    pub source: IpAddr,
    /// The destination of these packets, before any translation.
    pub destination: IpAddr,
    /// The destination of the replies: the source after translation.
    pub translated_source: IpAddr,
}

/// Has the kernel forget the flows for which `is_stale` returns true, so that their next packets are
/// translated by the rules and routes of that time. Returns how many there were.
///
/// # Errors
/// If the kernel has no connection tracking that can be asked, or the process lacks CAP_NET_ADMIN.
pub fn forget_flows(is_stale: impl Fn(&TrackedFlow) -> bool) -> Result<usize, Error> {
    let mut stale = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let of_family = |attributes: &[u8]| {
            if parse(attributes).is_some_and(|flow| is_stale(&flow)) {
                stale.push((family, name(attributes)));
            }
        };
        exchange(IPCTNL_MSG_CT_GET, NLM_F_DUMP, family, &[], of_family)
            .map_err(|error| rejected("list tracked flows", &error))?;
    }
    let mut forgotten = 0;
    for (family, name) in stale {
        match exchange(IPCTNL_MSG_CT_DELETE, NLM_F_ACK, family, &name, |_| {}) {
            Ok(()) => forgotten += 1,
            // The connection has ended.
            Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {}
            Err(error) => return Err(rejected("forget a tracked flow", &error)),
        }
    }
    Ok(forgotten)
}

fn rejected(request: &str, error: &io::Error) -> Error {
    let errno = error.raw_os_error().map(Errno::from_raw);
    Error::Rejected {
        request: request.to_owned(),
        errno: errno.unwrap_or(Errno::EPROTO),
        explanation: None,
    }
}

/// Sends a request, and hands over the attributes of each answer.
fn exchange(
    kind: u16,
    flags: u16,
    family: u8,
    attributes: &[u8],
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let socket = Socket::new(NETLINK_NETFILTER)?;
    let message = request(kind, flags, family, attributes);
    socket.send_to(&message, &SocketAddr::new(0, 0), 0)?;
    loop {
        let datagram = socket.recv_from_full()?.0;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let length = header_number(rest, 0)?;
            let message = rest.get(..length).ok_or(io::ErrorKind::InvalidData)?;
            match u16::from_ne_bytes([message[4], message[5]]) {
                NLMSG_ERROR => {
                    let code = header_number(message, HEADER)? as i32;
                    return match code {
                        0 => Ok(()),
                        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                    };
                }
                NLMSG_DONE => return Ok(()),
                _ => each(message.get(HEADER + NETFILTER_HEADER..).unwrap_or_default()),
            }
            rest = rest
                .get(length.next_multiple_of(ALIGNMENT)..)
                .unwrap_or_default();
        }
    }
}

/// Returns a number of 32 bits of a message that has at least a header.
fn header_number(message: &[u8], at: usize) -> io::Result<usize> {
    let bytes = message.get(at..at + 4).filter(|_| message.len() >= HEADER);
    let bytes = bytes.ok_or(io::ErrorKind::InvalidData)?;
    let number = u32::from_ne_bytes(bytes.try_into().expect("4 bytes"));
    Ok(number as usize)
}

fn request(kind: u16, flags: u16, family: u8, attributes: &[u8]) -> Vec<u8> {
    let length = HEADER + NETFILTER_HEADER + attributes.len();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // The sequence number and the sender, which the kernel fills in.
    message.extend([0; 8]);
    message.extend([family, 0, 0, 0]);
    message.extend(attributes);
    message
}

/// Returns the attributes by which the kernel finds a flow: the first packet's addresses, its number,
/// and its zone.
fn name(attributes: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    for (kind, flag) in [(CTA_TUPLE_ORIG, NLA_F_NESTED), (CTA_ID, 0), (CTA_ZONE, 0)] {
        if let Some(value) = find(attributes, kind) {
            name.extend((4 + value.len() as u16).to_ne_bytes());
            name.extend((kind | flag).to_ne_bytes());
            name.extend(value);
            name.resize(name.len().next_multiple_of(ALIGNMENT), 0);
        }
    }
    name
}

fn parse(attributes: &[u8]) -> Option<TrackedFlow> {
    let first = find(find(attributes, CTA_TUPLE_ORIG)?, CTA_TUPLE_IP)?;
    let reply = find(find(attributes, CTA_TUPLE_REPLY)?, CTA_TUPLE_IP)?;
    Some(TrackedFlow {
        source: address(first, CTA_IP_SOURCE)?,
        destination: address(first, CTA_IP_DESTINATION)?,
        translated_source: address(reply, CTA_IP_DESTINATION)?,
    })
}

/// Returns an address, which is in the first attribute for IPv4 and in the second one for IPv6.
fn address(attributes: &[u8], [ipv4, ipv6]: [u16; 2]) -> Option<IpAddr> {
    let of_ipv4 = find(attributes, ipv4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
    let of_ipv6 = find(attributes, ipv6).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    of_ipv4.map(IpAddr::from).or(of_ipv6.map(IpAddr::from))
}
