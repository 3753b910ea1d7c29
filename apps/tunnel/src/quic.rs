//! QUIC as this tunnel uses it: sizes of packets, connection IDs, sockets.

use anyhow::{Context, Result};
use hawser_quic::{Congestion, Live, Transport};
use hawser_units::ByteSize;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{Mark, RcvBufForce, SndBufForce};
use noq::{EndpointConfig, TransportConfig};
use noq_proto::RandomConnectionIdGenerator;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the connection IDs by which a server knows its clients: they tell apart more connections than a server can
/// have, and leave the others to inner packets.
pub(crate) const SERVER_ID_BYTES: usize = 4;

/// A client has a socket for each connection and needs none.
pub(crate) const CLIENT_ID_BYTES: usize = 0;

/// What the largest inner packet needs around it in a UDP payload: first byte, connection ID, packet number, the
/// datagram's frame header as the library reckons it, the tag, and the header of a coded packet.
const AROUND_PACKET: u16 = 1 + SERVER_ID_BYTES as u16 + 4 + 9 + 16 + 8;

/// QUIC needs so much room in a packet of UDP.
const LEAST_UDP_PAYLOAD: u16 = 1200;

/// Kernel buffers of a socket: 10 ms at 3 Gbit/s.
const SOCKET_BUFFER: usize = 4 << 20;

/// After how long without a packet a connection is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// How often a connection without traffic says that it is there, for the sake of NATs.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Datagrams that were received and that wait in a connection until its session takes them: 10 ms at 1.6 Gbit/s.
const RECEIVE_BUFFER: usize = 2 << 20;

/// What was received of the stream and waits at most: more than a message can say that it has, so that one that is too long
/// gets there and is answered.
const STREAM_RECEIVE_WINDOW: u32 = 72 << 10;

/// What was sent of it and is not acknowledged: a few messages.
const STREAM_SEND_WINDOW: u32 = 16 << 10;

/// What a connection may keep besides datagrams to be sent: of its stream, and of datagrams that its session does not come to take.
pub(crate) const STREAM_BYTES: u64 = STREAM_RECEIVE_WINDOW as u64 + STREAM_SEND_WINDOW as u64;
pub(crate) const RECEIVED_BYTES: u64 = RECEIVE_BUFFER as u64;

/// Datagrams that wait in a connection to be sent at most. Memory is used as needed.
pub(crate) const DATAGRAM_BUFFER: ByteSize = ByteSize(4 << 20);

/// Bytes of UDP payload that fit an outer packet, and not more than the largest inner packet needs.
pub(crate) fn udp_payload(outer_mtu: u16, remote: IpAddr, inner_mtu: u16) -> u16 {
    outer_mtu
        .saturating_sub(headers(remote))
        .min(inner_mtu + AROUND_PACKET)
        .max(LEAST_UDP_PAYLOAD)
}

/// Bytes of IP and UDP around a payload.
pub(crate) fn headers(remote: IpAddr) -> u16 {
    if remote.to_canonical().is_ipv4() {
        28
    } else {
        48
    }
}

/// The parameters of one connection, with its live figures.
pub(crate) fn transport(udp_payload: u16, live: &Arc<Live>) -> Result<Arc<TransportConfig>> {
    let transport = Transport {
        udp_payload,
        idle_timeout: IDLE_TIMEOUT,
        keep_alive: Some(KEEP_ALIVE),
        datagram_buffer: DATAGRAM_BUFFER,
        ..Transport::default()
    };
    let seed = getrandom::u64().expect("every Linux has random bytes");
    let mut config = transport.config(Congestion::bbr(Arc::clone(live), seed))?;
    // One stream, on which the session is joined.
    config.max_concurrent_bidi_streams(1u8.into());
    config
        .stream_receive_window(STREAM_RECEIVE_WINDOW.into())
        .receive_window(STREAM_RECEIVE_WINDOW.into());
    config
        .send_window(STREAM_SEND_WINDOW.into())
        .datagram_receive_buffer_size(Some(RECEIVE_BUFFER));
    Ok(Arc::new(config))
}

/// The parameters of a socket's connections. Peers may send payloads of up to `udp_payload` bytes.
pub(crate) fn endpoint(id_bytes: usize, udp_payload: u16) -> Result<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.cid_generator(Arc::new(move || {
        Box::new(RandomConnectionIdGenerator::new(id_bytes))
    }));
    config
        .max_udp_payload_size(udp_payload)
        .context("a UDP payload that QUIC does not allow")?;
    Ok(config)
}

/// A socket of a client's uplink. `mark` is that of its packets, by which the kernel's rules know them.
pub(crate) fn uplink_socket(
    address: SocketAddr,
    interface: &str,
    mark: Option<u32>,
) -> Result<UdpSocket> {
    let socket = socket(address, Some(interface))?;
    if let Some(mark) = mark {
        setsockopt(&socket, Mark, &mark).context("cannot mark packets: CAP_NET_ADMIN is needed")?;
    }
    Ok(socket)
}

/// A socket at `address`, which uses `interface` alone if one is given.
pub(crate) fn socket(address: SocketAddr, interface: Option<&str>) -> Result<UdpSocket> {
    let open = || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if let Some(interface) = interface {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if address.is_ipv6() && address.ip().is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        Ok::<_, std::io::Error>(socket)
    };
    let device = interface.map_or(String::new(), |interface| format!(" on {interface}"));
    let socket = open().with_context(|| format!("cannot open UDP socket {address}{device}"))?;
    // Without CAP_NET_ADMIN the system's limit stays, which costs throughput and nothing else.
    let _ = setsockopt(&socket, RcvBufForce, &SOCKET_BUFFER);
    let _ = setsockopt(&socket, SndBufForce, &SOCKET_BUFFER);
    Ok(socket.into())
}
