//! Keys in tables.

use hawser_wire::Key;

/// Returns a key as the two little-endian words that SipHash takes.
pub fn key_words(key: &Key) -> [u64; 2] {
    let (low, high) = key.as_bytes().split_at(8);
    [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("half of 16 bytes")))
}
