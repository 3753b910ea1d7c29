//! A model of uplinks and servers, in virtual time, which carries out the commands of a supervisor
//! and checks each of them.

#![allow(dead_code, reason = "each test uses a part of it")]

use hawser_units::{Instant, MAX_PATHS, PathId};
use hawser_uplinks::{
    Answer, CloseReason, Command, ConnectionId, DELAYED_AFTER, DialReason, Dialed, Notice,
    PathFigures, Server, SessionFigures, Supervisor, Uplink, Usage,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// The interval at which figures are reported.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The time limits of a dial and of an answer.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// The interval at which a lost message is sent again.
const RETRANSMIT: Duration = Duration::from_millis(500);

/// The time after which a connection that delivers nothing is closed by its own end.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time within which an uplink joins the session of a server that answers over it: the longest
/// pause and the limits of an attempt that was begun before.
const JOIN_TIME: Duration = Duration::from_secs(20);

/// The time without a path after which the client's end of a session ends.
const SESSION_TIMEOUT: Duration = Duration::from_secs(40);

#[derive(Debug, Clone)]
pub(crate) struct ModelUplink {
    pub(crate) is_up: bool,
    pub(crate) is_paused: bool,
    pub(crate) uplink: Uplink,
    /// The largest packet of the network behind it, in bytes. Connections for larger ones are not made.
    pub(crate) largest: u16,
}

#[derive(Debug, Clone)]
pub(crate) struct ModelServer {
    pub(crate) is_alive: bool,
    pub(crate) refuses: bool,
    pub(crate) rtt: Duration,
    pub(crate) server: Server,
    /// Increased when it is restarted.
    incarnation: u32,
    /// The session that it knows.
    session: Option<u32>,
}

#[derive(Debug, Clone, PartialEq)]
enum Stage {
    Dialing { since: Instant, reason: DialReason },
    Dialed,
    Opening { since: Instant },
    Opened { session: u32 },
    Joining { since: Instant },
    Joined,
    Path { standby: bool },
}

#[derive(Debug, Clone)]
struct Connection {
    uplink: Uplink,
    server: usize,
    incarnation: u32,
    index: Option<PathId>,
    begins_on_standby: bool,
    delivered_at: Instant,
    bytes: u64,
    stage: Stage,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) uplinks: Vec<ModelUplink>,
    pub(crate) servers: Vec<ModelServer>,
    pub(crate) is_waiting: bool,
    /// Whether the outcomes of work that was cancelled are reported nevertheless.
    pub(crate) reports_late: bool,
    pub(crate) supervisor: Supervisor,
    /// The commands since it was cleared.
    pub(crate) log: Vec<Command>,
    connections: BTreeMap<ConnectionId, Connection>,
    /// Connections whose outcome is known, although they were closed.
    cancelled: BTreeMap<ConnectionId, Connection>,
    due: BTreeSet<(Instant, ConnectionId)>,
    next_poll: Instant,
    session: Option<u32>,
    sessions: u32,
    without_path_since: Option<Instant>,
    /// The time since which each uplink without a path could have one.
    joinable_since: BTreeMap<String, Instant>,
    used: BTreeMap<String, u64>,
    month: u32,
}

impl World {
    pub(crate) fn new(uplinks: usize, servers: usize, seed: u64) -> World {
        let mut world = World {
            now: Instant::ZERO,
            uplinks: (0..uplinks).map(uplink).collect(),
            servers: (0..servers).map(server).collect(),
            is_waiting: false,
            reports_late: false,
            supervisor: Supervisor::new(Instant::ZERO, seed, Usage::default()),
            log: Vec::new(),
            connections: BTreeMap::new(),
            cancelled: BTreeMap::new(),
            due: BTreeSet::new(),
            next_poll: Instant::ZERO,
            session: None,
            sessions: 0,
            without_path_since: None,
            joinable_since: BTreeMap::new(),
            used: BTreeMap::new(),
            month: 0,
        };
        world.begin_month();
        world.announce_servers();
        world.announce_uplinks();
        world
    }

    pub(crate) fn announce_uplinks(&mut self) {
        let up = self.uplinks.iter().filter(|uplink| uplink.is_up);
        let list = up.map(|uplink| uplink.uplink.clone()).collect();
        self.supervisor.handle_uplinks(self.now, list);
        self.carry_out();
    }

