//! The tables that the program and this process have in common memory. The program reads them at any
//! time, so a row in use changes word by word, in an order that makes each state a valid one.

use crate::skeleton::relay::RelayMaps;
use crate::skeleton::relay::types::{self, relay_limit as Limit, relay_track_flag as Flag};
use hawser_fanout::{Budget, Frame, Rate, Selection, SlotIndex, TrackHop, TrackIndex};
use hawser_kernel::keys::key_words;
use hawser_kernel::shared::Shared;
use hawser_kernel::table::TableError;
use hawser_packets::media::{Hop, MAX_LAYER};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const SLOTS: usize = Limit::RELAY_SLOTS.0 as usize;

/// The index of the bucket of all levels.
pub(super) const TOTAL: usize = Limit::RELAY_LEVELS.0 as usize;

const NOTHING_LOST: types::relay_missing = types::relay_missing {
    group: 0,
    first: [u32::MAX; 8],
};

pub(super) struct Rows {
    tracks: Shared<types::relay_track>,
    rings: Shared<types::relay_ring>,
    slots: Shared<types::relay_slot>,
    budgets: Shared<types::relay_budget>,
    accounts: Shared<types::relay_account>,
    selections: Shared<types::relay_selection>,
    subscriptions: Shared<types::relay_subscription>,
}

/// Returns a field of a row of a table as an atomic.
macro_rules! atomic {
    ($atomic:ident, $row:expr, $($field:tt)+) => {
        // SAFETY: an aligned field of a row of the mapping, which lives as long as the table, and which
        // both sides access atomically.
        unsafe { $atomic::from_ptr(&raw mut (*$row).$($field)+) }
    };
}

impl Rows {
    pub(super) fn map(maps: &RelayMaps<'_>) -> Result<Self, TableError> {
        Ok(Rows {
            tracks: Shared::map(&maps.relay_tracks)?,
            rings: Shared::map(&maps.relay_rings)?,
            slots: Shared::map(&maps.relay_slots)?,
            budgets: Shared::map(&maps.relay_budgets)?,
            accounts: Shared::map(&maps.relay_accounts)?,
            selections: Shared::map(&maps.relay_selections)?,
            subscriptions: Shared::map(&maps.relay_subscriptions)?,
        })
    }

    /// Ends a track, and forgets its objects and subscriptions.
    pub(super) fn clear_track(&mut self, track: TrackIndex) {
        let row = self.tracks.row(track.get());
        atomic!(AtomicU32, row, flags).store(0, Ordering::SeqCst);
        // SAFETY: rows of the mappings, which the program does not use while the track is not active.
        unsafe {
            row.write_volatile(types::relay_track {
                lost: NOTHING_LOST,
                ..Default::default()
            });
            self.rings
                .row(track.get())
                .write_volatile(std::mem::zeroed());
        }
    }

    pub(super) fn set_track(&mut self, track: TrackIndex, hop: &TrackHop, mut flags: u32) {
        let field = atomic!(AtomicU32, self.tracks.row(track.get()), flags);
        match hop {
            TrackHop::Upstreams => flags |= Flag::TRACK_SAME_HOP.0,
            TrackHop::Own(hop) => {
                let second = field.load(Ordering::Relaxed) & Flag::TRACK_SECOND_HOP.0 != 0;
                if self.write_hop(track, hop, second) {
                    flags |= Flag::TRACK_SECOND_HOP.0;
                }
            }
        }
        field.store(flags, Ordering::Release);
    }

