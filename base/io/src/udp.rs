//! A UDP socket with the ECN field and the time of arrival of each datagram, and precise waiting.

pub use crate::departures::{Departure, Left};

use crate::departures::Departures;
use crate::sockopt;
use hawser_units::Ecn;
use lru::LruCache;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::prctl;
use nix::sys::time::TimeSpec;
use noq_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use std::io::{self, ErrorKind, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The number of reads of the socket before its caller may do other things.
const READS: usize = 16;

/// The number of datagrams after which nothing more is read, for the same reason: a read may have 500 short ones.
const DATAGRAMS: usize = 1024;

/// The number of buffers of a read, and the size of each: the longest run of datagrams that the
/// kernel joins.
const BUFFERS: usize = 8;
const BUFFER_BYTES: usize = 65_536;

/// The requested size of the kernel's buffers in bytes: 200 ms at 90 Mb/s. The kernel may give less
/// (`net.core.rmem_max`, `net.core.wmem_max`).
pub const KERNEL_BUFFER: usize = 2 << 20;

/// The number of peers whose own address is remembered.
const PEERS: NonZeroUsize = NonZeroUsize::new(1024).expect("not 0");

/// A UDP socket that does not block.
#[derive(Debug)]
pub struct UdpSocket {
    socket: std::net::UdpSocket,
    state: UdpSocketState,
    buffers: Vec<u8>,
    waker: Waker,
    /// The own address at which each peer was heard last, if the socket is bound to all of them: the
    /// peer expects its answers from there. Forged sources are no peers.
    heard_at: Option<LruCache<SocketAddr, IpAddr>>,
    /// Those with departure times, if they are allowed.
    departures: Option<Departures>,
}

/// A datagram that arrived.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The address it came from.
    pub from: SocketAddr,
    /// The ECN field.
    pub ecn: Ecn,
    /// The time since its arrival at the machine.
    pub age: Duration,
    /// The payload.
    pub bytes: &'a [u8],
}

