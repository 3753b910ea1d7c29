//! The kernel as the sender of packets.

use crate::forward::{Begun, BroadcastIndex, Forwarder, Outcomes, Served};
use crate::routes::{Routes, Way};
use anyhow::{Context, Result};
use hawser_audience::Command;
use hawser_fanout::{Budget, Frame, SlotIndex, SlotPool, TrackHop, TrackIndex, Verdict};
use hawser_io::interface;
use hawser_media_bpf::relay::{Loss, Registrations, Relay, Route, Session, TrackOptions, Upstream};
use hawser_packets::media::{DEFAULT_DATAGRAM, Hop};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The time after which a subscriber that is not renewed is sent nothing: the kernel stops this long after
/// the relay has died.
const SLOT_LIFE: Duration = Duration::from_secs(3);

/// The kernel's relay.
pub(crate) struct Kernel {
    relay: Relay,
    registrations: Registrations,
    routes: Routes,
    sources: BTreeMap<BroadcastIndex, Source>,
    members: BTreeMap<(BroadcastIndex, u32), Member>,
    by_slot: BTreeMap<SlotIndex, (BroadcastIndex, u32)>,
    free: SlotPool,
    tracks: BTreeMap<TrackIndex, BroadcastIndex>,
}

/// A broadcast that is served.
struct Source {
    /// The address for subscribers.
    listen: SocketAddr,
    session: Option<Session>,
    /// The keys of the sender, once they are known.
    hops: Option<[Hop; 3]>,
    tracks: BTreeMap<u32, TrackIndex>,
}

struct Member {
    slot: SlotIndex,
    address: SocketAddr,
}

impl Kernel {
    /// Loads the program. `listen` has the address for subscribers of each broadcast.
    ///
    /// # Errors
    /// If the kernel does not load it: it has to be Linux 6.6 or later, and the process needs CAP_BPF,
    /// CAP_NET_ADMIN and CAP_PERFMON.
    pub(crate) fn load(listen: &[SocketAddr]) -> Result<Self> {
        let relay = Relay::load(DEFAULT_DATAGRAM as u16)
            .context("cannot load the kernel's part of the relay")?;
        let registrations = relay
            .registrations()
            .context("cannot read the kernel's records of objects")?;
        let source = |listen: &SocketAddr| Source {
            listen: *listen,
            session: None,
            hops: None,
            tracks: BTreeMap::new(),
        };
        Ok(Kernel {
            relay,
            registrations,
            routes: Routes::default(),
            sources: listen.iter().map(source).enumerate().collect(),
            members: BTreeMap::new(),
            by_slot: BTreeMap::new(),
            free: SlotPool::new(),
            tracks: BTreeMap::new(),
        })
    }

    /// Returns whether packets to an address have to be sent by the process; `None` if there is no route.
    pub(crate) fn needs_process(&mut self, now: Instant, address: IpAddr) -> Option<bool> {
        let way = self.routes.find(now, address)?;
        Some(matches!(way, Way::Process))
    }

    fn route(&mut self, now: Instant, address: IpAddr) -> Option<Route> {
        match self.routes.find(now, address)? {
            Way::Kernel(route) => Some(route),
            Way::Process => None,
        }
    }

    fn source(&mut self, broadcast: BroadcastIndex) -> Result<&mut Source> {
        let source = self.sources.get_mut(&broadcast);
        source.context("a broadcast that is not configured")
    }

    fn counts(&self, track: Option<TrackIndex>) -> Outcomes {
        let counts = self.relay.counts(track).unwrap_or_default().into_iter();
        counts
            .map(|(reason, count)| (reason.name(), count))
            .collect()
    }

    /// Accepts packets of the sender with its newest keys.
    fn set_upstream(&mut self, broadcast: BroadcastIndex) -> Result<()> {
        let Some(source) = self.sources.get(&broadcast) else {
            return Ok(());
        };
        let (Some(session), Some(hops)) = (&source.session, &source.hops) else {
            return Ok(());
        };
        let upstream = Upstream {
            number: broadcast as u32,
            hops: hops.clone().map(Some),
        };
        self.relay
            .set_upstream(session, Some(&upstream))
            .context("the kernel does not take packets from the publisher")
    }

    /// Accepts media of a broadcast from nobody any more.
    pub(crate) fn disconnect(&mut self, broadcast: BroadcastIndex) -> Result<()> {
        let source = self.source(broadcast)?;
        source.hops = None;
        if let Some(before) = source.session.take() {
            self.relay.set_upstream(&before, None)?;
            self.relay.unlisten(before.local)?;
        }
        Ok(())
    }

    fn set_tracks(&mut self, broadcast: BroadcastIndex, aliases: &[u32], hop: &Hop) -> Result<()> {
        let before = std::mem::take(&mut self.source(broadcast)?.tracks);
        for (alias, track) in before {
            self.relay.name_track(broadcast as u32, alias, None)?;
            self.relay.remove_track(track);
            self.tracks.remove(&track);
        }
        for alias in aliases {
            let free = TrackIndex::all().find(|track| !self.tracks.contains_key(track));
            let track = free.context("the relay has no room for further tracks")?;
            let options = TrackOptions {
                hop: TrackHop::Own(hop.clone()),
                copy: true,
                arrivals: false,
            };
            self.relay.add_track(track, &options);
            self.relay
                .name_track(broadcast as u32, *alias, Some(track))?;
            self.tracks.insert(track, broadcast);
            self.source(broadcast)?.tracks.insert(*alias, track);
        }
        Ok(())
    }

