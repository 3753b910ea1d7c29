//! The public keys of nodes. Two nodes that share a flow derive the key of their packets from them;
//! the controller passes the public keys on and never learns the derived one.

use crate::name::Name;
use serde::{Deserialize, Serialize};

/// A public key of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PublicKey {
    /// The number of the key, greater than those of the node's earlier keys: about the time at which
    /// it was made, seconds since 1970. The numbers of a key and of the next one are not both even
    /// or both odd.
    pub generation: u64,
    /// The key (X25519, RFC 7748), 64 hexadecimal digits.
    pub public: String,
}

/// The generations of the two public keys from which a key of a pair is derived: that of the node
/// that makes the statement, and that of the other node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Generations {
    /// The generation of the key of the node that makes the statement.
    pub own: u64,
    /// The generation of the key of the other node.
    pub peer: u64,
}

impl Generations {
    /// Returns the generations as the other node states them.
    #[must_use]
    pub fn flipped(self) -> Generations {
        Generations {
            own: self.peer,
            peer: self.own,
        }
    }
}

/// A node's statement about the keys that it shares with another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PairState {
    /// The other node.
    pub node: Name,
    /// Whether the node uses key files for the pair, so that no key is derived.
    #[serde(default)]
    pub by_hand: bool,
    /// The derived keys under which the node accepts packets, at most two.
    #[serde(default)]
    pub accepts: Vec<Generations>,
    /// The derived key under which the node sends packets; `null` if it sends none.
    #[serde(default)]
    pub sends: Option<Generations>,
}

/// A node's public keys, and which derived keys are in use: `PUT /v1/nodes/{node}/keys`, sent on every
/// connection and after every change.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeKeys {
    /// The node's public keys, the oldest first: one, or two while the node replaces it.
    pub keys: Vec<PublicKey>,
    /// The pairs with the nodes that share a flow with it.
    #[serde(default)]
    pub pairs: Vec<PairState>,
}

impl NodeKeys {
    /// The maximum number of keys.
    pub const MAX_KEYS: usize = 2;

    /// The maximum number of pairs: as many as a node has flows.
    pub const MAX_PAIRS: usize = 1024;
}

/// A node that shares a flow with the node that gets this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Peer {
    /// The node.
    pub node: Name,
    /// Its incarnation, see [`AssignedKeys::incarnation`].
    #[serde(default)]
    pub incarnation: String,
    /// Its public keys, the oldest first. Empty if it has registered none, or was revoked: then the
    /// keys that were derived before are void.
    #[serde(default)]
    pub keys: Vec<PublicKey>,
    /// Its statement about the pair with the node that gets this; `null` if it has made none.
    #[serde(default)]
    pub pair: Option<PairState>,
}

/// The public keys in an assignment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AssignedKeys {
    /// The incarnation of the node, random. A node that was revoked, or deleted and created again,
    /// has another one, and so other keys with its peers even if it keeps its own.
    #[serde(default)]
    pub incarnation: String,
    /// The smallest generation that the newest key of the node may have. A node whose newest key is
    /// older makes another one.
    #[serde(default)]
    pub least_generation: u64,
    /// The nodes that share a flow with the node.
    #[serde(default)]
    pub peers: Vec<Peer>,
}
