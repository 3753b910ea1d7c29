use super::super::rtp_video::Video;
use anyhow::{Context, Result, anyhow, ensure};
use hawser_io::netns::Namespace;
use hawser_io::sockopt;
use hawser_qoe::Frame;
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

/// What is beside the video.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Nothing,
    /// TCP connections that send as much as they can.
    Bulk {
        connections: usize,
        congestion: &'static str,
    },
    /// A sender that does not slow down, with random payload.
    Udp {
        mbps: f64,
    },
    /// Another video like the first.
    Camera,
}

pub(super) const OTHERS: [Other; 6] = [
    Other {
        name: "alone",
        kind: Kind::Nothing,
    },
    Other {
        name: "cubic-1",
        kind: Kind::Bulk {
            connections: 1,
            congestion: "cubic",
        },
    },
    Other {
        name: "cubic-8",
        kind: Kind::Bulk {
            connections: 8,
            congestion: "cubic",
        },
    },
    Other {
        name: "bbr-8",
        kind: Kind::Bulk {
            connections: 8,
            congestion: "bbr",
        },
    },
    Other {
        name: "udp-30",
        kind: Kind::Udp { mbps: 30.0 },
    },
    Other {
        name: "camera-2",
        kind: Kind::Camera,
    },
];

/// Bytes that a UDP packet carries.
const UDP_PAYLOAD: usize = 1200;

/// How often the UDP sender sends what is due.
const TICK: Duration = Duration::from_millis(1);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

impl Other {
    pub(super) fn is_none(&self) -> bool {
        matches!(self.kind, Kind::Nothing)
    }
}

/// Traffic that runs.
pub(super) struct Others {
    received_bytes: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    connections: Vec<TcpStream>,
    threads: Vec<JoinHandle<Result<()>>>,
    camera: Option<Video>,
}

/// What is left of traffic that has stopped.
pub(super) struct Stopped {
    /// A camera's complete frames.
    pub(super) frames: Option<Vec<Frame>>,
    pub(super) invalid_because: Vec<String>,
}

impl Others {
    pub(super) fn start(
        other: &Other,
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
        seed: u64,
    ) -> Result<Self> {
        let mut others = Others {
            received_bytes: Arc::default(),
            stop: Arc::default(),
            connections: Vec::new(),
            threads: Vec::new(),
            camera: None,
        };
        match other.kind {
            Kind::Nothing => {}
            Kind::Bulk {
                connections,
                congestion,
            } => {
                for _ in 0..connections {
                    others.add_connection(from, to, address, congestion)?;
                }
            }
            Kind::Udp { mbps } => others.add_udp(from, to, address, mbps, seed)?,
            Kind::Camera => others.camera = Some(Video::start(from, to, address, seed + 1)?),
        }
        Ok(others)
    }

    /// Bytes that receivers have had so far, without headers.
    pub(super) fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Relaxed)
    }

    /// Ends everything.
    pub(super) fn stop(mut self) -> Result<Stopped> {
        self.stop.store(true, Relaxed);
        for connection in self.connections.drain(..) {
            // One that has ended by itself has made its threads fail already.
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
        let frames = self
            .camera
            .take()
            .map(Video::stop)
            .transpose()?
            .map(|(frames, _)| frames);
        Ok(Stopped {
            frames,
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
        setsockopt(&sender, TcpCongestion, &congestion.into())
            .with_context(|| format!("the kernel has no congestion control {congestion:?}"))?;
        let (mut receiver, _) = listener.accept()?;
        self.connections.push(sender.try_clone()?);
        let (stop, received) = (Arc::clone(&self.stop), Arc::clone(&self.received_bytes));
        self.threads.push(thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length @ 1..) = receiver.read(&mut buffer) {
                received.fetch_add(length as u64, Relaxed);
            }
            Ok(())
        }));
        self.threads.push(thread::spawn(move || {
            while sender.write_all(&[0x5a; 1 << 16]).is_ok() {}
            ensure!(stop.load(Relaxed), "a connection beside the video broke");
            Ok(())
        }));
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
        receiver.set_read_timeout(Some(LOOK_AGAIN))?;
        let target = receiver.local_addr()?;
        let sender = from.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        let (sending, receiving) = (Arc::clone(&self.stop), Arc::clone(&self.stop));
        let received = Arc::clone(&self.received_bytes);
        self.threads.push(thread::spawn(move || {
            send_udp(&sender, target, mbps, seed, &sending)
        }));
        self.threads.push(thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !receiving.load(Relaxed) {
                if let Ok(length) = receiver.recv(&mut buffer) {
                    received.fetch_add(length as u64, Relaxed);
                }
            }
            let drops = sockopt::drops(&receiver)?;
            ensure!(
                drops == 0,
                "{drops} packets of the UDP sender were dropped at its receiver's socket"
            );
            Ok(())
        }));
        Ok(())
    }
}

/// Sends what is due at `mbps`, headers not counted, until it is told to stop. Random payload: a tunnel must not take it
/// for anything that it knows.
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
            // A full queue of the sender's own device is a loss like any other on the way.
            let _ = socket.send_to(&payload, target);
            due += interval;
        }
        thread::sleep(TICK);
    }
    Ok(())
}
