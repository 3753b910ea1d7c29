//! The relay: sends each packet of media that arrives to many subscribers, in the kernel.
//!
//! `docs/design/relay.md` describes the tables and gives the reasons. All decisions are specified by
//! `hawser_fanout`, which the program has to agree with.

mod reason;

pub use reason::Reason;

use crate::address::{family_and_address, mapped};
use crate::keys::key_words;
use crate::program::{fd, log_libbpf, test_run};
use crate::shared::Shared;
use crate::skeleton::relay::types::{
    self, relay_limit as Limit, relay_loss as LossCode, relay_track_flag as Flag,
};
use crate::skeleton::relay::{RelaySkel, RelaySkelBuilder};
use crate::table::{Table, TableError, plain};
use crate::{AttachError, Link, LoadError, RunError, TestRun};
use hawser_fanout::{SlotIndex, TrackIndex};
use hawser_units::Instant;
use hawser_wire::media::Hop;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

plain!(
    types::relay_endpoint,
    types::relay_session,
    types::relay_upstream,
    types::relay_alias,
    types::relay_track,
);

/// The row of the counters of packets that belong to no track.
const NO_TRACK: u32 = Limit::RELAY_TRACKS.0;

/// Options for loading a relay.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The longest UDP payload that is relayed, in bytes.
    pub datagram_bytes: u16,
    /// The entry of the pair of devices that splits trains of packets that are not treated alike
    /// (`hawser_io::segmenter`). The relay has to be attached to its exit. Without it their packets
    /// are dropped.
    pub segmenter_entry: Option<u32>,
}

/// Both ends of a session with an upstream or a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session {
    /// This node's address.
    pub local: SocketAddr,
    /// The other end's address.
    pub remote: SocketAddr,
}

/// A publisher, or another relay, that sends media to this one.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// The relay's number of the upstream, to which track aliases belong.
    pub number: u32,
    /// The keys of its hop tags: two during a rotation.
    pub hops: [Option<Hop>; 2],
}

/// The hop fields of the packets that leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrackHop {
    /// The relay tags each packet with its own key.
    Own(Hop),
    /// The packets keep the tag of the upstream, whose hop salt the subscribers are told.
    Upstreams,
}

/// The treatment of a track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackOptions {
    /// The hop fields of the packets that leave.
    pub hop: TrackHop,
    /// Packets go to the relay's socket too.
    pub copy: bool,
}

/// The way to a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The interface.
    pub ifindex: u32,
    /// The longest IP packet of the interface, in bytes.
    pub mtu_bytes: u16,
    /// The interface's link-layer address.
    pub source_mac: [u8; 6],
    /// The link-layer address of the next hop.
    pub next_hop_mac: [u8; 6],
}

/// The reason that a packet of an object that a subscriber is served was not sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Loss {
    /// The slot had expired.
    Expired = LossCode::LOSS_EXPIRED.0,
    /// No route was set.
    NoRoute = LossCode::LOSS_NO_ROUTE.0,
    /// Longer than the interface takes.
    TooBig = LossCode::LOSS_TOO_BIG.0,
    /// It came without a UDP checksum over IPv4, and IPv6 demands one.
    NoChecksum = LossCode::LOSS_NO_CHECKSUM.0,
    /// The kernel could not clone it, or its device dropped it.
    Device = LossCode::LOSS_DEVICE.0,
}

/// Counters of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// Packets sent.
    pub packets: u64,
    /// Packets not sent, by [`Loss`].
    pub lost: [u64; LossCode::RELAY_LOSSES.0 as usize],
}

/// The program, its tables and attachments. They end with this value.
pub struct Relay {
    skeleton: RelaySkel<'static>,
    tracks: Shared<types::relay_track>,
    slots: Shared<types::relay_slot>,
    accounts: Shared<types::relay_account>,
    links: BTreeMap<u32, Link>,
}

impl Relay {
    /// Loads the program.
    pub fn load(options: &Options) -> Result<Self, LoadError> {
        log_libbpf();
        // The skeleton borrows its object. A process loads one, so leaking the few bytes is
        // acceptable.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("relay");
        let mut open = RelaySkelBuilder::default().open(storage).map_err(&failed)?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        constants.datagram_bytes = options.datagram_bytes;
        constants.segmenter_entry = options.segmenter_entry.unwrap_or(0);
        let skeleton = open.load().map_err(&failed)?;
        let maps = &skeleton.maps;
        Ok(Relay {
            tracks: Shared::map(&maps.relay_tracks)?,
            slots: Shared::map(&maps.relay_slots)?,
            accounts: Shared::map(&maps.relay_accounts)?,
            skeleton,
            links: BTreeMap::new(),
        })
    }

