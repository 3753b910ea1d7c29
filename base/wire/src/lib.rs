//! Headers and secrets that products share: IP and UDP, in-band signals, keys and their tags, and the
//! secret of a broadcast. Parsing, emitting and deriving, nothing else.
//!
//! `docs/design/wire.md` draws the bytes of signals and gives the reasons. `testdata/` holds golden
//! vectors of them that were made without this crate. The eBPF programs read the same bytes in C and
//! are tested against this crate.

#[cfg(any(test, feature = "golden"))]
pub mod golden;
pub mod ip;
pub mod secret;
mod signal;
mod tag;

pub use signal::{Signal, SignalError};
pub use tag::{Key, Tag};

/// The default UDP port that in-band signals are sent to.
pub const SIGNAL_PORT: u16 = 14749;
