//! The packets over one uplink.

use super::datagram::{Datagram, HEADERS, Key, Kind, LENGTH};
use super::{Uplink, say};
use anyhow::{Context, Result, ensure};
use hawser_io::interface::addresses_of;
use hawser_io::sockopt::{self, MtuDiscovery};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// The largest burst after a delay of this process.
const MAX_BURST: Duration = Duration::from_millis(20);

/// The time for which sending fails before the uplink counts as not there, and between attempts to open it again.
const REOPEN: Duration = Duration::from_millis(100);

/// A flow to the receiving end.
pub(super) struct Flow {
    uplink: Uplink,
    number: u8,
    to: SocketAddr,
    socket: UdpSocket,
    /// The time between two packets with data, and when the next one is due after the first.
    interval: Duration,
    due: Duration,
    /// The smallest round trip of the probes.
    pub(super) round_trip: Option<Duration>,
    absence: Option<Absence>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    /// Packets with data that were sent.
    sent: u64,
    /// Packets for which the device had no room.
    refused: u64,
    /// Packets that were due while this process could not run.
    late: u64,
    /// For how long the uplink was not there.
    away: Duration,
}

/// The time since which nothing can be sent.
struct Absence {
    since: Instant,
    reopen: Instant,
    is_told: bool,
}

impl Flow {
    /// Opens the flow of the uplink `number`.
    ///
    /// # Errors
    /// If there is no such interface, or no route over it.
    pub(super) fn open(uplink: &Uplink, number: u8, to: SocketAddr) -> Result<Flow> {
        let packet = (LENGTH + HEADERS) as f64 * 8.0;
        Ok(Flow {
            uplink: uplink.clone(),
            number,
            to,
            socket: open(&uplink.interface, to)?,
            interval: Duration::from_secs_f64(packet / uplink.rate.bps() as f64),
            due: Duration::ZERO,
            round_trip: None,
            absence: None,
            counters: Counters::default(),
        })
    }

    /// Returns the name of the interface.
    pub(super) fn interface(&self) -> &str {
        &self.uplink.interface
    }

    /// Sends the packets with data that are due `at` after the first.
    pub(super) fn send_due(&mut self, at: Duration, head: &Datagram, key: &Key) {
        let earliest = at.saturating_sub(MAX_BURST);
        if self.due < earliest {
            if self.absence.is_none() {
                let late = (earliest - self.due).as_nanos() / self.interval.as_nanos();
                self.counters.late += late as u64;
            }
            self.due = earliest;
        }
        while self.due <= at {
            self.due += self.interval;
            let number = self.counters.sent + 1;
            let round_trip = self.round_trip.unwrap_or_default();
            let data = Datagram {
                kind: Kind::Data,
                number,
                time_ns: round_trip.as_nanos() as u64,
                ..*head
            };
            match self.send(&data, key) {
                Outcome::Sent => self.counters.sent = number,
                Outcome::NoRoom => self.counters.refused += 1,
                Outcome::Failed => return,
            }
        }
    }

    /// Sends a datagram as one of this uplink. If that fails for long, opens the socket again: a modem that attaches again
    /// has another address.
    pub(super) fn send(&mut self, datagram: &Datagram, key: &Key) -> Outcome {
        let datagram = Datagram {
            uplink: self.number,
            ..*datagram
        };
        let bytes = datagram.emit(key);
        let mut sent = self.socket.send(&bytes);
        if matches!(&sent, Err(error) if error.kind() == ErrorKind::ConnectionRefused) {
            // This is about an earlier datagram, and this one was not sent.
            sent = self.socket.send(&bytes);
        }
        match sent {
            Ok(_) => {
                self.end_absence();
                Outcome::Sent
            }
            // ENOBUFS has no kind of its own.
            Err(error)
                if error.kind() == ErrorKind::WouldBlock
                    || error.raw_os_error() == Some(Errno::ENOBUFS as i32) =>
            {
                Outcome::NoRoom
            }
            Err(error) => {
                self.retry(&error);
                Outcome::Failed
            }
        }
    }

    fn retry(&mut self, error: &io::Error) {
        let now = Instant::now();
        let absence = self.absence.get_or_insert(Absence {
            since: now,
            reopen: now + REOPEN,
            is_told: false,
        });
        if now < absence.reopen {
            return;
        }
        absence.reopen = now + REOPEN;
        if !absence.is_told {
            absence.is_told = true;
            say(format!("{} is not there: {error}", self.uplink.interface));
        }
        // The next attempt follows an error.
        if let Ok(socket) = open(&self.uplink.interface, self.to) {
            self.socket = socket;
        }
    }

    fn end_absence(&mut self) {
        let Some(absence) = self.absence.take().filter(|absence| absence.is_told) else {
            return;
        };
        let lasted = absence.since.elapsed();
        self.counters.away += lasted;
        let interface = &self.uplink.interface;
        say(format!("{interface} is there again after {lasted:.1?}"));
    }

    /// Returns for how long the uplink has not been there so far.
    pub(super) fn away(&self) -> Duration {
        let absence = self.absence.as_ref().filter(|absence| absence.is_told);
        self.counters.away + absence.map_or(Duration::ZERO, |absence| absence.since.elapsed())
    }

    /// Returns the next answer that has arrived. Errors of the socket are also those of sending.
    pub(super) fn receive(&self, key: &Key) -> Option<Datagram> {
        let mut buffer = [0; LENGTH];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let answer = Datagram::parse(&buffer[..length], key);
            if answer.is_some() {
                return answer;
            }
        }
        None
    }

    /// Returns the descriptor of the socket.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns a line about what was sent.
    pub(super) fn summary(&self) -> String {
        let Counters {
            sent,
            refused,
            late,
            ..
        } = self.counters;
        format!(
            "{}: {sent} packets sent, {refused} not taken by the device, {late} not sent because this machine was too \
             slow, {:.1} s without the interface, its address or its route, round trip {:.1?}\n",
            self.uplink.interface,
            self.away().as_secs_f64(),
            self.round_trip.unwrap_or_default()
        )
    }
}

/// The outcome of sending a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The device has it.
    Sent,
    /// The device has no room for it.
    NoRoom,
    /// Nothing can be sent now.
    Failed,
}

fn open(interface: &str, to: SocketAddr) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    socket
        .bind_device(Some(interface.as_bytes()))
        .with_context(|| format!("cannot use the interface {interface}"))?;
    socket.connect(&to.into()).with_context(|| {
        format!("cannot reach {to} over {interface}: it needs a route of its own")
    })?;
    let socket = UdpSocket::from(socket);
    // The kernel sends over an interface without an address, from that of another one.
    ensure!(
        addresses_of(interface)?.contains(&socket.local_addr()?.ip()),
        "{interface} has no address to reach {to} from"
    );
    socket.set_nonblocking(true)?;
    // Packets of one size for the whole collection, whatever routers say.
    sockopt::set_mtu_discovery(&socket, to.is_ipv6(), MtuDiscovery::Dont)?;
    Ok(socket)
}
