//! The key of two nodes, derived from a key pair of each (X25519, RFC 7748) by HKDF-SHA256
//! (RFC 5869). See "Keys" in `docs/design/wire.md`.

use hawser_model::Name;
use hawser_model::pair::PublicKey;
use hawser_wire::Key;
use hkdf::Hkdf;
use sha2::Sha256;
use std::fmt;
use x25519_dalek::StaticSecret;
use zeroize::Zeroizing;

/// The version of the derivation, so that no other use of the shared secret gives the same key.
const PURPOSE: &[u8] = b"hawser-pair 1";

/// A node's private key. It is overwritten when it is dropped, and does not print itself.
#[derive(Clone)]
pub struct SecretKey {
    /// The number of the key, see [`PublicKey::generation`].
    pub generation: u64,
    secret: StaticSecret,
    public: [u8; 32],
}

/// A node as a part of what a key is derived from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Party<'a> {
    pub(crate) name: &'a Name,
    pub(crate) incarnation: &'a str,
}

impl SecretKey {
    /// Creates a key from 32 random bytes.
    pub fn new(generation: u64, bytes: &Zeroizing<[u8; 32]>) -> Self {
        let secret = StaticSecret::from(**bytes);
        SecretKey {
            generation,
            public: x25519_dalek::PublicKey::from(&secret).to_bytes(),
            secret,
        }
    }

    /// Returns the generation of the key that follows those up to `last`, made at a time in seconds
    /// since 1970.
    pub fn next_generation(last: Option<u64>, unix_s: u64) -> u64 {
        let Some(last) = last else { return unix_s };
        // The slot of a pair's key follows from the parity, and the next key needs the other slot.
        let next = unix_s.max(last.saturating_add(1));
        next.saturating_add(u64::from(next % 2 == last % 2))
    }

    /// Returns the private bytes, to save them.
    pub fn to_bytes(&self) -> Zeroizing<[u8; 32]> {
        Zeroizing::new(self.secret.to_bytes())
    }

    /// Returns the public key.
    pub fn public(&self) -> PublicKey {
        PublicKey {
            generation: self.generation,
            public: hex::encode(self.public),
        }
    }

    /// Returns the key that this node, `own`, shares with the node `peer`, whose public key is
    /// `public`. Both get the same. Returns `None` if the public key is not one: the shared secret
    /// would not depend on the private keys.
    pub(crate) fn shared_with(
        &self,
        own: Party<'_>,
        peer: Party<'_>,
        public: &PublicKey,
    ) -> Option<Key> {
        let mut theirs = [0; 32];
        hex::decode_to_slice(&public.public, &mut theirs).ok()?;
        let shared = self
            .secret
            .diffie_hellman(&x25519_dalek::PublicKey::from(theirs));
        let is_sound = shared.was_contributory() && own.name != peer.name;
        let mut parties = [(own, self.public), (peer, theirs)];
        parties.sort_by_key(|(party, _)| party.name);
        let info = info(&parties);
        let mut key = Zeroizing::new([0; 16]);
        Hkdf::<Sha256>::new(None, shared.as_bytes())
            .expand(&info, &mut key[..])
            .expect("less than 255 blocks");
        is_sound.then(|| Key::from_bytes(*key))
    }
}

/// Returns the purpose, and for both nodes, ordered by name: name and incarnation, each after its
/// length as two bytes, and the public key.
fn info(parties: &[(Party<'_>, [u8; 32]); 2]) -> Vec<u8> {
    let mut info = PURPOSE.to_vec();
    for (party, public) in parties {
        for text in [party.name.as_str(), party.incarnation] {
            info.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
            info.extend(text.as_bytes());
        }
        info.extend(public);
    }
    info
}

impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        (self.generation, self.public) == (other.generation, other.public)
    }
}

impl Eq for SecretKey {}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey(secret, generation {})", self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(hex: &str) -> SecretKey {
        let mut bytes = [0; 32];
        hex::decode_to_slice(hex, &mut bytes).unwrap();
        SecretKey::new(7, &Zeroizing::new(bytes))
    }

    /// The two private keys of RFC 7748, section 6.1.
    fn alice_and_bob() -> [SecretKey; 2] {
        [
            secret("77076d0a7318a57d3c16c17251b26645c6db4e3f8bf6e5a4c9b3d7c7a5e4d8e1"),
            secret("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"),
        ]
    }

    fn party<'a>(name: &'a Name, incarnation: &'a str) -> Party<'a> {
        Party { name, incarnation }
    }

    fn names() -> [Name; 2] {
        ["edge-1", "edge-2"].map(|name| name.parse().unwrap())
    }

    #[test]
    fn both_nodes_derive_the_same_key_and_each_input_changes_it() {
        let [alice, bob] = alice_and_bob();
        let [one, two] = &names();
        let key = |own: &SecretKey, peer: &SecretKey, own_party, peer_party| {
            own.shared_with(own_party, peer_party, &peer.public())
                .unwrap()
        };
        let shared = key(&alice, &bob, party(one, "a"), party(two, "b"));
        assert_eq!(shared, key(&bob, &alice, party(two, "b"), party(one, "a")));
        for other in [
            key(&alice, &bob, party(one, "x"), party(two, "b")),
            key(&alice, &bob, party(one, "a"), party(two, "x")),
            key(&alice, &bob, party(one, "ab"), party(two, "")),
            key(&alice, &bob, party(two, "b"), party(one, "a")),
            key(
                &alice,
                &secret(&"11".repeat(32)),
                party(one, "a"),
                party(two, "b"),
            ),
        ] {
            assert_ne!(shared, other);
        }
    }

    #[test]
    fn invalid_and_weak_public_keys_are_refused() {
        let [alice, _] = alice_and_bob();
        let [one, two] = &names();
        for public in [
            "00".repeat(32),
            format!("01{}", "00".repeat(31)),
            "5e".to_owned(),
        ] {
            let public = PublicKey {
                generation: 7,
                public,
            };
            let key = alice.shared_with(party(one, ""), party(two, ""), &public);
            assert_eq!(key, None, "{public:?}");
        }
        let own = alice.shared_with(party(one, ""), party(one, ""), &alice.public());
        assert_eq!(own, None, "of a node with itself");
    }

    #[test]
    fn the_next_generation_is_greater_and_has_the_other_parity() {
        assert_eq!(SecretKey::next_generation(None, 100), 100);
        for (last, unix_s, next) in [
            (100, 105, 105),
            (100, 106, 107),
            (100, 100, 101),
            (100, 7, 101),
        ] {
            assert_eq!(SecretKey::next_generation(Some(last), unix_s), next);
        }
    }

    #[test]
    fn a_private_key_does_not_print_itself() {
        let [alice, _] = alice_and_bob();
        let bytes = alice.to_bytes();
        let printed = format!("{alice:?}");
        assert!(!printed.contains(&hex::encode(*bytes)), "{printed}");
        assert_eq!(printed, "SecretKey(secret, generation 7)");
    }
}
