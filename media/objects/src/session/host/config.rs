use crate::keys::{AccessSecret, Seed};
use std::num::NonZeroU8;
use std::time::Duration;

/// The usual time between reports.
const REPORT_INTERVAL_MS: NonZeroU8 = NonZeroU8::new(5).expect("not zero");

/// Two reports in a row may be lost, and the third, three seconds after the last one, may be late by a
/// quarter of a second.
const YIELD_AFTER: Duration = Duration::from_millis(3250);

/// The settings of a [`Host`](super::Host).
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The secret of the tracks.
    pub access: AccessSecret,
    /// The publisher's announcement with its authenticator.
    pub announcement: Vec<u8>,
    /// Random bytes from which the hop keys are derived, new for each start.
    pub hop_salt: [u8; 16],
    /// Random bytes for cookies and sessions.
    pub seed: Seed,
    /// The maximum number of sessions.
    pub sessions: usize,
    /// The time for which a cookie is valid.
    pub cookie_lifetime: Duration,
    /// The time in which a viewer has to use an accepted session.
    pub confirm_within: Duration,
    /// The time without an authentic message after which a session has ended.
    pub idle: Duration,
    /// The time without an authentic message after which another viewer may take the place of a session, if
    /// the maximum number of sessions is reached. A connected viewer reports every second.
    pub yield_after: Duration,
    /// The requested time between the reports of a viewer, in milliseconds.
    pub report_interval_ms: NonZeroU8,
}

impl HostConfig {
    /// Returns settings for 64 viewers.
    pub const fn new(
        access: AccessSecret,
        announcement: Vec<u8>,
        hop_salt: [u8; 16],
        seed: Seed,
    ) -> Self {
        HostConfig {
            access,
            announcement,
            hop_salt,
            seed,
            sessions: 64,
            cookie_lifetime: Duration::from_secs(10),
            confirm_within: Duration::from_secs(3),
            idle: Duration::from_secs(10),
            yield_after: YIELD_AFTER,
            report_interval_ms: REPORT_INTERVAL_MS,
        }
    }
}
