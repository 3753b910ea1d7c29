//! How often a client may open a session.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A client opens a session so often in the long run, and so many at once: one that loses its server again and again, and
/// is not in a loop.
const EVERY: Duration = Duration::from_secs(2);
const AT_ONCE: u32 = 10;

/// Clients that are remembered before it is looked which of them need not be.
const REMEMBERED: usize = 1024;

/// By client, until when its openings so far last at that rate.
#[derive(Debug, Default)]
pub(super) struct Opens(HashMap<String, Instant>);

impl Opens {
    /// Whether the client may open a session now.
    pub(super) fn allow(&mut self, client: &str, now: Instant) -> bool {
        if self.0.len() >= REMEMBERED && self.0.len().is_power_of_two() {
            self.0.retain(|_, until| *until > now);
        }
        let until = self.0.get(client).copied().unwrap_or(now).max(now);
        let is_allowed = until + EVERY <= now + EVERY * AT_ONCE;
        if is_allowed {
            self.0.insert(client.to_owned(), until + EVERY);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_opens_so_many_sessions_at_once_and_then_one_every_so_often() {
        let (mut opens, start) = (Opens::default(), Instant::now());
        let allowed = |opens: &mut Opens, client: &str, at: Duration| {
            (0..100).filter(|_| opens.allow(client, start + at)).count()
        };
        assert_eq!(allowed(&mut opens, "car", Duration::ZERO), AT_ONCE as usize);
        assert_eq!(
            allowed(&mut opens, "bus", Duration::ZERO),
            AT_ONCE as usize,
            "another client"
        );
        assert_eq!(allowed(&mut opens, "car", EVERY * 3), 3);
        assert_eq!(allowed(&mut opens, "car", EVERY * 100), AT_ONCE as usize);
    }

    #[test]
    fn clients_that_have_not_come_for_long_are_forgotten() {
        let (mut opens, start) = (Opens::default(), Instant::now());
        for number in 0..100 * REMEMBERED as u32 {
            opens.allow(&number.to_string(), start + EVERY * number);
        }
        assert!(opens.0.len() <= REMEMBERED, "{}", opens.0.len());
    }
}
