//! A QUIC connection as MoQ sees it, with or without WebTransport, and a WebSocket.

mod balanced;
mod http;
mod socket;

pub(crate) use http::{ALPN, Asked};
pub(crate) use socket::{Socket, choose};

use bytes::Bytes;
use hawser_units::Line;
use http::Http;
use moq_net::web_transport_trait::{self as wt, poll};
use noq::VarInt;
use parking_lot::Mutex;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use web_transport_proto::{error_from_http3, error_to_http3};

/// A connection over which a session of MoQ runs: QUIC, or WebTransport over it.
///
/// A clone shares the connection and has operations of its own. The connection is closed when the last one is
/// dropped.
pub struct Transport {
    connection: noq::Connection,
    /// The headers of WebTransport for streams and datagrams.
    http: Option<Arc<Http>>,
    protocol: Arc<str>,
    groups: Option<Arc<Groups>>,
    accept_uni: Slot<RecvStream>,
    accept_bi: Slot<(SendStream, RecvStream)>,
    open_uni: Slot<SendStream>,
    open_bi: Slot<(SendStream, RecvStream)>,
    datagram: Slot<Bytes>,
    closed: Slot<()>,
}

/// Counts of the groups that are sent: each has a stream of one direction. The first such stream of a session
/// has its set-up.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    has_begun: AtomicBool,
    totals: Arc<GroupTotals>,
}

/// The sums over all sessions.
#[derive(Debug, Default)]
pub(crate) struct GroupTotals {
    /// Groups that were sent to their end.
    pub(crate) sent: AtomicU64,
    /// Groups that were given up after they had begun.
    pub(crate) cut: AtomicU64,
}

/// A stream that is written. It is reset when it is dropped before it is finished.
#[derive(Debug)]
pub struct SendStream {
    stream: noq::SendStream,
    is_http: bool,
    has_ended: bool,
    /// The counts, if it has a group.
    group: Option<Arc<GroupTotals>>,
    stopped: Option<Pin<Box<noq::Stopped>>>,
}

/// A stream that is read.
#[derive(Debug)]
pub struct RecvStream {
    stream: noq::RecvStream,
    is_http: bool,
}

/// An operation on a [`Transport`] or a stream has failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// The connection has ended.
    #[error(transparent)]
    Connection(#[from] noq::ConnectionError),
    /// The peer has closed the session.
    #[error("closed by the peer: {1} ({0})")]
    Closed(u32, Line),
    /// The peer has reset or stopped the stream.
    #[error("stream ended by the peer ({0})")]
    Stream(u32),
    /// The stream was finished or reset already.
    #[error("the stream has ended")]
    StreamEnded,
    /// A datagram cannot be sent or was not valid.
    #[error("datagram: {0}")]
    Datagram(String),
    /// The peer does not speak HTTP/3 and WebTransport as it should.
    #[error("WebTransport: {0}")]
    Http(String),
    /// The peer does not speak WebSocket and QMux as it should, or has left.
    #[error("WebSocket: {0}")]
    Socket(String),
}

impl Groups {
    fn new(totals: &Arc<GroupTotals>) -> Self {
        Groups {
            has_begun: AtomicBool::new(false),
            totals: Arc::clone(totals),
        }
    }

    /// Returns the counts for the next stream, if it has a group.
    fn next(&self) -> Option<Arc<GroupTotals>> {
        let is_group = self.has_begun.swap(true, Relaxed);
        is_group.then(|| Arc::clone(&self.totals))
    }
}

type Operation<T> = Pin<Box<dyn Future<Output = Result<T, TransportError>> + Send>>;

/// An operation that has begun. The mutex is never locked: it makes a future `Sync`.
struct Slot<T>(Mutex<Option<Operation<T>>>);

impl<T> Slot<T> {
    const fn new() -> Self {
        Slot(Mutex::new(None))
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        begin: impl FnOnce() -> Operation<T>,
    ) -> Poll<Result<T, TransportError>> {
        let operation = self.0.get_mut();
        let outcome = ready!(operation.get_or_insert_with(begin).as_mut().poll(context));
        *operation = None;
        Poll::Ready(outcome)
    }
}

