use crate::{MAX_SLOTS, MAX_TRACKS};
use hawser_units::OutOfRange;

/// The relay's number of a track, 0 to 63.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrackIndex(u8);

/// The relay's number of a subscriber, 0 to 1023: a bit in each bitmap of subscribers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(u16);

impl TrackIndex {
    /// Returns all tracks that a relay may have.
    pub fn all() -> impl Iterator<Item = TrackIndex> {
        (0..MAX_TRACKS as u8).map(TrackIndex)
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl SlotIndex {
    /// Returns all slots of a relay.
    pub fn all() -> impl Iterator<Item = SlotIndex> {
        (0..MAX_SLOTS as u16).map(SlotIndex)
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<usize> for TrackIndex {
    type Error = OutOfRange;

    fn try_from(index: usize) -> Result<Self, OutOfRange> {
        in_range("track", index, MAX_TRACKS).map(|()| TrackIndex(index as u8))
    }
}

impl TryFrom<usize> for SlotIndex {
    type Error = OutOfRange;

    fn try_from(index: usize) -> Result<Self, OutOfRange> {
        in_range("slot", index, MAX_SLOTS).map(|()| SlotIndex(index as u16))
    }
}

fn in_range(what: &'static str, index: usize, limit: usize) -> Result<(), OutOfRange> {
    let (value, limit) = (index as u64, limit as u64);
    let is_below = value < limit;
    is_below
        .then_some(())
        .ok_or(OutOfRange { what, value, limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_below_their_limits() {
        assert_eq!(TrackIndex::all().count(), MAX_TRACKS);
        assert_eq!(SlotIndex::all().count(), MAX_SLOTS);
        assert!(TrackIndex::try_from(MAX_TRACKS).is_err());
        assert!(SlotIndex::try_from(MAX_SLOTS).is_err());
        assert_eq!(SlotIndex::try_from(1023).map(SlotIndex::get), Ok(1023));
    }
}