    /// Writes the key that is not in use, unless the one in use is this one. Returns whether it is the
    /// second.
    fn write_hop(&mut self, track: TrackIndex, hop: &Hop, second: bool) -> bool {
        let row = self.tracks.row(track.get());
        let [k0, k1] = key_words(&hop.key);
        let number = hop.number.to_be();
        let of = usize::from(second);
        // SAFETY: a row of the mapping. The program only reads it, and not the key that is not in use.
        unsafe {
            let current = (&raw const (*row).hops[of]).read_volatile();
            let current_number = (&raw const (*row).hops_be[of]).read_volatile();
            if (current.k0, current.k1, current_number) == (k0, k1, number) {
                return second;
            }
            let key = types::siphash_key { k0, k1 };
            (&raw mut (*row).hops[1 - of]).write_volatile(key);
            (&raw mut (*row).hops_be[1 - of]).write_volatile(number);
        }
        !second
    }

    /// Records that an object was lost. Each state in between breaks less than the last one.
    pub(super) fn lose(&mut self, track: TrackIndex, frame: Frame, layer: u8) {
        let row = self.tracks.row(track.get());
        let group = atomic!(AtomicU32, row, lost.group);
        let first = |layer: usize| atomic!(AtomicU32, row, lost.first[layer]);
        let layers = 0..NOTHING_LOST.first.len();
        match frame.group.cmp(&group.load(Ordering::Relaxed)) {
            std::cmp::Ordering::Less => return,
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => {
                for layer in layers.clone() {
                    first(layer).store(u32::MAX, Ordering::Relaxed);
                }
                group.store(frame.group, Ordering::Release);
            }
        }
        for layer in layers.skip(layer.min(MAX_LAYER).into()) {
            first(layer).fetch_min(frame.object, Ordering::Release);
        }
    }

    pub(super) fn newest(&self, track: TrackIndex) -> Option<Frame> {
        let ring = self.rings.row(track.get());
        let begun = atomic!(AtomicU64, ring, begun).load(Ordering::Acquire);
        let newest = atomic!(AtomicU64, ring, newest).load(Ordering::Relaxed);
        (begun > 0).then_some(Frame::from_word(newest))
    }

    /// Writes the row of a slot that has expired, without the time at which it does.
    pub(super) fn write_slot(&mut self, slot: SlotIndex, row: types::relay_slot) {
        // SAFETY: rows of the mappings, which the program does not use while the slot is expired.
        unsafe {
            self.accounts
                .row(slot.get())
                .write_volatile(types::relay_account::default());
            self.slots.row(slot.get()).write_volatile(row);
        }
    }

    pub(super) fn set_expiry(&self, slot: SlotIndex, nanos: u64) {
        let row = self.slots.row(slot.get());
        atomic!(AtomicU64, row, expires_ns).store(nanos, Ordering::SeqCst);
    }

    /// Changes the time at which a slot expires, if it has a subscriber.
    pub(super) fn renew(&self, slot: SlotIndex, nanos: u64) {
        let expires = atomic!(AtomicU64, self.slots.row(slot.get()), expires_ns);
        // Only this process writes it.
        if expires.load(Ordering::Relaxed) != 0 {
            expires.store(nanos.max(1), Ordering::Release);
        }
    }

    /// Sets the way to a subscriber; interface 0: there is none.
    pub(super) fn set_route(&self, slot: SlotIndex, macs: [u64; 2], mtu_bytes: u16, ifindex: u32) {
        let row = self.slots.row(slot.get());
        let [source, next_hop] = macs;
        atomic!(AtomicU64, row, source).store(source, Ordering::Relaxed);
        atomic!(AtomicU64, row, next_hop).store(next_hop, Ordering::Relaxed);
        // SAFETY: an aligned field of a row of the mapping, which the program only reads.
        unsafe { (&raw mut (*row).mtu_bytes).write_volatile(mtu_bytes) };
        atomic!(AtomicU32, row, ifindex).store(ifindex, Ordering::Release);
    }

