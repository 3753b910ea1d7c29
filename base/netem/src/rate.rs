use crate::config::Rate;
use crate::steps::Steps;
use crate::trace::Opportunities;
use hawser_units::{Bitrate, ByteSize, Instant};
use std::time::Duration;

/// The bottleneck, which serialises one packet after the other.
#[derive(Debug, Clone)]
pub(crate) struct Serialiser {
    rate: Option<Rate>,
    starts_at: Instant,
    progress: Progress,
}

/// The progress of the bottleneck.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    finish: Instant,
    opportunity: u64,
    room: ByteSize,
}

impl Progress {
    /// Returns when the last packet is serialised; [`Instant::MAX`] if the rate stays zero.
    pub(crate) fn finish(&self) -> Instant {
        self.finish
    }
}

impl Serialiser {
    pub(crate) fn new(rate: Option<Rate>, starts_at: Instant) -> Self {
        let progress = Progress {
            finish: Instant::ZERO,
            opportunity: 0,
            room: Opportunities::SIZE,
        };
        Serialiser {
            rate,
            starts_at,
            progress,
        }
    }

    /// Restarts the schedule at `starts_at`. A packet that would never have been serialised no
    /// longer blocks the bottleneck.
    pub(crate) fn restart(&mut self, starts_at: Instant) {
        self.starts_at = starts_at;
        if self.progress.finish == Instant::MAX {
            self.progress.finish = Instant::ZERO;
        }
        self.progress.opportunity = 0;
        self.progress.room = Opportunities::SIZE;
    }

    /// Returns the progress after serialising a packet that arrives `now`.
    pub(crate) fn plan(&self, now: Instant, size: ByteSize) -> Progress {
        let start = now.max(self.progress.finish);
        match &self.rate {
            None => Progress {
                finish: start,
                ..self.progress
            },
            Some(Rate::Constant(rate)) => Progress {
                finish: start + rate.time_to_send(size),
                ..self.progress
            },
            Some(Rate::Steps(steps)) => Progress {
                finish: self.through_steps(steps, start, size),
                ..self.progress
            },
            Some(Rate::Opportunities(trace)) => self.through_opportunities(trace, start, size),
        }
    }

    /// Accepts the packet that was planned.
    pub(crate) fn commit(&mut self, progress: Progress) {
        self.progress = progress;
    }

    /// Returns the first time from `now` on at which the bottleneck can begin with another packet:
    /// it is idle and has a rate or an opportunity; [`Instant::MAX`] if its rate stays zero.
    pub(crate) fn free_from(&self, now: Instant) -> Instant {
        let start = now.max(self.progress.finish);
        match &self.rate {
            None => start,
            Some(Rate::Constant(rate)) if rate.bps() == 0 => Instant::MAX,
            Some(Rate::Constant(_)) => start,
            Some(Rate::Steps(steps)) => self.first_step(steps, start),
            Some(Rate::Opportunities(trace)) => {
                let (opportunity, room) = (self.progress.opportunity, self.progress.room);
                let used_up = u64::from(room == ByteSize(0));
                let next = trace.first_from(start.saturating_since(self.starts_at));
                let next = next.max(opportunity.saturating_add(used_up));
                start.max(self.starts_at + trace.time(next))
            }
        }
    }

    /// Returns the bytes that the bottleneck can serialise between two times.
    pub(crate) fn capacity(&self, from: Instant, to: Instant) -> f64 {
        /// More than any link sends, and little enough for sums to be finite.
        const UNLIMITED: f64 = 1e18;
        match &self.rate {
            None => UNLIMITED,
            Some(Rate::Constant(rate)) => bytes_at(*rate, to.saturating_since(from)),
            Some(Rate::Steps(steps)) => self.steps_capacity(steps, from, to),
            Some(Rate::Opportunities(trace)) => {
                let first = |at: Instant| trace.first_from(at.saturating_since(self.starts_at));
                let opportunities = first(to).saturating_sub(first(from));
                opportunities as f64 * Opportunities::SIZE.0 as f64
            }
        }
    }

