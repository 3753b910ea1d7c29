//! A view of a part of the store that survives its outages.

use super::{Change, Entry, Error, Progress, Store, Watch};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;

/// The initial and the maximum pause before a failed store is retried.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// All entries under a prefix, followed by every change to them.
pub struct Follow {
    store: Arc<dyn Store>,
    prefix: String,
    watch: Option<Watch>,
    pause: Duration,
    progress: Arc<Progress>,
}

/// An update of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// All current entries, which replace those known before. It comes first, and again whenever
    /// changes were missed.
    All(Vec<Entry>),
    /// A change.
    Change(Change),
}

impl Follow {
    /// Follows the entries whose keys begin with `prefix`.
    pub fn new(store: Arc<dyn Store>, prefix: impl Into<String>) -> Follow {
        Follow {
            store,
            prefix: prefix.into(),
            watch: None,
            pause: PAUSE.0,
            progress: Arc::default(),
        }
    }

    /// Returns whether the view is up to date.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Waits for the next update. An unreachable store is retried until it responds. Cancel safe:
    /// nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Update {
        loop {
            let Some(watch) = &mut self.watch else {
                match self.store.list_all(&self.prefix).await {
                    Ok((entries, revision)) => {
                        self.progress.complete();
                        let (store, progress) = (&self.store, &self.progress);
                        self.watch = Some(store.watch_noting(&self.prefix, revision, progress));
                        self.pause = PAUSE.0;
                        return Update::All(entries);
                    }
                    Err(e) => self.back_off(&e).await,
                }
                continue;
            };
            match watch.next().await {
                Some(Ok(change)) => return Update::Change(change),
                Some(Err(Error::Compacted(_))) | None => self.watch = None,
                Some(Err(e)) => {
                    self.watch = None;
                    self.back_off(&e).await;
                }
            }
        }
    }

    async fn back_off(&mut self, error: &Error) {
        self.progress.interrupted(&error.to_string());
        tracing::warn!(
            prefix = self.prefix,
            "the store failed, retrying in {:?}: {error}",
            self.pause
        );
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }
}
