//! The state of the controller behind one trait: values under string keys, each with the revision
//! that wrote it.
//!
//! [`Embedded`] stores it in a file of one process, [`Etcd`] in an etcd cluster that several
//! controllers share. [`Election`] and [`Follow`] build on the trait only and work with both.
//!
//! A revision is a number that increases with every commit to the store, regardless of its keys,
//! and never decreases, not even across a restart. So comparing revisions distinguishes a repeated
//! or late change from a new one.

mod election;
mod embedded;
mod etcd;
mod follow;
mod noted;
mod progress;

pub use election::{Election, Leadership, Role};
pub use embedded::Embedded;
pub use etcd::{Etcd, EtcdSettings, EtcdTls};
pub use follow::{Follow, Update};
pub(crate) use noted::{Noted, WriteFailures};
pub use progress::Progress;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;

/// The revision of a commit. 0 is before all commits.
pub type Revision = u64;

/// A lease of one store, see [`Store::grant`].
pub type LeaseId = i64;

/// The maximum number of writes in one [`Store::commit`] (etcd accepts 128 operations by default).
pub const MAX_WRITES: usize = 100;

/// The maximum total size of keys and values in one [`Store::commit`], bytes (etcd accepts requests
/// of 1.5 MiB by default).
pub const MAX_COMMIT_BYTES: usize = 1 << 20;

/// A key-value store with revisions, watches and leases.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Returns the entry under a key.
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error>;

    /// Returns up to `limit` entries whose keys begin with `prefix`, in the order of their keys;
    /// only those after `after`, if given.
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error>;

    /// Returns all entries whose keys begin with `prefix` at one revision, and that revision: a
    /// watch after it misses no change.
    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error>;

    /// Performs all of the writes, or none of them if an expectation does not hold. Returns when
    /// they are durable. There may be at most [`MAX_WRITES`], on different keys, with at most
    /// [`MAX_COMMIT_BYTES`].
    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error>;

    /// Returns every change to keys that begin with `prefix`, of the revisions above `after`, in
    /// order. The stream survives outages of the store. It ends with [`Error::Compacted`] if
    /// changes were discarded before they could be delivered: list again, and watch from there.
    /// [`Follow`] does that.
    fn watch(&self, prefix: &str, after: Revision) -> Watch;

    /// As [`Store::watch`], and notes in `progress` whether the watch delivers. Without an
    /// implementation of its own, a store is one whose watches are never behind.
    fn watch_noting(&self, prefix: &str, after: Revision, progress: &Arc<Progress>) -> Watch {
        progress.always();
        self.watch(prefix, after)
    }

    /// Grants a lease. Keys written under it are deleted if it is not kept alive for `ttl`. The
    /// store may choose a longer time.
    async fn grant(&self, ttl: Duration) -> Result<Lease, Error>;

    /// Renews the lease. Returns [`Error::LeaseGone`] if it has expired.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error>;

    /// Revokes the lease and deletes its keys. An expired lease is not an error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), Error>;
}

/// The changes that [`Store::watch`] delivers.
pub type Watch = BoxStream<'static, Result<Change, Error>>;

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key, unique.
    pub key: Arc<str>,
    /// The value, arbitrary bytes.
    pub value: Arc<[u8]>,
    /// The revision of the commit that last wrote it.
    pub revision: Revision,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries, in the order of their keys.
    pub entries: Vec<Entry>,
    /// Whether there are more entries after these.
    pub more: bool,
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key was written.
    Put(Entry),
    /// The key was deleted.
    Delete {
        /// The key.
        key: Arc<str>,
        /// The revision of the deletion.
        revision: Revision,
    },
}

impl Change {
    /// Returns the key.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Delete { key, .. } => key,
        }
    }

    /// Returns the revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put(entry) => entry.revision,
            Change::Delete { revision, .. } => *revision,
        }
    }
}

/// A lease: keys written under it exist until it expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// The identifier of the lease in this store.
    pub id: LeaseId,
    /// The time after which it expires, since it was granted or renewed.
    pub ttl: Duration,
}

impl Lease {
    /// Returns the time for which the holder may rely on the lease: shorter than the store's by
    /// more than clocks differ in speed.
    pub(crate) fn holder_ttl(&self) -> Duration {
        self.ttl * 9 / 10
    }
}

