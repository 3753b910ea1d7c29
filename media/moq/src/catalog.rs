use hawser_objects::{AccessSecret, TrackTiming};
use hawser_packets::moq::track_name;
use hawser_packets::session::{Announcement, MAC, MAX_RELAYS, MAX_TRACKS};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The contents of the track [`CATALOG`](hawser_packets::moq::CATALOG): what a viewer with the secret of the
/// broadcast needs besides it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// The version of this format: 1.
    pub version: u32,
    /// The publisher's announcement with its authenticator (`docs/design/media.md`), hexadecimal. It has
    /// the same tracks as the fields below, and is the only part that a viewer trusts.
    pub announcement: String,
    /// The relays between the publisher and the server, the publisher's neighbour first: the random number
    /// of each, 16 hexadecimal digits.
    #[serde(default)]
    pub relays: Vec<String>,
    /// The tracks.
    pub tracks: Vec<CatalogTrack>,
    /// The authenticator of all fields that a relay uses, under a key from the access secret, hexadecimal.
    #[serde(default)]
    pub authenticator: String,
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

/// The content of a catalog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// The publisher's announcement with its authenticator.
    pub announced: Vec<u8>,
    /// The epoch of the key of each track, by alias.
    pub epochs: Vec<(u32, u16)>,
    /// The relays between the publisher and the server, the publisher's neighbour first.
    pub relays: Vec<u64>,
}

/// The reason to refuse a catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// It has more than [`Catalog::MAX`] bytes.
    #[error("the catalog is too long")]
    TooLong,
    /// Its format, or that of its announcement, is not valid.
    #[error("the catalog is not valid")]
    Invalid,
    /// Its authenticator was not made by a holder of the access secret.
    #[error("the catalog is not from a holder of the secret")]
    Forged,
}

impl Catalog {
    /// The maximum length in bytes: more than 16 tracks of 8 layers need.
    pub const MAX: usize = 64 << 10;

    /// Returns the catalog of a broadcast; `None` if the announcement is not valid.
    pub fn new(contents: &Contents, access: &AccessSecret) -> Option<Self> {
        let announcement = parse(&contents.announced)?;
        let epochs: BTreeMap<u32, u16> = contents.epochs.iter().copied().collect();
        let tracks = announcement.tracks.iter().map(|track| CatalogTrack {
            alias: track.alias,
            name: track.name.clone(),
            codec: track.codec,
            epoch: epochs.get(&track.alias).copied().unwrap_or_default(),
            layers: (0..track.layers)
                .map(|layer| track_name(track.alias, layer))
                .collect(),
        });
        let mut catalog = Catalog {
            version: 1,
            announcement: hex::encode(&contents.announced),
            relays: contents
                .relays
                .iter()
                .map(|r| format!("{r:016x}"))
                .collect(),
            tracks: tracks.collect(),
            authenticator: String::new(),
        };
        let covered = covered(&contents.announced, &contents.relays, &catalog.epochs());
        catalog.authenticator = hex::encode(access.authenticate_catalog(&covered));
        Some(catalog)
    }

    /// Returns the content of a catalog if a holder of the access secret made it.
    ///
    /// # Errors
    /// If it is not valid, or forged.
    pub fn verify(bytes: &[u8], access: &AccessSecret) -> Result<Contents, CatalogError> {
        if bytes.len() > Catalog::MAX {
            return Err(CatalogError::TooLong);
        }
        let catalog: Catalog = serde_json::from_slice(bytes).map_err(|_| CatalogError::Invalid)?;
        let (contents, authenticator) = catalog.contents().ok_or(CatalogError::Invalid)?;
        let covered = covered(&contents.announced, &contents.relays, &contents.epochs);
        if !access.has_made_catalog(&covered, &authenticator) {
            return Err(CatalogError::Forged);
        }
        Ok(contents)
    }

    fn contents(&self) -> Option<(Contents, [u8; MAC])> {
        if self.version != 1 || self.relays.len() > MAX_RELAYS || self.tracks.len() > MAX_TRACKS {
            return None;
        }
        let announced = hex::decode(&self.announcement).ok()?;
        let announcement = parse(&announced)?;
        let epochs = self.epochs();
        let aliases = announcement.tracks.iter().map(|track| track.alias);
        let has_lifetimes = |track: &_| TrackTiming::parse(track).is_some();
        let timings = announcement
            .tracks
            .iter()
            .map(|track| &track.parameters[..]);
        if !aliases.eq(epochs.iter().map(|(alias, _)| *alias)) || !{ timings }.all(has_lifetimes) {
            return None;
        }
        let relay = |relay: &String| Some(u64::from_be_bytes(digits(relay)?));
        let contents = Contents {
            announced,
            epochs,
            relays: self.relays.iter().map(relay).collect::<Option<_>>()?,
        };
        Some((contents, digits(&self.authenticator)?))
    }

