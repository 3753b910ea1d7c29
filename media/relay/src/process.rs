//! The process as the sender of packets, for those to whom the kernel's program cannot send.

use crate::forward::{Begun, BroadcastIndex, Forwarder, Outcomes, Served};
use anyhow::{Context, Result};
use hawser_audience::Command;
use hawser_fanout::{
    Budget, Frame, Relay, SlotIndex, SlotPool, Subscriber, TrackHop, TrackIndex, Verdict,
};
use hawser_packets::media::{DEFAULT_DATAGRAM, Hop};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Sends each packet from the relay's socket. Who is sent which objects it decides by the specification of the
/// kernel's program, so a subscriber gets the same from both.
pub(crate) struct Process {
    relay: Relay,
    sources: BTreeMap<BroadcastIndex, Source>,
    members: BTreeMap<(BroadcastIndex, u32), SlotIndex>,
    by_slot: BTreeMap<SlotIndex, Member>,
    free: SlotPool,
}

#[derive(Debug, Default)]
struct Source {
    /// Whether the kernel's program has verified the packets, and tagged them for the next hop.
    is_retagged: bool,
    hops: Option<[Hop; 3]>,
    own_hop: Option<Hop>,
    tracks: BTreeMap<u32, TrackIndex>,
}

struct Member {
    broadcast: BroadcastIndex,
    session: u32,
    address: SocketAddr,
}

impl Process {
    pub(crate) fn new() -> Self {
        Process {
            relay: Relay::new(DEFAULT_DATAGRAM),
            sources: BTreeMap::new(),
            members: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            free: SlotPool::new(),
        }
    }

    /// Sets whether packets of a broadcast arrive with the relay's own tags.
    pub(crate) fn expect_retagged(&mut self, broadcast: BroadcastIndex, is_retagged: bool) {
        self.sources.entry(broadcast).or_default().is_retagged = is_retagged;
        self.set_upstream(broadcast);
    }

    fn set_upstream(&mut self, broadcast: BroadcastIndex) {
        let source = self.sources.entry(broadcast).or_default();
        let hops = if source.is_retagged {
            [source.own_hop.clone(), None, None]
        } else {
            source
                .hops
                .clone()
                .map_or([const { None }; 3], |hops| hops.map(Some))
        };
        self.relay.set_upstream(broadcast as u32, hops);
    }

    fn set_tracks(&mut self, broadcast: BroadcastIndex, aliases: &[u32], hop: &Hop) -> Result<()> {
        let source = self.sources.entry(broadcast).or_default();
        source.own_hop = Some(hop.clone());
        for alias in std::mem::take(&mut source.tracks).into_keys() {
            self.relay.name_track(broadcast as u32, alias, None);
        }
        for alias in aliases {
            let is_used = |track: &TrackIndex| {
                let mut sources = self.sources.values();
                sources.any(|source| source.tracks.values().any(|used| used == track))
            };
            let free = TrackIndex::all().find(|track| !is_used(track));
            let track = free.context("the relay has no room for further tracks")?;
            self.relay.add_track(track, TrackHop::Own(hop.clone()));
            self.relay.name_track(broadcast as u32, *alias, Some(track));
            let source = self.sources.entry(broadcast).or_default();
            source.tracks.insert(*alias, track);
        }
        self.set_upstream(broadcast);
        Ok(())
    }

    fn add(
        &mut self,
        now: Instant,
        (broadcast, session): (BroadcastIndex, u32),
        address: SocketAddr,
        budget: Budget,
    ) -> Result<()> {
        let slot = self.free.take(now);
        let slot = slot.context("the relay has no room for further viewers")?;
        let subscriber = Subscriber {
            is_ipv6: address.is_ipv6(),
            since: now,
            expires: Instant::MAX,
            budget,
        };
        self.relay.add_subscriber(slot, subscriber);
        self.members.insert((broadcast, session), slot);
        let member = Member {
            broadcast,
            session,
            address,
        };
        self.by_slot.insert(slot, member);
        Ok(())
    }

    fn slot(&self, broadcast: BroadcastIndex, session: u32) -> Option<SlotIndex> {
        self.members.get(&(broadcast, session)).copied()
    }

    fn find(
        &self,
        broadcast: BroadcastIndex,
        session: u32,
        alias: u32,
    ) -> Option<(TrackIndex, SlotIndex)> {
        let track = self.sources.get(&broadcast)?.tracks.get(&alias)?;
        Some((*track, self.slot(broadcast, session)?))
    }
}

