//! The sources of tracks that tell this controller so, and when each of them last did.

use crate::record::key::Server;
use crate::store::LeaseId;
use hawser_model::Name;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A track, and a program that serves it.
pub(crate) type Place = (Name, Server);

/// When nodes last said to this controller that they serve a track.
#[derive(Default)]
pub(crate) struct Heard(Mutex<HashMap<Place, Said>>);

#[derive(Clone, Copy)]
struct Said {
    /// The lease of the record; `None` if it is of a controller of this name before its restart.
    lease: Option<LeaseId>,
    at: Instant,
}

impl Heard {
    /// Records that a node has repeated what it said. Returns `false` if it is not stored under that lease.
    pub(crate) fn repeated(&self, place: &Place, lease: LeaseId, now: Instant) -> bool {
        match self.0.lock().get_mut(place) {
            Some(said) if said.lease == Some(lease) => {
                said.at = now;
                true
            }
            _ => false,
        }
    }

    pub(crate) fn stored(&self, place: Place, lease: LeaseId, at: Instant) {
        let lease = Some(lease);
        self.0.lock().insert(place, Said { lease, at });
    }

    /// Returns those of the places of which nothing was heard for `limit`, and forgets all others. For one that was
    /// never heard of, the time begins now.
    pub(crate) fn silent<T>(
        &self,
        places: impl Iterator<Item = (Place, T)>,
        now: Instant,
        limit: Duration,
    ) -> Vec<(Place, T)> {
        let mut heard = self.0.lock();
        let mut before = std::mem::take(&mut *heard);
        let mut silent = Vec::new();
        for (place, of) in places {
            let first = Said {
                lease: None,
                at: now,
            };
            let said = before.remove(&place).unwrap_or(first);
            heard.insert(place.clone(), said);
            if now.duration_since(said.at) >= limit {
                silent.push((place, of));
            }
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_model::track::TrackRole;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn a_source_is_silent_when_nothing_was_heard_of_it_for_long() {
        let (heard, now) = (Heard::default(), Instant::now());
        let place = |node: &str| -> Place {
            let address = ([192, 0, 2, 1], 14755).into();
            let server = (node.parse().unwrap(), TrackRole::Relay, address);
            ("stage".parse().unwrap(), server)
        };
        let silent = |at| {
            let places = ["a", "b"].map(|node| (place(node), ()));
            let silent = heard.silent(places.into_iter(), at, LIMIT);
            silent
                .into_iter()
                .map(|(place, ())| place)
                .collect::<Vec<_>>()
        };
        heard.stored(place("a"), 1, now);
        assert!(
            !heard.repeated(&place("a"), 2, now),
            "it is under another lease"
        );
        assert!(silent(now).is_empty());
        assert!(heard.repeated(&place("a"), 1, now + LIMIT / 2));
        assert_eq!(silent(now + LIMIT), [place("b")]);
        assert_eq!(silent(now + 2 * LIMIT).len(), 2);
    }
}
