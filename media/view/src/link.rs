//! A session with one who serves the stream, and its socket.

use crate::session::Session;
use crate::summary::Received;
use anyhow::Context;
use hawser_io::clock::SteadyClock;
use hawser_io::failures::Kinds;
use hawser_io::udp::{self, UdpSocket};
use hawser_keys::Contact;
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_units::{Ecn, Instant};
use std::io;
use std::net::SocketAddr;

/// A session with a publisher or a relay, and its socket.
pub(crate) struct Link {
    pub(crate) publisher: SocketAddr,
    pub(crate) socket: UdpSocket,
    pub(crate) session: Session,
    /// The time at which the newest datagram was handled.
    handled: Instant,
    /// The arrival of the newest authentic datagram.
    pub(crate) heard: Instant,
    /// The beginning of the request for the session.
    pub(crate) asked: Instant,
    /// Whether the network has said that nobody receives at the address since the newest authentic datagram.
    is_refused: bool,
    /// The last error of the network on the way to the publisher.
    pub(crate) unreachable: Option<String>,
}

impl Link {
    /// Takes a socket that is connected to the address, and a session that is requested there.
    pub(crate) fn new(
        now: Instant,
        (socket, publisher): (UdpSocket, SocketAddr),
        session: Session,
    ) -> Self {
        Link {
            publisher,
            socket,
            session,
            handled: now,
            heard: now,
            asked: now,
            is_refused: false,
            unreachable: None,
        }
    }

    /// Takes the datagrams that have arrived.
    pub(crate) fn receive(
        &mut self,
        clock: SteadyClock,
        received: &mut Received,
    ) -> anyhow::Result<()> {
        let Link {
            socket,
            session,
            handled,
            heard,
            is_refused,
            ..
        } = self;
        let taken = socket.receive(|datagram| {
            if datagram.bytes.len() > DEFAULT_DATAGRAM {
                received.refused.too_long += 1;
                return;
            }
            // Never before what was handled already, whatever happens to the time of day.
            *handled = (clock.now() - datagram.age).max(*handled);
            let viewer = &mut session.viewer;
            match viewer.handle_datagram(*handled, datagram.bytes, datagram.ecn) {
                Ok(()) => {
                    *heard = *handled;
                    *is_refused = false;
                    received.longest = received.longest.max(datagram.bytes.len());
                }
                Err(error) => tracing::debug!("datagram refused: {error}"),
            }
        });
        match taken {
            Ok(_) => Ok(()),
            // The network says that the publisher cannot be reached at the moment.
            Err(error) if udp::is_of_a_peer(&error) => {
                received.unreachable += 1;
                self.unreachable = Some(error.to_string());
                self.handle_error(clock, &error);
                Ok(())
            }
            Err(error) => Err(error).context("cannot receive"),
        }
    }

    /// Sends what is due. `errors` are the kinds of errors that have occurred.
    pub(crate) fn transmit(
        &mut self,
        clock: SteadyClock,
        received: &mut Received,
        errors: &mut Kinds,
    ) {
        while let Some(message) = self.session.viewer.poll_transmit(clock.now()) {
            if let Err(error) = self.socket.send(self.publisher, Ecn::NotEct, &message) {
                // Messages are repeated, and reports follow each other.
                self.handle_error(clock, &error);
                received.send_failures += 1;
                if errors.is_new(&error) {
                    tracing::warn!(publisher = %self.publisher, "cannot send: {error}; further such errors are counted only");
                }
            }
        }
    }

    /// Takes an error of the network.
    fn handle_error(&mut self, clock: SteadyClock, error: &io::Error) {
        if udp::is_refused(error) {
            self.is_refused = true;
            self.session.viewer.handle_refused(clock.now());
        }
    }

    /// Returns the state for the choice of a source.
    pub(crate) fn contact(&self, now: Instant, wants_media: bool) -> Contact {
        let receiver = self.session.viewer.receiver();
        Contact {
            address: self.publisher,
            is_open: self.session.is_open(),
            is_refused: self.is_refused,
            silence: now.saturating_since(self.heard.max(self.asked)),
            packets: receiver.map_or(0, |receiver| receiver.totals().packets),
            wants_media,
        }
    }

    /// Adds the counts to those of all sessions.
    pub(crate) fn add_to(&self, received: &mut Received) {
        received.kernel_drops += u64::from(self.socket.drops().unwrap_or_default());
        received.add(&self.session.viewer, self.session.assembler.stats());
        received.add_sound(&self.session.sound);
    }
}
