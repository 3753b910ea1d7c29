//! Socket options that neither the standard library nor `nix` supports.

use libc::{c_int, socklen_t};
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};

/// Handling of packets larger than the path's MTU on an IP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtuDiscovery {
    /// Never set DF; fragment.
    Dont,
    /// Set DF, and do not send packets larger than the path's known MTU.
    Do,
    /// Set DF, and send packets up to the interface's MTU, whatever is known of the path.
    Probe,
}

/// Sets `IP_MTU_DISCOVER`, or `IPV6_MTU_DISCOVER` on an IPv6 socket.
pub fn set_mtu_discovery(socket: impl AsFd, ipv6: bool, discovery: MtuDiscovery) -> io::Result<()> {
    let (level, name) = if ipv6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
    };
    let value = match (ipv6, discovery) {
        (false, MtuDiscovery::Dont) => libc::IP_PMTUDISC_DONT,
        (false, MtuDiscovery::Do) => libc::IP_PMTUDISC_DO,
        (false, MtuDiscovery::Probe) => libc::IP_PMTUDISC_PROBE,
        (true, MtuDiscovery::Dont) => libc::IPV6_PMTUDISC_DONT,
        (true, MtuDiscovery::Do) => libc::IPV6_PMTUDISC_DO,
        (true, MtuDiscovery::Probe) => libc::IPV6_PMTUDISC_PROBE,
    };
    set(socket, level, name, value)
}

/// Has the kernel say when each datagram arrived (`SO_TIMESTAMPNS`), one datagram at a time: the buffers
/// of `noq-udp` for ancillary data have no room for the size of joined ones besides.
pub fn stamp_arrivals(socket: impl AsFd) -> io::Result<()> {
    let socket = socket.as_fd();
    // Kernels before 5.0 do not join datagrams.
    let _ = set(socket, libc::SOL_UDP, libc::UDP_GRO, 0);
    set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

/// Returns the largest packet that a connected IP socket can send to its peer, in bytes, as far as the
/// kernel has learnt it (`IP_MTU`, or `IPV6_MTU` on an IPv6 socket).
pub fn path_mtu(socket: impl AsFd, ipv6: bool) -> io::Result<u32> {
    if ipv6 {
        get(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        get(socket, libc::IPPROTO_IP, libc::IP_MTU)
    }
}

fn set(socket: impl AsFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    let length = mem::size_of::<c_int>() as socklen_t;
    // SAFETY: the descriptor is open, and the pointer and the length are those of a live integer.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            length,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the number of packets that the kernel dropped at this socket because its buffer was full
/// or their checksum was wrong (`SO_MEMINFO`).
pub fn drops(socket: impl AsFd) -> io::Result<u32> {
    // linux/sock_diag.h: nine counters, the last is SK_MEMINFO_DROPS.
    let meminfo: [u32; 9] = get(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)?;
    Ok(meminfo[8])
}

/// Returns the number of segments that a TCP connection has retransmitted (`tcpi_total_retrans`).
pub fn tcp_retransmissions(socket: impl AsFd) -> io::Result<u32> {
    let info: libc::tcp_info = get(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(info.tcpi_total_retrans)
}

/// A plain value that the kernel fills: every bit pattern of it is valid.
trait Plain {}
impl Plain for u32 {}
impl Plain for [u32; 9] {}
impl Plain for libc::tcp_info {}

fn get<T: Plain>(socket: impl AsFd, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut length = mem::size_of::<T>() as socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes at the pointer.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes are initialised, by us or by the kernel, and `Plain` allows any bit
    // pattern.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    fn a_full_receive_buffer_is_counted() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(drops(&receiver).unwrap(), 0);
        while drops(&receiver).unwrap() == 0 {
            sender
                .send_to(&[0; 1400], receiver.local_addr().unwrap())
                .unwrap();
        }
    }

    #[test]
    fn a_loopback_connection_sends_nothing_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(tcp_retransmissions(&stream).unwrap(), 0);
    }

    #[test]
    fn a_connected_socket_has_the_mtu_of_its_path() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(path_mtu(&socket, false).is_err());
        socket.connect("127.0.0.1:9").unwrap();
        assert!(path_mtu(&socket, false).unwrap() >= 1500);
    }

    #[test]
    fn mtu_discovery_is_chosen_in_both_families() {
        for (own, ipv6) in [("127.0.0.1:0", false), ("[::1]:0", true)] {
            let socket = UdpSocket::bind(own).unwrap();
            set_mtu_discovery(&socket, ipv6, MtuDiscovery::Dont).unwrap();
            set_mtu_discovery(&socket, ipv6, MtuDiscovery::Do).unwrap();
        }
    }
}
