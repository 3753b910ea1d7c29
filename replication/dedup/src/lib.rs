//! The deduplication window: which copy of a packet is the first.
//!
//! This is the executable specification of `replication/bpf/src/c/window.h`. Both get the same random
//! operations (`tests/support/operations.rs`) and must give the same verdicts, so change both or neither.
//!
//! # The window
//!
//! A ring of [`SLOTS`] words, each an epoch (high half) and a bitmap of [`SLOT_BITS`] sequence
//! numbers (low half):
//!
//! ```text
//!  sequence number   63         49 48                 17 16          5 4       0
//!                   +-------------+---------------------+-------------+---------+
//!                   |   ignored   |        epoch        | slot of ring|   bit   |
//!                   +-------------+---------------------+-------------+---------+
//! ```
//!
//! A packet touches the one slot of its number. When the slot holds the packet's epoch, the bit
//! decides. When it holds an older one, the ring has come round and the slot now belongs to the
//! packet's epoch. When it holds a newer one, the packet is older than the window remembers: it is
//! accepted and nothing is recorded. Epochs further apart than [`LATE_EPOCHS`] belong to different
//! sessions of the sender (those of untagged flows start anywhere), or to one that jumped; so does
//! whatever meets a slot that nothing was recorded in.
//!
//! # Guarantees for untagged flows
//!
//! - A packet is refused only when a packet with the same number, modulo 2^49, was accepted and
//!   recorded before: the first copy always passes, in whatever order, after whatever loss, jump or
//!   restart. A session meets the numbers of the one before it only when it starts among them or up
//!   to 16 epochs below, a chance of 2^-27.9 a restart.
//! - Once recorded, a number stays refused until 131,040 newer numbers (131,072 less a slot) have
//!   followed, whichever of them arrive. It may stay refused for up to 31 more.
//! - That second guarantee, and only that one, ends early in two cases, in which duplicates pass. A
//!   slot is taken over by a packet of another session or one more than 16 epochs (2^21 numbers)
//!   away, and forgets its 32 numbers. And a packet loses the race for its slot [`ATTEMPTS`] times
//!   and passes unrecorded.
//!
//! # Tagged flows
//!
//! Where tags prove the sender, nothing is accepted twice ([`Window::observe_tagged`]). The
//! sessions of such a sender start ever higher and the send times in its packets never go back, so:
//!
//! - a packet that is older than what its slot holds, by whatever distance, is
//!   [`Verdict::Outdated`] and refused: it, or a packet that pushed it out, was accepted before;
//! - a packet that took longer than the fastest by more than a bound is [`Verdict::Expired`] and
//!   refused, except that a session may begin with one that was sent later than everything before.
//!
//! A number that was accepted and recorded is never accepted again, unless 2^48 numbers have
//! passed. A first copy is accepted as long as its number is within the last 131,040, its age
//! within the bound, and its slot was not taken over by a session that began meanwhile.
//!
//! ```
//! use hawser_dedup::{Verdict, Window};
//!
//! let window = Window::new();
//! assert_eq!(window.observe(1 << 40), Verdict::Reset);
//! assert_eq!(window.observe(1 << 40), Verdict::Duplicate);
//! assert_eq!(window.observe((1 << 40) + 1), Verdict::First);
//! ```

mod tagged;

pub use tagged::Times;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots of the ring.
pub const SLOTS: usize = 4096;

/// Sequence numbers that one slot remembers.
pub const SLOT_BITS: u64 = 32;

/// The maximum distance of two numbers of one session, in rounds of the ring.
pub const LATE_EPOCHS: i32 = 16;

/// The number of attempts of a packet to update its slot before it passes unrecorded.
pub const ATTEMPTS: usize = 8;

/// A number is remembered while at most this many newer ones have followed.
pub const REMEMBERED: u64 = SLOTS as u64 * SLOT_BITS - SLOT_BITS;

/// The window's verdict on a packet.
///
/// The values are those of `enum verdict` in `replication/bpf/src/c/abi.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// No copy arrived before.
    First = 0,
    /// A copy arrived before.
    Duplicate = 1,
    /// Older than the window remembers.
    Late = 2,
    /// From another session of the sender, or after a jump.
    Reset = 3,
    /// Too many concurrent updates of the slot.
    Contended = 4,
    /// Tagged and older than the window remembers, or of a former session.
    Outdated = 5,
    /// Tagged and sent too long ago.
    Expired = 6,
}

impl Verdict {
    /// Returns whether the packet is passed on to its receiver.
    pub const fn accepts(self) -> bool {
        !matches!(
            self,
            Verdict::Duplicate | Verdict::Outdated | Verdict::Expired
        )
    }
}

/// The sequence numbers of one flow that were seen last.
pub struct Window {
    slots: Box<[AtomicU64]>,
    /// The newest send time of tagged packets, in microseconds.
    newest_sent: AtomicU64,
    /// The sequence number of that packet.
    newest_sequence: AtomicU64,
    /// The time at which that packet arrived, or would have arrived without its extra delay; 0 if
    /// there was none.
    expected: AtomicU64,
}

