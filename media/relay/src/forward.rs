//! The sender of packets: the part of a relay that forwards them to subscribers as they arrive.

use anyhow::Result;
use hawser_audience::Command;
use hawser_fanout::Frame;
use hawser_packets::media::ObjectId;
use hawser_units::Instant;
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

/// Counts of packets or objects by outcome.
pub type Outcomes = Vec<(&'static str, u64)>;

/// The packets and objects that were forwarded to a subscriber, and those that were not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Packets sent.
    pub packets: u64,
    /// Objects, by verdict.
    pub objects: Outcomes,
    /// Packets of objects that it is served, which were not sent, by reason.
    pub not_sent: Outcomes,
}

/// Sends packets to subscribers as they arrive: the kernel, or another implementation in experiments.
pub trait Forwarder {
    /// Accepts media of a broadcast that the sender at `remote` sends to `local`.
    ///
    /// # Errors
    /// If there is no route to the sender, or the kernel refuses it.
    fn connect(
        &mut self,
        broadcast: BroadcastIndex,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<()>;

    /// Executes a command of a broadcast.
    ///
    /// # Errors
    /// If the kernel refuses it.
    fn handle_command(
        &mut self,
        now: Instant,
        broadcast: BroadcastIndex,
        command: Command,
    ) -> Result<()>;

    /// Takes a datagram that has arrived from the sender. Returns the datagram that is to be sent from the relay's
    /// socket, and to whom, if there are subscribers that nothing else sends packets to.
    fn handle_datagram(
        &mut self,
        _now: Instant,
        _broadcast: BroadcastIndex,
        _datagram: &[u8],
    ) -> Option<(Vec<u8>, Vec<SocketAddr>)> {
        None
    }

    /// Returns the objects that have begun since the last call.
    fn begun(&mut self) -> Vec<Begun>;

    /// Returns the frame from which on a subscriber is sent a track, if it is known.
    fn joined(&self, broadcast: BroadcastIndex, session: u32, alias: u32) -> Option<Frame>;

    /// Renews the subscribers. To be called periodically: one that is not renewed is sent nothing.
    fn renew(&mut self, now: Instant);

    /// Returns whether packets of a broadcast reach the relay's socket with the relay's own tags.
    fn retags(&self, broadcast: BroadcastIndex) -> bool;

    /// Returns the outcomes of packets that belong to no track.
    fn outcomes(&self) -> Outcomes;

    /// Returns the outcomes of the packets of each track of a broadcast, by alias.
    fn track_outcomes(&self, broadcast: BroadcastIndex) -> Vec<(u32, Outcomes)>;

    /// Returns the counts of a subscriber; `None` if they are not known.
    fn served(&self, broadcast: BroadcastIndex, session: u32) -> Option<Served>;
}
