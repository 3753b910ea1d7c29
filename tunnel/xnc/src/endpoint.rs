use crate::Config;
use crate::frame::{Frame, PacketBuffer};
use crate::liveness::{Event, Liveness};
use crate::path::PathState;
use crate::receiver::Receiver;
use crate::reorder_buffer::Packet;
use crate::sender::{Sender, Transmit};
use crate::sent_packets::Hint;
use crate::stats::{RejectReason, Stats};
use crate::timer::Timer;
use bytes::Bytes;
use hawser_units::{ByteSize, Ecn, Instant, PathId};

/// Returns whether a datagram is an acknowledgement or a ping, which carry no packet.
pub fn is_control(datagram: &[u8]) -> bool {
    datagram.first() == Some(&0)
}

/// One end of a session, which sends and receives packets over all of its paths.
///
/// A path is one QUIC connection, and has the same index at both ends. On every wake-up, the driver
/// 1. passes received datagrams to [`handle_datagram`](Endpoint::handle_datagram), takes packets
///    from [`poll_packet`](Endpoint::poll_packet) and passes those of the application to
///    [`handle_packet`](Endpoint::handle_packet),
/// 2. calls [`handle_timeout`](Endpoint::handle_timeout) if the time of
///    [`poll_timeout`](Endpoint::poll_timeout) has come,
/// 3. reports the state of each connection with [`update_path`](Endpoint::update_path), then passes
///    every [`poll_transmit`](Endpoint::poll_transmit) to its connection.
///
/// The driver also has to poll when QUIC acknowledgements open a window, because the endpoint
/// learns of them only from `update_path`.
#[derive(Debug)]
pub struct Endpoint {
    sender: Sender,
    receiver: Receiver,
    rejected: [u64; RejectReason::ALL.len()],
}

impl Endpoint {
    /// Creates an end without paths.
    pub fn new(config: Config) -> Self {
        Endpoint {
            receiver: Receiver::new(&config),
            sender: Sender::new(config),
            rejected: [0; RejectReason::ALL.len()],
        }
    }

    /// Adds a path, and replaces the one with the same index if there is any. The path is used
    /// after the first [`update_path`](Endpoint::update_path).
    pub fn add_path(&mut self, now: Instant, path: PathId) {
        self.sender.add_path(now, path);
        self.receiver.add_path(path);
    }

    /// Removes a path. Its transmissions in flight count as lost.
    pub fn remove_path(&mut self, now: Instant, path: PathId) {
        self.sender.remove_path(now, path);
        self.receiver.remove_path(path);
    }

    /// Updates the state of the path's QUIC connection.
    pub fn update_path(&mut self, path: PathId, state: PathState) {
        self.sender.update_path(path, state);
    }

    /// Returns whether a path delivers; `None` for a path that was not added.
    pub fn liveness(&self, now: Instant, path: PathId) -> Option<Liveness> {
        self.sender.liveness(now, path)
    }

    /// Returns the size of the largest packet that every path carries, in bytes; 0 without paths.
    /// This is the inner MTU.
    pub fn max_packet(&self) -> usize {
        self.sender.max_packet()
    }

    /// Returns the number of packets that wait for a path with window.
    pub fn waiting(&self) -> usize {
        self.sender.waiting()
    }

    /// Returns the bytes of the packets that this end stores, including the overhead of each.
    /// Packets that wait for [`poll_packet`](Endpoint::poll_packet) are not included.
    pub fn memory(&self) -> ByteSize {
        ByteSize(self.sender.memory() + self.receiver.memory())
    }

    /// Queues a packet of the application. A [`PacketBuffer`] is sent without being copied.
    ///
    /// # Errors
    /// [`RejectReason::Size`] or [`RejectReason::QueueFull`]. An accepted packet may be dropped
    /// later, if too many wait for a path.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: impl Into<PacketBuffer>,
        hint: Hint,
    ) -> Result<(), RejectReason> {
        let result = self.sender.handle_packet(now, packet, hint);
        self.count(result)
    }

    /// Handles a datagram that the QUIC connection of `path` received. `ecn` is the ECN field of the
    /// IP packet that brought it, if the driver can read it. A packet inside whose sender supports
    /// ECN gets the mark "congestion experienced".
    ///
    /// # Errors
    /// If the datagram is rejected.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: impl Into<Bytes>,
        ecn: Option<Ecn>,
    ) -> Result<(), RejectReason> {
        let datagram = datagram.into();
        let result = match Frame::parse(&datagram) {
            Err(_) => Err(RejectReason::Malformed),
            Ok(Frame::Packet(header, bytes)) => {
                self.sender.note_activity(now);
                let bytes = datagram.slice_ref(bytes);
                self.receiver.handle_packet(now, path, header, bytes, ecn)
            }
            Ok(Frame::Ping(number)) => self.receiver.handle_ping(now, path, number, ecn),
            Ok(Frame::Acks(blocks)) => self.sender.handle_acks(now, &blocks),
        };
        self.count(result)
    }

    /// Returns the next packet for the application.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        self.receiver.poll_packet()
    }

    /// Returns the next datagram to send. Acknowledgements come first, and are sent regardless of
    /// the window.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let Endpoint {
            sender, receiver, ..
        } = self;
        let rank = |id| sender.rank_for_acks(now, id);
        if let Some(ack) = receiver.poll_transmit(now, rank) {
            sender.count_ack(&ack);
            return Some(ack);
        }
        sender.poll_transmit(now)
    }

    /// Returns when to call [`handle_timeout`](Endpoint::handle_timeout) and
    /// [`poll_transmit`](Endpoint::poll_transmit) next, if nothing happens before.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.next_timer().map(|(at, _)| at)
    }

    /// Returns the time of [`poll_timeout`](Endpoint::poll_timeout), and the reason.
    pub fn next_timer(&mut self) -> Option<(Instant, Timer)> {
        let timers = [self.sender.next_timer(), self.receiver.next_timer()];
        timers.into_iter().flatten().min()
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now);
        self.receiver.handle_timeout(now);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.sender.poll_event()
    }

    /// Returns the counters since this end was created.
    pub fn stats(&self) -> Stats {
        Stats {
            sender: self.sender.stats(),
            receiver: self.receiver.stats(),
            rejected: self.rejected,
        }
    }

    fn count(&mut self, result: Result<(), RejectReason>) -> Result<(), RejectReason> {
        if let Err(reason) = result {
            self.rejected[reason as usize] += 1;
        }
        result
    }
}
