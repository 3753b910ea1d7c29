//! Every header that Hawser puts on a network: parsing and emitting, nothing else.
//!
//! `docs/design/wire.md` draws the bytes and gives the reasons. `testdata/` holds golden vectors
//! that were made without this crate. The eBPF programs read and write the same bytes in C and are
//! tested against this crate.
//!
//! ```
//! use hawser_units::{FlowId, PathId, PathSet};
//! use hawser_wire::{Cover, Key, KeySlot, SealRing, Shim};
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
//! let key = Key::from_bytes([0x5a; 16]).for_direction("ingress", "egress");
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
pub mod ip;
mod ring;
mod seal;
pub mod secret;
mod shim;
mod signal;
mod tag;
pub mod transparent;

pub use encapsulation::{
    Addresses, Encapsulation, EncapsulationError, FrameError, OVERHEAD_V4, OVERHEAD_V6, Replica,
};
pub use ring::SealRing;
pub use seal::{Cover, Seal, SealKey};
pub use shim::{Shim, ShimError};
pub use signal::{Signal, SignalError};
pub use tag::{Key, KeyRing, KeySlot, Tag};

/// The default UDP port that replicas are sent from and to.
pub const DEFAULT_PORT: u16 = 14747;

/// The default UDP port that in-band signals are sent to.
pub const SIGNAL_PORT: u16 = 14749;
