use hawser_wire::Key;

/// Converts the keys of a direction to the tables' form, whose types each skeleton defines for
/// itself.
macro_rules! shim_keys {
    ($types:ident, $key:expr) => {{
        let words = |key| {
            let [k0, k1] = $crate::keys::key_words(key);
            $types::siphash_key { k0, k1 }
        };
        $types::shim_keys {
            seal: words($key.seal()),
            digest: words($key.digest()),
        }
    }};
}
pub(crate) use shim_keys;

/// Returns a key as the two little-endian words that SipHash takes.
pub(crate) fn key_words(key: &Key) -> [u64; 2] {
    let (low, high) = key.as_bytes().split_at(8);
    [low, high].map(|half| u64::from_le_bytes(half.try_into().expect("half of 16 bytes")))
}
