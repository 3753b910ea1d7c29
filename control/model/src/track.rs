//! Tracks: what one publisher sends, and which nodes may send, watch and relay it.
//!
//! A track of the controller is one broadcast: everything under one secret of `docs/design/media.md`,
//! which may have a track there for each camera.

use crate::name::Name;
use serde::{Deserialize, Serialize};

/// The nodes that may publish, watch and relay a broadcast.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// The nodes that may relay the track to others, and cannot watch it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 64))]
    pub relays: Vec<Name>,
}

impl Track {
    /// The maximum number of writers.
    pub const MAX_WRITERS: usize = 16;
    /// The maximum number of readers.
    pub const MAX_READERS: usize = 256;

    /// The maximum number of relays.
    pub const MAX_RELAYS: usize = 64;

    /// Returns all nodes that may do something with the track.
    pub fn members(&self) -> impl Iterator<Item = &Name> {
        let watching = self.writers.iter().chain(&self.readers);
        watching.chain(&self.relays)
    }

    /// Returns what a node may do with the track; `None` if nothing.
    pub fn role(&self, node: &Name) -> Option<TrackRole> {
        let lists = [
            (&self.writers, TrackRole::Writer),
            (&self.readers, TrackRole::Reader),
            (&self.relays, TrackRole::Relay),
        ];
        let mut lists = lists.into_iter();
        let (_, role) = lists.find(|(nodes, _)| nodes.contains(node))?;
        Some(role)
    }
}

/// The role of a node for a track.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum TrackRole {
    /// Publish and watch.
    Writer,
    /// Watch.
    Reader,
    /// Pass on to others what it cannot decrypt.
    Relay,
}

impl TrackRole {
    /// Returns whether one who has this role may also do what the other role is for.
    pub const fn includes(self, other: TrackRole) -> bool {
        match self {
            TrackRole::Writer => true,
            TrackRole::Reader => matches!(other, TrackRole::Reader | TrackRole::Relay),
            TrackRole::Relay => matches!(other, TrackRole::Relay),
        }
    }
}

/// The secret of a track: `GET /v1/nodes/{node}/tracks/{track}`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrackKey {
    /// The track.
    pub track: Name,
    /// The role of the node for the track.
    pub role: TrackRole,
    /// The number of the secret, which rises when the secret is replaced.
    pub number: u32,
    /// The secret, 64 hexadecimal digits: that of the broadcast, or for a relay what it needs of it.
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
            r#"{ "name": "stage", "tenant": "acme", "writers": ["car"], "readers": ["desk"], "relays": ["pop"] }"#,
        )
        .unwrap();
        let role = |node: &str| track.role(&node.parse().unwrap());
        assert_eq!(role("car"), Some(TrackRole::Writer));
        assert_eq!(role("desk"), Some(TrackRole::Reader));
        assert_eq!(role("pop"), Some(TrackRole::Relay));
        assert_eq!(role("other"), None);
        assert_eq!(track.members().count(), 3);
    }

    #[test]
    fn a_role_includes_those_that_may_do_less() {
        let roles = [TrackRole::Relay, TrackRole::Reader, TrackRole::Writer];
        for (less, role) in roles.into_iter().enumerate() {
            for (more, other) in roles.into_iter().enumerate() {
                assert_eq!(role.includes(other), more <= less);
            }
        }
    }

    #[test]
    fn a_track_without_relays_is_as_it_was_before_there_were_any() {
        let json = r#"{"name":"stage","tenant":"acme","writers":["car"],"readers":[]}"#;
        let track: Track = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&track).unwrap(), json);
    }
}
