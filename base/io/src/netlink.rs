//! Links, addresses and routes of the current network namespace, which the kernel changes on
//! request over netlink (rtnetlink(7)).
//!
//! Each request has its own socket, so that it concerns the namespace in which the calling thread
//! is at that moment. The kernel handles a request within the system call that sends it: nothing
//! here waits for another process or for the network.

mod address;
mod conntrack;
mod generic;
mod link;
mod monitor;
mod offloads;
mod route;
mod rule;
mod xdp;

pub use address::{Address, flush_addresses};
pub use conntrack::{TrackedFlow, forget_flows};
pub use link::{LinkChange, create_veth, delete_link};
pub use monitor::Monitor;
pub use offloads::{STRIPS_VLAN_TAGS, offloads};
pub use route::{KERNEL_METRIC, KERNEL_PROTOCOL, Route, gatewayed_or_dropped, routes_by};
pub use rule::rule_tables;
pub use xdp::{XdpFeatures, xdp_features};

use netlink_packet_core::{
    ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
    NlasIterator, parse_string,
};
use netlink_packet_route::RouteNetlinkMessage::GetRoute;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use std::fmt;
use std::io;
use std::net::IpAddr;

/// The reason that a request to the kernel failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The network namespace has no interface of this name.
    #[error("interface {0} does not exist")]
    NoInterface(String),
    /// The interface has no Ethernet address.
    #[error("interface {0} has no Ethernet address, because its packets have no Ethernet header")]
    NotEthernet(String),
    /// The kernel rejected the request.
    #[error("cannot {request}: {}{}", errno.desc(), reason(*errno, explanation.as_deref()))]
    Rejected {
        /// The request, in the infinitive.
        request: String,
        /// The error.
        errno: Errno,
        /// The kernel's own explanation, if it gave one.
        explanation: Option<String>,
    },
    /// The kernel's answer is not of the expected form.
    #[error("cannot {request}: unexpected answer of the kernel: {answer}")]
    Unexpected {
        /// The request, in the infinitive.
        request: String,
        /// The error in the answer.
        answer: String,
    },
}

impl Error {
    /// Returns whether the kernel rejected the request with this error.
    pub fn is(&self, expected: Errno) -> bool {
        matches!(self, Error::Rejected { errno, .. } if *errno == expected)
    }
}

fn reason(errno: Errno, explanation: Option<&str>) -> String {
    match explanation {
        Some(explanation) => format!(": {explanation}"),
        None if errno == Errno::EPERM => ": this needs root or CAP_NET_ADMIN".to_owned(),
        None => String::new(),
    }
}

/// Returns the value of the first attribute of a kind.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (header, _) = attributes.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = attributes.get(4..length)?;
        if u16::from_ne_bytes([header[2], header[3]]) & KIND == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(ALIGNMENT)..)?;
    }
}

/// The bits of an attribute's kind that are not flags: `NLA_TYPE_MASK` of `linux/netlink.h`.
const KIND: u16 = (1 << 14) - 1;

/// The reason that a request failed, without the request.
enum Failure {
    Kernel(Errno, Option<String>),
    Unexpected(String),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Failure::Kernel(Errno::from_raw(number), None),
            None => Failure::Unexpected(error.to_string()),
        }
    }
}

/// Sends a request with `flags` besides those of every request, and returns the kernel's answers.
/// `description` says in the infinitive what is requested.
pub(crate) fn request(
    description: fmt::Arguments<'_>,
    message: RouteNetlinkMessage,
    flags: u16,
) -> Result<Vec<RouteNetlinkMessage>, Error> {
    exchange(message, flags).map_err(|failure| {
        let request = description.to_string();
        match failure {
            Failure::Kernel(errno, explanation) => Error::Rejected {
                request,
                errno,
                explanation,
            },
            Failure::Unexpected(answer) => Error::Unexpected { request, answer },
        }
    })
}