impl Forwarder for Process {
    fn connect(&mut self, _: BroadcastIndex, _: SocketAddr, _: SocketAddr) -> Result<()> {
        Ok(())
    }

    fn handle_command(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        command: Command,
    ) -> Result<()> {
        match command {
            Command::SetHops(hops) => {
                self.sources.entry(broadcast).or_default().hops = Some(hops);
                self.set_upstream(broadcast);
            }
            Command::SetTracks { aliases, hop } => self.set_tracks(broadcast, &aliases, &hop)?,
            Command::Add {
                session,
                address,
                budget,
            } => self.add(now, (broadcast, session), address, budget)?,
            Command::Remove { session } => {
                if let Some(slot) = self.members.remove(&(broadcast, session)) {
                    self.relay.remove_subscriber(slot);
                    self.by_slot.remove(&slot);
                    self.free.give_back(now, slot);
                }
            }
            Command::Subscribe {
                session,
                alias,
                selection,
            } => {
                if let Some((track, slot)) = self.find(broadcast, session, alias) {
                    self.relay.subscribe(track, slot, selection);
                }
            }
            Command::Select {
                session,
                alias,
                layers,
            } => {
                if let Some((track, slot)) = self.find(broadcast, session, alias) {
                    self.relay.select(track, slot, layers);
                }
            }
            Command::Unsubscribe { session, alias } => {
                if let Some((track, slot)) = self.find(broadcast, session, alias) {
                    self.relay.unsubscribe(track, slot);
                }
            }
            Command::SetBudget { session, budget } => {
                if let Some(slot) = self.slot(broadcast, session) {
                    self.relay.set_budget(slot, budget);
                }
            }
            Command::Spend {
                session,
                priority,
                bytes,
            } => {
                if let Some(slot) = self.slot(broadcast, session) {
                    self.relay.spend(slot, priority, bytes);
                }
            }
        }
        Ok(())
    }

    fn handle_datagram(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        datagram: &[u8],
    ) -> Option<(Vec<u8>, Vec<SocketAddr>)> {
        let mut members = self.members.range((broadcast, 0)..=(broadcast, u32::MAX));
        members.next()?;
        let mut tagged = datagram.to_vec();
        // The broadcast refuses, and counts, the same packets.
        let delivery = self
            .relay
            .handle_datagram(now, broadcast as u32, &mut tagged);
        let to = delivery.ok()?.to.into_iter();
        let to = to.filter_map(|slot| Some(self.by_slot.get(&slot)?.address));
        let to: Vec<SocketAddr> = to.collect();
        (!to.is_empty()).then_some((tagged, to))
    }

    fn begun(&mut self) -> Vec<Begun> {
        let registrations = std::iter::from_fn(|| self.relay.poll_registration());
        let begun = registrations.filter_map(|registration| {
            let served = registration.served.iter();
            let served: Vec<&Member> = served.filter_map(|slot| self.by_slot.get(&slot)).collect();
            Some(Begun {
                broadcast: served.first()?.broadcast,
                object: registration.object,
                served: served.iter().map(|member| member.session).collect(),
            })
        });
        begun.collect()
    }

    fn joined(&self, broadcast: BroadcastIndex, session: u32, alias: u32) -> Option<Frame> {
        let (track, slot) = self.find(broadcast, session, alias)?;
        self.relay.joined(track, slot)
    }

    fn renew(&mut self, _: Instant) {}

    fn retags(&self, broadcast: BroadcastIndex) -> bool {
        let source = self.sources.get(&broadcast);
        source.is_some_and(|source| source.is_retagged)
    }

    fn outcomes(&self) -> Outcomes {
        Outcomes::new()
    }

    fn track_outcomes(&self, _: BroadcastIndex) -> Vec<(u32, Outcomes)> {
        Vec::new()
    }

    fn served(&self, broadcast: BroadcastIndex, session: u32) -> Option<Served> {
        let stats = self.relay.slot_stats(self.slot(broadcast, session)?)?;
        let objects = Verdict::ALL.map(Verdict::name).into_iter();
        Some(Served {
            packets: stats.packets,
            objects: objects.zip(stats.objects).collect(),
            not_sent: Outcomes::new(),
        })
    }
}
