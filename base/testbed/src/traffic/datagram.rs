use super::ledger::Ledger;
use super::pace::Pace;
use super::{Family, Kind, Sent, Stream, or_timeout, payload};
use crate::topology::Stop;
use anyhow::{Result, bail};
use hawser_io::sockopt::{self, MtuDiscovery, set_mtu_discovery};
use hawser_wire::ip::checksum;
use nix::sys::socket::{setsockopt, sockopt as option};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Receive buffer that holds the packets that arrive while the thread waits for a processor.
const RECEIVE_BUFFER_BYTES: usize = 64 << 20;

/// Packets of a `UDP_SEGMENT` buffer, fewer if they would not fit a datagram's 65,507 bytes.
const MAX_SEGMENTS: u32 = 8;

const ICMP_HEADER: usize = 8;

pub(super) struct Sender {
    id: u16,
    socket: Socket,
    /// The destination, unless the socket is connected.
    to: Option<SockAddr>,
    /// Packets passed to the kernel in one call.
    segments: u32,
    echo_requests: Option<Family>,
}

impl Sender {
    pub(super) fn open(id: u16, stream: &Stream, receiver: &Receiver) -> Result<Self> {
        let socket = socket(stream)?;
        let segments = set_options(&socket, stream)?;
        let to = SockAddr::from(receiver.address);
        let to = match stream.kind {
            Kind::UdpUnconnected | Kind::UdpDf => Some(to),
            _ => socket.connect(&to).map(|()| None)?,
        };
        let echo_requests = (stream.kind == Kind::Icmp).then_some(stream.family);
        Ok(Sender {
            id,
            socket,
            to,
            segments,
            echo_requests,
        })
    }

    pub(super) fn send(&self, stream: &Stream, stop: &Stop) -> Sent {
        let mut sent = Sent {
            packets: 0,
            retransmissions: None,
            error: None,
        };
        let mut pace = Pace::new(stream.rate_pps, self.segments);
        let mut buffer = Vec::new();
        while sent.packets < stream.packets && !stop.requested() {
            let end = stream.packets.min(sent.packets + u64::from(pace.batch()));
            while sent.packets < end {
                let next = end.min(sent.packets + u64::from(self.segments));
                buffer.clear();
                (sent.packets..next)
                    .for_each(|sequence| self.append(&mut buffer, sequence, stream));
                if let Err(error) = self.send_buffer(&buffer) {
                    sent.error = Some(error);
                    return sent;
                }
                sent.packets = next;
            }
        }
        sent
    }

    fn append(&self, buffer: &mut Vec<u8>, sequence: u64, stream: &Stream) {
        let Some(family) = self.echo_requests else {
            return payload::append(buffer, self.id, sequence, stream.payload_bytes);
        };
        let [id_high, id_low] = self.id.to_be_bytes();
        let [.., high, low] = sequence.to_be_bytes();
        buffer.extend([echo_request(family), 0, 0, 0, id_high, id_low, high, low]);
        payload::append(buffer, self.id, sequence, stream.payload_bytes);
        if family == Family::Ipv4 {
            // For IPv6 the kernel computes the checksum, because it covers the addresses.
            let checksum = checksum(buffer);
            buffer[2..4].copy_from_slice(&checksum.to_be_bytes());
        }
    }

    fn send_buffer(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = match &self.to {
            Some(to) => self.socket.send_to(bytes, to)?,
            None => self.socket.send(bytes)?,
        };
        if sent == bytes.len() {
            Ok(())
        } else {
            Err(ErrorKind::WriteZero.into())
        }
    }
}

pub(super) struct Receiver {
    id: u16,
    socket: Socket,
    address: SocketAddr,
    echo_requests: Option<Family>,
}

impl Receiver {
    pub(super) fn bind(id: u16, stream: &Stream, address: IpAddr) -> Result<Self> {
        const POLL_INTERVAL: Duration = Duration::from_millis(20);
        let socket = socket(stream)?;
        setsockopt(&socket, option::RcvBufForce, &RECEIVE_BUFFER_BYTES)?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        socket.bind(&SocketAddr::new(address, 0).into())?;
        let port = socket
            .local_addr()?
            .as_socket()
            .map_or(0, |bound| bound.port());
        let echo_requests = (stream.kind == Kind::Icmp).then_some(stream.family);
        Ok(Receiver {
            id,
            socket,
            address: SocketAddr::new(address, port),
            echo_requests,
        })
    }

    pub(super) fn receive(
        &self,
        ledger: &mut Ledger,
        grace: Duration,
        sender_is_done: &dyn Fn() -> bool,
    ) -> io::Result<u32> {
        let mut buffer = [0; 1 << 16];
        let mut idle_since = Instant::now();
        loop {
            let length = or_timeout((&self.socket).read(&mut buffer))?;
            if let Some(payload) = length.and_then(|length| self.payload(&buffer[..length])) {
                ledger.record(payload::sequence(payload, self.id));
                idle_since = Instant::now();
            }
            if !sender_is_done() {
                idle_since = Instant::now();
            }
            if idle_since.elapsed() > grace {
                return sockopt::drops(&self.socket);
            }
        }
    }

    /// Returns the payload of a packet of this stream, or `None` for other ICMP messages.
    fn payload<'a>(&self, packet: &'a [u8]) -> Option<&'a [u8]> {
        let message = match self.echo_requests {
            None => return Some(packet),
            // A raw IPv4 socket delivers the IP header too, a raw IPv6 socket does not.
            Some(Family::Ipv4) => packet.get(4 * usize::from(packet.first()? & 0xf)..)?,
            Some(Family::Ipv6) => packet,
        };
        let (header, payload) = message.split_first_chunk::<ICMP_HEADER>()?;
        let [kind, 0, _, _, id_high, id_low, ..] = *header else {
            return None;
        };
        let ours = Some(kind) == self.echo_requests.map(echo_request);
        (ours && u16::from_be_bytes([id_high, id_low]) == self.id).then_some(payload)
    }
}

/// Sets the options of a sender's socket. Returns the number of packets that it takes in one call.
fn set_options(socket: &Socket, stream: &Stream) -> Result<u32> {
    let ipv6 = stream.family == Family::Ipv6;
    match stream.kind {
        Kind::UdpConnected | Kind::Icmp => {}
        Kind::UdpUnconnected => set_mtu_discovery(socket, ipv6, MtuDiscovery::Dont)?,
        Kind::UdpDf => set_mtu_discovery(socket, ipv6, MtuDiscovery::Do)?,
        Kind::UdpGso => {
            let segment = u16::try_from(stream.payload_bytes)?;
            setsockopt(socket, option::UdpGsoSegment, &segment.into())?;
            return Ok((65_507 / u32::from(segment)).clamp(1, MAX_SEGMENTS));
        }
        Kind::Tcp => bail!("TCP has no datagrams"),
    }
    Ok(1)
}

fn socket(stream: &Stream) -> io::Result<Socket> {
    let (domain, icmp) = match stream.family {
        Family::Ipv4 => (Domain::IPV4, Protocol::ICMPV4),
        Family::Ipv6 => (Domain::IPV6, Protocol::ICMPV6),
    };
    match stream.kind {
        Kind::Icmp => Socket::new(domain, Type::RAW, Some(icmp)),
        _ => Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)),
    }
}

/// Returns the ICMP type of an echo request.
fn echo_request(family: Family) -> u8 {
    match family {
        Family::Ipv4 => 8,
        Family::Ipv6 => 128,
    }
}
