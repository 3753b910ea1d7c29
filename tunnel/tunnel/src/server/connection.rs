use super::Server;
use super::registry::OpenSession;
use crate::join::{
    self, Answer, CloseCode, Hello, Notice, Opened, PathNumber, Refusal, Secret, SessionId,
};
use crate::quic::{DATAGRAM_BUFFER, transport, udp_payload};
use crate::session::{self, Admission, Command, Handle, Link, Settings};
use crate::tls::{Peer, ServerTls, peer};
use crate::version;
use anyhow::Result;
use hawser_io::handshakes::{HandshakeSlot, HandshakeSlots};
use hawser_quic::MarkCounter;
use hawser_units::PathId;
use noq::{Connection, ConnectionError, Endpoint, Incoming, RecvStream, SendStream, ServerConfig};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// The time for which smaller packets are used on a path when large ones did not arrive:
/// `PMTU_RAISE_TIMER` of RFC 8899, section 5.1.1.
const MTU_RETRY: Duration = Duration::from_secs(600);

/// The time without a refused client after which the next one is logged again.
const WARN_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The interval at which the backlog of a client with standby paths is checked.
const BACKLOG_INTERVAL: Duration = Duration::from_millis(250);

/// Accepts connections until the endpoint closes.
pub(super) async fn accept(
    server: Arc<Server>,
    endpoint: Endpoint,
    slots: Arc<HandshakeSlots>,
    tls: watch::Receiver<ServerTls>,
) {
    let mut overload = Overload::default();
    while let Some(incoming) = endpoint.accept().await {
        let taken = take_slot(&server, &slots, incoming, &mut overload);
        let Some((incoming, slot)) = taken else {
            continue;
        };
        let (server, slots) = (Arc::clone(&server), Arc::clone(&slots));
        let quic = tls.borrow().quic.clone();
        tokio::spawn(async move {
            let source = session::canonical(incoming.remote_address()).ip();
            if let Some(path) = admit(&server, incoming, &slot, quic).await {
                drop(slot);
                slots.remember(source);
                serve_path(&server, path, &slots).await;
            }
        });
    }
}

/// Takes a slot for the handshake of a connection. Returns none if the client has to validate its
/// address first or is refused.
fn take_slot(
    server: &Server,
    slots: &Arc<HandshakeSlots>,
    incoming: Incoming,
    overload: &mut Overload,
) -> Option<(Incoming, HandshakeSlot)> {
    let source = session::canonical(incoming.remote_address()).ip();
    if slots.is_crowded(source) && !incoming.remote_address_validated() {
        server.registry.count_refusal("retry");
        // Fails if the client has already answered a Retry; then the connection is refused.
        let _ = incoming.retry();
        return None;
    }
    match slots.take(source) {
        Ok(slot) => Some((incoming, slot)),
        Err(full) => {
            server.registry.count_refusal(full.name());
            overload.warn(source, "handshakes");
            // The refusal is shorter than the client's packet, and lets the client try another
            // server at once.
            incoming.refuse();
            None
        }
    }
}

/// A time in which clients are refused because there are too many of something.
#[derive(Default)]
pub(super) struct Overload {
    last_refused: Option<Instant>,
}

impl Overload {
    /// Warns of a refused client, unless it soon follows another one. `what` names that of which there
    /// are too many.
    pub(super) fn warn(&mut self, source: IpAddr, what: &str) {
        let last = self.last_refused.replace(Instant::now());
        if last.is_none_or(|last| last.elapsed() >= WARN_AGAIN_AFTER) {
            warn!(%source, "too many {what} at once: clients are refused; the status counts them");
        }
    }
}

