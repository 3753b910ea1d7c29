use hawser_wire::moq::track_name;
use hawser_wire::session::Announcement;
use serde::{Deserialize, Serialize};

/// The contents of the track [`CATALOG`](hawser_wire::moq::CATALOG): what a viewer with the secret of the
/// broadcast needs besides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// The version of this format: 1.
    pub version: u32,
    /// The publisher's announcement with its authenticator (`docs/design/media.md`), hexadecimal. It says
    /// what the names below say, and a viewer believes only it.
    pub announcement: String,
    /// The tracks.
    pub tracks: Vec<CatalogTrack>,
}

/// A track of a [`Catalog`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogTrack {
    /// The publisher's number of the track.
    pub alias: u32,
    /// Its name.
    pub name: String,
    /// The number of its codec.
    pub codec: u8,
    /// The epoch of the key of its packets, when this catalog was made.
    pub epoch: u16,
    /// The names of the tracks that carry its layers, the base first.
    pub layers: Vec<String>,
}

impl Catalog {
    pub(crate) fn new(
        announced: &[u8],
        announcement: &Announcement,
        epochs: &[(u32, u16)],
    ) -> Self {
        let epoch_of = |alias: u32| {
            let epoch = epochs.iter().find(|(of, _)| *of == alias);
            epoch.map_or(0, |(_, epoch)| *epoch)
        };
        let tracks = announcement.tracks.iter().map(|track| CatalogTrack {
            alias: track.alias,
            name: track.name.clone(),
            codec: track.codec,
            epoch: epoch_of(track.alias),
            layers: (0..track.layers)
                .map(|layer| track_name(track.alias, layer))
                .collect(),
        });
        Catalog {
            version: 1,
            announcement: hex::encode(announced),
            tracks: tracks.collect(),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers")
    }
}
