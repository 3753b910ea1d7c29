use crate::config;
use hawser_units::Instant;
use std::time::Duration;

/// The base controller of DualPI2 (RFC 9332, appendix A.1): a probability that rises with the delay
/// of the queues above the target and with its growth.
#[derive(Debug, Clone)]
pub(crate) struct Pi2 {
    target: f64,
    alpha: f64,
    beta: f64,
    coupling: f64,
    period: Duration,
    next_update: Option<Instant>,
    base: f64,
    previous: f64,
}

/// The maximum probability with which L4S packets are marked, above which they are dropped too.
pub(crate) const L4S_MAX: f64 = 1.0;

impl Pi2 {
    /// Creates a controller whose first update is one period after its first
    /// [`run`](Pi2::run). Settings out of range take the nearest value in it.
    pub(crate) fn new(config: &config::DualPi2) -> Self {
        let delays = [Duration::from_micros(10), Duration::from_secs(10)];
        let periods = [Duration::from_micros(100), Duration::from_secs(1)];
        Pi2 {
            target: config.target.clamp(delays[0], delays[1]).as_secs_f64(),
            alpha: config.alpha.clamp(0.001, 1000.0),
            beta: config.beta.clamp(0.001, 1000.0),
            coupling: config.coupling.clamp(0.1, 16.0),
            period: config.update.clamp(periods[0], periods[1]),
            next_update: None,
            base: 0.0,
            previous: 0.0,
        }
    }

    /// Carries out the updates that are due by `now`, while the queues do not change. `wait` returns
    /// the greater delay of the two queues at a time.
    pub(crate) fn run(&mut self, now: Instant, wait: impl Fn(Instant) -> Duration) {
        let mut next = *self.next_update.get_or_insert(now + self.period);
        while next <= now && next < Instant::MAX {
            let before = (self.base, self.previous);
            self.update(wait(next));
            next = self.after(next, now, before);
        }
        self.next_update = Some(next);
    }

    /// Updates the probabilities for the greater delay of the two queues (`dualpi2_update()`).
    pub(crate) fn update(&mut self, wait: Duration) {
        let wait = wait.as_secs_f64();
        let base =
            self.base + self.alpha * (wait - self.target) + self.beta * (wait - self.previous);
        self.base = base.clamp(0.0, 1.0);
        self.previous = wait;
    }

    /// Returns the probability of marking an L4S packet that comes from the Classic queue: p_CL.
    pub(crate) fn coupled(&self) -> f64 {
        (self.coupling * self.base).min(L4S_MAX)
    }

    /// Returns the probability of marking or dropping a Classic packet: p_C.
    pub(crate) fn classic(&self) -> f64 {
        self.base * self.base
    }

    /// Returns the Classic probability from which on ECN is disabled: p_Cmax.
    pub(crate) fn classic_max(&self) -> f64 {
        (1.0 / (self.coupling * self.coupling)).min(1.0)
    }

    /// Returns the time of the update that follows the one at `last`. If all updates until `now`
    /// give the same probability, that is the last one of them.
    fn after(&self, last: Instant, now: Instant, before: (f64, f64)) -> Instant {
        let is_at_rest = before == (self.base, self.previous);
        let is_saturated = before.0 == 1.0 && self.base == 1.0 && self.previous > self.target;
        let left = now.saturating_since(last).as_nanos() / self.period.as_nanos();
        let updates = if is_at_rest || is_saturated { left } else { 1 };
        let updates = u64::try_from(updates.max(1)).unwrap_or(u64::MAX);
        let period = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        last + Duration::from_nanos(period.saturating_mul(updates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain reading of `dualpi2_params_init()` and `dualpi2_update()`, in the names of the RFC.
    struct Appendix {
        p: f64,
        p_cl: f64,
        p_c: f64,
        prevq: f64,
    }

    impl Appendix {
        fn dualpi2_update(&mut self, curq: f64) {
            let (target, alpha, beta, k) = (0.015, 0.16, 3.2, 2.0);
            self.p = self.p + alpha * (curq - target) + beta * (curq - self.prevq);
            self.p = if self.p < 0.0 { 0.0 } else { self.p };
            self.p = if self.p > 1.0 { 1.0 } else { self.p };
            self.p_cl = k * self.p;
            self.p_c = self.p * self.p;
            self.prevq = curq;
        }
    }

    proptest::proptest! {
        #[test]
        fn each_update_is_the_one_of_the_appendix(
            waits_us in proptest::collection::vec(0u64..400_000, 1..200),
        ) {
            let mut pi2 = Pi2::new(&config::DualPi2::default());
            let mut appendix = Appendix { p: 0.0, p_cl: 0.0, p_c: 0.0, prevq: 0.0 };
            for us in waits_us {
                let wait = Duration::from_micros(us);
                pi2.update(wait);
                appendix.dualpi2_update(wait.as_secs_f64());
                proptest::prop_assert_eq!(pi2.base, appendix.p);
                proptest::prop_assert_eq!(pi2.classic(), appendix.p_c);
                proptest::prop_assert_eq!(pi2.coupled(), appendix.p_cl.min(1.0));
            }
        }

        #[test]
        fn updates_that_are_skipped_change_nothing(
            arrived_ms in 0u64..200,
            occupied in proptest::bool::ANY,
            start_us in 0u64..300_000,
            later_s in 0u64..100,
        ) {
            let arrived = Instant::ZERO + Duration::from_millis(arrived_ms);
            let wait = |at: Instant| if occupied { at.saturating_since(arrived) } else { Duration::ZERO };
            let mut pi2 = Pi2::new(&config::DualPi2::default());
            pi2.update(Duration::from_micros(start_us));
            let mut slow = pi2.clone();
            let end = arrived + Duration::from_secs(later_s);
            pi2.run(arrived, wait);
            pi2.run(end, wait);

            let mut next = arrived + slow.period;
            while next <= end {
                slow.update(wait(next));
                next += slow.period;
            }
            proptest::prop_assert_eq!((pi2.base, pi2.previous), (slow.base, slow.previous));
            proptest::prop_assert_eq!(pi2.next_update, Some(next));
        }
    }

    #[test]
    fn ecn_is_disabled_from_a_quarter_on() {
        let pi2 = Pi2::new(&config::DualPi2::default());
        assert_eq!(pi2.classic_max(), 0.25);
        let coupling = 0.5;
        let pi2 = Pi2::new(&config::DualPi2 {
            coupling,
            ..config::DualPi2::default()
        });
        assert_eq!(pi2.classic_max(), 1.0);
    }

    #[test]
    fn a_queue_that_was_empty_for_years_takes_no_time() {
        let mut pi2 = Pi2::new(&config::DualPi2::default());
        pi2.run(Instant::ZERO, |_| Duration::ZERO);
        pi2.run(Instant::MAX, |_| Duration::ZERO);
        assert_eq!(pi2.base, 0.0);
    }
}
