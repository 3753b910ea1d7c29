//! WebTransport over HTTP/3: one session for each connection.

use super::{Transport, TransportError};
use bytes::{Buf, Bytes, BytesMut};
use noq::VarInt as Code;
use parking_lot::Mutex;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use web_transport_proto::{
    Capsule, ConnectRequest, ConnectResponse, Frame, Http3CapsuleReader, Settings, StreamUni,
    VarInt, error_to_http3, http,
};

/// The protocol (ALPN) of HTTP/3.
pub(crate) const ALPN: &str = "h3";

/// The headers of a WebTransport session for streams and datagrams.
pub(super) struct Http {
    session: VarInt,
    uni_header: Vec<u8>,
    bi_header: Vec<u8>,
    datagram_header: Vec<u8>,
    /// The stream of the CONNECT request, until the session is closed.
    connect: Mutex<Option<noq::SendStream>>,
    /// The streams of the session.
    streams: Streams,
    _control: noq::SendStream,
    closed: Arc<Mutex<Option<(u32, String)>>>,
    reader: AbortHandle,
    acceptor: AbortHandle,
}

/// The streams of one direction that a peer has opened for the session.
type Streams = tokio::sync::Mutex<mpsc::Receiver<noq::RecvStream>>;

/// A WebTransport session that a client requests.
pub(crate) struct Asked {
    connection: noq::Connection,
    control: (noq::SendStream, noq::RecvStream),
    send: noq::SendStream,
    recv: noq::RecvStream,
    /// The request.
    pub(crate) request: ConnectRequest,
}

/// The maximum number of streams of HTTP/3 besides those of the session.
const KEPT_STREAMS: usize = 8;

/// The time within which the header of a stream follows its first packet.
const HEADER: Duration = Duration::from_secs(2);

/// The time within which a client closes the connection of a session that was closed.
const CLOSING: Duration = Duration::from_millis(500);

impl Asked {
    /// Waits for the request of a client whose connection has the protocol [`ALPN`].
    pub(crate) async fn accept(connection: noq::Connection) -> Result<Self, TransportError> {
        let control = exchange_settings(&connection).await?;
        let (send, mut recv) = connection.accept_bi().await?;
        let request = ConnectRequest::read(&mut recv).await.map_err(wrong)?;
        Ok(Asked {
            connection,
            control,
            send,
            recv,
            request,
        })
    }

    /// Returns the path and the query of the URL.
    pub(crate) fn target(&self) -> String {
        let url = &self.request.url;
        format!("{}?{}", url.path(), url.query().unwrap_or_default())
    }

    /// Opens the session with one of the protocols that the client offers.
    pub(crate) async fn accept_with(mut self, protocol: &str) -> Result<Transport, TransportError> {
        let response = ConnectResponse::OK.with_protocol(protocol);
        response.write(&mut self.send).await.map_err(wrong)?;
        let streams = (self.send, self.recv);
        let http = Http::new(&self.connection, self.control, streams);
        Ok(Transport::new(self.connection, Some(http), protocol))
    }

    /// Refuses the session.
    pub(crate) async fn refuse(mut self, status: http::StatusCode) {
        let response = ConnectResponse::new(status);
        if response.write(&mut self.send).await.is_ok() && self.send.finish().is_ok() {
            // Until the client has read it.
            let _ = timeout(CLOSING, self.send.stopped()).await;
        }
    }
}

impl Transport {
    /// Requests a session of WebTransport from the server of a connection with the protocol `h3`.
    ///
    /// # Errors
    /// If it has none of the protocols, or refuses.
    pub async fn web_transport(
        connection: noq::Connection,
        request: ConnectRequest,
    ) -> Result<Self, TransportError> {
        let control = exchange_settings(&connection).await?;
        let (mut send, mut recv) = connection.open_bi().await?;
        request.write(&mut send).await.map_err(wrong)?;
        let response = ConnectResponse::read(&mut recv).await.map_err(wrong)?;
        if response.status != http::StatusCode::OK {
            return Err(wrong(response.status));
        }
        let protocol = response
            .protocol
            .ok_or_else(|| wrong("no protocol was chosen"))?;
        let http = Http::new(&connection, control, (send, recv));
        Ok(Transport::new(connection, Some(http), &protocol))
    }
}

