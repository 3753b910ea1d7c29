//! The connections of the client, from the attempt to dial them on, and their tasks.

use super::Current;
use super::dial::{Attached, Dialed, Dialer};
use super::path::{self, Stream};
use crate::join::{CloseCode, Opened, PathNumber, Secret};
use crate::quic::headers;
use crate::session::{Command as SessionCommand, Handle};
use anyhow::{Result, ensure};
use hawser_quic::MarkCounter;
use hawser_units::PathId;
use hawser_uplinks::{Command, ConnectionId, FAILED_AFTER, Notice, Server, Uplink};
use noq::{Connection, ConnectionError, Endpoint};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tracing::info;

/// The capacity of the queue of notices; a path whose notices wait receives no further ones.
const NOTICE_QUEUE: usize = 16;

/// A report of a connection's task.
pub(super) enum Outcome {
    Dialed(ConnectionId, Result<Dialed>),
    Opened(ConnectionId, Result<Box<(Opened, Secret, Attached)>>),
    Joined(ConnectionId, Result<Attached>),
    Closed(ConnectionId, ConnectionError),
    Notice(Notice),
}

/// A connection or the attempt to make one.
pub(super) struct Entry {
    pub(super) interface: String,
    pub(super) server: String,
    pub(super) stage: Stage,
}

/// How far a connection is.
pub(super) enum Stage {
    /// A task dials, or waits for an answer.
    Working(AbortHandle),
    Dialed(Box<Dialed>),
    Opened(Box<(Current, Attached)>),
    Joined(Box<Attached>),
    Path(PathEntry),
}

/// A path of the current session.
pub(super) struct PathEntry {
    pub(super) index: PathId,
    connection: Connection,
    endpoint: Endpoint,
    marks: MarkCounter,
    over_tcp: bool,
    /// The size of UDP payloads above which none arrives any more.
    narrowed: watch::Receiver<Option<u16>>,
    task: AbortHandle,
}

pub(super) struct Connections {
    dialer: Arc<Dialer>,
    entries: BTreeMap<ConnectionId, Entry>,
    tasks: JoinSet<Outcome>,
    notices: (mpsc::Sender<Notice>, mpsc::Receiver<Notice>),
    /// The servers that are allowed together before any of them is dialed.
    allowed: Arc<(OnceCell<()>, Vec<Server>)>,
}

impl Connections {
    pub(super) fn new(dialer: Arc<Dialer>) -> Connections {
        Connections {
            dialer,
            entries: BTreeMap::new(),
            tasks: JoinSet::new(),
            notices: mpsc::channel(NOTICE_QUEUE),
            allowed: Arc::default(),
        }
    }

    /// Waits for the next report; its connection may have been closed in the meantime.
    pub(super) async fn next(&mut self) -> Outcome {
        loop {
            tokio::select! {
                Some(notice) = self.notices.1.recv() => return Outcome::Notice(notice),
                Some(outcome) = self.tasks.join_next() => match outcome {
                    Ok(outcome) => return outcome,
                    Err(error) if error.is_panic() => {
                        std::panic::resume_unwind(error.into_panic())
                    }
                    // A task was aborted when its connection was closed.
                    Err(_) => {}
                },
            }
        }
    }

    /// Allows all servers that are to be dialed at once, so that none of them is delayed by the rule
    /// update for another.
    pub(super) fn allow_servers(&mut self, commands: &[Command]) {
        let mut servers: Vec<Server> = Vec::new();
        for command in commands {
            if let Command::Dial { server, .. } = command
                && !servers.contains(server)
            {
                servers.push(server.clone());
            }
        }
        self.allowed = Arc::new((OnceCell::new(), servers));
    }

    /// Dials a server. With `fits`, the connection is one whose full packets arrive.
    pub(super) fn dial(&mut self, id: ConnectionId, uplink: Uplink, server: Server, fits: bool) {
        let (dialer, allowed) = (Arc::clone(&self.dialer), Arc::clone(&self.allowed));
        let (interface, name) = (uplink.interface.clone(), server.name.clone());
        let task = self.tasks.spawn(async move {
            let (cell, servers) = &*allowed;
            // Each attempt reports a failure itself.
            let allow = || async { drop(dialer.allow_servers(servers).await) };
            cell.get_or_init(allow).await;
            let dialed = match dialer.dial(&uplink, &server).await {
                Ok(dialed) if fits => dialer.fit(dialed).await,
                dialed => dialed,
            };
            Outcome::Dialed(id, dialed)
        });
        let entry = Entry {
            interface,
            server: name,
            stage: Stage::Working(task),
        };
        self.entries.insert(id, entry);
    }

