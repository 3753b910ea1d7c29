use crate::keys::KeyRing;
use crate::seal::{Cover, SealKey};
use crate::shim::Shim;
use hawser_wire::Key;

/// The keys that a receiver accepts from a sender, and the cover that it requires of their tags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SealRing {
    /// Indexed by [`KeySlot::index`]. Without any key, everything is accepted.
    pub slots: [Option<SealKey>; 2],
    /// [`Cover::Whole`] rejects tags that cover less.
    pub required_cover: Cover,
}

impl KeyRing {
    /// Derives from these shared keys the keys for replicas sent by the node named `from` to the
    /// node named `to`.
    pub fn for_direction(&self, from: &str, to: &str, required_cover: Cover) -> SealRing {
        let key = |key: &Option<Key>| key.as_ref().map(|key| SealKey::derive(key, from, to));
        SealRing {
            slots: self.slots.each_ref().map(key),
            required_cover,
        }
    }
}

impl SealRing {
    /// Returns whether the replica in the payload of a datagram comes from a holder of one of the
    /// keys, and its tag covers as much as required.
    ///
    /// Without any key, everything that parses is accepted. With a key, untagged replicas are
    /// rejected.
    pub fn accepts(&self, datagram: &[u8]) -> bool {
        let Ok((shim, inner)) = Shim::parse(datagram) else {
            return false;
        };
        if self.slots.iter().all(Option::is_none) {
            return true;
        }
        let Some(bytes) = datagram.first_chunk() else {
            return false;
        };
        shim.seal.is_some_and(|seal| {
            let key = self.slots[seal.slot.index()].as_ref();
            let covers_enough = self.required_cover == Cover::Headers || seal.cover == Cover::Whole;
            covers_enough && key.is_some_and(|key| key.tag(bytes, seal.cover, inner) == seal.tag)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeySlot;
    use hawser_units::{FlowId, PathId, PathSet};
    use hawser_wire::ip;

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

    fn inner() -> Vec<u8> {
        ip::udp_packet(
            "192.0.2.1:1".parse().unwrap(),
            "192.0.2.2:2".parse().unwrap(),
            0,
            b"some payload",
        )
    }

    fn key(byte: u8) -> SealKey {
        SealKey::derive(&Key::from_bytes([byte; 16]), "ingress", "egress")
    }

    fn replica(slot: KeySlot, key: &SealKey, cover: Cover) -> Vec<u8> {
        [
            &shim().sealed(slot, key, cover, &inner()).emit()[..],
            &inner(),
        ]
        .concat()
    }

    fn ring(slots: [Option<SealKey>; 2]) -> SealRing {
        SealRing {
            slots,
            required_cover: Cover::Headers,
        }
    }

    #[test]
    fn the_tag_covers_every_bit_of_the_shim_and_of_its_cover() {
        for (cover, covered) in [
            (Cover::Headers, Shim::LEN + 24),
            (Cover::Whole, Shim::LEN + inner().len()),
        ] {
            let good = replica(KeySlot::Zero, &key(7), cover);
            let ring = ring([Some(key(7)), None]);
            assert!(ring.accepts(&good));
            for bit in 0..good.len() * 8 {
                let mut forged = good.clone();
                forged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    ring.accepts(&forged),
                    bit >= covered * 8,
                    "{cover:?}, bit {bit}"
                );
            }
        }
    }

    #[test]
    fn a_packet_without_anything_behind_its_header_is_covered_too() {
        let bare = [&inner()[..2], &20u16.to_be_bytes(), &inner()[4..20]].concat();
        for cover in [Cover::Headers, Cover::Whole] {
            let sealed = shim().sealed(KeySlot::Zero, &key(7), cover, &bare).emit();
            let ring = ring([Some(key(7)), None]);
            assert!(ring.accepts(&[&sealed[..], &bare].concat()), "{cover:?}");
        }
    }

    #[test]
    fn a_reflected_replica_is_rejected() {
        let shared = Key::from_bytes([7; 16]);
        let outward = replica(
            KeySlot::Zero,
            &SealKey::derive(&shared, "publisher", "viewer"),
            Cover::Headers,
        );
        let at_publisher = ring([Some(SealKey::derive(&shared, "viewer", "publisher")), None]);
        let at_viewer = ring([Some(SealKey::derive(&shared, "publisher", "viewer")), None]);
        assert_eq!(
            [at_viewer.accepts(&outward), at_publisher.accepts(&outward)],
            [true, false]
        );
    }

    #[test]
    fn a_tag_that_covers_less_than_required_is_rejected() {
        let strict = SealRing {
            slots: [Some(key(7)), None],
            required_cover: Cover::Whole,
        };
        assert!(strict.accepts(&replica(KeySlot::Zero, &key(7), Cover::Whole)));
        assert!(!strict.accepts(&replica(KeySlot::Zero, &key(7), Cover::Headers)));
    }

    #[test]
    fn both_keys_are_accepted_while_they_are_rotated() {
        let by_old = replica(KeySlot::Zero, &key(1), Cover::Headers);
        let by_new = replica(KeySlot::One, &key(2), Cover::Headers);
        let before = ring([Some(key(1)), None]);
        let during = ring([Some(key(1)), Some(key(2))]);
        let after = ring([None, Some(key(2))]);

        assert_eq!(
            [before.accepts(&by_old), before.accepts(&by_new)],
            [true, false]
        );
        assert_eq!(
            [during.accepts(&by_old), during.accepts(&by_new)],
            [true, true]
        );
        assert_eq!(
            [after.accepts(&by_old), after.accepts(&by_new)],
            [false, true]
        );
    }

    #[test]
    fn untagged_replicas_are_accepted_only_without_keys() {
        let untagged = [&shim().emit()[..], &inner()].concat();
        assert!(SealRing::default().accepts(&untagged));
        assert!(!ring([Some(key(0)), None]).accepts(&untagged));
    }

    #[test]
    fn a_key_does_not_print_itself() {
        assert!(!format!("{:?}", key(0x42)).contains("66"));
        assert!(format!("{:?}", key(0x42)).contains("Key(secret)"));
    }
}
