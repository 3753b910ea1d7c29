//! The decoder of the viewer's page, in its worker: a [`Stream`] opens and assembles the objects of a broadcast and
//! decodes its frames, a [`Stage`] draws them or gives a GPU what it draws. Both are made of the crates of the native viewer.
//!
//! `web/build.sh` builds it for wasm32, where `exports.rs` has the functions that `web/viewer` calls.

#[cfg(target_arch = "wasm32")]
mod exports;
mod gpu;
mod orbit;
mod sound;
mod stage;
mod stream;

pub use gpu::{Matrix, Part};
pub use orbit::Orbit;
pub use sound::SoundPacket;
pub use stage::Stage;
pub use stream::{Counts, Decoded, OpenError, Stream};
