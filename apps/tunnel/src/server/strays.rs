//! What comes to a server's port and never to a connection. Library and kernel drop it without a word, so it is counted
//! here.

use crate::quic::SERVER_ID_BYTES;
use bytes::BytesMut;
use hawser_io::sockopt::drops;
use noq::crypto::{self, HeaderKey, Keys, UnsupportedVersion};
use noq::udp::RecvMeta;
use noq::{
    AsyncUdpSocket, ConnectionId, ConnectionIdGenerator, Endpoint, EndpointConfig, InvalidCid,
};
use noq::{Runtime, ServerConfig, TokioRuntime, UdpSender};
use noq_proto::transport_parameters::TransportParameters;
use noq_proto::{FixedLengthConnectionIdParser, PartialDecode, RandomConnectionIdGenerator};
use std::collections::{HashSet, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// The version of QUIC that both ends speak.
const VERSION: u32 = 1;

/// A datagram with a first packet has at least so many bytes (RFC 9000, section 14.1).
const FIRST_BYTES: usize = 1200;

/// In a packet's first byte: a long header, the type of such a packet, and bits that are 0 once the header is deciphered.
const LONG: u8 = 0x80;
const TYPE: u8 = 0x30;
const INITIAL: u8 = 0x00;
const RESERVED: u8 = 0x0c;

/// Connection IDs that are remembered: more than are given out while a handshake may take.
const REMEMBERED: usize = 16_384;

/// First packets that wait for being looked at, and bytes of what comes after them meanwhile.
const WAITING: usize = 4096;
const WAITING_BYTES: u64 = 4 << 20;

/// Counts datagrams that reached no connection, by why.
#[derive(Debug, Default)]
pub(super) struct Strays {
    no_quic: AtomicU64,
    no_handshake: AtomicU64,
    no_connection: AtomicU64,
    given: Mutex<Given>,
    /// The endpoints' sockets once more: the kernel counts what it dropped.
    sockets: Mutex<Vec<UdpSocket>>,
}

/// The connection IDs given out last.
#[derive(Debug, Default)]
struct Given {
    ids: HashSet<ConnectionId>,
    in_turn: VecDeque<ConnectionId>,
}

impl Strays {
    /// An endpoint at `socket` whose strays are counted.
    pub(super) fn endpoint(
        self: &Arc<Self>,
        mut config: EndpointConfig,
        tls: Arc<dyn crypto::ServerConfig>,
        socket: UdpSocket,
    ) -> io::Result<Endpoint> {
        self.sockets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(socket.try_clone()?);
        let strays = Arc::clone(self);
        let ids = RandomConnectionIdGenerator::new(SERVER_ID_BYTES);
        config.cid_generator(Arc::new(move || {
            Box::new(Ids {
                ids,
                strays: Arc::clone(&strays),
            })
        }));
        config.supported_versions(vec![VERSION]);
        let mut server = ServerConfig::with_crypto(Arc::new(Tls {
            tls,
            strays: Arc::clone(self),
        }));
        server
            .max_incoming(WAITING)
            .incoming_buffer_size_total(WAITING_BYTES);
        let runtime = Arc::new(TokioRuntime);
        let socket = Socket {
            socket: runtime.wrap_udp_socket(socket)?,
            strays: Arc::clone(self),
        };
        Endpoint::new_with_abstract_socket(config, Some(server), Box::new(socket), runtime)
    }

    /// How many there were for each reason, those that occurred.
    pub(super) fn counted(&self) -> impl Iterator<Item = (String, u64)> {
        let counters = [
            ("datagram_no_quic", &self.no_quic),
            ("datagram_no_handshake", &self.no_handshake),
            ("datagram_no_connection", &self.no_connection),
        ];
        let counts = counters.map(|(reason, counter)| (reason, counter.load(Relaxed)));
        let unread = [("datagram_buffer_full", self.unread())];
        let counts = counts
            .into_iter()
            .chain(unread)
            .filter(|(_, count)| *count > 0);
        counts.map(|(reason, count)| (reason.to_owned(), count))
    }

    /// Datagrams for which the sockets' buffers had no room; the kernel does not count further than 32 bits.
    fn unread(&self) -> u64 {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets
            .iter()
            .filter_map(|socket| drops(socket).ok())
            .map(u64::from)
            .sum()
    }

    /// Counts a datagram that the library will drop, unless only its ID or its keys tell.
    fn look_at(&self, datagram: &[u8]) {
        let counter = match datagram {
            [first, ..] if first & LONG != 0 => self.look_at_long(*first, datagram),
            [_, id @ ..] if id.len() >= SERVER_ID_BYTES => None,
            _ => Some(&self.no_quic),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Relaxed);
        }
    }

    fn look_at_long(&self, first: u8, datagram: &[u8]) -> Option<&AtomicU64> {
        let ids = FixedLengthConnectionIdParser::new(SERVER_ID_BYTES);
        let Ok((packet, _)) = PartialDecode::new(BytesMut::from(datagram), &ids, &[VERSION], true)
        else {
            return Some(&self.no_quic);
        };
        let given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        match (given.ids.contains(&packet.dst_cid()), first & TYPE) {
            (true, _) => None,
            (false, INITIAL) => (datagram.len() < FIRST_BYTES).then_some(&self.no_quic),
            (false, _) => Some(&self.no_connection),
        }
    }
}

