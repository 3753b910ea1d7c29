use crate::config::Rate;
use crate::steps::Steps;
use crate::trace::Opportunities;
use hawser_units::{Bitrate, ByteSize, Instant};

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
        let Progress {
            mut opportunity,
            mut room,
            ..
        } = self.progress;
        let next = trace.first_from(start.saturating_since(self.starts_at));
        if next > opportunity {
            (opportunity, room) = (next, Opportunities::SIZE);
        }
        let mut left = size;
        while left > room {
            left = left - room;
            (opportunity, room) = (opportunity + 1, Opportunities::SIZE);
        }
        let finish = start.max(self.starts_at + trace.time(opportunity));
        Progress {
            finish,
            opportunity,
            room: room - left,
        }
    }
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
    use std::time::Duration;

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
}
