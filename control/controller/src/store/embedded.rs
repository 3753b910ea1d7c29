//! The store in a file of one process.
//!
//! All entries are in memory, ordered by key, so reads do not access the disk. One thread writes:
//! it takes all waiting commits, writes them in one database transaction and only then makes them
//! visible to readers. Entries under a lease are only in memory, because a restart ends all leases.

mod file;
mod index;
mod leases;
mod writer;

use super::{
    Entry, Error, Lease, LeaseId, OpenError, Page, Revision, Store, Watch, Write, check_request,
};
use async_trait::async_trait;
use file::File;
use futures_util::stream::{self, StreamExt};
use index::Index;
use leases::Leases;
use parking_lot::{Mutex, RwLock};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use writer::{Job, Request, Writer};

/// The maximum number of changes that [`Store::watch`] delivers before writers get access again.
const CHANGES_AT_ONCE: usize = 512;

/// A store in a file, for one controller.
pub struct Embedded {
    shared: Arc<Shared>,
    requests: Option<mpsc::Sender<Request>>,
    changed: watch::Receiver<Revision>,
    writer: Option<JoinHandle<()>>,
}

/// State shared by the writer thread and the readers.
struct Shared {
    index: RwLock<Index>,
    leases: Mutex<Leases>,
}

impl Embedded {
    /// Opens the database, or creates one that is accessible only to this user. Blocks while a
    /// large one is read.
    ///
    /// # Errors
    /// Returns an error if another process has it open, it is damaged, or it is not a database of
    /// this program.
    pub fn open(path: impl AsRef<Path>) -> Result<Embedded, OpenError> {
        let (file, entries, revision) = File::open(path.as_ref())?;
        let shared = Arc::new(Shared {
            index: RwLock::new(Index::new(entries, revision)),
            leases: Mutex::new(Leases::default()),
        });
        let (requests, inbox) = mpsc::channel();
        let (publish, changed) = watch::channel(revision);
        let writer = Writer::new(file, shared.clone(), publish);
        let writer = std::thread::Builder::new()
            .name("hawser-store".into())
            .spawn(move || writer.run(&inbox))
            .map_err(|e| {
                OpenError::Unavailable(format!("cannot start the thread of the store: {e}"))
            })?;
        Ok(Embedded {
            shared,
            requests: Some(requests),
            changed,
            writer: Some(writer),
        })
    }

    async fn ask(&self, job: Job) -> Result<Revision, Error> {
        let (answer, answered) = oneshot::channel();
        self.send(Request {
            job,
            answer: Some(answer),
        })?;
        answered.await.map_err(|_| ended())?
    }

    fn send(&self, request: Request) -> Result<(), Error> {
        let requests = self.requests.as_ref().expect("taken by drop alone");
        requests.send(request).map_err(|_| ended())
    }
}

fn ended() -> Error {
    Error::Unavailable("the writer thread of the store has ended".into())
}

impl Drop for Embedded {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(writer) = self.writer.take() {
            // A panic of the thread has already been reported.
            let _ = writer.join();
        }
    }
}

impl Shared {
    fn index(&self) -> parking_lot::RwLockReadGuard<'_, Index> {
        self.index.read()
    }

    fn leases(&self) -> parking_lot::MutexGuard<'_, Leases> {
        self.leases.lock()
    }
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &str) -> Result<Option<Entry>, Error> {
        Ok(self.shared.index().get(key))
    }

    async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Page, Error> {
        Ok(self.shared.index().list(prefix, after, limit))
    }

    async fn list_all(&self, prefix: &str) -> Result<(Vec<Entry>, Revision), Error> {
        Ok(self.shared.index().list_all(prefix))
    }

    async fn commit(&self, writes: Vec<Write>) -> Result<Revision, Error> {
        check_request(&writes)?;
        self.ask(Job::Commit(writes)).await
    }

    fn watch(&self, prefix: &str, after: Revision) -> Watch {
        let watcher = Watcher {
            shared: self.shared.clone(),
            changed: self.changed.clone(),
            prefix: prefix.into(),
            after,
            ended: false,
        };
        stream::unfold(watcher, Watcher::next)
            .flat_map(stream::iter)
            .boxed()
    }

    async fn grant(&self, ttl: Duration) -> Result<Lease, Error> {
        let lease = self.shared.leases().grant(ttl, Instant::now());
        // The writer thread sleeps until the next lease expires, so it has to learn about this one.
        self.send(Request {
            job: Job::Wake,
            answer: None,
        })?;
        Ok(lease)
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), Error> {
        if self.shared.leases().keep_alive(lease, Instant::now()) {
            Ok(())
        } else {
            Err(Error::LeaseGone(lease))
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), Error> {
        self.ask(Job::Revoke(lease)).await.map(|_| ())
    }
}

/// Follows the index from revision to revision. It holds no changes itself, so a watch that is not
/// read costs nothing.
struct Watcher {
    shared: Arc<Shared>,
    changed: watch::Receiver<Revision>,
    prefix: String,
    after: Revision,
    ended: bool,
}

impl Watcher {
    async fn next(mut self) -> Option<(Vec<Result<super::Change, Error>>, Watcher)> {
        if self.ended {
            return None;
        }
        loop {
            // This precedes the read of the index, so that later writes are not missed.
            self.changed.borrow_and_update();
            let read = self
                .shared
                .index()
                .changes(&self.prefix, self.after, CHANGES_AT_ONCE);
            let Some((changes, reached)) = read else {
                self.ended = true;
                return Some((vec![Err(Error::Compacted(self.after))], self));
            };
            let advanced = reached > self.after;
            self.after = self.after.max(reached);
            if !changes.is_empty() {
                return Some((changes.into_iter().map(Ok).collect(), self));
            }
            if !advanced && self.changed.changed().await.is_err() {
                self.ended = true;
                return Some((
                    vec![Err(Error::Unavailable("the store was closed".into()))],
                    self,
                ));
            }
        }
    }
}