async fn exchange_settings(
    connection: &noq::Connection,
) -> Result<(noq::SendStream, noq::RecvStream), TransportError> {
    let ours = async {
        let mut settings = Settings::default();
        settings.enable_webtransport(1);
        let mut stream = connection.open_uni().await?;
        settings.write(&mut stream).await.map_err(wrong)?;
        Ok(stream)
    };
    let theirs = async {
        let mut stream = connection.accept_uni().await?;
        let settings = Settings::read(&mut stream).await.map_err(wrong)?;
        match settings.supports_webtransport() {
            0 => Err(wrong("the peer does not support it")),
            _ => Ok(stream),
        }
    };
    tokio::try_join!(ours, theirs)
}

fn wrong(error: impl Display) -> TransportError {
    TransportError::Http(error.to_string())
}

fn code(code: u32) -> Code {
    Code::from_u64(error_to_http3(code)).expect("codes of HTTP/3 have 62 bits")
}

impl Http {
    fn new(
        connection: &noq::Connection,
        (control, their_control): (noq::SendStream, noq::RecvStream),
        (connect, requests): (noq::SendStream, noq::RecvStream),
    ) -> Self {
        let session = VarInt::try_from(Code::from(connect.id()).into_inner());
        let session = session.expect("a stream has an identifier of 62 bits");
        let mut datagram_header = Vec::new();
        session.encode(&mut datagram_header);
        let header = |kind: VarInt| {
            let mut header = Vec::new();
            kind.encode(&mut header);
            session.encode(&mut header);
            header
        };
        let (accepted, streams) = mpsc::channel(1);
        let accepting = accept_streams(connection.clone(), session, their_control, accepted);
        let closed = Arc::default();
        let reading = read_capsules(connection.clone(), requests, Arc::clone(&closed));
        Http {
            session,
            uni_header: header(StreamUni::WEBTRANSPORT.0),
            bi_header: header(Frame::WEBTRANSPORT.0),
            datagram_header,
            connect: Mutex::new(Some(connect)),
            streams: Streams::new(streams),
            _control: control,
            closed,
            reader: tokio::spawn(reading).abort_handle(),
            acceptor: tokio::spawn(accepting).abort_handle(),
        }
    }

    pub(crate) async fn accept_uni(
        &self,
        connection: &noq::Connection,
    ) -> Result<noq::RecvStream, TransportError> {
        let next = self.streams.lock().await.recv().await;
        match next {
            Some(stream) => Ok(stream),
            None => Err(connection.closed().await.into()),
        }
    }

    pub(crate) async fn accept_bi(
        &self,
        connection: &noq::Connection,
    ) -> Result<(noq::SendStream, noq::RecvStream), TransportError> {
        loop {
            let (send, mut recv) = connection.accept_bi().await?;
            if read_varint(&mut recv).await == Some(Frame::WEBTRANSPORT.0)
                && read_varint(&mut recv).await == Some(self.session)
            {
                return Ok((send, recv));
            }
        }
    }

    pub(crate) async fn begin_uni(
        &self,
        stream: &mut noq::SendStream,
    ) -> Result<(), TransportError> {
        begin(stream, &self.uni_header).await
    }

    pub(crate) async fn begin_bi(
        &self,
        stream: &mut noq::SendStream,
    ) -> Result<(), TransportError> {
        begin(stream, &self.bi_header).await
    }

    pub(crate) fn datagram(&self, payload: &[u8]) -> Bytes {
        let mut datagram = BytesMut::from(&self.datagram_header[..]);
        datagram.extend_from_slice(payload);
        datagram.freeze()
    }

    /// Returns the payload of a datagram of the session.
    pub(crate) fn payload(&self, mut datagram: Bytes) -> Option<Bytes> {
        let session = VarInt::decode(&mut datagram).ok()?;
        (session == self.session).then(|| datagram.copy_to_bytes(datagram.remaining()))
    }

