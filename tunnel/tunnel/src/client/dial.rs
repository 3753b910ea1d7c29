use super::dial_errors::DialErrors;
use super::kept::Kept;
use super::kill_switch::KillSwitch;
use super::portal::{self, Portal};
use crate::config::{ClientConfig, Credentials, MARK};
use crate::ecn_socket::EcnSocket;
use crate::join::{self, Answer, CloseCode, Hello, Opened, PathNumber, Refusal, Secret, SessionId};
use crate::quic::{
    CLIENT_ID_BYTES, DATAGRAM_BUFFER, MIN_UDP_PAYLOAD, endpoint, headers, transport, udp_payload,
    uplink_socket,
};
use crate::session::{Link, WakeCell};
use crate::socket::set_mark;
use crate::tcp::{self, TcpSocket};
use crate::tls;
use crate::version;
use anyhow::{Context, Result, bail};
use futures_util::future::{BoxFuture, Either, join_all, select};
use hawser_io::interface::mtu_bytes;
use hawser_quic::{Live, MarkCounter};
use hawser_units::Line;
use hawser_uplinks::{Route, Server, Uplink};
use noq::{AsyncUdpSocket, Connecting, Connection, Endpoint};
use noq::{RecvStream, SendStream, TokioRuntime};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tracing::info;

/// The time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit for the answer to the first message. The server waits longer than this for the
/// message, so that a message that is lost is noticed here, where the cause can be reported.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The time without an answer over UDP after which TCP is tried as well. A path that has failed gets
/// [`hawser_uplinks::FAILED_AFTER`] for another connection.
const TCP_AFTER: Duration = Duration::from_secs(1);

/// The time without an answer after which the next pair of addresses is tried as well, such as those of
/// the other family: an uplink may have an address without a way to the Internet.
const OTHER_ADDRESS_AFTER: Duration = Duration::from_secs(1);

/// The interval at which UDP is tried again while a path is one over TCP. It doubles, up to the
/// maximum, each time that a path over UDP did not last as long as the maximum: some networks let
/// handshakes pass, and nothing after them.
const UDP_RETRY: Duration = Duration::from_secs(30);
const MAX_UDP_RETRY: Duration = Duration::from_secs(600);

/// The intervals of the uplinks at which UDP is tried again, and when it last worked again.
#[derive(Debug, Default)]
struct UdpPauses(BTreeMap<String, (Duration, Instant)>);

impl UdpPauses {
    /// Returns the interval for an uplink whose path has become one over TCP.
    fn begin(&mut self, interface: &str) -> Duration {
        match self.0.get(interface) {
            Some((pause, at)) if at.elapsed() < MAX_UDP_RETRY => *pause,
            _ => UDP_RETRY,
        }
    }

    /// Takes note that UDP works again.
    fn end(&mut self, interface: &str) {
        let next = (2 * self.begin(interface)).min(MAX_UDP_RETRY);
        self.0.insert(interface.to_owned(), (next, Instant::now()));
    }
}

/// Connects to servers.
pub(crate) struct Dialer {
    /// Read for each connection, because certificates are renewed.
    credentials: Credentials,
    inner_mtu: u16,
    /// Accepts only packets with its mark to servers that it was told to allow.
    kill_switch: Option<Arc<KillSwitch>>,
    pub(crate) dial_errors: DialErrors,
    udp_pauses: Mutex<UdpPauses>,
    kept: Arc<Kept>,
}

/// A connection to a server over one uplink, before the first message.
pub(crate) struct Dialed {
    pub(crate) uplink: Uplink,
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
    live: Arc<Live>,
    marks: MarkCounter,
    wake: WakeCell,
    send: SendStream,
    receive: RecvStream,
    /// The UDP payload of a full packet, and the size of the IP and UDP headers, in bytes.
    payload: u16,
    headers: u16,
    pub(super) server: Server,
    /// The address of the uplink.
    own: IpAddr,
    /// The address of the server in its list; a connection over TCP goes to another port of it.
    pub(crate) remote: SocketAddr,
    /// Whether larger packets do not arrive.
    pub(super) is_narrower: bool,
    pub(super) over_tcp: bool,
}

/// A connection that the server has accepted as a path.
pub(crate) struct Attached {
    pub(crate) uplink: Uplink,
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) live: Arc<Live>,
    pub(crate) marks: MarkCounter,
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
    pub(crate) number: PathNumber,
    pub(crate) server: Server,
    /// Whether the connection is one over TCP, because UDP is blocked.
    pub(crate) over_tcp: bool,
    wake: WakeCell,
}