impl Transport {
    fn new(connection: noq::Connection, http: Option<Http>, protocol: &str) -> Self {
        Transport::shared(connection, http.map(Arc::new), protocol.into(), None)
    }

    /// Counts the groups that are sent.
    pub(crate) fn counting(self, totals: &Arc<GroupTotals>) -> Self {
        Transport {
            groups: Some(Arc::new(Groups::new(totals))),
            ..self
        }
    }

    /// Takes a connection of QUIC whose protocol (ALPN) is a version of MoQ. `None` if it has none.
    pub fn raw(connection: noq::Connection) -> Option<Self> {
        let protocol = alpn(&connection)?;
        Some(Transport::new(connection, None, &protocol))
    }

    fn shared(
        connection: noq::Connection,
        http: Option<Arc<Http>>,
        protocol: Arc<str>,
        groups: Option<Arc<Groups>>,
    ) -> Self {
        Transport {
            connection,
            http,
            protocol,
            groups,
            accept_uni: Slot::new(),
            accept_bi: Slot::new(),
            open_uni: Slot::new(),
            open_bi: Slot::new(),
            datagram: Slot::new(),
            closed: Slot::new(),
        }
    }

    fn parts(&self) -> (noq::Connection, Option<Arc<Http>>) {
        (self.connection.clone(), self.http.clone())
    }
}

/// Returns the protocol that a connection has negotiated.
pub(crate) fn alpn(connection: &noq::Connection) -> Option<String> {
    let data = connection.handshake_data()?;
    let data = data.downcast::<noq::crypto::rustls::HandshakeData>().ok()?;
    String::from_utf8(data.protocol?).ok()
}

impl Clone for Transport {
    fn clone(&self) -> Self {
        let (connection, http) = self.parts();
        let protocol = Arc::clone(&self.protocol);
        Transport::shared(connection, http, protocol, self.groups.clone())
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("protocol", &self.protocol)
            .field("is_http", &self.http.is_some())
            .finish_non_exhaustive()
    }
}

impl poll::Session for Transport {
    type SendStream = SendStream;
    type RecvStream = RecvStream;
    type Error = TransportError;

    fn poll_accept_uni(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<RecvStream, TransportError>> {
        let (connection, http) = self.parts();
        self.accept_uni.poll(context, || {
            Box::pin(async move {
                let is_http = http.is_some();
                let stream = match http {
                    Some(http) => http.accept_uni(&connection).await?,
                    None => connection.accept_uni().await?,
                };
                Ok(RecvStream { stream, is_http })
            })
        })
    }

    fn poll_accept_bi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), TransportError>> {
        let (connection, http) = self.parts();
        self.accept_bi.poll(context, || {
            Box::pin(async move {
                let is_http = http.is_some();
                let streams = match http {
                    Some(http) => http.accept_bi(&connection).await?,
                    None => connection.accept_bi().await?,
                };
                Ok(pair(streams, is_http))
            })
        })
    }