    /// Sets the interval at which a nearer server is searched.
    pub(crate) fn survey_every(&mut self, interval: Option<Duration>) {
        self.supervisor.survey_every(self.now, interval);
        self.carry_out();
    }

    pub(crate) fn announce_servers(&mut self) {
        let list = self.servers.iter().map(|server| server.server.clone());
        self.supervisor.handle_servers(self.now, list.collect());
        self.carry_out();
    }

    /// Announces every other server, as a controller does whose list changes.
    pub(crate) fn announce_some_servers(&mut self, first: usize) {
        let list = self.servers.iter().skip(first).step_by(2);
        let list = list.map(|server| server.server.clone());
        self.supervisor.handle_servers(self.now, list.collect());
        self.carry_out();
    }

    pub(crate) fn begin_month(&mut self) {
        self.month += 1;
        self.used.clear();
        let month = format!("2026-{:04}", self.month);
        self.supervisor.handle_month(self.now, &month, false);
        self.carry_out();
    }

    /// The server loses all its connections and sessions.
    pub(crate) fn kill(&mut self, server: usize) {
        self.servers[server].is_alive = false;
        self.servers[server].incarnation += 1;
        self.servers[server].session = None;
    }

    /// The server ends its session, and its connections stay.
    pub(crate) fn forget(&mut self, server: usize) {
        self.servers[server].session = None;
        self.close_paths(|path| path.server == server, false);
    }

    /// The server ends its session without a word.
    pub(crate) fn forget_silently(&mut self, server: usize) {
        self.servers[server].session = None;
    }

    /// The server closes all paths because a session was opened under the client's name.
    pub(crate) fn supersede(&mut self) {
        self.close_paths(|_| true, true);
    }

    pub(crate) fn drain(&mut self, server: usize) {
        let paths = self.paths(|path| path.server == server);
        for connection in paths {
            self.notice(Notice::Draining(connection));
        }
    }

    /// Another client with the same name opens a session at the server of this one.
    pub(crate) fn take_over(&mut self) {
        let Some(current) = self.session else { return };
        let known = |server: &ModelServer| server.session == Some(current);
        if let Some(server) = self.servers.iter().position(known) {
            self.servers[server].session = None;
            self.close_paths(|path| path.server == server, true);
        }
    }

    /// Closes the paths that have joined since the last poll.
    pub(crate) fn close_new_paths(&mut self) {
        self.close_paths(|path| path.bytes == 0, false);
    }

    /// Another connection would be better for one of the paths.
    pub(crate) fn improve(&mut self) {
        if let Some(connection) = self.paths(|_| true).into_iter().next() {
            self.notice(Notice::Improvable(connection));
        }
    }

    pub(crate) fn backlog(&mut self, backlog: bool) {
        if let Some(connection) = self.paths(|_| true).into_iter().next() {
            self.notice(Notice::Backlog(connection, backlog));
        }
    }

    fn close_paths(&mut self, which: impl Fn(&Connection) -> bool, superseded: bool) {
        for connection in self.paths(which) {
            // An earlier notice may have made the supervisor close it.
            if self.connections.remove(&connection).is_some() {
                self.notice(Notice::Closed {
                    connection,
                    superseded,
                });
            }
        }
    }

    fn paths(&self, which: impl Fn(&Connection) -> bool) -> Vec<ConnectionId> {
        let is_path = |path: &Connection| matches!(path.stage, Stage::Path { .. }) && which(path);
        let paths = self.connections.iter().filter(|(_, path)| is_path(path));
        paths.map(|(id, _)| *id).collect()
    }

