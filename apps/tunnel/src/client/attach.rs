//! The uplinks of a session. Each has a connection that is one of its paths, and that is
//! re-established when it closes or falls silent.

use super::dial::{Attached, Dialer, Refused, address_pair};
use super::indices::{Index, Indices};
use super::uplinks::Uplink;
use crate::config::ServerEntry;
use crate::join::{self, CloseCode, Notice, PathNumber, Refusal, Secret, SessionId};
use crate::session::{Command, Handle};
use anyhow::{Context, Result};
use hawser_client::Backoff;
use hawser_units::{MAX_PATHS, PathId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::{interval, timeout};
use tracing::{debug, info};

/// The time without an acknowledgement after which another connection is tried besides the silent
/// one: a NAT may have lost its mapping.
const REDIAL: Duration = Duration::from_secs(3);

/// The interval at which that is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The initial and the largest pause between attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// The state of a session that its uplinks share.
pub(crate) struct Membership {
    pub(crate) server: ServerEntry,
    pub(crate) session: SessionId,
    pub(crate) secret: Secret,
    pub(crate) handle: Handle,
    /// Reports that the session cannot continue.
    pub(crate) session_loss: mpsc::Sender<SessionLoss>,
    indices: Indices,
    /// The highest cost class in use.
    pub(crate) level: AtomicU8,
    /// Whether packets wait for a path at the server.
    pub(crate) server_backlog: AtomicBool,
}

/// The reason why a session cannot continue at its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionLoss {
    /// The server no longer knows the session.
    UnknownSession,
    /// The server is shutting down.
    Draining,
    /// Another client with the same name has taken over the session.
    Superseded,
}

impl fmt::Display for SessionLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionLoss::UnknownSession => "the server no longer knows the session",
            SessionLoss::Draining => "the server is shutting down",
            SessionLoss::Superseded => {
                "another client with this name has opened a session: each client needs its own name"
            }
        })
    }
}

impl Membership {
    pub(crate) fn new(
        server: ServerEntry,
        session: SessionId,
        secret: Secret,
        handle: Handle,
        session_loss: mpsc::Sender<SessionLoss>,
        first: PathId,
    ) -> Membership {
        let (indices, level, server_backlog) = (
            Indices::new(first),
            AtomicU8::new(0),
            AtomicBool::new(false),
        );
        Membership {
            server,
            session,
            secret,
            handle,
            session_loss,
            indices,
            level,
            server_backlog,
        }
    }
}

/// A path of the session with its index.
type Member = (Attached, Arc<Index>);

/// Keeps `uplink` in the session until its sender is dropped. `first` is its existing connection,
/// if any.
pub(crate) async fn run_uplink(
    dialer: Arc<Dialer>,
    membership: Arc<Membership>,
    mut uplink: watch::Receiver<Uplink>,
    first: Option<Attached>,
) {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut attached = first.map(|path| {
        let index = membership.indices.first(path.number.index);
        (path, index)
    });
    // A closed channel means that the uplink was removed.
    while uplink.has_changed().is_ok() {
        let now = uplink.borrow_and_update().clone();
        let path = match attached.take() {
            Some(path) => path,
            None => match join(&dialer, &membership, &now, None).await {
                Ok(path) => path,
                Err(error) => {
                    if record_failure(&dialer, &membership, &now, &error) {
                        return;
                    }
                    tokio::select! {
                        () = backoff.pause() => {}
                        changed = uplink.changed() => if changed.is_err() { return },
                    }
                    continue;
                }
            },
        };
        backoff.reset();
        attached = serve_path(&dialer, &membership, &mut uplink, path).await;
    }
}

/// Records the error; returns whether the session is lost.
fn record_failure(
    dialer: &Dialer,
    membership: &Membership,
    uplink: &Uplink,
    error: &anyhow::Error,
) -> bool {
    let reason = error
        .downcast_ref::<Refused>()
        .map(|refused| refused.reason);
    if reason == Some(Refusal::UnknownSession) {
        // Not needed if the receiver has gone, or has other session losses to handle.
        let _ = membership
            .session_loss
            .try_send(SessionLoss::UnknownSession);
        return true;
    }
    dialer
        .dial_errors
        .record(&uplink.interface, &membership.server.name, error);
    false
}

