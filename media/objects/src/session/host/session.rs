use super::HostConfig;
use crate::session::allowance::Allowance;
use crate::session::channel::Channel;
use hawser_units::Instant;
use std::net::SocketAddr;

/// A session of a viewer.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) address: SocketAddr,
    /// The random bytes of viewer and sender.
    pub(super) randoms: [[u8; 16]; 2],
    pub(super) channel: Channel,
    pub(super) allowance: Allowance,
    /// The number of answers to its request.
    pub(super) accepts: u8,
    /// Whether the viewer has proved that it has the keys.
    pub(super) is_confirmed: bool,
    /// The time of the newest authentic message, or of the opening.
    pub(super) heard: Instant,
    /// The number of the selection in force, and that of the message that had it.
    pub(super) subscription: u8,
    pub(super) subscribed_by: Option<u64>,
}

impl Session {
    /// Returns when the session ends if no authentic message arrives.
    pub(super) fn ends_at(&self, config: &HostConfig) -> Instant {
        if self.is_confirmed {
            self.heard + config.idle
        } else {
            self.heard + config.confirm_within
        }
    }

    /// Returns from when on another viewer may take the place of the session.
    pub(super) fn yields_at(&self, config: &HostConfig) -> Instant {
        if self.is_confirmed {
            self.heard + config.yield_after
        } else {
            self.ends_at(config)
        }
    }
}
