use hawser_fanout::{Budget, LEVELS, Level, Rate};
use hawser_units::{Bitrate, ByteSize, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time of the rate that a subscriber's bucket holds: more than a frame, and little enough that a
/// queue of it does no harm.
const DEPTH: Duration = Duration::from_millis(66);

/// The time of the rate by which what is admitted may overdraw the bucket: frames are of unequal size.
const OVERFLOW: Duration = Duration::from_millis(100);

/// The time constant of the average rates of layers.
const MEMORY: Duration = Duration::from_secs(1);

/// The average rate in bits per second below which a base counts as not received.
const NOTHING: f64 = 10_000.0;

/// The shares of a subscriber's rate that the layers may have for which it gets one more, and for which
/// it keeps them.
pub(crate) const ADDED: f64 = 0.9;
pub(crate) const KEPT: f64 = 1.05;

/// The rates of the layers of each track of a broadcast, by priority.
#[derive(Debug, Default)]
pub(crate) struct LayerRates {
    tracks: BTreeMap<u32, TrackRates>,
    since: Option<Instant>,
}

#[derive(Debug, Default)]
struct TrackRates {
    bytes: [u64; LEVELS],
    bps: [f64; LEVELS],
}

impl LayerRates {
    /// Adds a packet of a track and a priority. `size` includes all headers.
    pub(crate) fn add(&mut self, alias: u32, priority: u8, size: ByteSize) {
        let track = self.tracks.entry(alias).or_default();
        track.bytes[Budget::level(priority)] += size.0;
    }

    /// Updates the averages.
    pub(crate) fn look(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_since(since).as_secs_f64();
        if elapsed <= 0.0 {
            return;
        }
        self.since = Some(now);
        let weight = 1.0 - (-elapsed / MEMORY.as_secs_f64()).exp();
        for TrackRates { bytes, bps } in self.tracks.values_mut() {
            for (bytes, bps) in bytes.iter_mut().zip(bps) {
                let latest = std::mem::take(bytes) as f64 * 8.0 / elapsed;
                *bps += weight * (latest - *bps);
            }
        }
    }

    /// Returns the rate of the bases of tracks, in bits per second; `None` if one of them is not received.
    pub(crate) fn bases(&self, aliases: &BTreeSet<u32>) -> Option<f64> {
        let base = |alias| self.tracks.get(alias).map(|track| track.bps[0]);
        let bases = aliases.iter().map(base);
        bases.map(|base| base.filter(|bps| *bps > NOTHING)).sum()
    }

    /// Returns the rates of tracks together, bits per second, by priority.
    fn of(&self, aliases: &BTreeSet<u32>) -> [f64; LEVELS] {
        let mut sums = [0.0; LEVELS];
        for track in aliases.iter().filter_map(|alias| self.tracks.get(alias)) {
            for (sum, bps) in sums.iter_mut().zip(track.bps) {
                *sum += bps;
            }
        }
        sums
    }

    /// Returns the budget for tracks of a subscriber whose rate is `rate`, and whose budget was `before`. A
    /// rate of `None` gives a budget of nothing.
    ///
    /// It has the base and the higher layers that fit the rate. A higher layer in some frames only would
    /// arrive as a train that exceeds the rate of the path.
    pub(crate) fn budget(
        &self,
        aliases: &BTreeSet<u32>,
        rate: Option<Bitrate>,
        before: &Budget,
    ) -> Budget {
        let Some(rate) = rate else {
            return nothing();
        };
        let mut least_priority = 0;
        let all = self.of(aliases);
        let mut sum = all[0];
        for (priority, bps) in (1u8..).zip(&all[1..]) {
            sum += bps;
            let share = match priority <= before.least_priority {
                true => KEPT,
                false => ADDED,
            };
            if sum > share * rate.bps() as f64 {
                break;
            }
            least_priority = priority;
        }
        if usize::from(least_priority) == LEVELS - 1 {
            least_priority = u8::MAX;
        }
        let overflow = rate.bytes_in(OVERFLOW).0 as i64;
        let level = Level {
            floor: -overflow,
            limit: None,
        };
        Budget {
            levels: [level; LEVELS],
            least_priority,
            ..Budget::of(Rate::new(rate, rate.bytes_in(DEPTH)))
        }
    }
}

/// Returns a budget that allows nothing.
fn nothing() -> Budget {
    let level = Level {
        floor: i64::MAX,
        limit: None,
    };
    Budget {
        levels: [level; LEVELS],
        least_priority: 0,
        ..Budget::of(Rate::new(Bitrate::from_bps(0), ByteSize(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rates of a stream of 4 Mb/s of bases and 16 Mb/s of refinements, and of another track.
    fn rates() -> LayerRates {
        let mut rates = LayerRates::default();
        for frame in 0..300 {
            rates.look(Instant::ZERO + Duration::from_millis(20) * frame);
            rates.add(7, 0, ByteSize(10_000));
            rates.add(7, 1, ByteSize(40_000));
            rates.add(8, 0, ByteSize(90_000));
        }
        rates
    }

    fn least_priority(mbps: f64, before: u8) -> u8 {
        let before = Budget {
            least_priority: before,
            ..Budget::UNLIMITED
        };
        let rate = Bitrate::from_mbps(mbps);
        rates()
            .budget(&[7].into(), Some(rate), &before)
            .least_priority
    }

    #[test]
    fn a_subscriber_gets_the_layers_that_its_rate_bears() {
        assert_eq!(least_priority(8.0, 0), 0);
        assert_eq!(least_priority(1.0, 255), 0, "the base in any case");
        assert_eq!(least_priority(25.0, 0), u8::MAX);
    }

    #[test]
    fn a_layer_is_added_later_than_it_is_taken() {
        assert_eq!(
            [least_priority(21.0, 0), least_priority(21.0, 255)],
            [0, u8::MAX]
        );
        assert_eq!(least_priority(18.0, 255), 0);
    }

    #[test]
    fn one_that_is_not_heard_gets_nothing() {
        let budget = rates().budget(&[7].into(), None, &Budget::UNLIMITED);
        assert_eq!(budget.total.unwrap().depth_bytes(), 0);
        assert!(budget.levels.iter().all(|level| level.floor == i64::MAX));
    }
}
