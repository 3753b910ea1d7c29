use super::Server;
use super::places::{Full, Place, Places};
use super::registry::Open;
use crate::join::{self, Answer, CloseCode, Hello, Notice, Opened, PathNumber, Refusal, Secret, SessionId};
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

/// How long a client may take from its first packet to what it wants, and to the end of the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
const TLS_HANDSHAKE: Duration = Duration::from_secs(3);

/// The same where places are short: still a round trip by satellite, and a packet sent twice.
const PRESSED_HANDSHAKE: Duration = Duration::from_secs(3);
const PRESSED_TLS_HANDSHAKE: Duration = Duration::from_millis(1500);

/// That clients are turned away is said again when none was for so long.
const CALM: Duration = Duration::from_secs(60);

/// How often it is looked whether packets wait for the paths of a client some of which wait.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Lets clients in until the endpoint closes.
pub(super) async fn accept(
    server: Arc<Server>,
    endpoint: Endpoint,
    places: Arc<Places>,
    quic: watch::Receiver<ServerConfig>,
) {
    let mut turned_away: Option<Instant> = None;
    while let Some(incoming) = endpoint.accept().await {
        let source = session::canonical(incoming.remote_address()).ip();
        if places.is_crowded(source) && !incoming.remote_address_validated() {
            server.registry.refuse("retry");
            // It may not be asked to try again twice; then it is refused.
            let _ = incoming.retry();
            continue;
        }
        let place = match places.take(source) {
            Ok(place) => place,
            Err(full) => {
                server.registry.refuse(match full {
                    Full::Source => "too_many_of_source",
                    Full::Server => "too_many_handshakes",
                });
                if turned_away.replace(Instant::now()).is_none_or(|last| last.elapsed() >= CALM) {
                    warn!(%source, "too many handshakes at once: clients are turned away; the status counts them");
                }
                // The answer is shorter than the question, and lets the client try another server at once.
                incoming.refuse();
                continue;
            }
        };
        let (server, places, quic) = (Arc::clone(&server), Arc::clone(&places), quic.borrow().clone());
        tokio::spawn(async move {
            let remote = session::canonical(incoming.remote_address());
            let patience = if place.is_pressed { PRESSED_HANDSHAKE } else { HANDSHAKE };
            match timeout(patience, welcome(&server, incoming, &place, quic)).await {
                Ok(Ok(Some(path))) => {
                    drop(place);
                    places.remember(source);
                    attend(&server, path, &places).await;
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    server.registry.refuse("handshake");
                    debug!(%remote, "refused: {error:#}");
                }
                Err(_) => {
                    server.registry.refuse("timeout");
                    debug!(%remote, "took too long to say what it wants");
                }
            }
        });
    }
}

/// A connection that has become a path.
struct Attached {
    peer: Peer,
    link: Link,
    send: SendStream,
    receive: RecvStream,
    number: PathNumber,
    open: Arc<Open>,
    answer: Answer,
    /// Bytes that a packet's payload may have.
    payload: u16,
}