/// The server did not answer over UDP.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no answer from {remote}: check the route over {interface} and that UDP is not blocked")]
struct Unanswered {
    remote: SocketAddr,
    interface: String,
}

/// The interface carries no packets of the size that QUIC needs.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "{interface} has an MTU of {mtu} bytes, and UDP to {remote} needs at least {needed}: increase it"
)]
struct SmallMtu {
    interface: String,
    mtu: u32,
    remote: SocketAddr,
    needed: u16,
}

/// The handshake was completed, but there was no answer to the first message, which fills a packet.
#[derive(Debug, Clone, thiserror::Error)]
#[error("small packets arrive but packets of {mtu} bytes do not")]
pub(crate) struct TooLarge {
    pub(crate) uplink: Uplink,
    /// The size of the packets, with all headers, in bytes.
    pub(crate) mtu: u16,
}

/// The server refused the connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("refused by the server: {explanation}")]
pub(crate) struct Refused {
    pub(crate) reason: Refusal,
    explanation: Line,
}

impl Dialer {
    /// Fails if the certificates are missing or not valid.
    pub(crate) fn new(
        config: &ClientConfig,
        kill_switch: Option<Arc<KillSwitch>>,
        kept: Arc<Kept>,
    ) -> Result<Dialer> {
        let credentials = config.common.credentials.clone();
        tls::client(&credentials)?;
        Ok(Dialer {
            credentials,
            inner_mtu: config.common.mtu,
            kill_switch,
            dial_errors: DialErrors::default(),
            udp_pauses: Mutex::default(),
            kept,
        })
    }

    /// Opens a socket bound to the interface and its address. `marks` counts what the network has
    /// marked.
    pub(crate) fn socket(
        &self,
        own: IpAddr,
        interface: &str,
        marks: &MarkCounter,
    ) -> Result<EcnSocket> {
        let socket = uplink_socket(SocketAddr::new(own, 0), interface, self.mark())?;
        Ok(EcnSocket::new(socket, Arc::clone(marks.datagrams()))?)
    }

    /// Allows packets to the servers through the kill switch, if there is one.
    pub(crate) async fn allow_servers(&self, servers: &[Server]) -> Result<()> {
        let Some(kill_switch) = self.kill_switch.clone() else {
            return Ok(());
        };
        let servers = servers.to_vec();
        spawn_blocking(move || kill_switch.allow_servers(&servers)).await?
    }

    /// Connects to the server over the uplink, bound to its interface and address: by the preferred
    /// addresses, and after a while also by each of the others.
    pub(crate) async fn dial(&self, uplink: &Uplink, server: &Server) -> Result<Dialed> {
        let mut routes = uplink.routes(server).into_iter().rev();
        let last = routes.next().with_context(|| {
            format!(
                "{} and {} have no address family in common",
                uplink.interface, server.name
            )
        })?;
        self.allow_servers(slice::from_ref(server)).await?;
        let mut attempt: BoxFuture<'_, _> = Box::pin(self.dial_by(uplink, server, last));
        for route in routes {
            let preferred = self.dial_by(uplink, server, route);
            let others = async {
                sleep(OTHER_ADDRESS_AFTER).await;
                attempt.await
            };
            attempt = Box::pin(async move {
                first_of(("the preferred address", preferred), others, |_| false).await
            });
        }
        match attempt.await {
            Ok(dialed) => Ok(dialed),
            Err(error) => Err(self.explain(error, uplink, server).await),
        }
    }

    /// Connects to an address of the server: over UDP, and after a while also over TCP, if the server
    /// has a port for it.
    async fn dial_by(&self, uplink: &Uplink, server: &Server, route: Route) -> Result<Dialed> {
        let udp = self.dial_udp(uplink, server, route);
        match server.tcp_port {
            Some(port) => {
                let tcp = self.dial_tcp(uplink, server, route, port);
                // If the server answers over UDP, it would say the same over TCP.
                let is_final =
                    |error: &anyhow::Error| !error.is::<Unanswered>() && !error.is::<SmallMtu>();
                first_of(("UDP", udp), tcp, is_final).await
            }
            None => udp.await,
        }
    }

    /// Waits until the server answers over UDP, where it did not before.
    pub(crate) async fn wait_for_udp(&self, uplink: &Uplink, server: &Server) {
        let pause = self.udp_pauses.lock().begin(&uplink.interface);
        loop {
            sleep(pause).await;
            for route in uplink.routes(server) {
                if let Ok(dialed) = self.dial_udp(uplink, server, route).await {
                    self.udp_pauses.lock().end(&uplink.interface);
                    return CloseCode::Left.close(&dialed.connection);
                }
            }
        }
    }

