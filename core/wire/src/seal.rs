use crate::ip::{Ipv4Header, Ipv6Header};
use crate::shim::Shim;
use crate::tag::{Key, KeyRing, KeySlot, Tag};
use siphasher::sip::{SipHasher13, SipHasher24};

/// The keys that seal and check a replica, derived for one direction from the secret that two nodes
/// share.
///
/// A replica that is reflected to its sender has been sealed with the key of the other direction,
/// and is therefore rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealKey {
    seal: Key,
    digest: Key,
}

/// The keys that a receiver accepts from a sender, and the cover that it requires of their tags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SealRing {
    /// Indexed by [`KeySlot::index`]. Without any key, everything is accepted.
    pub slots: [Option<SealKey>; 2],
    /// [`Cover::Whole`] rejects tags that cover less.
    pub required_cover: Cover,
}

/// The part of the inner packet that a tag covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Cover {
    /// The IP header without options, which includes the packet's length, and the four bytes that
    /// follow: the ports.
    #[default]
    Headers,
    /// The whole packet.
    Whole,
}

/// A tag and how it was computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seal {
    /// The receiver's slot of the key.
    pub slot: KeySlot,
    /// The part of the inner packet that the tag covers besides the shim.
    pub cover: Cover,
    /// The tag.
    pub tag: Tag,
}

impl Key {
    /// Derives from this shared key the key for replicas sent by the node named `from` to the node
    /// named `to`.
    pub fn for_direction(&self, from: &str, to: &str) -> SealKey {
        let word = |purpose: u8| {
            let message = [
                b"hawser-shim",
                &[purpose][..],
                from.as_bytes(),
                &[0],
                to.as_bytes(),
            ]
            .concat();
            SipHasher24::new_with_key(self.as_bytes())
                .hash(&message)
                .to_le_bytes()
        };
        let key = |purposes: [u8; 2]| {
            let [low, high] = purposes.map(word);
            Key::from_bytes(std::array::from_fn(|i| {
                if i < 8 { low[i] } else { high[i - 8] }
            }))
        };
        SealKey {
            seal: key([0, 1]),
            digest: key([2, 3]),
        }
    }
}

impl KeyRing {
    /// Derives from these shared keys the keys for replicas sent by the node named `from` to the
    /// node named `to`.
    pub fn for_direction(&self, from: &str, to: &str, required_cover: Cover) -> SealRing {
        let key = |key: &Option<Key>| key.as_ref().map(|key| key.for_direction(from, to));
        SealRing {
            slots: self.slots.each_ref().map(key),
            required_cover,
        }
    }
}

impl SealKey {
    /// Returns the key of tags, for the kernel's tables.
    pub const fn seal(&self) -> &Key {
        &self.seal
    }

    /// Returns the key of digests of whole packets, for the kernel's tables.
    pub const fn digest(&self) -> &Key {
        &self.digest
    }

    /// Returns the tag of a shim and its inner packet. Of the shim, only the flags and the bytes
    /// before the tag are used. The tag is the SipHash-2-4 of the covered part of the packet, then
    /// of the shim with its first word last, so that a sender hashes everything else only once.
    pub(crate) fn tag(&self, shim: &[u8; Shim::LEN], cover: Cover, inner: &[u8]) -> Tag {
        let mut message = covered_headers(inner);
        if cover == Cover::Whole {
            let digest = SipHasher13::new_with_key(self.digest.as_bytes()).hash(inner);
            message.extend(digest.to_le_bytes());
        }
        message.extend(&shim[4..Shim::COVERED]);
        message.extend(&shim[..4]);
        Tag(SipHasher24::new_with_key(self.seal.as_bytes())
            .hash(&message)
            .to_le_bytes())
    }
}

/// Returns the IP header without options and the four bytes that follow, padded with zeros to whole
/// words.
fn covered_headers(inner: &[u8]) -> Vec<u8> {
    let is_v4 = inner.first().is_some_and(|byte| byte >> 4 == 4);
    let header = if is_v4 {
        Ipv4Header::LEN
    } else {
        Ipv6Header::LEN
    };
    let mut covered = inner
        .get(..header + 4)
        .or(inner.get(..header))
        .unwrap_or(inner)
        .to_vec();
    covered.resize((header + 4).next_multiple_of(8), 0);
    covered
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
    use crate::ip;
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

    fn inner() -> Vec<u8> {
        ip::udp_packet(
            "192.0.2.1:1".parse().unwrap(),
            "192.0.2.2:2".parse().unwrap(),
            0,
            b"some payload",
        )
    }

    fn key(byte: u8) -> SealKey {
        Key::from_bytes([byte; 16]).for_direction("ingress", "egress")
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
            &shared.for_direction("publisher", "viewer"),
            Cover::Headers,
        );
        let at_publisher = ring([Some(shared.for_direction("viewer", "publisher")), None]);
        let at_viewer = ring([Some(shared.for_direction("publisher", "viewer")), None]);
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
