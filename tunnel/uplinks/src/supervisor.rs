//! The decisions about sessions: when servers are searched, and which session is the current one.

use super::command::{
    Answer, CloseReason, Command, ConnectionId, Dialed, Event, Notice, Outbox, SessionFigures,
    SessionLoss, Timer, earlier,
};
use super::member::Path;
use super::reachability::{Reachability, UNREACHABLE_AFTER};
use super::search::{Search, Target};
use super::session::Session;
use super::survey::Survey;
use super::{Server, Uplink, Usage};
use hawser_units::{Backoff, Instant, PathId};
use std::time::Duration;

/// The pause after another client with the same name has taken over the session, so that the two do
/// not take turns.
pub const SUPERSEDED_PAUSE: Duration = Duration::from_secs(30);

/// The pauses between attempts to find a server and to open a session.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));

/// The time that uplinks get to join their session again before servers are searched again.
pub const REJOIN_TIME: Duration = UNREACHABLE_AFTER;

/// Keeps one session at a time, with the nearest server that answers, over all usable uplinks. An
/// uplink is usable while it is listed and its monthly cap is not used up.
#[derive(Debug)]
pub struct Supervisor {
    uplinks: Vec<Uplink>,
    /// None until the first list is known.
    servers: Option<Vec<Server>>,
    usage: Usage,
    session: Option<Session>,
    search: Option<Search>,
    /// The regular searches while the session works, if they are wanted.
    survey: Option<Survey>,
    /// The connection over which a session is requested.
    opening: Option<Target>,
    /// Grows with every search and every request for a session that fails.
    backoff: Backoff,
    /// The time of the next search, unless the uplinks change before.
    search_at: Instant,
    /// The time before which no search begins.
    paused_until: Instant,
    /// The server that refused the last session; the next search prefers others.
    refused_by: Option<String>,
    /// The uplink over which opening a session failed last; the next search prefers others.
    failed_uplink: Option<String>,
    is_shut_down: bool,
    out: Outbox,
}

impl Supervisor {
    /// Creates a supervisor without uplinks and servers. `seed` determines its random numbers,
    /// `usage` is how much the uplinks have carried this month.
    pub fn new(now: Instant, seed: u64, usage: Usage) -> Supervisor {
        Supervisor {
            uplinks: Vec::new(),
            servers: None,
            usage,
            session: None,
            search: None,
            survey: None,
            opening: None,
            backoff: RETRY,
            search_at: now,
            paused_until: now,
            refused_by: None,
            failed_uplink: None,
            is_shut_down: false,
            out: Outbox::new(seed),
        }
    }

    /// Searches at this interval for a nearer server while a session works, and moves the session
    /// there. With none, which is the default, a session stays at its server as long as that answers.
    pub fn survey_every(&mut self, now: Instant, interval: Option<Duration>) {
        if self.survey.as_ref().map(Survey::interval) != interval {
            self.postpone_survey(now);
            self.survey = interval.map(|interval| Survey::new(now, interval));
        }
    }

    /// Takes over the list of interfaces that can be used.
    pub fn handle_uplinks(&mut self, now: Instant, uplinks: Vec<Uplink>) {
        let have_changed = std::mem::replace(&mut self.uplinks, uplinks) != self.uplinks;
        let has_session = self.session.as_ref().is_some_and(|s| !s.is_over());
        if have_changed && !has_session {
            self.search_at = now;
            let usable = self.usable();
            if let Some(search) = &mut self.search {
                search.retain(&usable, &mut self.out);
                search.dial(&usable, &mut self.out);
            }
        }
        self.decide(now);
    }

    /// Takes over the list of servers, from which the next search chooses.
    pub fn handle_servers(&mut self, now: Instant, servers: Vec<Server>) {
        if self.servers.as_ref().is_none_or(Vec::is_empty) {
            self.search_at = now;
        }
        self.servers = Some(servers);
        self.decide(now);
    }

    /// Handles the outcome of [`Command::Dial`]: the connection, or none if it was not made.
    pub fn handle_dialed(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        dialed: Option<Dialed>,
    ) {
        let out = &mut self.out;
        let mut is_known = match &mut self.search {
            Some(search) => search.handle_dialed(now, connection, dialed, out),
            None => false,
        };
        if let (Some(survey), false) = (&mut self.survey, is_known) {
            is_known = survey.handle_dialed(now, connection, dialed, out);
        }
        if let (Some(session), false) = (&mut self.session, is_known) {
            is_known = session.handle_dialed(now, connection, dialed, out);
        }
        if !is_known && dialed.is_some() {
            out.close(connection, CloseReason::Unused);
        }
        self.decide(now);
    }