    pub(super) async fn dial_udp(
        &self,
        uplink: &Uplink,
        server: &Server,
        route: Route,
    ) -> Result<Dialed> {
        check_mtu(&uplink.interface, route.remote)?;
        let marks = MarkCounter::default();
        let socket = self.socket(route.own, &uplink.interface, &marks)?;
        let ends = (uplink, server, route);
        self.connect(ends, Box::new(socket), marks, false).await
    }

    async fn dial_tcp(
        &self,
        uplink: &Uplink,
        server: &Server,
        route: Route,
        port: u16,
    ) -> Result<Dialed> {
        sleep(TCP_AFTER).await;
        let remote = SocketAddr::new(route.remote.ip(), port);
        let stream = timeout(
            HANDSHAKE_TIMEOUT,
            self.tls_stream(uplink, server, route.own, remote),
        );
        let stream = stream.await.map_err(anyhow::Error::from).flatten();
        let stream = stream.with_context(|| format!("TCP to {remote}"))?;
        let (socket, streams) = TcpSocket::new(SocketAddr::new(route.own, 0));
        let mut carried = tokio::spawn(streams.carry(remote, stream));
        let own = route.own;
        let (ends, marks) = (
            (uplink, server, Route { own, remote }),
            MarkCounter::default(),
        );
        let mut dialed = tokio::select! {
            dialed = self.connect(ends, Box::new(socket), marks, true) => dialed?,
            ended = &mut carried => bail!("TCP to {remote}: {}", ended?),
        };
        dialed.remote = route.remote;
        // The task must not keep the connection, whose end ends the stream.
        let connection = dialed.connection.weak_handle();
        let interface = uplink.interface.clone();
        tokio::spawn(async move {
            if let (Ok(ended), Some(connection)) = (carried.await, connection.upgrade()) {
                info!(interface, "TCP to {remote}: {ended}");
                CloseCode::Left.close(&connection);
            }
        });
        Ok(dialed)
    }

    async fn tls_stream(
        &self,
        uplink: &Uplink,
        server: &Server,
        own: IpAddr,
        remote: SocketAddr,
    ) -> Result<TlsStream<TcpStream>> {
        let stream = self.tcp_stream(uplink, own, remote).await?;
        tcp::configure(&stream)?;
        let tls = TlsConnector::from(tls::tcp_client(&self.credentials)?);
        let name = ServerName::try_from(server.name.clone())?;
        Ok(tls.connect(name, stream).await?)
    }

    /// Opens a TCP connection bound to the uplink.
    async fn tcp_stream(
        &self,
        uplink: &Uplink,
        own: IpAddr,
        remote: SocketAddr,
    ) -> Result<TcpStream> {
        let socket = tcp::socket(SocketAddr::new(own, 0), Some(&uplink.interface))?;
        set_mark(&socket, self.mark())?;
        let socket = tokio::net::TcpSocket::from_std_stream(socket.into());
        Ok(socket.connect(remote).await?)
    }

    /// Returns the firewall mark of packets to servers.
    fn mark(&self) -> Option<u32> {
        self.kill_switch.is_some().then_some(MARK)
    }

    /// Adds to an error that the clock is wrong, what is known to keep answers away, or what a captive
    /// portal says, if that is so.
    async fn explain(
        &self,
        error: anyhow::Error,
        uplink: &Uplink,
        server: &Server,
    ) -> anyhow::Error {
        if let Some(wrong) = tls::wrong_time(&self.credentials, SystemTime::now()) {
            return error.context(wrong);
        }
        if !error.is::<Unanswered>() {
            return error;
        }
        let error = match self.kept.problem_of(&uplink.interface) {
            Some(problem) => error.context(problem),
            None => error,
        };
        // Many portals answer by one address family only.
        let routes = uplink.routes(server).into_iter();
        let portals = join_all(routes.map(|route| self.find_portal(uplink, route))).await;
        match portals.into_iter().flatten().next() {
            Some(portal) => error.context(portal),
            None => error,
        }
    }

    /// Returns the captive portal in place of an address of a server, if there is one that can be asked.
    async fn find_portal(&self, uplink: &Uplink, route: Route) -> Option<Portal> {
        let remote = SocketAddr::new(route.remote.ip(), portal::PORT);
        let portal = async {
            let stream = self.tcp_stream(uplink, route.own, remote).await?;
            portal::find(stream, remote).await
        };
        timeout(portal::TIMEOUT, portal).await.ok()?.ok()?
    }

