//! One uplink of a session: its path, and the attempt to make one.

use super::command::{CloseReason, Command, ConnectionId, DialReason, Dialed, Outbox, Timer};
use super::indices::Indices;
use super::reachability::{FAILED_AFTER, Monitor, Reachability};
use super::{Server, Uplink};
use hawser_units::{Backoff, Instant, PathId};
use std::net::SocketAddr;
use std::time::Duration;

/// The pauses between attempts of one uplink to join the session.
const RETRY: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// The pause after an attempt to replace a path by one with another MTU has failed: the packets may be
/// too large for the network behind the uplink.
const MTU_RETRY: Duration = Duration::from_secs(30);

/// The time that the answer to a join over a redialed connection gets: longer than the driver waits,
/// which then knows that full packets do not arrive.
const ANSWER_TIME: Duration = Duration::from_secs(6);

/// The state of a session that its uplinks share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) server: Server,
    pub(crate) indices: Indices,
    /// Whether packets wait for a path at the server.
    pub(crate) server_backlog: bool,
}

/// The surroundings of an uplink while it handles an event.
pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) shared: &'a mut Shared,
    pub(crate) out: &'a mut Outbox,
}

/// A path of the session.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) connection: ConnectionId,
    pub(crate) index: PathId,
    /// The uplink with the addresses that the connection uses.
    pub(crate) uplink: Uplink,
    /// The address of the server that the connection uses.
    remote: SocketAddr,
    /// The MTU of the uplink with which the connection was made.
    mtu: u16,
    pub(crate) standby: bool,
    pub(crate) monitor: Monitor,
    /// The bytes of the connection that the usage contains.
    counted_bytes: u64,
}

impl Path {
    pub(crate) fn new(
        connection: ConnectionId,
        index: PathId,
        (uplink, remote): (Uplink, SocketAddr),
        standby: bool,
    ) -> Path {
        Path {
            connection,
            index,
            mtu: uplink.mtu,
            uplink,
            remote,
            standby,
            monitor: Monitor::new(),
            counted_bytes: 0,
        }
    }

    /// Returns the bytes carried since the last call, given all bytes of the connection.
    pub(crate) fn count(&mut self, bytes: u64) -> u64 {
        let more = bytes.saturating_sub(self.counted_bytes);
        self.counted_bytes = self.counted_bytes.max(bytes);
        more
    }
}

/// A connection that is to become the path of an uplink.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) connection: ConnectionId,
    /// The uplink as it was dialed.
    uplink: Uplink,
    /// The path, once the server was asked to let it join.
    joining: Option<Joining>,
    /// The time at which the attempt is given up here; other ones are given up by the dialer.
    until: Option<Instant>,
}

/// A path that the server is asked to let join.
#[derive(Debug)]
struct Joining {
    index: PathId,
    /// The address of the server that has answered.
    remote: SocketAddr,
    standby: bool,
}

/// An uplink of the session.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) uplink: Uplink,
    pub(crate) path: Option<Path>,
    attempt: Option<Attempt>,
    /// Grows with every attempt that fails until a path delivers.
    backoff: Backoff,
    /// The time of the next attempt while there is no path, or one with another MTU than the uplink's.
    retry_at: Instant,
    /// Whether the path is to be replaced now.
    redial: bool,
}

impl Member {
    pub(crate) fn new(now: Instant, uplink: Uplink) -> Member {
        Member {
            uplink,
            path: None,
            attempt: None,
            backoff: RETRY,
            retry_at: now,
            redial: false,
        }
    }

    /// Returns the indices of the path and of the attempt.
    pub(crate) fn indices(&self) -> impl Iterator<Item = PathId> {
        let attempt = self.attempt.as_ref();
        let joining = attempt.and_then(|attempt| attempt.joining.as_ref());
        let path = self.path.as_ref().map(|path| path.index);
        path.into_iter().chain(joining.map(|joining| joining.index))
    }

    pub(crate) fn has_attempt(&self, connection: ConnectionId) -> bool {
        self.attempt
            .as_ref()
            .is_some_and(|attempt| attempt.connection == connection)
    }

