//! Datagrams over TCP, for networks that block UDP. A stream carries what would be the payloads of
//! UDP packets, each after its length: two bytes, the higher one first.

use bytes::{BufMut, Bytes, BytesMut};
use noq::udp::{RecvMeta, Transmit};
use noq::{AsyncUdpSocket, UdpSender};
use parking_lot::Mutex;
use socket2::{Protocol, Socket, Type};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// The protocol's name in the TLS handshake.
pub(crate) const PROTOCOL: &[u8] = b"hawser-tunnel-tcp";

/// The largest datagram, in bytes: the largest outer packet that a configuration allows.
const MAX_DATAGRAM: usize = 9000;

/// The datagrams that wait for a stream. Further ones are dropped, as in the queue of a router,
/// which QUIC counts as lost.
const QUEUE: usize = 128;

/// The received datagrams that wait for the endpoint. While there are as many, streams wait.
const RECEIVE_QUEUE: usize = 256;

/// The datagrams that are written at once.
const BATCH: usize = 32;

/// The unsent bytes of a stream that the kernel accepts. More would only wait there.
const MAX_UNSENT: u32 = 32 << 10;

/// The time without a datagram after which a stream ends: longer than QUIC keeps a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);

/// The queue of each stream, by the address of its peer.
type Queues = Arc<Mutex<HashMap<SocketAddr, mpsc::Sender<Bytes>>>>;

/// A socket of a QUIC endpoint whose datagrams are carried by streams.
#[derive(Debug)]
pub(crate) struct TcpSocket {
    own: SocketAddr,
    received: mpsc::Receiver<(SocketAddr, Bytes)>,
    queues: Queues,
}

/// The streams of a socket.
#[derive(Debug, Clone)]
pub(crate) struct Streams {
    received: mpsc::Sender<(SocketAddr, Bytes)>,
    queues: Queues,
}

impl TcpSocket {
    /// Creates a socket with this address of its own.
    pub(crate) fn new(own: SocketAddr) -> (TcpSocket, Streams) {
        let (sender, received) = mpsc::channel(RECEIVE_QUEUE);
        let queues = Queues::default();
        let streams = Streams {
            received: sender,
            queues: Arc::clone(&queues),
        };
        let socket = TcpSocket {
            own,
            received,
            queues,
        };
        (socket, streams)
    }
}

impl AsyncUdpSocket for TcpSocket {
    fn create_sender(&self) -> Pin<Box<dyn UdpSender>> {
        Box::pin(Sender(Arc::clone(&self.queues)))
    }

    fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let (peer, datagram) = match self.received.poll_recv(context) {
                Poll::Ready(Some(received)) => received,
                _ if count > 0 => break,
                // All streams have ended. Their user closes the connections in them.
                _ => return Poll::Pending,
            };
            // The endpoint drops what does not fit its buffer, as it drops a packet that is cut off.
            let len = datagram.len().min(buffer.len());
            buffer[..len].copy_from_slice(&datagram[..len]);
            *meta = RecvMeta::default();
            (meta.addr, meta.len, meta.stride) = (peer, len, len);
            count += 1;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.own)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Sender(Queues);

