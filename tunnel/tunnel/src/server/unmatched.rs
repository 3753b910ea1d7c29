//! Counts datagrams that arrive at a server's port and match no connection.
//!
//! The kernel counts those that did not fit the socket's buffer. The QUIC library drops the others
//! without a trace: its statistics of an endpoint count handshakes only. Each reason in the status
//! is therefore counted at the one place that sees it:
//!
//! - the socket, from which each datagram is read: not QUIC, or a long header of an unknown
//!   connection;
//! - the generator of connection IDs, which the library asks before it answers a short header of an
//!   unknown connection;
//! - the keys of Initial packets, where a wrong packet shows by its reserved bits.

use crate::inspected_socket::{InspectedSocket, Inspector};
use crate::quic::SERVER_ID_BYTES;
use bytes::BytesMut;
use hawser_io::sockopt::drops;
use hawser_quic::MarkedDatagrams;
use lru::LruCache;
use noq::crypto::{self, HeaderKey, Keys, UnsupportedVersion};
use noq::udp::EcnCodepoint;
use noq::{AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig};
use noq::{InvalidCid, Runtime, ServerConfig, TokioRuntime};
use noq_proto::transport_parameters::TransportParameters;
use noq_proto::{FixedLengthConnectionIdParser, PartialDecode, RandomConnectionIdGenerator};
use parking_lot::Mutex;
use std::io;
use std::net::UdpSocket;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The QUIC version of both ends.
const VERSION: u32 = 1;

/// The smallest datagram with an Initial packet, in bytes (RFC 9000, section 14.1).
const MIN_INITIAL_BYTES: usize = 1200;

/// Bits of the first byte of a packet: long header, packet type, and reserved bits, which are 0
/// after header protection has been removed.
const LONG: u8 = 0x80;
const TYPE: u8 = 0x30;
const INITIAL: u8 = 0x00;
const RESERVED: u8 = 0x0c;

/// The number of remembered connection IDs: more than are issued during the longest handshake.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// The number of Initial packets that wait to be accepted, and the bytes buffered for the packets
/// after them.
const MAX_INCOMING: usize = 4096;
const MAX_INCOMING_BYTES: u64 = 4 << 20;

/// Counters of datagrams that reached no connection, by reason.
#[derive(Debug)]
pub(super) struct UnmatchedDatagrams {
    not_quic: AtomicU64,
    invalid_initial: AtomicU64,
    unknown_connection: AtomicU64,
    /// The connection IDs that were issued last.
    issued: Mutex<LruCache<ConnectionId, ()>>,
    /// Duplicates of the endpoints' sockets, to read the kernel's drop counters.
    sockets: Mutex<Vec<UdpSocket>>,
}

impl Default for UnmatchedDatagrams {
    fn default() -> Self {
        UnmatchedDatagrams {
            not_quic: AtomicU64::default(),
            invalid_initial: AtomicU64::default(),
            unknown_connection: AtomicU64::default(),
            issued: Mutex::new(LruCache::new(MAX_REMEMBERED)),
            sockets: Mutex::default(),
        }
    }
}

impl UnmatchedDatagrams {
    /// Returns a UDP socket for [`Self::endpoint`], whose datagrams that the kernel drops are counted.
    pub(super) fn udp(&self, socket: UdpSocket) -> io::Result<Box<dyn AsyncUdpSocket>> {
        self.sockets.lock().push(socket.try_clone()?);
        TokioRuntime.wrap_udp_socket(socket)
    }

    /// Creates an endpoint at `socket` whose unmatched datagrams are counted, and whose marked ones
    /// are noted.
    pub(super) fn endpoint(
        self: &Arc<Self>,
        mut config: EndpointConfig,
        tls: Arc<dyn crypto::ServerConfig>,
        socket: Box<dyn AsyncUdpSocket>,
        marked: &Arc<MarkedDatagrams>,
    ) -> io::Result<Endpoint> {
        let unmatched = Arc::clone(self);
        let ids = RandomConnectionIdGenerator::new(SERVER_ID_BYTES);
        config.cid_generator(Arc::new(move || {
            Box::new(Ids {
                ids,
                unmatched: Arc::clone(&unmatched),
            })
        }));
        config.supported_versions(vec![VERSION]);
        let mut server = ServerConfig::with_crypto(Arc::new(Tls {
            tls,
            unmatched: Arc::clone(self),
        }));
        server
            .max_incoming(MAX_INCOMING)
            .incoming_buffer_size_total(MAX_INCOMING_BYTES);
        let runtime = Arc::new(TokioRuntime);
        let inspector = ServerInspector {
            marked: Arc::clone(marked),
            unmatched: Arc::clone(self),
        };
        let socket = InspectedSocket::of(socket, inspector);
        Endpoint::new_with_abstract_socket(config, Some(server), Box::new(socket), runtime)
    }

