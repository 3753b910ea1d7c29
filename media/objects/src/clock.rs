use hawser_packets::feedback::{ClockStamp, StampEcho};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The number of own time stamps whose echo is accepted.
const REMEMBERED: usize = 64;

/// The time after which a sample is replaced even if newer ones have longer round trips: clocks run
/// apart by up to 0.1 ms a second.
const WINDOW: Duration = Duration::from_secs(2);

/// The relation between the clock of the other end and the own one.
///
/// Each sample is an exchange of time stamps as in NTP (RFC 5905, section 8). The one with the
/// shortest round trip of the last two to four seconds is used, because queues delayed it least. The
/// offset is wrong by half the difference of the two directions' delays.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    sent: VecDeque<Instant>,
    newest: Option<Newest>,
    best: Option<Sample>,
    best_before: Option<Sample>,
}

/// The newest time stamp of the other end.
#[derive(Debug, Clone, Copy)]
struct Newest {
    stamp: Instant,
    arrived: Instant,
}

/// The relation of two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relation {
    /// The other clock less the own one, in nanoseconds.
    pub ahead_nanos: i64,
    /// The round trip of the sample. The offset is wrong by half of it at most.
    pub round_trip: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    relation: Relation,
    at: Instant,
}

/// The reason why a time stamp is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockError {
    /// The echo is of a time stamp that was not sent, or too long ago.
    #[error("the echo is of an unknown time stamp")]
    UnknownEcho,
    /// The echo was held for longer than its time stamp is old.
    #[error("the echo was held for longer than its time stamp is old")]
    HeldTooLong,
}

impl Clock {
    /// Returns the time stamp for a message that is sent now.
    pub fn stamp(&mut self, now: Instant) -> ClockStamp {
        if self.sent.back() != Some(&now) {
            self.sent.push_back(now);
        }
        if self.sent.len() > REMEMBERED {
            self.sent.pop_front();
        }
        ClockStamp {
            sent: now,
            echo: self.newest.map(|newest| StampEcho {
                stamp: newest.stamp,
                held: now.saturating_since(newest.arrived),
            }),
        }
    }

    /// Processes an authenticated time stamp of the other end. Returns the round trip if it has an echo.
    pub fn handle_stamp(
        &mut self,
        now: Instant,
        stamp: &ClockStamp,
    ) -> Result<Option<Duration>, ClockError> {
        let round_trip = stamp.echo.map(|echo| self.round_trip(now, &echo));
        let round_trip = round_trip.transpose()?;
        if self.newest.is_none_or(|newest| newest.stamp < stamp.sent) {
            self.newest = Some(Newest {
                stamp: stamp.sent,
                arrived: now,
            });
        }
        if let Some(round_trip) = round_trip {
            self.add(now, stamp.sent, round_trip);
        }
        Ok(round_trip)
    }

    /// Returns the relation; `None` before the first exchange.
    pub fn relation(&self) -> Option<Relation> {
        let samples = [self.best, self.best_before].into_iter().flatten();
        let best = samples.min_by_key(|sample| sample.relation.round_trip);
        best.map(|sample| sample.relation)
    }

    fn round_trip(&self, now: Instant, echo: &StampEcho) -> Result<Duration, ClockError> {
        if !self.sent.contains(&echo.stamp) {
            return Err(ClockError::UnknownEcho);
        }
        let elapsed = now.saturating_since(echo.stamp);
        let round_trip = elapsed.checked_sub(echo.held);
        round_trip.ok_or(ClockError::HeldTooLong)
    }

    fn add(&mut self, now: Instant, remote: Instant, round_trip: Duration) {
        let relation = Relation::new(now, remote, round_trip);
        match self.best {
            Some(best) if now.saturating_since(best.at) >= WINDOW => {
                self.best_before = self.best.replace(Sample { relation, at: now });
            }
            Some(best) if best.relation.round_trip < round_trip => {}
            // The window starts with its first sample.
            Some(best) => {
                let at = best.at;
                self.best = Some(Sample { relation, at });
            }
            None => self.best = Some(Sample { relation, at: now }),
        }
    }
}

impl Relation {
    /// Relates the clocks by a time stamp of the other one that arrived now.
    fn new(now: Instant, remote: Instant, round_trip: Duration) -> Self {
        let one_way = i128::try_from(round_trip.as_nanos() / 2).unwrap_or(i128::MAX);
        let difference = i128::from(remote.as_nanos()) - i128::from(now.as_nanos());
        let ahead = difference.saturating_add(one_way);
        let clamped = ahead.clamp(i64::MIN.into(), i64::MAX.into());
        Relation {
            ahead_nanos: clamped as i64,
            round_trip,
        }
    }

    /// Returns the time of the own clock at an instant of the other one. It saturates.
    pub fn to_local(&self, remote: Instant) -> Instant {
        shifted(remote, -i128::from(self.ahead_nanos))
    }

    /// Returns the time of the other clock at an instant of the own one. It saturates.
    pub fn to_remote(&self, local: Instant) -> Instant {
        shifted(local, self.ahead_nanos.into())
    }
}