impl UdpSender for Sender {
    fn poll_send(
        self: Pin<&mut Self>,
        transmit: &Transmit<'_>,
        _: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(queue) = self.0.lock().get(&transmit.destination) {
            let size = transmit.segment_size.unwrap_or(transmit.contents.len());
            for datagram in transmit.contents.chunks(size.max(1)) {
                // Fails if the queue is full, or if the stream has ended.
                let _ = queue.try_send(Bytes::copy_from_slice(datagram));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Streams {
    /// Returns whether there is a stream to this peer.
    pub(crate) fn have(&self, peer: SocketAddr) -> bool {
        self.queues.lock().contains_key(&peer)
    }

    /// Returns a future that exchanges datagrams with a peer until the stream ends, and then returns
    /// why. Datagrams to the peer are queued from the call on.
    pub(crate) fn carry(
        self,
        peer: SocketAddr,
        stream: impl AsyncRead + AsyncWrite,
    ) -> impl Future<Output = io::Error> {
        let registered = self.register(peer);
        async move {
            let (_registered, queue) = match registered {
                Ok(registered) => registered,
                Err(error) => return error,
            };
            let (reader, writer) = tokio::io::split(stream);
            let (reader, writer) = (pin!(reader), pin!(writer));
            let ended = tokio::select! {
                ended = receive(reader, peer, &self.received) => ended,
                ended = send(writer, queue) => ended,
                () = self.received.closed() => Ok(()),
            };
            ended
                .err()
                .unwrap_or_else(|| io::ErrorKind::NotConnected.into())
        }
    }

    /// Adds the queue of a stream.
    fn register(&self, peer: SocketAddr) -> io::Result<(Registered, mpsc::Receiver<Bytes>)> {
        let (sender, queue) = mpsc::channel(QUEUE);
        match self.queues.lock().entry(peer) {
            Entry::Vacant(entry) => _ = entry.insert(sender),
            // Another stream to another address of the server, by the same address translation.
            Entry::Occupied(_) => return Err(io::ErrorKind::AddrInUse.into()),
        }
        let queues = Arc::clone(&self.queues);
        Ok((Registered { queues, peer }, queue))
    }
}

/// The entry of a stream, which ends with this value.
struct Registered {
    queues: Queues,
    peer: SocketAddr,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.queues.lock().remove(&self.peer);
    }
}

/// Passes on the datagrams of a stream.
async fn receive(
    stream: impl AsyncRead + Unpin,
    peer: SocketAddr,
    to: &mpsc::Sender<(SocketAddr, Bytes)>,
) -> io::Result<()> {
    let mut stream = BufReader::with_capacity(BATCH * 2048, stream);
    loop {
        let datagram = timeout(IDLE_TIMEOUT, read_datagram(&mut stream)).await??;
        if to.send((peer, datagram)).await.is_err() {
            return Ok(());
        }
    }
}

async fn read_datagram(mut stream: impl AsyncRead + Unpin) -> io::Result<Bytes> {
    let len = usize::from(stream.read_u16().await?);
    if len == 0 || len > MAX_DATAGRAM {
        let message = format!("a datagram of {len} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let mut datagram = BytesMut::zeroed(len);
    stream.read_exact(&mut datagram).await?;
    Ok(datagram.freeze())
}

/// Writes the datagrams of a queue to a stream.
async fn send(
    mut stream: impl AsyncWrite + Unpin,
    mut queue: mpsc::Receiver<Bytes>,
) -> io::Result<()> {
    let (mut datagrams, mut bytes) = (Vec::with_capacity(BATCH), BytesMut::new());
    while queue.recv_many(&mut datagrams, BATCH).await > 0 {
        for datagram in datagrams.drain(..) {
            // QUIC's datagrams are much smaller than that.
            let Ok(len) = u16::try_from(datagram.len()) else {
                continue;
            };
            bytes.put_u16(len);
            bytes.put(datagram);
        }
        stream.write_all_buf(&mut bytes).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// Opens a TCP socket bound to `address` and, if given, to `interface`. It does not block.
pub(crate) fn socket(address: SocketAddr, interface: Option<&str>) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking();
    let socket = crate::socket::open(kind, Protocol::TCP, address, interface)?;
    // A server that was restarted gets its port again.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Makes a stream fast for datagrams: none waits for others, and few wait in the kernel.
pub(crate) fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    socket2::SockRef::from(stream).set_tcp_notsent_lowat(MAX_UNSENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    async fn next(socket: &mut TcpSocket) -> io::Result<(SocketAddr, Vec<u8>)> {
        let mut bytes = vec![0; 2048];
        let mut meta = [RecvMeta::default()];
        let mut poll = |context: &mut Context<'_>| {
            socket.poll_recv(context, &mut [IoSliceMut::new(&mut bytes)], &mut meta)
        };
        poll_fn(&mut poll).await?;
        bytes.truncate(meta[0].len);
        Ok((meta[0].addr, bytes))
    }

    async fn send_to(socket: &TcpSocket, destination: SocketAddr, datagram: &[u8]) {
        let transmit = Transmit {
            destination,
            ecn: None,
            contents: datagram,
            segment_size: None,
            src_ip: None,
        };
        let mut sender = socket.create_sender();
        poll_fn(|context| sender.as_mut().poll_send(&transmit, context))
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn datagrams_arrive_whole_and_by_peer() {
        let (mut one, streams) = TcpSocket::new(address(1));
        let (mut other, from_other) = TcpSocket::new(address(2));
        // Smaller than a datagram, so that it arrives in pieces.
        let (here, there) = tokio::io::duplex(100);
        let carried = tokio::spawn(streams.clone().carry(address(2), here));
        tokio::spawn(from_other.carry(address(1), there));
        for datagram in [vec![1], vec![2; 1472], vec![3; 700]] {
            send_to(&other, address(1), &datagram).await;
            assert_eq!(next(&mut one).await.unwrap(), (address(2), datagram));
        }
        send_to(&one, address(2), b"answer").await;
        let answer = next(&mut other).await.unwrap();
        assert_eq!(answer, (address(1), b"answer".to_vec()));
        send_to(&one, address(3), b"nobody").await;

        drop(other);
        carried.await.unwrap();
        assert!(!streams.have(address(2)));
    }

    #[tokio::test]
    async fn a_stream_with_an_invalid_length_ends() {
        for length in [0, MAX_DATAGRAM as u16 + 1] {
            let (_socket, streams) = TcpSocket::new(address(1));
            let (here, mut there) = tokio::io::duplex(100);
            there.write_u16(length).await.unwrap();
            let ended = streams.carry(address(2), here).await;
            assert_eq!(ended.kind(), io::ErrorKind::InvalidData, "{length}");
        }
    }

    #[tokio::test]
    async fn a_full_queue_drops_datagrams_and_keeps_the_stream() {
        let (mut one, streams) = TcpSocket::new(address(1));
        let (other, from_other) = TcpSocket::new(address(2));
        let (here, there) = tokio::io::duplex(100);
        tokio::spawn(from_other.carry(address(1), there));
        for number in 0..2 * QUEUE as u16 {
            send_to(&other, address(1), &number.to_be_bytes()).await;
        }
        tokio::spawn(streams.carry(address(2), here));
        for number in 0..QUEUE as u16 {
            let (_, datagram) = next(&mut one).await.unwrap();
            assert_eq!(datagram, number.to_be_bytes());
        }
        send_to(&other, address(1), b"later").await;
        assert_eq!(next(&mut one).await.unwrap().1, b"later");
    }
}
