use crate::budget::{ADDED, KEPT, LayerRates};
use hawser_objects::Encodings;
use hawser_units::{Bitrate, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The shortest and the longest time for which an encoding is kept before a better one is chosen: the rate
/// of a path that is hardly used is uncertain, and a better encoding than the path bears costs frames.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The time after which a better encoding counts as suitable.
const PROVED: Duration = Duration::from_secs(5);

/// The tracks that a subscriber has selected, and those of them that it is sent: one encoding of each
/// source, where it leaves the choice to the relay.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The number of layers of each selected track.
    selected: BTreeMap<u32, u8>,
    /// The tracks of each encoding that can be sent, the best first. There is at least one.
    encodings: Vec<BTreeSet<u32>>,
    number: usize,
    since: Instant,
    /// The time for which this one is kept before a better one is chosen.
    dwell: Duration,
}

impl Choice {
    /// Returns the choice of a subscriber without a selection.
    pub(crate) fn new() -> Self {
        Choice {
            selected: BTreeMap::new(),
            encodings: Vec::new(),
            number: 0,
            since: Instant::ZERO,
            dwell: Duration::ZERO,
        }
    }

    /// Replaces the selection: the number of layers of each track, and the encodings of which the relay
    /// may choose one for each source.
    pub(crate) fn select(&mut self, selected: BTreeMap<u32, u8>, encodings: Option<&Encodings>) {
        self.encodings = match encodings {
            Some(of) => {
                let numbers = 0..of.count().max(1);
                numbers.map(|number| of.choose(&selected, number)).collect()
            }
            None => vec![selected.keys().copied().collect()],
        };
        self.encodings.dedup();
        self.selected = selected;
        self.number = self.number.min(self.encodings.len() - 1);
    }

    /// Returns the number of layers of each selected track, sent or not.
    pub(crate) fn selected(&self) -> &BTreeMap<u32, u8> {
        &self.selected
    }

    /// Returns the tracks that are sent.
    pub(crate) fn tracks(&self) -> &BTreeSet<u32> {
        static NONE: BTreeSet<u32> = BTreeSet::new();
        self.encodings.get(self.number).unwrap_or(&NONE)
    }

    /// Returns the number of the encoding that is sent. The best is number 0.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns the number of layers that are sent of a track.
    pub(crate) fn layers(&self, alias: u32) -> u8 {
        let is_sent = self.tracks().contains(&alias);
        let layers = self.selected.get(&alias).filter(|_| is_sent);
        layers.copied().unwrap_or_default()
    }

    /// Returns the number of the encoding to be sent, if it is another one than before: the best of which a
    /// rate bears the bases, or else the last one. Encodings that are not received at present are skipped.
    pub(crate) fn next(&self, now: Instant, rate: Bitrate, rates: &LayerRates) -> Option<usize> {
        if self.encodings.len() < 2 {
            return None;
        }
        let is_settled = now.saturating_since(self.since) >= self.dwell;
        let coming = (0..).zip(&self.encodings);
        let mut coming = coming.filter_map(|(number, tracks)| Some((number, rates.bases(tracks)?)));
        let fits = |(number, bases): &(usize, f64)| {
            let (is_allowed, share) = match *number < self.number {
                true => (is_settled, ADDED),
                false => (true, KEPT),
            };
            is_allowed && *bases <= share * rate.bps() as f64
        };
        let mut last = None;
        let best = coming.by_ref().inspect(|one| last = Some(*one)).find(fits);
        let next = best.or(last).map(|(number, _)| number);
        next.filter(|number| *number != self.number)
    }

    /// Changes the encoding that is sent. `number` is one that [`Choice::next`] has returned.
    pub(crate) fn set(&mut self, now: Instant, number: usize) {
        if number > self.number {
            let has_failed = now.saturating_since(self.since) < PROVED;
            self.dwell = match has_failed {
                true => (self.dwell * 4).clamp(SHORTEST, LONGEST),
                false => SHORTEST,
            };
        }
        (self.number, self.since) = (number, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_packets::session::{Announcement, Track};
    use hawser_units::ByteSize;

    fn encodings(tracks: u32) -> Encodings {
        let track = |alias| Track {
            alias,
            codec: 1,
            layers: 2,
            name: "stage".to_owned(),
            parameters: Vec::new(),
        };
        Encodings::of(&Announcement {
            incarnation: [0; 16],
            started_unix_millis: 0,
            tracks: (0..tracks).map(track).collect(),
        })
    }

    /// Returns the rates of tracks with bases of so many Mb/s.
    fn rates(bases: &[f64]) -> LayerRates {
        let mut rates = LayerRates::default();
        for step in 0..300 {
            rates.look(at(20 * step));
            for (alias, mbps) in (0..).zip(bases) {
                rates.add((alias, 0), 0, ByteSize((mbps * 2500.0) as u64));
                rates.add((alias, 1), 1, ByteSize(9000));
            }
        }
        rates
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn chosen(choice: &mut Choice, now: Instant, mbps: f64, rates: &LayerRates) -> usize {
        if let Some(number) = choice.next(now, Bitrate::from_mbps(mbps), rates) {
            choice.set(now, number);
        }
        choice.number()
    }

    #[test]
    fn the_best_encoding_that_fits_the_rate_is_sent() {
        let rates = rates(&[8.0, 4.0, 1.0]);
        let mut choice = Choice::new();
        choice.select([(0, 2), (1, 2), (2, 1)].into(), Some(&encodings(3)));
        assert_eq!(choice.tracks(), &[0].into());
        let steps = [
            (10_000, 30.0, 0),
            (10_100, 7.8, 0),
            (10_200, 7.0, 1),
            (10_300, 0.5, 2),
            (10_400, 30.0, 2),
            (14_200, 30.0, 2),
            (14_300, 8.5, 1),
            (14_400, 8.5, 1),
            (14_500, 9.0, 1),
            (18_300, 9.0, 0),
            (30_000, 6.0, 1),
            (31_000, 9.0, 0),
            (32_000, 6.0, 1),
            (35_900, 9.0, 1),
            (36_000, 9.0, 0),
        ];
        for (millis, mbps, expected) in steps {
            let number = chosen(&mut choice, at(millis), mbps, &rates);
            assert_eq!(number, expected, "{millis} ms, {mbps} Mb/s");
        }
        assert_eq!([0, 1, 2, 9].map(|alias| choice.layers(alias)), [2, 0, 0, 0]);
    }

    #[test]
    fn an_encoding_that_does_not_come_is_passed_over() {
        let mut choice = Choice::new();
        choice.select([(0, 2), (1, 2)].into(), Some(&encodings(2)));
        assert_eq!(chosen(&mut choice, at(9000), 90.0, &rates(&[0.0, 4.0])), 1);
        assert_eq!(chosen(&mut choice, at(9900), 0.1, &rates(&[4.0, 0.0])), 0);
        assert_eq!(
            chosen(&mut choice, at(9900), 0.1, &LayerRates::default()),
            0
        );
    }

    #[test]
    fn all_of_a_selection_is_sent_where_there_is_nothing_to_choose() {
        let mut choice = Choice::new();
        assert!(choice.tracks().is_empty());
        choice.select([(0, 2), (1, 1)].into(), None);
        assert_eq!(choice.tracks(), &[0, 1].into());
        assert_eq!(chosen(&mut choice, at(9000), 0.1, &rates(&[4.0, 4.0])), 0);
        assert_eq!([0, 1].map(|alias| choice.layers(alias)), [2, 1]);
    }
}