/// Hears what a client wants and does it; none when it was refused or wanted nothing more.
async fn welcome(
    server: &Arc<Server>,
    incoming: Incoming,
    place: &Place,
    mut quic: ServerConfig,
) -> Result<Option<Attached>> {
    let (live, wake) = Link::live();
    let remote = session::canonical(incoming.remote_address());
    let payload = udp_payload(server.config.outer_mtu, remote.ip(), server.config.common.mtu);
    quic.transport_config(transport(payload, &live)?);
    let patience = if place.is_pressed { PRESSED_TLS_HANDSHAKE } else { TLS_HANDSHAKE };
    let connection = timeout(patience, incoming.accept_with(Arc::new(quic))?);
    let Ok(connection) = connection.await else {
        server.registry.refuse("timeout");
        debug!(%remote, "took too long to show its certificate");
        return Ok(None);
    };
    let connection = connection?;
    let peer = peer(&connection)?;
    let (mut send, mut receive) = connection.accept_bi().await?;
    let hello: Hello = match join::receive(&mut receive).await {
        Ok(hello) => hello,
        Err(error) => {
            return refuse(server, &connection, &mut send, Refusal::Malformed, format!("{error:#}")).await;
        }
    };
    if !admits(server, &peer).await {
        let explanation = format!("{} is not among the clients of this server", peer.name);
        return refuse(server, &connection, &mut send, Refusal::NotAdmitted, explanation).await;
    }
    let client = &peer.name;
    let outcome = match hello {
        Hello::Open { addresses, path } => {
            open(server, &connection, client, &addresses).map(|(open, answer)| {
                info!(client, addresses = ?open.addresses, %remote, "session opened");
                (open, path, answer)
            })
        }
        Hello::Join { session, path, proof } => match server.registry.find(session, client) {
            None => Err((Refusal::UnknownSession, "this session is over".to_owned())),
            Some(open) if !open.secret.accepts(&connection, path, &proof) => {
                Err((Refusal::Proof, "the proof is of another session or connection".to_owned()))
            }
            Some(open) => {
                debug!(client, %remote, "path joined");
                Ok((open, path, Answer::Joined))
            }
        },
    };
    match outcome {
        Ok((open, number, answer)) => {
            let name = remote.to_string();
            let link = Link { connection, live, wake, name, cost: 0, standby: None, buffer: DATAGRAM_BUFFER };
            Ok(Some(Attached { peer, link, send, receive, number, open, answer, payload }))
        }
        Err((reason, explanation)) => refuse(server, &connection, &mut send, reason, explanation).await,
    }
}

