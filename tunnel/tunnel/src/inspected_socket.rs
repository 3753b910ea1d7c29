//! A socket whose datagrams are inspected before the library gets them.

use hawser_quic::MarkedDatagrams;
use noq::udp::{EcnCodepoint, RecvMeta};
use noq::{AsyncUdpSocket, Runtime, TokioRuntime, UdpSender};
use std::fmt::Debug;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Inspects the datagrams of a socket.
pub(crate) trait Inspector: Debug + Send + Sync + 'static {
    /// Inspects a datagram with its ECN field.
    fn inspect(&self, ecn: Option<EcnCodepoint>, datagram: &[u8]);
}

/// Notes which datagrams the network has marked (ECN).
impl Inspector for Arc<MarkedDatagrams> {
    fn inspect(&self, ecn: Option<EcnCodepoint>, datagram: &[u8]) {
        if ecn == Some(EcnCodepoint::Ce) {
            self.note(datagram);
        }
    }
}

/// A socket with an inspector.
#[derive(Debug)]
pub(crate) struct InspectedSocket<I> {
    socket: Box<dyn AsyncUdpSocket>,
    inspector: I,
}

impl<I: Inspector> InspectedSocket<I> {
    pub(crate) fn new(socket: UdpSocket, inspector: I) -> io::Result<Self> {
        let socket = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(Self::of(socket, inspector))
    }

    pub(crate) fn of(socket: Box<dyn AsyncUdpSocket>, inspector: I) -> Self {
        InspectedSocket { socket, inspector }
    }
}

impl<I: Inspector> AsyncUdpSocket for InspectedSocket<I> {
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
                [] => self.inspector.inspect(meta.ecn, &[]),
                // Datagrams that the kernel joined have the same ECN field.
                datagrams => datagrams
                    .chunks(meta.stride)
                    .for_each(|datagram| self.inspector.inspect(meta.ecn, datagram)),
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