    fn add(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        session: u32,
        address: SocketAddr,
        budget: &Budget,
    ) -> Result<()> {
        let local = self.source(broadcast)?.listen;
        let slot = self.free.take(now);
        let slot = slot.context("the relay has no room for further viewers")?;
        let ends = Session {
            local,
            remote: address,
        };
        self.relay
            .add_subscriber(slot, &ends, budget, now, now + SLOT_LIFE);
        let route = self.route(now, address.ip());
        self.relay.set_route(slot, route.as_ref());
        self.by_slot.insert(slot, (broadcast, session));
        let member = Member { slot, address };
        self.members.insert((broadcast, session), member);
        Ok(())
    }

    fn remove(&mut self, now: Instant, broadcast: BroadcastIndex, session: u32) {
        if let Some(member) = self.members.remove(&(broadcast, session)) {
            self.relay.remove_subscriber(member.slot);
            self.by_slot.remove(&member.slot);
            self.free.give_back(now, member.slot);
        }
    }

    /// Returns the slot of a subscriber and a track of its broadcast; `None` if it has left meanwhile.
    fn find(
        &self,
        broadcast: BroadcastIndex,
        session: u32,
        alias: u32,
    ) -> Option<(TrackIndex, SlotIndex)> {
        let member = self.members.get(&(broadcast, session))?;
        let track = self.sources.get(&broadcast)?.tracks.get(&alias)?;
        Some((*track, member.slot))
    }

    fn slot(&self, broadcast: BroadcastIndex, session: u32) -> Option<SlotIndex> {
        let member = self.members.get(&(broadcast, session))?;
        Some(member.slot)
    }
}

impl Forwarder for Kernel {
    fn connect(
        &mut self,
        broadcast: BroadcastIndex,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<()> {
        let session = Session { local, remote };
        if self.source(broadcast)?.session == Some(session) {
            return Ok(());
        }
        self.disconnect(broadcast)?;
        self.source(broadcast)?.session = Some(session);
        let route = interface::route(remote.ip(), None)
            .with_context(|| format!("there is no route to {remote}"))?;
        let index = interface::index(&route.interface);
        let index = index.with_context(|| format!("{} has disappeared", route.interface))?;
        self.relay
            .attach(index)
            .with_context(|| format!("cannot relay what arrives on {}", route.interface))?;
        self.relay.listen(local)?;
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
                self.source(broadcast)?.hops = Some(hops);
                self.set_upstream(broadcast)?;
            }
            Command::SetTracks { aliases, hop } => self.set_tracks(broadcast, &aliases, &hop)?,
            Command::Add {
                session,
                address,
                budget,
            } => self.add(now, broadcast, session, address, &budget)?,
            Command::Remove { session } => self.remove(now, broadcast, session),
            Command::Subscribe {
                session,
                alias,
                selection,
            } => {
                if let Some((track, slot)) = self.find(broadcast, session, alias) {
                    self.relay.subscribe(track, slot, &selection);
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
                    self.relay.set_budget(slot, &budget);
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

    fn begun(&mut self) -> Vec<Begun> {
        let registrations = self.registrations.drain().into_iter();
        let begun = registrations.filter_map(|registration| {
            let broadcast = *self.tracks.get(&registration.track)?;
            let slots = registration.served.iter();
            let served = slots.filter_map(|slot| self.by_slot.get(&slot));
            let served = served.filter(|(of, _)| *of == broadcast);
            Some(Begun {
                broadcast,
                object: registration.object,
                served: served.map(|(_, session)| *session).collect(),
            })
        });
        begun.collect()
    }

    fn joined(&self, broadcast: BroadcastIndex, session: u32, alias: u32) -> Option<Frame> {
        let (track, slot) = self.find(broadcast, session, alias)?;
        self.relay.joined(track, slot)
    }

    fn renew(&mut self, now: Instant) {
        let members = self.members.values();
        let members: Vec<_> = members.map(|m| (m.slot, m.address.ip())).collect();
        for (slot, address) in members {
            self.relay.renew(slot, now + SLOT_LIFE);
            let route = self.route(now, address);
            self.relay.set_route(slot, route.as_ref());
        }
        self.routes.forget(now);
    }

    fn retags(&self, _: BroadcastIndex) -> bool {
        true
    }

    fn outcomes(&self) -> Outcomes {
        self.counts(None)
    }

    fn track_outcomes(&self, broadcast: BroadcastIndex) -> Vec<(u32, Outcomes)> {
        let tracks = self.sources.get(&broadcast).map(|source| &source.tracks);
        let tracks = tracks.into_iter().flatten();
        tracks
            .map(|(alias, track)| (*alias, self.counts(Some(*track))))
            .collect()
    }

    fn served(&self, broadcast: BroadcastIndex, session: u32) -> Option<Served> {
        let stats = self.relay.slot_stats(self.slot(broadcast, session)?);
        let objects = Verdict::ALL.map(Verdict::name).into_iter();
        let not_sent = Loss::ALL.map(Loss::name).into_iter();
        Some(Served {
            packets: stats.packets,
            objects: objects.zip(stats.objects).collect(),
            not_sent: not_sent.zip(stats.lost).collect(),
        })
    }
}
