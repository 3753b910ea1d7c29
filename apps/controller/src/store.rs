//! What the controller knows, behind one trait: values under string keys, each with the revision that wrote it.
//!
//! [`Embedded`] keeps it in a file of one process, [`Etcd`] in an etcd cluster that several controllers share. What is
//! built on the trait alone, [`Election`] and [`Follow`], works with both.
//!
//! A revision is a number that rises with every commit to the store, whatever its keys, and never falls, not even over a
//! restart. So a change that is seen twice, or late, is told from a new one by comparing revisions.

mod election;
mod embedded;
mod etcd;
mod follow;

pub use election::{Election, Leadership, Role};
pub use embedded::Embedded;
pub use etcd::{Etcd, EtcdSettings, EtcdTls};
pub use follow::{Follow, Update};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use std::sync::Arc;
use std::time::Duration;

/// When something was written; 0 is before everything.
pub type Revision = u64;

/// A lease of one store, see [`Store::grant`].
pub type LeaseId = i64;

/// The most writes that one [`Store::commit`] takes (etcd takes 128 operations unless told otherwise).
pub const MAX_WRITES: usize = 100;

/// The most that keys and values of one [`Store::commit`] may come to, bytes (etcd takes requests of 1.5 MiB unless told
/// otherwise).
pub const MAX_COMMIT_BYTES: usize = 1 << 20;

/// Keys, values, changes, leases.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The value under a key.
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error>;

    /// Up to `limit` entries whose keys begin with `prefix`, in the order of their keys; those after `after` only.
    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error>;

    /// All entries whose keys begin with `prefix` as they were at one revision, which is returned as well: a watch after
    /// it misses nothing.
    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error>;

    /// Does all of the writes, or none of them if one's expectation does not hold. Returns when they would survive the
    /// loss of power. At most [`MAX_WRITES`], on different keys, and [`MAX_COMMIT_BYTES`].
    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error>;

    /// Every change to keys that begin with `prefix`, of the revisions above `after`, in order. The stream lives through
    /// an outage of the store. It ends with [`Error::Compacted`] when changes were forgotten before they could be
    /// delivered: list again, and watch from there. [`Follow`] does that.
    fn watch(&self, prefix: &str, after: Revision) -> Watch;

    /// A lease: keys written under it are deleted when it was not kept alive for `ttl`. The store may choose a longer one.
    async fn grant(&self, ttl: Duration) -> Result<Lease, Error>;

    /// Starts the lease's time again; [`Error::LeaseGone`] when it ran out before.
    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error>;

    /// Ends the lease and deletes its keys. One that ran out before is no error.
    async fn revoke(&self, lease: LeaseId) -> Result<(), Error>;
}

/// The changes that [`Store::watch`] delivers.
pub type Watch = BoxStream<'static, Result<Change, Error>>;

/// A key and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Unique.
    pub key: Arc<str>,
    /// Any bytes.
    pub value: Arc<[u8]>,
    /// Of the commit that wrote it last.
    pub revision: Revision,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys.
    pub entries: Vec<Entry>,
    /// Whether there are more entries after these.
    pub more: bool,
}

/// Something was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key holds this now.
    Put(Entry),
    /// The key holds nothing any more.
    Delete {
        /// Which.
        key: Arc<str>,
        /// When.
        revision: Revision,
    },
}

impl Change {
    /// Which key.
    pub fn key(&self) -> &Arc<str> {
        match self {
            Change::Put(entry) => &entry.key,
            Change::Delete { key, .. } => key,
        }
    }

    /// When it was written.
    pub fn revision(&self) -> Revision {
        match self {
            Change::Put(entry) => entry.revision,
            Change::Delete { revision, .. } => *revision,
        }
    }
}

/// A time for which keys exist, if nobody prolongs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Of this store.
    pub id: LeaseId,
    /// How long it lasts after it was granted or kept alive.
    pub ttl: Duration,
}

/// One key's part in a [`Store::commit`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub(crate) key: String,
    pub(crate) expect: Expect,
    pub(crate) action: Action,
}

/// What a key has to hold for a commit to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Anything or nothing.
    Any,
    /// Nothing.
    Absent,
    /// What this revision wrote.
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
    /// The key is to hold `value`.
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

    /// The key is to hold nothing.
    pub fn delete(key: impl Into<String>) -> Write {
        Write {
            key: key.into(),
            expect: Expect::Any,
            action: Action::Delete,
        }
    }

    /// The key stays as it is; the other writes happen only if it is as expected.
    pub fn check(key: impl Into<String>, expect: Expect) -> Write {
        Write {
            key: key.into(),
            expect,
            action: Action::Check,
        }
    }

    /// The commit happens only if the key is as expected.
    pub fn when(self, expect: Expect) -> Write {
        Write { expect, ..self }
    }

    /// The value goes when the lease does; with the embedded store, a restart ends all leases. Without effect on
    /// deletions and checks.
    pub fn under(mut self, id: LeaseId) -> Write {
        if let Action::Put { lease, .. } = &mut self.action {
            *lease = Some(id);
        }
        self
    }
}

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An expectation did not hold; nothing was written.
    #[error("`{key}` is not as expected: {}", match found { Some(revision) => format!("it was written in revision {revision}"), None => "there is no such key".into() })]
    Conflict {
        /// The first key that was not as expected.
        key: String,
        /// What it holds, none when it holds nothing.
        found: Option<Revision>,
    },
    /// The lease ran out or was revoked; nothing was written.
    #[error("the lease {0} has run out")]
    LeaseGone(LeaseId),
    /// Changes after the revision that a watch asked for, or had reached, are no longer known: list again.
    #[error("the changes after revision {0} are no longer known; list again")]
    Compacted(Revision),
    /// No store takes this request; nothing was written.
    #[error("the store takes no such request: {0}")]
    Invalid(String),
    /// The store was not reached, did not answer in time or could not write. Whether the commit happened is not known:
    /// it either happened entirely or not at all.
    #[error("{0}")]
    Unavailable(String),
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "{0} is in use by another process; stop that controller first, or give this one a state directory of its own"
    )]
    InUse(String),
    /// The file cannot be used.
    #[error("{file}: {reason}")]
    File {
        /// The database.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The settings cannot be right.
    #[error("{0}")]
    Settings(String),
    /// The store was not reached or refused the connection.
    #[error("{0}")]
    Unavailable(String),
}

/// Refuses what one of the stores would not take, so that both behave alike.
fn check_request(writes: &[Write]) -> Result<(), Error> {
    if writes.is_empty() || writes.len() > MAX_WRITES {
        return Err(Error::Invalid(format!(
            "a commit has 1 to {MAX_WRITES} writes, not {}",
            writes.len()
        )));
    }
    let mut keys: Vec<&str> = writes.iter().map(|w| w.key.as_str()).collect();
    keys.sort_unstable();
    if keys[0].is_empty() {
        return Err(Error::Invalid("a key is empty".into()));
    }
    if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(Error::Invalid(format!("`{}` is there twice", pair[0])));
    }
    let bytes: usize = writes
        .iter()
        .map(|write| write.key.len() + write.action.value().len())
        .sum();
    if bytes > MAX_COMMIT_BYTES {
        return Err(Error::Invalid(format!(
            "a commit has at most {MAX_COMMIT_BYTES} bytes, not {bytes}"
        )));
    }
    Ok(())
}
