use super::dial_errors::DialErrors;
use super::kill_switch::KillSwitch;
use crate::config::{ClientConfig, Credentials, MARK};
use crate::inspected_socket::InspectedSocket;
use crate::join::{self, Answer, CloseCode, Hello, Opened, PathNumber, Refusal, Secret, SessionId};
use crate::quic::{
    CLIENT_ID_BYTES, DATAGRAM_BUFFER, endpoint, headers, transport, udp_payload, uplink_socket,
};
use crate::session::{Link, WakeCell};
use crate::tls;
use anyhow::{Context, Result, bail};
use hawser_io::interface;
use hawser_quic::{Live, MarkCounter, MarkedDatagrams};
use hawser_uplinks::{Route, Server, Uplink};
use noq::{Connecting, Connection, Endpoint, RecvStream, SendStream, TokioRuntime};
use std::net::{IpAddr, SocketAddr};
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The socket of an uplink, which notes the marked datagrams.
type UplinkSocket = InspectedSocket<Arc<MarkedDatagrams>>;

/// The time limit of a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time limit for the answer to the first message. The server waits longer than this for the
/// message, so that a message that is lost is noticed here, where the cause can be reported.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The smallest MTU that QUIC and IPv6 allow, in bytes; assumed of interfaces that report less.
const MIN_MTU: u16 = 1280;

/// Connects to servers.
pub(crate) struct Dialer {
    /// Read for each connection, because certificates are renewed.
    credentials: Credentials,
    inner_mtu: u16,
    /// Accepts only packets with its mark to servers that it was told to allow.
    kill_switch: Option<Arc<KillSwitch>>,
    pub(crate) dial_errors: DialErrors,
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
    wake: WakeCell,
}

/// The server refused the connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("refused by the server: {explanation}")]
pub(crate) struct Refused {
    pub(crate) reason: Refusal,
    explanation: String,
}

impl Dialer {
    /// Fails if the certificates are missing or not valid.
    pub(crate) fn new(
        config: &ClientConfig,
        kill_switch: Option<Arc<KillSwitch>>,
    ) -> Result<Dialer> {
        let credentials = config.common.credentials.clone();
        tls::client(&credentials)?;
        Ok(Dialer {
            credentials,
            inner_mtu: config.common.mtu,
            kill_switch,
            dial_errors: DialErrors::default(),
        })
    }

    /// Opens a socket bound to the interface and its address. `marks` counts what the network has
    /// marked.
    pub(crate) fn socket(
        &self,
        own: IpAddr,
        interface: &str,
        marks: &MarkCounter,
    ) -> Result<UplinkSocket> {
        let mark = self.kill_switch.is_some().then_some(MARK);
        let socket = uplink_socket(SocketAddr::new(own, 0), interface, mark)?;
        Ok(UplinkSocket::new(socket, Arc::clone(marks.datagrams()))?)
    }

    /// Allows packets to the servers through the kill switch, if there is one.
    pub(crate) async fn allow_servers(&self, servers: &[Server]) -> Result<()> {
        let Some(kill_switch) = self.kill_switch.clone() else {
            return Ok(());
        };
        let addresses: Vec<_> = servers
            .iter()
            .flat_map(|server| &server.addresses)
            .copied()
            .collect();
        spawn_blocking(move || kill_switch.allow_servers(addresses)).await?
    }

    /// Connects to the server over the uplink, bound to its interface and address.
    pub(crate) async fn dial(&self, uplink: &Uplink, server: &Server) -> Result<Dialed> {
        let Route { own, remote } = route(uplink, server)?;
        self.allow_servers(slice::from_ref(server)).await?;
        let mtu = uplink
            .mtu
            .map_or_else(|| interface_mtu(&uplink.interface), Ok)?;
        let payload = udp_payload(mtu, remote.ip(), self.inner_mtu);
        let marks = MarkCounter::default();
        let socket = self.socket(own, &uplink.interface, &marks)?;
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
        })
    }
}

fn client_endpoint(socket: UplinkSocket, payload: u16) -> Result<Endpoint> {
    let config = endpoint(CLIENT_ID_BYTES, payload)?;
    let (socket, runtime) = (Box::new(socket), Arc::new(TokioRuntime));
    Ok(Endpoint::new_with_abstract_socket(
        config, None, socket, runtime,
    )?)
}

/// Waits for the end of the handshake, and checks that the server supports what a path needs.
async fn complete(
    connecting: Connecting,
    remote: SocketAddr,
    uplink: &Uplink,
) -> Result<Connection> {
    let connection = timeout(HANDSHAKE_TIMEOUT, connecting)
        .await
        .with_context(|| {
            format!(
                "no answer from {remote}: check the route over {} and that UDP is not blocked",
                uplink.interface
            )
        })??;
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

    async fn ask(&mut self, hello: &Hello) -> Result<Answer> {
        join::send_padded(&mut self.send, hello, self.payload).await?;
        let answer = timeout(ANSWER_TIMEOUT, join::receive(&mut self.receive)).await;
        // The handshake has passed, but its packets are smaller.
        answer.with_context(|| {
            let mtu = self.payload + self.headers;
            format!(
                "small packets arrive but packets of {mtu} bytes do not: lower the uplink's mtu_bytes"
            )
        })?
    }

    fn refused(self, answer: Answer) -> anyhow::Error {
        CloseCode::Refused.close(&self.connection);
        match answer {
            Answer::Refused {
                reason,
                explanation,
            } => Refused {
                reason,
                explanation,
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
            wake,
        }
    }
}

impl Attached {
    /// Returns the link for the session, which sends changes of the path's standby state to
    /// `standby`.
    pub(crate) fn link(&self, standby: watch::Sender<bool>) -> Link {
        Link {
            connection: self.connection.clone(),
            live: Arc::clone(&self.live),
            received: Arc::clone(self.marks.received()),
            wake: Arc::clone(&self.wake),
            name: self.uplink.interface.clone(),
            cost: self.uplink.cost,
            standby: Some(standby),
            buffer: DATAGRAM_BUFFER,
        }
    }
}

fn route(uplink: &Uplink, server: &Server) -> Result<Route> {
    uplink.route(server).with_context(|| {
        format!(
            "{} and {} have no address family in common",
            uplink.interface, server.name
        )
    })
}

fn interface_mtu(interface: &str) -> Result<u16> {
    let mtu = interface::mtu_bytes(interface)?;
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX).max(MIN_MTU))
}