    /// Returns the first time from `start` on at which the rate is not zero.
    fn first_step(&self, steps: &Steps<Bitrate>, start: Instant) -> Instant {
        let mut at = start;
        for (rate, end) in steps.since(start.saturating_since(self.starts_at)) {
            if rate.bps() > 0 {
                return at;
            }
            at = end.map_or(Instant::MAX, |end| self.starts_at + end);
        }
        Instant::MAX
    }

    fn steps_capacity(&self, steps: &Steps<Bitrate>, from: Instant, to: Instant) -> f64 {
        let mut at = from;
        let mut bytes = 0.0;
        for (rate, end) in steps.since(from.saturating_since(self.starts_at)) {
            let end = end.map_or(to, |end| to.min(self.starts_at + end));
            bytes += bytes_at(rate, end.saturating_since(at));
            at = end;
            if at >= to {
                break;
            }
        }
        bytes
    }

    fn through_steps(&self, steps: &Steps<Bitrate>, start: Instant, size: ByteSize) -> Instant {
        let mut at = start;
        let mut left = size;
        for (rate, end) in steps.since(start.saturating_since(self.starts_at)) {
            let finish = at + rate.time_to_send(left);
            let Some(end) = end.map(|end| self.starts_at + end) else {
                return finish;
            };
            if finish <= end {
                return finish;
            }
            left = left - ByteSize(bytes_within(rate, at, end).min(left.0));
            at = end;
        }
        Instant::MAX
    }

    fn through_opportunities(
        &self,
        trace: &Opportunities,
        start: Instant,
        size: ByteSize,
    ) -> Progress {
        let (mut opportunity, mut room) = (self.progress.opportunity, self.progress.room);
        let next = trace.first_from(start.saturating_since(self.starts_at));
        if next > opportunity {
            (opportunity, room) = (next, Opportunities::SIZE);
        }
        if size > room {
            let more = (size - room).0.div_ceil(Opportunities::SIZE.0);
            opportunity = opportunity.saturating_add(more);
            room += ByteSize(more * Opportunities::SIZE.0);
        }
        let finish = start.max(self.starts_at + trace.time(opportunity));
        Progress {
            finish,
            opportunity,
            room: room - size,
        }
    }
}

fn bytes_at(rate: Bitrate, duration: Duration) -> f64 {
    rate.bps() as f64 / 8.0 * duration.as_secs_f64()
}

