//! A TUN device in a namespace: packets that the kernel sends are read singly, and written packets
//! are received.

use hawser_device::{Buffer, Tun};
use hawser_testbed::netns::Namespace;
use hawser_xnc::frame::PacketBuffer;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const BYTES: usize = 8 << 20;

/// Two namespaces, connected by forwarding between their TUN devices.
struct Pair {
    namespaces: [Namespace; 2],
    tuns: [Tun; 2],
}

impl Pair {
    fn create(name: &str) -> Pair {
        let make = |side: usize| {
            let namespace =
                Namespace::create(format!("hawser-tun-{name}{side}-{}", std::process::id()))
                    .unwrap();
            let tun = namespace.run(|| Tun::create("tun0").unwrap()).unwrap();
            let (own, other) = (side + 1, 2 - side);
            namespace
                .ip(&format!(
                    "link set tun0 mtu 1440 up\naddr add 10.9.0.{own} peer 10.9.0.{other} dev tun0\n\
                     addr add fd09::{own}/64 dev tun0 nodad"
                ))
                .unwrap();
            (namespace, tun)
        };
        let [(one, tun_one), (other, tun_other)] = [0, 1].map(make);
        Pair {
            namespaces: [one, other],
            tuns: [tun_one, tun_other],
        }
    }

    /// Carries packets both ways while `work` runs. Returns the numbers of packets and of writes.
    fn carry(&self, work: impl FnOnce(&[Namespace; 2]) + Send) -> (u64, u64) {
        let done = AtomicBool::new(false);
        let (packets, writes) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for (from, to) in [(0, 1), (1, 0)] {
                let (done, packets, writes) = (&done, &packets, &writes);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let batch = read(&self.tuns[from]);
                        assert!(batch.iter().all(|packet| packet.len() <= 1440));
                        let written = self.tuns[to].write(&batch).unwrap();
                        packets.fetch_add(written.packets, Ordering::Relaxed);
                        writes.fetch_add(written.calls, Ordering::Relaxed);
                    }
                });
            }
            let worker = scope.spawn(|| work(&self.namespaces));
            let outcome = worker.join();
            done.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
        (packets.into_inner(), writes.into_inner())
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            namespace.delete().unwrap();
        }
    }
}

fn read(tun: &Tun) -> Vec<PacketBuffer> {
    let mut buffer = Buffer::default();
    let mut packets = Vec::new();
    match tun.read(&mut buffer, &mut packets) {
        Ok(split) => split.unwrap(),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let timeout = PollTimeout::try_from(Duration::from_millis(20)).unwrap();
            poll(&mut [PollFd::new(tun.as_fd(), PollFlags::POLLIN)], timeout).unwrap();
        }
        Err(error) => panic!("{error}"),
    }
    packets
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length)
        .map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8)
        .collect()
}

fn tcp_both_ways(address: &str) {
    let address: IpAddr = address.parse().unwrap();
    let pair = Pair::create(if address.is_ipv4() { "tcp4" } else { "tcp6" });
    let (packets, writes) = pair.carry(|[one, other]| {
        let listener = other
            .run(|| TcpListener::bind((address, 0)).unwrap())
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        let echo = thread::spawn(move || {
            let mut bytes = vec![0; BYTES];
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let mut stream = one
            .run(|| TcpStream::connect((address, port)).unwrap())
            .unwrap();
        stream.write_all(&pattern(BYTES)).unwrap();
        let mut bytes = vec![0; BYTES];
        stream.read_exact(&mut bytes).unwrap();
        assert!(bytes == pattern(BYTES));
        echo.join().unwrap();
    });
    assert!(packets > 2 * BYTES as u64 / 1440);
    assert!(
        writes < packets / 2,
        "{packets} packets took {writes} writes"
    );
}

#[test]
fn a_tcp_connection_over_ipv4() {
    tcp_both_ways("10.9.0.2");
}

#[test]
fn a_tcp_connection_over_ipv6() {
    tcp_both_ways("fd09::2");
}

#[test]
fn datagrams_keep_their_boundaries() {
    for address in ["10.9.0.2", "fd09::2"] {
        let address: IpAddr = address.parse().unwrap();
        let pair = Pair::create("udp");
        pair.carry(|[one, other]| {
            let receiver = other
                .run(|| UdpSocket::bind((address, 0)).unwrap())
                .unwrap();
            let to: SocketAddr = receiver.local_addr().unwrap();
            let any: IpAddr = if address.is_ipv4() {
                [0; 4].into()
            } else {
                [0; 16].into()
            };
            let sender = one.run(|| UdpSocket::bind((any, 0)).unwrap()).unwrap();
            let sizes = [1, 1400, 1400, 700, 0, 1400];
            let mut datagram = [0; 2000];
            for size in sizes {
                sender.send_to(&pattern(size), to).unwrap();
                let length = receiver.recv(&mut datagram).unwrap();
                assert_eq!(datagram[..length], pattern(size));
            }
        });
    }
}

#[test]
fn a_name_that_is_taken_is_rejected() {
    let pair = Pair::create("name");
    let error = pair.namespaces[0]
        .run(|| Tun::create("tun0").unwrap_err())
        .unwrap()
        .to_string();
    assert!(error.contains("tun0"), "{error}");
    assert!(Tun::create("a-name-that-is-too-long").is_err());
}