/// Performs the handshake of a connection within its time limit. Returns none if the connection was
/// refused or failed, which is counted.
async fn admit(
    server: &Arc<Server>,
    incoming: Incoming,
    slot: &HandshakeSlot,
    quic: ServerConfig,
) -> Option<Attached> {
    let remote = session::canonical(incoming.remote_address());
    let time_limit = slot.time_limits().first_message;
    match timeout(time_limit, handshake(server, incoming, slot, quic)).await {
        Ok(Ok(path)) => path,
        Ok(Err(error)) => {
            server.registry.count_refusal("handshake");
            debug!(%remote, "handshake failed: {error:#}");
            None
        }
        Err(_) => {
            server.registry.count_refusal("timeout");
            debug!(%remote, "timeout: no valid first message");
            None
        }
    }
}

/// A connection that has been accepted as a path.
struct Attached {
    peer: Peer,
    link: Link,
    send: SendStream,
    receive: RecvStream,
    number: PathNumber,
    open: Arc<OpenSession>,
    answer: Answer,
    /// The UDP payload of a full packet, in bytes.
    payload: u16,
}

/// Completes the TLS handshake and processes the client's first message. Returns none if the
/// connection was refused.
async fn handshake(
    server: &Arc<Server>,
    incoming: Incoming,
    slot: &HandshakeSlot,
    mut quic: ServerConfig,
) -> Result<Option<Attached>> {
    let (live, wake) = Link::live();
    let remote = session::canonical(incoming.remote_address());
    let (outer_mtu, inner_mtu) = (server.config.outer_mtu, server.config.common.mtu);
    let payload = udp_payload(outer_mtu, remote.ip(), inner_mtu);
    quic.transport_config(transport(payload, &live)?);
    let marks = MarkCounter::new(Arc::clone(&server.marked));
    quic.crypto = marks.server(quic.crypto);
    let Some(connection) = complete_tls(server, incoming, slot, quic).await? else {
        return Ok(None);
    };
    if !version::is_shared(&connection) {
        server.registry.count_refusal("version");
        version::refuse(&connection);
        return Ok(None);
    }
    let peer = peer(&connection)?;
    let (mut send, mut receive) = match connection.accept_bi().await {
        Ok(stream) => stream,
        Err(reason) if CloseCode::Left.is_reason_of(&reason) => {
            debug!(%remote, "the client chose another connection");
            return Ok(None);
        }
        Err(reason) => return Err(reason.into()),
    };
    let ends = (&mut send, &mut receive);
    let outcome = process_hello(server, &connection, (remote, payload), &peer, ends).await;
    let (open, number, answer) = match outcome {
        Ok(accepted) => accepted,
        Err(_) if is_closed_by_peer(&connection) => {
            debug!(%remote, "the client chose another connection");
            return Ok(None);
        }
        Err((reason, explanation)) => {
            return refuse(server, &connection, &mut send, reason, explanation).await;
        }
    };
    let link = Link {
        connection,
        live,
        received: Arc::clone(marks.received()),
        wake,
        name: remote.to_string(),
        over_tcp: server.carries(remote),
        cost: 0,
        standby: None,
        buffer: DATAGRAM_BUFFER,
        narrowed: watch::Sender::default(),
    };
    Ok(Some(Attached {
        peer,
        link,
        send,
        receive,
        number,
        open,
        answer,
        payload,
    }))
}

/// Completes the TLS handshake within its time limit. Returns none if that was exceeded.
async fn complete_tls(
    server: &Server,
    incoming: Incoming,
    slot: &HandshakeSlot,
    quic: ServerConfig,
) -> Result<Option<Connection>> {
    let remote = session::canonical(incoming.remote_address());
    let time_limit = slot.time_limits().tls_handshake;
    let connection = timeout(time_limit, incoming.accept_with(Arc::new(quic))?);
    let Ok(connection) = connection.await else {
        server.registry.count_refusal("timeout");
        debug!(%remote, "timeout: TLS handshake not completed");
        return Ok(None);
    };
    Ok(Some(connection?))
}

/// An accepted request, or the reason for refusing it with an explanation.
type Outcome<T> = Result<T, (Refusal, String)>;

fn is_closed_by_peer(connection: &Connection) -> bool {
    let reason = connection.close_reason();
    matches!(reason, Some(ConnectionError::ApplicationClosed(_)))
}

