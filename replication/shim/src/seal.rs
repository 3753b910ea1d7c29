use crate::keys::KeySlot;
use hawser_wire::ip::{Ipv4Header, Ipv6Header};
use hawser_wire::{Key, Tag};
use siphasher::sip::SipHasher13;

/// The number of bytes of a shim that the tag covers: all before the tag.
pub(crate) const COVERED_SHIM: usize = 20;

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

impl SealKey {
    /// Derives from a shared key the key for replicas sent by the node named `from` to the node named
    /// `to`.
    pub fn derive(shared: &Key, from: &str, to: &str) -> SealKey {
        let word = |purpose: u8| {
            let message = [
                b"hawser-shim",
                &[purpose][..],
                from.as_bytes(),
                &[0],
                to.as_bytes(),
            ]
            .concat();
            shared.tag(&message).0
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

    /// Returns the key of tags, for the kernel's tables.
    pub const fn seal(&self) -> &Key {
        &self.seal
    }

    /// Returns the key of digests of whole packets, for the kernel's tables.
    pub const fn digest(&self) -> &Key {
        &self.digest
    }

    /// Returns the tag of a shim and its inner packet. `shim` is the bytes of the shim before the
    /// tag, of which the first word has the flags. The tag is the SipHash-2-4 of the covered part
    /// of the packet, then of the shim with its first word last, so that a sender hashes everything
    /// else only once.
    pub(crate) fn tag(&self, shim: &[u8; COVERED_SHIM], cover: Cover, inner: &[u8]) -> Tag {
        let mut message = covered_headers(inner);
        if cover == Cover::Whole {
            let digest = SipHasher13::new_with_key(self.digest.as_bytes()).hash(inner);
            message.extend(digest.to_le_bytes());
        }
        message.extend(&shim[4..]);
        message.extend(&shim[..4]);
        self.seal.tag(&message)
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
