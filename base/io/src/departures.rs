//! Departure times of datagrams (`SO_TXTIME`), and the times at which datagrams really left
//! (`SO_TIMESTAMPING`).
//!
//! Departure times are of the monotonic clock. The queueing discipline `fq` holds datagrams until
//! then, and any process may set them. `etf` needs `CLOCK_TAI` and a privilege, and drops what has no
//! departure time.

use crate::clock::Clocks;
use hawser_units::{Ecn, Instant};
use libc::c_int;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, TimestampingFlag, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use socket2::{MsgHdr, SockAddr, SockRef};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// When a datagram is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// The time, by the monotonic clock.
    pub at: Instant,
    /// Whether the kernel is asked to say when the datagram left.
    pub is_stamped: bool,
}

/// When a datagram left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The address to which it was sent.
    pub to: SocketAddr,
    /// The time at which it was to leave, by the monotonic clock.
    pub planned: Instant,
    /// The time at which the kernel gave it to the device, by the monotonic clock.
    pub left: Instant,
}

/// The number of datagrams whose time stamps are waited for.
const WAITING: usize = 64;

/// The datagrams of a socket that have departure times.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// The number of the next datagram with a time stamp: the kernel counts them, too.
    next: u32,
    waiting: VecDeque<(u32, SocketAddr, Instant)>,
}

impl Departures {
    /// Allows departure times at a socket whose arrivals are stamped
    /// ([`stamp_arrivals`](crate::sockopt::stamp_arrivals)).
    pub(crate) fn allow(socket: &UdpSocket) -> io::Result<Self> {
        let monotonic = libc::sock_txtime {
            clockid: libc::CLOCK_MONOTONIC,
            flags: 0,
        };
        setsockopt(socket, sockopt::TxTime, &monotonic)?;
        let mut departures = Departures::default();
        departures.count_from_0(socket)?;
        Ok(departures)
    }

    pub(crate) fn send(
        &mut self,
        socket: &UdpSocket,
        (from, to): (Option<IpAddr>, SocketAddr),
        ecn: Ecn,
        bytes: &[u8],
        departure: Departure,
    ) -> io::Result<()> {
        let control = control_messages(from, to, ecn, departure);
        let (address, buffers) = (SockAddr::from(to), [IoSlice::new(bytes)]);
        let message = MsgHdr::new()
            .with_addr(&address)
            .with_buffers(&buffers)
            .with_control(&control);
        let sent = SockRef::from(socket).sendmsg(&message, 0);
        if departure.is_stamped {
            match sent {
                Ok(_) => self.wait_for(to, departure.at),
                // Whether the kernel has counted it depends on the error.
                Err(_) => self.count_from_0(socket)?,
            }
        }
        sent.map(drop)
    }

    /// Returns the next time stamp of a datagram that has left.
    pub(crate) fn next_left(&mut self, socket: &UdpSocket) -> io::Result<Option<Left>> {
        while let Some((number, time_of_day)) = next_stamp(socket)? {
            let waiting = &mut self.waiting;
            let found = waiting.iter().position(|(sent, ..)| *sent == number);
            if let Some((_, to, planned)) = found.and_then(|at| waiting.remove(at)) {
                let left = Clocks::read().monotonic(time_of_day);
                return Ok(Some(Left { to, planned, left }));
            }
        }
        Ok(None)
    }

    fn wait_for(&mut self, to: SocketAddr, planned: Instant) {
        if self.waiting.len() == WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((self.next, to, planned));
        self.next = self.next.wrapping_add(1);
    }

    /// Has the kernel count datagrams with time stamps from 0, as it does when it begins to.
    fn count_from_0(&mut self, socket: &UdpSocket) -> io::Result<()> {
        // Which datagrams are stamped is said for each.
        let counted = TimestampingFlag::SOF_TIMESTAMPING_OPT_ID
            | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY;
        setsockopt(socket, sockopt::Timestamping, &TimestampingFlag::empty())?;
        setsockopt(socket, sockopt::Timestamping, &counted)?;
        *self = Departures::default();
        Ok(())
    }
}

/// Returns the control messages of a datagram, as `sendmsg(2)` reads them.
fn control_messages(
    from: Option<IpAddr>,
    to: SocketAddr,
    ecn: Ecn,
    departure: Departure,
) -> Vec<u8> {
    let mut messages = Vec::with_capacity(128);
    let mut add = |level, kind, data: &[u8]| push_control(&mut messages, level, kind, data);
    let ecn = c_int::from(ecn.bits()).to_ne_bytes();
    match to.ip().to_canonical() {
        IpAddr::V4(_) => add(libc::IPPROTO_IP, libc::IP_TOS, &ecn),
        IpAddr::V6(_) => add(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &ecn),
    }
    // in_pktinfo and in6_pktinfo, without an interface.
    match from {
        Some(IpAddr::V4(own)) => {
            let info = [[0; 4], own.octets(), [0; 4]].concat();
            add(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
        }
        Some(IpAddr::V6(own)) => {
            let info = [&own.octets()[..], &[0; 4]].concat();
            add(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
        }
        None => {}
    }
    let at = departure.at.as_nanos().to_ne_bytes();
    add(libc::SOL_SOCKET, libc::SCM_TXTIME, &at);
    if departure.is_stamped {
        let when_it_leaves = TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE.bits();
        let flags = when_it_leaves.to_ne_bytes();
        add(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &flags);
    }
    messages
}

/// Adds a control message: a `cmsghdr` and its data, padded to the size of a `size_t` (`cmsg(3)`).
fn push_control(messages: &mut Vec<u8>, level: c_int, kind: c_int, data: &[u8]) {
    const ALIGNMENT: usize = size_of::<usize>();
    let length = size_of::<libc::cmsghdr>() + data.len();
    messages.extend(length.to_ne_bytes());
    messages.extend(level.to_ne_bytes());
    messages.extend(kind.to_ne_bytes());
    messages.extend(data);
    messages.resize(messages.len().next_multiple_of(ALIGNMENT), 0);
}

/// Returns the number of a datagram that has left, and the time of day at which it did.
fn next_stamp(socket: &UdpSocket) -> io::Result<Option<(u32, Duration)>> {
    let mut space = cmsg_space!(TimeSpec, [libc::sock_extended_err; 4]);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    loop {
        let mut nothing = [IoSliceMut::new(&mut [])];
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut nothing, Some(&mut space), flags);
        let message = match message {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let (mut number, mut time) = (None, None);
        for control in message.cmsgs()? {
            match control {
                ControlMessageOwned::Ipv4RecvErr(error, _)
                | ControlMessageOwned::Ipv6RecvErr(error, _)
                    if error.ee_origin == libc::SO_EE_ORIGIN_TIMESTAMPING =>
                {
                    number = Some(error.ee_data);
                }
                ControlMessageOwned::ScmTimestampns(stamp) => time = Some(Duration::from(stamp)),
                _ => {}
            }
        }
        if let Some(stamp) = number.zip(time) {
            return Ok(Some(stamp));
        }
    }
}
