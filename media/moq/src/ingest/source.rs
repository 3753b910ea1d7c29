//! The parts of a broadcast that are received: its catalog, and the tracks of its layers.

use crate::catalog::{Catalog, CatalogError, Contents, parse};
use bytes::Bytes;
use hawser_objects::AccessSecret;
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::moq::{CATALOG, track_name};
use moq_net::{Error, broadcast, group, track};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::Sender;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// An event of a source.
#[derive(Debug)]
pub(super) enum Taken {
    /// Another session with the source has begun.
    Begun,
    /// A catalog that was verified.
    Catalog(Contents),
    /// An object.
    Object {
        /// Alias and layer of the track in which it arrived.
        track: (u32, u8),
        /// The sequence number of its group.
        sequence: u64,
        /// The payload.
        payload: Bytes,
    },
    /// The broadcast has ended.
    Ended,
}

/// Counts of what is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SourceStats {
    /// Catalogs refused with [`CatalogError::TooLong`].
    pub(super) catalog_too_long: u64,
    /// Catalogs refused with [`CatalogError::Invalid`].
    pub(super) catalog_invalid: u64,
    /// Catalogs refused with [`CatalogError::Forged`].
    pub(super) catalog_forged: u64,
    /// Objects longer than [`MAX_OBJECT`].
    pub(super) too_long: u64,
    /// Objects that were not received completely.
    pub(super) incomplete: u64,
    /// Groups that were given up because too many of their track were open.
    pub(super) too_many: u64,
}

/// Receives a broadcast until it ends.
pub(super) struct Source {
    broadcast: broadcast::Consumer,
    access: AccessSecret,
    taken: Sender<Taken>,
    stats: Arc<Mutex<SourceStats>>,
    /// The tracks that are received, by alias and layer.
    tracks: BTreeMap<(u32, u8), AbortHandle>,
    tasks: JoinSet<()>,
}

/// A track that is taken.
#[derive(Clone)]
struct Track {
    id: (u32, u8),
    priority: u8,
    taken: Sender<Taken>,
    stats: Arc<Mutex<SourceStats>>,
}

/// The maximum number of bytes of an object: as many packets as viewers take.
pub(super) const MAX_OBJECT: u64 = 8192 * DEFAULT_DATAGRAM as u64;

/// The maximum number of groups of a track that are read at a time.
const MAX_GROUPS: usize = 32;

/// The time after which an incomplete object is given up, and the age of the oldest groups that are
/// requested.
const OBJECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause before a track is requested again.
const PAUSE: Duration = Duration::from_millis(500);

/// The priority of the catalog, of sound and of bases. In moq-net, higher ones are more urgent.
const CATALOG_PRIORITY: u8 = 255;
const SOUND_PRIORITY: u8 = 201;
const BASE_PRIORITY: u8 = 200;

