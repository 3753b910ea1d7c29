//! A store that takes its time, or no changes.

use crate::rig::TIMEOUT;
use async_trait::async_trait;
use hawser_controller::store::{
    Embedded, Entry, Error, Lease, LeaseId, Page, Revision, Store, Watch, Write,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;

/// The embedded store, with commits that take some time or fail.
pub(crate) struct SlowStore {
    store: Embedded,
    delay: Mutex<Duration>,
    fault: Mutex<Option<String>>,
    pub(crate) in_flight: watch::Sender<usize>,
    /// The commits and the reads.
    pub(crate) uses: Mutex<Vec<String>>,
    /// The leases that were granted or renewed.
    pub(crate) leases: Mutex<BTreeSet<LeaseId>>,
}

impl SlowStore {
    pub(crate) fn open(directory: &TempDir) -> Arc<SlowStore> {
        Arc::new(SlowStore {
            store: Embedded::open(directory.path().join("database")).unwrap(),
            delay: Mutex::default(),
            fault: Mutex::default(),
            in_flight: watch::Sender::default(),
            uses: Mutex::default(),
            leases: Mutex::default(),
        })
    }

    pub(crate) fn slow_down(&self, delay: Duration) {
        *self.delay.lock() = delay;
    }

    /// Makes commits fail for a reason, or succeed again.
    pub(crate) fn fail(&self, fault: Option<&str>) {
        *self.fault.lock() = fault.map(str::to_owned);
    }

    pub(crate) async fn has_commit_in_flight(&self) {
        let mut in_flight = self.in_flight.subscribe();
        let wait = in_flight.wait_for(|count| *count > 0);
        tokio::time::timeout(TIMEOUT, wait).await.unwrap().unwrap();
    }
}

/// A commit from its request until its answer, or until the requester gives up.
struct InFlight<'a>(&'a watch::Sender<usize>);

impl<'a> InFlight<'a> {
    fn begin(count: &'a watch::Sender<usize>) -> InFlight<'a> {
        count.send_modify(|count| *count += 1);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[async_trait]
impl Store for SlowStore {
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        self.uses.lock().push(format!("get {key}"));
        self.store.get(key).await
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error> {
        self.uses.lock().push(format!("list {prefix}"));
        self.store.list(prefix, after, limit).await
    }

    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error> {
        self.uses.lock().push(format!("list {prefix}"));
        self.store.list_all(prefix).await
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error> {
        self.uses.lock().push(format!("commit {writes:?}"));
        let _in_flight = InFlight::begin(&self.in_flight);
        let delay = *self.delay.lock();
        tokio::time::sleep(delay).await;
        if let Some(fault) = self.fault.lock().clone() {
            return Err(Error::Unavailable(fault));
        }
        self.store.commit(writes).await
    }

    fn watch(&self, prefix: &str, after: Revision) -> Watch {
        self.store.watch(prefix, after)
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, Error> {
        let lease = self.store.grant(ttl).await?;
        self.leases.lock().insert(lease.id);
        Ok(lease)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        self.leases.lock().insert(lease);
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.store.revoke(lease).await
    }
}
