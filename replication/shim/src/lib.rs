//! The bytes that two nodes send each other on a path: replicas, which are packets behind a shim,
//! transparent copies, and requests for round-trip times. Parsing and emitting, nothing else.
//!
//! `docs/design/wire.md` draws the bytes and gives the reasons. `testdata/` holds golden vectors
//! that were made without this crate. The eBPF programs read and write the same bytes in C and are
//! tested against this crate.
//!
//! ```
//! use hawser_shim::{Cover, KeySlot, SealKey, SealRing, Shim};
//! use hawser_units::{FlowId, PathId, PathSet};
//! use hawser_wire::Key;
//!
//! let shim = Shim {
//!     path: PathId::try_from(1)?,
//!     paths: PathSet::from_bits(0b0011),
//!     epoch: 7,
//!     flow: FlowId::try_from(42)?,
//!     sequence: u64::MAX,
//!     sent_micros: 1_000_000,
//!     seal: None,
//! };
//! let key = SealKey::derive(&Key::from_bytes([0x5a; 16]), "ingress", "egress");
//! let packet = b"the inner packet";
//! let mut datagram = shim.sealed(KeySlot::One, &key, Cover::Headers, packet).emit().to_vec();
//! datagram.extend_from_slice(packet);
//!
//! let (parsed, inner) = Shim::parse(&datagram)?;
//! assert_eq!(parsed.sequence, u64::MAX);
//! assert_eq!(inner, b"the inner packet");
//! assert!(SealRing { slots: [None, Some(key)], ..SealRing::default() }.accepts(&datagram));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod echo;
mod encapsulation;
#[cfg(any(test, feature = "golden"))]
pub mod golden;
mod keys;
mod ring;
mod seal;
mod shim;
pub mod transparent;

pub use encapsulation::{
    Addresses, Encapsulation, EncapsulationError, FrameError, OVERHEAD_V4, OVERHEAD_V6, Replica,
};
pub use keys::{KeyRing, KeySlot};
pub use ring::SealRing;
pub use seal::{Cover, Seal, SealKey};
pub use shim::{Shim, ShimError};

/// The default UDP port that replicas are sent from and to.
pub const DEFAULT_PORT: u16 = 14747;
