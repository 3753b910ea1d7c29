//! Inputs and outputs of a supervisor.

use super::{Reachability, Server, Uplink};
use hawser_units::{Instant, PathId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A connection, from the attempt to dial it on. Numbers are not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(u64);

/// An action that the user of a supervisor has to carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Connects to a server. The outcome is reported with `handle_dialed`.
    Dial {
        /// The connection.
        connection: ConnectionId,
        /// The uplink to which it is bound.
        uplink: Uplink,
        /// The server.
        server: Server,
        /// The purpose.
        reason: DialReason,
    },
    /// Requests a new session over a dialed connection. The outcome is reported with
    /// `handle_answer`.
    Open {
        /// The connection.
        connection: ConnectionId,
        /// The index of the session's first path, which is not on standby.
        path: PathId,
    },
    /// Requests to join the session over a dialed connection. The outcome is reported with
    /// `handle_answer`.
    Join {
        /// The connection.
        connection: ConnectionId,
        /// The index of the path.
        path: PathId,
        /// Whether the path begins on standby.
        standby: bool,
    },
    /// Makes the session that this connection has opened the current one, with the connection as
    /// its first path.
    StartSession {
        /// The connection.
        connection: ConnectionId,
    },
    /// Adds a connection that has joined as a path.
    AddPath {
        /// The connection.
        connection: ConnectionId,
    },
    /// Ends a connection or the attempt to make one. If it is a path, it leaves the session.
    Close {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        reason: CloseReason,
    },
    /// Puts a path on standby, or into use.
    Standby {
        /// The connection.
        connection: ConnectionId,
        /// Whether the path is on standby from now on.
        standby: bool,
    },
    /// Moves the connection of a path to another address of its uplink. If this fails, the user
    /// closes the connection and reports it as closed.
    Readdress {
        /// The connection.
        connection: ConnectionId,
        /// The new address of the uplink.
        address: IpAddr,
    },
    /// Ends the current session with all its paths.
    CloseSession,
}

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DialReason {
    /// To learn which server answers.
    Search,
    /// To join the session with an uplink that has no path.
    Join,
    /// To replace the path of an uplink that has failed.
    Redial,
}

/// The reason for closing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The connection or its uplink is no longer used.
    Unused,
    /// The server did not answer in time.
    Unanswered,
    /// Another connection of the same uplink has replaced it.
    Replaced,
    /// The uplink no longer has an address of the family that the connection uses.
    AddressFamily,
}

/// A connection that was made by [`Command::Dial`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialed {
    /// Its round-trip time.
    pub rtt: Duration,
    /// The address of the server that answered, one of [`Server::addresses`].
    pub remote: SocketAddr,
    /// The MTU with which it was made, at most that of the uplink that was dialed.
    pub mtu: u16,
}

/// The outcome of [`Command::Open`] or [`Command::Join`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The server has accepted the connection.
    Accepted,
    /// The server does not know the session.
    UnknownSession,
    /// The server refused the connection for another reason.
    Refused,
    /// There was no valid answer, or the client cannot carry out what it demands.
    Failed,
}

/// A message about the current session, from its server or from its own end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The server is shutting down.
    Draining(ConnectionId),
    /// Packets to the client begin or cease to wait at the server.
    Backlog(ConnectionId, bool),
    /// Another connection would be better than that of this path.
    Improvable(ConnectionId),
    /// The connection of a path was closed, not by a command.
    Closed {
        /// The connection.
        connection: ConnectionId,
        /// Whether the server closed it because another client with the same name has opened a
        /// session.
        superseded: bool,
    },
    /// The client's end of the session has ended, because it had no path for too long.
    Ended,
}

/// The state of the current session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SessionFigures {
    /// The state of each path.
    pub paths: Vec<PathFigures>,
    /// Whether packets wait for a path.
    pub waiting: bool,
}

/// The state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathFigures {
    /// The connection.
    pub connection: ConnectionId,
    /// The time since the last acknowledgement while packets are in flight.
    pub unacknowledged: Duration,
    /// The bytes that the connection has sent and received, including all headers.
    pub bytes: u64,
}

/// A change that the user may log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Whether the server answers over a path has changed.
    PathChanged {
        /// The interface of the uplink.
        interface: String,
        /// The state before.
        from: Reachability,
        /// The state now.
        to: Reachability,
    },
    /// No path of the session delivers.
    SessionSilent,
    /// The session moves to a nearer server.
    Nearer {
        /// The name of its server.
        from: String,
        /// The name of the nearer one.
        to: String,
    },
    /// The session cannot continue at its server.
    SessionLost {
        /// The name of its server.
        server: String,
        /// The reason.
        loss: SessionLoss,
    },
    /// An uplink was not joined because all path indices are in use.
    TooManyPaths {
        /// The name of the server.
        server: String,
        /// The interface of the uplink.
        interface: String,
    },
}

/// The reason why a session cannot continue at its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionLoss {
    /// The server no longer knows the session.
    UnknownSession,
    /// The server is shutting down.
    Draining,
    /// Another client with the same name has taken over the session.
    Superseded,
}

impl fmt::Display for SessionLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SessionLoss::UnknownSession => "the server no longer knows the session",
            SessionLoss::Draining => "the server is shutting down",
            SessionLoss::Superseded => {
                "another client with this name has opened a session: each client needs its own name"
            }
        })
    }
}

/// The reason for a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Servers are searched.
    Search,
    /// Nearer servers have had their time to answer.
    Grace,
    /// A nearer server is searched while the session works.
    Survey,
    /// An uplink without a path is dialed again.
    Retry,
    /// A connection beside a failed one is given up.
    Redial,
}

/// The queues of commands and events, and what new ones need.
#[derive(Debug)]
pub(crate) struct Outbox {
    commands: VecDeque<Command>,
    events: VecDeque<Event>,
    next: u64,
    random: ChaCha8Rng,
}

impl Outbox {
    pub(crate) fn new(seed: u64) -> Outbox {
        Outbox {
            commands: VecDeque::new(),
            events: VecDeque::new(),
            next: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Returns a random number, uniform in [0, 1).
    pub(crate) fn random(&mut self) -> f64 {
        self.random.random()
    }

    pub(crate) fn dial(
        &mut self,
        uplink: &Uplink,
        server: &Server,
        reason: DialReason,
    ) -> ConnectionId {
        let connection = ConnectionId(self.next);
        self.next += 1;
        self.command(Command::Dial {
            connection,
            uplink: uplink.clone(),
            server: server.clone(),
            reason,
        });
        connection
    }

    pub(crate) fn close(&mut self, connection: ConnectionId, reason: CloseReason) {
        self.command(Command::Close { connection, reason });
    }

    pub(crate) fn command(&mut self, command: Command) {
        self.commands.push_back(command);
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events.push_back(event);
    }

    pub(crate) fn poll_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// Returns the earlier of two timeouts.
pub(crate) fn earlier(
    one: Option<(Instant, Timer)>,
    other: Option<(Instant, Timer)>,
) -> Option<(Instant, Timer)> {
    one.into_iter().chain(other).min()
}
