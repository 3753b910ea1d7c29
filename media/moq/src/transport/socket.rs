//! MoQ over a WebSocket: QMux carries the streams of QUIC over its one connection.

use super::balanced::Balanced;
use super::{GroupTotals, Groups, Slot, TransportError};
use bytes::{Bytes, BytesMut};
use hawser_units::Line;
use moq_net::web_transport_trait::{
    self as wt, RecvStream as _, SendStream as _, Session as _, poll,
};
use qmux::ws::tokio_tungstenite::WebSocketStream;
use qmux::ws::tungstenite::protocol::{Role, WebSocketConfig};
use qmux::ws::{KeepAlive, Upgraded};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::sync::{mpsc, oneshot};

/// The bytes of a stream between the session and its task.
const PIPE: usize = 16 << 10;

/// The longest message of a client. QMux has records of 16 KiB.
const MAX_MESSAGE: usize = 64 << 10;

/// The wire formats of QMux, by which subprotocols begin.
const FORMATS: [&str; 3] = ["qmux-02.", "qmux-01.", "qmux-00."];

/// A WebSocket over which a session of MoQ runs.
///
/// A clone shares the connection and has operations of its own. The connection is closed when the last one is
/// dropped.
pub(crate) struct Socket {
    session: qmux::Session,
    groups: Arc<Groups>,
    accept_uni: Slot<SocketReader>,
    accept_bi: Slot<(SocketWriter, SocketReader)>,
    open_uni: Slot<SocketWriter>,
    open_bi: Slot<(SocketWriter, SocketReader)>,
    datagram: Slot<Bytes>,
    closed: Slot<()>,
}

/// A stream that is written, by a task. It is reset when it is dropped before it is finished.
pub(crate) struct SocketWriter {
    /// `None` once it is finished or reset.
    pipe: Option<DuplexStream>,
    orders: mpsc::UnboundedSender<Order>,
    outcome: Outcome,
    /// The counts, if it has a group.
    group: Option<Arc<GroupTotals>>,
}

/// A stream that is read, by a task.
pub(crate) struct SocketReader {
    pipe: DuplexStream,
    stop: Option<oneshot::Sender<u32>>,
    outcome: Outcome,
}

enum Order {
    Priority(u8),
    Reset(u32),
}

/// How the task of a stream ends.
struct Outcome {
    ends: oneshot::Receiver<Result<(), TransportError>>,
    known: Option<Result<(), TransportError>>,
}

/// Returns the first subprotocol that a client offers which is one of these protocols of MoQ in a wire format of QMux.
pub(crate) fn choose<'a>(
    mut offered: impl Iterator<Item = &'a str>,
    protocols: &[&str],
) -> Option<&'a str> {
    offered.find(|offer| {
        let known = FORMATS.iter().find_map(|format| offer.strip_prefix(format));
        known.is_some_and(|protocol| protocols.contains(&protocol))
    })
}

impl Socket {
    /// Takes a connection after its handshake of HTTP, with the subprotocol that was chosen. Counts the groups that are
    /// sent.
    pub(crate) async fn accept(
        connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        subprotocol: &str,
        totals: &Arc<GroupTotals>,
    ) -> Self {
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE))
            .max_frame_size(Some(MAX_MESSAGE));
        let connection = Balanced::new(connection);
        let socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(limits)).await;
        let upgraded = Upgraded::new(socket)
            .with_alpn(subprotocol)
            .with_keep_alive(KeepAlive::default());
        Socket::new(upgraded.accept(), Arc::new(Groups::new(totals)))
    }

    /// Becomes the client of a connection after its handshake of HTTP.
    #[cfg(test)]
    pub(crate) async fn connect(
        connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        subprotocol: &str,
    ) -> Self {
        let socket = WebSocketStream::from_raw_socket(connection, Role::Client, None).await;
        let upgraded = Upgraded::new(socket).with_alpn(subprotocol);
        Socket::new(upgraded.connect(), Arc::new(Groups::new(&Arc::default())))
    }

    fn new(session: qmux::Session, groups: Arc<Groups>) -> Self {
        Socket {
            session,
            groups,
            accept_uni: Slot::new(),
            accept_bi: Slot::new(),
            open_uni: Slot::new(),
            open_bi: Slot::new(),
            datagram: Slot::new(),
            closed: Slot::new(),
        }
    }
}

impl Clone for Socket {
    fn clone(&self) -> Self {
        Socket::new(self.session.clone(), Arc::clone(&self.groups))
    }
}