/// Returns the number of whole bytes that `rate` serialises from `begin` to `end`.
fn bytes_within(rate: Bitrate, begin: Instant, end: Instant) -> u64 {
    const BITS_PER_BYTE_AND_NANOS_PER_SECOND: u128 = 8 * 1_000_000_000;
    let bits_and_nanos = u128::from(rate.bps()) * end.saturating_since(begin).as_nanos();
    u64::try_from(bits_and_nanos / BITS_PER_BYTE_AND_NANOS_PER_SECOND).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn finishes(rate: Rate, arrivals: &[(u64, u64)]) -> Vec<Instant> {
        let mut serialiser = Serialiser::new(Some(rate), Instant::ZERO);
        let mut take = |&(at, size)| {
            let progress = serialiser.plan(Instant::ZERO + ms(at), ByteSize(size));
            serialiser.commit(progress);
            progress.finish()
        };
        arrivals.iter().map(&mut take).collect()
    }

    fn instants(times: &[u64]) -> Vec<Instant> {
        times.iter().map(|time| Instant::ZERO + ms(*time)).collect()
    }

    #[test]
    fn packets_follow_each_other_at_the_rate() {
        let rate = Rate::Constant(Bitrate::from_mbps(8.0));
        assert_eq!(
            finishes(rate, &[(0, 1000), (0, 2000), (10, 1000)]),
            instants(&[1, 3, 11])
        );
    }

    #[test]
    fn a_packet_takes_the_rate_of_each_step_that_it_crosses() {
        let mbps = Bitrate::from_mbps;
        let steps = vec![(ms(0), mbps(8.0)), (ms(10), mbps(0.0)), (ms(20), mbps(4.0))];
        let rate = Rate::Steps(Steps::new(steps).unwrap());
        assert_eq!(finishes(rate, &[(9, 2000), (9, 500)]), instants(&[22, 23]));
    }

    #[test]
    fn a_rate_that_stays_zero_lets_nothing_through() {
        let rate = Rate::Steps(Steps::new(vec![(ms(0), Bitrate::from_bps(0))]).unwrap());
        assert_eq!(finishes(rate, &[(0, 1)]), [Instant::MAX]);
    }

    #[test]
    fn an_opportunity_carries_1500_bytes_and_does_not_wait() {
        let rate = || Rate::Opportunities(Opportunities::new(vec![5, 10, 10, 20]).unwrap());

        assert_eq!(
            finishes(rate(), &[(0, 1500), (0, 1500), (0, 1500), (0, 1500)]),
            instants(&[5, 10, 10, 20])
        );
        assert_eq!(
            finishes(rate(), &[(0, 700), (0, 800), (0, 3000), (0, 1)]),
            instants(&[5, 5, 10, 20])
        );
        assert_eq!(
            finishes(rate(), &[(11, 1500), (11, 1500), (57, 100)]),
            instants(&[20, 25, 60])
        );
    }

    fn serialiser(rate: Rate, sent: &[u64]) -> Serialiser {
        let mut serialiser = Serialiser::new(Some(rate), Instant::ZERO);
        for size in sent {
            let progress = serialiser.plan(Instant::ZERO, ByteSize(*size));
            serialiser.commit(progress);
        }
        serialiser
    }

    fn steps() -> Rate {
        let mbps = Bitrate::from_mbps;
        let steps = vec![(ms(0), mbps(8.0)), (ms(10), mbps(0.0)), (ms(20), mbps(4.0))];
        Rate::Steps(Steps::new(steps).unwrap())
    }

    #[test]
    fn a_packet_begins_when_there_is_a_rate() {
        let free = |rate, sent: &[u64], now| serialiser(rate, sent).free_from(instants(&[now])[0]);
        let opportunities =
            || Rate::Opportunities(Opportunities::new(vec![5, 10, 10, 20]).unwrap());
        let at = |ms| instants(&[ms])[0];

        assert_eq!(free(steps(), &[3000], 1), at(3));
        assert_eq!(free(steps(), &[3000], 7), at(7));
        assert_eq!(free(steps(), &[10_000], 0), at(20));
        assert_eq!(free(steps(), &[], 11), at(20));
        assert_eq!(free(opportunities(), &[], 0), at(5));
        assert_eq!(free(opportunities(), &[1000], 0), at(5));
        assert_eq!(free(opportunities(), &[1500], 0), at(10));
        assert_eq!(free(opportunities(), &[1500, 1500], 0), at(10));
        assert_eq!(free(opportunities(), &[1500, 1500, 1500], 0), at(20));
        let zero = Rate::Constant(Bitrate::from_bps(0));
        assert_eq!(free(zero, &[], 0), Instant::MAX);
    }

    #[test]
    fn the_capacity_is_the_sum_over_all_steps_or_opportunities() {
        let capacity = |rate, from, to| {
            let [from, to] = [from, to].map(|at| Instant::ZERO + ms(at));
            serialiser(rate, &[]).capacity(from, to).round()
        };
        let opportunities = Rate::Opportunities(Opportunities::new(vec![5, 10, 10, 20]).unwrap());

        assert_eq!(
            capacity(Rate::Constant(Bitrate::from_mbps(8.0)), 5, 8),
            3000.0
        );
        assert_eq!(capacity(steps(), 8, 22), 3000.0);
        assert_eq!(capacity(steps(), 12, 18), 0.0);
        assert_eq!(capacity(opportunities, 6, 26), 6000.0);
    }
}