/// Receives the first message of a client. One that asks whether full packets arrive is answered with
/// one, and the next message counts.
async fn receive_hello(
    (send, receive): (&mut SendStream, &mut RecvStream),
    payload: u16,
) -> Result<Hello> {
    let hello = join::receive(receive).await?;
    if hello != Hello::Probe {
        return Ok(hello);
    }
    join::send_padded(send, &Answer::Arrived, payload).await?;
    join::receive(receive).await
}

/// Processes the first message of a client: opens a session, or finds the one to join.
async fn process_hello(
    server: &Arc<Server>,
    connection: &Connection,
    (remote, payload): (SocketAddr, u16),
    peer: &Peer,
    ends: (&mut SendStream, &mut RecvStream),
) -> Outcome<(Arc<OpenSession>, PathNumber, Answer)> {
    let client = &peer.name;
    let hello = receive_hello(ends, payload).await;
    let hello = hello.map_err(|error| (Refusal::Malformed, format!("{error:#}")))?;
    if !admits(server, peer).await {
        let explanation = format!("client {client} is not admitted by this server");
        return Err((Refusal::NotAdmitted, explanation));
    }
    match hello {
        Hello::Probe => refused(Refusal::Malformed, "one probe is enough"),
        Hello::Open { addresses, path } => {
            let (open, answer) = open(server, connection, client, &addresses)?;
            info!(client, addresses = ?open.addresses, %remote, "session opened");
            Ok((open, path, answer))
        }
        Hello::Join {
            session,
            path,
            proof,
        } => {
            let open = find(server, client, session)?;
            if !open.secret.accepts(connection, path, &proof) {
                return refused(
                    Refusal::Proof,
                    "the proof is not valid for this session and connection",
                );
            }
            debug!(client, %remote, "path joined");
            Ok((open, path, Answer::Joined))
        }
    }
}

/// Returns the session of a client to which it adds a path.
fn find(server: &Server, client: &str, session: SessionId) -> Outcome<Arc<OpenSession>> {
    match server.registry.find(session, client) {
        Some(open) => Ok(open),
        None => refused(
            Refusal::UnknownSession,
            "the session does not exist or has ended",
        ),
    }
}

fn refused<T>(reason: Refusal, explanation: &str) -> Outcome<T> {
    Err((reason, explanation.to_owned()))
}

/// Returns whether a client with a valid certificate is admitted.
pub(super) async fn admits(server: &Server, peer: &Peer) -> bool {
    let is_listed = server.client_list.read().admits(&peer.name, &peer.serial);
    is_listed
        && match &server.allowlist {
            Some(allowlist) => allowlist.admits(peer).await,
            None => true,
        }
}

fn open(
    server: &Arc<Server>,
    connection: &Connection,
    client: &str,
    wanted: &[IpAddr],
) -> Outcome<(Arc<OpenSession>, Answer)> {
    check_may_open(server, client)?;
    let secret = |id| Secret::of(connection, id).ok();
    let mut task = None;
    let start = |id, addresses: &[IpAddr]| {
        let (handle, session) = start_session(server, id, addresses);
        task = Some(session);
        handle
    };
    let Some(open) = server.registry.open(client, wanted, secret, start) else {
        return refused(Refusal::Busy, "the server has no room for another client");
    };
    if let Some(task) = task {
        tokio::spawn(clean_up(Arc::clone(server), Arc::clone(&open), task));
    }
    let answer = Answer::Opened(Box::new(opened(server, &open)));
    Ok((open, answer))
}

/// Checks whether the server takes a session of the client now, and counts the session if so.
fn check_may_open(server: &Server, client: &str) -> Outcome<()> {
    if *server.draining.borrow() {
        return refused(Refusal::Busy, "the server is shutting down");
    }
    // A client with a session replaces it.
    if !server.budget.has_room() && !server.registry.has(client) {
        return refused(
            Refusal::Memory,
            "the server has no memory for another client",
        );
    }
    if !server.registry.may_open(client) {
        return refused(Refusal::TooOften, "this client opens sessions too often");
    }
    Ok(())
}

