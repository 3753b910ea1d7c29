use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The bytes that a client may send beyond those that it takes.
const AHEAD: usize = 64 << 10;

/// A connection that fails if its client sends on and takes nothing. QMux keeps an answer to each ping until it is taken;
/// viewers send far less than they take.
pub(super) struct Balanced<C> {
    connection: C,
    /// The bytes that the client may still send before it takes some.
    left: usize,
}

impl<C> Balanced<C> {
    pub(super) const fn new(connection: C) -> Self {
        Balanced {
            connection,
            left: AHEAD,
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Balanced<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.connection).poll_read(context, buffer))?;
        let left = self.left.checked_sub(buffer.filled().len() - before);
        let refused = || io::Error::other("the client sends much and takes nothing");
        self.left = left.ok_or_else(refused)?;
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Balanced<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = ready!(Pin::new(&mut self.connection).poll_write(context, bytes))?;
        self.left = (self.left + taken).min(AHEAD);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test]
    async fn a_client_that_takes_nothing_may_send_a_little() {
        let (ours, mut client) = duplex(4 * AHEAD);
        let mut ours = Balanced::new(ours);
        let mut bytes = vec![0; AHEAD];
        client.write_all(&bytes).await.unwrap();
        ours.read_exact(&mut bytes).await.unwrap();
        // It is sent something.
        ours.write_all(&bytes[..10]).await.unwrap();
        client.write_all(&bytes[..10]).await.unwrap();
        ours.read_exact(&mut bytes[..10]).await.unwrap();
        client.write_all(&bytes[..1]).await.unwrap();
        assert!(ours.read_exact(&mut bytes[..1]).await.is_err());
    }
}
