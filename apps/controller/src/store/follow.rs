//! Keeping up with a part of the store, whatever happens to it.

use super::{Change, Entry, Error, Store, Watch};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before a store that failed is asked again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// All entries under a prefix, and from then on every change to them.
pub struct Follow {
    store: Arc<dyn Store>,
    prefix: String,
    watch: Option<Watch>,
    pause: Duration,
}

/// What is new.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// This is all there is; what was known before is void. First, and again whenever changes were missed.
    All(Vec<Entry>),
    /// Something was written.
    Change(Change),
}

impl Follow {
    /// The entries whose keys begin with `prefix`.
    pub fn new(store: Arc<dyn Store>, prefix: impl Into<String>) -> Follow {
        Follow {
            store,
            prefix: prefix.into(),
            watch: None,
            pause: PAUSE.0,
        }
    }

    /// Waits for the next update. A store that cannot be reached is asked until it answers. Nothing is lost when the
    /// future is dropped.
    pub async fn next(&mut self) -> Update {
        loop {
            let Some(watch) = &mut self.watch else {
                match self.store.list_all(&self.prefix).await {
                    Ok((entries, revision)) => {
                        self.watch = Some(self.store.watch(&self.prefix, revision));
                        self.pause = PAUSE.0;
                        return Update::All(entries);
                    }
                    Err(e) => self.rest(&e).await,
                }
                continue;
            };
            match watch.next().await {
                Some(Ok(change)) => return Update::Change(change),
                Some(Err(Error::Compacted(_))) | None => self.watch = None,
                Some(Err(e)) => {
                    self.watch = None;
                    self.rest(&e).await;
                }
            }
        }
    }

    async fn rest(&mut self, error: &Error) {
        tracing::warn!(
            prefix = self.prefix,
            "the store is asked again in {:?}: {error}",
            self.pause
        );
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }
}