    /// Performs the QUIC handshake with a server.
    async fn connect(
        &self,
        (uplink, server, Route { own, remote }): (&Uplink, &Server, Route),
        socket: Box<dyn AsyncUdpSocket>,
        marks: MarkCounter,
        over_tcp: bool,
    ) -> Result<Dialed> {
        let payload = udp_payload(uplink.mtu, remote.ip(), self.inner_mtu);
        let endpoint = client_endpoint(socket, payload)?;
        let (live, wake) = Link::live();
        let tls = marks.client(tls::client(&self.credentials)?);
        let mut config = noq::ClientConfig::new(tls);
        config.transport_config(transport(payload, &live)?);
        let connecting = endpoint.connect_with(config, remote, &server.name)?;
        let connection = complete(connecting, remote, uplink).await?;
        let (send, receive) = connection.open_bi().await?;
        Ok(Dialed {
            uplink: uplink.clone(),
            endpoint,
            connection,
            live,
            marks,
            wake,
            send,
            receive,
            payload,
            headers: headers(remote.ip()),
            server: server.clone(),
            own,
            remote,
            is_narrower: false,
            over_tcp,
        })
    }
}

/// Returns the connection that is there first, or the errors of both attempts. `first` is what the
/// first one uses, and `is_final` whether its error would be that of the second one as well.
async fn first_of(
    (first, attempt): (&str, impl Future<Output = Result<Dialed>>),
    second: impl Future<Output = Result<Dialed>>,
    is_final: impl Fn(&anyhow::Error) -> bool,
) -> Result<Dialed> {
    let (error, second) = match select(pin!(attempt), pin!(second)).await {
        Either::Left((Ok(dialed), _)) | Either::Right((Ok(dialed), _)) => return Ok(dialed),
        Either::Left((Err(error), _)) if is_final(&error) => return Err(error),
        Either::Left((Err(error), second)) => (error, second.await),
        Either::Right((Err(second), attempt)) => match attempt.await {
            Ok(dialed) => return Ok(dialed),
            Err(error) => (error, Err(second)),
        },
    };
    second.map_err(|second| error.context(format!("{second:#}; {first}")))
}

/// Fails if the interface does not carry the smallest packets of a handshake.
fn check_mtu(interface: &str, remote: SocketAddr) -> Result<()> {
    let needed = MIN_UDP_PAYLOAD + headers(remote.ip());
    match mtu_bytes(interface) {
        Ok(mtu) if mtu < needed.into() => Err(SmallMtu {
            interface: interface.to_owned(),
            mtu,
            remote,
            needed,
        }
        .into()),
        // Without the interface, the socket cannot be opened.
        _ => Ok(()),
    }
}

fn client_endpoint(socket: Box<dyn AsyncUdpSocket>, payload: u16) -> Result<Endpoint> {
    let config = endpoint(CLIENT_ID_BYTES, payload)?;
    let runtime = Arc::new(TokioRuntime);
    Ok(Endpoint::new_with_abstract_socket(
        config, None, socket, runtime,
    )?)
}

/// Waits for the end of the handshake, and checks that the server has this version and supports what a path
/// needs.
async fn complete(
    connecting: Connecting,
    remote: SocketAddr,
    uplink: &Uplink,
) -> Result<Connection> {
    let connection = timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .map_err(|_| Unanswered {
            remote,
            interface: uplink.interface.clone(),
        })??;
    version::check(&connection).await?;
    if connection.max_datagram_size().is_none() {
        bail!("the server does not support QUIC datagrams");
    }
    Ok(connection)
}

impl Dialed {
    /// Returns the round-trip time of the connection.
    pub(crate) fn rtt(&self) -> Duration {
        self.connection
            .rtt(noq::PathId::ZERO)
            .unwrap_or(Duration::MAX)
    }

    /// Opens a session, if possible with the inner addresses in `wanted`.
    pub(crate) async fn open(
        mut self,
        wanted: &[IpAddr],
        path: PathNumber,
    ) -> Result<(Opened, Secret, Attached)> {
        let hello = Hello::Open {
            addresses: wanted.to_vec(),
            path,
        };
        match self.ask(&hello).await? {
            Answer::Opened(opened) => {
                let secret = Secret::of(&self.connection, opened.session)?;
                Ok((*opened, secret, self.attached(path)))
            }
            answer => Err(self.refused(answer)),
        }
    }

