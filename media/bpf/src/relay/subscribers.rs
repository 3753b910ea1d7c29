use super::rows::TOTAL;
use super::{Relay, Session};
use crate::skeleton::relay::types::{self, relay_loss as LossCode};
use hawser_fanout::{Budget, Frame, Selection, SlotIndex, TrackIndex, Verdict};
use hawser_kernel::address::family_and_address;
use hawser_units::Instant;

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

/// Counters of a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotStats {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of IP packets sent, and those of [`Relay::spend`].
    pub bytes: u64,
    /// The bytes that are left in the bucket of all levels, without what was earned since an object
    /// began. Negative if more was sent.
    pub balance: i64,
    /// Packets not sent, by [`Loss`](super::Loss).
    pub lost: [u64; LossCode::RELAY_LOSSES.0 as usize],
    /// Objects, by [`Verdict`].
    pub objects: [u64; Verdict::ALL.len()],
}

impl Relay {
    /// Gives a slot to a subscriber, until it expires by the kernel's monotonic clock. Objects that
    /// began before `since` are not sent to it. The slot must not have been in use for the last tenth
    /// of a second: a program that runs meanwhile may have read a part of the row. A
    /// [`SlotPool`](hawser_fanout::SlotPool) sees to that.
    pub fn add_subscriber(
        &mut self,
        slot: SlotIndex,
        session: &Session,
        budget: &Budget,
        since: Instant,
        expires: Instant,
    ) {
        self.remove_subscriber(slot);
        let (family, local) = family_and_address(session.local.ip());
        let (_, remote) = family_and_address(session.remote.ip());
        let ports = [session.local.port(), session.remote.port()].map(u16::to_be_bytes);
        let row = types::relay_slot {
            since_ns: since.as_nanos(),
            family,
            addresses_sum: sum([local, remote].as_flattened()),
            ports_sum: sum(ports.as_flattened()),
            local_port_be: session.local.port().to_be(),
            remote_port_be: session.remote.port().to_be(),
            local,
            remote,
            ..Default::default()
        };
        self.rows.write_slot(slot, row);
        self.rows.set_budget(slot, budget);
        self.rows.set_expiry(slot, expires.as_nanos().max(1));
    }

    /// Takes a slot from its subscriber, which gets nothing any more.
    pub fn remove_subscriber(&mut self, slot: SlotIndex) {
        self.rows.set_expiry(slot, 0);
        for track in TrackIndex::all() {
            self.rows.unsubscribe(track, slot);
        }
    }

    /// Changes the time at which a slot expires, if it has a subscriber.
    pub fn renew(&mut self, slot: SlotIndex, expires: Instant) {
        self.rows.renew(slot, expires.as_nanos());
    }

    /// Sets the way to a subscriber; `None`: there is none.
    pub fn set_route(&mut self, slot: SlotIndex, route: Option<&Route>) {
        match route {
            Some(route) => {
                let macs = [route.source_mac, route.next_hop_mac].map(mac_word);
                self.rows
                    .set_route(slot, macs, route.mtu_bytes, route.ifindex);
            }
            None => self.rows.set_route(slot, [0; 2], 0, 0),
        }
    }

    /// Changes what a subscriber may be sent. What it owes, it still owes.
    pub fn set_budget(&mut self, slot: SlotIndex, budget: &Budget) {
        self.rows.set_budget(slot, budget);
    }

    /// Charges a subscriber for bytes that user space sent to it.
    pub fn spend(&mut self, slot: SlotIndex, priority: u8, bytes: u64) {
        self.rows.spend(slot, priority, bytes);
    }

    /// Sends a track to a subscriber, which joins at a frame of which nothing has begun yet
    /// ([`Relay::joined`]).
    pub fn subscribe(&mut self, track: TrackIndex, slot: SlotIndex, selection: &Selection) {
        self.rows.subscribe(track, slot, selection);
    }

    /// Returns the frame from which on a subscriber is sent a track; `None` until an object begins. All
    /// of the frames before that, and nothing else, it has to get from user space.
    pub fn joined(&self, track: TrackIndex, slot: SlotIndex) -> Option<Frame> {
        self.rows.joined(track, slot)
    }

    /// Changes the number of layers that a subscriber gets. More layers take effect with the next
    /// group.
    pub fn select(&mut self, track: TrackIndex, slot: SlotIndex, layers: u8) {
        self.rows.select(track, slot, layers);
    }

    /// Begins no further objects of a track for a subscriber.
    pub fn unsubscribe(&mut self, track: TrackIndex, slot: SlotIndex) {
        self.rows.unsubscribe(track, slot);
    }

    /// Returns the counters of a subscriber, since it was added.
    pub fn slot_stats(&self, slot: SlotIndex) -> SlotStats {
        let account = self.rows.account(slot);
        let total = &account.buckets[TOTAL];
        SlotStats {
            packets: account.packets,
            bytes: total.spent,
            balance: total.granted.wrapping_sub(total.spent).cast_signed(),
            lost: account.lost,
            objects: account.objects,
        }
    }
}

/// Returns a link-layer address as a word whose first six bytes in memory it is.
fn mac_word(mac: [u8; 6]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..6].copy_from_slice(&mac);
    u64::from_ne_bytes(bytes)
}

/// Returns the ones' complement sum of at most 65,536 bytes, as the program computes it.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_ne_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16)
}
