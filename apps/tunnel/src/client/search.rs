//! Which server is the nearest.

use super::dial::{Dialed, Dialer};
use super::uplinks::Uplink;
use crate::config::ServerEntry;
use crate::join::CloseCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// How long servers that may be nearer get after the first one has answered.
const GRACE: Duration = Duration::from_millis(100);

/// A server that answers, with the connection by which it did.
pub(crate) type Found = Option<(Dialed, ServerEntry)>;

/// What a search came to; waits as long as there is none.
pub(crate) async fn finished(search: &mut Option<JoinHandle<Found>>) -> Found {
    match search {
        Some(search) => search.await.unwrap_or(None),
        None => std::future::pending().await,
    }
}

/// Tries all servers over all uplinks at once. Of those that answer about as soon as the first one, the one with the
/// lowest round-trip time is taken.
pub(crate) async fn search(
    dialer: Arc<Dialer>,
    uplinks: Vec<Uplink>,
    servers: Vec<ServerEntry>,
) -> Found {
    // All at once, so that none is late because others were let out before it. If it fails, each attempt says so.
    let _ = dialer.let_out(&servers).await;
    let mut attempts = JoinSet::new();
    for server in servers {
        for uplink in &uplinks {
            let (dialer, uplink, server) = (Arc::clone(&dialer), uplink.clone(), server.clone());
            attempts.spawn(async move {
                let dialed = dialer.dial(&uplink, &server).await;
                let complain = |error: &_| {
                    dialer
                        .complaints
                        .note(&uplink.interface, &server.name, error)
                };
                dialed
                    .inspect_err(complain)
                    .map(|dialed| (dialed, server.clone()))
            });
        }
    }
    let rtt = |dialed: &Dialed| {
        dialed
            .connection
            .rtt(noq::PathId::ZERO)
            .unwrap_or(Duration::MAX)
    };
    let mut best: Found = None;
    loop {
        let answer = match &best {
            None => attempts.join_next().await,
            Some(_) => timeout(GRACE, attempts.join_next()).await.unwrap_or(None),
        };
        let Some(answer) = answer else { return best };
        let Ok(Ok(found)) = answer else { continue };
        let other = match best {
            Some(known) if rtt(&known.0) <= rtt(&found.0) => {
                best = Some(known);
                Some(found)
            }
            known => {
                best = Some(found);
                known
            }
        };
        if let Some((dialed, _)) = other {
            CloseCode::Left.close(&dialed.connection);
        }
    }
}