    pub(crate) fn has_path(&self, connection: ConnectionId) -> bool {
        self.path
            .as_ref()
            .is_some_and(|path| path.connection == connection)
    }

    /// Takes over a change of the uplink.
    pub(crate) fn update(&mut self, cx: &mut Context<'_>, uplink: &Uplink) {
        if self.uplink == *uplink {
            return;
        }
        self.uplink = uplink.clone();
        self.retry_at = cx.now;
        let is_stale = |attempt: &Attempt| {
            let server = &cx.shared.server;
            attempt.joining.is_none() && attempt.uplink.route(server) != uplink.route(server)
        };
        if self.attempt.as_ref().is_some_and(is_stale) {
            self.abandon_attempt(cx);
        }
        self.match_address(cx);
    }

    /// Moves the path to the current address of the uplink, or gives it up if it needs a new
    /// connection.
    fn match_address(&mut self, cx: &mut Context<'_>) {
        let Some(path) = &mut self.path else {
            return;
        };
        match (path.uplink.own(path.remote), self.uplink.own(path.remote)) {
            (old, Some(address)) => {
                path.uplink = self.uplink.clone();
                if old != Some(address) {
                    let connection = path.connection;
                    cx.out.command(Command::Readdress {
                        connection,
                        address,
                    });
                }
            }
            (_, None) => {
                self.retry_at = cx.now;
                self.close_path(cx, CloseReason::AddressFamily);
            }
        }
    }

    /// Gives up an attempt whose time is over, and begins one if it is time for it.
    pub(crate) fn serve(&mut self, cx: &mut Context<'_>) {
        let until = self.attempt.as_ref().and_then(|attempt| attempt.until);
        if until.is_some_and(|until| cx.now >= until) {
            self.end_attempt(cx, CloseReason::Unanswered);
            self.note_failure(cx);
        }
        if self.attempt.is_some() {
            return;
        }
        let needs_other_mtu = self.has_other_mtu() && cx.now >= self.retry_at;
        let redial = std::mem::take(&mut self.redial) || needs_other_mtu;
        match &self.path {
            None if cx.now >= self.retry_at => self.dial(cx, DialReason::Join, None),
            Some(_) if redial => {
                let until = cx.now + redial_time(&cx.shared.server);
                self.dial(cx, DialReason::Redial, Some(until));
            }
            _ => {}
        }
    }

    /// Returns whether the connection of the path was made for packets of another size.
    fn has_other_mtu(&self) -> bool {
        let path = self.path.as_ref();
        path.is_some_and(|path| path.mtu != self.uplink.mtu)
    }

    fn dial(&mut self, cx: &mut Context<'_>, reason: DialReason, until: Option<Instant>) {
        self.attempt = Some(Attempt {
            connection: cx.out.dial(&self.uplink, &cx.shared.server, reason),
            uplink: self.uplink.clone(),
            joining: None,
            until,
        });
    }

    /// Returns when [`Member::serve`] has something to do.
    pub(crate) fn timeout(&self) -> Option<(Instant, Timer)> {
        match (&self.attempt, &self.path) {
            (Some(attempt), _) => Some((attempt.until?, Timer::Redial)),
            (None, None) => Some((self.retry_at, Timer::Retry)),
            (None, Some(_)) if self.has_other_mtu() => Some((self.retry_at, Timer::Retry)),
            (None, Some(_)) => None,
        }
    }

    /// Asks the server to let the dialed connection join with the first free index, or with that of
    /// the path that it replaces.
    pub(crate) fn join(
        &mut self,
        cx: &mut Context<'_>,
        dialed: Dialed,
        free: Option<PathId>,
        standby: bool,
    ) -> bool {
        let own = self.path.as_ref().map(|path| path.index);
        let (Some(attempt), Some(index)) = (&mut self.attempt, free.or(own)) else {
            self.abandon_attempt(cx);
            self.note_failure(cx);
            return false;
        };
        attempt.uplink.mtu = dialed.mtu;
        attempt.joining = Some(Joining {
            index,
            remote: dialed.remote,
            standby,
        });
        // The connection is there. Whether packets of full size arrive is found out by the driver.
        attempt.until = attempt.until.map(|until| until.max(cx.now + ANSWER_TIME));
        cx.out.command(Command::Join {
            connection: attempt.connection,
            path: index,
            standby,
        });
        true
    }