    /// Joins a session as another path.
    pub(crate) async fn join(
        mut self,
        session: SessionId,
        secret: &Secret,
        path: PathNumber,
    ) -> Result<Attached> {
        let proof = secret.proof(&self.connection, path)?;
        match self
            .ask(&Hello::Join {
                session,
                path,
                proof,
            })
            .await?
        {
            Answer::Joined => Ok(self.attached(path)),
            answer => Err(self.refused(answer)),
        }
    }

    /// Asks whether full packets arrive in both directions.
    pub(super) async fn probe(mut self) -> Result<Dialed> {
        match self.ask(&Hello::Probe).await? {
            Answer::Arrived => Ok(self),
            answer => Err(self.refused(answer)),
        }
    }

    /// Returns the addresses of both ends.
    pub(super) fn route(&self) -> Route {
        Route {
            own: self.own,
            remote: self.remote,
        }
    }

    /// Returns the size of its full packets, with all headers, in bytes.
    pub(super) fn mtu(&self) -> u16 {
        self.payload + self.headers
    }

    async fn ask(&mut self, hello: &Hello) -> Result<Answer> {
        join::send_padded(&mut self.send, hello, self.payload).await?;
        match timeout(ANSWER_TIMEOUT, join::receive(&mut self.receive)).await {
            Ok(answer) => answer,
            Err(_) if self.over_tcp => bail!("no answer over TCP to the first message"),
            // The handshake has passed, but its packets are smaller.
            Err(_) => Err(TooLarge {
                mtu: self.mtu(),
                uplink: self.uplink.clone(),
            }
            .into()),
        }
    }

    fn refused(self, answer: Answer) -> anyhow::Error {
        CloseCode::Refused.close(&self.connection);
        match answer {
            Answer::Refused {
                reason,
                explanation,
            } => Refused {
                reason,
                explanation: Line::new(&explanation),
            }
            .into(),
            _ => anyhow::anyhow!("unexpected answer from the server"),
        }
    }

    fn attached(self, number: PathNumber) -> Attached {
        let Dialed {
            uplink,
            endpoint,
            connection,
            live,
            marks,
            wake,
            send,
            receive,
            server,
            over_tcp,
            ..
        } = self;
        Attached {
            uplink,
            endpoint,
            connection,
            live,
            marks,
            send,
            receive,
            number,
            server,
            over_tcp,
            wake,
        }
    }
}

impl Attached {
    /// Returns the link for the session, which sends changes of the path's standby state to
    /// `standby`.
    pub(crate) fn link(
        &self,
        standby: watch::Sender<bool>,
        narrowed: watch::Sender<Option<u16>>,
    ) -> Link {
        Link {
            connection: self.connection.clone(),
            live: Arc::clone(&self.live),
            received: Arc::clone(self.marks.received()),
            wake: Arc::clone(&self.wake),
            name: self.uplink.interface.clone(),
            over_tcp: self.over_tcp,
            cost: self.uplink.cost,
            standby: Some(standby),
            buffer: DATAGRAM_BUFFER,
            narrowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn udp_is_tried_more_rarely_if_it_keeps_failing() {
        let mut pauses = UdpPauses::default();
        for expected in [30, 60, 120, 240, 480, 600, 600] {
            assert_eq!(pauses.begin("wan0"), Duration::from_secs(expected));
            pauses.end("wan0");
        }
        assert_eq!(pauses.begin("wan1"), UDP_RETRY, "another uplink");
        pauses.0.get_mut("wan0").unwrap().1 -= MAX_UDP_RETRY;
        assert_eq!(pauses.begin("wan0"), UDP_RETRY, "it worked for long");
    }
    #[tokio::test]
    async fn an_explanation_hides_no_error_of_other_attempts() {
        let unanswered = Unanswered {
            remote: "192.0.2.1:4433".parse().unwrap(),
            interface: "wan0".to_owned(),
        };
        let udp = async { Err(unanswered.into()) };
        let tcp = async { Err(anyhow!("TCP to 192.0.2.1:443: connection refused")) };
        let Err(error) = first_of(("UDP", udp), tcp, |_| false).await else {
            panic!("both attempts fail");
        };
        assert!(error.is::<Unanswered>());
        assert_eq!(
            format!("{:#}", error.context("uplink wan0 has no carrier")),
            "uplink wan0 has no carrier: TCP to 192.0.2.1:443: connection refused; UDP: no answer from 192.0.2.1:4433: \
             check the route over wan0 and that UDP is not blocked"
        );
    }
}
