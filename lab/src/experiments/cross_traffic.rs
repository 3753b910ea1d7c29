//! Traffic that competes with a video or a volumetric stream.

use super::rtp_video::Video;
use anyhow::{Context, Result, anyhow, ensure};
use hawser_io::sockopt;
use hawser_qoe::Frame;
use hawser_testbed::netns::Namespace;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpCongestion;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Cross traffic that competes with the video.
#[derive(Debug, Clone, Copy)]
pub(super) struct CrossTraffic {
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Nothing,
    /// TCP connections that send at full speed.
    Bulk {
        connections: usize,
        congestion: &'static str,
    },
    /// A sender without congestion control, with random payload.
    Udp {
        mbps: f64,
    },
    /// Another video with the same parameters.
    Camera,
}

pub(super) const CROSS_TRAFFIC: [CrossTraffic; 6] = [
    CrossTraffic::NONE,
    CrossTraffic {
        name: "cubic-1",
        kind: Kind::Bulk {
            connections: 1,
            congestion: "cubic",
        },
    },
    CrossTraffic {
        name: "cubic-8",
        kind: Kind::Bulk {
            connections: 8,
            congestion: "cubic",
        },
    },
    CrossTraffic {
        name: "bbr-8",
        kind: Kind::Bulk {
            connections: 8,
            congestion: "bbr",
        },
    },
    CrossTraffic {
        name: "udp-30",
        kind: Kind::Udp { mbps: 30.0 },
    },
    CrossTraffic {
        name: "camera-2",
        kind: Kind::Camera,
    },
];

/// Payload of a UDP packet in bytes.
const UDP_PAYLOAD: usize = 1200;

/// The interval at which the UDP sender sends the packets that are due.
const TICK: Duration = Duration::from_millis(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

impl CrossTraffic {
    pub(super) const NONE: CrossTraffic = CrossTraffic {
        name: "alone",
        kind: Kind::Nothing,
    };

    /// Returns so many TCP Cubic connections that send at full speed.
    pub(super) const fn cubic(connections: usize) -> Self {
        CrossTraffic {
            name: "cubic",
            kind: Kind::Bulk {
                connections,
                congestion: "cubic",
            },
        }
    }

    pub(super) fn is_none(&self) -> bool {
        matches!(self.kind, Kind::Nothing)
    }

    /// Returns whether it sends only as much as it needs.
    pub(super) fn is_camera(&self) -> bool {
        matches!(self.kind, Kind::Camera)
    }
}

/// Running cross traffic.
pub(super) struct ActiveCrossTraffic {
    received_bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    connections: Vec<TcpStream>,
    threads: Vec<JoinHandle<Result<()>>>,
    camera: Option<Video>,
}

/// The results of cross traffic that was stopped.
pub(super) struct Stopped {
    /// The complete frames of a camera.
    pub(super) frames: Option<Vec<Frame>>,
    pub(super) invalid_because: Vec<String>,
}

impl ActiveCrossTraffic {
    pub(super) fn start(
        cross_traffic: &CrossTraffic,
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        seed: u64,
    ) -> Result<Self> {
        let mut active = ActiveCrossTraffic {
            received_bytes: Arc::default(),
            stop: Arc::default(),
            connections: Vec::new(),
            threads: Vec::new(),
            camera: None,
        };
        match cross_traffic.kind {
            Kind::Nothing => {}
            Kind::Bulk {
                connections,
                congestion,
            } => {
                for _ in 0..connections {
                    active.add_connection(from, to, address, congestion)?;
                }
            }
            Kind::Udp { mbps } => active.add_udp(from, to, address, mbps, seed)?,
            Kind::Camera => active.camera = Some(Video::start(from, to, address, seed + 1)?),
        }
        Ok(active)
    }

    /// Returns the number of payload bytes received so far.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Relaxed)
    }

    /// Stops all senders and receivers.
    pub(super) fn stop(mut self) -> Result<Stopped> {
        self.stop.store(true, Relaxed);
        for connection in self.connections.drain(..) {
            // If the connection is already closed, its threads have returned an error.
            let _ = connection.shutdown(Shutdown::Both);
        }
        let mut invalid_because = Vec::new();
        for thread in self.threads.drain(..) {
            if let Err(error) = thread
                .join()
                .map_err(|_| anyhow!("a sender or receiver panicked"))?
            {
                invalid_because.push(format!("{error:#}"));
            }
        }
        let camera = self.camera.map(Video::stop).transpose()?;
        Ok(Stopped {
            frames: camera.map(|(frames, _)| frames),
            invalid_because,
        })
    }

    fn add_connection(
        &mut self,
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        congestion: &'static str,
    ) -> Result<()> {
        let listener = to.run(|| TcpListener::bind((address, 0)))??;
        let target = listener.local_addr()?;
        let mut sender = from.run(|| TcpStream::connect_timeout(&target, CONNECT_TIMEOUT))??;
        setsockopt(&sender, TcpCongestion, &congestion.into()).with_context(|| {
            format!("the kernel does not support the congestion control {congestion:?}")
        })?;
        let (mut receiver, _) = listener.accept()?;
        // Both ends are closed at the end: nothing may pass between them then.
        self.connections
            .extend([sender.try_clone()?, receiver.try_clone()?]);
        let (stop, received) = (Arc::clone(&self.stop), Arc::clone(&self.received_bytes));
        self.threads.push(thread::spawn(move || {
            read_all(&mut receiver, &received);
            Ok(())
        }));
        self.threads
            .push(thread::spawn(move || write_all(&mut sender, &stop)));
        Ok(())
    }

    fn add_udp(
        &mut self,
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        mbps: f64,
        seed: u64,
    ) -> Result<()> {
        let receiver = to.run(|| UdpSocket::bind((address, 0)))??;
        receiver.set_read_timeout(Some(POLL_INTERVAL))?;
        let target = receiver.local_addr()?;
        let sender = from.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        let (sending, receiving) = (Arc::clone(&self.stop), Arc::clone(&self.stop));
        let received = Arc::clone(&self.received_bytes);
        self.threads.push(thread::spawn(move || {
            send_udp(&sender, target, mbps, seed, &sending)
        }));
        self.threads.push(thread::spawn(move || {
            receive_udp(&receiver, &received, &receiving)
        }));
        Ok(())
    }
}

