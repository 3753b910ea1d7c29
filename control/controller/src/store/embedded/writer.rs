//! The writer thread: it performs commits in the order of their arrival, many in one transaction,
//! and ends expired leases.

use super::Shared;
use super::file::{File, Rows};
use super::index::{Index, Stored};
use super::leases::Leases;
use crate::store::{Action, Change, Entry, Error, Expect, LeaseId, Revision, Write};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// The maximum number of requests that share a transaction, which bounds the latency of the first
/// one.
const REQUESTS_AT_ONCE: usize = 4096;

/// The time for which commits are rejected after a failure of the disk: reopening the file takes
/// time, and leases have to be served.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Request {
    pub(super) job: Job,
    /// The receiver of the result; `None` if no task waits for it.
    pub(super) answer: Option<oneshot::Sender<Result<Revision, Error>>>,
}

pub(super) enum Job {
    Commit(Vec<Write>),
    Revoke(LeaseId),
    /// Recompute when the next lease expires.
    Wake,
}

pub(super) struct Writer {
    file: File,
    shared: Arc<Shared>,
    changed: watch::Sender<Revision>,
    /// The time and the text of the last error of the disk, while commits are rejected.
    failed: Option<(Instant, String)>,
}

impl Writer {
    pub(super) fn new(file: File, shared: Arc<Shared>, changed: watch::Sender<Revision>) -> Writer {
        Writer {
            file,
            shared,
            changed,
            failed: None,
        }
    }

    /// Serves requests until all senders are dropped.
    pub(super) fn run(mut self, inbox: &Receiver<Request>) {
        loop {
            let wake = self.shared.leases().next_end();
            let first = match wake {
                Some(end) => inbox.recv_timeout(end.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if matches!(first, Err(RecvTimeoutError::Disconnected)) {
                return;
            }
            let ended = self.shared.leases().ended(Instant::now()).into_iter();
            let ended = ended.map(|lease| Request {
                job: Job::Revoke(lease),
                answer: None,
            });
            let requests = ended
                .chain(first)
                .chain(inbox.try_iter().take(REQUESTS_AT_ONCE))
                .collect();
            self.serve(requests);
        }
    }

    fn serve(&mut self, requests: Vec<Request>) {
        let mut batch = self.decide(&requests, None);
        if batch.needs_disk(&self.file)
            && let Err(reason) = self.persist(&batch)
        {
            // Requests that need no disk are still served, so that liveness and leadership do not
            // depend on it.
            batch = self.decide(&requests, Some(&reason));
        }
        let mut leases = self.shared.leases();
        batch.ended.iter().for_each(|lease| leases.remove(*lease));
        drop(leases);
        if !batch.changes.is_empty() {
            self.shared.index.write().apply(batch.changes);
            self.changed.send_replace(batch.revision);
        }
        for (request, result) in requests.into_iter().zip(batch.results) {
            if let Some(answer) = request.answer {
                // The requester may have given up.
                let _ = answer.send(result);
            }
        }
    }

    /// Computes the results of the requests in order. Requests that need the disk are rejected if
    /// it has failed.
    fn decide(&self, requests: &[Request], failed: Option<&str>) -> Batch {
        let (index, mut leases) = (self.shared.index(), self.shared.leases());
        let mut batch = Batch {
            revision: index.revision(),
            ..Batch::default()
        };
        for request in requests {
            let mut step = Step {
                index: &index,
                batch: &mut batch,
                max_revision: self.file.revisions(),
                failed,
            };
            let result = match &request.job {
                Job::Commit(writes) => step.commit(writes, &mut leases),
                Job::Revoke(lease) => step.revoke(*lease, &leases),
                Job::Wake => Ok(batch.revision),
            };
            batch.results.push(result);
        }
        batch
    }

    fn persist(&mut self, batch: &Batch) -> Result<(), String> {
        if let Some((at, reason)) = &self.failed
            && at.elapsed() < RETRY_AFTER
        {
            return Err(reason.clone());
        }
        let recovered = self.file.recover(self.shared.index().durable());
        match recovered.and_then(|()| self.file.write(&batch.rows, batch.revision)) {
            Ok(()) => {
                if self.failed.take().is_some() {
                    tracing::info!("the store has recovered");
                }
                Ok(())
            }
            Err(e) => {
                let reason = format!(
                    "the store cannot write: {e}; free space on its disk, or replace the disk"
                );
                tracing::error!("{reason}");
                self.failed = Some((Instant::now(), reason.clone()));
                Err(reason)
            }
        }
    }
}

/// The combined results of several requests, relative to the index.
#[derive(Default)]
struct Batch {
    revision: Revision,
    pending: HashMap<Arc<str>, Option<Stored>>,
    changes: Vec<(Change, Option<LeaseId>)>,
    rows: Rows,
    ended: HashSet<LeaseId>,
    results: Vec<Result<Revision, Error>>,
}

impl Batch {
    fn needs_disk(&self, file: &File) -> bool {
        !self.rows.is_empty()
            || (!self.changes.is_empty() && file.is_short_of_revisions(self.revision))
    }
}

/// The processing of one request.
struct Step<'a> {
    index: &'a Index,
    batch: &'a mut Batch,
    max_revision: Revision,
    failed: Option<&'a str>,
}

impl Step<'_> {
    fn held(&self, key: &str) -> Option<&Stored> {
        match self.batch.pending.get(key) {
            Some(pending) => pending.as_ref(),
            None => self.index.stored(key).map(|(_, stored)| stored),
        }
    }