    /// Returns the counts by reason, without reasons that did not occur.
    pub(super) fn drop_counts(&self) -> impl Iterator<Item = (String, u64)> {
        let counts = [
            ("datagram_not_quic", self.not_quic.load(Relaxed)),
            (
                "datagram_invalid_initial",
                self.invalid_initial.load(Relaxed),
            ),
            (
                "datagram_unknown_connection",
                self.unknown_connection.load(Relaxed),
            ),
            ("datagram_buffer_full", self.kernel_drops()),
        ];
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        counts.map(|(reason, count)| (reason.to_owned(), count))
    }

    /// Returns the datagrams that the kernel dropped because the sockets' buffers were full. The
    /// kernel's counters have 32 bits.
    fn kernel_drops(&self) -> u64 {
        let sockets = self.sockets.lock();
        sockets
            .iter()
            .filter_map(|socket| drops(socket).ok())
            .map(u64::from)
            .sum()
    }

    /// Counts a datagram that the library will drop, as far as its unprotected header tells.
    fn inspect(&self, datagram: &[u8]) {
        let counter = match datagram {
            [first, ..] if first & LONG != 0 => self.inspect_long_header(*first, datagram),
            [_, id @ ..] if id.len() >= SERVER_ID_BYTES => None,
            _ => Some(&self.not_quic),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
    }

    fn inspect_long_header(&self, first: u8, datagram: &[u8]) -> Option<&AtomicU64> {
        let ids = FixedLengthConnectionIdParser::new(SERVER_ID_BYTES);
        let Ok((packet, _)) = PartialDecode::new(BytesMut::from(datagram), &ids, &[VERSION], true)
        else {
            return Some(&self.not_quic);
        };
        let issued = self.issued.lock();
        match (issued.contains(&packet.dst_cid()), first & TYPE) {
            (true, _) => None,
            (false, INITIAL) => (datagram.len() < MIN_INITIAL_BYTES).then_some(&self.not_quic),
            (false, _) => Some(&self.unknown_connection),
        }
    }
}

/// Notes the marked datagrams, and counts those that match no connection.
#[derive(Debug)]
struct ServerInspector {
    marked: Arc<MarkedDatagrams>,
    unmatched: Arc<UnmatchedDatagrams>,
}

impl Inspector for ServerInspector {
    fn inspect(&self, ecn: Option<EcnCodepoint>, datagram: &[u8]) {
        self.marked.inspect(ecn, datagram);
        self.unmatched.inspect(datagram);
    }
}

/// Issues connection IDs, and counts those that the library does not know when it asks for their
/// validity.
struct Ids {
    ids: RandomConnectionIdGenerator,
    unmatched: Arc<UnmatchedDatagrams>,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let id = self.ids.generate_cid();
        self.unmatched.issued.lock().put(id, ());
        id
    }

    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        self.unmatched.unknown_connection.fetch_add(1, Relaxed);
        self.ids.validate(id)
    }

    fn cid_len(&self) -> usize {
        self.ids.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.ids.cid_lifetime()
    }
}

/// TLS of Initial packets, with keys that count packets that are not valid after decryption.
struct Tls {
    tls: Arc<dyn crypto::ServerConfig>,
    unmatched: Arc<UnmatchedDatagrams>,
}

impl crypto::ServerConfig for Tls {
    fn initial_keys(&self, version: u32, id: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        let mut keys = self.tls.initial_keys(version, id)?;
        let key = keys.header.remote;
        keys.header.remote = Box::new(InitialHeaderKey {
            key,
            unmatched: Arc::clone(&self.unmatched),
        });
        Ok(keys)
    }

    fn retry_tag(&self, version: u32, id: ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.tls.retry_tag(version, id, packet)
    }

    fn start_session(
        &self,
        version: u32,
        parameters: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        self.tls.start_session(version, parameters)
    }
}

struct InitialHeaderKey {
    key: Box<dyn HeaderKey>,
    unmatched: Arc<UnmatchedDatagrams>,
}

impl HeaderKey for InitialHeaderKey {
    fn decrypt(&self, number_offset: usize, packet: &mut [u8]) {
        self.key.decrypt(number_offset, packet);
        // One in four invalid packets passes this check and fails the handshake later.
        if packet[0] & RESERVED != 0 {
            self.unmatched.invalid_initial.fetch_add(1, Relaxed);
        }
    }

    fn encrypt(&self, number_offset: usize, packet: &mut [u8]) {
        self.key.encrypt(number_offset, packet);
    }

    fn sample_size(&self) -> usize {
        self.key.sample_size()
    }
}

#[cfg(test)]
mod any_bytes;
