//! Where a viewer or a relay gets a broadcast.

use crate::Keyring;
use crate::probes::Probes;
use crate::sources::{Contact, Sources};
use anyhow::Context;
use hawser_io::clock;
use hawser_io::failures::{Change, Failures};
use hawser_io::peer::{PeerAddresses, connected_to};
use hawser_io::udp::UdpSocket;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

/// The longest time between two looks at whether to stop, and the pause between two attempts to find a source.
const STOP_POLL: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_secs(1);

/// The time between two looks at whether probes were answered.
const PROBE_POLL: Duration = Duration::from_millis(5);

/// The other end of a stream: at an address of the command line or a file, or at one that the controller names.
#[derive(Debug)]
pub struct Origin(Kind);

#[derive(Debug)]
enum Kind {
    Named(PeerAddresses),
    Track(Sources, Box<Probes>),
}

impl Origin {
    /// Takes host and port, or nothing if the controller says where.
    ///
    /// # Errors
    /// If the name is not `HOST:PORT`.
    pub fn parse(name: Option<&str>) -> anyhow::Result<Self> {
        let named = name.map(PeerAddresses::parse).transpose()?;
        let kind = named.map_or_else(
            || Kind::Track(Sources::default(), Box::default()),
            Kind::Named,
        );
        Ok(Origin(kind))
    }

    /// Opens a socket to the first address to which there is a route. Waits until there is one. Returns `None` if
    /// `is_over` before.
    pub fn find(
        &mut self,
        keyring: &Keyring,
        is_over: impl Fn() -> bool,
    ) -> Option<(UdpSocket, SocketAddr)> {
        if let Kind::Named(addresses) = &mut self.0 {
            return addresses.find(is_over);
        }
        let mut failures = Failures::default();
        while !is_over() {
            while self.prepare(keyring) {
                thread::sleep(PROBE_POLL);
            }
            let failed = match self.connect() {
                Ok(found) => return Some(found),
                Err(failed) => failed,
            };
            if let Some(Change::Failed(failed)) = failures.record(Err::<(), _>(failed)) {
                tracing::warn!("{failed:#}; trying again until it works");
            }
            keyring.ask_now();
            let until = clock::monotonic() + PAUSE;
            while clock::monotonic() < until && !is_over() {
                thread::sleep(STOP_POLL);
                if self.follow(keyring) {
                    break;
                }
            }
        }
        None
    }

    /// Takes what the controller says, and measures the delays of sources. Returns whether it is better to call this
    /// again before [`Origin::connect`].
    pub fn prepare(&mut self, keyring: &Keyring) -> bool {
        self.follow(keyring);
        self.probe(keyring, None)
    }

    /// Takes what the controller says. Returns whether it is news.
    fn follow(&mut self, keyring: &Keyring) -> bool {
        let Kind::Track(sources, _) = &mut self.0 else {
            return false;
        };
        let news = keyring.poll_sources();
        let is_news = news.is_some();
        news.into_iter().for_each(|list| sources.replace(list));
        is_news
    }

    /// Tries another address next, if there are several, because this one does not answer.
    pub fn pass_over(&mut self, address: SocketAddr) {
        match &mut self.0 {
            Kind::Named(addresses) => addresses.pass_over(),
            Kind::Track(sources, _) => sources.fail(clock::monotonic(), address),
        }
    }

    /// Records that a source has ended the session. Returns whether the controller names another one to ask at once.
    pub fn was_left_by(&mut self, address: SocketAddr) -> bool {
        let (Kind::Track(sources, _), now) = (&mut self.0, clock::monotonic()) else {
            return false;
        };
        sources.fail(now, address);
        sources.has_other(now, address)
    }

    /// Looks for other addresses of the host, unless the controller names the addresses.
    pub fn refresh(&mut self) {
        if let Kind::Named(addresses) = &mut self.0 {
            addresses.refresh();
        }
    }

    /// Opens a socket to the next address to which there is a route.
    ///
    /// # Errors
    /// If there is no route, or no address is known.
    pub fn connect(&mut self) -> anyhow::Result<(UdpSocket, SocketAddr)> {
        let sources = match &mut self.0 {
            Kind::Named(addresses) => return addresses.connect(),
            Kind::Track(sources, _) => sources,
        };
        let now = clock::monotonic();
        let next = sources.next(now);
        let next = next.context("the controller knows nobody who serves the track at present")?;
        match connected_to(next) {
            Ok(socket) => Ok((socket, next)),
            Err(error) => {
                sources.fail(now, next);
                Err(error)
            }
        }
    }

    /// Measures the delays of sources. Returns whether answers are worth waiting for.
    fn probe(&mut self, keyring: &Keyring, contact: Option<&Contact>) -> bool {
        let Kind::Track(sources, probes) = &mut self.0 else {
            return false;
        };
        probes.receive(|address, delay| sources.answered(address, delay));
        while let Some(address) = sources.poll_probe(clock::monotonic(), contact) {
            let Some(access) = keyring.access() else {
                break;
            };
            if let Err(error) = probes.send(address, access) {
                tracing::debug!(%address, "cannot probe: {error:#}");
            }
        }
        sources.awaits_answer(clock::monotonic())
    }

    /// Returns whether to request a session with another source that the controller names, because this one does
    /// not answer or has lost the stream. It is passed over then. Called often: it also measures delays.
    pub fn has_to_leave(&mut self, keyring: &Keyring, contact: &Contact) -> bool {
        self.follow(keyring);
        self.probe(keyring, Some(contact));
        let (Kind::Track(sources, _), now) = (&mut self.0, clock::monotonic()) else {
            return false;
        };
        let leaves = sources.has_to_leave(now, contact);
        if leaves {
            tracing::warn!(source = %contact.address, "no answer or no media; asking another source of the track");
            sources.fail(now, contact.address);
            keyring.ask_now();
        }
        leaves
    }

    /// Opens a socket to the relay from which a viewer that has the stream from this address should rather get it.
    pub fn better(&mut self, current: SocketAddr) -> Option<(UdpSocket, SocketAddr)> {
        let (Kind::Track(sources, _), now) = (&mut self.0, clock::monotonic()) else {
            return None;
        };
        let better = sources.better(now, current)?;
        let connected = connected_to(better).inspect_err(|_| sources.fail(now, better));
        Some((connected.ok()?, better))
    }
}