/// Returns what a client needs to know about its session.
fn opened(server: &Server, open: &OpenSession) -> Opened {
    let config = &server.config;
    let length = |address: &IpAddr| {
        let mut prefixes = config.prefixes.iter();
        let prefix = prefixes.find(|prefix| prefix.contains(*address));
        prefix.map_or(0, |prefix| prefix.length())
    };
    let addresses = open.addresses.iter();
    Opened {
        session: open.id,
        addresses: addresses
            .map(|address| (*address, length(address)))
            .collect(),
        server_addresses: server.registry.own_ips(),
        mtu: config.common.mtu,
        coding: config.coding.clone(),
    }
}

fn start_session(
    server: &Arc<Server>,
    session: SessionId,
    addresses: &[IpAddr],
) -> (Handle, tokio::task::JoinHandle<()>) {
    let config = &server.config;
    let (routes, registry) = (Arc::clone(&server.routes), Arc::clone(&server.registry));
    let routed = addresses.to_vec();
    session::start(Settings {
        coding: config
            .coding
            .config(&config.transport)
            .expect("the configuration was checked"),
        frame_boundary: config.coding.frame_boundary,
        device: Arc::clone(&server.device),
        admission: admission(server, addresses),
        claim: server.budget.claim(),
        session_timeout: config.session_timeout,
        mtu_retry: MTU_RETRY,
        mtu_changed: Box::new(move |mtu| routes.set(&registry, session, &routed, mtu)),
        mtu: config.common.mtu,
    })
}

/// Returns the filter for packets of a client with these addresses.
fn admission(server: &Server, addresses: &[IpAddr]) -> Admission {
    let config = &server.config;
    Admission::FromClient {
        own: addresses.to_vec(),
        clients: config.prefixes.clone(),
        server: server.registry.own_ips(),
        allowed_destinations: Arc::from(&config.allowed_destinations[..]),
        networks: server.networks.clone(),
    }
}

/// Waits for the end of a session and frees its addresses.
async fn clean_up(
    server: Arc<Server>,
    open: Arc<OpenSession>,
    session: tokio::task::JoinHandle<()>,
) {
    if let Err(error) = session.await {
        warn!(client = open.client, "the session's task failed: {error}");
    }
    server.registry.close(open.id);
    server.changed.notify_one();
    server.routes.delete(open.id, &open.addresses);
    info!(client = open.client, "session closed");
}

/// Answers the first message of a client with a refusal, and closes the connection.
async fn refuse(
    server: &Server,
    connection: &Connection,
    send: &mut SendStream,
    reason: Refusal,
    explanation: String,
) -> Result<Option<Attached>> {
    server.registry.count_refusal(name_of(reason));
    let answer = Answer::Refused {
        reason,
        explanation,
    };
    join::send(send, &answer).await?;
    // The client closes the connection when it has the answer, because it cannot become a path any
    // more.
    let _ = send.finish();
    let _ = timeout(Duration::from_secs(1), connection.closed()).await;
    CloseCode::Refused.close(connection);
    Ok(None)
}

/// Returns the name of the reason in the status.
fn name_of(reason: Refusal) -> &'static str {
    match reason {
        Refusal::Busy => "busy",
        Refusal::Memory => "memory",
        Refusal::TooOften => "too_often",
        Refusal::UnknownSession => "unknown_session",
        Refusal::Proof => "proof",
        Refusal::NotAdmitted => "not_admitted",
        Refusal::Malformed => "malformed",
    }
}

