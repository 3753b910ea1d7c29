//! QUIC parameters of the tunnel: packet sizes, connection IDs, sockets.

use crate::socket::{self, set_mark};
use anyhow::{Context, Result};
use hawser_quic::{Congestion, Live, Transport};
use hawser_units::ByteSize;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{RcvBufForce, SndBufForce};
use noq::{EndpointConfig, TransportConfig};
use noq_proto::RandomConnectionIdGenerator;
use socket2::{Protocol, Type};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// The length of a server's connection IDs, in bytes: enough to tell apart more connections than a
/// server can have, while the remaining bytes are left to inner packets.
pub(crate) const SERVER_ID_BYTES: usize = 4;

/// The length of a client's connection IDs: a client has a socket for each connection and needs
/// none.
pub(crate) const CLIENT_ID_BYTES: usize = 0;

/// The overhead of the largest inner packet in a UDP payload, in bytes: that of a datagram, and the
/// header of a coded packet.
const PACKET_OVERHEAD: u16 = DATAGRAM_OVERHEAD as u16 + 8;

/// The overhead of the largest datagram in a UDP payload, in bytes: first byte, connection ID, packet
/// number, the datagram frame's header as the library computes it, and the AEAD tag.
pub(crate) const DATAGRAM_OVERHEAD: usize = 1 + SERVER_ID_BYTES + 4 + 9 + 16;

/// The smallest UDP payload that QUIC allows (RFC 9000, section 14), in bytes.
pub(crate) const MIN_UDP_PAYLOAD: u16 = 1200;

/// The kernel buffers of a socket, in bytes: 10 ms at 3 Gbit/s.
const SOCKET_BUFFER: usize = 4 << 20;

/// The time without a packet after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The keep-alive interval of an idle connection, which keeps NAT entries alive.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The receive buffer of a connection for datagrams that its session has not read, in bytes: 10 ms
/// at 1.6 Gbit/s.
const RECEIVE_BUFFER: usize = 2 << 20;

/// The receive window of the stream, in bytes: more than the length field of a message can
/// announce, so that a message that is too long arrives and is answered.
const STREAM_RECEIVE_WINDOW: u32 = 72 << 10;

/// The send window of the stream, in bytes: a few messages.
const STREAM_SEND_WINDOW: u32 = 16 << 10;

/// The largest memory of a connection besides datagrams to be sent, in bytes: for its stream, and
/// for received datagrams that its session has not read.
pub(crate) const STREAM_BYTES: u64 = STREAM_RECEIVE_WINDOW as u64 + STREAM_SEND_WINDOW as u64;
pub(crate) const RECEIVED_BYTES: u64 = RECEIVE_BUFFER as u64;

/// The largest amount of datagrams that wait in a connection to be sent. Memory is allocated as
/// needed.
pub(crate) const DATAGRAM_BUFFER: ByteSize = ByteSize(4 << 20);

/// Returns the size of UDP payloads that fit an outer packet, limited to the size that the largest
/// inner packet needs, in bytes.
pub(crate) fn udp_payload(outer_mtu: u16, remote: IpAddr, inner_mtu: u16) -> u16 {
    outer_mtu
        .saturating_sub(headers(remote))
        .min(inner_mtu + PACKET_OVERHEAD)
        .max(MIN_UDP_PAYLOAD)
}

/// Returns the size of the IP and UDP headers, in bytes.
pub(crate) fn headers(remote: IpAddr) -> u16 {
    if remote.to_canonical().is_ipv4() {
        28
    } else {
        48
    }
}

/// Returns the transport parameters of one connection, whose figures are reported to `live`.
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
    // One stream, for the messages of [`crate::join`].
    config.max_concurrent_bidi_streams(1u8.into());
    config
        .stream_receive_window(STREAM_RECEIVE_WINDOW.into())
        .receive_window(STREAM_RECEIVE_WINDOW.into());
    config
        .send_window(STREAM_SEND_WINDOW.into())
        .datagram_receive_buffer_size(Some(RECEIVE_BUFFER));
    Ok(Arc::new(config))
}

/// Returns the endpoint parameters of a socket. Peers may send payloads of up to `udp_payload`
/// bytes.
pub(crate) fn endpoint(id_bytes: usize, udp_payload: u16) -> Result<EndpointConfig> {
    let mut config = EndpointConfig::default();
    config.cid_generator(Arc::new(move || {
        Box::new(RandomConnectionIdGenerator::new(id_bytes))
    }));
    config
        .max_udp_payload_size(udp_payload)
        .context("QUIC does not allow this size of UDP payloads")?;
    Ok(config)
}

/// Opens a socket of a client's uplink. `mark` is the firewall mark of its packets.
pub(crate) fn uplink_socket(
    address: SocketAddr,
    interface: &str,
    mark: Option<u32>,
) -> Result<UdpSocket> {
    let socket = socket(address, Some(interface))?;
    set_mark(&socket, mark)?;
    Ok(socket)
}

/// Opens a socket bound to `address`, and to `interface` if given.
pub(crate) fn socket(address: SocketAddr, interface: Option<&str>) -> Result<UdpSocket> {
    let open = || {
        let socket = socket::open(Type::DGRAM, Protocol::UDP, address, interface)?;
        socket.bind(&address.into())?;
        Ok::<_, std::io::Error>(socket)
    };
    let device = interface.map_or(String::new(), |interface| format!(" on {interface}"));
    let socket =
        open().with_context(|| format!("cannot open a UDP socket at {address}{device}"))?;
    // Without CAP_NET_ADMIN the system's limit applies, which reduces throughput only.
    let _ = setsockopt(&socket, RcvBufForce, &SOCKET_BUFFER);
    let _ = setsockopt(&socket, SndBufForce, &SOCKET_BUFFER);
    Ok(socket.into())
}
