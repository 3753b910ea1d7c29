use hawser_units::PathSet;

/// What sets do with each other.
pub(crate) trait Sets {
    fn union(self, other: PathSet) -> PathSet;
    fn intersection(self, other: PathSet) -> PathSet;
    /// What is in this set and not in the other.
    fn difference(self, other: PathSet) -> PathSet;
}

impl Sets for PathSet {
    fn union(self, other: PathSet) -> PathSet {
        PathSet::from_bits(self.bits() | other.bits())
    }

    fn intersection(self, other: PathSet) -> PathSet {
        PathSet::from_bits(self.bits() & other.bits())
    }

    fn difference(self, other: PathSet) -> PathSet {
        PathSet::from_bits(self.bits() & !other.bits())
    }
}
