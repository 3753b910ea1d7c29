//! Sends and receives whole Ethernet frames in batches, with little CPU time.
//!
//! A [`Port`] reads a device through a ring that it shares with the kernel (`PACKET_RX_RING`,
//! version 2): there is no system call and no wake-up per frame, and the kernel records when each
//! frame arrived, so that a reader that is delayed still knows. It writes through `sendmmsg`,
//! bypassing the queueing discipline.
//!
//! A port must be opened in the namespace of its device. No frame is lost silently: frames that
//! could not be read or written are counted or returned with an error.

mod receive;
mod send;
mod thread;
mod xdp;

pub use hawser_io::clock::monotonic as now;
pub use receive::{Frame, FrameError, Receiver};
pub use send::Sender;
pub use thread::{cpu_time, rise_to_realtime, wait};

use std::io;
use std::os::fd::OwnedFd;

/// The largest frame that a ring carries, in bytes, without a VLAN tag.
pub const MAX_FRAME: usize = receive::SLOT - receive::HEADROOM;

/// Both directions of a device.
///
/// While the port is open, an XDP program that passes everything is attached to the device. Without
/// one, a veth device drops frames that an XDP program at its other end redirects to it.
#[derive(Debug)]
pub struct Port {
    /// The frames that arrive on the device.
    pub receiver: Receiver,
    /// Sends frames by the device.
    pub sender: Sender,
    _xdp: OwnedFd,
}

impl Port {
    /// Opens `device`, which must be in the calling thread's network namespace.
    pub fn open(device: &str) -> io::Result<Self> {
        let index = nix::net::if_::if_nametoindex(device)?;
        Ok(Port {
            _xdp: xdp::attach_pass(index)?,
            receiver: Receiver::open(index)?,
            sender: Sender::open(index)?,
        })
    }
}

/// Opens a packet socket, bound to a device by its index.
fn packet_socket(
    index: u32,
    protocol: u16,
    prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;

    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // Protocol 0 receives nothing, so that nothing arrives before the socket is bound.
    // SAFETY: `socket` takes integers and returns a new descriptor or -1.
    let descriptor = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    prepare(&socket)?;
    bind(&socket, index, protocol)?;
    Ok(socket)
}

fn bind(socket: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    // SAFETY: all bytes zero is a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(io::Error::other)?;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address and its length are those of a live `sockaddr_ll`.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sets an option of a packet socket.
fn set_option<T>(socket: &OwnedFd, name: libc::c_int, value: &T) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let value = std::ptr::from_ref(value);
    // SAFETY: the pointer and the length are those of a live value; the kernel only reads it.
    let set = unsafe {
        let length = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            value.cast(),
            length,
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
