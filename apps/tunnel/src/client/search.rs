//! Searches for the nearest server.

use super::dial::{Dialed, Dialer};
use super::uplinks::Uplink;
use crate::config::ServerEntry;
use crate::join::CloseCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// The time that nearer servers get to answer after the first one.
const GRACE: Duration = Duration::from_millis(100);

/// A server that answered, with the connection over which it did.
pub(crate) type Found = Option<(Dialed, ServerEntry)>;

/// Waits for the result of a search; pending while there is no search.
pub(crate) async fn finished(search: &mut Option<JoinHandle<Found>>) -> Found {
    match search {
        Some(search) => search.await.unwrap_or(None),
        None => std::future::pending().await,
    }
}

/// Connects to all servers over all uplinks at once. Of the servers that answer within [`GRACE`] of
/// each other, the one with the lowest round-trip time is chosen.
pub(crate) async fn search(
    dialer: Arc<Dialer>,
    uplinks: Vec<Uplink>,
    servers: Vec<ServerEntry>,
) -> Found {
    // Allow all servers at once, so that none of them is delayed by the rule update for another.
    // Each attempt reports a failure itself.
    let _ = dialer.allow_servers(&servers).await;
    let mut attempts = JoinSet::new();
    for server in servers {
        for uplink in &uplinks {
            let (dialer, uplink, server) = (Arc::clone(&dialer), uplink.clone(), server.clone());
            attempts.spawn(async move {
                let dialed = dialer.dial(&uplink, &server).await;
                let record = |error: &_| {
                    dialer
                        .dial_errors
                        .record(&uplink.interface, &server.name, error)
                };
                dialed
                    .inspect_err(record)
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
