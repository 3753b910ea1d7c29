//! The sender of packets: the part of a relay that forwards them to subscribers as they arrive.

use anyhow::Result;
use hawser_audience::Command;
use hawser_fanout::Frame;
use hawser_units::Instant;
use hawser_wire::media::ObjectId;
use std::net::SocketAddr;

/// The number of a broadcast in the configuration.
pub type BroadcastIndex = usize;

/// An object that has begun, and the subscribers that are sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// The broadcast.
    pub broadcast: BroadcastIndex,
    /// The object.
    pub object: ObjectId,
    /// The sessions of those to whom its packets are sent as they arrive.
    pub served: Vec<u32>,
}

/// Counts by what has become of packets or objects.
pub type Outcomes = Vec<(&'static str, u64)>;

/// The packets and objects that were forwarded to a subscriber, and those that were not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Packets sent.
    pub packets: u64,
    /// Objects, by verdict.
    pub objects: Outcomes,
    /// Packets of objects that it is served that were not sent, by reason.
    pub not_sent: Outcomes,
}

/// Sends packets to subscribers as they arrive: the kernel, or in experiments another one.
pub trait Forwarder {
    /// Takes media of a broadcast from the sender at `remote`, that arrives at `local`.
    ///
    /// # Errors
    /// If it cannot be taken there.
    fn connect(
        &mut self,
        broadcast: BroadcastIndex,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<()>;

    /// Carries out what a broadcast wants.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn handle_command(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        command: Command,
    ) -> Result<()>;

    /// Returns the objects that have begun since the last call.
    fn begun(&mut self) -> Vec<Begun>;

    /// Returns the frame from which on a subscriber is sent a track, once that is known.
    fn joined(&self, broadcast: BroadcastIndex, session: u32, alias: u32) -> Option<Frame>;

    /// Does what has to be done from time to time: subscribers that are not renewed get nothing.
    fn renew(&mut self, now: Instant);

    /// Returns whether packets reach the relay's socket with the relay's own tags.
    fn retags(&self) -> bool;

    /// Returns the outcomes of packets that belong to no track.
    fn outcomes(&self) -> Outcomes;

    /// Returns the outcomes of the packets of each track of a broadcast, by alias.
    fn track_outcomes(&self, broadcast: BroadcastIndex) -> Vec<(u32, Outcomes)>;

    /// Returns what a subscriber was sent; `None` if it is not known.
    fn served(&self, broadcast: BroadcastIndex, session: u32) -> Option<Served>;
}
