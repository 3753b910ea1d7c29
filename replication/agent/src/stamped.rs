//! UDP between two nodes on one path, with the kernel's arrival times.

use hawser_io::sockopt::{self, MtuDiscovery};
use nix::errno::Errno;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A UDP socket that sends by one interface to one address and receives only from that address.
#[derive(Debug)]
pub(crate) struct StampedSocket(Socket);

/// A received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    /// Length of the datagram in the buffer; bytes that did not fit are cut off.
    pub(crate) bytes: usize,
    /// When the kernel received it.
    pub(crate) at: SystemTime,
}

impl StampedSocket {
    /// Opens a non-blocking socket from `local` to `remote` by `interface`, whose datagrams are not
    /// fragmented. The kernel starts timestamping a moment after it was asked to: datagrams that arrive
    /// before that get the time at which they are read.
    pub(crate) fn open(interface: &str, local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(interface.as_bytes()))?;
        // Several sockets may have the same local address; the kernel tells them apart by the remote one.
        socket.set_reuse_address(true)?;
        socket.bind(&local.into())?;
        socket.connect(&remote.into())?;
        socket.set_nonblocking(true)?;
        sockopt::set_mtu_discovery(&socket, local.is_ipv6(), MtuDiscovery::Probe)?;
        setsockopt(&socket, ReceiveTimestampns, &true)?;
        Ok(StampedSocket(socket))
    }

    /// Sends a datagram.
    pub(crate) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.0.send(datagram).map(drop)
    }

    /// Returns the size of the largest packet that fits the path, bytes, as far as the kernel has learnt
    /// it. Larger ones are sent all the same.
    pub(crate) fn mtu_bytes(&self) -> io::Result<u32> {
        let is_ipv6 = self.0.local_addr()?.is_ipv6();
        sockopt::path_mtu(&self.0, is_ipv6)
    }

    /// Returns the next datagram that has arrived, if any.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut space = nix::cmsg_space!(TimeSpec);
        let mut slices = [IoSliceMut::new(buffer)];
        let message = match recvmsg::<()>(
            self.0.as_raw_fd(),
            &mut slices,
            Some(&mut space),
            MsgFlags::empty(),
        ) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(UNIX_EPOCH + Duration::from(stamp)),
            _ => None,
        });
        Ok(Some(Received {
            bytes: message.bytes,
            at: stamp.unwrap_or_else(SystemTime::now),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Instant;

    fn wait(socket: &StampedSocket, buffer: &mut [u8]) -> Received {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            if let Some(received) = socket.receive(buffer).unwrap() {
                return received;
            }
            assert!(Instant::now() < deadline, "no datagram arrived");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn datagrams_carry_kernel_times_and_come_from_the_peer() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let socket = StampedSocket::open("lo", local, peer.local_addr().unwrap()).unwrap();
        let mut buffer = [0; 16];
        assert_eq!(socket.receive(&mut buffer).unwrap(), None);

        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let before = SystemTime::now();
            other.send_to(b"other", local).unwrap();
            peer.send_to(b"peer", local).unwrap();
            // Longer than a busy kernel takes to deliver it.
            std::thread::sleep(Duration::from_millis(500));
            let received = wait(&socket, &mut buffer);
            assert_eq!(&buffer[..received.bytes], b"peer");
            assert!(received.at >= before);
            if received.at.elapsed().unwrap() >= Duration::from_millis(250) {
                break;
            }
            assert!(Instant::now() < deadline, "stamped when it was read");
        }

        socket.send(b"answer").unwrap();
        assert_eq!(peer.recv(&mut buffer).unwrap(), 6);
    }
}