    fn notice(&mut self, notice: Notice) {
        self.supervisor.handle_notice(self.now, notice);
        self.carry_out();
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let outcome = self.due.first().map(|(at, _)| *at);
            let timer = self.supervisor.poll_timeout().map(|(at, _)| at);
            let next = [outcome, timer, Some(self.next_poll)];
            let next = next.into_iter().flatten().min().expect("there is a poll");
            if next > until {
                break;
            }
            assert!(
                next >= self.now || timer == Some(next),
                "time goes forwards"
            );
            self.now = self.now.max(next);
            self.step();
        }
        self.now = until;
    }

    fn step(&mut self) {
        while let Some((at, id)) = self.due.first().copied().filter(|(at, _)| *at <= self.now) {
            self.due.remove(&(at, id));
            self.progress(id);
        }
        if self.next_poll <= self.now {
            self.next_poll = self.now + POLL_INTERVAL;
            self.poll();
        }
        self.supervisor.handle_timeout(self.now);
        self.carry_out();
        let timeout = self.supervisor.poll_timeout();
        assert!(
            timeout.is_none_or(|(at, _)| at > self.now),
            "{timeout:?} is not handled at {:?}",
            self.now
        );
    }

    /// Whether packets arrive over the connection.
    fn delivers(&self, connection: &Connection) -> bool {
        let server = &self.servers[connection.server];
        let is_same = |uplink: &&ModelUplink| {
            uplink.uplink.interface == connection.uplink.interface
                && uplink.uplink.route(&server.server) == connection.uplink.route(&server.server)
                && uplink.uplink.route(&server.server).is_some()
        };
        let mut uplinks = self.uplinks.iter();
        let works = |uplink: &ModelUplink| {
            let fits = connection.uplink.mtu <= uplink.largest;
            uplink.is_up && !uplink.is_paused && fits
        };
        server.is_alive && uplinks.find(is_same).is_some_and(works)
    }

    /// Continues a dial, or a request to a server.
    fn progress(&mut self, id: ConnectionId) {
        let known = self.connections.get(&id).or(self.cancelled.get(&id));
        let Some(mut connection) = known.cloned() else {
            return;
        };
        let (since, limit) = match connection.stage {
            Stage::Dialing { since, .. } => (since, DIAL_LIMIT),
            Stage::Opening { since } | Stage::Joining { since } => (since, ANSWER_LIMIT),
            _ => return,
        };
        let is_dialing = matches!(connection.stage, Stage::Dialing { .. });
        let server = &self.servers[connection.server];
        let delivers = self.delivers(&connection)
            && (is_dialing || server.incarnation == connection.incarnation);
        if !delivers && self.now < since + limit {
            self.due.insert((self.now + RETRANSMIT, id));
            return;
        }
        if is_dialing {
            connection.incarnation = server.incarnation;
            connection.stage = Stage::Dialed;
            let route = connection.uplink.route(&server.server);
            let dialed = delivers.then(|| Dialed {
                rtt: server.rtt,
                remote: route.expect("a family in common").remote,
                mtu: connection.uplink.mtu,
            });
            self.put(id, connection, delivers);
            self.supervisor.handle_dialed(self.now, id, dialed);
        } else {
            let answer = match delivers {
                true => self.answer(&mut connection),
                false => Answer::Failed,
            };
            connection.delivered_at = self.now;
            self.put(id, connection, answer == Answer::Accepted);
            self.supervisor.handle_answer(self.now, id, answer);
        }
        self.carry_out();
    }

    /// Stores a connection that has succeeded, removes one that has failed. One that was cancelled
    /// has no owner, whatever became of it.
    fn put(&mut self, id: ConnectionId, connection: Connection, has_succeeded: bool) {
        let is_cancelled = self.cancelled.remove(&id).is_some();
        self.connections.remove(&id);
        if has_succeeded {
            self.connections.insert(id, connection);
        } else if is_cancelled {
            assert!(!self.connections.contains_key(&id));
        }
    }

    fn answer(&mut self, connection: &mut Connection) -> Answer {
        let server = &mut self.servers[connection.server];
        match connection.stage {
            _ if server.refuses => Answer::Refused,
            Stage::Opening { .. } => {
                self.sessions += 1;
                server.session = Some(self.sessions);
                connection.stage = Stage::Opened {
                    session: self.sessions,
                };
                Answer::Accepted
            }
            _ if self.session.is_some() && server.session == self.session => {
                connection.stage = Stage::Joined;
                Answer::Accepted
            }
            _ => Answer::UnknownSession,
        }
    }

    fn poll(&mut self) {
        if self.session.is_none() {
            return;
        }
        let ended = |since: Instant| self.now.saturating_since(since) >= SESSION_TIMEOUT;
        if self.without_path_since.is_some_and(ended) {
            return self.notice(Notice::Ended);
        }
        self.close_dead_paths();
        let figures = self.figures();
        self.supervisor.handle_figures(self.now, &figures);
        self.carry_out();
        self.check_standby(&figures);
        self.check_joined();
    }

    /// An uplink over which the server of the session answers is joined within a bounded time.
    fn check_joined(&mut self) {
        let server = self.servers.iter().find(|server| {
            let is_known = self.session.is_some() && server.session == self.session;
            is_known && server.is_alive && !server.refuses
        });
        let has_path = |interface: &str| {
            let is_path = |path: &Connection| path.uplink.interface == interface;
            !self.paths(is_path).is_empty()
        };
        let mut joinable = BTreeMap::new();
        for uplink in &self.uplinks {
            let interface = &uplink.uplink.interface;
            let is_heard = !uplink.is_paused && self.is_usable(interface);
            let has_route = server.is_some_and(|s| uplink.uplink.route(&s.server).is_some());
            if is_heard && has_route && self.uplinks.len() <= MAX_PATHS && !has_path(interface) {
                let since = self.joinable_since.get(interface).copied();
                let since = since.unwrap_or(self.now);
                assert!(self.now.saturating_since(since) < JOIN_TIME, "{interface}");
                joinable.insert(interface.clone(), since);
            }
        }
        self.joinable_since = joinable;
    }

    /// A server that was restarted resets the connections that it does not know.
    fn close_dead_paths(&mut self) {
        for id in self.paths(|_| true) {
            let path = &self.connections[&id];
            let is_idle = self.now.saturating_since(path.delivered_at) >= IDLE_TIMEOUT;
            let is_unknown = self.servers[path.server].incarnation != path.incarnation;
            if is_idle || is_unknown && self.delivers(path) {
                self.connections.remove(&id);
                self.notice(Notice::Closed {
                    connection: id,
                    superseded: false,
                });
            }
        }
    }

    fn figures(&mut self) -> SessionFigures {
        let mut paths = Vec::new();
        for connection in self.paths(|_| true) {
            let mut path = self.connections[&connection].clone();
            if self.delivers(&path) && self.servers[path.server].incarnation == path.incarnation {
                path.delivered_at = self.now;
            }
            let in_use = path.stage == (Stage::Path { standby: false });
            let more = if in_use { 10_000 } else { 100 };
            path.bytes += more;
            *self.used.entry(path.uplink.interface.clone()).or_default() += more;
            paths.push(PathFigures {
                connection,
                unacknowledged: self.now.saturating_since(path.delivered_at),
                bytes: path.bytes,
            });
            self.connections.insert(connection, path);
        }
        SessionFigures {
            paths,
            waiting: self.is_waiting,
        }
    }

    /// A path is on standby only while a cheaper one carries the load.
    fn check_standby(&self, figures: &SessionFigures) {
        let paths = figures.paths.iter().filter_map(|figures| {
            let path = self.connections.get(&figures.connection)?;
            let works = figures.unacknowledged < DELAYED_AFTER;
            Some((path, works))
        });
        let paths: Vec<_> = paths.collect();
        let in_use = |path: &Connection| path.stage == (Stage::Path { standby: false });
        let any_works = paths.iter().any(|(_, works)| *works);
        // That of the uplink now, which may not be the one with which the path was made.
        let cost = |path: &Connection| {
            let mut uplinks = self.uplinks.iter();
            let uplink = uplinks.find(|uplink| uplink.uplink.interface == path.uplink.interface);
            uplink.expect("a path has an uplink").uplink.cost
        };
        for (waiting, _) in paths.iter().filter(|(path, _)| !in_use(path)) {
            let carries = |(path, works): &(&Connection, bool)| {
                in_use(path) && cost(path) < cost(waiting) && (*works || !any_works)
            };
            assert!(paths.iter().any(carries), "nothing carries the load");
        }
    }

    fn is_usable(&self, interface: &str) -> bool {
        let used = self.used.get(interface).copied().unwrap_or(0);
        self.uplinks.iter().any(|uplink| {
            uplink.is_up
                && uplink.uplink.interface == interface
                && uplink.uplink.monthly_cap.is_none_or(|cap| used < cap)
        })
    }

    fn carry_out(&mut self) {
        while let Some(command) = self.supervisor.poll_command() {
            self.log.push(command.clone());
            self.handle_command(command);
        }
        while self.supervisor.poll_event().is_some() {}
        for connection in self.connections.values() {
            let interface = &connection.uplink.interface;
            assert!(self.is_usable(interface), "{interface} is not to be used");
        }
        let (uplinks, servers) = (self.uplinks.len(), self.servers.len());
        assert!(self.connections.len() <= uplinks * servers + 2 * uplinks + 1);
    }

    fn handle_command(&mut self, command: Command) {
        match command {
            Command::Dial {
                connection,
                uplink,
                server,
                reason,
            } => self.dial(connection, uplink, &server, reason),
            Command::Open { connection, path } => {
                let opening = |other: &Connection| matches!(other.stage, Stage::Opening { .. });
                assert!(!self.connections.values().any(opening), "one at a time");
                self.ask(connection, path, Stage::Opening { since: self.now });
            }
            Command::Join {
                connection,
                path,
                standby,
            } => {
                assert!(self.session.is_some(), "there is a session to join");
                self.check_index(connection, path);
                self.connection(connection).begins_on_standby = standby;
                self.ask(connection, path, Stage::Joining { since: self.now });
            }
            Command::StartSession { connection } => self.start_session(connection),
            Command::AddPath { connection } => {
                let path = self.connection(connection);
                assert_eq!(path.stage, Stage::Joined);
                path.stage = Stage::Path {
                    standby: path.begins_on_standby,
                };
            }
            Command::Close { connection, reason } => self.close(connection, reason),
            Command::Standby {
                connection,
                standby,
            } => {
                let path = self.connection(connection);
                assert!(matches!(path.stage, Stage::Path { .. }));
                path.stage = Stage::Path { standby };
            }
            Command::Readdress {
                connection,
                address,
            } => {
                let path = self.connection(connection);
                assert!(matches!(path.stage, Stage::Path { .. }));
                path.uplink.ipv4 = Some(address);
            }
            Command::CloseSession => self.close_session(),
        }
        let has_path = !self.paths(|_| true).is_empty();
        let since = (!has_path && self.session.is_some())
            .then(|| self.without_path_since.unwrap_or(self.now));
        self.without_path_since = since;
    }

    fn connection(&mut self, id: ConnectionId) -> &mut Connection {
        self.connections.get_mut(&id).expect("it is known")
    }

    fn dial(&mut self, id: ConnectionId, uplink: Uplink, server: &Server, reason: DialReason) {
        assert!(self.is_usable(&uplink.interface));
        let index = self.servers.iter().position(|s| s.server == *server);
        let server = index.expect("it is a known server");
        for other in self.connections.values() {
            if let Stage::Dialing { reason: before, .. } = other.stage
                && other.uplink.interface == uplink.interface
            {
                let are_searches = (before, reason) == (DialReason::Search, DialReason::Search);
                let is_one = (before == DialReason::Search) == (reason == DialReason::Search);
                assert!(
                    !is_one || are_searches && other.server != server,
                    "dialed twice"
                );
            }
        }
        let since = self.now;
        self.due.insert((since + self.servers[server].rtt, id));
        let connection = Connection {
            uplink,
            server,
            incarnation: 0,
            index: None,
            begins_on_standby: false,
            delivered_at: since,
            bytes: 0,
            stage: Stage::Dialing { since, reason },
        };
        assert!(self.connections.insert(id, connection).is_none());
    }

    fn ask(&mut self, id: ConnectionId, path: PathId, stage: Stage) {
        let connection = self.connection(id);
        assert_eq!(connection.stage, Stage::Dialed);
        connection.stage = stage;
        connection.index = Some(path);
        let server = connection.server;
        let rtt = self.servers[server].rtt;
        self.due.insert((self.now + rtt, id));
    }

    /// The index is not that of another connection of the session, except of the path that this one
    /// is to replace.
    fn check_index(&self, id: ConnectionId, index: PathId) {
        let interface = &self.connections[&id].uplink.interface;
        for other in self.connections.values() {
            let is_own =
                matches!(other.stage, Stage::Path { .. }) && other.uplink.interface == *interface;
            let is_of_session = !matches!(other.stage, Stage::Opening { .. });
            assert!(!is_of_session || is_own || other.index != Some(index));
        }
    }

    fn start_session(&mut self, id: ConnectionId) {
        assert_eq!(self.session, None, "the one before is closed");
        let path = self.connection(id);
        let Stage::Opened { session } = path.stage else {
            panic!("{:?}", path.stage);
        };
        path.stage = Stage::Path { standby: false };
        self.session = Some(session);
    }

    fn close(&mut self, id: ConnectionId, _: CloseReason) {
        let connection = self.connections.remove(&id).expect("it is open");
        let working = matches!(
            connection.stage,
            Stage::Dialing { .. } | Stage::Opening { .. } | Stage::Joining { .. }
        );
        if working && self.reports_late {
            self.cancelled.insert(id, connection);
        }
    }

    fn close_session(&mut self) {
        assert!(self.session.take().is_some(), "there is a session");
        self.joinable_since.clear();
        for id in self.paths(|_| true) {
            self.connections.remove(&id);
        }
        let joins = |c: &&Connection| matches!(c.stage, Stage::Joining { .. } | Stage::Joined);
        assert_eq!(self.connections.values().filter(joins).count(), 0);
    }

    /// Lets everything work, without caps.
    pub(crate) fn heal(&mut self) {
        for uplink in &mut self.uplinks {
            (uplink.is_up, uplink.is_paused) = (true, false);
            uplink.uplink.monthly_cap = None;
        }
        for server in &mut self.servers {
            (server.is_alive, server.refuses) = (true, false);
        }
        self.is_waiting = false;
        self.announce_servers();
        self.announce_uplinks();
    }

    /// Returns whether there is a session of all uplinks that can have a path.
    pub(crate) fn is_connected(&self) -> bool {
        let Some(current) = self.session else {
            return false;
        };
        let usable = self
            .uplinks
            .iter()
            .filter(|u| self.is_usable(&u.uplink.interface));
        let paths = self.paths(|path| {
            self.servers[path.server].session == Some(current)
                && self.servers[path.server].incarnation == path.incarnation
                && self.delivers(path)
        });
        paths.len() == usable.count().min(MAX_PATHS)
    }

    /// Returns the interfaces of the paths that are not on standby.
    pub(crate) fn paths_in_use(&self) -> BTreeSet<String> {
        let in_use = self.paths(|path| path.stage == Stage::Path { standby: false });
        let name = |id: &ConnectionId| self.connections[id].uplink.interface.clone();
        in_use.iter().map(name).collect()
    }

    /// Returns how many connections of this purpose were dialed since the log was cleared.
    pub(crate) fn dials(&self, purpose: DialReason) -> usize {
        let is_dial = |command: &&Command| matches!(command, Command::Dial { reason, .. } if *reason == purpose);
        self.log.iter().filter(is_dial).count()
    }

    /// Returns the indices of the paths.
    pub(crate) fn indices(&self) -> BTreeSet<PathId> {
        let paths = self.paths(|_| true);
        let indices = paths.iter().map(|id| self.connections[id].index);
        indices
            .map(|index| index.expect("a path has one"))
            .collect()
    }

    pub(crate) fn session(&self) -> Option<u32> {
        self.session
    }

    pub(crate) fn server(&self) -> Option<String> {
        Some(self.supervisor.server()?.name.clone())
    }
}

fn uplink(number: usize) -> ModelUplink {
    let last = number as u8 + 1;
    ModelUplink {
        is_up: true,
        is_paused: false,
        largest: u16::MAX,
        uplink: Uplink {
            others: Vec::new(),
            interface: format!("wwan{number}"),
            ipv4: Some([192, 0, 2, last].into()),
            ipv6: Vec::new(),
            mtu: 1500,
            cost: number as u8 % 3,
            monthly_cap: (number % 4 == 3).then_some(1_000_000),
        },
    }
}

fn server(number: usize) -> ModelServer {
    let last = number as u8 + 1;
    ModelServer {
        is_alive: true,
        refuses: false,
        rtt: (40 + 30 * number as u32) * MS,
        server: Server {
            name: format!("pop{number}"),
            addresses: vec![
                ([203, 0, 113, last], 14752).into(),
                ([0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into()], 14752).into(),
            ],
            tcp_port: None,
        },
        incarnation: 1,
        session: None,
    }
}