    fn commit(&mut self, writes: &[Write], leases: &mut Leases) -> Result<Revision, Error> {
        for write in writes {
            self.check(write, leases)?;
        }
        if let Some(reason) = self.failed
            && writes.iter().any(|write| self.touches_disk(write))
        {
            return Err(Error::Unavailable(reason.into()));
        }
        let revision = self.next_revision()?;
        for write in writes {
            match &write.action {
                Action::Put { value, lease } => {
                    let key = self.put(&write.key, value.clone(), *lease, revision);
                    if let Some(lease) = lease {
                        leases.bind(*lease, key);
                    }
                }
                Action::Delete => self.delete(&write.key, revision),
                Action::Check => {}
            }
        }
        Ok(self.batch.revision)
    }

    fn revoke(&mut self, lease: LeaseId, leases: &Leases) -> Result<Revision, Error> {
        let revision = self.next_revision()?;
        for key in leases.keys(lease) {
            if self
                .held(&key)
                .is_some_and(|stored| stored.lease == Some(lease))
            {
                self.delete(&key, revision);
            }
        }
        self.batch.ended.insert(lease);
        Ok(self.batch.revision)
    }

    fn check(&self, write: &Write, leases: &Leases) -> Result<(), Error> {
        let found = self.held(&write.key).map(|stored| stored.revision);
        let is_as_expected = match write.expect {
            Expect::Any => true,
            Expect::Absent => found.is_none(),
            Expect::Revision(revision) => found == Some(revision),
        };
        if !is_as_expected {
            return Err(Error::Conflict {
                key: write.key.clone(),
                found,
            });
        }
        match write.action {
            Action::Put {
                lease: Some(lease), ..
            } if !leases.exists(lease) || self.batch.ended.contains(&lease) => {
                Err(Error::LeaseGone(lease))
            }
            _ => Ok(()),
        }
    }

    fn is_in_file(&self, key: &str) -> bool {
        self.held(key).is_some_and(|stored| stored.lease.is_none())
    }

    fn touches_disk(&self, write: &Write) -> bool {
        match write.action {
            Action::Put { lease: None, .. } => true,
            Action::Put { .. } | Action::Delete => self.is_in_file(&write.key),
            Action::Check => false,
        }
    }

    fn next_revision(&self) -> Result<Revision, Error> {
        let revision = self.batch.revision + 1;
        if revision > self.max_revision {
            let reason = self.failed.unwrap_or("too many changes at once");
            return Err(Error::Unavailable(reason.into()));
        }
        Ok(revision)
    }

    fn put(
        &mut self,
        key: &str,
        value: Arc<[u8]>,
        lease: Option<LeaseId>,
        revision: Revision,
    ) -> Arc<str> {
        let key: Arc<str> = match self.index.stored(key) {
            Some((key, _)) => key.clone(),
            None => key.into(),
        };
        let stored = Stored {
            value: value.clone(),
            revision,
            lease,
        };
        if lease.is_none() {
            self.batch.rows.insert(key.clone(), Some(stored.clone()));
        } else if self.is_in_file(&key) {
            self.batch.rows.insert(key.clone(), None);
        }
        self.batch.pending.insert(key.clone(), Some(stored));
        self.batch.changes.push((
            Change::Put(Entry {
                key: key.clone(),
                value,
                revision,
            }),
            lease,
        ));
        self.batch.revision = revision;
        key
    }

    fn delete(&mut self, key: &str, revision: Revision) {
        if self.held(key).is_none() {
            return;
        }
        let key: Arc<str> = key.into();
        if self.is_in_file(&key) {
            self.batch.rows.insert(key.clone(), None);
        }
        self.batch.pending.insert(key.clone(), None);
        self.batch
            .changes
            .push((Change::Delete { key, revision }, None));
        self.batch.revision = revision;
    }
}
