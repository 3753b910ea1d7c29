//! Ways for the packets from the car to the cloud: the tunnel, single uplinks, or MPTCP.

use super::framing::{READ_TIMEOUT, prepare, with_length};
use super::tunnel::{self, CLOUD, Tunnel};
use super::{MPTCP, SINGLE};
use crate::programs::tunnel::route_to_server;
use crate::rivals::schemes::Scheme;
use anyhow::{Context, Result};
use hawser_testbed::topology::{End, Lab};
use hawser_tunnel::status::SessionStatus;
use socket2::{Domain, Protocol, Socket, Type};
use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The time for tunnels and connections to come up before the video begins, at the first rates of
/// the drive, and the time for sockets that need no connection.
const PREPARATION: Duration = Duration::from_secs(8);
const SOCKET_PREPARATION: Duration = Duration::from_secs(1);

/// The maximum time to connect, and the time for additional subflows.
const TIMEOUT: Duration = Duration::from_secs(20);
const SUBFLOW_SETUP_TIME: Duration = Duration::from_secs(2);

/// The transport of the video.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// The tunnel with a scheme.
    Tunnel(Scheme),
    /// UDP over each uplink separately. All uplinks are measured at the same time, because they do
    /// not influence each other.
    Single,
    /// One MPTCP connection with a subflow on each uplink.
    Mptcp,
}

/// The senders and receivers of a route. The processes of the route are stopped when this is
/// dropped.
pub(super) struct RouteEndpoints {
    pub(super) senders: Vec<Sender>,
    /// One for each path that is measured separately.
    pub(super) receivers: Vec<Receiver>,
    tunnel: Option<Tunnel>,
}

/// The sending side of a route.
pub(super) enum Sender {
    /// A connected socket.
    Datagrams(UdpSocket),
    /// A connection and the thread that writes to it. The thread waits when the send buffer is
    /// full, the camera does not.
    Stream {
        queue: Option<mpsc::Sender<Vec<u8>>>,
        connection: TcpStream,
        writer: Option<JoinHandle<()>>,
    },
}

/// The receiving side of a route.
pub(super) enum Receiver {
    /// A bound socket.
    Datagrams(UdpSocket),
    /// A connection.
    Stream(TcpStream),
}

/// The pattern of its cases: it on all drives.
impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/*", self.name())
    }
}

impl Route {
    /// Returns the name in cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Route::Tunnel(scheme) => scheme.name(),
            Route::Single => SINGLE,
            Route::Mptcp => MPTCP,
        }
    }

    /// Returns the time to become ready, in which links are as at the beginning of the drive.
    pub(super) fn preparation(self) -> Duration {
        match self {
            Route::Single => SOCKET_PREPARATION,
            Route::Tunnel(_) | Route::Mptcp => PREPARATION,
        }
    }

    /// Sets the route up between UDP ports of the given number. `binary` is `hawser`.
    /// Configurations and logs go to `directory`.
    pub(super) fn open(
        self,
        lab: &Lab,
        port: u16,
        binary: &Path,
        directory: &Path,
    ) -> Result<RouteEndpoints> {
        route_to_server(lab)?;
        match self {
            Route::Tunnel(scheme) => over_tunnel(scheme, lab, port, binary, directory),
            Route::Single => over_single_paths(lab, port),
            Route::Mptcp => over_mptcp(lab, port),
        }
    }
}

impl RouteEndpoints {
    /// Returns the status of the tunnel's session at the client.
    pub(super) fn session(&self) -> Result<Option<SessionStatus>> {
        self.tunnel.as_ref().map(Tunnel::session).transpose()
    }
}

impl Sender {
    /// Creates the sender of a connection.
    fn stream(connection: TcpStream) -> Result<Self> {
        let mut writing = connection.try_clone()?;
        let (queue, packets) = mpsc::channel::<Vec<u8>>();
        let writer = thread::spawn(move || {
            // The loop ends at the latest when the connection is shut down.
            while packets
                .recv()
                .is_ok_and(|packet| writing.write_all(&packet).is_ok())
            {}
        });
        Ok(Sender::Stream {
            queue: Some(queue),
            connection,
            writer: Some(writer),
        })
    }

    /// Sends a packet like a camera: packets that the network does not accept are lost.
    pub(super) fn send(&self, packet: &[u8]) {
        match self {
            Sender::Datagrams(socket) => {
                let _ = socket.send(packet);
            }
            Sender::Stream { queue, .. } => {
                let _ = queue.as_ref().map(|queue| queue.send(with_length(packet)));
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
            // The writing thread may be blocked by the network.
            let _ = connection.shutdown(Shutdown::Both);
            let _ = writer.take().map(JoinHandle::join);
        }
    }
}

fn over_single_paths(lab: &Lab, port: u16) -> Result<RouteEndpoints> {
    let mut ends = RouteEndpoints {
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

fn over_mptcp(lab: &Lab, port: u16) -> Result<RouteEndpoints> {
    set_up_mptcp(lab)?;
    let (sending, receiving) = connect_mptcp(lab, (CLOUD, port).into())?;
    receiving.set_read_timeout(Some(READ_TIMEOUT))?;
    Ok(RouteEndpoints {
        senders: vec![Sender::stream(sending)?],
        receivers: vec![Receiver::Stream(receiving)],
        tunnel: None,
    })
}

/// Configures both hosts, and a subflow on each uplink.
fn set_up_mptcp(lab: &Lab) -> Result<()> {
    for end in [lab.ingress(), lab.egress()] {
        // The network has to be the bottleneck, not the hosts. While data of a slow path is missing
        // the reader consumes nothing, so a small buffer that is full of data of other paths would
        // never grow.
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
    Ok(lab.ingress().ip(&(limits + &subflows.concat()))?)
}

/// Returns both ends of a connection from the car to the cloud with its subflows.
fn connect_mptcp(lab: &Lab, cloud: SocketAddr) -> Result<(TcpStream, TcpStream)> {
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    let listener = lab.egress().run(|| -> Result<Socket> {
        let listener = socket().context("the kernel does not support MPTCP")?;
        listener.bind(&cloud.into())?;
        listener.listen(1)?;
        Ok(listener)
    })??;
    let sending = lab.ingress().run(|| -> Result<Socket> {
        let sending = socket()?;
        sending.set_tcp_nodelay(true)?;
        sending.connect_timeout(&cloud.into(), TIMEOUT)?;
        Ok(sending)
    })??;
    let mut receiving = TcpStream::from(listener.accept()?.0);
    let mut sending = TcpStream::from(sending);
    // The additional subflows are established once the first one has carried data.
    receiving.write_all(&[0])?;
    sending.read_exact(&mut [0])?;
    thread::sleep(SUBFLOW_SETUP_TIME);
    Ok((sending, receiving))
}

fn over_tunnel(
    scheme: Scheme,
    lab: &Lab,
    port: u16,
    binary: &Path,
    directory: &Path,
) -> Result<RouteEndpoints> {
    let tunnel = Tunnel::start(scheme, lab, binary, directory)?;
    let (sender, receiver) = datagrams(lab, Ipv4Addr::UNSPECIFIED, tunnel::CLOUD_INSIDE, port)?;
    Ok(RouteEndpoints {
        senders: vec![sender],
        receivers: vec![receiver],
        tunnel: Some(tunnel),
    })
}
