use super::{PORT, RELAY, SEND_BUFFER_BYTES, own_hop, remote, upstream_hop};
use anyhow::{Context, Result, ensure};
use hawser_packets::media::{DEFAULT_DATAGRAM, is_from_hop, write_hop};
use nix::sys::socket::sockopt::{SndBufForce, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg, setsockopt};
use std::io::IoSlice;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The longest wait for a packet.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A relay in user space that does with packets what the kernel's does: verifies them, tags them for the
/// next hop, and sends them to all subscribers.
pub(crate) struct UserSpaceRelay {
    socket: UdpSocket,
    addresses: Vec<Option<SockaddrIn>>,
    headers: MultiHeaders<SockaddrIn>,
    buffer: Vec<u8>,
    /// The bytes of the buffer that are in use.
    received: usize,
    /// Whether it sends trains with `UDP_SEGMENT`.
    sends_trains: bool,
}

impl UserSpaceRelay {
    /// Opens its socket. It receives trains as such (`UDP_GRO`).
    pub(crate) fn open(subscribers: usize) -> Result<Self> {
        let socket = UdpSocket::bind((RELAY[0], PORT))?;
        setsockopt(&socket, UdpGroSegment, &true)?;
        setsockopt(&socket, SndBufForce, &SEND_BUFFER_BYTES)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        let addresses = (0..subscribers).map(|index| Some(remote(index).into()));
        Ok(UserSpaceRelay {
            socket,
            addresses: addresses.collect(),
            headers: MultiHeaders::preallocate(subscribers, None),
            buffer: vec![0; 1 << 16],
            received: 0,
            sends_trains: false,
        })
    }

    /// Sends each subscriber what was received together as one train, or packet by packet.
    pub(crate) fn send_trains(&mut self, trains: bool) -> Result<()> {
        let bytes = if trains { DEFAULT_DATAGRAM as i32 } else { 0 };
        setsockopt(&self.socket, UdpGsoSegment, &bytes)?;
        self.sends_trains = trains;
        Ok(())
    }

    /// Receives a packet or a train of them, and verifies and tags it. Returns the number of bytes, 0 for
    /// the empty datagram with which a publisher ends.
    pub(crate) fn receive(&mut self) -> Result<usize> {
        self.received = self.socket.recv(&mut self.buffer)?;
        self.tag()
    }

    /// As [`receive`](Self::receive), until there are `bytes`.
    pub(crate) fn receive_all(&mut self, bytes: usize) -> Result<()> {
        self.received = 0;
        while self.received < bytes {
            self.received += self.socket.recv(&mut self.buffer[self.received..])?;
        }
        self.tag().map(drop)
    }

    fn tag(&mut self) -> Result<usize> {
        let (from, to) = (upstream_hop(), own_hop());
        for packet in self.buffer[..self.received].chunks_mut(DEFAULT_DATAGRAM) {
            ensure!(is_from_hop(packet, &from.key), "a forged packet");
            let header = packet.first_chunk_mut().context("a packet has a header")?;
            write_hop(header, &to);
        }
        Ok(self.received)
    }

    /// Sends what was received to all subscribers, each packet or train with one system call.
    pub(crate) fn send(&mut self) -> Result<()> {
        let length = if self.sends_trains {
            self.received.max(1)
        } else {
            DEFAULT_DATAGRAM
        };
        for piece in self.buffer[..self.received].chunks(length) {
            let slices = vec![[IoSlice::new(piece)]; self.addresses.len()];
            let mut sent = 0;
            while sent < self.addresses.len() {
                let more = sendmmsg(
                    self.socket.as_raw_fd(),
                    &mut self.headers,
                    &slices[sent..],
                    &self.addresses[sent..],
                    [],
                    MsgFlags::empty(),
                )?;
                sent += more.count();
            }
        }
        Ok(())
    }
}
