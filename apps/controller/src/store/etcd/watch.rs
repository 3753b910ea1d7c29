//! A watch that resumes where it was interrupted whenever the connection to etcd is lost.

use crate::store::{Change, Entry, Error, Revision, Watch};
use etcd_client::{
    Error as EtcdError, EventType, WatchClient, WatchOptions, WatchResponse, WatchStream,
};
use futures_util::stream::{self, StreamExt};
use std::time::Duration;

/// The initial and the maximum pause before etcd is retried.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

pub(super) struct Watcher {
    client: WatchClient,
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
    pub(super) fn new(client: WatchClient, root: &str, prefix: &str, after: Revision) -> Watcher {
        Watcher {
            client: client.max_decoding_message_size(super::MAX_RESPONSE_BYTES),
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
                Ok(answer) if answer.canceled() => self.back_off(answer.cancel_reason()).await,
                Ok(answer) => {
                    self.pause = PAUSE.0;
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
                none.insert(
                    self.client
                        .watch(self.prefix.clone(), Some(options))
                        .await?,
                )
            }
        };
        let ended = || EtcdError::WatchError("the stream has ended".into());
        stream.message().await?.ok_or_else(ended)
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
            && let Some(header) = answer.header()
        {
            self.after = self.after.max(header.revision().cast_unsigned());
        }
        changes
    }

    async fn back_off(&mut self, reason: &str) {
        self.stream = None;
        tracing::warn!(
            prefix = self.prefix,
            "the watch was interrupted, resuming in {:?}: {reason}",
            self.pause
        );
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }
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
