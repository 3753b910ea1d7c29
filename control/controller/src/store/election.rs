//! Election of the leader among several controllers: the one whose lease holds the key decides.
//!
//! The leader measures its lease from before the request, the store from after it. So the leader
//! stops before the store lets another one start. Writes that are still pending then are rejected
//! by [`Leadership::fence`].

use super::{Error, Expect, Lease, LeaseId, Revision, Store, Write};
use futures_util::StreamExt;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// The pause before a failed store is retried.
const PAUSE: Duration = Duration::from_millis(200);

/// A candidate. When dropped, it resigns in the background if the runtime continues. If the process
/// dies, its lease has to expire before another candidate leads.
pub struct Election {
    role: watch::Receiver<Role>,
    resign: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

/// The role of a candidate.
#[derive(Debug, Clone)]
pub enum Role {
    /// It is the leader and decides.
    Leader(Leadership),
    /// It is not the leader.
    Follower {
        /// The name of the leader, if known.
        leader: Option<String>,
    },
}

impl Role {
    /// Returns the leadership, if this candidate holds it at this moment.
    pub fn leadership(&self) -> Option<&Leadership> {
        match self {
            Role::Leader(leadership) if leadership.holds() => Some(leadership),
            _ => None,
        }
    }
}

/// The right to decide.
#[derive(Debug, Clone)]
pub struct Leadership {
    key: String,
    revision: Revision,
    until: Arc<Mutex<Instant>>,
}

impl Leadership {
    /// Returns whether it has not expired by this process's own clock.
    pub fn holds(&self) -> bool {
        Instant::now() < self.until()
    }

    /// Returns the revision at which it started. Later leaderships have greater ones.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns a condition for the commits of all decisions: a commit succeeds only while this
    /// leadership lasts.
    pub fn fence(&self) -> Write {
        Write::check(&self.key, Expect::Revision(self.revision))
    }

    fn until(&self) -> Instant {
        *self.until.lock()
    }

    fn extend(&self, until: Instant) {
        *self.until.lock() = until;
    }
}

impl Election {
    /// Starts a candidate `name` for the leadership that `key` represents. If a leader dies,
    /// another one leads after `ttl`. Runs on the current tokio runtime.
    pub fn start(store: Arc<dyn Store>, key: &str, name: &str, ttl: Duration) -> Election {
        let (publish, role) = watch::channel(Role::Follower { leader: None });
        let (resign, resigned) = oneshot::channel();
        let candidate = Candidate {
            store,
            key: key.into(),
            name: name.into(),
            ttl,
            role: publish,
            lease: None,
        };
        Election {
            role,
            resign,
            task: tokio::spawn(candidate.run(resigned)),
        }
    }

    /// Returns a receiver of this candidate's role. Before each decision, also check
    /// [`Role::leadership`].
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// Gives up the leadership, so that another candidate can lead immediately.
    pub async fn resign(self) {
        // The task ends only after this, or has already ended with its runtime.
        let _ = self.resign.send(());
        let _ = self.task.await;
    }
}

struct Candidate {
    store: Arc<dyn Store>,
    key: String,
    name: String,
    ttl: Duration,
    role: watch::Sender<Role>,
    /// The last lease, until it is known to be revoked.
    lease: Option<LeaseId>,
}

impl Candidate {
    async fn run(mut self, resigned: oneshot::Receiver<()>) {
        tokio::select! {
            _ = resigned => {}
            () = self.stand() => {}
        }
        self.follow(None);
        if let Err(e) = self.give_up_lease().await {
            tracing::warn!("cannot resign the leadership, which will expire instead: {e}");
        }
    }