/// Serves a path until its connection closes.
async fn serve_path(server: &Server, path: Attached, slots: &HandshakeSlots) {
    let Attached {
        peer,
        link,
        mut send,
        mut receive,
        number,
        open,
        answer,
        payload,
    } = path;
    let connection = link.connection.clone();
    let narrowed = link.narrowed.subscribe();
    add_path(server, &open, number, link, peer).await;
    // A client receives notices of a backlog only on paths that have been on standby.
    let was_standby = watch::Sender::new(number.standby);
    let send_notices = async {
        // Fails only if the connection has just closed.
        let _ = join::send_padded(&mut send, &answer, payload).await;
        let changes = (was_standby.subscribe(), narrowed);
        notify(server, &open, changes, &mut send).await;
    };
    tokio::select! {
        reason = connection.closed() => {
            debug!(client = open.client, path = %number.index, "path lost: {reason}");
            if CloseCode::Done.is_reason_of(&reason) {
                open.handle.stop(CloseCode::Done);
            }
        }
        // The session may have ended before it took the path, and then cannot close it.
        () = open.handle.ended() => CloseCode::Done.close(&connection),
        () = receive_notices(server, &open, number.index, &mut receive, &was_standby) => {}
        () = send_notices => {}
    }
    // The client may have migrated, and may reconnect from its current address.
    let path = connection.path(noq::PathId::ZERO);
    if let Some(remote) = path.and_then(|path| path.remote_address().ok()) {
        slots.remember(session::canonical(remote).ip());
    }
    remove_path(server, &open, number.index, &connection).await;
}

/// Adds a path to its session.
async fn add_path(server: &Server, open: &OpenSession, number: PathNumber, link: Link, peer: Peer) {
    let connection = link.connection.clone();
    open.handle.send_command(Command::Add(number, link)).await;
    open.attach(connection.clone(), peer.clone());
    server.changed.notify_one();
    // From here on a revocation closes this connection; check whether it happened just before.
    if !server.admits_now(&peer) {
        server.registry.count_refusal("revoked");
        CloseCode::Refused.close(&connection);
    }
}

/// Removes a path whose connection has closed from its session.
async fn remove_path(server: &Server, open: &OpenSession, path: PathId, connection: &Connection) {
    let connection = connection.stable_id();
    open.detach(connection);
    open.handle
        .send_command(Command::Remove(path, connection))
        .await;
    server.changed.notify_one();
}

/// Passes notices of a client on to its session. Sets `was_standby` when the path is on standby.
/// Does not return.
async fn receive_notices(
    server: &Server,
    open: &OpenSession,
    path: PathId,
    receive: &mut RecvStream,
    was_standby: &watch::Sender<bool>,
) {
    while let Ok(Notice::Standby(standby)) = join::receive(receive).await {
        was_standby
            .send_if_modified(|was_standby| standby && !std::mem::replace(was_standby, true));
        // While the command queue is full, QUIC's flow control makes the client wait.
        open.handle
            .send_command(Command::Standby(path, standby))
            .await;
        server.changed.notify_one();
    }
    // The stream was closed, or the message was not valid: ignore further ones.
    std::future::pending::<()>().await;
}

/// Sends notices to a client on the stream of one of its paths.
async fn notify(
    server: &Server,
    open: &OpenSession,
    (mut was_standby, mut narrowed): (watch::Receiver<bool>, watch::Receiver<Option<u16>>),
    send: &mut SendStream,
) {
    let mut draining = server.draining.subscribe();
    let (mut warned, mut backlog) = (false, false);
    loop {
        let notice = tokio::select! {
            () = is_set(&mut draining), if !warned => {
                warned = true;
                Notice::Draining
            }
            () = is_set(&mut was_standby) => {
                sleep(BACKLOG_INTERVAL).await;
                let waits = open.handle.report().await.is_some_and(|report| report.waiting > 0);
                if std::mem::replace(&mut backlog, waits) == waits {
                    continue;
                }
                Notice::Backlog(waits)
            }
            // The session may have dropped the path before its connection closes.
            Ok(()) = narrowed.changed() => match *narrowed.borrow_and_update() {
                Some(payload) => Notice::Narrow(payload),
                None => continue,
            },
        };
        // Fails only if the connection has just closed.
        let _ = join::send(send, &notice).await;
    }
}

async fn is_set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending().await
    }
}
