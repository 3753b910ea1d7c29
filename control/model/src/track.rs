//! Tracks: what one publisher sends, and which nodes may send, watch and relay it.
//!
//! A track of the controller is one broadcast: everything under one secret of `docs/design/media.md`,
//! which may have a track there for each camera.

use crate::name::Name;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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

    /// Returns whether one who has this role is announced to others as a publisher or as a relay.
    pub const fn serves_as(self, other: TrackRole) -> bool {
        match other {
            TrackRole::Writer => matches!(self, TrackRole::Writer),
            TrackRole::Relay => matches!(self, TrackRole::Writer | TrackRole::Relay),
            TrackRole::Reader => false,
        }
    }
}

impl fmt::Display for TrackRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrackRole::Writer => "writer",
            TrackRole::Reader => "reader",
            TrackRole::Relay => "relay",
        })
    }
}

/// The use of a track by a program of a node: `POST /v1/nodes/{node}/tracks/{track}`, sent repeatedly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrackUse {
    /// Whether the program publishes, watches or relays.
    pub role: TrackRole,
    /// Where a publisher or a relay serves the track at present. Viewers and relays are told until the program
    /// withdraws this, with a `max_viewers` of 0, or says it no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Serving>,
}

/// Where a program serves a track, and to how many. A node may serve a track at several addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Serving {
    /// The UDP address, `address:port`. An unspecified address (`0.0.0.0`, `[::]`) stands for the one from which
    /// the request arrives.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub address: SocketAddr,
    /// The number of viewers and relays that are served.
    pub viewers: u32,
    /// The maximum number of them; 0: the track is no longer served at the address.
    pub max_viewers: u32,
}

impl Serving {
    /// Returns that the track is no longer served there.
    pub const fn withdrawn(self) -> Serving {
        Serving {
            viewers: 0,
            max_viewers: 0,
            ..self
        }
    }

    /// Returns whether one more is served.
    pub const fn has_room(&self) -> bool {
        self.viewers < self.max_viewers
    }

    /// Returns the number of viewers as a fraction of the maximum.
    fn load(&self) -> f64 {
        f64::from(self.viewers) / f64::from(self.max_viewers.max(1))
    }
}

/// One who serves a track at present, as listed by `GET /v1/tracks/{track}/sources`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TrackSource {
    /// The node.
    pub node: Name,
    /// Whether it publishes ([`TrackRole::Writer`]) or relays.
    pub role: TrackRole,
    /// Where, and to how many.
    #[serde(flatten)]
    pub serving: Serving,
}

impl TrackSource {
    /// Returns the sources from which a program of a node may get the track, the best first.
    ///
    /// Viewers are sent to relays by their load, then to publishers; to those without room last. A relay takes the
    /// track from publishers, or from a relay whose name precedes that of its own, so that relays never feed each
    /// other in a circle. The kernel of a relay's machine does not forward to the machine itself.
    pub fn chosen(mut sources: Vec<TrackSource>, node: &Name, role: TrackRole) -> Vec<TrackSource> {
        sources.retain(|source| match (role, source.role) {
            (TrackRole::Writer, _) => false,
            (TrackRole::Reader, TrackRole::Relay) => source.node != *node,
            (TrackRole::Relay, TrackRole::Relay) => source.node < *node,
            (_, TrackRole::Writer | TrackRole::Reader) => true,
        });
        let first = match role {
            TrackRole::Relay => TrackRole::Writer,
            TrackRole::Writer | TrackRole::Reader => TrackRole::Relay,
        };
        sources.sort_by(|one, other| {
            let order = |of: &TrackSource| (!of.serving.has_room(), of.role != first);
            let loads = [one, other].map(|of| of.serving.load());
            let by_load = loads[0].total_cmp(&loads[1]);
            let by_place = order(one).cmp(&order(other));
            by_place.then(by_load).then(one.node.cmp(&other.node))
        });
        sources.truncate(TrackKey::MAX_SOURCES);
        sources
    }
}

/// The secret of a track, and where to get the track: the response to [`TrackUse`].
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
    /// Where a viewer or a relay gets the track, the best source first.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub sources: Vec<TrackSource>,
}

impl TrackKey {
    /// The maximum number of sources in an answer.
    pub const MAX_SOURCES: usize = 16;
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

    /// Returns a source with so many of ten viewers.
    fn source(node: &str, role: TrackRole, viewers: u32) -> TrackSource {
        let address = SocketAddr::from(([192, 0, 2, 1], 14748));
        TrackSource {
            node: node.parse().unwrap(),
            role,
            serving: Serving {
                address,
                viewers,
                max_viewers: 10,
            },
        }
    }

    fn chosen(sources: &[TrackSource], node: &str, role: TrackRole) -> Vec<String> {
        let chosen = TrackSource::chosen(sources.to_vec(), &node.parse().unwrap(), role);
        chosen
            .iter()
            .map(|source| source.node.to_string())
            .collect()
    }

    #[test]
    fn viewers_are_sent_to_relays_with_room_first() {
        let sources = [
            source("car", TrackRole::Writer, 0),
            source("full", TrackRole::Relay, 10),
            source("north", TrackRole::Relay, 5),
            source("south", TrackRole::Relay, 3),
            source("west", TrackRole::Relay, 3),
        ];
        let of = |node| chosen(&sources, node, TrackRole::Reader);
        assert_eq!(of("desk"), ["south", "west", "north", "car", "full"]);
        assert_eq!(of("west"), ["south", "north", "car", "full"]);
        assert!(chosen(&sources, "car", TrackRole::Writer).is_empty());
    }

    #[test]
    fn relays_never_feed_each_other_in_a_circle() {
        let relays = ["a", "b", "c"];
        let sources = |viewers| {
            let sources = relays.map(|node| source(node, TrackRole::Relay, 1));
            let publisher = source("car", TrackRole::Writer, viewers);
            [&[publisher], &sources[..]].concat()
        };
        let of = |viewers, node| chosen(&sources(viewers), node, TrackRole::Relay);
        assert_eq!(of(0, "c"), ["car", "a", "b"]);
        assert_eq!(of(10, "c"), ["a", "b", "car"]);
        for (place, node) in relays.into_iter().enumerate() {
            let before = of(0, node).into_iter().filter(|node| node != "car");
            assert!(before.eq(relays[..place].iter().map(|node| (*node).to_owned())));
        }
    }

    #[test]
    fn an_answer_has_a_bounded_number_of_sources() {
        let names = (0..80).map(|number| format!("n{number}"));
        let sources = names.map(|name| source(&name, TrackRole::Relay, 0));
        let chosen = chosen(&sources.collect::<Vec<_>>(), "desk", TrackRole::Reader);
        assert_eq!(chosen.len(), TrackKey::MAX_SOURCES);
    }

    #[test]
    fn a_track_without_relays_is_as_it_was_before_there_were_any() {
        let json = r#"{"name":"stage","tenant":"acme","writers":["car"],"readers":[]}"#;
        let track: Track = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&track).unwrap(), json);
    }
}
