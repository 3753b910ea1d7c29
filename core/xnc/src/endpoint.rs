use crate::config::Config;
use crate::path::PathState;
use crate::pool::Hint;
use crate::receiver::{Ecn, Receiver};
use crate::release::Packet;
use crate::sender::{Event, Sender, Transmit};
use crate::stats::{Refused, Stats};
use hawser_units::{ByteSize, Instant, PathId};
use hawser_wire::xnc::Frame;

/// Whether a datagram is of the ends' own, an acknowledgement or a ping, and carries no packet that would be kept.
pub fn is_control(datagram: &[u8]) -> bool {
    datagram.first() == Some(&0)
}

/// One end of a session: sends and receives packets over all of its paths.
///
/// A path is one QUIC connection, and has the same index at both ends. Its driver, on every wake-up:
/// 1. tells what the connections received ([`handle_datagram`](Endpoint::handle_datagram)), takes the packets out
///    ([`poll_packet`](Endpoint::poll_packet)) and puts those of the application in
///    ([`handle_packet`](Endpoint::handle_packet)),
/// 2. calls [`handle_timeout`](Endpoint::handle_timeout) when [`poll_timeout`](Endpoint::poll_timeout) has come,
/// 3. tells the state of each connection ([`update_path`](Endpoint::update_path)), then hands every
///    [`poll_transmit`](Endpoint::poll_transmit) to its connection.
///
/// It must also be polled when QUIC acknowledgements open a window, about which this endpoint hears from `update_path`
/// alone.
#[derive(Debug)]
pub struct Endpoint {
    sender: Sender,
    receiver: Receiver,
    refused: [u64; Refused::ALL.len()],
}

impl Endpoint {
    /// An end without paths.
    pub fn new(config: Config) -> Self {
        Endpoint {
            receiver: Receiver::new(&config),
            sender: Sender::new(config),
            refused: [0; Refused::ALL.len()],
        }
    }

    /// A path appears; one that has its index is replaced. It is used from the first
    /// [`update_path`](Endpoint::update_path) on.
    pub fn add_path(&mut self, now: Instant, path: PathId) {
        self.sender.add_path(now, path);
        self.receiver.add_path(path);
    }

    /// A path vanishes: what is under way over it counts as lost.
    pub fn remove_path(&mut self, now: Instant, path: PathId) {
        self.sender.remove_path(now, path);
        self.receiver.remove_path(path);
    }

    /// Tells what the path's QUIC connection says.
    pub fn update_path(&mut self, _now: Instant, path: PathId, state: PathState) {
        self.sender.update_path(path, state);
    }

    /// The largest packet that every path carries, in bytes; 0 without paths. The inner MTU.
    pub fn max_packet(&self) -> usize {
        self.sender.max_packet()
    }

    /// Packets that wait for a path with window.
    pub fn waiting(&self) -> usize {
        self.sender.waiting()
    }

    /// Bytes of packets that this end keeps, with what each costs besides; not those that nobody has taken out yet.
    pub fn memory(&self) -> ByteSize {
        ByteSize(self.sender.memory() + self.receiver.memory())
    }

    /// Takes a packet of the application.
    ///
    /// # Errors
    /// When it is not taken: [`Refused::Size`] or [`Refused::QueueFull`]. One that is taken may be dropped later, if too much
    /// waits for a path.
    pub fn handle_packet(
        &mut self,
        now: Instant,
        packet: Vec<u8>,
        hint: Hint,
    ) -> Result<(), Refused> {
        let result = self.sender.handle_packet(now, packet, hint);
        self.count(result)
    }

    /// Takes a datagram that the QUIC connection of `path` received.
    ///
    /// # Errors
    /// When it is refused.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: &[u8],
        ecn: Ecn,
    ) -> Result<(), Refused> {
        let result = match Frame::parse(datagram) {
            Err(_) => Err(Refused::Malformed),
            Ok(Frame::Packet(header, bytes)) => {
                self.sender.stir(now);
                self.receiver.handle_packet(now, path, header, bytes, ecn)
            }
            Ok(Frame::Ping(number)) => self.receiver.handle_ping(now, path, number, ecn),
            Ok(Frame::Acks(blocks)) => self.sender.handle_acks(now, &blocks),
        };
        self.count(result)
    }

    /// The next packet for the application.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        self.receiver.poll_packet()
    }

    /// The next datagram that is to be sent now. Acknowledgements come first, and are sent whether there is window or not.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let Endpoint {
            sender, receiver, ..
        } = self;
        let rank = |id| {
            let path = sender.paths().get(id)?;
            Some((
                (path.silent, path.state.rtt.smoothed),
                path.state.datagram_size,
            ))
        };
        if let Some(ack) = receiver.poll_transmit(now, rank) {
            sender.count_ack(&ack);
            return Some(ack);
        }
        sender.poll_transmit(now)
    }

    /// When [`handle_timeout`](Endpoint::handle_timeout) and [`poll_transmit`](Endpoint::poll_transmit) are to be called
    /// next, if nothing happens before.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.sender
            .poll_timeout()
            .into_iter()
            .chain(self.receiver.poll_timeout())
            .min()
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.sender.handle_timeout(now);
        self.receiver.handle_timeout(now);
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.sender.poll_event()
    }

    /// What this end did since it began.
    pub fn stats(&self) -> Stats {
        Stats {
            sender: self.sender.stats(),
            receiver: self.receiver.stats(),
            refused: self.refused,
        }
    }

    fn count(&mut self, result: Result<(), Refused>) -> Result<(), Refused> {
        if let Err(reason) = result {
            self.refused[reason as usize] += 1;
        }
        result
    }
}
