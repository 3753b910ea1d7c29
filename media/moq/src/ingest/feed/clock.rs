use hawser_packets::media::MediaTime;
use hawser_units::Instant;
use std::time::Duration;

/// The publisher's clock less the own one, from the times of capture of its objects.
///
/// MoQ exchanges no time stamps. An object arrives after its capture, so the object that was quickest in the
/// last 5 to 10 s relates the clocks, and the publisher's is assumed to be behind by the delay of this
/// object. Deadlines are later by as much, so that the path from here on has the time that it would have if
/// the publisher were here.
#[derive(Debug, Default)]
pub(super) struct PublisherClock {
    best: Option<Sample>,
    best_before: Option<Sample>,
    told: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The publisher's clock less the own one in milliseconds, modulo 2^32 as all of its times.
    ahead: u32,
    at: Instant,
}

/// The time after which a sample is replaced even if newer objects were slower.
const WINDOW: Duration = Duration::from_secs(5);

impl PublisherClock {
    /// Adds the time of capture of an object that arrived now. Returns the relation in nanoseconds if it is
    /// another one than before.
    pub(super) fn add(&mut self, now: Instant, capture: u32) -> Option<i64> {
        let ahead = capture.wrapping_sub(MediaTime::of(now).0);
        let sample = Sample { ahead, at: now };
        match &mut self.best {
            Some(best) if now.saturating_since(best.at) >= WINDOW => {
                self.best_before = self.best.replace(sample);
            }
            Some(best) if MediaTime(best.ahead).is_before(MediaTime(ahead)) => best.ahead = ahead,
            Some(_) => {}
            none => *none = Some(sample),
        }
        let samples = [self.best_before, self.best].into_iter().flatten();
        let quickest = samples.reduce(|one, other| {
            let is_quicker = MediaTime(one.ahead).is_before(MediaTime(other.ahead));
            if is_quicker { other } else { one }
        })?;
        let changed = self.told.replace(quickest.ahead) != Some(quickest.ahead);
        changed.then(|| i64::from(quickest.ahead) * 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    const MS: i64 = 1_000_000;

    #[test]
    fn the_quickest_object_relates_the_clocks_until_it_is_old() {
        let mut clock = PublisherClock::default();
        assert_eq!(clock.add(at(1000), 5000), Some(4000 * MS));
        assert_eq!(clock.add(at(1033), 5003), None, "30 ms later");
        assert_eq!(clock.add(at(1066), 5070), Some(4004 * MS), "4 ms sooner");
        // All have become slower.
        assert_eq!(clock.add(at(6100), 10_000), None);
        assert_eq!(clock.add(at(11_100), 15_000), Some(3900 * MS));
    }

    #[test]
    fn a_clock_that_is_behind_or_wraps_is_related_too() {
        let mut clock = PublisherClock::default();
        let nanos = clock.add(at(10_000), 4000).unwrap();
        let publisher = at(10_000) + Duration::from_nanos(nanos as u64);
        assert_eq!(MediaTime::of(publisher), MediaTime(4000));
        let mut clock = PublisherClock::default();
        clock.add(at(10_000), u32::MAX - 10).unwrap();
        assert_eq!(
            clock.add(at(10_033), 22),
            None,
            "it wrapped, and is the same"
        );
    }
}
