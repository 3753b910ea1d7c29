//! One of several controllers decides: the one whose lease holds the key.
//!
//! The leader counts its time from before it asked for it, the store from after, so the leader stops before the store
//! lets another one start. Whatever it was about to write then is refused by [`Leadership::fence`].

use super::{Error, Expect, Lease, LeaseId, Revision, Store, Write};
use futures_util::StreamExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// How long to wait before a store that failed is asked again.
const PAUSE: Duration = Duration::from_millis(200);

/// A candidate, for as long as it exists. Dropped, it resigns in the background if the runtime goes on; when the process
/// dies, its lease has to run out before another one leads.
pub struct Election {
    role: watch::Receiver<Role>,
    resign: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

/// What a candidate is.
#[derive(Debug, Clone)]
pub enum Role {
    /// It decides.
    Leader(Leadership),
    /// It does not.
    Follower {
        /// Who does, if that is known.
        leader: Option<String>,
    },
}

impl Role {
    /// The leadership, if this candidate has it at this moment.
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
    /// Whether it has not run out by this process's own clock.
    pub fn holds(&self) -> bool {
        Instant::now() < self.until()
    }

    /// When it started; every later leadership has a greater one.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Goes with every decision that is written: the commit happens only if this leadership lasts.
    pub fn fence(&self) -> Write {
        Write::check(&self.key, Expect::Revision(self.revision))
    }

    fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prolong(&self, until: Instant) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

impl Election {
    /// Stands as `name` for what `key` stands for. When a leader dies, another one leads after `ttl`. Runs on the
    /// current tokio runtime.
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

    /// What this candidate is, and every change of it. Whoever decides also asks [`Role::leadership`] before each
    /// decision.
    pub fn role(&self) -> watch::Receiver<Role> {
        self.role.clone()
    }

    /// Gives the leadership up, so that another one can lead at once.
    pub async fn resign(self) {
        // The task ends by this alone, or has ended with its runtime.
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
    /// Not revoked for certain.
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
            tracing::warn!("leadership could not be given up and has to run out: {e}");
        }
    }

    async fn stand(&mut self) {
        loop {
            if let Err(e) = self.term().await {
                tracing::warn!("the election waits for the store: {e}");
                self.follow(None);
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Waits until nobody leads, and leads if nobody else is quicker, until that is over.
    async fn term(&mut self) -> Result<(), Error> {
        self.give_up_lease().await?;
        if let Some(held) = self.store.get(&self.key).await? {
            self.follow(Some(String::from_utf8_lossy(&held.value).into_owned()));
            return self.wait_for_change(held.revision).await;
        }
        let asked = Instant::now();
        let lease = self.store.grant(self.ttl).await?;
        self.lease = Some(lease.id);
        let write = Write::put(&self.key, self.name.as_bytes())
            .when(Expect::Absent)
            .under(lease.id);
        let revision = match self.store.commit(vec![write]).await {
            Ok(revision) => revision,
            Err(Error::Conflict { .. } | Error::LeaseGone(_)) => return Ok(()),
            Err(e) => return Err(e),
        };
        let until = Arc::new(Mutex::new(asked + own_time(&lease)));
        let leadership = Leadership {
            key: self.key.clone(),
            revision,
            until,
        };
        tracing::info!(name = self.name, revision, "leads");
        self.role.send_replace(Role::Leader(leadership.clone()));
        let ended = self.lead(&lease, &leadership).await;
        self.follow(None);
        tracing::warn!(name = self.name, revision, "leads no more: {ended}");
        Ok(())
    }

    /// Until the leadership is lost; says why.
    async fn lead(&self, lease: &Lease, leadership: &Leadership) -> Error {
        let taken = self.wait_for_change(leadership.revision);
        tokio::pin!(taken);
        let mut pause = lease.ttl / 4;
        loop {
            let over = tokio::time::sleep_until(leadership.until().into());
            let asked = Instant::now() + pause;
            let prolonged = async {
                tokio::time::sleep(pause).await;
                self.store.keep_alive(lease.id).await
            };
            tokio::select! {
                changed = &mut taken => {
                    let revision = Some(leadership.revision);
                    return changed.err().unwrap_or(Error::Conflict { key: self.key.clone(), found: revision });
                }
                () = over => return Error::Unavailable("the store did not prolong it in time".into()),
                prolonged = prolonged => match prolonged {
                    Ok(()) => {
                        leadership.prolong(asked + own_time(lease));
                        pause = lease.ttl / 4;
                    }
                    Err(e @ Error::LeaseGone(_)) => return e,
                    Err(e) => {
                        tracing::warn!("leadership is not prolonged yet: {e}");
                        pause = PAUSE.min(lease.ttl / 8);
                    }
                },
            }
        }
    }

    /// Until the key no longer holds what this revision wrote.
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

    /// Waits until the key was changed; false when changes were forgotten, so that this one may be among them.
    async fn is_changed_for_certain(&self, after: Revision) -> Result<bool, Error> {
        let mut watch = self.store.watch(&self.key, after);
        while let Some(change) = watch.next().await {
            match change {
                Ok(change) if **change.key() == *self.key => return Ok(true),
                // Of a longer key.
                Ok(_) => {}
                Err(Error::Compacted(_)) => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Err(Error::Unavailable("the store was closed".into()))
    }

    fn follow(&self, leader: Option<String>) {
        // First, so that nobody decides on a leadership that is gone.
        if let Role::Leader(leadership) = &*self.role.borrow() {
            leadership.prolong(Instant::now());
        }
        self.role.send_replace(Role::Follower { leader });
    }

    /// Also after it could not be done at once: a key that this candidate left behind would keep everybody waiting.
    async fn give_up_lease(&mut self) -> Result<(), Error> {
        if let Some(lease) = self.lease {
            self.store.revoke(lease).await?;
            self.lease = None;
        }
        Ok(())
    }
}

/// How long the holder of a lease believes in it: less than the store does, by more than clocks differ in speed.
fn own_time(lease: &Lease) -> Duration {
    lease.ttl * 9 / 10
}
