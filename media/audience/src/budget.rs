use hawser_fanout::{Budget, LEVELS, Level, Rate, Share};
use hawser_packets::session::Announcement;
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

/// The shares of a subscriber's rate that the bases of an encoding may have for which it gets a better one, and
/// for which it keeps it. A layer that is sent of all frames is also kept up to the second one, and where layers are
/// sent of all frames or of none, one is added up to the first.
pub(crate) const ADDED: f64 = 0.9;
pub(crate) const KEPT: f64 = 1.05;

/// The part of the rate that is left to the queue which a frame with a higher layer leaves behind.
const QUEUED: f64 = 0.08;

/// The smallest share of the frames. A rarer higher layer would delay the bases of many frames; a base has to show
/// what the path bears.
const SMALLEST: f64 = 1.0 / 32.0;

/// The debt with which sound may begin: more than a bucket can owe, so that it is sent whatever is left.
const ANY_DEBT: i64 = -(1 << 40);

/// The highest rate at which sound is sent in any case, and the time of it that may come at once. That of ours takes half.
const SOUND: Bitrate = Bitrate::from_bps(128_000);
const SOUND_DEPTH: Duration = Duration::from_secs(1);

/// The rates of the layers of each track of a broadcast, by priority.
#[derive(Debug, Default)]
pub(crate) struct LayerRates {
    tracks: BTreeMap<u32, TrackRates>,
    /// The tracks of sound.
    sound: BTreeSet<u32>,
    since: Option<Instant>,
}

#[derive(Debug, Default)]
struct TrackRates {
    bytes: [u64; LEVELS],
    bps: [f64; LEVELS],
    /// The priority of the base.
    base: usize,
}

impl LayerRates {
    /// Returns the rates of a stream that is announced, before anything of it has arrived.
    pub(crate) fn new(announcement: &Announcement) -> Self {
        let tracks = announcement.tracks.iter();
        let sound = tracks.filter(|track| track.is_sound());
        LayerRates {
            sound: sound.map(|track| track.alias).collect(),
            ..LayerRates::default()
        }
    }

    /// Adds a packet of a layer of a track. `size` includes all headers.
    pub(crate) fn add(&mut self, (alias, layer): (u32, u8), priority: u8, size: ByteSize) {
        let track = self.tracks.entry(alias).or_default();
        let level = Budget::level(priority);
        track.bytes[level] += size.0;
        if layer == 0 {
            track.base = level;
        }
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
        for TrackRates { bytes, bps, .. } in self.tracks.values_mut() {
            for (bytes, bps) in bytes.iter_mut().zip(bps) {
                let latest = std::mem::take(bytes) as f64 * 8.0 / elapsed;
                *bps += weight * (latest - *bps);
            }
        }
    }

    /// Returns the rate of the bases of tracks of pictures, in bits per second; `None` if one of them is not received.
    pub(crate) fn bases(&self, aliases: &BTreeSet<u32>) -> Option<f64> {
        let rate = |alias: &u32| self.tracks.get(alias).map(|track| track.bps[track.base]);
        let rates = aliases.difference(&self.sound).map(rate);
        rates.map(|bps| bps.filter(|bps| *bps > NOTHING)).sum()
    }

    /// Returns the priority of the bases of tracks. Sound has a higher one, where there is some.
    fn base(&self, aliases: &BTreeSet<u32>) -> usize {
        if self.sound.is_empty() {
            return 0;
        }
        let pictures = aliases.difference(&self.sound);
        let tracks = pictures.filter_map(|alias| self.tracks.get(alias));
        tracks.map(|track| track.base).max().unwrap_or_default()
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
    /// It has the layers that fit the rate, and of the next one the share of the frames that the rest of the rate
    /// bears without [`QUEUED`], if that is [`SMALLEST`] or more. Of the base it has [`SMALLEST`] in any case. It has all
    /// of a higher priority than the base, which is sound, up to [`SOUND`], even if nothing is left in the bucket. Higher layers are sent of
    /// all frames or of none if the path does not bear bursts: a frame with one exceeds the rate.
    pub(crate) fn budget(
        &self,
        aliases: &BTreeSet<u32>,
        rate: Option<Bitrate>,
        before: &Budget,
        bears_bursts: bool,
    ) -> Budget {
        let Some(rate) = rate else {
            return nothing();
        };
        let (least_priority, share) = self.bearable(aliases, rate, before, bears_bursts);
        let overflow = rate.bytes_in(OVERFLOW).0 as i64;
        let level = Level {
            floor: -overflow,
            limit: None,
        };
        let mut levels = [level; LEVELS];
        levels[..self.base(aliases)].fill(Level {
            floor: ANY_DEBT,
            limit: Some(Rate::new(SOUND, SOUND.bytes_in(SOUND_DEPTH))),
        });
        Budget {
            levels,
            least_priority,
            share,
            ..Budget::of(Rate::new(rate, rate.bytes_in(DEPTH)))
        }
    }

    /// Returns the least priority that a rate bears, and the share of the frames in which it does.
    fn bearable(
        &self,
        aliases: &BTreeSet<u32>,
        rate: Bitrate,
        before: &Budget,
        bears_bursts: bool,
    ) -> (u8, Share) {
        let rate = rate.bps() as f64;
        let base = self.base(aliases) as u8;
        let mut rest = rate;
        for (priority, bps) in (0u8..).zip(self.of(aliases)) {
            if priority < base {
                rest = (rest - bps).max(0.0);
                continue;
            }
            let was_whole = (priority, Share::ALL) <= (before.least_priority, before.share);
            let allowed = match was_whole {
                true => KEPT,
                false if bears_bursts || priority == base => 1.0,
                false => ADDED,
            };
            if bps <= rest + (allowed - 1.0) * rate {
                rest -= bps;
                continue;
            }
            let share = match priority == base {
                true => rest / bps,
                false => (rest - QUEUED * rate) / bps,
            };
            return match priority.checked_sub(1).filter(|lower| *lower >= base) {
                Some(lower) if share < SMALLEST || !bears_bursts => (lower, Share::ALL),
                _ => (priority, Share::of(share.max(SMALLEST))),
            };
        }
        (u8::MAX, Share::ALL)
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
            rates.add((7, 0), 0, ByteSize(10_000));
            rates.add((7, 1), 1, ByteSize(40_000));
            rates.add((8, 0), 0, ByteSize(90_000));
        }
        rates
    }

