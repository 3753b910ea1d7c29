/// Converts the keys of a direction to the tables' form, whose types each skeleton defines for
/// itself.
macro_rules! shim_keys {
    ($types:ident, $key:expr) => {{
        let words = |key| {
            let [k0, k1] = hawser_kernel::keys::key_words(key);
            $types::siphash_key { k0, k1 }
        };
        $types::shim_keys {
            seal: words($key.seal()),
            digest: words($key.digest()),
        }
    }};
}
pub(crate) use shim_keys;