impl Source {
    pub(super) fn new(
        broadcast: broadcast::Consumer,
        access: AccessSecret,
        taken: Sender<Taken>,
        stats: Arc<Mutex<SourceStats>>,
    ) -> Self {
        Source {
            broadcast,
            access,
            taken,
            stats,
            tracks: BTreeMap::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Takes it until its catalog ends.
    pub(super) async fn take(mut self) -> Result<(), Error> {
        let mut catalogs = subscribe(&self.broadcast, CATALOG, CATALOG_PRIORITY).await?;
        while let Some(mut group) = catalogs.recv_group().await? {
            // Others may follow a truncated one.
            let Ok(Ok(Some(catalog))) =
                timeout(OBJECT_TIMEOUT, read(&mut group, Catalog::MAX as u64)).await
            else {
                self.stats.lock().catalog_invalid += 1;
                continue;
            };
            let verified = match catalog {
                Read::Whole(catalog) => Catalog::verify(&catalog, &self.access),
                Read::TooLong => Err(CatalogError::TooLong),
            };
            match verified {
                Ok(contents) => self.take_tracks(contents).await,
                Err(error) => {
                    self.stats.lock().count(error);
                    tracing::warn!("catalog of the MoQ source refused: {error}");
                }
            }
        }
        Ok(())
    }

    /// Receives the tracks of a catalog, and no others.
    async fn take_tracks(&mut self, contents: Contents) {
        let announcement = parse(&contents.announced);
        // It ends with the thread.
        let _ = self.taken.send(Taken::Catalog(contents)).await;
        let mut before = std::mem::take(&mut self.tracks);
        for track in announcement
            .iter()
            .flat_map(|announcement| &announcement.tracks)
        {
            for layer in 0..track.layers {
                let id = (track.alias, layer);
                let task = before.remove(&id).unwrap_or_else(|| {
                    let of_base = match track.is_sound() {
                        true => SOUND_PRIORITY,
                        false => BASE_PRIORITY,
                    };
                    let track = Track {
                        id,
                        priority: of_base - layer,
                        taken: self.taken.clone(),
                        stats: Arc::clone(&self.stats),
                    };
                    self.tasks.spawn(track.take(self.broadcast.clone()))
                });
                self.tracks.insert(id, task);
            }
        }
        for ended in before.into_values() {
            ended.abort();
        }
    }
}

impl Track {
    /// Receives it until the task is aborted.
    async fn take(self, broadcast: broadcast::Consumer) {
        let (alias, layer) = self.id;
        let name = track_name(alias, layer);
        loop {
            let outcome = match subscribe(&broadcast, &name, self.priority).await {
                Ok(track) => self.take_groups(track).await,
                Err(error) => Err(error),
            };
            tracing::debug!(
                track = name,
                ?outcome,
                "MoQ track ended; requesting it again"
            );
            sleep(PAUSE).await;
        }
    }

    async fn take_groups(&self, mut track: track::Subscriber) -> Result<(), Error> {
        let mut tasks = JoinSet::new();
        let mut groups: VecDeque<AbortHandle> = VecDeque::new();
        while let Some(group) = track.recv_group().await? {
            while tasks.try_join_next().is_some() {}
            groups.retain(|group| !group.is_finished());
            if groups.len() == MAX_GROUPS
                && let Some(oldest) = groups.pop_front()
            {
                oldest.abort();
                self.stats.lock().too_many += 1;
            }
            groups.push_back(tasks.spawn(self.clone().take_group(group)));
        }
        tasks.join_all().await;
        Ok(())
    }

    async fn take_group(self, mut group: group::Consumer) {
        let sequence = group.sequence;
        loop {
            match read(&mut group, MAX_OBJECT).await {
                Ok(Some(Read::Whole(payload))) => {
                    let object = Taken::Object {
                        track: self.id,
                        sequence,
                        payload,
                    };
                    if self.taken.send(object).await.is_err() {
                        return;
                    }
                }
                Ok(Some(Read::TooLong)) => {
                    self.stats.lock().too_long += 1;
                    return;
                }
                Ok(None) => return,
                Err(Error::FrameTooLarge | Error::GroupTooLarge) => {
                    self.stats.lock().too_long += 1;
                    return;
                }
                Err(_) => {
                    self.stats.lock().incomplete += 1;
                    return;
                }
            }
        }
    }
}

impl SourceStats {
    const fn count(&mut self, error: CatalogError) {
        match error {
            CatalogError::TooLong => self.catalog_too_long += 1,
            CatalogError::Invalid => self.catalog_invalid += 1,
            CatalogError::Forged => self.catalog_forged += 1,
        }
    }
}

/// An object that was read, or not.
enum Read {
    Whole(Bytes),
    TooLong,
}

/// Reads the next object of a group; `None` after the last one.
async fn read(group: &mut group::Consumer, max: u64) -> Result<Option<Read>, Error> {
    let Some(mut frame) = group.next_frame().await? else {
        return Ok(None);
    };
    if frame.size > max {
        return Ok(Some(Read::TooLong));
    }
    let whole = timeout(OBJECT_TIMEOUT, frame.read_all()).await;
    let whole = whole.unwrap_or(Err(Error::Timeout))?;
    Ok(Some(Read::Whole(whole)))
}

async fn subscribe(
    broadcast: &broadcast::Consumer,
    name: &str,
    priority: u8,
) -> Result<track::Subscriber, Error> {
    let subscription = track::Subscription::default()
        .with_priority(priority)
        .with_max_age(OBJECT_TIMEOUT);
    broadcast.track(name)?.subscribe(subscription).await
}
