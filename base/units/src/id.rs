use serde::{Deserialize, Serialize};
use std::fmt;

/// The maximum number of paths of a node: one bit each in a [`PolicyCode`].
pub const MAX_PATHS: usize = 8;

/// The maximum number of flows of a node.
pub const MAX_FLOWS: usize = 1024;

/// An identifier outside the range of the wire format and the kernel tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value} is out of range: must be below {limit}")]
pub struct OutOfRange {
    /// The kind of identifier.
    pub what: &'static str,
    /// The given number.
    pub value: u64,
    /// The first number that is too large.
    pub limit: u64,
}

/// A path of a node, index 0 to 7. Users and the paper count from one: index 0 is "path 1", see
/// [`PathId::number`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct PathId(u8);

impl PathId {
    /// Returns all paths that a node may have.
    pub fn all() -> impl Iterator<Item = PathId> {
        (0..MAX_PATHS as u8).map(PathId)
    }

    /// Returns the zero-based index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns the number that people and messages use, 1 to 8: the index plus one.
    ///
    /// ```
    /// use hawser_units::PathId;
    ///
    /// let first = PathId::try_from(0)?;
    /// assert_eq!((first.number(), first.to_string()), (1, "path 1".to_owned()));
    /// assert_eq!(PathId::from_number(1), Some(first));
    /// # Ok::<(), hawser_units::OutOfRange>(())
    /// ```
    pub const fn number(self) -> u8 {
        self.0 + 1
    }

    /// Returns the path with this number; `None` unless it is 1 to 8.
    pub fn from_number(number: u8) -> Option<Self> {
        PathId::try_from(number.checked_sub(1)?).ok()
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
        write!(f, "path {}", self.number())
    }
}

/// A flow of a node, 0 to 1023. The receiving node assigns the number; it is on the wire and
/// indexes that node's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct FlowId(u16);

impl FlowId {
    /// Returns the zero-based index.
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
    /// The empty set.
    pub const EMPTY: PathSet = PathSet(0);

    /// Creates a set from bits; bit i is path index i.
    pub const fn from_bits(bits: u8) -> Self {
        PathSet(bits)
    }

    /// Returns the bits; bit i is path index i.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns whether `path` is in the set.
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & (1 << path.0) != 0
    }

    /// Returns the set with `path` added.
    #[must_use]
    pub const fn with(self, path: PathId) -> Self {
        PathSet(self.0 | 1 << path.0)
    }

    /// Returns the set with `path` removed.
    #[must_use]
    pub const fn without(self, path: PathId) -> Self {
        PathSet(self.0 & !(1 << path.0))
    }

    /// Returns the paths that are in either set.
    #[must_use]
    pub const fn union(self, other: PathSet) -> Self {
        PathSet(self.0 | other.0)
    }

    /// Returns the paths that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: PathSet) -> Self {
        PathSet(self.0 & other.0)
    }

    /// Returns the paths that are in this set and not in the other.
    #[must_use]
    pub const fn difference(self, other: PathSet) -> Self {
        PathSet(self.0 & !other.0)
    }

    /// Returns the number of paths.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the paths in ascending order.
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
/// Bit i stands for path i+1; `0x00` is off and `0xff` is the command to stop, which turns the
/// policy off. Thus, eight paths may exist, but at most seven replicate at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyCode(pub u8);

impl PolicyCode {
    /// Off: the flow takes the default route.
    pub const OFF: PolicyCode = PolicyCode(0x00);

    /// The command to stop replicating.
    pub const STOP: PolicyCode = PolicyCode(0xff);

    /// Returns the paths that every packet takes; none if the policy is off or stop.
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
    fn identifiers_out_of_range_are_rejected() {
        assert!(PathId::try_from(8).is_err());
        assert!(FlowId::try_from(1024).is_err());
        assert_eq!(FlowId::try_from(1023).unwrap().index(), 1023);
    }
}