/// Returns an instant moved by a number of nanoseconds. It saturates.
pub(crate) fn shifted(instant: Instant, nanos: i128) -> Instant {
    let shifted = i128::from(instant.as_nanos()) + nanos;
    Instant::from_nanos(u64::try_from(shifted.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Exchanges stamps at a local time, over delays there and back. The other clock is an hour
    /// ahead.
    fn exchange(one: &mut Clock, other: &mut Clock, now: Instant, there: Duration, back: Duration) {
        let stamp = one.stamp(now);
        other.handle_stamp(now + there + HOUR, &stamp).unwrap();
        let held = ms(3);
        let answer = other.stamp(now + there + held + HOUR);
        let round_trip = one.handle_stamp(now + there + held + back, &answer);
        assert_eq!(round_trip, Ok(Some(there + back)));
    }

    #[test]
    fn the_shortest_round_trip_counts_until_it_is_old() {
        let (mut one, mut other) = (Clock::default(), Clock::default());
        let start = Instant::ZERO + ms(1000);
        let at = |clocks: (&mut Clock, &mut Clock), millis, there, back| {
            exchange(clocks.0, clocks.1, start + ms(millis), ms(there), ms(back));
            let relation = clocks.0.relation().unwrap();
            (relation.ahead_nanos - HOUR.as_nanos() as i64) / 1_000_000
        };
        assert_eq!(at((&mut one, &mut other), 0, 10, 10), 0);
        assert_eq!(
            at((&mut one, &mut other), 100, 50, 10),
            0,
            "a queue on the way there"
        );
        assert_eq!(at((&mut one, &mut other), 2100, 50, 10), 0);
        assert_eq!(
            at((&mut one, &mut other), 4200, 50, 10),
            20,
            "the good sample is old"
        );
        assert_eq!(at((&mut one, &mut other), 4300, 8, 8), 0);
    }

    #[test]
    fn lies_about_time_stamps_are_refused() {
        let mut clock = Clock::default();
        let now = Instant::ZERO + ms(50);
        clock.stamp(now);
        let echoed = |stamp, held| ClockStamp {
            sent: Instant::ZERO,
            echo: Some(StampEcho { stamp, held }),
        };
        let mut handle = |stamp| clock.handle_stamp(now + ms(10), &stamp);
        assert_eq!(
            handle(echoed(now + ms(1), ms(1))),
            Err(ClockError::UnknownEcho)
        );
        assert_eq!(handle(echoed(now, ms(11))), Err(ClockError::HeldTooLong));
        assert_eq!(handle(echoed(now, ms(10))), Ok(Some(Duration::ZERO)));
    }

    #[test]
    fn a_bounded_number_of_time_stamps_is_kept() {
        let mut clock = Clock::default();
        for nanos in 0..1000 {
            clock.stamp(Instant::from_nanos(nanos));
        }
        assert_eq!(clock.sent.len(), REMEMBERED);
    }

    proptest! {
        #[test]
        fn the_offset_is_wrong_by_half_the_round_trip_at_most(
            ahead in 0..1u64 << 60, there in 0..1_000_000_000u64, back in 0..1_000_000_000u64,
        ) {
            let (mut one, mut other) = (Clock::default(), Clock::default());
            let now = Instant::from_nanos(1 << 61);
            let nanos = Duration::from_nanos;
            let remote = |local: Instant| local - nanos(ahead);
            let stamp = one.stamp(now);
            other.handle_stamp(remote(now + nanos(there)), &stamp).unwrap();
            let answer = other.stamp(remote(now + nanos(there)));
            one.handle_stamp(now + nanos(there + back), &answer).unwrap();
            let relation = one.relation().unwrap();
            let error = (relation.ahead_nanos + ahead as i64).unsigned_abs();
            prop_assert!(error <= (there + back) / 2 + 1);
            prop_assert_eq!(relation.to_local(relation.to_remote(now)), now);
        }

        #[test]
        fn no_stamp_makes_the_clock_panic(
            sent: u64,
            stamp: u64,
            elapsed in prop_oneof![0..10_000_000_000u64, any::<u64>()],
            held in prop_oneof![0..10_000_000_000u64, any::<u64>()],
        ) {
            let now = stamp.saturating_add(elapsed);
            let mut clock = Clock::default();
            clock.stamp(Instant::from_nanos(stamp));
            let hostile = ClockStamp {
                sent: Instant::from_nanos(sent),
                echo: Some(StampEcho { stamp: Instant::from_nanos(stamp), held: Duration::from_nanos(held) }),
            };
            let taken = clock.handle_stamp(Instant::from_nanos(now), &hostile);
            prop_assert_eq!(taken.is_ok(), now - stamp >= held);
            prop_assert_eq!(taken.is_ok(), clock.relation().is_some());
            if let Some(relation) = clock.relation() {
                relation.to_local(Instant::MAX);
                relation.to_remote(Instant::MAX);
                relation.to_local(Instant::ZERO);
            }
        }
    }
}
