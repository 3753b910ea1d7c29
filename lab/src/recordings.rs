//! The recordings that experiments and benchmarks play.

use anyhow::Result;
use hawser_recording::{Recording, data_dir};
use std::path::Path;

/// The description of a person who talks, by two cameras.
pub(crate) const TALKER: &str = include_str!("../../media/recording/examples/talker.toml");
/// The first of these cameras, at a lower frame rate.
pub(crate) const TALKER_FRONT: &str =
    include_str!("../../media/recording/examples/talker-front.toml");
/// The description of a person who types, by a camera with noise.
pub(crate) const TYPIST: &str = include_str!("../../media/recording/examples/typist.toml");
/// The description of the synthetic performer.
pub(crate) const SYNTHETIC: &str = include_str!("../../media/recording/examples/synthetic.toml");

/// Returns whether the videos of the talker are on this machine.
pub(crate) fn has_talker() -> bool {
    data_dir().join("volumetric/talker").exists()
}

/// Returns the talker, or nothing where the videos are missing.
///
/// # Errors
/// If the description is not valid.
pub(crate) fn talker() -> Result<Option<Recording>> {
    let parse = || Recording::parse(TALKER, Path::new("talker.toml"), &data_dir());
    Ok(has_talker().then(parse).transpose()?)
}
