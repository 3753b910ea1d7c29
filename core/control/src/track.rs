//! Tracks: what one publisher sends, and which nodes may send and watch it.
//!
//! A track of the controller is one broadcast: everything under one secret of `docs/design/media.md`,
//! which may have a track there for each camera.

use crate::name::Name;
use serde::{Deserialize, Serialize};

/// The nodes that may publish and watch a broadcast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Track {
    /// The name of the track, unique.
    pub name: Name,
    /// The tenant that the track belongs to, and all its nodes.
    pub tenant: Name,
    /// The nodes that may publish the track, at least one. They may also watch it.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 16))]
    pub writers: Vec<Name>,
    /// The nodes that may watch the track.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 256))]
    pub readers: Vec<Name>,
}

impl Track {
    /// The maximum number of writers.
    pub const MAX_WRITERS: usize = 16;
    /// The maximum number of readers.
    pub const MAX_READERS: usize = 256;

    /// Returns all nodes that know the track's secret.
    pub fn members(&self) -> impl Iterator<Item = &Name> {
        self.writers.iter().chain(&self.readers)
    }

    /// Returns what a node may do with the track; `None` if nothing.
    pub fn role(&self, node: &Name) -> Option<TrackRole> {
        if self.writers.contains(node) {
            Some(TrackRole::Writer)
        } else {
            let is_reader = self.readers.contains(node);
            is_reader.then_some(TrackRole::Reader)
        }
    }
}

/// What a node may do with a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TrackRole {
    /// Publish and watch.
    Writer,
    /// Watch.
    Reader,
}

/// The secret of a track: `GET /v1/nodes/{node}/tracks/{track}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrackKey {
    /// The track.
    pub track: Name,
    /// What the node may do with the track.
    pub role: TrackRole,
    /// The number of the secret, which rises when the secret is replaced.
    pub number: u32,
    /// The secret, 64 hexadecimal digits.
    pub secret: String,
    /// The time after which the node asks again, milliseconds.
    pub ask_every_ms: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_the_role_of_its_list() {
        let track: Track = serde_json::from_str(
            r#"{ "name": "stage", "tenant": "acme", "writers": ["car"], "readers": ["desk"] }"#,
        )
        .unwrap();
        let role = |node: &str| track.role(&node.parse().unwrap());
        assert_eq!(role("car"), Some(TrackRole::Writer));
        assert_eq!(role("desk"), Some(TrackRole::Reader));
        assert_eq!(role("other"), None);
        assert_eq!(track.members().count(), 2);
    }
}