    fn bearable(mbps: f64, before: (u8, f64)) -> (u8, u16) {
        let before = Budget {
            least_priority: before.0,
            share: Share::of(before.1),
            ..Budget::UNLIMITED
        };
        let rate = Bitrate::from_mbps(mbps);
        let budget = rates().budget(&[7].into(), Some(rate), &before, true);
        (budget.least_priority, budget.share.get())
    }

    #[test]
    fn a_path_that_bears_no_bursts_gets_whole_layers() {
        let budget = |mbps: f64, before: &Budget| {
            let rate = Bitrate::from_mbps(mbps);
            let budget = rates().budget(&[7].into(), Some(rate), before, false);
            (budget.least_priority, budget.share.get())
        };
        let base = Budget {
            least_priority: 0,
            ..Budget::UNLIMITED
        };
        assert_eq!(budget(21.0, &base), (0, 256));
        assert_eq!(budget(23.0, &base), (u8::MAX, 256));
        assert_eq!(budget(19.5, &Budget::UNLIMITED), (u8::MAX, 256));
        assert_eq!(budget(18.0, &Budget::UNLIMITED), (0, 256));
        assert_eq!(budget(2.0, &base), (0, 128));
    }

    #[test]
    fn a_layer_is_sent_in_as_many_frames_as_the_rate_bears() {
        assert_eq!(bearable(12.0, (0, 1.0)), (1, 113));
        assert_eq!(bearable(8.0, (0, 1.0)), (1, 54));
        assert_eq!(bearable(4.4, (0, 1.0)), (0, 256), "too few of layer 1");
        assert_eq!(bearable(3.0, (0, 0.5)), (0, 192));
        assert_eq!(bearable(0.5, (0, 1.0)), (0, 32));
        assert_eq!(bearable(0.01, (0, 1.0)), (0, 8), "some in any case");
        assert_eq!(bearable(25.0, (0, 1.0)), (u8::MAX, 256));
    }

    #[test]
    fn a_layer_of_all_frames_is_kept_a_little_longer() {
        assert_eq!(bearable(19.5, (u8::MAX, 1.0)), (u8::MAX, 256));
        assert_eq!(bearable(19.5, (1, 0.9)), (1, 223));
        assert_eq!(bearable(18.0, (u8::MAX, 1.0)), (1, 201));
        assert_eq!(bearable(3.9, (0, 1.0)), (0, 256));
        assert_eq!(bearable(3.9, (0, 0.9)), (0, 250));
    }

    /// Returns the budget for a stream of 50 kb/s of sound, 4 Mb/s of bases and 16 Mb/s of refinements.
    fn with_sound(mbps: f64, bears_bursts: bool) -> Budget {
        let mut rates = LayerRates {
            sound: [9].into(),
            ..LayerRates::default()
        };
        for frame in 0..300 {
            rates.look(Instant::ZERO + Duration::from_millis(20) * frame);
            rates.add((7, 0), 1, ByteSize(10_000));
            rates.add((7, 1), 2, ByteSize(40_000));
            rates.add((9, 0), 0, ByteSize(125));
        }
        let base = rates.bases(&[7, 9].into()).unwrap();
        assert!((3.9e6..4.1e6).contains(&base), "{base}");
        let rate = Some(Bitrate::from_mbps(mbps));
        let before = Budget {
            least_priority: 1,
            ..Budget::UNLIMITED
        };
        rates.budget(&[7, 9].into(), rate, &before, bears_bursts)
    }

    #[test]
    fn sound_is_sent_whatever_the_rate_bears_of_pictures() {
        for (mbps, bears_bursts, expected) in [
            (12.05, true, (2, 113)),
            (4.4, false, (1, 256)),
            (2.05, false, (1, 128)),
            (2.05, true, (1, 128)),
            (0.06, true, (1, 8)),
            (0.01, false, (1, 8)),
        ] {
            let budget = with_sound(mbps, bears_bursts);
            let sent = (budget.least_priority, budget.share.get());
            assert_eq!(sent, expected, "{mbps} Mb/s");
            let floors = budget.levels.map(|level| level.floor);
            assert_eq!(floors[0], ANY_DEBT, "sound owes what it needs");
            assert!(floors[1..].iter().all(|floor| *floor > -1_000_000));
            let is_limited = budget.levels.map(|level| level.limit.is_some());
            assert_eq!(is_limited, std::array::from_fn(|level| level == 0));
        }
    }

    #[test]
    fn sound_that_never_came_is_no_base_that_is_missing() {
        let rates = LayerRates {
            sound: [9].into(),
            ..rates()
        };
        assert!(rates.bases(&[7, 9].into()).is_some());
        assert!(rates.bases(&[7, 5].into()).is_none());
    }

    #[test]
    fn one_that_is_not_heard_gets_nothing() {
        let budget = rates().budget(&[7].into(), None, &Budget::UNLIMITED, true);
        assert_eq!(budget.total.unwrap().depth_bytes(), 0);
        assert!(budget.levels.iter().all(|level| level.floor == i64::MAX));
    }
}
