//! The packets of the video, with the times at which they left the camera and arrived at the
//! receiver.

use super::framing::{PacketReader, READ_TIMEOUT, prepare};
use super::route::{Receiver, RouteEndpoints, Sender};
use crate::experiment::Run;
use crate::experiments::dashcam::Clip;
use anyhow::{Context, Result, bail, ensure};
use hawser_io::sockopt;
use hawser_testbed::logs::last_log_line;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_testbed::ring;
use hawser_testbed::topology::Lab;
use hawser_units::Instant;
use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// The time for which the video runs before the drive begins, at the drive's first rates.
/// Congestion windows grow in this time.
pub(super) const WARM_UP: Duration = Duration::from_secs(2);

/// The time after the end in which packets in flight may still arrive.
const GRACE: Duration = Duration::from_secs(2);

/// The time in which the camera's last packets may arrive after it has exited.
const CAMERA_DRAIN_TIME: Duration = Duration::from_millis(200);

/// A packet of the camera.
pub(super) struct Sent {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
}

/// The arrivals on one route.
#[derive(Default)]
pub(super) struct Arrivals {
    /// The first arrival of each packet, by its digest.
    pub(super) at: HashMap<u64, Instant>,
    /// Packets dropped at the receiver's own socket.
    pub(super) overflow: u32,
}

/// The recording of one run of the video.
pub(super) struct Recording {
    pub(super) sent: Vec<Sent>,
    /// The arrivals on each route.
    pub(super) arrived: Vec<Arrivals>,
    /// The time at which the drive began.
    pub(super) began: Instant,
    /// Packets dropped at the socket that receives from the camera.
    pub(super) camera_overflow: u32,
}

/// Plays the video for `length` of the drive, which begins at `began`.
pub(super) fn play(
    run: &Run,
    lab: &Lab,
    ends: &RouteEndpoints,
    clip: &Clip,
    began: Instant,
    length: Duration,
    directory: &Path,
) -> Result<Recording> {
    let camera = lab
        .ingress()
        .run(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))??;
    prepare(&camera)?;
    let mut command = clip.camera(camera.local_addr()?.port(), WARM_UP + length);
    let log = directory.join("camera.log");
    command
        .stdout(File::create(directory.join("camera.sdp"))?)
        .stderr(File::create(&log)?);
    let wait = began.saturating_since(ring::now() + WARM_UP);
    ensure!(
        !wait.is_zero(),
        "the network was not ready in time for the start of the video"
    );
    run.stop.sleep(wait);
    let film = || film(run, lab.ingress(), command, &log);
    record(run, &camera, ends, began, film)
}

/// Films, relays the packets of the camera, and records the arrivals on all routes.
fn record(
    run: &Run,
    camera: &UdpSocket,
    ends: &RouteEndpoints,
    began: Instant,
    film: impl FnOnce() -> Result<()>,
) -> Result<Recording> {
    let (camera_done, all_done) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        // The threads end even if this returns an error.
        let _end = SetOnDrop([&camera_done, &all_done]);
        let receivers = ends.receivers.iter();
        let receiving: Vec<_> = receivers
            .map(|receiver| scope.spawn(|| receive(receiver, &all_done)))
            .collect();
        let relaying = scope.spawn(|| relay(camera, &ends.senders, &camera_done));
        film()?;
        run.stop.sleep(CAMERA_DRAIN_TIME);
        camera_done.store(true, Relaxed);
        let (sent, camera_overflow) = join(relaying)?;
        run.stop.sleep(GRACE);
        all_done.store(true, Relaxed);
        Ok(Recording {
            sent,
            arrived: receiving.into_iter().map(join).collect::<Result<_>>()?,
            began,
            camera_overflow,
        })
    })
}

/// Runs the camera until it has sent the video.
fn film(run: &Run, car: &Namespace, camera: Command, log: &Path) -> Result<()> {
    let mut ffmpeg = Process::spawn(car, camera)?;
    let status = loop {
        match ffmpeg.ended()? {
            Some(status) => break status,
            None if run.stop.sleep(READ_TIMEOUT) => bail!("stopped"),
            None => {}
        }
    };
    if !status.success() {
        bail!("the camera exited with {status}: {}", last_log_line(log));
    }
    Ok(())
}

struct SetOnDrop<'a>([&'a AtomicBool; 2]);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, Relaxed));
    }
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns a digest that identifies a packet.
pub(super) fn digest(packet: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    packet.hash(&mut hasher);
    hasher.finish()
}

/// Relays the packets from the camera to the routes, and records the time of each.
fn relay(camera: &UdpSocket, senders: &[Sender], done: &AtomicBool) -> Result<(Vec<Sent>, u32)> {
    let mut sent: Vec<Sent> = Vec::new();
    let mut buffer = [0; 2048];
    while !done.load(Relaxed) {
        let Some(length) =
            or_timeout(camera.recv(&mut buffer)).context("cannot receive the camera's packets")?
        else {
            continue;
        };
        let (at, packet) = (ring::now(), &buffer[..length]);
        senders.iter().for_each(|sender| sender.send(packet));
        sent.push(Sent {
            at,
            bytes: packet.to_vec(),
        });
    }
    Ok((sent, sockopt::drops(camera)?))
}

fn receive(receiver: &Receiver, done: &AtomicBool) -> Result<Arrivals> {
    match receiver {
        Receiver::Datagrams(socket) => receive_datagrams(socket, done),
        Receiver::Stream(stream) => receive_stream(stream, done),
    }
}

fn receive_datagrams(socket: &UdpSocket, done: &AtomicBool) -> Result<Arrivals> {
    let mut arrived = Arrivals::default();
    let mut buffer = [0; 2048];
    while !done.load(Relaxed) {
        if let Some(length) =
            or_timeout(socket.recv(&mut buffer)).context("cannot receive from the route")?
        {
            arrived.record(&buffer[..length]);
        }
    }
    arrived.overflow = sockopt::drops(socket)?;
    Ok(arrived)
}

fn receive_stream(mut stream: &TcpStream, done: &AtomicBool) -> Result<Arrivals> {
    let mut arrived = Arrivals::default();
    let mut buffer = [0; 1 << 16];
    let mut packets = PacketReader::default();
    while !done.load(Relaxed) {
        match or_timeout(stream.read(&mut buffer)).context("cannot receive from the route")? {
            Some(0) => bail!("the connection was closed by the sender"),
            Some(length) => packets.push(&buffer[..length], |packet| arrived.record(packet)),
            None => {}
        }
    }
    Ok(arrived)
}

impl Arrivals {
    fn record(&mut self, packet: &[u8]) {
        self.at.entry(digest(packet)).or_insert_with(ring::now);
    }
}

/// Maps a timeout to `None`.
fn or_timeout(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(length) => Ok(Some(length)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}
