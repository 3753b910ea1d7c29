use hawser_wire::Key;

/// The receiver's slot of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySlot {
    /// The first.
    Zero,
    /// The second.
    One,
}

/// The keys that two nodes share: two during a rotation, none without tags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRing {
    /// Indexed by [`KeySlot::index`].
    pub slots: [Option<Key>; 2],
}

impl KeySlot {
    /// Returns 0 or 1.
    pub const fn index(self) -> usize {
        match self {
            KeySlot::Zero => 0,
            KeySlot::One => 1,
        }
    }
}
