use super::Server;
use super::handshakes::{Full, HandshakeSlot, HandshakeSlots};
use super::registry::OpenSession;
use crate::join::{
    self, Answer, CloseCode, Hello, Notice, Opened, PathNumber, Refusal, Secret, SessionId,
};
use crate::quic::{DATAGRAM_BUFFER, transport, udp_payload};
use crate::session::{self, Admission, Command, Handle, Link, Settings};
use crate::tls::{Peer, peer};
use anyhow::Result;
use noq::{Connection, Endpoint, Incoming, RecvStream, SendStream, ServerConfig};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

/// The time limits from a client's first packet to its first message, and to the end of the TLS
/// handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// The same while handshake slots are short: still enough for a round trip over satellite and one
/// retransmission.
const SHORT_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
const SHORT_TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The time without a refused handshake after which the next one is logged again.
const WARN_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// The interval at which the backlog of a client with standby paths is checked.
const BACKLOG_INTERVAL: Duration = Duration::from_millis(250);

/// Accepts connections until the endpoint closes.
pub(super) async fn accept(
    server: Arc<Server>,
    endpoint: Endpoint,
    slots: Arc<HandshakeSlots>,
    quic: watch::Receiver<ServerConfig>,
) {
    let mut last_refused: Option<Instant> = None;
    while let Some(incoming) = endpoint.accept().await {
        let source = session::canonical(incoming.remote_address()).ip();
        if slots.is_crowded(source) && !incoming.remote_address_validated() {
            server.registry.count_refusal("retry");
            // Fails if the client has already answered a Retry; then the connection is refused.
            let _ = incoming.retry();
            continue;
        }
        let slot = match slots.take(source) {
            Ok(slot) => slot,
            Err(full) => {
                server.registry.count_refusal(match full {
                    Full::Source => "too_many_of_source",
                    Full::Server => "too_many_handshakes",
                });
                if last_refused
                    .replace(Instant::now())
                    .is_none_or(|last| last.elapsed() >= WARN_AGAIN_AFTER)
                {
                    warn!(%source, "too many handshakes at once: clients are refused; the status counts them");
                }
                // The refusal is shorter than the client's packet, and lets the client try another
                // server at once.
                incoming.refuse();
                continue;
            }
        };
        let (server, slots, quic) = (
            Arc::clone(&server),
            Arc::clone(&slots),
            quic.borrow().clone(),
        );
        tokio::spawn(async move {
            let remote = session::canonical(incoming.remote_address());
            let time_limit = if slot.has_less_time {
                SHORT_HANDSHAKE_TIMEOUT
            } else {
                HANDSHAKE_TIMEOUT
            };
            match timeout(time_limit, handshake(&server, incoming, &slot, quic)).await {
                Ok(Ok(Some(path))) => {
                    drop(slot);
                    slots.remember(source);
                    serve_path(&server, path, &slots).await;
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    server.registry.count_refusal("handshake");
                    debug!(%remote, "handshake failed: {error:#}");
                }
                Err(_) => {
                    server.registry.count_refusal("timeout");
                    debug!(%remote, "timeout: no valid first message");
                }
            }
        });
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
    let payload = udp_payload(
        server.config.outer_mtu,
        remote.ip(),
        server.config.common.mtu,
    );
    quic.transport_config(transport(payload, &live)?);
    let time_limit = if slot.has_less_time {
        SHORT_TLS_HANDSHAKE_TIMEOUT
    } else {
        TLS_HANDSHAKE_TIMEOUT
    };
    let connection = timeout(time_limit, incoming.accept_with(Arc::new(quic))?);
    let Ok(connection) = connection.await else {
        server.registry.count_refusal("timeout");
        debug!(%remote, "timeout: TLS handshake not completed");
        return Ok(None);
    };
    let connection = connection?;
    let peer = peer(&connection)?;
    let (mut send, mut receive) = connection.accept_bi().await?;
    let hello: Hello = match join::receive(&mut receive).await {
        Ok(hello) => hello,
        Err(error) => {
            return refuse(
                server,
                &connection,
                &mut send,
                Refusal::Malformed,
                format!("{error:#}"),
            )
            .await;
        }
    };
    if !admits(server, &peer).await {
        let explanation = format!("client {} is not admitted by this server", peer.name);
        return refuse(
            server,
            &connection,
            &mut send,
            Refusal::NotAdmitted,
            explanation,
        )
        .await;
    }
    let client = &peer.name;
    let outcome = match hello {
        Hello::Open { addresses, path } => {
            open(server, &connection, client, &addresses).map(|(open, answer)| {
                info!(client, addresses = ?open.addresses, %remote, "session opened");
                (open, path, answer)
            })
        }
        Hello::Join {
            session,
            path,
            proof,
        } => match server.registry.find(session, client) {
            None => Err((
                Refusal::UnknownSession,
                "the session does not exist or has ended".to_owned(),
            )),
            Some(open) if !open.secret.accepts(&connection, path, &proof) => Err((
                Refusal::Proof,
                "the proof is not valid for this session and connection".to_owned(),
            )),
            Some(open) => {
                debug!(client, %remote, "path joined");
                Ok((open, path, Answer::Joined))
            }
        },
    };
    match outcome {
        Ok((open, number, answer)) => {
            let name = remote.to_string();
            let link = Link {
                connection,
                live,
                wake,
                name,
                cost: 0,
                standby: None,
                buffer: DATAGRAM_BUFFER,
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
        Err((reason, explanation)) => {
            refuse(server, &connection, &mut send, reason, explanation).await
        }
    }
}

/// Returns whether a client with a valid certificate is admitted.
async fn admits(server: &Server, peer: &Peer) -> bool {
    let config = &server.config;
    let is_listed = config.admit_unlisted || config.clients.contains_key(&peer.name);
    is_listed
        && match &server.allowlist {
            Some(allowlist) => allowlist.admits(peer).await,
            None => true,
        }
}

async fn refuse(
    server: &Server,
    connection: &Connection,
    send: &mut SendStream,
    reason: Refusal,
    explanation: String,
) -> Result<Option<Attached>> {
    server.registry.count_refusal(match reason {
        Refusal::Busy => "busy",
        Refusal::Memory => "memory",
        Refusal::TooOften => "too_often",
        Refusal::UnknownSession => "unknown_session",
        Refusal::Proof => "proof",
        Refusal::NotAdmitted => "not_admitted",
        Refusal::Malformed => "malformed",
    });
    join::send(
        send,
        &Answer::Refused {
            reason,
            explanation,
        },
    )
    .await?;
    // The client closes the connection when it has the answer, because it cannot become a path any
    // more.
    let _ = send.finish();
    let _ = timeout(Duration::from_secs(1), connection.closed()).await;
    CloseCode::Refused.close(connection);
    Ok(None)
}

type Outcome<T> = Result<T, (Refusal, String)>;

fn open(
    server: &Arc<Server>,
    connection: &Connection,
    client: &str,
    wanted: &[IpAddr],
) -> Outcome<(Arc<OpenSession>, Answer)> {
    let config = &server.config;
    if *server.draining.borrow() {
        return Err((Refusal::Busy, "the server is shutting down".to_owned()));
    }
    // A client with a session replaces it.
    if !server.budget.has_room() && !server.registry.has(client) {
        return Err((
            Refusal::Memory,
            "the server has no memory for another client".to_owned(),
        ));
    }
    if !server.registry.may_open(client) {
        return Err((
            Refusal::TooOften,
            "this client opens sessions too often".to_owned(),
        ));
    }
    let secret = |id| Secret::of(connection, id).ok();
    let mut task = None;
    let start = |id, addresses: &[IpAddr]| {
        let (handle, session) = start_session(server, id, addresses);
        task = Some(session);
        handle
    };
    let full = || {
        (
            Refusal::Busy,
            "the server has no room for another client".to_owned(),
        )
    };
    let open = server
        .registry
        .open(client, wanted, secret, start)
        .ok_or_else(full)?;
    if let Some(task) = task {
        tokio::spawn(clean_up(Arc::clone(server), Arc::clone(&open), task));
    }
    let length = |address: &IpAddr| {
        config
            .prefixes
            .iter()
            .find(|prefix| prefix.contains(*address))
    };
    let addresses = open.addresses.iter();
    let addresses = addresses.map(|address| {
        (
            *address,
            length(address).map_or(0, |prefix| prefix.length()),
        )
    });
    let answer = Opened {
        session: open.id,
        addresses: addresses.collect(),
        server_addresses: server
            .registry
            .own_addresses()
            .into_iter()
            .map(|(address, _)| address)
            .collect(),
        mtu: config.common.mtu,
        coding: config.parameters.clone(),
    };
    Ok((open, Answer::Opened(Box::new(answer))))
}

fn start_session(
    server: &Arc<Server>,
    session: SessionId,
    addresses: &[IpAddr],
) -> (Handle, tokio::task::JoinHandle<()>) {
    let config = &server.config;
    let own = server
        .registry
        .own_addresses()
        .into_iter()
        .map(|(address, _)| address);
    let (routed, routes, registry) = (
        addresses.to_vec(),
        Arc::clone(&server.routes),
        Arc::clone(&server.registry),
    );
    session::start(Settings {
        coding: config
            .parameters
            .config()
            .expect("the configuration was checked"),
        frame_boundary: config.parameters.coding.frame_boundary,
        device: Arc::clone(&server.device),
        admission: Admission::FromClient {
            own: addresses.to_vec(),
            clients: config.prefixes.clone(),
            server: own.collect(),
            allowed_destinations: Arc::from(&config.allowed_destinations[..]),
            networks: server.networks.clone(),
        },
        claim: server.budget.claim(),
        session_timeout: config.session_timeout,
        mtu_changed: Box::new(move |mtu| routes.set(&registry, session, &routed, mtu)),
        mtu: config.common.mtu,
    })
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
    open.handle.send_command(Command::Add(number, link)).await;
    open.attach(connection.clone(), peer.clone());
    server.changed.notify_one();
    // From here on a revocation closes this connection; check whether it happened just before.
    if server
        .allowlist
        .as_ref()
        .is_some_and(|allowlist| !allowlist.contains(&peer))
    {
        CloseCode::Refused.close(&connection);
    }
    // A client receives notices of a backlog only on paths that have been on standby.
    let was_standby = watch::Sender::new(number.standby);
    let receive_notices = async {
        while let Ok(Notice::Standby(standby)) = join::receive(&mut receive).await {
            was_standby
                .send_if_modified(|was_standby| standby && !std::mem::replace(was_standby, true));
            // While the command queue is full, QUIC's flow control makes the client wait.
            open.handle
                .send_command(Command::Standby(number.index, standby))
                .await;
            server.changed.notify_one();
        }
        // The stream was closed, or the message was not valid: ignore further ones.
        std::future::pending::<()>().await;
    };
    let send_notices = async {
        // Fails only if the connection has just closed.
        let _ = join::send_padded(&mut send, &answer, payload).await;
        notify(server, &open, was_standby.subscribe(), &mut send).await;
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
        () = receive_notices => {}
        () = send_notices => {}
    }
    // The client may have migrated, and may reconnect from its current address.
    let path = connection.path(noq::PathId::ZERO);
    if let Some(remote) = path.and_then(|path| path.remote_address().ok()) {
        slots.remember(session::canonical(remote).ip());
    }
    open.detach(connection.stable_id());
    open.handle
        .send_command(Command::Remove(number.index, connection.stable_id()))
        .await;
    server.changed.notify_one();
}

/// Sends notices to a client on the stream of one of its paths.
async fn notify(
    server: &Server,
    open: &OpenSession,
    mut was_standby: watch::Receiver<bool>,
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