impl poll::Session for Socket {
    type SendStream = SocketWriter;
    type RecvStream = SocketReader;
    type Error = TransportError;

    fn poll_accept_uni(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<SocketReader, TransportError>> {
        let session = self.session.clone();
        self.accept_uni.poll(context, || {
            Box::pin(async move { Ok(SocketReader::new(session.accept_uni().await?)) })
        })
    }

    fn poll_accept_bi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(SocketWriter, SocketReader), TransportError>> {
        let session = self.session.clone();
        self.accept_bi.poll(context, || {
            Box::pin(async move { Ok(pair(session.accept_bi().await?)) })
        })
    }

    fn poll_open_uni(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<SocketWriter, TransportError>> {
        let (session, groups) = (self.session.clone(), Arc::clone(&self.groups));
        self.open_uni.poll(context, || {
            Box::pin(async move {
                let stream = session.open_uni().await?;
                Ok(SocketWriter::new(stream, groups.next()))
            })
        })
    }

    fn poll_open_bi(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(SocketWriter, SocketReader), TransportError>> {
        let session = self.session.clone();
        self.open_bi.poll(context, || {
            Box::pin(async move { Ok(pair(session.open_bi().await?)) })
        })
    }

    fn poll_send_datagram(
        &mut self,
        _: &mut Context<'_>,
        payload: &[u8],
    ) -> Poll<Result<(), TransportError>> {
        let sent = self.session.send_datagram(Bytes::copy_from_slice(payload));
        Poll::Ready(sent.map_err(TransportError::from))
    }

    fn poll_recv_datagram(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Bytes, TransportError>> {
        let session = self.session.clone();
        self.datagram.poll(context, || {
            Box::pin(async move { Ok(session.recv_datagram().await?) })
        })
    }

    fn max_datagram_size(&self) -> usize {
        self.session.max_datagram_size()
    }

    fn protocol(&self) -> Option<&str> {
        self.session.protocol()
    }

    fn close(&mut self, code: u32, reason: &str) {
        self.session.close(code, reason);
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<TransportError> {
        let session = self.session.clone();
        let closed = self.closed.poll(context, || {
            Box::pin(async move { Err(session.closed().await.into()) })
        });
        closed.map(|closed| closed.map_or_else(|error| error, |()| TransportError::StreamEnded))
    }

    fn stats(&self) -> impl wt::Stats {
        self.session.stats()
    }
}

impl From<qmux::Error> for TransportError {
    fn from(error: qmux::Error) -> Self {
        if let Some((code, reason)) = wt::Error::session_error(&error) {
            return TransportError::Closed(code, Line::new(&reason));
        }
        match wt::Error::stream_error(&error) {
            Some(code) => TransportError::Stream(code),
            None => TransportError::Socket(error.to_string()),
        }
    }
}

fn pair((send, recv): (qmux::SendStream, qmux::RecvStream)) -> (SocketWriter, SocketReader) {
    (SocketWriter::new(send, None), SocketReader::new(recv))
}

impl SocketWriter {
    fn new(stream: qmux::SendStream, group: Option<Arc<GroupTotals>>) -> Self {
        let (pipe, read) = duplex(PIPE);
        let (orders, received) = mpsc::unbounded_channel();
        SocketWriter {
            pipe: Some(pipe),
            orders,
            outcome: Outcome::of(write(stream, read, received)),
            group,
        }
    }
}

/// Writes what comes through the pipe until it ends, in the order of the priorities.
async fn write(
    mut stream: qmux::SendStream,
    mut pipe: DuplexStream,
    mut orders: mpsc::UnboundedReceiver<Order>,
) -> Result<(), TransportError> {
    let mut waiting = BytesMut::with_capacity(PIPE);
    loop {
        let order = if waiting.is_empty() {
            tokio::select! {
                biased;
                Some(order) = orders.recv() => order,
                closed = stream.closed() => return Ok(closed?),
                read = pipe.read_buf(&mut waiting) => match read {
                    Ok(1..) => continue,
                    _ => return Ok(stream.finish()?),
                },
            }
        } else {
            // Bytes that are not accepted stay.
            tokio::select! {
                biased;
                Some(order) = orders.recv() => order,
                written = stream.write_buf(&mut waiting) => {
                    written?;
                    continue;
                }
            }
        };
        match order {
            Order::Priority(priority) => stream.set_priority(priority),
            Order::Reset(code) => {
                stream.reset(code);
                return Ok(());
            }
        }
    }
}

impl poll::SendStream for SocketWriter {
    type Error = TransportError;

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize, TransportError>> {
        let Some(pipe) = &mut self.pipe else {
            return Poll::Ready(Err(TransportError::StreamEnded));
        };
        match ready!(Pin::new(pipe).poll_write(context, bytes)) {
            Ok(written) => Poll::Ready(Ok(written)),
            // The task has ended, and says why.
            Err(_) => {
                let outcome = ready!(self.outcome.poll(context));
                Poll::Ready(Err(outcome.err().unwrap_or(TransportError::StreamEnded)))
            }
        }
    }

    fn set_priority(&mut self, order: u8) {
        // It fails for a stream that has ended, which needs no priority.
        let _ = self.orders.send(Order::Priority(order));
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        self.pipe.take().ok_or(TransportError::StreamEnded)?;
        if let Some(group) = self.group.take() {
            group.sent.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn reset(&mut self, code: u32) {
        // Also after its end: what was not written by then is not.
        let _ = self.orders.send(Order::Reset(code));
        self.pipe = None;
        if let Some(group) = self.group.take() {
            group.cut.fetch_add(1, Relaxed);
        }
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.outcome.poll(context)
    }
}

impl Drop for SocketWriter {
    fn drop(&mut self) {
        if self.pipe.is_some() {
            poll::SendStream::reset(self, 0);
        }
    }
}

impl SocketReader {
    fn new(stream: qmux::RecvStream) -> Self {
        let (pipe, written) = duplex(PIPE);
        let (stop, stopped) = oneshot::channel();
        SocketReader {
            pipe,
            stop: Some(stop),
            outcome: Outcome::of(read(stream, written, stopped)),
        }
    }
}

/// Reads into the pipe until the stream ends, or nobody reads.
async fn read(
    mut stream: qmux::RecvStream,
    mut pipe: DuplexStream,
    mut stopped: oneshot::Receiver<u32>,
) -> Result<(), TransportError> {
    loop {
        let code = tokio::select! {
            biased;
            code = &mut stopped => code,
            chunk = stream.read_chunk(PIPE) => {
                let Some(chunk) = chunk? else { return Ok(()) };
                tokio::select! {
                    biased;
                    code = &mut stopped => code,
                    // It fails when nobody reads any more, which stops it.
                    Ok(()) = pipe.write_all(&chunk) => continue,
                }
            }
        };
        stream.stop(code.unwrap_or(0));
        return Ok(());
    }
}

impl poll::RecvStream for SocketReader {
    type Error = TransportError;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Result<Option<usize>, TransportError>> {
        if buffer.is_empty() {
            return Poll::Ready(Ok(Some(0)));
        }
        let mut read = ReadBuf::new(buffer);
        let polled = ready!(Pin::new(&mut self.pipe).poll_read(context, &mut read));
        polled.map_err(|_| TransportError::StreamEnded)?;
        match read.filled().len() {
            0 => self.outcome.poll(context).map_ok(|()| None),
            length => Poll::Ready(Ok(Some(length))),
        }
    }

    fn stop(&mut self, code: u32) {
        if let Some(stop) = self.stop.take() {
            // It fails for a stream that has ended already.
            let _ = stop.send(code);
        }
    }

    fn poll_closed(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        self.outcome.poll(context)
    }
}

impl Outcome {
    /// Starts the task of a stream.
    fn of(task: impl Future<Output = Result<(), TransportError>> + Send + 'static) -> Self {
        let (end, ends) = oneshot::channel();
        tokio::spawn(async move {
            // Nobody may wait for it.
            let _ = end.send(task.await);
        });
        Outcome { ends, known: None }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), TransportError>> {
        if self.known.is_none() {
            let ended = ready!(Pin::new(&mut self.ends).poll(context));
            self.known = Some(ended.unwrap_or(Err(TransportError::StreamEnded)));
        }
        Poll::Ready(self.known.clone().expect("it was set above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_subprotocol_is_chosen() {
        let served = ["moq-lite-06", "moq-lite-05"];
        let choose = |offered: &[&'static str]| choose(offered.iter().copied(), &served);
        let offered = [
            "qmux-02.moq-lite-04",
            "qmux-01.moq-lite-05",
            "qmux-02.moq-lite-06",
        ];
        assert_eq!(choose(&offered), Some("qmux-01.moq-lite-05"));
        assert_eq!(
            choose(&["qmux-02", "webtransport", "moq-lite-05", ""]),
            None
        );
    }
}
