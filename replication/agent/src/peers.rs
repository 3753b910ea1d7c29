//! The keys that a node under a controller shares with each peer: those of its configuration, or
//! derived ones.

use crate::config::{Config, Peer};
use hawser_model::Name;
use hawser_node::PairRing;
use std::collections::BTreeMap;

/// Returns the peers with which keys are shared now. `rings` has the derived keys.
pub(crate) fn peers(config: &Config, rings: &BTreeMap<Name, PairRing>) -> BTreeMap<String, Peer> {
    let by_hand = config.peers.iter().filter(|(_, peer)| peer.by_hand);
    let by_hand = by_hand.map(|(name, peer)| (name.clone(), peer.clone()));
    // Without a key, untagged packets would be accepted.
    let derived = rings
        .iter()
        .filter(|(_, pair)| pair.ring.slots.iter().any(Option::is_some));
    let derived = derived.map(|(name, pair)| {
        let described = config.peers.get(name.as_str()).cloned().unwrap_or_default();
        let peer = described.with_keys(&config.name, name.as_str(), pair.ring.clone(), pair.send);
        (name.to_string(), peer)
    });
    derived.chain(by_hand).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_shim::{KeyRing, KeySlot, SealKey};
    use hawser_wire::Key;
    use std::fs;

    fn config(peers: &str) -> Config {
        let folder = tempfile::tempdir().unwrap();
        crate::generate_key(&folder.path().join("pair.key")).unwrap();
        let file = folder.path().join("edge.toml");
        let text = format!(
            "[node]\nname = \"a\"\ntransit = [\"lan0\"]\n{peers}\n[controller]\nurls = [\"https://192.0.2.1:1\"]\n"
        );
        fs::write(&file, text).unwrap();
        Config::read(&file).unwrap()
    }

    fn rings(slots: [Option<Key>; 2], send: Option<KeySlot>) -> BTreeMap<Name, PairRing> {
        let ring = KeyRing { slots };
        [("b".parse().unwrap(), PairRing { ring, send })].into()
    }

    #[test]
    fn a_derived_key_is_used_where_the_file_has_none() {
        let key = Key::from_bytes([7; 16]);
        let derived = rings([None, Some(key.clone())], Some(KeySlot::One));
        for described in ["", "[[peer]]\nname = \"b\""] {
            let peers = peers(&config(described), &derived);
            let (slot, sealed, _) = peers["b"].sealed.clone().unwrap();
            assert_eq!(
                (slot, &sealed),
                (KeySlot::One, &SealKey::derive(&key, "a", "b"))
            );
            let accepted = &peers["b"].accepted.slots;
            assert_eq!(accepted, &[None, Some(SealKey::derive(&key, "b", "a"))]);
        }
        let by_hand = config("[[peer]]\nname = \"b\"\nkeys = { slot0 = \"pair.key\" }");
        assert_eq!(peers(&by_hand, &derived)["b"], by_hand.peers["b"]);
    }

    #[test]
    fn a_peer_without_any_key_is_left_out() {
        let none = rings([None, None], None);
        assert!(peers(&config("[[peer]]\nname = \"b\""), &none).is_empty());
        assert!(peers(&config("[[peer]]\nname = \"b\""), &BTreeMap::new()).is_empty());
    }
}