/// Returns whether a request has added something; it has not if it was there before.
pub(crate) fn added(outcome: Result<Vec<RouteNetlinkMessage>, Error>) -> Result<bool, Error> {
    match outcome {
        Ok(_) => Ok(true),
        Err(error) if error.is(Errno::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// As [`request`], for a request with one answer.
pub(crate) fn ask(
    description: fmt::Arguments<'_>,
    message: RouteNetlinkMessage,
) -> Result<RouteNetlinkMessage, Error> {
    let mut answers = request(description, message, 0)?;
    match answers.pop() {
        Some(answer) if answers.is_empty() => Ok(answer),
        _ => Err(unexpected(description, "not a single message")),
    }
}

pub(crate) fn unexpected(description: fmt::Arguments<'_>, answer: &str) -> Error {
    Error::Unexpected {
        request: description.to_string(),
        answer: answer.to_owned(),
    }
}

fn exchange(message: RouteNetlinkMessage, flags: u16) -> Result<Vec<RouteNetlinkMessage>, Failure> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.set_ext_ack(true)?;
    // Errors come without a copy of the request.
    socket.set_cap_ack(true)?;
    // Makes the kernel select the routes to list: there may be a million others.
    let lists_routes = flags == NLM_F_DUMP && matches!(message, GetRoute(_));
    socket.set_netlink_get_strict_chk(lists_routes)?;
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
    let mut answers = Vec::new();
    while !read_answers(&socket.recv_from_full()?.0, &mut answers)? {}
    Ok(answers)
}

/// Appends the messages of a datagram to `answers`. Returns whether the last answer is among them.
fn read_answers(
    mut datagram: &[u8],
    answers: &mut Vec<RouteNetlinkMessage>,
) -> Result<bool, Failure> {
    while !datagram.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(datagram)
            .map_err(|error| Failure::Unexpected(error.to_string()))?;
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            NetlinkPayload::Error(result) => return acknowledged(&result).map(|()| true),
            NetlinkPayload::Done(_) => return Ok(true),
            other => return Err(Failure::Unexpected(format!("{other:?}"))),
        }
        let length = (message.header.length as usize).next_multiple_of(ALIGNMENT);
        datagram = datagram.get(length..).unwrap_or_default();
    }
    Ok(false)
}

/// Messages start at multiples of this number of bytes.
const ALIGNMENT: usize = 4;

fn acknowledged(result: &ErrorMessage) -> Result<(), Failure> {
    /// The length of the request's header, which the attributes follow.
    const HEADER: usize = 16;
    /// `linux/netlink.h`: the attribute with the explanation.
    const NLMSGERR_ATTR_MSG: u16 = 1;
    let Some(code) = result.code else {
        return Ok(());
    };
    let attributes = result.header.get(HEADER..).unwrap_or_default();
    let explanation = NlasIterator::new(attributes)
        .filter_map(Result::ok)
        .find(|attribute| attribute.kind() == NLMSGERR_ATTR_MSG)
        .and_then(|attribute| parse_string(attribute.value()).ok());
    let errno = Errno::from_raw(code.get().saturating_neg());
    Err(Failure::Kernel(errno, explanation))
}

/// Returns the number of the interface called `name`.
pub(crate) fn index(name: &str) -> Result<u32, Error> {
    nix::net::if_::if_nametoindex(name).map_err(|errno| match errno {
        Errno::ENODEV => Error::NoInterface(name.to_owned()),
        errno => Error::Rejected {
            request: format!("find interface {name}"),
            errno,
            explanation: None,
        },
    })
}

pub(crate) fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(errno: Errno, explanation: Option<&str>) -> String {
        let error = Error::Rejected {
            request: "replace route 10.0.0.0/8 dev eth0".to_owned(),
            errno,
            explanation: explanation.map(str::to_owned),
        };
        error.to_string()
    }

    #[test]
    fn an_error_names_the_request_and_the_reason() {
        assert_eq!(
            rejected(Errno::ENETUNREACH, Some("Nexthop has invalid gateway")),
            "cannot replace route 10.0.0.0/8 dev eth0: Network is unreachable: Nexthop has invalid gateway"
        );
        assert_eq!(
            rejected(Errno::ESRCH, None),
            "cannot replace route 10.0.0.0/8 dev eth0: No such process"
        );
        assert_eq!(
            rejected(Errno::EPERM, None),
            "cannot replace route 10.0.0.0/8 dev eth0: Operation not permitted: this needs root or CAP_NET_ADMIN"
        );
    }

    #[test]
    fn an_error_carries_the_explanation_of_the_kernel() {
        let mut header = vec![0; 16];
        header.extend([10, 0, 1, 0]);
        header.extend(b"wrong\0\0\0");
        let mut result = ErrorMessage::default();
        result.header = header;
        assert!(acknowledged(&result).is_ok());
        result.code = std::num::NonZeroI32::new(-22);
        assert!(matches!(
            acknowledged(&result),
            Err(Failure::Kernel(Errno::EINVAL, Some(explanation))) if explanation == "wrong"
        ));
        result.header.truncate(17);
        assert!(matches!(
            acknowledged(&result),
            Err(Failure::Kernel(Errno::EINVAL, None))
        ));
    }
}