/// Sends at full speed until the connection ends, which it may only after a stop.
fn write_all(connection: &mut TcpStream, stop: &AtomicBool) -> Result<()> {
    while connection.write_all(&[0x5a; 1 << 16]).is_ok() {}
    ensure!(
        stop.load(Relaxed),
        "a connection of the cross traffic broke"
    );
    Ok(())
}

/// Counts the bytes of a connection until it ends.
fn read_all(connection: &mut TcpStream, received: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = connection.read(&mut buffer) {
        received.fetch_add(length as u64, Relaxed);
    }
}

/// Counts the bytes of packets until stopped.
fn receive_udp(socket: &UdpSocket, received: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut buffer = [0; 2048];
    while !stop.load(Relaxed) {
        if let Ok(length) = socket.recv(&mut buffer) {
            received.fetch_add(length as u64, Relaxed);
        }
    }
    let drops = sockopt::drops(socket)?;
    ensure!(
        drops == 0,
        "{drops} packets of the UDP sender were dropped at its receiver's socket"
    );
    Ok(())
}

/// Sends packets at `mbps`, without headers, until stopped. The payload is random, so that the
/// tunnel does not classify it as a known protocol.
fn send_udp(
    socket: &UdpSocket,
    target: SocketAddr,
    mbps: f64,
    seed: u64,
    stop: &AtomicBool,
) -> Result<()> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let interval = Duration::from_secs_f64(UDP_PAYLOAD as f64 * 8e-6 / mbps);
    let mut payload = [0; UDP_PAYLOAD];
    let mut due = Instant::now();
    while !stop.load(Relaxed) {
        while due <= Instant::now() {
            random.fill_bytes(&mut payload);
            // A packet that the sender's own device drops is a loss like any other on the path.
            let _ = socket.send_to(&payload, target);
            due += interval;
        }
        thread::sleep(TICK);
    }
    Ok(())
}
