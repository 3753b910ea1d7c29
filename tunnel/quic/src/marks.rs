//! Counts the packets of a connection that the network has marked with "congestion experienced"
//! (ECN).
//!
//! The library counts them too, but reports the counts to the peer only. Here the socket notes each
//! marked datagram by its last bytes, the tag of its packet's encryption. The key that decrypts the
//! packet finds it again. So a packet counts for its connection, and only if it is authentic.

use bytes::BytesMut;
use noq_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
    UnsupportedVersion,
};
use noq_proto::transport_parameters::TransportParameters;
use noq_proto::{ConnectError, ConnectionId, PathId, Side, TransportError};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The length of the tag of every cipher of QUIC (RFC 9001, section 5.3), in bytes.
const TAG_BYTES: usize = 16;

/// The maximum number of marked datagrams whose packets were not decrypted yet: some megabytes of
/// full packets. The oldest is forgotten first.
const MAX_DATAGRAMS: usize = 4096;

type Tag = [u8; TAG_BYTES];

/// The marked datagrams of a socket whose packets were not decrypted yet.
#[derive(Debug, Default)]
pub struct MarkedDatagrams {
    tags: Mutex<Tags>,
    /// The number of tags, which is usually 0.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tags {
    known: HashSet<Tag>,
    /// All tags in order of arrival, also those that were taken.
    order: VecDeque<Tag>,
}

impl MarkedDatagrams {
    /// Notes a datagram that arrived with the mark, before the connection gets it.
    pub fn note(&self, datagram: &[u8]) {
        let Some(tag) = datagram.last_chunk() else {
            return;
        };
        let mut tags = self.tags.lock();
        if tags.order.len() == MAX_DATAGRAMS
            && let Some(oldest) = tags.order.pop_front()
        {
            tags.known.remove(&oldest);
        }
        tags.order.push_back(*tag);
        tags.known.insert(*tag);
        self.count.store(tags.known.len(), Relaxed);
    }

    /// Returns whether the datagram with this tag arrived with the mark.
    fn take(&self, tag: &Tag) -> bool {
        if self.count.load(Relaxed) == 0 {
            return false;
        }
        let mut tags = self.tags.lock();
        let is_marked = tags.known.remove(tag);
        self.count.store(tags.known.len(), Relaxed);
        is_marked
    }
}

/// The decrypted bytes of the packets that a connection received.
#[derive(Debug, Default)]
pub struct Received {
    bytes: AtomicU64,
    marked: AtomicU64,
}

impl Received {
    /// Returns the bytes of all packets so far, and of the marked ones.
    pub fn totals(&self) -> (u64, u64) {
        let marked = self.marked.load(Relaxed);
        (self.bytes.load(Relaxed), marked)
    }
}

/// Counts the packets of one connection, by a wrapper around its TLS.
#[derive(Debug, Clone, Default)]
pub struct MarkCounter {
    datagrams: Arc<MarkedDatagrams>,
    received: Arc<Received>,
}

impl MarkCounter {
    /// Creates the counter of a connection that receives through the socket of `datagrams`.
    pub fn new(datagrams: Arc<MarkedDatagrams>) -> Self {
        MarkCounter {
            datagrams,
            received: Arc::default(),
        }
    }

    /// Returns the marked datagrams of the connection's socket.
    pub fn datagrams(&self) -> &Arc<MarkedDatagrams> {
        &self.datagrams
    }

    /// Returns the counts.
    pub fn received(&self) -> &Arc<Received> {
        &self.received
    }

    /// Returns the TLS of a client for the connection.
    pub fn client(&self, tls: Arc<dyn crypto::ClientConfig>) -> Arc<dyn crypto::ClientConfig> {
        let counter = self.clone();
        Arc::new(Counting { tls, counter })
    }

    /// Returns the TLS of a server for the connection.
    pub fn server(&self, tls: Arc<dyn crypto::ServerConfig>) -> Arc<dyn crypto::ServerConfig> {
        let counter = self.clone();
        Arc::new(Counting { tls, counter })
    }

