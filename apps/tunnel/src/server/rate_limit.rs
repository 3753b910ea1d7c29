//! Limits the rate at which a client opens sessions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The average interval of openings and the burst size, which a client that loses its server
/// repeatedly does not exceed, but one in a loop does.
const INTERVAL: Duration = Duration::from_secs(2);
const BURST: u32 = 10;

/// The number of clients from which on entries that no longer matter are removed.
const CLEAN_UP_FROM: usize = 1024;

/// The time, by client, until which its openings so far last at the average rate (a token bucket).
#[derive(Debug, Default)]
pub(super) struct OpenRateLimit(HashMap<String, Instant>);

impl OpenRateLimit {
    /// Returns whether the client may open a session now, and counts it if so.
    pub(super) fn allow(&mut self, client: &str, now: Instant) -> bool {
        if self.0.len() >= CLEAN_UP_FROM && self.0.len().is_power_of_two() {
            self.0.retain(|_, until| *until > now);
        }
        let until = self.0.get(client).copied().unwrap_or(now).max(now);
        let is_allowed = until + INTERVAL <= now + INTERVAL * BURST;
        if is_allowed {
            self.0.insert(client.to_owned(), until + INTERVAL);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_opens_so_many_sessions_at_once_and_then_one_every_so_often() {
        let (mut limit, start) = (OpenRateLimit::default(), Instant::now());
        let allowed = |limit: &mut OpenRateLimit, client: &str, at: Duration| {
            (0..100).filter(|_| limit.allow(client, start + at)).count()
        };
        assert_eq!(allowed(&mut limit, "car", Duration::ZERO), BURST as usize);
        assert_eq!(
            allowed(&mut limit, "bus", Duration::ZERO),
            BURST as usize,
            "another client"
        );
        assert_eq!(allowed(&mut limit, "car", INTERVAL * 3), 3);
        assert_eq!(allowed(&mut limit, "car", INTERVAL * 100), BURST as usize);
    }

    #[test]
    fn clients_that_have_not_come_for_long_are_forgotten() {
        let (mut limit, start) = (OpenRateLimit::default(), Instant::now());
        for number in 0..100 * CLEAN_UP_FROM as u32 {
            limit.allow(&number.to_string(), start + INTERVAL * number);
        }
        assert!(limit.0.len() <= CLEAN_UP_FROM, "{}", limit.0.len());
    }
}
