//! Packets and messages from the sender upstream.

use super::{Broadcast, BroadcastEvent, Command, Outgoing, Serving};
use crate::budget::LayerRates;
use crate::cache::Cache;
use hawser_fanout::Frame;
use hawser_objects::{Encodings, Host, HostConfig, IPV4_UDP, RelayedPacket, UpstreamEvent};
use hawser_packets::session::{Announcement, Goodbye};
use hawser_units::{ByteSize, Instant};
use std::collections::BTreeMap;
use std::num::NonZeroU16;

/// The number of the relay's hop key. It does not rotate: a start makes another one.
const HOP: u16 = 0;

impl Broadcast {
    /// Adds a packet to the cache, and queues it for the subscribers that get it from there.
    pub(super) fn handle_packet(&mut self, now: Instant, packet: RelayedPacket) {
        let id = packet.header.id;
        let size = ByteSize(packet.datagram.len() as u64) + IPV4_UDP;
        let layer = (id.object.alias, id.object.layer);
        self.rates.add(layer, packet.header.priority, size);
        if let Some(count) = packet.header.count {
            self.counts.insert(id.object, count);
        }
        self.cache.add(now, packet);
        let newest = self.newest.entry(id.object.alias).or_insert(Frame::FIRST);
        *newest = Frame::of(&id.object).max(*newest);
        let newest = *newest;
        self.catching_up.retain(|session| {
            let Some(watcher) = self.watchers.get_mut(session) else {
                return false;
            };
            if let Some(catch_up) = watcher.catching_up.get(&id.object.alias) {
                if catch_up.includes(&id) && watcher.sending.send_earlier(id) {
                    self.sending.insert(*session);
                }
                if catch_up.is_over(newest) {
                    watcher.catching_up.remove(&id.object.alias);
                }
            }
            !watcher.catching_up.is_empty()
        });
    }

    /// Returns whether all packets of an object are in the cache.
    pub(super) fn is_complete(&self, object: &hawser_packets::media::ObjectId) -> bool {
        let count = self.counts.get(object).copied().map(NonZeroU16::get);
        let kept = self.cache.object(object).map(BTreeMap::len);
        count.is_some_and(|count| kept == Some(usize::from(count)))
    }

    pub(super) fn take_upstream_events(&mut self, now: Instant) {
        while let Some(event) = self.upstream.poll_event() {
            match event {
                UpstreamEvent::Opened {
                    bytes,
                    announcement,
                } => self.open(now, bytes, announcement),
                UpstreamEvent::Ended(reason) => {
                    self.events.push_back(BroadcastEvent::UpstreamEnded(reason));
                }
            }
        }
    }

    /// Passes the status of the sender upstream to the subscribers and to the sender of packets.
    pub(super) fn take_status(&mut self) {
        let Some(serving) = &mut self.serving else {
            return;
        };
        serving.host.set_relays(self.upstream.relays());
        if let Some(status) = self.upstream.status() {
            serving.host.set_keys(HOP, status.epochs.clone());
        }
        if let Some(ahead) = self.upstream.publisher_ahead_nanos() {
            serving.host.set_publisher_clock(ahead);
        }
        if let Some(hops) = self.upstream.hops() {
            let numbers = hops.each_ref().map(|hop| hop.number);
            if serving.hops.replace(numbers) != Some(numbers) {
                self.commands.push_back(Command::SetHops(hops.clone()));
            }
        }
    }

    /// Serves the broadcast that a publisher announces. If it is the same as before, the sessions stay open.
    fn open(&mut self, now: Instant, announced: Vec<u8>, announcement: Announcement) {
        let is_same = |serving: &Serving| serving.announced == announced;
        if !self.serving.as_ref().is_some_and(is_same) {
            self.end_sessions(Goodbye::Restarting);
            self.ended.host = self.host_stats();
            self.cache = Cache::new(self.config.cache);
            self.counts.clear();
            self.rates = LayerRates::new(&announcement);
            self.newest.clear();
            self.serve(announced, &announcement);
        }
        if let Some(serving) = &mut self.serving {
            // Each session upstream has keys of its own.
            serving.hops = None;
        }
        // All tracks, also without subscribers: the first one gets a frame from the cache at once.
        let tracks = announcement.tracks.iter();
        let tracks = tracks.map(|track| (track.alias, track.layers)).collect();
        self.upstream.subscribe(now, tracks);
        self.events.push_back(BroadcastEvent::Opened(announcement));
    }

    fn serve(&mut self, announced: Vec<u8>, announcement: &Announcement) {
        let config = &self.config;
        // Each host needs other random numbers.
        self.hosts += 1;
        let host = HostConfig {
            sessions: config.subscribers,
            report_interval_ms: config.report_interval_ms,
            ..HostConfig::new(
                config.access.clone(),
                announced.clone(),
                config.hop_salt,
                config.seed.numbered(self.hosts),
            )
        };
        let hop = config.access.hop(&config.hop_salt, HOP);
        let aliases = announcement.tracks.iter().map(|track| track.alias);
        self.commands.push_back(Command::SetTracks {
            aliases: aliases.collect(),
            hop: hop.clone(),
        });
        self.serving = Some(Serving {
            announced,
            encodings: Encodings::of(announcement),
            hop,
            host: Host::new(host),
            hops: None,
        });
    }

    /// Ends the sessions of all subscribers.
    pub(super) fn end_sessions(&mut self, reason: Goodbye) {
        let Some(serving) = &mut self.serving else {
            return;
        };
        serving.host.close_all(reason);
        for session in std::mem::take(&mut self.watchers).into_keys() {
            self.commands.push_back(Command::Remove { session });
        }
        let messages = std::iter::from_fn(|| serving.host.poll_transmit());
        self.outgoing
            .extend(messages.map(|(to, message)| Outgoing::message(Some(to), message)));
    }
}
