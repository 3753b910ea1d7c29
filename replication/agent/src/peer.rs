//! The secrets that a node shares with another one.

use hawser_shim::{Cover, KeyRing, KeySlot, SealKey, SealRing};
use hawser_wire::Key;

/// The secrets that are shared with the node at the other end of the paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Whether the keys are those of the configuration, or it says that there are none. Otherwise they
    /// are derived from those that both nodes make, under a controller.
    pub by_hand: bool,
    /// The keys that are accepted from the peer. If there are none, packets are accepted without a
    /// tag.
    pub ring: KeyRing,
    /// The key that is used for packets to the peer, with its slot.
    pub key: Option<(KeySlot, Key)>,
    /// The keys of the peer's direction, with which replicas from the peer are verified.
    pub accepted: SealRing,
    /// The key of this node's direction, with which replicas to the peer are tagged.
    pub sealed: Option<(KeySlot, SealKey, Cover)>,
    /// The part of a packet that the tags of packets to the peer cover.
    pub cover: Cover,
}

impl Peer {
    /// Returns this peer with other keys. `own` and `peer` are the names that the nodes have in their
    /// own configurations. `send` is the slot of the key for packets to the peer.
    pub(crate) fn with_keys(
        &self,
        own: &str,
        peer: &str,
        ring: KeyRing,
        send: Option<KeySlot>,
    ) -> Peer {
        let key = send.and_then(|slot| Some((slot, ring.slots[slot.index()].clone()?)));
        Peer {
            by_hand: self.by_hand,
            accepted: ring.for_direction(peer, own, self.accepted.required_cover),
            sealed: key
                .as_ref()
                .map(|(slot, key)| (*slot, SealKey::derive(key, own, peer), self.cover)),
            ring,
            key,
            cover: self.cover,
        }
    }
}