    fn poll_open_uni(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<SendStream, TransportError>> {
        let (connection, http) = self.parts();
        let groups = self.groups.clone();
        self.open_uni.poll(context, || {
            Box::pin(async move {
                let mut stream = connection.open_uni().await?;
                if let Some(http) = &http {
                    http.begin_uni(&mut stream).await?;
                }
                let mut stream = SendStream::new(stream, http.is_some());
                stream.group = groups.and_then(|groups| groups.next());
                Ok(stream)
            })
        })
    }

    fn poll_open_bi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(SendStream, RecvStream), TransportError>> {
        let (connection, http) = self.parts();
        self.open_bi.poll(context, || {
            Box::pin(async move {
                let (mut send, recv) = connection.open_bi().await?;
                if let Some(http) = &http {
                    http.begin_bi(&mut send).await?;
                }
                Ok(pair((send, recv), http.is_some()))
            })
        })
    }

    fn poll_send_datagram(
        &mut self,
        _: &mut Context<'_>,
        payload: &[u8],
    ) -> Poll<Result<(), TransportError>> {
        let datagram = match &self.http {
            Some(http) => http.datagram(payload),
            None => Bytes::copy_from_slice(payload),
        };
        let sent = self.connection.send_datagram(datagram);
        Poll::Ready(sent.map_err(|error| TransportError::Datagram(error.to_string())))
    }

    fn poll_recv_datagram(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Bytes, TransportError>> {
        let (connection, http) = self.parts();
        self.datagram.poll(context, || {
            Box::pin(async move {
                loop {
                    let datagram = connection.read_datagram().await?;
                    match &http {
                        None => return Ok(datagram),
                        Some(http) => {
                            if let Some(payload) = http.payload(datagram) {
                                return Ok(payload);
                            }
                        }
                    }
                }
            })
        })
    }

    fn max_datagram_size(&self) -> usize {
        let size = self.connection.max_datagram_size().unwrap_or(0);
        let header = self.http.as_ref().map_or(0, |http| http.datagram_header());
        size.saturating_sub(header)
    }

    fn protocol(&self) -> Option<&str> {
        Some(&self.protocol)
    }

    fn close(&mut self, code: u32, reason: &str) {
        match &self.http {
            Some(http) => http.close(&self.connection, code, reason),
            None => self.connection.close(code.into(), reason.as_bytes()),
        }
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<TransportError> {
        let (connection, http) = self.parts();
        let closed = self.closed.poll(context, || {
            Box::pin(async move {
                let error = connection.closed().await;
                let by_peer = http.and_then(|http| http.closed_by_peer());
                Err(match by_peer {
                    Some((code, reason)) => TransportError::Closed(code, Line::new(&reason)),
                    None => error.into(),
                })
            })
        });
        closed.map(|closed| closed.map_or_else(|error| error, |()| TransportError::StreamEnded))
    }

    fn stats(&self) -> impl wt::Stats {
        Stats {
            connection: self.connection.stats(),
            path: self.connection.path_stats(noq::PathId::ZERO),
            rtt: self.connection.rtt(noq::PathId::ZERO),
        }
    }
}

fn pair(
    (send, recv): (noq::SendStream, noq::RecvStream),
    is_http: bool,
) -> (SendStream, RecvStream) {
    let recv = RecvStream {
        stream: recv,
        is_http,
    };
    (SendStream::new(send, is_http), recv)
}

/// Returns the code of a stream on the wire.
fn to_wire(code: u32, is_http: bool) -> VarInt {
    match is_http {
        true => VarInt::from_u64(error_to_http3(code)).expect("codes of HTTP/3 have 62 bits"),
        false => code.into(),
    }
}

/// Returns the code of a stream. moq-rs sends those of HTTP/3 over QUIC, too.
fn from_wire(code: VarInt) -> TransportError {
    let code = code.into_inner();
    let code = error_from_http3(code).or_else(|| u32::try_from(code).ok());
    TransportError::Stream(code.unwrap_or(0))
}

impl SendStream {
    fn new(stream: noq::SendStream, is_http: bool) -> Self {
        SendStream {
            stream,
            is_http,
            has_ended: false,
            group: None,
            stopped: None,
        }
    }
}

impl poll::SendStream for SendStream {
    type Error = TransportError;

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, TransportError>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        written.map_err(|error| match error {
            noq::WriteError::Stopped(code) => from_wire(code),
            noq::WriteError::ConnectionLost(error) => error.into(),
            _ => TransportError::StreamEnded,
        })
    }

    fn set_priority(&mut self, order: u8) {
        // It fails for a stream that has ended, which needs no priority.
        let _ = self.stream.set_priority(order.into());
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        self.has_ended = true;
        let finished = self.stream.finish();
        if let (Ok(()), Some(group)) = (&finished, self.group.take()) {
            group.sent.fetch_add(1, Relaxed);
        }
        finished.map_err(|_| TransportError::StreamEnded)
    }

    fn reset(&mut self, code: u32) {
        self.has_ended = true;
        if let Some(group) = self.group.take() {
            group.cut.fetch_add(1, Relaxed);
        }
        // It fails for a stream that has ended already.
        let _ = self.stream.reset(to_wire(code, self.is_http));
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let stream = &self.stream;
        let stopped = self
            .stopped
            .get_or_insert_with(|| Box::pin(stream.stopped()));
        let outcome = ready!(stopped.as_mut().poll(context));
        self.stopped = None;
        Poll::Ready(match outcome {
            Ok(None) => Ok(()),
            Ok(Some(code)) => Err(from_wire(code)),
            Err(noq::StoppedError::ConnectionLost(error)) => Err(error.into()),
            Err(_) => Err(TransportError::StreamEnded),
        })
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        if !self.has_ended {
            poll::SendStream::reset(self, 0);
        }
    }
}

impl poll::RecvStream for RecvStream {
    type Error = TransportError;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<Option<usize>, TransportError>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(Some(0)));
        }
        let read = ready!(self.stream.poll_read(context, buffer));
        Poll::Ready(match read {
            Ok(0) => Ok(None),
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(read_error(error)),
        })
    }

    fn poll_read_chunk(
        &mut self,
        context: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, TransportError>> {
        if max == 0 {
            return Poll::Ready(Ok(Some(Bytes::new())));
        }
        let read = pin!(self.stream.read_chunk(max)).poll(context);
        read.map_err(read_error)
    }

    fn stop(&mut self, code: u32) {
        // It fails for a stream that has ended already.
        let _ = self.stream.stop(to_wire(code, self.is_http));
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        let reset = ready!(pin!(self.stream.received_reset()).poll(context));
        Poll::Ready(match reset {
            Ok(None) => Ok(()),
            Ok(Some(code)) => Err(from_wire(code)),
            Err(noq::ResetError::ConnectionLost(error)) => Err(error.into()),
            Err(_) => Err(TransportError::StreamEnded),
        })
    }
}

