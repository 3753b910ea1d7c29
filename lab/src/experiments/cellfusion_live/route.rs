//! How the packets get from the car to the cloud: through the tunnel, past it, or by MPTCP.

use super::stream::{READ_TIMEOUT, framed, prepare};
use super::tunnel::{self, Tunnel};
use crate::topology::{End, Lab, Link};
use anyhow::{Context, Result};
use hawser_tunnel::status::SessionStatus;
use hawser_xnc::Scheme;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Where the cloud is, whatever the uplink.
pub(super) const CLOUD: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);

/// How long tunnels and connections have, at the first rates of the drive, before the video begins, and how long sockets
/// have that connect to nothing.
const PREPARATION: Duration = Duration::from_secs(8);
const PREPARATION_OF_SOCKETS: Duration = Duration::from_secs(1);

/// How long a connection may take, and its further subflows.
const PATIENCE: Duration = Duration::from_secs(20);
const FURTHER_SUBFLOWS: Duration = Duration::from_secs(2);

/// What carries the video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// The tunnel with a scheme of its own.
    Tunnel(Scheme),
    /// UDP over each uplink by itself, over all at the same time: they do not disturb each other.
    Single,
    /// One connection with a subflow on each uplink.
    Mptcp,
}

/// Where packets go in and where they come out. What carries them ends when this is dropped.
pub(super) struct Ends {
    pub(super) senders: Vec<Sender>,
    /// One for each route that can be told from the others.
    pub(super) receivers: Vec<Receiver>,
    tunnel: Option<Tunnel>,
}

/// Where packets go in.
pub(super) enum Sender {
    /// A connected socket.
    Datagrams(UdpSocket),
    /// A connection, and who writes to it: it waits when the connection is full, the camera does not.
    Stream {
        queue: Option<mpsc::Sender<Vec<u8>>>,
        connection: TcpStream,
        writer: Option<JoinHandle<()>>,
    },
}

/// Where they come out.
pub(super) enum Receiver {
    /// A bound socket.
    Datagrams(UdpSocket),
    /// A connection.
    Stream(TcpStream),
}

impl Route {
    /// The route of that name.
    pub(super) fn of(name: &str) -> Result<Self> {
        Ok(match name {
            "single" => Route::Single,
            "mptcp" => Route::Mptcp,
            name => Route::Tunnel(name.parse()?),
        })
    }

    /// How long it has to be ready, in which links are as at the beginning of the drive.
    pub(super) fn preparation(self) -> Duration {
        match self {
            Route::Single => PREPARATION_OF_SOCKETS,
            Route::Tunnel(_) | Route::Mptcp => PREPARATION,
        }
    }

    /// Makes ready what carries the packets, from and to a UDP port. `binary` is `hawser`; configurations and logs go to
    /// `directory`.
    pub(super) fn open(
        self,
        lab: &Lab,
        port: u16,
        binary: &Path,
        directory: &Path,
    ) -> Result<Ends> {
        lab.egress().ip(&format!("addr add {CLOUD}/32 dev lo"))?;
        let default_route = |(path, metric)| {
            let Link { near, far, .. } = lab.path(path);
            format!(
                "route add default via {} dev {} metric {metric}\n",
                far.v4, near.device
            )
        };
        lab.ingress().ip(&lab
            .paths()
            .zip(100..)
            .map(default_route)
            .collect::<String>())?;
        match self {
            Route::Tunnel(scheme) => through_tunnel(scheme, lab, port, binary, directory),
            Route::Single => by_each_path(lab, port),
            Route::Mptcp => by_mptcp(lab, port),
        }
    }
}

impl Ends {
    /// What the car's end of the tunnel says of it.
    pub(super) fn session(&self) -> Result<Option<SessionStatus>> {
        self.tunnel.as_ref().map(Tunnel::session).transpose()
    }
}

