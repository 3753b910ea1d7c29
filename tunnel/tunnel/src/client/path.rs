//! The notices of a path's first stream, and its end.

use crate::join;
use hawser_uplinks::{ConnectionId, Notice};
use noq::{Connection, ConnectionError, RecvStream, SendStream};
use tokio::sync::{mpsc, watch};

/// A path's connection, and the first stream of it.
pub(super) struct Stream {
    pub(super) connection: Connection,
    pub(super) send: SendStream,
    pub(super) receive: RecvStream,
    /// The standby state of the path, of which the server is notified.
    pub(super) standby: watch::Receiver<bool>,
    /// The size of UDP payloads above which none arrives in either direction any more.
    pub(super) narrowed: watch::Sender<Option<u16>>,
}

/// Exchanges notices with the server until the connection closes; returns the reason.
pub(super) async fn serve(
    id: ConnectionId,
    stream: Stream,
    notices: mpsc::Sender<Notice>,
) -> ConnectionError {
    tokio::select! {
        reason = stream.connection.closed() => reason,
        never = receive(id, (stream.receive, stream.narrowed), notices) => match never {},
        never = send_standby(stream.send, stream.standby) => match never {},
    }
}

async fn receive(
    id: ConnectionId,
    (mut stream, narrowed): (RecvStream, watch::Sender<Option<u16>>),
    notices: mpsc::Sender<Notice>,
) -> std::convert::Infallible {
    loop {
        let notice = match join::receive(&mut stream).await {
            Ok(join::Notice::Draining) => Notice::Draining(id),
            Ok(join::Notice::Backlog(backlog)) => Notice::Backlog(id, backlog),
            Ok(join::Notice::Narrow(payload)) => {
                narrowed.send_replace(Some(payload));
                continue;
            }
            // The stream was closed, or the notice was not valid: ignore further ones.
            Ok(join::Notice::Standby(_)) | Err(_) => break std::future::pending().await,
        };
        // The receiver exists as long as the client.
        let _ = notices.send(notice).await;
    }
}

async fn send_standby(
    mut stream: SendStream,
    mut standby: watch::Receiver<bool>,
) -> std::convert::Infallible {
    while standby.changed().await.is_ok() {
        let standby = *standby.borrow_and_update();
        // Fails only if the connection has just closed.
        let _ = join::send(&mut stream, &join::Notice::Standby(standby)).await;
    }
    std::future::pending().await
}
