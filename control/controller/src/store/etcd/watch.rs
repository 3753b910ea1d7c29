//! A watch that resumes where it was interrupted whenever the connection to etcd is lost, or etcd does
//! not answer on it.

use crate::store::{Change, Entry, Error, Progress, Revision, Watch};
use etcd_client::{
    Client, Error as EtcdError, EventType, WatchClient, WatchOptions, WatchResponse, WatchStream,
};
use futures_util::stream::{self, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The initial and the maximum pause before etcd is retried.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The time without changes after which etcd is asked whether the watch is alive, and the time that it
/// has to answer.
const ASK_AFTER: Duration = Duration::from_secs(5);

/// The identifier in answers to that question. Before 3.4.25 and 3.5.8, their revision may be ahead of
/// the delivered changes.
const NO_WATCH: i64 = -1;

pub(super) struct Watcher {
    client: Client,
    watches: WatchClient,
    progress: Arc<Progress>,
    /// The prefix of all keys of the store.
    root: String,
    /// The prefix of the watched keys.
    prefix: String,
    /// All changes up to this revision have been delivered.
    after: Revision,
    stream: Option<WatchStream>,
    pause: Duration,
    ended: bool,
}

impl Watcher {
    pub(super) fn new(
        client: &Client,
        progress: Arc<Progress>,
        root: &str,
        prefix: &str,
        after: Revision,
    ) -> Watcher {
        let watches = client.watch_client();
        Watcher {
            client: client.clone(),
            watches: watches.max_decoding_message_size(super::MAX_RESPONSE_BYTES),
            progress,
            root: root.into(),
            prefix: format!("{root}{prefix}"),
            after,
            stream: None,
            pause: PAUSE.0,
            ended: false,
        }
    }

    pub(super) fn into_stream(self) -> Watch {
        stream::unfold(self, Watcher::next)
            .flat_map(stream::iter)
            .boxed()
    }

    async fn next(mut self) -> Option<(Vec<Result<Change, Error>>, Watcher)> {
        while !self.ended {
            match self.answer().await {
                Ok(answer) if answer.compact_revision() > 0 => {
                    self.ended = true;
                    return Some((vec![Err(Error::Compacted(self.after))], self));
                }
                Ok(answer) if answer.canceled() => {
                    self.back_off(answer.cancel_reason()).await;
                    self.authenticate().await;
                }
                Ok(answer) => {
                    self.pause = PAUSE.0;
                    self.progress.complete();
                    let changes = self.take(&answer);
                    if !changes.is_empty() {
                        return Some((changes.into_iter().map(Ok).collect(), self));
                    }
                }
                Err(e) => self.back_off(&super::with_causes(&e)).await,
            }
        }
        None
    }

    async fn answer(&mut self) -> Result<WatchResponse, EtcdError> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            none => {
                let options = WatchOptions::new()
                    .with_range(super::end_of(&self.prefix))
                    .with_start_revision((self.after + 1).cast_signed())
                    .with_progress_notify();
                let opened = self.watches.watch(self.prefix.clone(), Some(options));
                none.insert(timeout(ASK_AFTER, opened).await.map_err(unanswered)??)
            }
        };
        let answer = match timeout(ASK_AFTER, stream.message()).await {
            Ok(answer) => answer,
            Err(_) => {
                stream.request_progress().await?;
                let answer = timeout(ASK_AFTER, stream.message()).await;
                answer.map_err(unanswered)?
            }
        };
        let ended = || EtcdError::WatchError("the stream has ended".into());
        answer?.ok_or_else(ended)
    }

    /// Authenticates again: etcd cancels watches whose token it does not know, as after its restart, and
    /// the client renews tokens of other requests only. Whether it succeeds, the next watch shows.
    async fn authenticate(&self) {
        if let Ok(Err(error)) = timeout(ASK_AFTER, self.client.refresh_token()).await {
            tracing::warn!(
                "cannot authenticate to etcd: {}",
                super::with_causes(&error)
            );
        }
    }

    fn take(&mut self, answer: &WatchResponse) -> Vec<Change> {
        let mut changes = Vec::with_capacity(answer.events().len());
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            // For a deletion, this is the revision of the deletion itself.
            self.after = self.after.max(kv.mod_revision().cast_unsigned());
            let Some(entry) = super::entry(&self.root, kv.clone()) else {
                continue;
            };
            changes.push(change(event.event_type(), entry));
        }
        // A response without events reports the progress of the watch; in others the header's
        // revision may be ahead of the delivered events.
        if answer.events().is_empty()
            && !answer.created()
            && answer.watch_id() != NO_WATCH
            && let Some(header) = answer.header()
        {
            self.after = self.after.max(header.revision().cast_unsigned());
        }
        changes
    }

    async fn back_off(&mut self, reason: &str) {
        self.stream = None;
        self.progress.interrupted(reason);
        tracing::warn!(
            prefix = self.prefix,
            "the watch was interrupted, resuming in {:?}: {reason}",
            self.pause
        );
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }
}

fn unanswered(_: tokio::time::error::Elapsed) -> EtcdError {
    EtcdError::WatchError("etcd does not answer on the watch".into())
}

fn change(kind: EventType, entry: Entry) -> Change {
    match kind {
        EventType::Put => Change::Put(entry),
        EventType::Delete => Change::Delete {
            key: entry.key,
            revision: entry.revision,
        },
    }
}