    pub(crate) fn datagram_header(&self) -> usize {
        self.datagram_header.len()
    }

    pub(crate) fn closed_by_peer(&self) -> Option<(u32, String)> {
        self.closed.lock().clone()
    }

    /// Closes the session, and the connection when the peer has had the time to read why.
    pub(crate) fn close(&self, connection: &noq::Connection, number: u32, reason: &str) {
        let Some(mut connect) = self.connect.lock().take() else {
            return;
        };
        let capsule = Capsule::CloseWebTransportSession {
            code: number,
            reason: reason.to_owned(),
        };
        let connection = connection.clone();
        tokio::spawn(async move {
            let closing = async {
                let mut payload = Vec::new();
                capsule.encode(&mut payload);
                let mut frame = Vec::new();
                Frame::DATA.encode(&mut frame);
                VarInt::try_from(payload.len()).ok()?.encode(&mut frame);
                frame.extend(payload);
                connect.write_all(&frame).await.ok()?;
                connect.finish().ok()?;
                Some(connection.closed().await)
            };
            let _ = timeout(CLOSING, closing).await;
            connection.close(code(number), b"");
        });
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.reader.abort();
        self.acceptor.abort();
    }
}

/// Accepts streams of one direction until the connection is closed, and passes on those of the session.
///
/// Each stream is read by a task of its own without a time limit: a stream of QPACK is opened before a later
/// stream, but has no header until it is used. Streams of HTTP/3 and QPACK must not be closed before the
/// connection.
async fn accept_streams(
    connection: noq::Connection,
    session: VarInt,
    control: noq::RecvStream,
    accepted: mpsc::Sender<noq::RecvStream>,
) {
    let mut waiting = JoinSet::new();
    let mut kept = vec![control];
    loop {
        tokio::select! {
            opened = connection.accept_uni() => {
                let Ok(stream) = opened else { return };
                waiting.spawn(place(stream, session));
            }
            Some(Ok((stream, place))) = waiting.join_next() => match place {
                Place::Session => {
                    if accepted.send(stream).await.is_err() {
                        return;
                    }
                }
                Place::Http if kept.len() < KEPT_STREAMS => kept.push(stream),
                Place::Http | Place::Other => {}
            },
        }
    }
}

/// Where a stream belongs.
enum Place {
    Session,
    /// HTTP/3 and QPACK.
    Http,
    Other,
}

async fn place(mut stream: noq::RecvStream, session: VarInt) -> (noq::RecvStream, Place) {
    let place = match VarInt::read(&mut stream).await {
        Ok(kind) if kind == StreamUni::WEBTRANSPORT.0 => match VarInt::read(&mut stream).await {
            Ok(of) if of == session => Place::Session,
            _ => Place::Other,
        },
        Ok(_) => Place::Http,
        Err(_) => Place::Other,
    };
    (stream, place)
}

/// Closes the connection when the peer closes the session.
async fn read_capsules(
    connection: noq::Connection,
    stream: noq::RecvStream,
    closed: Arc<Mutex<Option<(u32, String)>>>,
) {
    let mut capsules = Http3CapsuleReader::new(stream);
    let mut number = 0;
    while let Ok(Some(capsule)) = capsules.read().await {
        if let Capsule::CloseWebTransportSession { code, reason } = capsule {
            number = code;
            *closed.lock() = Some((code, reason));
            break;
        }
    }
    connection.close(code(number), b"");
}

/// Writes the header of a stream, before data of lower priority.
async fn begin(stream: &mut noq::SendStream, header: &[u8]) -> Result<(), TransportError> {
    let lost = |_| TransportError::StreamEnded;
    // They fail if the stream has ended, and so does writing.
    let _ = stream.set_priority(i32::MAX);
    stream.write_all(header).await.map_err(lost)?;
    let _ = stream.set_priority(0);
    Ok(())
}

async fn read_varint(stream: &mut noq::RecvStream) -> Option<VarInt> {
    let read = timeout(HEADER, VarInt::read(stream)).await;
    read.ok()?.ok()
}