/// The operation on one key in a [`Store::commit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub(crate) key: String,
    pub(crate) expect: Expect,
    pub(crate) action: Action,
}

/// The expected state of a key, as a condition for a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Any state.
    Any,
    /// The key does not exist.
    Absent,
    /// The key was last written by this revision.
    Revision(Revision),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Put {
        value: Arc<[u8]>,
        lease: Option<LeaseId>,
    },
    Delete,
    Check,
}

impl Action {
    fn value(&self) -> &[u8] {
        match self {
            Action::Put { value, .. } => value,
            Action::Delete | Action::Check => &[],
        }
    }
}

impl Write {
    /// Returns a write of `value`.
    pub fn put(key: impl Into<String>, value: impl Into<Arc<[u8]>>) -> Write {
        Write {
            key: key.into(),
            expect: Expect::Any,
            action: Action::Put {
                value: value.into(),
                lease: None,
            },
        }
    }

    /// Returns a deletion of the key.
    pub fn delete(key: impl Into<String>) -> Write {
        Write {
            key: key.into(),
            expect: Expect::Any,
            action: Action::Delete,
        }
    }

    /// Returns a condition on a key without a change of it.
    pub fn check(key: impl Into<String>, expect: Expect) -> Write {
        Write {
            key: key.into(),
            expect,
            action: Action::Check,
        }
    }

    /// Adds the condition that the key is in the expected state.
    pub fn when(self, expect: Expect) -> Write {
        Write { expect, ..self }
    }

    /// Binds the value to a lease: it is deleted when the lease ends. With the embedded store, a
    /// restart ends all leases. No effect on deletions and checks.
    pub fn under(mut self, id: LeaseId) -> Write {
        if let Action::Put { lease, .. } = &mut self.action {
            *lease = Some(id);
        }
        self
    }
}

/// The error of a request to the store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An expectation did not hold. Nothing was written.
    #[error("`{key}` is not in the expected state: {}", match found { Some(revision) => format!("it was last written by revision {revision}"), None => "it does not exist".into() })]
    Conflict {
        /// The first key that was not in the expected state.
        key: String,
        /// The revision that last wrote the key; `None` if it does not exist.
        found: Option<Revision>,
    },
    /// The lease expired or was revoked. Nothing was written.
    #[error("the lease {0} has expired")]
    LeaseGone(LeaseId),
    /// The changes after the revision of a watch are no longer available: list again.
    #[error("the changes after revision {0} are no longer available; list again")]
    Compacted(Revision),
    /// The request is invalid for every store. Nothing was written.
    #[error("invalid request to the store: {0}")]
    Invalid(String),
    /// The store was unreachable, did not respond in time or could not write. It is unknown whether
    /// the commit happened: it happened either entirely or not at all.
    #[error("{0}")]
    Unavailable(String),
}

/// The error of opening a store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has opened it.
    #[error(
        "{0} is in use by another process; stop that controller first, or give this one a state directory of its own"
    )]
    InUse(String),
    /// The file cannot be used.
    #[error("{file}: {reason}")]
    File {
        /// The database.
        file: String,
        /// The reason.
        reason: String,
    },
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// The store was unreachable or rejected the connection.
    #[error("{0}")]
    Unavailable(String),
}

/// Rejects requests that one of the stores would not accept, so that both behave alike.
fn check_request(writes: &[Write]) -> Result<(), Error> {
    if writes.is_empty() || writes.len() > MAX_WRITES {
        return Err(Error::Invalid(format!(
            "a commit must have 1 to {MAX_WRITES} writes, not {}",
            writes.len()
        )));
    }
    let mut keys: Vec<&str> = writes.iter().map(|w| w.key.as_str()).collect();
    keys.sort_unstable();
    if keys[0].is_empty() {
        return Err(Error::Invalid("a key is empty".into()));
    }
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Invalid(format!("`{}` occurs twice", pair[0])));
    }
    let bytes: usize = writes
        .iter()
        .map(|write| write.key.len() + write.action.value().len())
        .sum();
    if bytes > MAX_COMMIT_BYTES {
        return Err(Error::Invalid(format!(
            "a commit must have at most {MAX_COMMIT_BYTES} bytes, not {bytes}"
        )));
    }
    Ok(())
}