    fn epochs(&self) -> Vec<(u32, u16)> {
        let tracks = self.tracks.iter();
        tracks.map(|track| (track.alias, track.epoch)).collect()
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers")
    }
}

/// Returns the announcement of its bytes with authenticator. It is not verified.
pub(crate) fn parse(announced: &[u8]) -> Option<Announcement> {
    let (covered, _) = Announcement::split(announced).ok()?;
    Announcement::parse(covered).ok()
}

/// Returns the bytes that the authenticator covers.
fn covered(announced: &[u8], relays: &[u64], epochs: &[(u32, u16)]) -> Vec<u8> {
    let mut covered = (announced.len() as u16).to_be_bytes().to_vec();
    covered.extend(announced);
    covered.push(relays.len() as u8);
    covered.extend(relays.iter().flat_map(|relay| relay.to_be_bytes()));
    for (alias, epoch) in epochs {
        covered.extend(alias.to_be_bytes());
        covered.extend(epoch.to_be_bytes());
    }
    covered
}

fn digits<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    hex::decode_to_slice(text, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_objects::TrackSecret;
    use hawser_packets::session::Track;
    use proptest::prelude::*;
    use std::time::Duration;

    fn secret() -> TrackSecret {
        TrackSecret::new([0x11; 32])
    }

    fn contents(parameters: Vec<u8>) -> Contents {
        let announcement = Announcement {
            incarnation: [1; 16],
            started_unix_millis: 5,
            tracks: vec![Track {
                alias: 7,
                codec: 1,
                layers: 2,
                name: "talker".to_owned(),
                parameters,
            }],
        };
        Contents {
            announced: secret().announce(&announcement).unwrap(),
            epochs: vec![(7, 3)],
            relays: vec![1, u64::MAX],
        }
    }

    fn timing() -> Vec<u8> {
        let timing = TrackTiming {
            lifetime: Duration::from_millis(150),
            frames_per_1000_s: 30_000,
        };
        timing.emit().to_vec()
    }

    fn verify(catalog: &Catalog) -> Result<Contents, CatalogError> {
        Catalog::verify(&catalog.to_json(), &secret().access())
    }

    #[test]
    fn a_holder_of_the_access_secret_makes_what_another_verifies() {
        let contents = contents(timing());
        let catalog = Catalog::new(&contents, &secret().access()).unwrap();
        assert_eq!(verify(&catalog), Ok(contents));
    }

    #[test]
    fn nothing_that_a_relay_acts_on_can_be_changed() {
        let original = Catalog::new(&contents(timing()), &secret().access()).unwrap();
        let changes: [fn(&mut Catalog); 4] = [
            |catalog| catalog.relays[0] = "0000000000000002".to_owned(),
            |catalog| catalog.relays.truncate(1),
            |catalog| catalog.tracks[0].epoch += 1,
            |catalog| {
                let last = catalog.announcement.pop();
                catalog
                    .announcement
                    .push(if last == Some('0') { '1' } else { '0' });
            },
        ];
        for change in changes {
            let mut catalog = original.clone();
            change(&mut catalog);
            assert_eq!(verify(&catalog), Err(CatalogError::Forged), "{catalog:?}");
        }
        let other = TrackSecret::new([0x12; 32]).access();
        let forged = Catalog::verify(&original.to_json(), &other);
        assert_eq!(forged, Err(CatalogError::Forged));
    }

    #[test]
    fn what_is_not_of_the_format_is_refused() {
        let original = Catalog::new(&contents(timing()), &secret().access()).unwrap();
        let changes: [fn(&mut Catalog); 6] = [
            |catalog| catalog.version = 2,
            |catalog| catalog.announcement.clear(),
            |catalog| catalog.authenticator.clear(),
            |catalog| catalog.relays = vec!["0".repeat(16); MAX_RELAYS + 1],
            |catalog| catalog.relays[0] = "1".to_owned(),
            |catalog| catalog.tracks[0].alias = 8,
        ];
        for change in changes {
            let mut catalog = original.clone();
            change(&mut catalog);
            assert_eq!(verify(&catalog), Err(CatalogError::Invalid), "{catalog:?}");
        }
        let without_lifetime = Catalog::new(&contents(Vec::new()), &secret().access()).unwrap();
        assert_eq!(verify(&without_lifetime), Err(CatalogError::Invalid));
        let long = vec![b' '; Catalog::MAX + 1];
        let refused = Catalog::verify(&long, &secret().access());
        assert_eq!(refused, Err(CatalogError::TooLong));
    }

    proptest! {
        #[test]
        fn a_changed_catalog_says_the_same_or_is_refused(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let contents = contents(timing());
            let mut bytes = Catalog::new(&contents, &secret().access()).unwrap().to_json();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(verified) = Catalog::verify(&bytes, &secret().access()) {
                prop_assert_eq!(verified, contents);
            }
        }
    }
}
