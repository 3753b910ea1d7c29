//! The uplinks of a session. Each has a connection that is one of its paths, and that is
//! re-established when it closes or fails.

use super::command::{
    Answer, Command, ConnectionId, Dialed, Event, Notice, Outbox, PathFigures, SessionFigures,
    SessionLoss, Timer,
};
use super::cost::{Candidate, CostLevel};
use super::indices::Indices;
use super::member::{Context, Member, Path, Shared};
use super::reachability::{Reachability, UNREACHABLE_AFTER};
use super::{Server, Uplink, Usage};
use hawser_units::{Instant, PathSet};
use std::collections::BTreeMap;

/// The current session.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Shared,
    /// The uplinks by interface.
    members: BTreeMap<String, Member>,
    cost: CostLevel,
    /// The highest cost class in use.
    level: u8,
    /// Whether packets wait for a path at this end.
    is_waiting: bool,
    /// The time since which no path has delivered.
    silent_since: Option<Instant>,
    is_silent: bool,
    /// Whether the session no longer exists at one of its ends.
    is_over: bool,
    /// Whether the server is shutting down and no other one was searched yet.
    pub(crate) is_draining: bool,
}

impl Session {
    pub(crate) fn new(now: Instant, server: Server, first: Path) -> Session {
        let mut member = Member::new(now, first.uplink.clone());
        member.path = Some(first);
        Session {
            shared: Shared {
                server,
                indices: Indices::new(),
                server_backlog: false,
            },
            members: BTreeMap::from([(member.uplink.interface.clone(), member)]),
            cost: CostLevel::new(now),
            level: 0,
            is_waiting: false,
            silent_since: None,
            is_silent: false,
            is_over: false,
            is_draining: false,
        }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.shared.server
    }

    /// Returns whether the session no longer exists at one of its ends.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether another server is needed.
    pub(crate) fn needs_server(&self) -> bool {
        self.is_over || self.is_silent || self.is_draining
    }

    /// Returns whether the server answers over an uplink, if it has a path.
    pub(crate) fn reachability(&self, interface: &str) -> Option<Reachability> {
        let path = self.members.get(interface)?.path.as_ref()?;
        Some(path.monitor.reachability())
    }

    /// Adds, updates and removes uplinks to match the usable ones, begins the attempts for which it is
    /// time, and puts the paths on standby that are not needed.
    pub(crate) fn follow(&mut self, now: Instant, usable: &[Uplink], out: &mut Outbox) {
        let mut cx = Context {
            now,
            shared: &mut self.shared,
            out,
        };
        self.members.retain(|interface, member| {
            let stays = usable.iter().any(|uplink| uplink.interface == *interface);
            if !stays {
                member.leave(&mut cx);
            }
            stays
        });
        for uplink in usable {
            let new = || Member::new(now, uplink.clone());
            let member = self.members.entry(uplink.interface.clone());
            let member = member.or_insert_with(new);
            member.update(&mut cx, uplink);
            if !self.is_over {
                member.serve(&mut cx);
            }
        }
        self.update_cost(now, out);
    }

    /// Returns when [`Session::follow`] has something to do.
    pub(crate) fn timeout(&self) -> Option<(Instant, Timer)> {
        if self.is_over {
            return None;
        }
        self.members.values().filter_map(Member::timeout).min()
    }