    /// Requests a session over a dialed connection.
    pub(super) fn open(&mut self, id: ConnectionId, wanted: Vec<IpAddr>, path: PathNumber) {
        let tasks = &mut self.tasks;
        let open = |dialed: Dialed| {
            tasks.spawn(async move {
                Outcome::Opened(id, dialed.open(&wanted, path).await.map(Box::new))
            })
        };
        ask(&mut self.entries, id, open);
    }

    /// Requests to join the session over a dialed connection.
    pub(super) fn join(&mut self, id: ConnectionId, current: &Current, path: PathNumber) {
        let (session, secret) = (current.session, current.secret.clone());
        let tasks = &mut self.tasks;
        let join = |dialed: Dialed| {
            tasks.spawn(
                async move { Outcome::Joined(id, dialed.join(session, &secret, path).await) },
            )
        };
        ask(&mut self.entries, id, join);
    }

    /// Adds a connection to the session as a path.
    pub(super) async fn add_path(&mut self, id: ConnectionId, to: &Handle) {
        let Some(Entry {
            interface,
            server,
            stage: Stage::Joined(attached),
        }) = self.entries.remove(&id)
        else {
            return;
        };
        info!(
            interface,
            server,
            over_tcp = attached.over_tcp,
            "uplink connected"
        );
        self.dialer.dial_errors.clear(&interface);
        let path = self.start_path(id, *attached, to).await;
        let entry = Entry {
            interface,
            server,
            stage: Stage::Path(path),
        };
        self.entries.insert(id, entry);
    }

    async fn start_path(&mut self, id: ConnectionId, attached: Attached, to: &Handle) -> PathEntry {
        let (standby, changes) = watch::channel(attached.number.standby);
        let narrowed = watch::Sender::default();
        let link = attached.link(standby, narrowed.clone());
        to.send_command(SessionCommand::Add(attached.number, link))
            .await;
        let try_udp = try_udp(
            id,
            Arc::clone(&self.dialer),
            &attached,
            self.notices.0.clone(),
        );
        let stream = Stream {
            connection: attached.connection.clone(),
            send: attached.send,
            receive: attached.receive,
            standby: changes,
            narrowed: narrowed.clone(),
        };
        let notices = self.notices.0.clone();
        let task = self.tasks.spawn(async move {
            tokio::select! {
                reason = path::serve(id, stream, notices) => Outcome::Closed(id, reason),
                never = try_udp => match never {},
            }
        });
        PathEntry {
            index: attached.number.index,
            connection: attached.connection,
            endpoint: attached.endpoint,
            marks: attached.marks,
            over_tcp: attached.over_tcp,
            narrowed: narrowed.subscribe(),
            task,
        }
    }

    /// Records that a connection is dialed. One that is not needed any more is closed.
    pub(super) fn set_dialed(&mut self, id: ConnectionId, dialed: Dialed) {
        match self.entries.get_mut(&id) {
            Some(entry) => entry.stage = Stage::Dialed(Box::new(dialed)),
            None => CloseCode::Left.close(&dialed.connection),
        }
    }

