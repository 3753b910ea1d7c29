//! Decisions of a relay: which packets of an object go to which subscribers.

mod index;

pub use index::{SlotIndex, TrackIndex};

/// The maximum number of tracks of a relay.
pub const MAX_TRACKS: usize = 64;

/// The maximum number of subscribers of a relay.
pub const MAX_SLOTS: usize = 1024;
