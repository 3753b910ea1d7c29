//! Rate limits by key, such as the address of a client, in bounded memory.

use governor::clock::{Clock, MonotonicClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};
use lru::LruCache;
use parking_lot::Mutex;
use std::hash::Hash;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

/// The longest time in which an exhausted limit recovers: a hundred years, so that every time of a
/// limit fits 64 bits of nanoseconds. Lower rates are raised to this one.
const MAX_RECOVERY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A rate with a burst size that each key may use on its own.
///
/// It remembers a fixed number of keys at most. When there are more, it forgets the one that was
/// used least recently, which may then use a whole burst again.
///
/// ```
/// use hawser_io::rate_limit::RateLimit;
/// use std::num::{NonZeroU32, NonZeroUsize};
///
/// let limit = RateLimit::new(0.5, NonZeroU32::MIN, NonZeroUsize::MIN);
/// assert!(limit.take("car").is_ok());
/// assert!(limit.take("car").is_err_and(|after| after.as_secs_f64() <= 2.0));
/// ```
pub struct RateLimit<K: Clone + Eq + Hash, C: Clock = MonotonicClock> {
    limiter: RateLimiter<Request<K>, States<K>, C, NoOpMiddleware<C::Instant>>,
    states: States<K>,
}

impl<K: Clone + Eq + Hash> RateLimit<K> {
    /// Creates a limit of `per_s` uses per second and `burst` at once, for up to `max_keys` keys.
    pub fn new(per_s: f64, burst: NonZeroU32, max_keys: NonZeroUsize) -> Self {
        RateLimit::with_clock(per_s, burst, max_keys, MonotonicClock)
    }
}

impl<K: Clone + Eq + Hash, C: Clock> RateLimit<K, C> {
    fn with_clock(per_s: f64, burst: NonZeroU32, max_keys: NonZeroUsize, clock: C) -> Self {
        let longest = MAX_RECOVERY / burst.get();
        let interval = Duration::try_from_secs_f64(1.0 / per_s).map_or(longest, |interval| {
            interval.clamp(Duration::from_nanos(1), longest)
        });
        let quota = Quota::with_period(interval)
            .expect("the interval is not zero")
            .allow_burst(burst);
        let states = States::new(max_keys);
        RateLimit {
            limiter: RateLimiter::new(quota, states.clone(), clock),
            states,
        }
    }

    /// Uses the limit of a key once.
    ///
    /// # Errors
    /// If the limit is exhausted: the time until it can be used again.
    pub fn take(&self, key: K) -> Result<(), Duration> {
        self.request(&Request::Take(key))
    }

    /// Returns whether [`RateLimit::take`] would succeed, and uses nothing.
    ///
    /// # Errors
    /// If the limit is exhausted: the time until it can be used again.
    pub fn check(&self, key: K) -> Result<(), Duration> {
        self.request(&Request::Check(key))
    }

    /// Gives a key its whole burst again.
    pub fn forget(&self, key: &K) {
        self.states.by_key.lock().pop(key);
    }

    fn request(&self, request: &Request<K>) -> Result<(), Duration> {
        self.limiter
            .check_key(request)
            .map_err(|until| until.wait_time_from(self.limiter.clock().now()))
    }
}

/// A request to the limit of a key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Request<K> {
    Take(K),
    Check(K),
}

impl<K> Request<K> {
    fn key(&self) -> &K {
        match self {
            Request::Take(key) | Request::Check(key) => key,
        }
    }
}

/// The states of the keys that were used last.
struct States<K: Eq + Hash> {
    by_key: Arc<Mutex<LruCache<K, Nanos>>>,
    max_keys: NonZeroUsize,
}

impl<K: Eq + Hash> States<K> {
    fn new(max_keys: NonZeroUsize) -> Self {
        // A cache with a limit would allocate the memory for all keys now.
        States {
            by_key: Arc::new(Mutex::new(LruCache::unbounded())),
            max_keys,
        }
    }
}

impl<K: Eq + Hash> Clone for States<K> {
    fn clone(&self) -> Self {
        States {
            by_key: Arc::clone(&self.by_key),
            max_keys: self.max_keys,
        }
    }
}

impl<K: Clone + Eq + Hash> StateStore for States<K> {
    type Key = Request<K>;

    fn measure_and_replace<T, F, E>(&self, request: &Request<K>, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut by_key = self.by_key.lock();
        let (decision, next) = decide(by_key.get(request.key()).copied())?;
        if let Request::Take(key) = request {
            by_key.put(key.clone(), next);
            if by_key.len() > self.max_keys.get() {
                by_key.pop_lru();
            }
        }
        Ok(decision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use governor::clock::FakeRelativeClock;

    fn limit(per_s: f64, burst: u32) -> (RateLimit<u32, FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        let burst = NonZeroU32::new(burst).unwrap();
        let max_keys = NonZeroUsize::new(100).unwrap();
        let limit = RateLimit::with_clock(per_s, burst, max_keys, clock.clone());
        (limit, clock)
    }

    #[test]
    fn a_burst_is_accepted_and_then_the_rate() {
        let (limit, clock) = limit(10.0, 20);
        for _ in 0..20 {
            limit.take(1).unwrap();
        }
        assert_eq!(limit.take(1), Err(Duration::from_millis(100)));
        limit.take(2).unwrap();
        clock.advance(Duration::from_millis(101));
        limit.take(1).unwrap();
        clock.advance(Duration::from_millis(1));
        assert!(limit.take(1).is_err());
    }

    #[test]
    fn a_key_that_was_quiet_for_long_has_one_burst_again() {
        let (limit, clock) = limit(0.5, 10);
        let accepted = || (0..100).filter(|_| limit.take(1).is_ok()).count();
        assert_eq!(accepted(), 10);
        clock.advance(Duration::from_secs(6));
        assert_eq!(accepted(), 3);
        clock.advance(Duration::from_secs(200));
        assert_eq!(accepted(), 10);
    }

    #[test]
    fn a_check_uses_nothing_and_agrees_with_a_use() {
        let (limit, clock) = limit(1.0, 2);
        for _ in 0..2 {
            assert_eq!(limit.check(1), Ok(()));
            assert_eq!(limit.take(1), Ok(()));
        }
        let after = limit.check(1).unwrap_err();
        assert_eq!(limit.take(1), Err(after));
        clock.advance(after);
        assert_eq!(limit.check(1), Ok(()));
    }

    #[test]
    fn a_forgotten_key_has_its_burst_again() {
        let (limit, _) = limit(1.0, 1);
        limit.take(1).unwrap();
        assert!(limit.take(1).is_err());
        limit.forget(&1);
        assert!(limit.take(1).is_ok());
    }

    #[test]
    fn the_keys_used_last_are_remembered_and_not_more() {
        let (limit, _) = limit(1.0, 1);
        for key in 0..10_000 {
            limit.take(key).unwrap();
            assert!(limit.check(0).is_err(), "checked all the time");
        }
        assert_eq!(limit.states.by_key.lock().len(), 100);
        assert!(limit.take(9_999).is_err());
        assert!(limit.take(1).is_ok());
    }

    #[test]
    fn extreme_rates_are_possible() {
        for (per_s, burst) in [
            (1e-300, u32::MAX),
            (1e300, u32::MAX),
            (f64::MIN_POSITIVE, 1),
        ] {
            let (limit, _) = limit(per_s, burst);
            assert_eq!(limit.take(1), Ok(()));
        }
    }
}
