use crate::catalog::{Catalog, Contents, parse};
use bytes::Bytes;
use hawser_audience::WholeObject;
use hawser_objects::AccessSecret;
use hawser_packets::media::ObjectId;
use hawser_packets::moq::{self, CATALOG, track_name};
use hawser_packets::session::Announcement;
use hawser_units::Instant;
use moq_net::{Error, Timestamp, broadcast, group, origin, track};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The objects of a broadcast for the subscribers of a [`Server`](crate::Server).
///
/// Its methods do not wait. Objects are kept for as many bytes and as long as the server's configuration
/// allows, and each subscriber receives them from there.
pub struct Egress {
    origin: origin::Producer,
    name: String,
    max_age: Duration,
    on_air: Option<OnAir>,
    stats: EgressStats,
}

/// The tracks, which remain when a publisher restarts, as do the subscriptions.
struct OnAir {
    broadcast: broadcast::Producer,
    catalog: Catalog,
    catalog_track: track::Producer,
    tracks: BTreeMap<(u32, u8), Track>,
}

struct Track {
    producer: track::Producer,
    /// The sequence number of the publisher's group 0.
    first: u64,
    open: BTreeMap<u32, Group>,
}

/// A group that further objects may follow in.
struct Group {
    producer: group::Producer,
    began: Instant,
    objects: u32,
    /// The number of objects of the group, once the last one has arrived.
    count: Option<u32>,
}

/// Counts of an [`Egress`], in objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EgressStats {
    /// Objects that were offered to subscribers.
    pub objects: u64,
    /// Objects that arrived after their group had ended.
    pub late: u64,
    /// Objects of groups with more objects or bytes than a group may have.
    pub too_long: u64,
    /// Objects that belong to no track that was announced.
    pub unknown_track: u64,
}

/// The reason to drop an object.
enum Drop {
    Late,
    TooLong,
}

/// The time after its first object for which a group is kept open, if its last object does not arrive.
const OPEN_FOR: Duration = Duration::from_secs(1);

/// The number of groups of a track that are kept open, whatever a publisher sends: those of a second at 240 frames/s.
const MAX_OPEN: usize = 256;

/// The priority of the catalog. In moq-net, higher ones are more urgent.
const CATALOG_PRIORITY: u8 = 255;

/// The priority of sound, and of bases. Each layer's is lower.
const SOUND_PRIORITY: u8 = 201;
const BASE_PRIORITY: u8 = 200;

impl Egress {
    pub(crate) fn new(origin: origin::Producer, name: String, max_age: Duration) -> Self {
        Egress {
            origin,
            name,
            max_age,
            on_air: None,
            stats: EgressStats::default(),
        }
    }

    /// Announces a publisher. Has no effect if the announcement has not changed.
    pub fn announce(&mut self, contents: &Contents, access: &AccessSecret) {
        let announcement = parse(&contents.announced);
        let catalog = Catalog::new(contents, access);
        let (Some(announcement), Some(catalog)) = (announcement, catalog) else {
            return;
        };
        if self
            .on_air
            .as_ref()
            .is_some_and(|on_air| on_air.catalog == catalog)
        {
            return;
        }
        if let Err(error) = self.put_on_air(catalog, &announcement) {
            tracing::error!(
                broadcast = self.name,
                "cannot announce the broadcast over MoQ: {error}"
            );
        }
    }

    /// Lets subscribers take an object.
    pub fn publish(&mut self, object: &WholeObject) {
        let ObjectId { alias, layer, .. } = object.header.id.object;
        let track = self
            .on_air
            .as_mut()
            .and_then(|on_air| on_air.tracks.get_mut(&(alias, layer)));
        let Some(track) = track else {
            self.stats.unknown_track += 1;
            return;
        };
        match track.publish(object) {
            Ok(()) => self.stats.objects += 1,
            Err(Drop::Late) => self.stats.late += 1,
            Err(Drop::TooLong) => self.stats.too_long += 1,
        }
    }

    /// Returns the counts.
    pub const fn stats(&self) -> EgressStats {
        self.stats
    }

    fn put_on_air(&mut self, catalog: Catalog, announcement: &Announcement) -> Result<(), Error> {
        let max_age = self.max_age;
        let info = |priority| {
            track::Info::default()
                .with_max_age(max_age)
                .with_priority(priority)
        };
        let is_new = self.on_air.is_none();
        let on_air = match &mut self.on_air {
            Some(on_air) => on_air,
            none => {
                let broadcast = self.origin.create_broadcast(&self.name)?;
                let catalog_track = broadcast.create_track(CATALOG, info(CATALOG_PRIORITY))?;
                none.insert(OnAir {
                    broadcast,
                    catalog: catalog.clone(),
                    catalog_track,
                    tracks: BTreeMap::new(),
                })
            }
        };
        if is_new || on_air.catalog.announcement != catalog.announcement {
            on_air.set_tracks(announcement, info)?;
        }
        on_air.catalog = catalog;
        on_air.write_catalog(announcement.started_unix_millis)?;
        if is_new {
            // Once there is something to subscribe to.
            on_air.broadcast.announce(origin::Route::default())?;
        }
        Ok(())
    }
}