/// Sees every datagram before the library does.
#[derive(Debug)]
struct Socket {
    socket: Box<dyn AsyncUdpSocket>,
    strays: Arc<Strays>,
}

impl AsyncUdpSocket for Socket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        self.socket.create_sender()
    }

    fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.socket.poll_recv(context, buffers, metas))?;
        for (meta, buffer) in metas.iter().zip(buffers).take(count) {
            match &buffer[..meta.len] {
                [] => self.strays.look_at(&[]),
                datagrams => datagrams
                    .chunks(meta.stride)
                    .for_each(|datagram| self.strays.look_at(datagram)),
            }
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_receive_segments(&self) -> NonZeroUsize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

/// Gives out connection IDs, and is asked about those that the library does not know.
struct Ids {
    ids: RandomConnectionIdGenerator,
    strays: Arc<Strays>,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let id = self.ids.generate_cid();
        let mut given = self
            .strays
            .given
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if given.ids.insert(id) {
            given.in_turn.push_back(id);
        }
        if given.in_turn.len() > REMEMBERED
            && let Some(oldest) = given.in_turn.pop_front()
        {
            given.ids.remove(&oldest);
        }
        id
    }

    fn validate(&self, id: ConnectionId) -> Result<(), InvalidCid> {
        self.strays.no_connection.fetch_add(1, Relaxed);
        self.ids.validate(id)
    }

    fn cid_len(&self) -> usize {
        self.ids.cid_len()
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.ids.cid_lifetime()
    }
}

/// Hands out keys of first packets that notice when what they decipher is none.
struct Tls {
    tls: Arc<dyn crypto::ServerConfig>,
    strays: Arc<Strays>,
}

impl crypto::ServerConfig for Tls {
    fn initial_keys(&self, version: u32, id: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        let mut keys = self.tls.initial_keys(version, id)?;
        let key = keys.header.remote;
        keys.header.remote = Box::new(FirstHeaders {
            key,
            strays: Arc::clone(&self.strays),
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

struct FirstHeaders {
    key: Box<dyn HeaderKey>,
    strays: Arc<Strays>,
}

impl HeaderKey for FirstHeaders {
    fn decrypt(&self, number_offset: usize, packet: &mut [u8]) {
        self.key.decrypt(number_offset, packet);
        // One in four of those that are nothing pass, and are refused as handshakes.
        if packet[0] & RESERVED != 0 {
            self.strays.no_handshake.fetch_add(1, Relaxed);
        }
    }

    fn encrypt(&self, number_offset: usize, packet: &mut [u8]) {
        self.key.encrypt(number_offset, packet);
    }

    fn sample_size(&self) -> usize {
        self.key.sample_size()
    }
}