    /// Handles the outcome of a dial; returns whether it was one of this session.
    pub(crate) fn handle_dialed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        dialed: Option<Dialed>,
        out: &mut Outbox,
    ) -> bool {
        let in_use: PathSet = self.members.values().flat_map(Member::indices).collect();
        let free = self.shared.indices.free(in_use);
        let level = self.level;
        let Some((mut cx, member)) = self.attempt(now, connection, out) else {
            return false;
        };
        let Some(dialed) = dialed else {
            member.fail(&mut cx);
            return true;
        };
        if !member.join(&mut cx, dialed, free, member.uplink.cost > level) {
            let interface = member.uplink.interface.clone();
            let server = self.shared.server.name.clone();
            out.event(Event::TooManyPaths { server, interface });
        }
        true
    }

    /// Handles the answer to a join; returns whether it was one of this session.
    pub(crate) fn handle_answer(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        answer: Answer,
        out: &mut Outbox,
    ) -> bool {
        let Some((mut cx, member)) = self.attempt(now, connection, out) else {
            return false;
        };
        match answer {
            Answer::Accepted => member.accept(&mut cx),
            Answer::Refused | Answer::Failed => member.fail(&mut cx),
            Answer::UnknownSession => {
                member.fail(&mut cx);
                self.report_loss(SessionLoss::UnknownSession, out);
                self.end(now, out);
            }
        }
        true
    }

    /// Handles a notice. One of a connection that is not a path any more has no effect.
    pub(crate) fn handle_notice(&mut self, now: Instant, notice: Notice, out: &mut Outbox) {
        match notice {
            Notice::Draining(connection) if self.has_path(connection) => {
                self.is_draining = true;
                self.report_loss(SessionLoss::Draining, out);
            }
            Notice::Backlog(connection, backlog) if self.has_path(connection) => {
                self.shared.server_backlog = backlog;
            }
            Notice::Draining(_) | Notice::Backlog(..) => {}
            Notice::Improvable(connection) => {
                if let Some(member) = member_with(&mut self.members, connection) {
                    member.replace_path();
                }
            }
            Notice::Closed { connection, .. } => self.handle_closed(now, connection, out),
            Notice::Ended => {
                self.set_silent(true, out);
                self.end(now, out);
            }
        }
    }

    fn handle_closed(&mut self, now: Instant, connection: ConnectionId, out: &mut Outbox) {
        if let Some(member) = member_with(&mut self.members, connection) {
            let shared = &mut self.shared;
            member.path_closed(&mut Context { now, shared, out });
        }
    }

    pub(crate) fn report_loss(&self, loss: SessionLoss, out: &mut Outbox) {
        let server = self.shared.server.name.clone();
        out.event(Event::SessionLost { server, loss });
    }

    /// Returns whether the connection is a path.
    pub(crate) fn has_path(&self, connection: ConnectionId) -> bool {
        self.members.values().any(|m| m.has_path(connection))
    }

    /// Takes note of the state of the paths: how much they have carried, and which of them work.
    pub(crate) fn handle_figures(
        &mut self,
        now: Instant,
        figures: &SessionFigures,
        usage: &mut Usage,
        out: &mut Outbox,
    ) {
        for path in &figures.paths {
            self.update_path(path, usage, out);
        }
        self.is_waiting = figures.waiting;
        self.update_silence(now, out);
    }

    fn update_path(&mut self, figures: &PathFigures, usage: &mut Usage, out: &mut Outbox) {
        let mut members = self.members.iter_mut();
        let Some((interface, member)) = members.find(|(_, m)| m.has_path(figures.connection))
        else {
            return;
        };
        if let Some(path) = &mut member.path {
            usage.add(interface, path.count(figures.bytes));
        }
        if let Some((from, to)) = member.update_path(figures.unacknowledged) {
            let interface = interface.clone();
            out.event(Event::PathChanged {
                interface,
                from,
                to,
            });
        }
    }

    /// Puts those paths on standby that a cheaper one makes unnecessary, and the others into use.
    fn update_cost(&mut self, now: Instant, out: &mut Outbox) {
        let candidates: Vec<_> = self
            .paths()
            .map(|path| Candidate {
                cost: path.uplink.cost,
                works: path.monitor.reachability().works(),
            })
            .collect();
        let waits = self.is_waiting || self.shared.server_backlog;
        self.level = self.cost.update(now, &candidates, waits);
        let paths = self.members.values_mut();
        for path in paths.filter_map(|member| member.path.as_mut()) {
            let standby = path.uplink.cost > self.level;
            if std::mem::replace(&mut path.standby, standby) != standby {
                let connection = path.connection;
                out.command(Command::Standby {
                    connection,
                    standby,
                });
            }
        }
    }

    fn update_silence(&mut self, now: Instant, out: &mut Outbox) {
        let has_paths = self.paths().next().is_some();
        let is_heard = self
            .paths()
            .any(|path| path.monitor.reachability().is_heard());
        if is_heard {
            self.silent_since = None;
        }
        let since = (!is_heard).then(|| *self.silent_since.get_or_insert(now));
        let is_silent = since
            .is_some_and(|since| has_paths || now.saturating_since(since) >= UNREACHABLE_AFTER);
        self.set_silent(is_silent, out);
    }

    fn set_silent(&mut self, is_silent: bool, out: &mut Outbox) {
        if is_silent && !self.is_silent {
            out.event(Event::SessionSilent);
        }
        self.is_silent = is_silent;
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.members.values().filter_map(|m| m.path.as_ref())
    }

    /// Re-establishes the paths that do not deliver, because the server answers again.
    pub(crate) fn rejoin(&mut self, now: Instant) {
        for member in self.members.values_mut() {
            member.rejoin(now);
        }
    }

    /// Gives up all attempts to join, because the session no longer exists.
    pub(crate) fn end(&mut self, now: Instant, out: &mut Outbox) {
        self.is_over = true;
        let shared = &mut self.shared;
        let mut cx = Context { now, shared, out };
        for member in self.members.values_mut() {
            member.abandon_attempt(&mut cx);
        }
    }

    fn attempt<'a>(
        &'a mut self,
        now: Instant,
        connection: ConnectionId,
        out: &'a mut Outbox,
    ) -> Option<(Context<'a>, &'a mut Member)> {
        let mut members = self.members.values_mut();
        let member = members.find(|member| member.has_attempt(connection))?;
        let shared = &mut self.shared;
        Some((Context { now, shared, out }, member))
    }
}

/// Returns the uplink whose path is this connection.
fn member_with(
    members: &mut BTreeMap<String, Member>,
    connection: ConnectionId,
) -> Option<&mut Member> {
    let mut members = members.values_mut();
    members.find(|member| member.has_path(connection))
}