    /// Records how far a connection is. One that is not needed any more is dropped, which closes it.
    pub(super) fn set_stage(&mut self, id: ConnectionId, stage: Stage) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.stage = stage;
        }
    }

    /// Returns the session that a connection has opened. The connection can then become its path.
    pub(super) fn take_opened(&mut self, id: ConnectionId) -> Option<Current> {
        let mut entry = self.entries.remove(&id)?;
        let Stage::Opened(opened) = entry.stage else {
            return None;
        };
        let (current, attached) = *opened;
        entry.stage = Stage::Joined(Box::new(attached));
        self.entries.insert(id, entry);
        Some(current)
    }

    /// Returns the interface of a connection.
    pub(super) fn interface(&self, id: ConnectionId) -> Option<&str> {
        self.entries.get(&id).map(|entry| entry.interface.as_str())
    }

    /// Returns the name of the server of a connection.
    pub(super) fn server(&self, id: ConnectionId) -> &str {
        self.entries.get(&id).map_or("", |entry| &entry.server)
    }

    /// Records that the server of a connection did not answer within the time for another connection.
    pub(super) fn record_silence(&self, id: ConnectionId) {
        if let Some(entry) = self.entries.get(&id) {
            let error = anyhow::anyhow!("no answer within {} s", FAILED_AFTER.as_secs());
            let errors = &self.dialer.dial_errors;
            errors.record(&entry.interface, &entry.server, &error);
        }
    }

    /// Removes a connection.
    pub(super) fn take(&mut self, id: ConnectionId) -> Option<Entry> {
        self.entries.remove(&id)
    }

    /// Returns a connection that is a path.
    pub(super) fn path(&self, id: ConnectionId) -> Option<(&str, &PathEntry)> {
        match self.entries.get(&id)? {
            Entry {
                interface,
                stage: Stage::Path(path),
                ..
            } => Some((interface, path)),
            _ => None,
        }
    }

    /// Returns the interfaces of paths on which large packets have ceased to arrive since the last call,
    /// and the largest packets that may, with all headers.
    pub(super) fn narrowed(&mut self) -> Vec<(String, u16)> {
        let paths = self.entries.values_mut();
        let narrowed = paths.filter_map(|entry| match &mut entry.stage {
            Stage::Path(path) => Some((entry.interface.clone(), path.take_narrowed()?)),
            _ => None,
        });
        narrowed.collect()
    }

    /// Returns the path whose connection has this stable ID.
    pub(super) fn of_path(&self, stable_id: usize) -> Option<ConnectionId> {
        let is_path = |entry: &Entry| match &entry.stage {
            Stage::Path(path) => path.connection.stable_id() == stable_id,
            _ => false,
        };
        let mut entries = self.entries.iter();
        entries.find_map(|(id, entry)| is_path(entry).then_some(*id))
    }

    /// Drops all paths, whose connections their session closes.
    pub(super) fn drop_paths(&mut self) {
        self.entries.retain(|_, entry| match &entry.stage {
            Stage::Path(path) => {
                path.task.abort();
                false
            }
            _ => true,
        });
    }
}

impl PathEntry {
    fn take_narrowed(&mut self) -> Option<u16> {
        let payload = self.narrowed.has_changed().ok()?;
        let payload = payload.then(|| *self.narrowed.borrow_and_update())??;
        let path = self.connection.path(noq::PathId::ZERO)?;
        Some(payload.saturating_add(headers(path.remote_address().ok()?.ip())))
    }

    /// Moves the connection to another address of its uplink.
    pub(super) fn readdress(&self, dialer: &Dialer, interface: &str, own: IpAddr) -> Result<()> {
        ensure!(!self.over_tcp, "a TCP connection keeps its addresses");
        let socket = dialer.socket(own, interface, &self.marks)?;
        Ok(self.endpoint.rebind_abstract(Box::new(socket))?)
    }

    /// Returns the command that tells the session of another address.
    pub(super) fn moved(&self) -> SessionCommand {
        SessionCommand::Moved(self.index, self.connection.stable_id())
    }

    /// Closes the connection and removes the path from the session.
    pub(super) async fn close(self, code: CloseCode, session: Option<&Handle>) {
        self.task.abort();
        code.close(&self.connection);
        if let Some(session) = session {
            let id = self.connection.stable_id();
            session
                .send_command(SessionCommand::Remove(self.index, id))
                .await;
        }
    }
}

/// Returns a future that reports each time that a connection over TCP could be one over UDP.
fn try_udp(
    id: ConnectionId,
    dialer: Arc<Dialer>,
    attached: &Attached,
    notices: mpsc::Sender<Notice>,
) -> impl Future<Output = Infallible> + use<> {
    let over_tcp = attached.over_tcp;
    let (uplink, server) = (attached.uplink.clone(), attached.server.clone());
    async move {
        if !over_tcp {
            std::future::pending::<()>().await;
        }
        loop {
            dialer.wait_for_udp(&uplink, &server).await;
            info!(
                interface = uplink.interface,
                "the server answers over UDP again"
            );
            // The receiver exists as long as the client.
            let _ = notices.send(Notice::Improvable(id)).await;
        }
    }
}

/// Starts a task that sends the first message over a dialed connection.
fn ask(
    entries: &mut BTreeMap<ConnectionId, Entry>,
    id: ConnectionId,
    start: impl FnOnce(Dialed) -> AbortHandle,
) {
    let Some(mut entry) = entries.remove(&id) else {
        return;
    };
    if let Stage::Dialed(dialed) = entry.stage {
        entry.stage = Stage::Working(start(*dialed));
        entries.insert(id, entry);
    }
}
