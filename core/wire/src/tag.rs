use crate::shim::Shim;
use siphasher::sip::SipHasher24;
use std::fmt;

/// A secret that two nodes share: 128 bits.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 16]);

/// Which of its two keys a receiver checks a tag with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeySlot {
    /// The first.
    Zero,
    /// The second.
    One,
}

/// A keyed digest of a shim, as its eight bytes lie on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub [u8; 8]);

/// A tag and the key that made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal {
    /// Where the receiver holds the key.
    pub slot: KeySlot,
    /// The tag.
    pub tag: Tag,
}

/// The keys that a receiver accepts from a sender: two while they are being rotated, none when tags are not used.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyRing {
    /// Indexed by [`KeySlot::index`].
    pub slots: [Option<Key>; 2],
}

impl Key {
    /// The key made of these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Key(bytes)
    }

    /// The bytes, for the tables of the kernel.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// SipHash-2-4 of everything in a shim, or in a signal, that stands before the tag, whatever it is.
    pub fn tag(&self, bytes: &[u8; Shim::LEN]) -> Tag {
        Tag(SipHasher24::new_with_key(&self.0).hash(&bytes[..Shim::COVERED]).to_le_bytes())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

impl KeySlot {
    /// 0 or 1.
    pub const fn index(self) -> usize {
        match self {
            KeySlot::Zero => 0,
            KeySlot::One => 1,
        }
    }
}

impl KeyRing {
    /// Whether the shim at the start of a UDP payload comes from a holder of one of the keys.
    ///
    /// Without any key everything that parses is accepted, with one nothing untagged is.
    pub fn accepts(&self, datagram: &[u8]) -> bool {
        let Ok((shim, _)) = Shim::parse(datagram) else { return false };
        if self.slots.iter().all(Option::is_none) {
            return true;
        }
        let Some((bytes, _)) = datagram.split_first_chunk() else { return false };
        shim.seal.is_some_and(|seal| {
            self.slots[seal.slot.index()].as_ref().is_some_and(|key| key.tag(bytes) == seal.tag)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::{FlowId, PathId, PathSet};

    fn shim() -> Shim {
        Shim {
            path: PathId::try_from(0).unwrap(),
            paths: PathSet::from_bits(1),
            epoch: 0,
            flow: FlowId::try_from(0).unwrap(),
            sequence: 0,
            sent_micros: 0,
            seal: None,
        }
    }

    /// Appendix A of the SipHash paper, and the entry for 20 bytes of its reference vectors.
    #[test]
    fn siphash_is_the_reference_one() {
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let message: [u8; Shim::LEN] = std::array::from_fn(|i| i as u8);

        assert_eq!(SipHasher24::new_with_key(&key).hash(&message[..15]), 0xa129_ca61_49be_45e5);
        let reference = [0x98, 0xee, 0xa2, 0x1a, 0xf2, 0x5c, 0xd6, 0xbe];
        assert_eq!(Key(key).tag(&message), Tag(reference));
    }

    #[test]
    fn the_tag_covers_every_bit_of_the_shim() {
        let key = Key([7; 16]);
        let ring = KeyRing { slots: [Some(key.clone()), None] };
        let good = shim().sealed(KeySlot::Zero, &key).emit();
        assert!(ring.accepts(&good));

        for bit in 0..Shim::LEN * 8 {
            let mut forged = good;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!ring.accepts(&forged), "bit {bit}");
        }
    }

    #[test]
    fn both_keys_are_accepted_while_they_are_rotated() {
        let (old, new) = (Key([1; 16]), Key([2; 16]));
        let by_old = shim().sealed(KeySlot::Zero, &old).emit();
        let by_new = shim().sealed(KeySlot::One, &new).emit();
        let before = KeyRing { slots: [Some(old.clone()), None] };
        let during = KeyRing { slots: [Some(old), Some(new.clone())] };
        let after = KeyRing { slots: [None, Some(new)] };

        assert_eq!([before.accepts(&by_old), before.accepts(&by_new)], [true, false]);
        assert_eq!([during.accepts(&by_old), during.accepts(&by_new)], [true, true]);
        assert_eq!([after.accepts(&by_old), after.accepts(&by_new)], [false, true]);
    }

    #[test]
    fn untagged_replicas_are_for_those_without_keys() {
        let untagged = shim().emit();
        assert!(KeyRing::default().accepts(&untagged));
        assert!(!KeyRing { slots: [Some(Key([0; 16])), None] }.accepts(&untagged));
    }

    #[test]
    fn a_key_does_not_print_itself() {
        assert_eq!(format!("{:?}", Key([0x42; 16])), "Key(secret)");
    }
}
