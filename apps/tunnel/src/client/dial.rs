use super::complaints::Complaints;
use super::kill_switch::{self, KillSwitch};
use super::uplinks::Uplink;
use crate::config::{ClientConfig, Credentials, ServerEntry};
use crate::join::{self, Answer, CloseCode, Hello, Opened, PathNumber, Refusal, Secret, SessionId};
use crate::quic::{
    CLIENT_ID_BYTES, DATAGRAM_BUFFER, endpoint, headers, transport, udp_payload, uplink_socket,
};
use crate::session::{Link, WakeCell};
use crate::tls;
use anyhow::{Context, Result, bail};
use hawser_quic::Live;
use noq::{Connection, Endpoint, RecvStream, SendStream, TokioRuntime};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::slice;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long an answer may take. The server waits longer for the question than this, so a question that does not get there
/// is noticed here, where it can be said why.
const ANSWER: Duration = Duration::from_secs(5);

/// What is assumed of an interface that does not say: the least that QUIC and IPv6 need.
const LEAST_MTU: u16 = 1280;

/// Makes connections to servers.
pub(crate) struct Dialer {
    /// Read for each connection, because certificates are renewed.
    credentials: Credentials,
    inner_mtu: u16,
    /// Lets out only what it knows by its mark and that goes to servers that it was told of.
    kill_switch: Option<Arc<KillSwitch>>,
    pub(crate) complaints: Complaints,
}

/// A connection to a server, over one uplink, that has not said yet what it is for.
pub(crate) struct Dialed {
    pub(crate) uplink: Uplink,
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
    live: Arc<Live>,
    wake: WakeCell,
    send: SendStream,
    receive: RecvStream,
    /// Bytes that a packet's payload may have, and those of UDP and IP around it.
    payload: u16,
    headers: u16,
}

/// A connection that the server has taken for a path.
pub(crate) struct Attached {
    pub(crate) uplink: Uplink,
    pub(crate) endpoint: Endpoint,
    pub(crate) connection: Connection,
    pub(crate) live: Arc<Live>,
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
    pub(crate) number: PathNumber,
    wake: WakeCell,
}

/// The server does not want the connection.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the server refuses: {explanation}")]
pub(crate) struct Refused {
    pub(crate) reason: Refusal,
    explanation: String,
}

impl Dialer {
    /// Fails when there are no certificates that can be used.
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
            complaints: Complaints::default(),
        })
    }

    /// A socket that keeps to the interface and its address.
    pub(crate) fn socket(&self, own: IpAddr, interface: &str) -> Result<UdpSocket> {
        let mark = self.kill_switch.is_some().then_some(kill_switch::MARK);
        uplink_socket(SocketAddr::new(own, 0), interface, mark)
    }

    /// Lets packets to the servers pass the kill switch, if there is one.
    pub(crate) async fn let_out(&self, servers: &[ServerEntry]) -> Result<()> {
        let Some(kill_switch) = self.kill_switch.clone() else {
            return Ok(());
        };
        let addresses: Vec<_> = servers
            .iter()
            .flat_map(|server| &server.addresses)
            .copied()
            .collect();
        spawn_blocking(move || kill_switch.let_out(addresses)).await?
    }

    /// Connects to the server over the uplink, whose device and address it keeps to.
    pub(crate) async fn dial(&self, uplink: &Uplink, server: &ServerEntry) -> Result<Dialed> {
        let (own, remote) = pair(uplink, server)?;
        self.let_out(slice::from_ref(server)).await?;
        let mtu = match uplink.mtu {
            Some(mtu) => mtu,
            None => interface_mtu(&uplink.interface)?,
        };
        let payload = udp_payload(mtu, remote.ip(), self.inner_mtu);
        let socket = self.socket(own, &uplink.interface)?;
        let endpoint = Endpoint::new(
            endpoint(CLIENT_ID_BYTES, payload)?,
            None,
            socket,
            Arc::new(TokioRuntime),
        )?;
        let (live, wake) = Link::live();
        let mut config = noq::ClientConfig::new(tls::client(&self.credentials)?);
        config.transport_config(transport(payload, &live)?);
        let connecting = endpoint.connect_with(config, remote, &server.name)?;
        let connection = timeout(HANDSHAKE, connecting).await.with_context(|| {
            format!(
                "no answer from {remote}: is there a route by {}, and does UDP pass?",
                uplink.interface
            )
        })??;
        if connection.max_datagram_size().is_none() {
            bail!("the server takes no datagrams");
        }
        let (send, receive) = connection.open_bi().await?;
        let headers = headers(remote.ip());
        Ok(Dialed {
            uplink: uplink.clone(),
            endpoint,
            connection,
            live,
            wake,
            send,
            receive,
            payload,
            headers,
        })
    }
}

impl Dialed {
    /// Opens a session, if possible with the inner addresses that the client had.
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

    /// Becomes one more path of a session.
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
        join::send_filling(&mut self.send, hello, self.payload).await?;
        let answer = timeout(ANSWER, join::receive(&mut self.receive)).await;
        // Packets of the handshake are smaller.
        answer.with_context(|| {
            let mtu = self.payload + self.headers;
            format!(
                "small packets pass, and one of {mtu} bytes does not: lower the uplink's mtu_bytes"
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
            _ => anyhow::anyhow!("the server answers something else than it was asked"),
        }
    }

    fn attached(self, number: PathNumber) -> Attached {
        let Dialed {
            uplink,
            endpoint,
            connection,
            live,
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
            send,
            receive,
            number,
            wake,
        }
    }
}

impl Attached {
    /// What the session needs; that the path waits is said at `standby`.
    pub(crate) fn link(&self, standby: watch::Sender<bool>) -> Link {
        Link {
            connection: self.connection.clone(),
            live: Arc::clone(&self.live),
            wake: Arc::clone(&self.wake),
            name: self.uplink.interface.clone(),
            cost: self.uplink.cost,
            standby: Some(standby),
            buffer: DATAGRAM_BUFFER,
        }
    }
}

/// The first of the server's addresses whose family the uplink has, with the uplink's own.
pub(crate) fn pair(uplink: &Uplink, server: &ServerEntry) -> Result<(IpAddr, SocketAddr)> {
    let own = |remote: &SocketAddr| {
        if remote.is_ipv4() {
            uplink.ipv4
        } else {
            uplink.ipv6
        }
    };
    let pair = server
        .addresses
        .iter()
        .find_map(|remote| Some((own(remote)?, *remote)));
    pair.with_context(|| {
        format!(
            "{} has no address of a family of {}'s",
            uplink.interface, server.name
        )
    })
}

fn interface_mtu(interface: &str) -> Result<u16> {
    let output = Command::new("ip")
        .args(["-json", "link", "show", "dev", interface])
        .output();
    let output = output.context("cannot run `ip`: is iproute2 installed?")?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("cannot ask for the MTU of {interface}"))?;
    let mtu = links[0]["mtu"]
        .as_u64()
        .with_context(|| format!("{interface} has no MTU"))?;
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX).max(LEAST_MTU))
}