    /// Makes the accepted connection the path of the uplink.
    pub(crate) fn accept(&mut self, cx: &mut Context<'_>) {
        let Some(attempt) = self.attempt.take() else {
            return;
        };
        let connection = attempt.connection;
        let Some(joining) = attempt.joining else {
            cx.out.close(connection, CloseReason::Unused);
            return self.note_failure(cx);
        };
        cx.out.command(Command::AddPath { connection });
        self.close_path(cx, CloseReason::Replaced);
        self.redial = false;
        let ends = (attempt.uplink, joining.remote);
        let path = Path::new(connection, joining.index, ends, joining.standby);
        self.path = Some(path);
        self.match_address(cx);
    }

    /// Records that the attempt has failed.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>) {
        if let Some(joining) = self.attempt.take().and_then(|attempt| attempt.joining) {
            cx.shared.indices.release(joining.index);
        }
        self.note_failure(cx);
    }

    /// Records that the connection of the path was closed.
    pub(crate) fn path_closed(&mut self, cx: &mut Context<'_>) {
        self.retry_at = cx.now;
        match self.take_path(cx) {
            // Without this pause, a server that accepts connections only to close them would be
            // dialed again and again.
            Some(path) if path.monitor.reachability() == Reachability::New => self.note_failure(cx),
            _ => {}
        }
    }

    /// Updates the state of the path; returns the one before and the new one if it has changed.
    pub(crate) fn update_path(
        &mut self,
        unacknowledged: Duration,
    ) -> Option<(Reachability, Reachability)> {
        let path = self.path.as_mut()?;
        let change = path.monitor.update(unacknowledged);
        if path.monitor.reachability() == Reachability::Reachable {
            self.backoff.reset();
        }
        if self.attempt.is_none() && path.monitor.take_redial(unacknowledged) {
            self.redial = true;
        }
        change
    }

    /// Tries to replace the path, which is kept until then.
    pub(crate) fn replace_path(&mut self) {
        self.redial = true;
    }

    /// Tries to replace a path that does not deliver, or to make one, at once.
    pub(crate) fn rejoin(&mut self, now: Instant) {
        self.retry_at = now;
        let state = self.path.as_ref().map(|path| path.monitor.reachability());
        self.redial = state.is_some_and(|state| state > Reachability::Reachable);
    }

    /// Closes the path and the attempt.
    pub(crate) fn leave(&mut self, cx: &mut Context<'_>) {
        self.abandon_attempt(cx);
        self.close_path(cx, CloseReason::Unused);
    }

    pub(crate) fn abandon_attempt(&mut self, cx: &mut Context<'_>) {
        self.end_attempt(cx, CloseReason::Unused);
    }

    fn end_attempt(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if let Some(attempt) = self.attempt.take() {
            cx.out.close(attempt.connection, reason);
            if let Some(joining) = attempt.joining {
                cx.shared.indices.release(joining.index);
            }
        }
    }

    fn close_path(&mut self, cx: &mut Context<'_>, reason: CloseReason) {
        if let Some(path) = self.take_path(cx) {
            cx.out.close(path.connection, reason);
        }
    }

    fn take_path(&mut self, cx: &mut Context<'_>) -> Option<Path> {
        let path = self.path.take()?;
        cx.shared.indices.release(path.index);
        // No notice can arrive on this path any more. Another path that has been on standby reports
        // the next change.
        cx.shared.server_backlog = false;
        Some(path)
    }

    fn note_failure(&mut self, cx: &mut Context<'_>) {
        if self.path.is_none() {
            self.retry_at = cx.now + self.backoff.after_failure(cx.out.random());
        } else if self.has_other_mtu() {
            self.retry_at = cx.now + MTU_RETRY;
        }
    }
}

/// Returns the time that another connection beside a failed one gets. Over TCP it needs more round
/// trips, and begins later.
fn redial_time(server: &Server) -> Duration {
    match server.tcp_port {
        Some(_) => 2 * FAILED_AFTER,
        None => FAILED_AFTER,
    }
}
