use crate::SlotIndex;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The time for which a slot is not used after its subscriber has gone. A program that reads the
/// slot's row takes microseconds.
const UNUSED: Duration = Duration::from_millis(100);

/// The slots without a subscriber.
#[derive(Debug)]
pub struct SlotPool {
    /// With the times from which on they may be used, in order.
    free: VecDeque<(Instant, SlotIndex)>,
}

impl SlotPool {
    /// Creates a pool of all slots.
    pub fn new() -> Self {
        SlotPool {
            free: SlotIndex::all().map(|slot| (Instant::ZERO, slot)).collect(),
        }
    }

    /// Returns a slot for a subscriber; `None` if all are in use, or were until just now.
    pub fn take(&mut self, now: Instant) -> Option<SlotIndex> {
        let (from, _) = self.free.front()?;
        let is_free = *from <= now;
        is_free
            .then(|| self.free.pop_front())
            .flatten()
            .map(|(_, slot)| slot)
    }

    /// Takes back the slot of a subscriber that has gone.
    pub fn give_back(&mut self, now: Instant, slot: SlotIndex) {
        self.free.push_back((now + UNUSED, slot));
    }
}

impl Default for SlotPool {
    fn default() -> Self {
        SlotPool::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_SLOTS;

    #[test]
    fn a_slot_is_not_used_again_at_once() {
        let mut pool = SlotPool::new();
        let slots: Vec<_> = std::iter::from_fn(|| pool.take(Instant::ZERO)).collect();
        assert_eq!(slots.len(), MAX_SLOTS);
        let now = Instant::from_nanos(1_000);
        pool.give_back(now, slots[7]);
        assert_eq!(pool.take(now), None);
        assert_eq!(pool.take(now + UNUSED), Some(slots[7]));
    }
}
