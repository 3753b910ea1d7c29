//! The encodings of a source: tracks with the same name.

use hawser_packets::session::Announcement;
use std::collections::{BTreeMap, BTreeSet};

/// The encodings that are announced of each source, the best one first.
///
/// Tracks with the same name are encodings of the same source, in the order of their aliases.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encodings(Vec<Vec<u32>>);

impl Encodings {
    /// Returns the encodings of an announcement.
    pub fn of(announcement: &Announcement) -> Self {
        let mut by_name: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for track in &announcement.tracks {
            by_name.entry(&track.name).or_default().push(track.alias);
        }
        Encodings(by_name.into_values().collect())
    }

    /// Returns the sources, each with the aliases of its encodings.
    pub fn sources(&self) -> &[Vec<u32>] {
        &self.0
    }

    /// Returns the largest number of encodings that a source has.
    pub fn count(&self) -> usize {
        self.0.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns one track of each source: of the selected ones, the best is number 0. A source with fewer of
    /// them has its last one. Selected tracks have a number of layers.
    pub fn choose(&self, selected: &BTreeMap<u32, u8>, number: usize) -> BTreeSet<u32> {
        let is_selected = |alias: &&u32| selected.get(alias).is_some_and(|layers| *layers > 0);
        let sources = self.0.iter().filter_map(|source| {
            let encodings: Vec<&u32> = source.iter().filter(is_selected).collect();
            let chosen = encodings.get(number).or(encodings.last());
            chosen.map(|alias| **alias)
        });
        sources.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_packets::session::Track;

    fn encodings(names: &[&str]) -> Encodings {
        let tracks = (0u32..).zip(names).map(|(alias, name)| Track {
            alias,
            codec: 1,
            layers: 2,
            name: (*name).to_owned(),
            parameters: Vec::new(),
        });
        Encodings::of(&Announcement {
            incarnation: [0; 16],
            started_unix_millis: 0,
            tracks: tracks.collect(),
        })
    }

    #[test]
    fn one_track_of_each_source_is_chosen() {
        let encodings = encodings(&["left", "right", "left", "right", "left"]);
        assert_eq!(encodings.sources(), [vec![0, 2, 4], vec![1, 3]]);
        let all: BTreeMap<u32, u8> = (0..5).map(|alias| (alias, 2)).collect();
        let chosen = [0, 1, 2, 9].map(|number| encodings.choose(&all, number));
        assert_eq!(chosen, [[0, 1], [2, 3], [3, 4], [3, 4]].map(BTreeSet::from));
        let some = [(0, 0), (1, 2), (2, 1), (9, 2)].into();
        assert_eq!(encodings.choose(&some, 0), [1, 2].into());
    }
}