fn read_error(error: noq::ReadError) -> TransportError {
    match error {
        noq::ReadError::Reset(code) => from_wire(code),
        noq::ReadError::ConnectionLost(error) => error.into(),
        _ => TransportError::StreamEnded,
    }
}

impl wt::Error for TransportError {
    fn session_error(&self) -> Option<(u32, String)> {
        match self {
            TransportError::Closed(code, reason) => Some((*code, reason.clone().into_string())),
            TransportError::Connection(noq::ConnectionError::ApplicationClosed(close)) => {
                let code = u32::try_from(close.error_code.into_inner()).ok()?;
                Some((code, Line::from_bytes(&close.reason).into_string()))
            }
            _ => None,
        }
    }

    fn stream_error(&self) -> Option<u32> {
        match self {
            TransportError::Stream(code) => Some(*code),
            _ => None,
        }
    }
}

struct Stats {
    connection: noq::ConnectionStats,
    path: Option<noq::PathStats>,
    rtt: Option<Duration>,
}

impl wt::Stats for Stats {
    fn bytes_sent(&self) -> Option<u64> {
        Some(self.connection.udp_tx.bytes)
    }

    fn bytes_received(&self) -> Option<u64> {
        Some(self.connection.udp_rx.bytes)
    }

    fn bytes_lost(&self) -> Option<u64> {
        self.path.as_ref().map(|path| path.lost_bytes)
    }

    fn packets_sent(&self) -> Option<u64> {
        Some(self.connection.udp_tx.datagrams)
    }

    fn packets_received(&self) -> Option<u64> {
        Some(self.connection.udp_rx.datagrams)
    }

    fn packets_lost(&self) -> Option<u64> {
        self.path.as_ref().map(|path| path.lost_packets)
    }

    fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    fn estimated_send_rate(&self) -> Option<u64> {
        let window = self.path.as_ref()?.cwnd as f64 * 8.0;
        let seconds = self.rtt?.as_secs_f64();
        (window > 0.0 && seconds > 0.0).then(|| (window / seconds) as u64)
    }
}
