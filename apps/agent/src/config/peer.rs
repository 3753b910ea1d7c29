use hawser_wire::{Cover, Key, KeyRing, KeySlot, SealKey, SealRing};

/// The secrets that are shared with the node at the other end of the paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// The keys that are accepted from the peer. If there are none, packets are accepted without a
    /// tag.
    pub ring: KeyRing,
    /// The key that is used for packets to the peer, with its slot.
    pub key: Option<(KeySlot, Key)>,
    /// The keys of the peer's direction, with which replicas from the peer are verified.
    pub accepted: SealRing,
    /// The key of this node's direction, with which replicas to the peer are tagged.
    pub sealed: Option<(KeySlot, SealKey, Cover)>,
}