impl OnAir {
    /// Creates the tracks that a publisher announces.
    fn set_tracks(
        &mut self,
        announcement: &Announcement,
        info: impl Fn(u8) -> track::Info,
    ) -> Result<(), Error> {
        let mut before = std::mem::take(&mut self.tracks);
        for track in &announcement.tracks {
            for layer in 0..track.layers {
                let id = (track.alias, layer);
                let mut entry = match before.remove(&id) {
                    Some(entry) => entry,
                    None => {
                        let name = track_name(track.alias, layer);
                        let of_base = match track.is_sound() {
                            true => SOUND_PRIORITY,
                            false => BASE_PRIORITY,
                        };
                        let info = info(of_base - layer);
                        Track::new(self.broadcast.create_track(name, info)?)
                    }
                };
                entry.restart(announcement.started_unix_millis);
                self.tracks.insert(id, entry);
            }
        }
        for mut track in before.into_values() {
            track.finish_all();
            // It has ended otherwise, too, when it is dropped.
            let _ = track.producer.finish();
        }
        Ok(())
    }

    fn write_catalog(&mut self, started: u64) -> Result<(), Error> {
        let sequence = following(&self.catalog_track, started);
        let info = group::Info { sequence };
        let mut group = self.catalog_track.create_group(info)?;
        group.write_frame(Timestamp::now(), self.catalog.to_json())?;
        group.finish()
    }
}

/// Returns a sequence number above all that a track has had, at least `least`.
fn following(track: &track::Producer, least: u64) -> u64 {
    let latest = track.latest();
    latest.map_or(least, |latest| least.max(latest.saturating_add(1)))
}

impl Track {
    const fn new(producer: track::Producer) -> Self {
        Track {
            producer,
            first: 0,
            open: BTreeMap::new(),
        }
    }

    /// Begins with a publisher's group 0. Sequence numbers continue to rise, because subscribers drop groups
    /// below the newest ones: they begin at the start of the publisher in milliseconds, and there are fewer
    /// than 1000 groups in a second.
    fn restart(&mut self, started_unix_millis: u64) {
        self.finish_all();
        self.first = following(&self.producer, started_unix_millis);
    }

    fn publish(&mut self, object: &WholeObject) -> Result<(), Drop> {
        let now = object.arrived;
        let id = object.header.id.object;
        let datagrams = object.datagrams.iter().map(|datagram| &datagram[..]);
        let payload = moq::emit(datagrams).map(Bytes::from).ok_or(Drop::TooLong)?;
        self.finish_old(now);
        if !self.open.contains_key(&id.group) {
            self.make_room();
            let sequence = self.first.saturating_add(id.group.into());
            let info = group::Info { sequence };
            let producer = self.producer.create_group(info).map_err(|_| Drop::Late)?;
            let group = Group {
                producer,
                began: now,
                objects: 0,
                count: None,
            };
            self.open.insert(id.group, group);
        }
        let group = self.open.get_mut(&id.group).ok_or(Drop::Late)?;
        if object.header.flags.last_in_group {
            group.count = Some(id.object.saturating_add(1));
        }
        let millis = now.as_nanos() / 1_000_000;
        let stamp = Timestamp::from_millis(millis).map_err(|_| Drop::TooLong)?;
        let written = group.producer.write_frame(stamp, payload);
        group.objects += 1;
        if group.count == Some(group.objects) {
            self.finish(id.group);
        }
        // The cache drops a group for subscribers that are behind, except the newest one.
        written.map_err(|error| match error {
            Error::GroupTooLarge | Error::FrameTooLarge => Drop::TooLong,
            _ => Drop::Late,
        })
    }

    fn finish_old(&mut self, now: Instant) {
        let old = |group: &Group| now.saturating_since(group.began) > OPEN_FOR;
        let groups = self.open.iter().filter(|(_, group)| old(group));
        let groups: Vec<u32> = groups.map(|(number, _)| *number).collect();
        for number in groups {
            self.finish(number);
        }
    }

    /// Finishes the lowest group if there are as many as may be open.
    fn make_room(&mut self) {
        if self.open.len() >= MAX_OPEN
            && let Some((lowest, _)) = self.open.first_key_value()
        {
            self.finish(*lowest);
        }
    }

    fn finish_all(&mut self) {
        let groups: Vec<u32> = self.open.keys().copied().collect();
        for number in groups {
            self.finish(number);
        }
    }

    fn finish(&mut self, number: u32) {
        if let Some(group) = self.open.remove(&number) {
            // The group has ended if the cache has dropped it.
            let _ = group.producer.finish();
        }
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress")
            .field("name", &self.name)
            .field("is_on_air", &self.on_air.is_some())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
