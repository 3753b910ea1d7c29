//! The search for a nearer server while a session works.

use super::command::{CloseReason, ConnectionId, Dialed, Outbox, Timer};
use super::search::{Search, Target};
use super::{Server, Uplink};
use hawser_units::Instant;
use std::time::Duration;

/// The gain of round-trip time for which a session moves to another server: this much, and this
/// share of the current one. Round trips over radio links vary by as much.
const MIN_GAIN: Duration = Duration::from_millis(10);
const MIN_GAIN_SHARE: f64 = 0.25;

/// The time that the current server has to answer the dial of a search, with which the others are
/// compared. It is enough for the two or three round trips of a handshake over satellite, and less
/// than the 3 s that a server with many handshakes gives the connection that was found to be used.
const CURRENT_LIMIT: Duration = Duration::from_secs(2);

/// Regular searches among all servers over the cheapest uplinks. A session moves to a server that
/// two searches in a row have found to be clearly nearer than its own.
#[derive(Debug)]
pub(crate) struct Survey {
    interval: Duration,
    next: Instant,
    search: Option<Search>,
    /// The nearer server that the last search has found.
    candidate: Option<String>,
}

impl Survey {
    pub(crate) fn new(now: Instant, interval: Duration) -> Survey {
        Survey {
            interval,
            next: now + interval,
            search: None,
            candidate: None,
        }
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Begins and ends searches. Returns a connection to the server to which the session of
    /// `current` should move.
    pub(crate) fn drive(
        &mut self,
        now: Instant,
        usable: &[Uplink],
        servers: &[Server],
        current: &Server,
        out: &mut Outbox,
    ) -> Option<Target> {
        let cheapest = usable.iter().map(|uplink| uplink.cost).min();
        let uplinks = usable.iter().filter(|uplink| Some(uplink.cost) == cheapest);
        let uplinks: Vec<_> = uplinks.cloned().collect();
        match &mut self.search {
            Some(search) => search.retain(&uplinks, out),
            None if now >= self.next => self.begin(now, &uplinks, servers, current, out),
            None => {}
        }
        let search = self.search.take_if(|search| search.is_done(now))?;
        self.next = now + self.interval;
        let of_current = search.rtt(current);
        let found = search.finish(out);
        self.judge(found, current, of_current, out)
    }

    fn begin(
        &mut self,
        now: Instant,
        uplinks: &[Uplink],
        servers: &[Server],
        current: &Server,
        out: &mut Outbox,
    ) {
        self.next = now + self.interval;
        let others = servers.iter().filter(|server| *server != current);
        let mut servers: Vec<_> = others.cloned().collect();
        if servers.is_empty() || uplinks.is_empty() {
            return;
        }
        servers.push(current.clone());
        let mut search = Search::new(servers, None);
        search.await_answer(current.clone(), now + CURRENT_LIMIT);
        search.dial(uplinks, out);
        self.search = Some(search);
    }

    /// Returns the server that was found if it is nearer for the second time.
    fn judge(
        &mut self,
        found: Option<(Target, Duration)>,
        current: &Server,
        of_current: Option<Duration>,
        out: &mut Outbox,
    ) -> Option<Target> {
        let before = self.candidate.take();
        let (target, rtt) = found?;
        let is_nearer = target.server != *current && is_nearer(rtt, of_current);
        if is_nearer && before.as_ref() == Some(&target.server.name) {
            return Some(target);
        }
        out.close(target.connection, CloseReason::Unused);
        self.candidate = is_nearer.then_some(target.server.name);
        None
    }

    /// Handles the outcome of a dial; returns whether it was one of a search.
    pub(crate) fn handle_dialed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        dialed: Option<Dialed>,
        out: &mut Outbox,
    ) -> bool {
        match &mut self.search {
            Some(search) => search.handle_dialed(now, connection, dialed, out),
            None => false,
        }
    }

    /// Ends a search without a result. The next one begins an interval later.
    pub(crate) fn postpone(&mut self, now: Instant, out: &mut Outbox) {
        if let Some(search) = self.search.take() {
            search.abandon(out);
        }
        self.candidate = None;
        self.next = now + self.interval;
    }

    /// Returns when there is something to do.
    pub(crate) fn timeout(&self) -> Option<(Instant, Timer)> {
        match &self.search {
            Some(search) => search.timeout(),
            None => Some((self.next, Timer::Survey)),
        }
    }
}

/// Returns whether a round-trip time is clearly shorter than that to the current server. That is
/// none if it has not answered in time: packets of its handshake were lost, because its session works.
fn is_nearer(rtt: Duration, of_current: Option<Duration>) -> bool {
    of_current.is_some_and(|of_current| {
        rtt + MIN_GAIN.max(of_current.mul_f64(MIN_GAIN_SHARE)) <= of_current
    })
}
