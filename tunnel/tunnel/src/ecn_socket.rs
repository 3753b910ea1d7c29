//! A socket whose marked datagrams are noted before the library gets them.

use hawser_quic::MarkedDatagrams;
use noq::udp::{EcnCodepoint, RecvMeta};
use noq::{AsyncUdpSocket, Runtime, TokioRuntime, UdpSender};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A socket that notes which datagrams the network has marked (ECN).
#[derive(Debug)]
pub(crate) struct EcnSocket {
    socket: Box<dyn AsyncUdpSocket>,
    marked: Arc<MarkedDatagrams>,
}

impl EcnSocket {
    pub(crate) fn new(socket: UdpSocket, marked: Arc<MarkedDatagrams>) -> io::Result<Self> {
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(EcnSocket { socket, marked })
    }
}

impl AsyncUdpSocket for EcnSocket {
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
            // Datagrams that the kernel joined have the same ECN field. The stride of an empty one is 0.
            if meta.ecn == Some(EcnCodepoint::Ce) {
                let datagrams = buffer[..meta.len].chunks(meta.stride.max(1));
                datagrams.for_each(|datagram| self.marked.note(datagram));
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