    /// Handles the outcome of [`Command::Open`] or [`Command::Join`].
    pub fn handle_answer(&mut self, now: Instant, connection: ConnectionId, answer: Answer) {
        let out = &mut self.out;
        if let Some(opening) = self.opening.take_if(|o| o.connection == connection) {
            self.handle_opened(now, opening, answer);
        } else if let Some(session) = &mut self.session
            && session.handle_answer(now, connection, answer, out)
        {
        } else if answer == Answer::Accepted {
            out.close(connection, CloseReason::Unused);
        }
        self.decide(now);
    }

    /// Handles a notice about the current session. One of a connection that is not a path any more
    /// has no effect.
    pub fn handle_notice(&mut self, now: Instant, notice: Notice) {
        let Some(session) = &mut self.session else {
            return;
        };
        match notice {
            // While this client requests a session, it is the one that supersedes its own.
            Notice::Closed {
                connection,
                superseded: true,
            } if self.opening.is_none() && session.has_path(connection) => {
                session.report_loss(SessionLoss::Superseded, &mut self.out);
                self.close_session(now);
                self.paused_until = now + SUPERSEDED_PAUSE;
            }
            notice => session.handle_notice(now, notice, &mut self.out),
        }
        self.decide(now);
    }

    /// Takes note of the calendar month (UTC), as in `2026-11`. A new month begins with unused caps.
    /// An earlier one has no effect, unless the clock `is_synchronized`: then what was counted since
    /// belongs to this month. To be called before the first [`Self::handle_figures`].
    pub fn handle_month(&mut self, now: Instant, month: &str, is_synchronized: bool) {
        self.usage.begin_month(month, is_synchronized);
        self.decide(now);
    }

    /// Takes note of the state of the current session. To be called a few times a second as long as
    /// there is one.
    pub fn handle_figures(&mut self, now: Instant, figures: &SessionFigures) {
        if let Some(session) = &mut self.session {
            session.handle_figures(now, figures, &mut self.usage, &mut self.out);
            if !session.needs_server() {
                self.backoff.reset();
            }
        }
        self.decide(now);
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.decide(now);
    }

    /// Closes the session and everything else. Later events have no effect.
    pub fn shut_down(&mut self, now: Instant) {
        self.close_session(now);
        self.abandon_search();
        self.postpone_survey(now);
        if let Some(opening) = self.opening.take() {
            self.out.close(opening.connection, CloseReason::Unused);
        }
        self.is_shut_down = true;
    }

    /// Returns the next action to carry out.
    pub fn poll_command(&mut self) -> Option<Command> {
        self.out.poll_command()
    }