    async fn stand(&mut self) {
        loop {
            if let Err(e) = self.term().await {
                tracing::warn!("the store failed, retrying the election: {e}");
                self.follow(None);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Waits until there is no leader, then tries to become the leader and stays it until the
    /// leadership ends.
    async fn term(&mut self) -> Result<(), Error> {
        self.give_up_lease().await?;
        if let Some(held) = self.store.get(&self.key).await? {
            self.follow(Some(String::from_utf8_lossy(&held.value).into_owned()));
            return self.wait_for_change(held.revision).await;
        }
        let Some((lease, leadership)) = self.campaign().await? else {
            return Ok(());
        };
        let revision = leadership.revision;
        tracing::info!(name = self.name, revision, "became leader");
        self.role.send_replace(Role::Leader(leadership.clone()));
        let ended = self.lead(&lease, &leadership).await;
        self.follow(None);
        tracing::warn!(name = self.name, revision, "no longer leader: {ended}");
        Ok(())
    }

    /// Tries to become the leader. Returns `None` if another candidate was faster.
    async fn campaign(&mut self) -> Result<Option<(Lease, Leadership)>, Error> {
        let requested_at = Instant::now();
        let lease = self.store.grant(self.ttl).await?;
        self.lease = Some(lease.id);
        let write = Write::put(&self.key, self.name.as_bytes())
            .when(Expect::Absent)
            .under(lease.id);
        let revision = match self.store.commit(vec![write]).await {
            Ok(revision) => revision,
            Err(Error::Conflict { .. } | Error::LeaseGone(_)) => return Ok(None),
            Err(e) => return Err(e),
        };
        let leadership = Leadership {
            key: self.key.clone(),
            revision,
            until: Arc::new(Mutex::new(requested_at + lease.holder_ttl())),
        };
        Ok(Some((lease, leadership)))
    }

    /// Renews the leadership until it is lost. Returns the reason.
    async fn lead(&self, lease: &Lease, leadership: &Leadership) -> Error {
        let key_changed = self.wait_for_change(leadership.revision);
        tokio::pin!(key_changed);
        let mut pause = lease.ttl / 4;
        loop {
            let expired = tokio::time::sleep_until(leadership.until().into());
            let requested_at = Instant::now() + pause;
            let renewed = async {
                tokio::time::sleep(pause).await;
                self.store.keep_alive(lease.id).await
            };
            tokio::select! {
                changed = &mut key_changed => {
                    let revision = Some(leadership.revision);
                    return changed.err().unwrap_or(Error::Conflict { key: self.key.clone(), found: revision });
                }
                () = expired => return Error::Unavailable("the store did not renew the lease in time".into()),
                renewed = renewed => match renewed {
                    Ok(()) => {
                        leadership.extend(requested_at + lease.holder_ttl());
                        pause = lease.ttl / 4;
                    }
                    Err(e @ Error::LeaseGone(_)) => return e,
                    Err(e) => {
                        tracing::warn!("cannot renew the leadership, retrying: {e}");
                        pause = PAUSE.min(lease.ttl / 8);
                    }
                },
            }
        }
    }

    /// Waits until the key no longer holds the value written by this revision.
    async fn wait_for_change(&self, written: Revision) -> Result<(), Error> {
        let mut after = written;
        loop {
            if self.is_changed_for_certain(after).await? {
                return Ok(());
            }
            let (entries, revision) = self.store.list_all(&self.key).await?;
            if !entries
                .iter()
                .any(|entry| *entry.key == *self.key && entry.revision == written)
            {
                return Ok(());
            }
            after = revision;
        }
    }

    /// Waits until the key changes. Returns `false` if changes were discarded, which may include
    /// one of this key.
    async fn is_changed_for_certain(&self, after: Revision) -> Result<bool, Error> {
        let mut watch = self.store.watch(&self.key, after);
        while let Some(change) = watch.next().await {
            match change {
                Ok(change) if **change.key() == *self.key => return Ok(true),
                // A change of a longer key.
                Ok(_) => {}
                Err(Error::Compacted(_)) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Err(Error::Unavailable("the store was closed".into()))
    }

    fn follow(&self, leader: Option<String>) {
        // This comes first, so that no task decides on a lost leadership.
        if let Role::Leader(leadership) = &*self.role.borrow() {
            leadership.extend(Instant::now());
        }
        self.role.send_replace(Role::Follower { leader });
    }

    /// Revokes the lease, also after an earlier failure to do so: a key that this candidate left
    /// behind would block all candidates.
    async fn give_up_lease(&mut self) -> Result<(), Error> {
        if let Some(lease) = self.lease {
            self.store.revoke(lease).await?;
            self.lease = None;
        }
        Ok(())
    }
}