/// Connects and joins the session as another path. If no index is free, it takes that of `own` and
/// replaces the path there.
async fn join(
    dialer: &Dialer,
    membership: &Membership,
    uplink: &Uplink,
    own: Option<&Arc<Index>>,
) -> Result<Member> {
    let dialed = dialer.dial(uplink, &membership.server).await?;
    let standby = uplink.cost > membership.level.load(Relaxed);
    let index = membership.indices.take().or_else(|| own.cloned());
    let index = index.with_context(|| {
        format!("the session already has {MAX_PATHS} paths, which is the limit")
    })?;
    let number = PathNumber {
        index: index.id,
        standby,
    };
    Ok((
        dialed
            .join(membership.session, &membership.secret, number)
            .await?,
        index,
    ))
}

/// Serves a path until it closes; returns its replacement, if any.
async fn serve_path(
    dialer: &Dialer,
    membership: &Membership,
    uplink: &mut watch::Receiver<Uplink>,
    (path, index): Member,
) -> Option<Member> {
    let (standby, mut standby_changes) = watch::channel(path.number.standby);
    membership
        .handle
        .send_command(Command::Add(path.number, path.link(standby)))
        .await;
    let Attached {
        uplink: mut known,
        endpoint,
        connection,
        live,
        mut send,
        mut receive,
        number,
        ..
    } = path;
    info!(
        interface = known.interface,
        server = membership.server.name,
        "uplink connected"
    );
    dialer.dial_errors.clear(&known.interface);
    let mut poll = interval(POLL_INTERVAL);
    let mut redial_after = REDIAL;
    let receive_notices = async {
        loop {
            match join::receive(&mut receive).await {
                // Not needed if the receiver has gone, or has other session losses to handle.
                Ok(Notice::Draining) => _ = membership.session_loss.try_send(SessionLoss::Draining),
                Ok(Notice::Backlog(server_backlog)) => {
                    membership.server_backlog.store(server_backlog, Relaxed)
                }
                // The stream was closed, or the notice was not valid: ignore further ones.
                Ok(Notice::Standby(_)) | Err(_) => std::future::pending::<()>().await,
            }
        }
    };
    tokio::pin!(receive_notices);
    let successor = loop {
        tokio::select! {
            reason = connection.closed() => {
                info!(interface = known.interface, "uplink disconnected: {reason}");
                if CloseCode::Superseded.is_reason_of(&reason) {
                    let _ = membership.session_loss.try_send(SessionLoss::Superseded);
                }
                break None;
            }
            () = &mut receive_notices => {}
            Ok(()) = standby_changes.changed() => {
                let waits = *standby_changes.borrow_and_update();
                // Fails only if the connection has just closed.
                let _ = join::send(&mut send, &Notice::Standby(waits)).await;
            }
            changed = uplink.changed() => {
                if changed.is_err() {
                    CloseCode::Left.close(&connection);
                    break None;
                }
                let now = uplink.borrow_and_update().clone();
                if let Err(error) = update_address(dialer, &endpoint, &membership.server, &known, &now) {
                    info!(interface = now.interface, "reconnecting the uplink: {error:#}");
                    CloseCode::Replaced.close(&connection);
                    break None;
                }
                known = now;
            }
            _ = poll.tick() => {
                let unacknowledged = live.figures(Instant::now()).unacknowledged;
                if unacknowledged < REDIAL {
                    redial_after = REDIAL;
                } else if unacknowledged >= redial_after {
                    redial_after *= 2;
                    debug!(interface = known.interface, "path silent: trying another connection");
                    match timeout(REDIAL, join(dialer, membership, &known, Some(&index))).await {
                        Ok(Ok(path)) => {
                            CloseCode::Replaced.close(&connection);
                            break Some(path);
                        }
                        Ok(Err(error)) if record_failure(dialer, membership, &known, &error) => break None,
                        _ => {}
                    }
                }
            }
        }
    };
    membership
        .handle
        .send_command(Command::Remove(number.index, connection.stable_id()))
        .await;
    // No notice can arrive on this path any more. Another path that has been on standby reports the
    // next change.
    membership.server_backlog.store(false, Relaxed);
    successor
}

/// Moves the connection to the current address of the uplink. Fails if it needs a new connection.
fn update_address(
    dialer: &Dialer,
    endpoint: &noq::Endpoint,
    server: &ServerEntry,
    before: &Uplink,
    now: &Uplink,
) -> Result<()> {
    let ((old, old_remote), (own, remote)) =
        (address_pair(before, server)?, address_pair(now, server)?);
    anyhow::ensure!(old_remote == remote, "the address family has changed");
    if old != own {
        info!(interface = now.interface, %own, "uplink address changed");
        endpoint.rebind(dialer.socket(own, &now.interface)?)?;
    }
    Ok(())
}
