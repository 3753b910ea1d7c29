use crate::{MAX_SLOTS, SlotIndex};

/// A set of subscribers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotSet([u64; SlotSet::WORDS]);

impl SlotSet {
    /// The number of words of a set.
    pub const WORDS: usize = MAX_SLOTS / 64;

    /// The set of none.
    pub const EMPTY: SlotSet = SlotSet([0; SlotSet::WORDS]);

    /// Returns the set of these words, in which bit `i % 64` of word `i / 64` is slot `i`.
    pub const fn from_words(words: [u64; SlotSet::WORDS]) -> Self {
        SlotSet(words)
    }

    /// Returns whether the slot is in the set.
    pub const fn contains(&self, slot: SlotIndex) -> bool {
        self.0[slot.get() / 64] & SlotSet::bit(slot) != 0
    }

    /// Adds a slot.
    pub const fn insert(&mut self, slot: SlotIndex) {
        self.0[slot.get() / 64] |= SlotSet::bit(slot);
    }

    /// Removes a slot.
    pub const fn remove(&mut self, slot: SlotIndex) {
        self.0[slot.get() / 64] &= !SlotSet::bit(slot);
    }

    /// Returns the slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = SlotIndex> + '_ {
        SlotIndex::all().filter(|slot| self.contains(*slot))
    }

    const fn bit(slot: SlotIndex) -> u64 {
        1 << (slot.get() % 64)
    }
}

impl std::fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set()
            .entries(self.iter().map(SlotIndex::get))
            .finish()
    }
}

impl FromIterator<SlotIndex> for SlotSet {
    fn from_iter<I: IntoIterator<Item = SlotIndex>>(slots: I) -> Self {
        let mut set = SlotSet::EMPTY;
        slots.into_iter().for_each(|slot| set.insert(slot));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_inserted() {
        let slots: Vec<SlotIndex> = [0, 63, 64, 1023]
            .into_iter()
            .filter_map(|index| SlotIndex::try_from(index).ok())
            .collect();
        let mut set: SlotSet = slots.iter().copied().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), slots);
        set.remove(slots[1]);
        assert!(!set.contains(slots[1]) && set.contains(slots[2]));
    }
}