    /// Returns the next event to log.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.poll_event()
    }

    /// Returns when [`Supervisor::handle_timeout`] is to be called, and the reason.
    pub fn poll_timeout(&self) -> Option<(Instant, Timer)> {
        if self.is_shut_down {
            return None;
        }
        let of_session = self.session.as_ref().and_then(Session::timeout);
        let of_search = match &self.search {
            Some(search) => search.timeout(),
            None if self.needs_search() => Some((self.next_search(), Timer::Search)),
            None => None,
        };
        let of_survey = match self.may_survey() {
            true => self.survey.as_ref().and_then(Survey::timeout),
            false => None,
        };
        earlier(earlier(of_session, of_search), of_survey)
    }

    /// Returns the server of the current session.
    pub fn server(&self) -> Option<&Server> {
        self.session.as_ref().map(Session::server)
    }

    /// Returns whether the server answers over an uplink, if it has a path.
    pub fn reachability(&self, interface: &str) -> Option<Reachability> {
        self.session.as_ref()?.reachability(interface)
    }

    /// Returns how much the uplinks have carried this month.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// Returns whether an answer to [`Command::Open`] over the connection is awaited.
    pub fn is_opening(&self, connection: ConnectionId) -> bool {
        let opening = self.opening.as_ref();
        opening.is_some_and(|opening| opening.connection == connection)
    }

    fn usable(&self) -> Vec<Uplink> {
        let uplinks = self.uplinks.iter();
        let usable = uplinks.filter(|uplink| !self.usage.is_used_up(uplink));
        usable.cloned().collect()
    }

    /// Brings everything in line with the uplinks, the session and the time.
    fn decide(&mut self, now: Instant) {
        if self.is_shut_down {
            return;
        }
        let usable = self.usable();
        self.keep_opening(&usable);
        // First, so that a survey ends before a search dials the same servers.
        self.drive_survey(now, &usable);
        self.drive_search(now, &usable);
        if let Some(session) = &mut self.session {
            session.follow(now, &usable, &mut self.out);
        }
    }

    /// Gives up a request for a session if its uplink is not usable any more, or has other addresses.
    fn keep_opening(&mut self, usable: &[Uplink]) {
        let is_stale = |opening: &mut Target| {
            let uplink = &opening.uplink;
            !usable.iter().any(|usable| {
                usable.interface == uplink.interface && opening.own(usable) == opening.own(uplink)
            })
        };
        if let Some(opening) = self.opening.take_if(is_stale) {
            self.out.close(opening.connection, CloseReason::Unused);
        }
    }

    fn needs_search(&self) -> bool {
        let needs_server = self.session.as_ref().is_none_or(Session::needs_server);
        needs_server && self.opening.is_none() && self.servers.is_some()
    }

    fn next_search(&self) -> Instant {
        self.search_at.max(self.paused_until)
    }

    fn drive_search(&mut self, now: Instant, usable: &[Uplink]) {
        if !self.needs_search() {
            return self.abandon_search();
        }
        if let Some(search) = &mut self.search {
            search.retain(usable, &mut self.out);
        } else if now >= self.next_search() {
            self.begin_search(usable);
        }
        if let Some(search) = self.search.take_if(|search| search.is_done(now)) {
            match search.finish(&mut self.out) {
                Some((found, _)) => self.handle_found(now, found),
                None => self.handle_nothing_found(now),
            }
        }
    }

    fn begin_search(&mut self, usable: &[Uplink]) {
        let mut servers = self.servers.clone().unwrap_or_default();
        if let Some(session) = self.session.as_ref().filter(|session| session.is_draining) {
            servers.retain(|server| server != session.server());
        }
        let refused_by = self.refused_by.take();
        if servers.len() > 1 {
            servers.retain(|server| Some(&server.name) != refused_by.as_ref());
        }
        let mut search = Search::new(servers, self.failed_uplink.take());
        search.dial(usable, &mut self.out);
        self.search = Some(search);
    }

    fn abandon_search(&mut self) {
        if let Some(search) = self.search.take() {
            search.abandon(&mut self.out);
        }
    }

    fn handle_nothing_found(&mut self, now: Instant) {
        self.search_at = now + self.next_pause();
        if let Some(session) = &mut self.session {
            session.is_draining = false;
        }
    }

    fn handle_found(&mut self, now: Instant, found: Target) {
        let connection = found.connection;
        match &mut self.session {
            Some(session) if !session.is_over() && *session.server() == found.server => {
                self.out.close(connection, CloseReason::Unused);
                session.rejoin(now);
                self.search_at = now + REJOIN_TIME;
            }
            _ => self.open(found),
        }
    }

    fn open(&mut self, target: Target) {
        self.out.command(Command::Open {
            connection: target.connection,
            path: first_path(),
        });
        self.opening = Some(target);
    }

    /// Returns whether there is a session that could be a nearer server's.
    fn may_survey(&self) -> bool {
        let has_session = self.session.as_ref().is_some_and(|s| !s.needs_server());
        has_session && self.opening.is_none()
    }

    fn drive_survey(&mut self, now: Instant, usable: &[Uplink]) {
        let (true, Some(session)) = (self.may_survey(), &self.session) else {
            return self.postpone_survey(now);
        };
        let servers = self.servers.as_deref().unwrap_or_default();
        let (current, out) = (session.server(), &mut self.out);
        let survey = self.survey.as_mut();
        let nearer = survey.and_then(|survey| survey.drive(now, usable, servers, current, out));
        if let Some(target) = nearer {
            let (from, to) = (current.name.clone(), target.server.name.clone());
            self.out.event(Event::Nearer { from, to });
            self.open(target);
        }
    }

    fn postpone_survey(&mut self, now: Instant) {
        if let Some(survey) = &mut self.survey {
            survey.postpone(now, &mut self.out);
        }
    }

    fn handle_opened(&mut self, now: Instant, opening: Target, answer: Answer) {
        if answer != Answer::Accepted {
            self.paused_until = now + self.next_pause();
            match answer {
                Answer::Failed => self.failed_uplink = Some(opening.uplink.interface),
                _ => self.refused_by = Some(opening.server.name),
            }
            return;
        }
        self.close_session(now);
        let connection = opening.connection;
        let remote = opening.remote.expect("it was dialed before");
        self.out.command(Command::StartSession { connection });
        let path = Path::new(connection, first_path(), (opening.uplink, remote), false);
        self.session = Some(Session::new(now, opening.server, path));
        self.backoff.reset();
        self.search_at = now;
    }

    fn close_session(&mut self, now: Instant) {
        if let Some(mut session) = self.session.take() {
            session.end(now, &mut self.out);
            self.out.command(Command::CloseSession);
        }
    }

    fn next_pause(&mut self) -> Duration {
        self.backoff.after_failure(self.out.random())
    }
}

fn first_path() -> PathId {
    PathId::all().next().expect("there are paths")
}
