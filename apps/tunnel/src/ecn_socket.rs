//! A UDP socket that notes which datagrams the network has marked (ECN), before the library gets
//! them.

use hawser_quic::MarkedDatagrams;
use noq::udp::{EcnCodepoint, RecvMeta};
use noq::{AsyncUdpSocket, Runtime, TokioRuntime, UdpSender};
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

#[derive(Debug)]
pub(crate) struct EcnSocket {
    socket: Box<dyn AsyncUdpSocket>,
    marked: Arc<MarkedDatagrams>,
}

impl EcnSocket {
    /// Wraps a socket whose marked datagrams are noted in `marked`.
    pub(crate) fn new(socket: UdpSocket, marked: &Arc<MarkedDatagrams>) -> io::Result<EcnSocket> {
        Ok(EcnSocket {
            socket: TokioRuntime.wrap_udp_socket(socket)?,
            marked: Arc::clone(marked),
        })
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
        let received = metas.iter().zip(buffers).take(count);
        for (meta, buffer) in received.filter(|(meta, _)| meta.ecn == Some(EcnCodepoint::Ce)) {
            // Datagrams that the kernel joined have the same mark.
            let datagrams = buffer[..meta.len].chunks(meta.stride.max(1));
            datagrams.for_each(|datagram| self.marked.note(datagram));
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
