use serde::{Deserialize, Serialize};
use std::fmt;

/// Paths a node may have: one bit each in a [`PolicyCode`].
pub const MAX_PATHS: usize = 8;

/// Flows a node may have.
pub const MAX_FLOWS: usize = 1024;

/// An identifier outside the range that the wire and the kernel tables hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} is out of range: must be below {limit}")]
pub struct OutOfRange {
    /// What was numbered.
    pub what: &'static str,
    /// The number given.
    pub value: u64,
    /// The first number that is too large.
    pub limit: u64,
}

/// A path of a node, 0 to 7. People and the paper count from one: path index 0 is shown as "path 1".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PathId(u8);

impl PathId {
    /// Every path a node may have.
    pub fn all() -> impl Iterator<Item = PathId> {
        (0..MAX_PATHS as u8).map(PathId)
    }

    /// The zero-based index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u8> for PathId {
    type Error = OutOfRange;

    fn try_from(index: u8) -> Result<Self, OutOfRange> {
        if usize::from(index) < MAX_PATHS {
            Ok(PathId(index))
        } else {
            Err(OutOfRange {
                what: "path",
                value: index.into(),
                limit: MAX_PATHS as u64,
            })
        }
    }
}

impl From<PathId> for u8 {
    fn from(path: PathId) -> u8 {
        path.0
    }
}

impl fmt::Display for PathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path {}", self.0 + 1)
    }
}

/// A flow of a node, 0 to 1023. The number is the receiving node's label: it is on the wire and indexes its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct FlowId(u16);

impl FlowId {
    /// The zero-based index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl TryFrom<u16> for FlowId {
    type Error = OutOfRange;

    fn try_from(index: u16) -> Result<Self, OutOfRange> {
        if usize::from(index) < MAX_FLOWS {
            Ok(FlowId(index))
        } else {
            Err(OutOfRange {
                what: "flow",
                value: index.into(),
                limit: MAX_FLOWS as u64,
            })
        }
    }
}

impl From<FlowId> for u16 {
    fn from(flow: FlowId) -> u16 {
        flow.0
    }
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// A set of paths, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PathSet(u8);

impl PathSet {
    /// No path.
    pub const EMPTY: PathSet = PathSet(0);

    /// The set whose bit i is path index i.
    pub const fn from_bits(bits: u8) -> Self {
        PathSet(bits)
    }

    /// Bit i is path index i.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether `path` is in the set.
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & (1 << path.0) != 0
    }

    /// The set with `path` in it.
    #[must_use]
    pub const fn with(self, path: PathId) -> Self {
        PathSet(self.0 | 1 << path.0)
    }

    /// The set without `path`.
    #[must_use]
    pub const fn without(self, path: PathId) -> Self {
        PathSet(self.0 & !(1 << path.0))
    }

    /// What is in this set or in the other.
    #[must_use]
    pub const fn union(self, other: PathSet) -> Self {
        PathSet(self.0 | other.0)
    }

    /// What is in both sets.
    #[must_use]
    pub const fn intersection(self, other: PathSet) -> Self {
        PathSet(self.0 & other.0)
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub const fn difference(self, other: PathSet) -> Self {
        PathSet(self.0 & !other.0)
    }

    /// How many paths are in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether no path is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The paths in the set, lowest index first.
    pub fn iter(self) -> impl Iterator<Item = PathId> {
        PathId::all().filter(move |path| self.contains(*path))
    }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        paths.into_iter().fold(PathSet::EMPTY, PathSet::with)
    }
}

/// The paper's 8-bit policy of a flow (Qian, section III-B).
///
/// Bit i stands for path i+1; `0x00` is off and `0xff` is the order to stop, which turns the policy to off. So eight
/// paths may exist, but at most seven replicate at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyCode(pub u8);

impl PolicyCode {
    /// The flow takes the default route.
    pub const OFF: PolicyCode = PolicyCode(0x00);

    /// Stop replicating.
    pub const STOP: PolicyCode = PolicyCode(0xff);

    /// The paths that every packet takes, none when the policy is off or stop.
    pub const fn paths(self) -> PathSet {
        match self.0 {
            0xff => PathSet::EMPTY,
            bits => PathSet(bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_codes_of_the_paper() {
        let path = |index| PathId::try_from(index).unwrap();
        assert_eq!(
            PolicyCode(0x03).paths().iter().collect::<Vec<_>>(),
            [path(0), path(1)]
        );
        assert_eq!(PolicyCode(0x07).paths().len(), 3);
        assert!(PolicyCode::OFF.paths().is_empty());
        assert!(PolicyCode::STOP.paths().is_empty());
        assert_eq!(PolicyCode(0xfe).paths().len(), 7);
    }

    #[test]
    fn identifiers_refuse_what_the_tables_cannot_hold() {
        assert!(PathId::try_from(8).is_err());
        assert!(FlowId::try_from(1024).is_err());
        assert_eq!(FlowId::try_from(1023).unwrap().index(), 1023);
    }
}