    fn session(&self, session: Box<dyn Session>) -> Box<dyn Session> {
        let counter = self.clone();
        Box::new(CountingSession { session, counter })
    }

    fn keys(&self, packet: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
        let (key, counter) = (packet.remote, self.clone());
        KeyPair {
            local: packet.local,
            remote: Box::new(CountingKey { key, counter }),
        }
    }

    fn count(&self, tag: Option<Tag>, bytes: usize) {
        let bytes = bytes as u64;
        self.received.bytes.fetch_add(bytes, Relaxed);
        if tag.is_some_and(|tag| self.datagrams.take(&tag)) {
            self.received.marked.fetch_add(bytes, Relaxed);
        }
    }
}

/// TLS of a client or a server whose sessions count.
struct Counting<T: ?Sized> {
    tls: Arc<T>,
    counter: MarkCounter,
}

impl crypto::ClientConfig for Counting<dyn crypto::ClientConfig> {
    fn start_session(
        &self,
        version: u32,
        server_name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = self.tls.start_session(version, server_name, parameters)?;
        Ok(self.counter.session(session))
    }
}

impl crypto::ServerConfig for Counting<dyn crypto::ServerConfig> {
    fn initial_keys(&self, version: u32, id: ConnectionId) -> Result<Keys, UnsupportedVersion> {
        self.tls.initial_keys(version, id)
    }

    fn retry_tag(&self, version: u32, id: ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.tls.retry_tag(version, id, packet)
    }

    fn start_session(&self, version: u32, parameters: &TransportParameters) -> Box<dyn Session> {
        let session = self.tls.start_session(version, parameters);
        self.counter.session(session)
    }
}

/// A TLS session whose keys for received packets count.
struct CountingSession {
    session: Box<dyn Session>,
    counter: MarkCounter,
}

impl Session for CountingSession {
    fn initial_keys(&self, id: ConnectionId, side: Side) -> Keys {
        self.session.initial_keys(id, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.session.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.session.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.session.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.session.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        self.session.read_handshake(bytes)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.session.transport_parameters()
    }

    fn write_handshake(&mut self, bytes: &mut Vec<u8>) -> Option<Keys> {
        let Keys { header, packet } = self.session.write_handshake(bytes)?;
        let packet = self.counter.keys(packet);
        Some(Keys { header, packet })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.session.next_1rtt_keys()?;
        Some(self.counter.keys(keys))
    }

    fn is_valid_retry(&self, id: ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.session.is_valid_retry(id, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.session.export_keying_material(output, label, context)
    }
}

/// A key for received packets that counts those that it decrypts.
struct CountingKey {
    key: Box<dyn PacketKey>,
    counter: MarkCounter,
}

impl PacketKey for CountingKey {
    fn encrypt(&self, path: PathId, number: u64, packet: &mut [u8], header_bytes: usize) {
        self.key.encrypt(path, number, packet, header_bytes);
    }

    fn decrypt(
        &self,
        path: PathId,
        number: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let tag = payload.last_chunk().copied();
        self.key.decrypt(path, number, header, payload)?;
        self.counter.count(tag, payload.len());
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_is_found_once_by_its_last_bytes() {
        let marked = MarkedDatagrams::default();
        marked.note(&[1; 40]);
        marked.note(&[2; 15]);
        assert!(!marked.take(&[2; 16]), "too short for a tag");
        assert!(marked.take(&[1; 16]));
        assert!(!marked.take(&[1; 16]));
    }

    #[test]
    fn the_oldest_of_too_many_datagrams_is_forgotten() {
        let marked = MarkedDatagrams::default();
        let tag = |number: usize| (number as u128).to_be_bytes();
        (0..=MAX_DATAGRAMS).for_each(|number| marked.note(&tag(number)));
        assert!(!marked.take(&tag(0)));
        assert!((1..=MAX_DATAGRAMS).all(|number| marked.take(&tag(number))));
        assert_eq!(marked.count.load(Relaxed), 0);
    }
}
