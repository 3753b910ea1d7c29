//! Rate limits of requests and of failed authentications.

use crate::config::LimitsConfig;
use hawser_control::Name;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of buckets at which full ones are removed; a full bucket is equivalent to a new one.
const BUCKETS: usize = 16_384;

/// The minimum burst size.
const MIN_BURST: f64 = 20.0;

pub(crate) struct Limits {
    pub(crate) operators: Limit<Name>,
    pub(crate) nodes: Limit<Name>,
    /// Failed authentications. Valid credentials are accepted from any address: secrets have 256
    /// random bits, so guessing is infeasible, and no client can lock out another.
    pub(crate) failures: Limit<IpAddr>,
}

impl Limits {
    pub(crate) fn new(config: &LimitsConfig) -> Limits {
        Limits {
            operators: Limit::new(config.operator_requests_per_s),
            nodes: Limit::new(config.node_requests_per_s),
            failures: Limit::new(config.failures_per_minute / 60.0),
        }
    }
}

/// Returns the address under which a source is counted: the /64 prefix for IPv6, because a customer
/// has at least that many addresses.
pub(crate) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

/// Token buckets, one per key.
pub(crate) struct Limit<K> {
    per_s: f64,
    burst: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

struct Bucket {
    left: f64,
    at: Instant,
}

impl<K: Hash + Eq> Limit<K> {
    fn new(per_s: f64) -> Self {
        Limit::with_burst(per_s, (2.0 * per_s).max(MIN_BURST))
    }

    /// Creates buckets with a burst size and a rate.
    pub(crate) fn with_burst(per_s: f64, burst: f64) -> Self {
        Limit {
            per_s,
            burst,
            buckets: Mutex::default(),
        }
    }

    /// Returns an error with the time until a token is available, unless one is available now.
    pub(crate) fn check(&self, key: &K, now: Instant) -> Result<(), Duration> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        match buckets.get(key).map(|bucket| self.left(bucket, now)) {
            Some(left) if left < 1.0 => Err(self.until_one(left)),
            _ => Ok(()),
        }
    }

    /// Takes a token, or returns the time until one is available.
    pub(crate) fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= BUCKETS {
            let to_full = Duration::from_secs_f64(self.burst / self.per_s);
            buckets.retain(|_, bucket| now.duration_since(bucket.at) < to_full);
        }
        let bucket = buckets.entry(key).or_insert(Bucket {
            left: self.burst,
            at: now,
        });
        *bucket = Bucket {
            left: self.left(bucket, now),
            at: now,
        };
        if bucket.left >= 1.0 {
            bucket.left -= 1.0;
            return Ok(());
        }
        Err(self.until_one(bucket.left))
    }

    fn left(&self, bucket: &Bucket, now: Instant) -> f64 {
        let gained = now.duration_since(bucket.at).as_secs_f64() * self.per_s;
        (bucket.left + gained).min(self.burst)
    }

    fn until_one(&self, left: f64) -> Duration {
        Duration::from_secs_f64((1.0 - left) / self.per_s)
    }

    /// Refills the bucket of a key.
    pub(crate) fn forget(&self, key: &K) {
        self.buckets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_takes_nothing_and_agrees_with_take() {
        let (limit, now) = (Limit::with_burst(1.0, 2.0), Instant::now());
        for _ in 0..2 {
            assert_eq!(limit.check(&"a", now), Ok(()));
            assert_eq!(limit.take("a", now), Ok(()));
        }
        let after = limit.check(&"a", now).unwrap_err();
        assert_eq!(limit.take("a", now), Err(after));
        assert_eq!(limit.check(&"a", now + after), Ok(()));
    }

    #[test]
    fn a_burst_is_accepted_and_then_the_rate() {
        let limit = Limit::new(10.0);
        let start = Instant::now();
        for _ in 0..20 {
            limit.take("a", start).unwrap();
        }
        assert_eq!(limit.take("a", start), Err(Duration::from_millis(100)));
        limit.take("b", start).unwrap();
        limit.take("a", start + Duration::from_millis(101)).unwrap();
        assert!(limit.take("a", start + Duration::from_millis(102)).is_err());
    }

    #[test]
    fn addresses_of_one_customer_are_one_source() {
        let source = |text: &str| source(text.parse().unwrap()).to_string();
        assert_eq!(source("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(source("::ffff:192.0.2.1"), "192.0.2.1");
    }
}
