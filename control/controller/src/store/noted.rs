//! Whether a store takes changes, as far as its commits show.

use super::{Action, Entry, Error, Lease, LeaseId, Page, Progress, Revision, Store, Watch, Write};
use async_trait::async_trait;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A store that notes which of its commits fail.
pub(crate) struct Noted {
    store: Arc<dyn Store>,
    failures: Arc<WriteFailures>,
}

/// The last failed commit, until another one succeeds.
pub(crate) struct WriteFailures {
    last: Mutex<Option<(Instant, String)>>,
    count: Counter,
}

impl WriteFailures {
    /// Creates a record that counts failures in `count`.
    pub(crate) fn new(count: Counter) -> Arc<Self> {
        let last = Mutex::default();
        Arc::new(WriteFailures { last, count })
    }

    /// Returns why the last commit failed, unless that is longer ago than `within`.
    pub(crate) fn last(&self, within: Duration) -> Option<String> {
        let (at, why) = self.last.lock().clone()?;
        (at.elapsed() < within).then_some(why)
    }

    /// Notes the outcome of a commit. A conflict is no failure of the store. Only a value that
    /// outlives its writer shows that the store takes changes: the embedded store does not write
    /// values under leases to the disk.
    fn note(&self, is_durable: bool, committed: &Result<Revision, Error>) {
        match committed {
            Err(Error::Unavailable(why)) => {
                self.count.inc();
                *self.last.lock() = Some((Instant::now(), why.clone()));
            }
            Ok(_) if is_durable => *self.last.lock() = None,
            _ => {}
        }
    }
}

impl Noted {
    pub(crate) fn new(store: Arc<dyn Store>, failures: Arc<WriteFailures>) -> Self {
        Noted { store, failures }
    }
}

#[async_trait]
impl Store for Noted {
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.store.get(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error> {
        self.store.list(prefix, after, limit).await
    }

    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error> {
        self.store.list_all(prefix).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error> {
        let is_durable = |write: &Write| matches!(write.action, Action::Put { lease: None, .. });
        let is_durable = writes.iter().any(is_durable);
        let committed = self.store.commit(writes).await;
        self.failures.note(is_durable, &committed);
        committed
    }

    fn watch(&self, prefix: &str, after: Revision) -> Watch {
        self.store.watch(prefix, after)
    }

    fn watch_noting(&self, prefix: &str, after: Revision, progress: &Arc<Progress>) -> Watch {
        self.store.watch_noting(prefix, after, progress)
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, Error> {
        self.store.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.store.revoke(lease).await
    }
}