/// Whether a client with a certificate of the authority may come in.
async fn admits(server: &Server, peer: &Peer) -> bool {
    let config = &server.config;
    let is_listed = config.open || config.clients.contains_key(&peer.name);
    is_listed
        && match &server.guests {
            Some(guests) => guests.admits(peer).await,
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
    server.registry.refuse(match reason {
        Refusal::Busy => "busy",
        Refusal::Memory => "memory",
        Refusal::TooOften => "too_often",
        Refusal::UnknownSession => "unknown_session",
        Refusal::Proof => "proof",
        Refusal::NotAdmitted => "not_admitted",
        Refusal::Malformed => "malformed",
    });
    join::send(send, &Answer::Refused { reason, explanation }).await?;
    // The client closes when it has the answer; what it says cannot be a path's any more.
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
) -> Outcome<(Arc<Open>, Answer)> {
    let config = &server.config;
    if *server.draining.borrow() {
        return Err((Refusal::Busy, "the server is ending".to_owned()));
    }
    // One that is there already leaves its former session.
    if !server.budget.has_room() && !server.registry.has(client) {
        return Err((Refusal::Memory, "the server has no memory for another client".to_owned()));
    }
    if !server.registry.may_open(client) {
        return Err((Refusal::TooOften, "this client opens sessions too often".to_owned()));
    }
    let secret = |id| Secret::of(connection, id).ok();
    let mut task = None;
    let start = |id, addresses: &[IpAddr]| {
        let (handle, session) = start_session(server, id, addresses);
        task = Some(session);
        handle
    };
    let full = || (Refusal::Busy, "the server has no room for another client".to_owned());
    let open = server.registry.open(client, wanted, secret, start).ok_or_else(full)?;
    if let Some(task) = task {
        tokio::spawn(clean_up(Arc::clone(server), Arc::clone(&open), task));
    }
    let length = |address: &IpAddr| config.prefixes.iter().find(|prefix| prefix.contains(*address));
    let addresses = open.addresses.iter();
    let addresses = addresses.map(|address| (*address, length(address).map_or(0, |prefix| prefix.length())));
    let answer = Opened {
        session: open.id,
        addresses: addresses.collect(),
        server_addresses: server.registry.own_addresses().into_iter().map(|(address, _)| address).collect(),
        mtu: config.common.mtu,
        coding: config.coding.clone(),
    };
    Ok((open, Answer::Opened(Box::new(answer))))
}

fn start_session(
    server: &Arc<Server>,
    session: SessionId,
    addresses: &[IpAddr],
) -> (Handle, tokio::task::JoinHandle<()>) {
    let config = &server.config;
    let own = server.registry.own_addresses().into_iter().map(|(address, _)| address);
    let (routed, routes, registry) =
        (addresses.to_vec(), Arc::clone(&server.routes), Arc::clone(&server.registry));
    session::start(Settings {
        coding: config.coding.config().expect("the configuration was checked"),
        borders: config.coding.borders,
        device: Arc::clone(&server.device),
        admission: Admission::FromClient {
            own: addresses.to_vec(),
            clients: config.prefixes.clone(),
            server: own.collect(),
            reach: Arc::from(&config.reach[..]),
            networks: server.networks.clone(),
        },
        claim: server.budget.claim(),
        keep: config.keep,
        mtu_changed: Box::new(move |mtu| routes.set(&registry, session, &routed, mtu)),
        mtu: config.common.mtu,
    })
}

/// When the session has ended, its addresses are free.
async fn clean_up(server: Arc<Server>, open: Arc<Open>, session: tokio::task::JoinHandle<()>) {
    if let Err(error) = session.await {
        warn!(client = open.client, "the session ended badly: {error}");
    }
    server.registry.close(open.id);
    server.changed.notify_one();
    server.routes.end(open.id, &open.addresses);
    info!(client = open.client, "session closed");
}

/// Stays with a path until its connection ends.
async fn attend(server: &Server, path: Attached, places: &Places) {
    let Attached { peer, link, mut send, mut receive, number, open, answer, payload } = path;
    let connection = link.connection.clone();
    open.handle.tell(Command::Add(number, link)).await;
    open.attach(connection.clone(), peer.clone());
    server.changed.notify_one();
    // Whoever revokes the certificate from now on sees the connection; it may have happened since it was looked at.
    if server.guests.as_ref().is_some_and(|guests| !guests.knows(&peer)) {
        CloseCode::Refused.close(&connection);
    }
    // A client has uplinks that wait when it wants to know whether it needs them.
    let has_waited = watch::Sender::new(number.standby);
    let listen = async {
        while let Ok(Notice::Standby(standby)) = join::receive(&mut receive).await {
            has_waited.send_if_modified(|has_waited| standby && !std::mem::replace(has_waited, true));
            // A session that has enough to do lets the client wait, by QUIC's flow control.
            open.handle.tell(Command::Standby(number.index, standby)).await;
            server.changed.notify_one();
        }
        // A client that closes its stream or talks nonsense has nothing more to say.
        std::future::pending::<()>().await;
    };
    let speak = async {
        // A connection that has just ended needs no answer.
        let _ = join::send_filling(&mut send, &answer, payload).await;
        notify(server, &open, has_waited.subscribe(), &mut send).await;
    };
    tokio::select! {
        reason = connection.closed() => {
            debug!(client = open.client, path = %number.index, "path lost: {reason}");
            if CloseCode::Done.is_of(&reason) {
                open.handle.stop(CloseCode::Done);
            }
        }
        // It may have ended before it took the path, which it then cannot close.
        () = open.handle.ended() => CloseCode::Done.close(&connection),
        () = listen => {}
        () = speak => {}
    }
    // It may have moved; from there it comes again.
    let path = connection.path(noq::PathId::ZERO);
    if let Some(remote) = path.and_then(|path| path.remote_address().ok()) {
        places.remember(session::canonical(remote).ip());
    }
    open.detach(connection.stable_id());
    open.handle.tell(Command::Remove(number.index, connection.stable_id())).await;
    server.changed.notify_one();
}

/// Tells a client what it should know, on the stream of one of its paths.
async fn notify(server: &Server, open: &Open, mut has_waited: watch::Receiver<bool>, send: &mut SendStream) {
    let mut draining = server.draining.subscribe();
    let (mut warned, mut wanted) = (false, false);
    loop {
        let notice = tokio::select! {
            () = is_set(&mut draining), if !warned => {
                warned = true;
                Notice::Draining
            }
            () = is_set(&mut has_waited) => {
                sleep(LOOK_EVERY).await;
                let waits = open.handle.report().await.is_some_and(|report| report.waiting > 0);
                if std::mem::replace(&mut wanted, waits) == waits {
                    continue;
                }
                Notice::Wanted(waits)
            }
        };
        // A connection that has just ended needs no notice.
        let _ = join::send(send, &notice).await;
    }
}

async fn is_set(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending().await
    }
}
