//! Targets for libFuzzer, a coverage-guided engine: each passes bytes to the parsers of one crate and
//! checks what they accept. The checks are those of the property tests `any_bytes`.
//!
//! `run.sh` builds the targets with the engine. In other builds a target is a program that replays
//! files, such as an input that made the engine stop.

mod bytes;
#[path = "../../media/cloud/tests/support/checks.rs"]
mod cloud;
#[path = "../../media/codec/tests/support/checks.rs"]
mod codec;
#[path = "../../control/model/tests/support/checks.rs"]
mod control;
#[path = "../../base/netem/tests/support/checks.rs"]
mod netem;
#[path = "../../media/packets/tests/support/checks.rs"]
mod packets;
mod program;
#[path = "../../replication/shim/tests/support/checks.rs"]
mod shim;
mod targets;
#[path = "../../base/wire/tests/support/checks.rs"]
mod wire;
#[path = "../../tunnel/xnc/tests/support/checks.rs"]
mod xnc;
#[path = "../../tunnel/xnc/tests/support/configs.rs"]
mod xnc_configs;

pub use program::{replay, write_seeds};
pub use targets::*;

#[cfg(fuzzing)]
#[doc(hidden)]
pub use libfuzzer_sys;

/// A target.
#[derive(Debug)]
pub struct Target {
    /// The name of its binary.
    pub name: &'static str,
    /// Checks an input; panics if a parser is wrong.
    pub check: fn(&[u8]),
    /// Returns valid inputs, from which the engine starts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Makes a target the program of a binary.
#[macro_export]
macro_rules! engine {
    ($target:path) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(
            init: $crate::write_seeds(&$target),
            |input: &[u8]| ($target.check)(input)
        );

        #[cfg(not(fuzzing))]
        fn main() -> std::io::Result<()> {
            $crate::replay(&$target)
        }
    };
}
