//! Changes of valid encodings, for the property tests of every crate that parses bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Byte(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Extend(Vec<u8>),
    Repeat(Index),
}

/// Generates up to three changes, most of them of a single byte.
pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        6 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => (any::<Index>(), vec(any::<u8>(), 1..9)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => vec(any::<u8>(), 1..40).prop_map(Change::Extend),
        1 => any::<Index>().prop_map(Change::Repeat),
    ];
    vec(change, 0..4)
}

/// Returns `valid` with the changes applied one after the other.
pub(crate) fn changed(valid: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for change in changes {
        match change {
            Change::Byte(_, _) if bytes.is_empty() => {}
            Change::Byte(at, byte) => *at.get_mut(&mut bytes) = *byte,
            Change::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Change::Insert(at, more) => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, more.iter().copied());
            }
            Change::Extend(tail) => bytes.extend_from_slice(tail),
            Change::Repeat(at) => {
                let tail = bytes[at.index(bytes.len() + 1)..].to_vec();
                bytes.extend(tail);
            }
        }
    }
    bytes
}