impl Sender {
    /// Sends a packet, as a camera does: what the network does not take is lost.
    pub(super) fn send(&self, packet: &[u8]) {
        match self {
            Sender::Datagrams(socket) => {
                let _ = socket.send(packet);
            }
            Sender::Stream { queue, .. } => {
                let _ = queue.as_ref().map(|queue| queue.send(framed(packet)));
            }
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Sender::Stream {
            queue,
            connection,
            writer,
        } = self
        {
            queue.take();
            // Who writes may wait for the network.
            let _ = connection.shutdown(Shutdown::Both);
            let _ = writer.take().map(JoinHandle::join);
        }
    }
}

fn by_each_path(lab: &Lab, port: u16) -> Result<Ends> {
    let mut ends = Ends {
        senders: Vec::new(),
        receivers: Vec::new(),
        tunnel: None,
    };
    for path in lab.paths() {
        let (near, far) = (&lab.path(path).near, &lab.path(path).far);
        let (sender, receiver) = datagrams(lab, near.v4, far.v4, port)?;
        ends.senders.push(sender);
        ends.receivers.push(receiver);
    }
    Ok(ends)
}

fn datagrams(lab: &Lab, from: Ipv4Addr, to: Ipv4Addr, port: u16) -> Result<(Sender, Receiver)> {
    let receiver = lab.egress().run(|| UdpSocket::bind((to, port)))??;
    prepare(&receiver)?;
    let sender = lab.ingress().run(|| UdpSocket::bind((from, port)))??;
    sender.connect((to, port))?;
    Ok((Sender::Datagrams(sender), Receiver::Datagrams(receiver)))
}

fn by_mptcp(lab: &Lab, port: u16) -> Result<Ends> {
    for end in [lab.ingress(), lab.egress()] {
        // The network shall be the limit, not these. While data of a slow path is missing the reader takes nothing, and
        // a small buffer full of data of the others stays small for ever.
        end.sysctl("net.ipv4.tcp_rmem", "4096 16777216 67108864")?;
        end.sysctl("net.ipv4.tcp_wmem", "4096 65536 67108864")?;
        end.sysctl("net.ipv4.tcp_congestion_control", "bbr")?;
    }
    let subflow = |path| {
        let End { v4, device, .. } = &lab.path(path).near;
        format!("mptcp endpoint add {v4} dev {device} subflow\n")
    };
    let subflows: Vec<String> = lab.paths().skip(1).map(subflow).collect();
    let limits = format!(
        "mptcp limits set subflows {} add_addr_accepted 0\n",
        subflows.len()
    );
    lab.egress().ip(&limits)?;
    lab.ingress().ip(&(limits + &subflows.concat()))?;
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    let listener = lab.egress().run(|| -> Result<Socket> {
        let listener = socket().context("the kernel has no MPTCP")?;
        listener.bind(&SocketAddr::from((CLOUD, port)).into())?;
        listener.listen(1)?;
        Ok(listener)
    })??;
    let sending = lab.ingress().run(|| -> Result<Socket> {
        let sending = socket()?;
        sending.set_tcp_nodelay(true)?;
        sending.connect_timeout(&SocketAddr::from((CLOUD, port)).into(), PATIENCE)?;
        Ok(sending)
    })??;
    let (mut receiving, mut connection) = (
        TcpStream::from(listener.accept()?.0),
        TcpStream::from(sending),
    );
    receiving.set_read_timeout(Some(READ_TIMEOUT))?;
    // The further subflows are made as soon as the first one has carried something.
    receiving.write_all(&[0])?;
    connection.read_exact(&mut [0])?;
    thread::sleep(FURTHER_SUBFLOWS);
    let mut writing = connection.try_clone()?;
    let (queue, packets) = mpsc::channel::<Vec<u8>>();
    let writer = thread::spawn(move || {
        // It ends when the connection is shut down, at the latest.
        while packets
            .recv()
            .is_ok_and(|packet| writing.write_all(&packet).is_ok())
        {}
    });
    let sender = Sender::Stream {
        queue: Some(queue),
        connection,
        writer: Some(writer),
    };
    Ok(Ends {
        senders: vec![sender],
        receivers: vec![Receiver::Stream(receiving)],
        tunnel: None,
    })
}

fn through_tunnel(
    scheme: Scheme,
    lab: &Lab,
    port: u16,
    binary: &Path,
    directory: &Path,
) -> Result<Ends> {
    let tunnel = Tunnel::start(scheme, lab, binary, directory)?;
    let (sender, receiver) = datagrams(lab, Ipv4Addr::UNSPECIFIED, tunnel::CLOUD_INSIDE, port)?;
    Ok(Ends {
        senders: vec![sender],
        receivers: vec![receiver],
        tunnel: Some(tunnel),
    })
}
