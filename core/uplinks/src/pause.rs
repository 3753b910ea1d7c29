//! Pauses between attempts.

use std::time::Duration;

/// Pauses that double with every failure, up to a maximum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

/// Between attempts to find a server and to open a session.
pub(crate) const OF_SEARCH: Pause = Pause {
    shortest: Duration::from_millis(500),
    longest: Duration::from_secs(5),
};

/// Between attempts of one uplink to join the session.
pub(crate) const OF_UPLINK: Pause = Pause {
    shortest: Duration::from_millis(250),
    longest: Duration::from_secs(5),
};

impl Pause {
    /// Returns the pause after `failures` failures in a row: between half of the current pause and
    /// all of it, depending on `random` (0 to 1).
    pub(crate) fn after(self, failures: u32, random: f64) -> Duration {
        let doublings = failures.saturating_sub(1).min(16);
        let pause = (self.shortest * (1 << doublings)).min(self.longest);
        pause.mul_f64(0.5 + 0.5 * random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let pause = Pause {
            shortest: Duration::from_millis(100),
            longest: Duration::from_millis(350),
        };
        let pauses = [1, 2, 3, 4, u32::MAX].map(|failures| pause.after(failures, 1.0).as_millis());
        assert_eq!(pauses, [100, 200, 350, 350, 350]);
        assert_eq!(pause.after(1, 0.0).as_millis(), 50);
    }
}
