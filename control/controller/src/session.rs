//! The lease of this controller. The statements of the nodes that report to it are written under
//! this lease: if the controller dies, or cannot reach the store for the time of the lease, other
//! controllers no longer count its nodes as alive.
//!
//! The controller measures its lease from before the request, the store from after it. So the
//! controller stops relying on the lease before the store ends it.

use crate::store::{Error, Lease, LeaseId, Store};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// The maximum pause before a failed store is retried.
const PAUSE: Duration = Duration::from_millis(200);

/// The maximum time that a request waits for a lease.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The lease of a controller, which is renewed for as long as the controller runs. It is not
/// revoked at the end: nodes have the rest of its time to report to another controller.
pub(crate) struct Session {
    store: Arc<dyn Store>,
    ttl: Duration,
    held: watch::Sender<Option<Held>>,
    /// Notified when the lease was found to be gone.
    gone: Notify,
}

#[derive(Clone, Copy)]
struct Held {
    lease: Lease,
    until: Instant,
}

impl Held {
    fn new(lease: Lease, requested_at: Instant) -> Held {
        let until = requested_at + lease.holder_ttl();
        Held { lease, until }
    }
}

impl Session {
    /// Creates a session without a lease, which [`Session::keep`] obtains.
    pub(crate) fn new(store: Arc<dyn Store>, ttl: Duration) -> Session {
        Session {
            store,
            ttl,
            held: watch::Sender::default(),
            gone: Notify::new(),
        }
    }

    /// Returns the lease, for which it waits if there is none at this moment.
    ///
    /// # Errors
    /// Returns [`Error::Unavailable`] if the store does not grant or renew the lease.
    pub(crate) async fn lease(&self) -> Result<LeaseId, Error> {
        let is_valid = |held: &Held| Instant::now() < held.until;
        let mut held = self.held.subscribe();
        let valid = held.wait_for(|held| held.as_ref().is_some_and(is_valid));
        let found = tokio::time::timeout(TIMEOUT, valid).await;
        let found = found.ok().and_then(Result::ok).and_then(|held| *held);
        found.map(|held| held.lease.id).ok_or_else(|| {
            Error::Unavailable("the store does not renew the lease of this controller".into())
        })
    }

    /// Discards a lease that the store no longer has.
    pub(crate) fn discard(&self, lease: LeaseId) {
        let discarded = self.held.send_if_modified(|held| {
            let is_it = held.is_some_and(|held| held.lease.id == lease);
            is_it.then(|| *held = None).is_some()
        });
        if discarded {
            self.gone.notify_one();
        }
    }

    /// Obtains and renews the lease, forever.
    pub(crate) async fn keep(&self) {
        loop {
            let pause = match self.renew().await {
                Ok(lease) => lease.ttl / 4,
                Err(Error::LeaseGone(lease)) => {
                    tracing::warn!("the lease of this controller has expired in the store");
                    self.discard(lease);
                    continue;
                }
                Err(error) => {
                    tracing::warn!("cannot renew the lease of this controller, retrying: {error}");
                    PAUSE.min(self.ttl / 8)
                }
            };
            // The pause ends early if a request finds that the lease is gone.
            let _ = tokio::time::timeout(pause, self.gone.notified()).await;
        }
    }

    /// Renews the lease, or obtains one if there is none.
    async fn renew(&self) -> Result<Lease, Error> {
        let requested_at = Instant::now();
        let held = *self.held.borrow();
        let lease = match held {
            Some(held) => {
                self.store.keep_alive(held.lease.id).await?;
                held.lease
            }
            None => self.store.grant(self.ttl).await?,
        };
        self.held.send_replace(Some(Held::new(lease, requested_at)));
        Ok(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Embedded;

    fn session(directory: &tempfile::TempDir) -> (Arc<Session>, Arc<dyn Store>) {
        let store: Arc<dyn Store> =
            Arc::new(Embedded::open(directory.path().join("database")).unwrap());
        let session = Session::new(store.clone(), Duration::from_secs(10));
        (Arc::new(session), store)
    }

    #[tokio::test]
    async fn a_revoked_lease_is_replaced_as_soon_as_a_request_notices() {
        let directory = tempfile::tempdir().unwrap();
        let (session, store) = session(&directory);
        let keeper = session.clone();
        let keeping = tokio::spawn(async move { keeper.keep().await });
        let first = session.lease().await.unwrap();
        assert_eq!(session.lease().await, Ok(first));
        store.revoke(first).await.unwrap();
        session.discard(first);
        let second = session.lease().await.unwrap();
        assert_ne!(first, second);
        session.discard(first);
        assert_eq!(session.lease().await, Ok(second), "another one is held");
        keeping.abort();
    }

    #[tokio::test]
    async fn a_lease_that_is_not_renewed_is_not_relied_upon() {
        let directory = tempfile::tempdir().unwrap();
        let (session, _) = session(&directory);
        let id = session.renew().await.unwrap().id;
        assert_eq!(session.lease().await, Ok(id));
        session.held.send_modify(|held| {
            held.as_mut().unwrap().until = Instant::now();
        });
        assert!(matches!(session.lease().await, Err(Error::Unavailable(_))));
        assert_eq!(
            session.renew().await.unwrap().id,
            id,
            "the store has it still"
        );
        assert_eq!(session.lease().await, Ok(id));
    }
}