impl Window {
    /// Creates an empty window.
    pub fn new() -> Self {
        Window {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
            newest_sent: AtomicU64::new(0),
            newest_sequence: AtomicU64::new(0),
            expected: AtomicU64::new(0),
        }
    }

    /// Judges an untagged packet and records its number. In doubt, the packet is accepted. May be
    /// called from several threads concurrently.
    pub fn observe(&self, sequence: u64) -> Verdict {
        let slot = &self.slots[(sequence / SLOT_BITS) as usize % SLOTS];
        // The slot holds all that is known about its numbers, so no other memory has to be ordered
        // with it.
        let mut seen = slot.load(Relaxed);
        for _ in 0..ATTEMPTS {
            let (verdict, next) = judge(seen, sequence);
            let Some(next) = next else { return verdict };
            match slot.compare_exchange(seen, next, Relaxed, Relaxed) {
                Ok(_) => return verdict,
                Err(changed) => seen = changed,
            }
        }
        Verdict::Contended
    }
}

impl Default for Window {
    fn default() -> Self {
        Window::new()
    }
}

/// Returns the verdict of a slot on a packet, and the new value of the slot if it changes.
fn judge(slot: u64, sequence: u64) -> (Verdict, Option<u64>) {
    let epoch = epoch_of(sequence);
    let bit = 1 << (sequence % SLOT_BITS);
    let fresh = u64::from(epoch) << 32 | bit;
    let newer = ((slot >> 32) as u32).wrapping_sub(epoch) as i32;
    match newer {
        _ if slot as u32 == 0 => (Verdict::Reset, Some(fresh)),
        0 if slot & bit != 0 => (Verdict::Duplicate, None),
        0 => (Verdict::First, Some(slot | bit)),
        1..=LATE_EPOCHS => (Verdict::Late, None),
        _ if (-LATE_EPOCHS..0).contains(&newer) => (Verdict::First, Some(fresh)),
        _ => (Verdict::Reset, Some(fresh)),
    }
}

/// Returns the round of the ring that a number belongs to. The highest 15 bits of the number are
/// ignored.
const fn epoch_of(sequence: u64) -> u32 {
    (sequence / SLOT_BITS / SLOTS as u64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first number of an epoch.
    fn start_of(epoch: u32) -> u64 {
        u64::from(epoch) << 17
    }

    /// Returns the verdict of a slot 0 with epoch `seen` on the first packet of `epoch`.
    fn verdict(seen: u32, epoch: u32) -> (Verdict, Option<u64>) {
        judge(u64::from(seen) << 32 | 1, start_of(epoch))
    }

    #[test]
    fn epochs_decide_on_both_sides_of_their_wrap() {
        for base in [1000, 5, u32::MAX, u32::MAX - 5] {
            let epoch = |distance: i32| base.wrapping_add_signed(distance);
            let taken = |distance| Some(u64::from(epoch(distance)) << 32 | 1);

            assert_eq!(verdict(base, epoch(0)), (Verdict::Duplicate, None));
            assert_eq!(verdict(base, epoch(-1)), (Verdict::Late, None));
            assert_eq!(verdict(base, epoch(-16)), (Verdict::Late, None));
            assert_eq!(verdict(base, epoch(-17)), (Verdict::Reset, taken(-17)));
            assert_eq!(verdict(base, epoch(1)), (Verdict::First, taken(1)));
            assert_eq!(verdict(base, epoch(16)), (Verdict::First, taken(16)));
            assert_eq!(verdict(base, epoch(17)), (Verdict::Reset, taken(17)));
            assert_eq!(
                verdict(base, epoch(i32::MIN)),
                (Verdict::Reset, taken(i32::MIN))
            );
        }
    }

    #[test]
    fn a_number_is_remembered_while_the_ring_goes_round_once() {
        for offset in 0..SLOT_BITS {
            let window = Window::new();
            let first = start_of(100) + offset;
            window.observe(first);
            window.observe(first + REMEMBERED);
            assert_eq!(window.observe(first), Verdict::Duplicate, "bit {offset}");

            window.observe(first + REMEMBERED + SLOT_BITS);
            assert_eq!(window.observe(first), Verdict::Late, "bit {offset}");
        }
    }

    #[test]
    fn an_empty_ring_takes_any_session() {
        for epoch in [0, 1, u32::MAX, u32::MAX - 15, 1 << 31] {
            let window = Window::new();
            assert_eq!(window.observe(start_of(epoch)), Verdict::Reset);
            assert_eq!(window.observe(start_of(epoch)), Verdict::Duplicate);
            assert_eq!(window.observe(start_of(epoch) + 1), Verdict::First);
        }
    }

    #[test]
    fn duplicates_and_old_packets_are_refused() {
        use Verdict::*;
        let all = [First, Duplicate, Late, Reset, Contended, Outdated, Expired];
        let refused: Vec<_> = all
            .into_iter()
            .filter(|verdict| !verdict.accepts())
            .collect();
        assert_eq!(refused, [Duplicate, Outdated, Expired]);
        assert_eq!(all.map(|verdict| verdict as u8), [0, 1, 2, 3, 4, 5, 6]);
    }
}
