//! An uplink's part in a session: a connection that is a path of it, made anew when it ends or falls silent.

use super::dial::{Attached, Dialer, Refused, pair};
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

/// For how long a path may be silent before another connection is tried beside it: a NAT may have forgotten it.
const REDIAL: Duration = Duration::from_secs(3);

/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The pauses between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// A session, as its uplinks need to know it.
pub(crate) struct Membership {
    pub(crate) server: ServerEntry,
    pub(crate) session: SessionId,
    pub(crate) secret: Secret,
    pub(crate) handle: Handle,
    /// Where it is heard that the session cannot go on.
    pub(crate) trouble: mpsc::Sender<Trouble>,
    indices: Indices,
    /// The highest class of cost that is in use.
    pub(crate) level: AtomicU8,
    /// Packets wait for a path at the server.
    pub(crate) wanted: AtomicBool,
}

/// Why a session cannot go on at its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server does not know it any more.
    Forgotten,
    /// The server is about to end.
    Draining,
    /// Another client of the same name has taken the session's place.
    Superseded,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Trouble::Forgotten => "the server does not know the session any more",
            Trouble::Draining => "the server is about to end",
            Trouble::Superseded => {
                "another client of this name has opened a session: each needs a name of its own"
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
        trouble: mpsc::Sender<Trouble>,
        first: PathId,
    ) -> Membership {
        let (indices, level, wanted) = (
            Indices::new(first),
            AtomicU8::new(0),
            AtomicBool::new(false),
        );
        Membership {
            server,
            session,
            secret,
            handle,
            trouble,
            indices,
            level,
            wanted,
        }
    }
}

/// A path of the session, and its index.
type Member = (Attached, Arc<Index>);

/// Keeps `uplink` in the session as long as it is told to; `first` is a connection that it is in by already.
pub(crate) async fn keep(
    dialer: Arc<Dialer>,
    membership: Arc<Membership>,
    mut uplink: watch::Receiver<Uplink>,
    first: Option<Attached>,
) {
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
    let mut attached = first.map(|path| {
        let index = membership.indices.first(path.number.index);
        (path, index)
    });
    // The uplink has gone when nobody can tell of it any more.
    while uplink.has_changed().is_ok() {
        let now = uplink.borrow_and_update().clone();
        let path = match attached.take() {
            Some(path) => path,
            None => match join(&dialer, &membership, &now, None).await {
                Ok(path) => path,
                Err(error) => {
                    if complain(&dialer, &membership, &now, &error) {
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
        attached = hold(&dialer, &membership, &mut uplink, path).await;
    }
}

/// Whether there is no sense in going on.
fn complain(
    dialer: &Dialer,
    membership: &Membership,
    uplink: &Uplink,
    error: &anyhow::Error,
) -> bool {
    let reason = error
        .downcast_ref::<Refused>()
        .map(|refused| refused.reason);
    if reason == Some(Refusal::UnknownSession) {
        // A receiver that is gone, or has as much to act upon, does not need it.
        let _ = membership.trouble.try_send(Trouble::Forgotten);
        return true;
    }
    dialer
        .complaints
        .note(&uplink.interface, &membership.server.name, error);
    false
}

/// Makes a connection a path; it takes the place of the one with the index `own` when no other index is free.
async fn join(
    dialer: &Dialer,
    membership: &Membership,
    uplink: &Uplink,
    own: Option<&Arc<Index>>,
) -> Result<Member> {
    let dialed = dialer.dial(uplink, &membership.server).await?;
    let standby = uplink.cost > membership.level.load(Relaxed);
    let index = membership.indices.take().or_else(|| own.cloned());
    let index =
        index.with_context(|| format!("the session has {MAX_PATHS} paths, which is the limit"))?;
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

/// Stays with a path until it ends; returns the one that has taken its place, if there is one.
async fn hold(
    dialer: &Dialer,
    membership: &Membership,
    uplink: &mut watch::Receiver<Uplink>,
    (path, index): Member,
) -> Option<Member> {
    let (standby, mut standby_changes) = watch::channel(path.number.standby);
    membership
        .handle
        .tell(Command::Add(path.number, path.link(standby)))
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
    dialer.complaints.settle(&known.interface);
    let mut look = interval(LOOK_EVERY);
    let mut redial_after = REDIAL;
    let hear = async {
        loop {
            match join::receive(&mut receive).await {
                // A receiver that is gone, or has as much to act upon, does not need it.
                Ok(Notice::Draining) => _ = membership.trouble.try_send(Trouble::Draining),
                Ok(Notice::Wanted(wanted)) => membership.wanted.store(wanted, Relaxed),
                // A server that closes its stream or talks nonsense has nothing more to say.
                Ok(Notice::Standby(_)) | Err(_) => std::future::pending::<()>().await,
            }
        }
    };
    tokio::pin!(hear);
    let successor = loop {
        tokio::select! {
            reason = connection.closed() => {
                info!(interface = known.interface, "uplink disconnected: {reason}");
                if CloseCode::Superseded.is_of(&reason) {
                    let _ = membership.trouble.try_send(Trouble::Superseded);
                }
                break None;
            }
            () = &mut hear => {}
            Ok(()) = standby_changes.changed() => {
                let waits = *standby_changes.borrow_and_update();
                // A connection that has just ended need not be told.
                let _ = join::send(&mut send, &Notice::Standby(waits)).await;
            }
            changed = uplink.changed() => {
                if changed.is_err() {
                    CloseCode::Left.close(&connection);
                    break None;
                }
                let now = uplink.borrow_and_update().clone();
                if let Err(error) = follow(dialer, &endpoint, &membership.server, &known, &now) {
                    info!(interface = now.interface, "connecting anew: {error:#}");
                    CloseCode::Replaced.close(&connection);
                    break None;
                }
                known = now;
            }
            _ = look.tick() => {
                let unanswered = live.figures(Instant::now()).unanswered;
                if unanswered < REDIAL {
                    redial_after = REDIAL;
                } else if unanswered >= redial_after {
                    redial_after *= 2;
                    debug!(interface = known.interface, "silent: trying another connection");
                    match timeout(REDIAL, join(dialer, membership, &known, Some(&index))).await {
                        Ok(Ok(path)) => {
                            CloseCode::Replaced.close(&connection);
                            break Some(path);
                        }
                        Ok(Err(error)) if complain(dialer, membership, &known, &error) => break None,
                        _ => {}
                    }
                }
            }
        }
    };
    membership
        .handle
        .tell(Command::Remove(number.index, connection.stable_id()))
        .await;
    // Who said it is not heard any more; another path that has waited says it with the next change.
    membership.wanted.store(false, Relaxed);
    successor
}

/// Brings the connection to the address that the uplink has now; an error when that cannot be.
fn follow(
    dialer: &Dialer,
    endpoint: &noq::Endpoint,
    server: &ServerEntry,
    before: &Uplink,
    now: &Uplink,
) -> Result<()> {
    let ((old, old_remote), (own, remote)) = (pair(before, server)?, pair(now, server)?);
    anyhow::ensure!(old_remote == remote, "it has addresses of another family");
    if old != own {
        info!(interface = now.interface, %own, "uplink has another address");
        endpoint.rebind(dialer.socket(own, &now.interface)?)?;
    }
    Ok(())
}