/// Ends the waiting of a socket's thread from another one.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl UdpSocket {
    /// Binds a socket to an address. `[::]` also receives IPv4.
    ///
    /// # Errors
    /// If the address is in use or not one of this machine.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        sockopt::stamp_arrivals(&socket)?;
        state.set_recv_buffer_size((&socket).into(), KERNEL_BUFFER)?;
        state.set_send_buffer_size((&socket).into(), KERNEL_BUFFER)?;
        let is_any = address.ip().is_unspecified();
        let waker = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(UdpSocket {
            socket,
            state,
            buffers: vec![0; BUFFERS * BUFFER_BYTES],
            waker: Waker(Arc::new(waker)),
            heard_at: is_any.then(|| LruCache::new(PEERS)),
            departures: None,
        })
    }

    /// Allows [`UdpSocket::send_at`].
    ///
    /// # Errors
    /// If the kernel knows no departure times of packets (`SO_TXTIME`, Linux 4.19), or does not let
    /// unprivileged processes set them (before Linux 5.8).
    pub fn allow_departure_times(&mut self) -> io::Result<()> {
        self.departures = Some(Departures::allow(&self.socket)?);
        Ok(())
    }

    /// Connects the socket: it receives from this address only, and gets an error if no socket listens there.
    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        self.socket.connect(address)
    }

    /// Returns the address to which the socket is bound.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the number of datagrams that the kernel dropped because they were not taken in time.
    pub fn drops(&self) -> io::Result<u32> {
        sockopt::drops(&self.socket)
    }

    /// Sends a datagram, from the own address at which the peer was heard last.
    ///
    /// # Errors
    /// As of `sendmsg(2)`: [`ErrorKind::WouldBlock`] if the kernel's buffer is full.
    pub fn send(&self, to: SocketAddr, ecn: Ecn, bytes: &[u8]) -> io::Result<()> {
        let transmit = Transmit {
            destination: to,
            ecn: EcnCodepoint::from_bits(ecn.bits()),
            contents: bytes,
            segment_size: None,
            src_ip: self.own_address(&to),
        };
        self.state.try_send((&self.socket).into(), &transmit)
    }

    /// Sends a datagram as [`UdpSocket::send`], with a departure time. A queueing discipline that follows it
    /// holds it until then; others send it at once. It cannot be recalled.
    ///
    /// # Errors
    /// As [`UdpSocket::send`]; [`ErrorKind::Unsupported`] if departure times are not allowed.
    pub fn send_at(
        &mut self,
        to: SocketAddr,
        ecn: Ecn,
        bytes: &[u8],
        departure: Departure,
    ) -> io::Result<()> {
        let from = self.own_address(&to);
        let departures = self.departures.as_mut().ok_or(ErrorKind::Unsupported)?;
        departures.send(&self.socket, (from, to), ecn, bytes, departure)
    }

    /// Returns when a stamped datagram left, for the next one that has and that was not returned before.
    ///
    /// [`UdpSocket::wait`] does not wait while there are any, and there may be none: not every device
    /// stamps what leaves.
    pub fn next_left(&mut self) -> io::Result<Option<Left>> {
        match &mut self.departures {
            Some(departures) => departures.next_left(&self.socket),
            None => Ok(None),
        }
    }

    /// Hands over datagrams that have arrived, up to a bound. Returns whether there were any.
    ///
    /// # Errors
    /// As of `recvmsg(2)`: [`ErrorKind::ConnectionRefused`] if no socket listens at the address to which
    /// the socket is connected.
    pub fn receive(&mut self, mut handle: impl FnMut(Received<'_>)) -> io::Result<bool> {
        self.receive_checked(|datagram| {
            handle(datagram);
            true
        })
    }

    /// Hands over datagrams as [`UdpSocket::receive`], where anyone may send some. `handle` returns whether a datagram
    /// is valid: only the sources of such are remembered as peers.
    ///
    /// # Errors
    /// As [`UdpSocket::receive`].
    pub fn receive_checked(
        &mut self,
        mut handle: impl FnMut(Received<'_>) -> bool,
    ) -> io::Result<bool> {
        let mut metas = [RecvMeta::default(); BUFFERS];
        let mut datagrams = 0;
        for read in 0..READS {
            if datagrams >= DATAGRAMS {
                break;
            }
            let mut slices: Vec<IoSliceMut<'_>> = self
                .buffers
                .chunks_mut(BUFFER_BYTES)
                .map(IoSliceMut::new)
                .collect();
            let count = match self
                .state
                .recv((&self.socket).into(), &mut slices, &mut metas)
            {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(read > 0),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            for (meta, buffer) in metas.iter().zip(&slices).take(count) {
                let mut is_valid = false;
                hand_over(meta, buffer, &mut |datagram| {
                    datagrams += 1;
                    is_valid |= handle(datagram);
                });
                if let (Some(heard_at), Some(own)) = (&mut self.heard_at, meta.dst_ip)
                    && is_valid
                {
                    heard_at.put(meta.addr, own);
                }
            }
            if count < BUFFERS {
                // There were no more. What has arrived since then is found by the next wait.
                break;
            }
        }
        Ok(true)
    }

    /// Waits for a datagram, for [`Waker::wake`], for a signal, or for `timeout` to pass; `None` is no
    /// timeout.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait_for(PollFlags::POLLIN, timeout)
    }

    /// Waits as [`UdpSocket::wait`], and until the kernel's buffer has room again for what is sent.
    pub fn wait_for_room(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.wait_for(PollFlags::POLLIN | PollFlags::POLLOUT, timeout)
    }

    fn wait_for(&self, events: PollFlags, timeout: Option<Duration>) -> io::Result<()> {
        let mut descriptors = [
            PollFd::new(self.socket.as_fd(), events),
            PollFd::new(self.waker.0.as_fd(), PollFlags::POLLIN),
        ];
        match ppoll(&mut descriptors, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        if is_ready(&descriptors[1]) {
            let _ = self.waker.0.read();
        }
        Ok(())
    }

    /// Waits until one of several sockets has a datagram, a signal comes, or `timeout` passes. Returns for each socket whether it has a datagram or an error.
    pub fn wait_any(sockets: &[&UdpSocket], timeout: Duration) -> io::Result<Vec<bool>> {
        let descriptors = sockets.iter().map(|socket| socket.socket.as_fd());
        let readable = |descriptor| PollFd::new(descriptor, PollFlags::POLLIN);
        let mut descriptors: Vec<PollFd<'_>> = descriptors.map(readable).collect();
        match ppoll(&mut descriptors, Some(TimeSpec::from(timeout)), None) {
            Ok(_) => {}
            // Nothing is known of the descriptors.
            Err(nix::Error::EINTR) => return Ok(vec![false; sockets.len()]),
            Err(error) => return Err(error.into()),
        }
        Ok(descriptors.iter().map(is_ready).collect())
    }

    fn own_address(&self, peer: &SocketAddr) -> Option<IpAddr> {
        self.heard_at.as_ref()?.peek(peer).copied()
    }

    /// Returns a waker of this socket.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

fn is_ready(descriptor: &PollFd<'_>) -> bool {
    descriptor.any().unwrap_or(true)
}

impl Waker {
    /// Ends the waiting of the socket's thread, or its next one.
    pub fn wake(&self) {
        // It fails when the counter is full, and the thread is then awake for other reasons.
        let _ = self.0.write(1);
    }
}

/// Returns whether an error of a socket says something about one of its peers, or of the network on
/// the way there, and not about the socket.
pub fn is_of_a_peer(error: &io::Error) -> bool {
    const OF_THE_SOCKET: [i32; 5] = [
        libc::EBADF,
        libc::ENOTSOCK,
        libc::EFAULT,
        libc::EINVAL,
        libc::ENOMEM,
    ];
    let number = error.raw_os_error();
    number.is_some_and(|number| !OF_THE_SOCKET.contains(&number))
}

/// Turns an error about a peer, or about the network on the way there, into success: the socket is as good
/// as before, and peers are missed when nothing is heard of them.
///
/// # Errors
/// If the error is one of the socket.
pub fn unless_of_a_peer<T>(outcome: io::Result<T>) -> io::Result<()> {
    match outcome {
        Err(error) if !is_of_a_peer(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Returns whether an error says that nobody receives at the address of a peer.
pub fn is_refused(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

/// Has the calling thread wake up as precisely as the kernel can: within a microsecond or so, where
/// the default is 50. Changes nothing where the kernel does not allow it.
pub fn wake_precisely() {
    if let Err(error) = prctl::set_timerslack(1) {
        tracing::warn!("timers stay coarse: {error}");
    }
}

/// The longest age of a datagram that is used: the time of day may be set in between.
const OLDEST: Duration = Duration::from_secs(1);

fn hand_over(meta: &RecvMeta, buffer: &[u8], handle: &mut impl FnMut(Received<'_>)) {
    let joined = buffer.get(..meta.len).unwrap_or_default();
    for bytes in joined.chunks(meta.stride.max(1)) {
        // Each is handled after the ones before, and older by the time that those took.
        let now = crate::clock::since_1970();
        let age = meta.timestamp.map(|arrival| now.saturating_sub(arrival));
        let age = age.filter(|age| *age <= OLDEST);
        handle(Received {
            from: meta.addr,
            ecn: meta.ecn.map_or(Ecn::NotEct, ecn_of),
            age: age.unwrap_or_default(),
            bytes,
        });
    }
}

const fn ecn_of(codepoint: EcnCodepoint) -> Ecn {
    match codepoint {
        EcnCodepoint::Ect0 => Ecn::Ect0,
        EcnCodepoint::Ect1 => Ecn::Ect1,
        EcnCodepoint::Ce => Ecn::Ce,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;
    use std::thread;
    use std::time::Instant;

    fn received(socket: &mut UdpSocket) -> Vec<(SocketAddr, Ecn, Vec<u8>)> {
        let mut datagrams = Vec::new();
        while datagrams.is_empty() {
            socket.wait(Some(Duration::from_secs(1))).unwrap();
            let handle = |datagram: Received<'_>| {
                assert!(datagram.age < Duration::from_secs(1), "{:?}", datagram.age);
                datagrams.push((datagram.from, datagram.ecn, datagram.bytes.to_vec()));
            };
            socket.receive(handle).unwrap();
        }
        datagrams
    }

    #[test]
    fn datagrams_keep_their_ecn_field_over_both_families() {
        for (own, ecn) in [
            ("127.0.0.1:0", Ecn::Ect1),
            ("[::1]:0", Ecn::Ce),
            ("[::1]:0", Ecn::NotEct),
        ] {
            let own: SocketAddr = own.parse().unwrap();
            let mut receiver = UdpSocket::bind(own).unwrap();
            let sender = UdpSocket::bind(own).unwrap();
            let to = receiver.local_address().unwrap();
            sender.send(to, ecn, b"one").unwrap();
            let from = sender.local_address().unwrap();
            assert_eq!(received(&mut receiver), [(from, ecn, b"one".to_vec())]);
        }
    }

    #[test]
    fn a_socket_of_any_address_has_ipv4_with_its_ecn_field() {
        let mut receiver = UdpSocket::bind("[::]:0".parse().unwrap()).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = receiver.local_address().unwrap().port();
        sender
            .send(([127, 0, 0, 1], port).into(), Ecn::Ect1, b"a")
            .unwrap();
        let (from, ecn, _) = received(&mut receiver).remove(0);
        assert_eq!(ecn, Ecn::Ect1);
        receiver.send(from, Ecn::Ect1, b"b").unwrap();
        let mut sender = sender;
        assert_eq!(received(&mut sender)[0].1, Ecn::Ect1);
    }

    #[test]
    fn a_socket_of_any_address_answers_from_the_one_that_was_asked() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            let mut asked = UdpSocket::bind(any.parse().unwrap()).unwrap();
            let port = asked.local_address().unwrap().port();
            let mut asking = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let second = ([127, 0, 0, 5], port).into();
            asking.connect(second).unwrap();
            asking.send(second, Ecn::NotEct, b"question").unwrap();
            let (from, ..) = received(&mut asked).remove(0);
            asked.send(from, Ecn::Ect1, b"answer").unwrap();
            let answer = (second, Ecn::Ect1, b"answer".to_vec());
            assert_eq!(received(&mut asking), [answer], "{any}");
        }
    }

    #[test]
    fn sources_of_invalid_datagrams_displace_no_peer() {
        let mut asked = UdpSocket::bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = asked.local_address().unwrap().port();
        let mut asking = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let second = ([127, 0, 0, 5], port).into();
        asking.send(second, Ecn::NotEct, b"question").unwrap();
        let (from, ..) = received(&mut asked).remove(0);
        let mut others = 0;
        for host in 0..PEERS.get() + 10 {
            let [.., high, low] = host.to_be_bytes();
            let other = std::net::UdpSocket::bind(SocketAddr::from(([127, 1, high, low], 0)));
            let first = SocketAddr::from(([127, 0, 0, 1], port));
            other.unwrap().send_to(b"garbage", first).unwrap();
            while others <= host {
                asked.wait(Some(Duration::from_secs(1))).unwrap();
                let count = |_: Received<'_>| {
                    others += 1;
                    false
                };
                asked.receive_checked(count).unwrap();
            }
        }
        asked.send(from, Ecn::Ect1, b"answer").unwrap();
        assert_eq!(
            received(&mut asking),
            [(second, Ecn::Ect1, b"answer".to_vec())]
        );
    }

    #[test]
    fn the_age_of_a_datagram_is_the_time_since_it_arrived() {
        const WAIT: Duration = Duration::from_millis(30);
        let began = Instant::now();
        for own in ["127.0.0.1:0", "[::1]:0"] {
            let own: SocketAddr = own.parse().unwrap();
            let mut receiver = UdpSocket::bind(own).unwrap();
            let sender = UdpSocket::bind(own).unwrap();
            let to = receiver.local_address().unwrap();
            // The kernel stamps arrivals from a moment after a first socket asks for it.
            loop {
                let first_sent = Instant::now();
                sender.send(to, Ecn::Ce, b"one").unwrap();
                thread::sleep(WAIT);
                let second_sent = Instant::now();
                sender.send(to, Ecn::Ect1, b"two").unwrap();
                let mut ages = Vec::new();
                receiver
                    .receive(|datagram| ages.push((datagram.age, datagram.ecn)))
                    .unwrap();
                let [(first, Ecn::Ce), (second, Ecn::Ect1)] = ages[..] else {
                    panic!("{ages:?}");
                };
                // The time of day may be adjusted in between.
                let error = Duration::from_millis(5);
                assert!(first <= first_sent.elapsed() + error, "{first:?}");
                assert!(second <= second_sent.elapsed() + error, "{second:?}");
                if first >= WAIT {
                    break;
                }
                assert!(began.elapsed() < Duration::from_secs(60), "{first:?}");
            }
        }
    }

    #[test]
    fn a_departure_time_keeps_addresses_and_the_ecn_field() {
        for (any, own, peer) in [
            ("0.0.0.0:0", "127.0.0.5", "127.0.0.1:0"),
            ("[::]:0", "127.0.0.5", "127.0.0.1:0"),
            ("[::]:0", "::1", "[::1]:0"),
        ] {
            let mut socket = UdpSocket::bind(any.parse().unwrap()).unwrap();
            let port = socket.local_address().unwrap().port();
            let own = SocketAddr::new(own.parse().unwrap(), port);
            let mut peer = UdpSocket::bind(peer.parse().unwrap()).unwrap();
            peer.send(own, Ecn::NotEct, b"question").unwrap();
            let (to, ..) = received(&mut socket).remove(0);
            let departure = Departure {
                at: monotonic(),
                is_stamped: false,
            };
            let refused = socket.send_at(to, Ecn::Ect1, b"answer", departure);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);

            socket.allow_departure_times().unwrap();
            socket.send_at(to, Ecn::Ect1, b"answer", departure).unwrap();
            let answer = (own, Ecn::Ect1, b"answer".to_vec());
            assert_eq!(received(&mut peer), [answer], "{any}");
            assert_eq!(socket.next_left().unwrap(), None);
        }
    }

    #[test]
    fn the_kernel_says_when_datagrams_left() {
        let mut receiver = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let to = receiver.local_address().unwrap();
        socket.allow_departure_times().unwrap();
        let too_long = vec![0; 70_000];
        for (round, bytes) in (0..).zip([&b"1"[..], b"2", &too_long, b"3"]) {
            // In the past, so that the datagram leaves at once.
            let before = monotonic();
            let departure = Departure {
                at: before - Duration::from_millis(round),
                is_stamped: true,
            };
            if socket.send_at(to, Ecn::Ect1, bytes, departure).is_err() {
                assert_eq!(bytes, too_long);
                continue;
            }
            assert_eq!(received(&mut receiver).len(), 1);
            socket.wait(Some(Duration::from_secs(60))).unwrap();
            let left = socket.next_left().unwrap().expect("it has left");
            assert_eq!((left.to, left.planned), (to, departure.at));
            // The time of day may be adjusted in between.
            let error = Duration::from_millis(5);
            assert!(left.left + error >= before && left.left <= monotonic() + error);
            assert_eq!(socket.next_left().unwrap(), None);
        }
    }

    #[test]
    fn waiting_ends_in_time_and_when_it_is_told_to() {
        wake_precisely();
        let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let started = Instant::now();
        socket.wait(Some(Duration::from_millis(5))).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(5));

        let waker = socket.waker();
        let thread = thread::spawn(move || waker.wake());
        socket.wait(None).unwrap();
        thread.join().unwrap();
        let started = Instant::now();
        socket.wait(Some(Duration::from_millis(5))).unwrap();
        assert!(started.elapsed() >= Duration::from_millis(5), "woken once");
    }

    #[test]
    fn a_connected_socket_learns_that_nobody_listens() {
        let mut socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let free = {
            let gone = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            gone.local_address().unwrap()
        };
        socket.connect(free).unwrap();
        socket.send(free, Ecn::Ect1, b"hello").unwrap();
        socket.wait(Some(Duration::from_secs(60))).unwrap();
        let error = socket.receive(|_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