    pub(super) fn set_budget(&self, slot: SlotIndex, budget: &Budget) {
        let row = self.budgets.row(slot.get());
        let rates = budget.levels.iter().map(|level| level.limit);
        for (index, rate) in rates.chain([budget.total]).enumerate() {
            let [per_second, depth] = rate.map_or([0; 2], |rate: Rate| {
                [rate.bytes_per_second(), rate.depth_bytes()]
            });
            atomic!(AtomicU64, row, rates[index].depth_bytes).store(depth, Ordering::Relaxed);
            atomic!(AtomicU64, row, rates[index].bytes_per_second)
                .store(per_second, Ordering::Relaxed);
        }
        for (index, level) in budget.levels.iter().enumerate() {
            // SAFETY: an aligned field of a row of the mapping, which the program only reads.
            unsafe { (&raw mut (*row).floors[index]).write_volatile(level.floor) };
        }
        let least = u32::from(budget.least_priority);
        atomic!(AtomicU32, row, least_priority).store(least, Ordering::Relaxed);
        let share = u32::from(budget.share.get());
        atomic!(AtomicU32, row, share).store(share, Ordering::Relaxed);
    }

    pub(super) fn spend(&self, slot: SlotIndex, priority: u8, bytes: u64) {
        let row = self.accounts.row(slot.get());
        for index in [Budget::level(priority), TOTAL] {
            atomic!(AtomicU64, row, buckets[index].spent).fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns the counters of a slot.
    pub(super) fn account(&self, slot: SlotIndex) -> types::relay_account {
        // SAFETY: a row of the mapping, of which each counter is a word.
        unsafe { self.accounts.row(slot.get()).read_volatile() }
    }

    /// Begins a subscription. Of the words of a selection, `layers` makes it valid.
    pub(super) fn subscribe(&self, track: TrackIndex, slot: SlotIndex, selection: &Selection) {
        let row = self.selection(track, slot);
        let layers = atomic!(AtomicU32, row, layers);
        let epoch = atomic!(AtomicU32, row, epoch);
        layers.store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        atomic!(AtomicU64, row, join).store(selection.join.word(), Ordering::Relaxed);
        // A subscription of epoch 0 would have the state of a row that was never used.
        let next = epoch.load(Ordering::Relaxed).wrapping_add(1).max(1);
        epoch.store(next, Ordering::Release);
        layers.store(selection.layers.into(), Ordering::Release);
        let (word, bit) = self.subscribed(track, slot);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    pub(super) fn select(&self, track: TrackIndex, slot: SlotIndex, layers: u8) {
        let row = self.selection(track, slot);
        atomic!(AtomicU32, row, layers).store(layers.into(), Ordering::Release);
    }

    pub(super) fn unsubscribe(&self, track: TrackIndex, slot: SlotIndex) {
        let (word, bit) = self.subscribed(track, slot);
        word.fetch_and(!bit, Ordering::SeqCst);
    }

    /// Returns the frame at which the current subscription has begun.
    pub(super) fn joined(&self, track: TrackIndex, slot: SlotIndex) -> Option<Frame> {
        let row = self.subscriptions.row(track.get() * SLOTS + slot.get());
        let wanted = atomic!(AtomicU32, self.selection(track, slot), epoch);
        let epoch = atomic!(AtomicU32, row, epoch);
        let is_current = epoch.load(Ordering::Acquire) == wanted.load(Ordering::Relaxed);
        let joined = atomic!(AtomicU64, row, joined).load(Ordering::Relaxed);
        let (word, bit) = self.subscribed(track, slot);
        let is_subscribed = word.load(Ordering::Relaxed) & bit != 0;
        (is_subscribed && is_current).then_some(Frame::from_word(joined))
    }

    fn selection(&self, track: TrackIndex, slot: SlotIndex) -> *mut types::relay_selection {
        self.selections.row(track.get() * SLOTS + slot.get())
    }

    /// Returns the word of the track's subscribers that has the slot, and its bit.
    fn subscribed(&self, track: TrackIndex, slot: SlotIndex) -> (&AtomicU64, u64) {
        let row = self.tracks.row(track.get());
        let word = atomic!(AtomicU64, row, subscribers[slot.get() / 64]);
        (word, 1 << (slot.get() % 64))
    }
}
