use crate::config::{Delay, ExtraDelay};
use crate::figure::Span;
use crate::random::{Draws, Stream};
use std::time::Duration;

impl Delay {
    /// Returns the delay at `elapsed`.
    pub fn at(&self, elapsed: Duration) -> Duration {
        match self {
            Delay::Constant(delay) => *delay,
            Delay::Steps(steps) => steps.at(elapsed),
        }
    }
}

/// The state of an extra delay.
#[derive(Debug, Clone)]
pub(crate) struct Extra {
    config: ExtraDelay,
    draws: Draws,
}

impl Extra {
    pub(crate) fn new(config: ExtraDelay, seed: u64, number: usize) -> Self {
        Extra {
            config,
            draws: Draws::new(seed, Stream::ExtraDelay, number),
        }
    }

    /// Draws for the next packet, whether or not it will be delayed.
    pub(crate) fn draw(&mut self) -> f64 {
        if self.config.hold.is_zero() {
            self.draws.draw()
        } else {
            0.0
        }
    }

    /// Returns the delay of a packet for which `drawn` was drawn. It leaves the bottleneck at
    /// `elapsed`, or before the schedules start (`None`). A delay that holds is a function of time
    /// only.
    pub(crate) fn delay(&mut self, elapsed: Option<Duration>, drawn: f64) -> Duration {
        let within = |period: Span| elapsed.is_some_and(|elapsed| period.contains(elapsed));
        if !self.config.during.is_none_or(within) {
            return Duration::ZERO;
        }
        let mut drawn = drawn;
        if !self.config.hold.is_zero() {
            let turn = elapsed.unwrap_or_default().as_nanos() / self.config.hold.as_nanos();
            drawn = self.draws.draw_at(u64::try_from(turn).unwrap_or(u64::MAX));
        }
        let range = self.config.range;
        range.from() + (range.to() - range.from()).mul_f64(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn extra(hold: Duration, during: Option<Span>) -> Extra {
        let range = Span::new(ms(20), ms(70)).unwrap();
        Extra::new(
            ExtraDelay {
                range,
                hold,
                during,
            },
            1,
            0,
        )
    }

    #[test]
    fn each_packet_draws_from_the_whole_range() {
        let mut extra = extra(Duration::ZERO, None);
        let delays: Vec<_> = (0..1000)
            .map(|_| {
                let drawn = extra.draw();
                extra.delay(None, drawn)
            })
            .collect();

        assert!(delays.iter().all(|delay| (ms(20)..=ms(70)).contains(delay)));
        assert!(*delays.iter().min().unwrap() < ms(21));
        assert!(*delays.iter().max().unwrap() > ms(69));
    }

    #[test]
    fn a_held_delay_depends_on_the_time_alone() {
        let mut extra = extra(ms(100), None);
        let first = extra.delay(Some(ms(0)), 0.0);
        let second = extra.delay(Some(ms(100)), 0.0);

        assert_ne!(first, second);
        assert_eq!(extra.delay(Some(ms(199)), 0.0), second);
        assert_eq!(extra.delay(Some(ms(99)), 0.0), first);
    }

    #[test]
    fn there_is_no_extra_delay_outside_its_period() {
        let mut extra = extra(Duration::ZERO, Some(Span::new(ms(10), ms(50)).unwrap()));
        let drawn = extra.draw();

        assert_eq!(
            [None, Some(ms(9)), Some(ms(50))].map(|at| extra.delay(at, drawn)),
            [Duration::ZERO; 3]
        );
        assert!(extra.delay(Some(ms(10)), drawn) >= ms(20));
    }
}