    /// Starts to relay what arrives on an interface.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), AttachError> {
        if !self.links.contains_key(&ifindex) {
            let link = Link::tcx_ingress(fd(&self.skeleton.progs.relay), ifindex)?;
            self.links.insert(ifindex, link);
        }
        Ok(())
    }

    /// Ends relaying what arrives on an interface.
    pub fn detach(&mut self, ifindex: u32) {
        if let Some(link) = self.links.remove(&ifindex) {
            link.end();
        }
    }

    /// Takes media at an address of this node. Media to it that is not from an upstream is dropped;
    /// everything else is passed to the socket.
    pub fn listen(&self, address: SocketAddr) -> Result<(), TableError> {
        let endpoints = &self.skeleton.maps.relay_endpoints;
        endpoints.set(&endpoint(address), &1u8)
    }

    /// Passes everything to an address of this node to its socket.
    pub fn unlisten(&self, address: SocketAddr) -> Result<(), TableError> {
        let endpoints = &self.skeleton.maps.relay_endpoints;
        endpoints.remove(&endpoint(address))
    }

    /// Takes media from the other end of a session; `None`: from now on, refuses it.
    pub fn set_upstream(
        &self,
        session: &Session,
        upstream: Option<&Upstream>,
    ) -> Result<(), TableError> {
        let table = &self.skeleton.maps.relay_upstreams;
        let key = types::relay_session {
            remote: mapped(session.remote.ip()),
            local: mapped(session.local.ip()),
            remote_port_be: session.remote.port().to_be(),
            local_port_be: session.local.port().to_be(),
        };
        match upstream {
            Some(upstream) => table.set(&key, &upstream_row(upstream)),
            None => table.remove(&key),
        }
    }

    /// Gives a name at an upstream to a track; `None`: refuses packets of this name.
    pub fn name_track(
        &self,
        upstream: u32,
        alias: u32,
        track: Option<TrackIndex>,
    ) -> Result<(), TableError> {
        let table = &self.skeleton.maps.relay_aliases;
        let key = types::relay_alias { upstream, alias };
        match track {
            Some(track) => table.set(&key, &(track.get() as u32)),
            None => table.remove(&key),
        }
    }

    /// Starts to relay a track, or changes its treatment. `None` ends it.
    pub fn set_track(&self, track: TrackIndex, options: Option<&TrackOptions>) {
        let row = self.tracks.row(track.get());
        // SAFETY: a field of a row of the mapping; the program only reads it.
        let flags = unsafe { AtomicU32::from_ptr(&raw mut (*row).flags) };
        let Some(options) = options else {
            return flags.store(0, Ordering::Release);
        };
        let mut next = Flag::TRACK_ACTIVE.0;
        if options.copy {
            next |= Flag::TRACK_COPY.0;
        }
        match &options.hop {
            TrackHop::Upstreams => next |= Flag::TRACK_SAME_HOP.0,
            TrackHop::Own(hop) => {
                next |= self.write_hop(track, hop, flags.load(Ordering::Relaxed));
            }
        }
        flags.store(next, Ordering::Release);
    }

    /// Writes the key that is not in use, unless the one in use is this one; returns the flag that
    /// selects it.
    fn write_hop(&self, track: TrackIndex, hop: &Hop, flags: u32) -> u32 {
        let row = self.tracks.row(track.get());
        let [k0, k1] = key_words(&hop.key);
        let key = types::siphash_key { k0, k1 };
        let second = usize::from(flags & Flag::TRACK_SECOND_HOP.0 != 0);
        // SAFETY: the row is in the mapping, and only this process writes to it.
        let current = unsafe { row.read_volatile() };
        let in_use = &current.hops[second];
        let is_in_use =
            (current.hops_be[second], in_use.k0, in_use.k1) == (hop.number.to_be(), key.k0, key.k1);
        let chosen = if is_in_use { second } else { 1 - second };
        // SAFETY: as above; the program does not read the key that is not in use.
        unsafe {
            (&raw mut (*row).hops[chosen]).write_volatile(key);
            (&raw mut (*row).hops_be[chosen]).write_volatile(hop.number.to_be());
        }
        if chosen == 1 {
            Flag::TRACK_SECOND_HOP.0
        } else {
            0
        }
    }

    /// Gives a slot to a subscriber, until it expires. The slot must not have been in use for the
    /// last tenth of a second.
    pub fn add_subscriber(
        &self,
        slot: SlotIndex,
        session: &Session,
        since: Instant,
        expires: Instant,
    ) {
        self.remove_subscriber(slot);
        let (family, local) = family_and_address(session.local.ip());
        let (_, remote) = family_and_address(session.remote.ip());
        let row = types::relay_slot {
            since_ns: since.as_nanos(),
            family,
            addresses_sum: sum(&[local, remote].concat()),
            ports_sum: sum(&[session.local.port(), session.remote.port()]
                .map(u16::to_be_bytes)
                .concat()),
            local_port_be: session.local.port().to_be(),
            remote_port_be: session.remote.port().to_be(),
            local,
            remote,
            ..Default::default()
        };
        // SAFETY: rows of the mappings, which the program does not use until the slot has a time.
        unsafe {
            self.accounts
                .row(slot.get())
                .write_volatile(types::relay_account::default());
            self.slots.row(slot.get()).write_volatile(row);
        }
        self.renew(slot, expires);
    }

    /// Ends the service of a slot.
    pub fn remove_subscriber(&self, slot: SlotIndex) {
        self.renew(slot, Instant::ZERO);
    }

    /// Sets the time at which a slot expires, by the kernel's monotonic clock.
    pub fn renew(&self, slot: SlotIndex, expires: Instant) {
        let row = self.slots.row(slot.get());
        // SAFETY: a field of a row of the mapping; the program only reads it.
        let field = unsafe { AtomicU64::from_ptr(&raw mut (*row).expires_ns) };
        field.store(expires.as_nanos(), Ordering::Release);
    }

    /// Sets the way to a subscriber; `None`: there is none.
    pub fn set_route(&self, slot: SlotIndex, route: Option<&Route>) {
        let row = self.slots.row(slot.get());
        // SAFETY: fields of a row of the mapping, which the program only reads, each in one access.
        unsafe {
            if let Some(route) = route {
                (&raw mut (*row).next_hop).write_volatile(mac_word(route.next_hop_mac));
                (&raw mut (*row).source).write_volatile(mac_word(route.source_mac));
                (&raw mut (*row).mtu_bytes).write_volatile(route.mtu_bytes);
            }
            let ifindex = AtomicU32::from_ptr(&raw mut (*row).ifindex);
            ifindex.store(route.map_or(0, |route| route.ifindex), Ordering::Release);
        }
    }

    /// Sends a track to a slot, or no longer does.
    pub fn subscribe(&self, track: TrackIndex, slot: SlotIndex, subscribed: bool) {
        let row = self.tracks.row(track.get());
        // SAFETY: a word of a row of the mapping, which the program only reads.
        let word = unsafe { AtomicU64::from_ptr(&raw mut (*row).subscribers[slot.get() / 64]) };
        let bit = 1 << (slot.get() % 64);
        if subscribed {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Returns what became of packets: those of a track, or those that belong to none.
    pub fn counts(&self, track: Option<TrackIndex>) -> Result<Vec<(Reason, u64)>, TableError> {
        let row = track.map_or(NO_TRACK, |track| track.get() as u32);
        let columns = Reason::ALL.len() as u32;
        let count = |reason: Reason| {
            let table = &self.skeleton.maps.relay_reasons;
            let counts = table.per_cpu::<u64>(row * columns + reason as u32)?;
            Ok((reason, counts.iter().sum()))
        };
        Reason::ALL.into_iter().map(count).collect()
    }

    /// Returns the counters of a subscriber.
    pub fn slot_stats(&self, slot: SlotIndex) -> SlotStats {
        // SAFETY: a row of the mapping. Each counter is one word.
        let row = unsafe { self.accounts.row(slot.get()).read_volatile() };
        SlotStats {
            packets: row.packets,
            lost: row.lost,
        }
    }

    /// Runs the program on a frame. Clones are sent by the slots' interfaces.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.skeleton.progs.relay, frame, repeat)
    }
}

fn endpoint(address: SocketAddr) -> types::relay_endpoint {
    types::relay_endpoint {
        address: mapped(address.ip()),
        port_be: address.port().to_be(),
        reserved: [0; 2],
    }
}

fn upstream_row(upstream: &Upstream) -> types::relay_upstream {
    let mut row = types::relay_upstream {
        number: upstream.number,
        ..Default::default()
    };
    for (index, hop) in upstream.hops.iter().enumerate() {
        if let Some(hop) = hop {
            let [k0, k1] = key_words(&hop.key);
            row.keys[index] = types::siphash_key { k0, k1 };
            row.hops_be[index] = hop.number.to_be();
            row.keys_valid |= 1 << index;
        }
    }
    row
}

/// Returns a link-layer address as a word whose first six bytes in memory it is.
fn mac_word(mac: [u8; 6]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac);
    u64::from_ne_bytes(bytes)
}

/// Returns the ones' complement sum of bytes, as the program computes it.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let sum: u64 = words
        .map(|word| u64::from(u16::from_ne_bytes([word[0], word[1]])))
        .sum();
    // At most 18 words, so one round is enough.
    (sum as u32 & 0xffff) + (sum as u32 >> 16)
}
