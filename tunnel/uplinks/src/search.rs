//! The search for the nearest server.

use super::command::{CloseReason, ConnectionId, DialReason, Dialed, Outbox, Timer};
use super::{Server, Uplink};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The time that nearer servers get to answer after another one.
pub const GRACE: Duration = Duration::from_millis(100);

/// The two ends of a dialed connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) connection: ConnectionId,
    pub(crate) uplink: Uplink,
    pub(crate) server: Server,
    /// The address of the server that has answered, if one has.
    pub(crate) remote: Option<SocketAddr>,
}

impl Target {
    /// Returns the address from which an uplink would send to the server's that has answered.
    pub(crate) fn own(&self, uplink: &Uplink) -> Option<IpAddr> {
        uplink.own(self.remote?)
    }
}

/// A search: all servers are dialed over all uplinks at once. Of the servers that answer within
/// [`GRACE`] of each other, the one with the lowest round-trip time is chosen. The answer of one of
/// them can be awaited for longer.
#[derive(Debug)]
pub(crate) struct Search {
    servers: Vec<Server>,
    /// An uplink that is used only if there are no others.
    avoided: Option<String>,
    /// A server whose answer is awaited until this time.
    awaited: Option<(Server, Instant)>,
    dials: BTreeMap<ConnectionId, Target>,
    /// The smallest round-trip time to each server that has answered, by its name.
    rtts: BTreeMap<String, Duration>,
    best: Option<Found>,
}

/// The nearest server that has answered so far.
#[derive(Debug)]
struct Found {
    target: Target,
    rtt: Duration,
    until: Instant,
}

impl Search {
    pub(crate) fn new(servers: Vec<Server>, avoided: Option<String>) -> Search {
        Search {
            servers,
            avoided,
            awaited: None,
            dials: BTreeMap::new(),
            rtts: BTreeMap::new(),
            best: None,
        }
    }

    /// Waits for the first answer of a server until this time, also if others have answered before.
    pub(crate) fn await_answer(&mut self, server: Server, until: Instant) {
        self.awaited = Some((server, until));
    }

    /// Dials all servers over all uplinks, except those that are being dialed.
    pub(crate) fn dial(&mut self, usable: &[Uplink], out: &mut Outbox) {
        let is_avoided = |uplink: &Uplink| self.avoided.as_ref() == Some(&uplink.interface);
        let are_others = usable.iter().any(|uplink| !is_avoided(uplink));
        for uplink in usable.iter().filter(|u| !(are_others && is_avoided(u))) {
            for server in &self.servers {
                let is_dialed =
                    |target: &Target| target.uplink.is_like(uplink) && target.server == *server;
                if self.dials.values().any(is_dialed) {
                    continue;
                }
                let connection = out.dial(uplink, server, DialReason::Search);
                let (uplink, server) = (uplink.clone(), server.clone());
                let target = Target {
                    connection,
                    uplink,
                    server,
                    remote: None,
                };
                self.dials.insert(connection, target);
            }
        }
    }

    /// Closes the connections over uplinks that are not usable any more, or not as they were.
    pub(crate) fn retain(&mut self, usable: &[Uplink], out: &mut Outbox) {
        let stays = |target: &Target| usable.iter().any(|uplink| uplink.is_like(&target.uplink));
        if self.best.as_ref().is_some_and(|best| !stays(&best.target)) {
            self.replace_best(None, out);
        }
        self.dials.retain(|connection, target| {
            let stays = stays(target);
            if !stays {
                out.close(*connection, CloseReason::Unused);
            }
            stays
        });
    }

    /// Handles the outcome of a dial: the connection, or none. Returns whether it was one of this
    /// search.
    pub(crate) fn handle_dialed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        dialed: Option<Dialed>,
        out: &mut Outbox,
    ) -> bool {
        let Some(mut target) = self.dials.remove(&connection) else {
            return false;
        };
        let Some(Dialed { rtt, remote, mtu }) = dialed else {
            return true;
        };
        target.remote = Some(remote);
        target.uplink.mtu = mtu;
        let smallest = self.rtts.entry(target.server.name.clone()).or_insert(rtt);
        *smallest = rtt.min(*smallest);
        let until = now + GRACE;
        match &mut self.best {
            Some(best) if best.rtt <= rtt => {
                best.until = until;
                out.close(connection, CloseReason::Unused);
            }
            _ => self.replace_best(Some(Found { target, rtt, until }), out),
        }
        true
    }

    fn replace_best(&mut self, best: Option<Found>, out: &mut Outbox) {
        if let Some(before) = std::mem::replace(&mut self.best, best) {
            out.close(before.target.connection, CloseReason::Unused);
        }
    }

    /// Returns the smallest round-trip time to a server, if it has answered.
    pub(crate) fn rtt(&self, server: &Server) -> Option<Duration> {
        self.rtts.get(&server.name).copied()
    }

    /// Returns whether the search is done.
    pub(crate) fn is_done(&self, now: Instant) -> bool {
        self.dials.is_empty() || self.end().is_some_and(|end| now >= end)
    }

    /// Returns when the search is done at the latest, once a server has answered.
    pub(crate) fn timeout(&self) -> Option<(Instant, Timer)> {
        Some((self.end()?, Timer::Grace))
    }

    fn end(&self) -> Option<Instant> {
        let until = self.best.as_ref()?.until;
        Some(match &self.awaited {
            Some((server, awaited_until)) if self.may_answer_first(server) => {
                until.max(*awaited_until)
            }
            _ => until,
        })
    }

    /// Returns whether a server has not answered yet and is being dialed.
    fn may_answer_first(&self, server: &Server) -> bool {
        let is_dialed = || self.dials.values().any(|target| target.server == *server);
        self.rtt(server).is_none() && is_dialed()
    }

    /// Ends the search; returns the nearest server that has answered, with its round-trip time.
    pub(crate) fn finish(mut self, out: &mut Outbox) -> Option<(Target, Duration)> {
        let best = self.best.take();
        self.abandon(out);
        best.map(|best| (best.target, best.rtt))
    }

    /// Ends the search without a result.
    pub(crate) fn abandon(mut self, out: &mut Outbox) {
        self.replace_best(None, out);
        for connection in self.dials.into_keys() {
            out.close(connection, CloseReason::Unused);
        }
    }
}
