//! The QUIC endpoints of a server, and the datagrams that do not fit the buffers of their sockets.

use crate::quic::{SERVER_ID_BYTES, endpoint};
use anyhow::Result;
use hawser_io::sockopt::drops;
use noq::crypto;
use noq::{AsyncUdpSocket, Endpoint, ServerConfig, TokioRuntime};
use parking_lot::Mutex;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

/// The QUIC version of both ends.
const VERSION: u32 = 1;

/// The number of Initial packets that wait to be accepted, and the bytes buffered for the packets
/// after them.
const MAX_INCOMING: usize = 4096;
const MAX_INCOMING_BYTES: u64 = 4 << 20;

/// Opens an endpoint at `socket`. Clients may send UDP payloads of up to `payload` bytes.
pub(super) fn open(
    socket: Box<dyn AsyncUdpSocket>,
    tls: Arc<dyn crypto::ServerConfig>,
    payload: u16,
) -> Result<Endpoint> {
    let mut config = endpoint(SERVER_ID_BYTES, payload)?;
    config.supported_versions(vec![VERSION]);
    let mut server = ServerConfig::with_crypto(tls);
    server
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size_total(MAX_INCOMING_BYTES);
    let runtime = Arc::new(TokioRuntime);
    let endpoint = Endpoint::new_with_abstract_socket(config, Some(server), socket, runtime)?;
    Ok(endpoint)
}

/// Reads how many datagrams the kernel dropped because the buffers of sockets were full.
#[derive(Debug, Default)]
pub(super) struct SocketDrops(Mutex<Vec<UdpSocket>>);

impl SocketDrops {
    /// Counts the drops at `socket` from now on.
    pub(super) fn count(&self, socket: &UdpSocket) -> io::Result<()> {
        self.0.lock().push(socket.try_clone()?);
        Ok(())
    }

    /// Returns the count with its reason, if there is any.
    pub(super) fn counts(&self) -> Option<(String, u64)> {
        let sockets = self.0.lock();
        let of_each = sockets.iter().filter_map(|socket| drops(socket).ok());
        let count = of_each.map(u64::from).sum();
        (count > 0).then(|| ("datagram_buffer_full".to_owned(), count))
    }
}
