//! Sessions between a viewer and the sender of its packets.

mod allowance;
mod channel;
mod client;
mod cookie;
mod host;
mod upstream;
mod viewer;

pub use channel::OpenError;
pub use client::{SessionTimes, ViewerError, ViewerStats};
pub use host::{Host, HostConfig, HostError, HostEvent, HostStats};
pub use upstream::{RelayedPacket, Upstream, UpstreamConfig, UpstreamEnd, UpstreamEvent};
pub use viewer::{Viewer, ViewerConfig, ViewerEvent};

use hawser_packets::session::Goodbye;
use std::fmt;

/// The reason why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    /// The other end left.
    Left(Goodbye),
    /// No authentic datagram arrived for too long.
    TimedOut,
    /// A later session of the same viewer took its place.
    Replaced,
    /// Another viewer took its place, because no authentic message had arrived for a while and there were as
    /// many sessions as there may be.
    Displaced,
    /// The session has sealed as many messages as its key may.
    KeyUsedUp,
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EndReason::Left(Goodbye::Ended) => "the other end has ended it",
            EndReason::Left(Goodbye::Restarting) => "the other end restarts",
            EndReason::Left(Goodbye::Revoked) => "the other end may no longer take part",
            EndReason::Left(Goodbye::Overloaded) => "the other end has no room",
            EndReason::TimedOut => "nothing has come for too long",
            EndReason::Replaced => "the viewer has another session",
            EndReason::Displaced => "a silent viewer made room for another one",
            EndReason::KeyUsedUp => "its key has sealed as many messages as it may",
        })
    }
}
