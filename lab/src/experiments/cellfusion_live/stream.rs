//! The packets of the video, when they left the camera and when they came out of the network.

use super::clip::Clip;
use super::route::{Ends, Receiver, Sender};
use crate::experiment::Run;
use crate::logs::last_words;
use crate::topology::Lab;
use anyhow::{Context, Result, bail, ensure};
use hawser_io::process::Process;
use hawser_io::{ring, sockopt};
use hawser_units::Instant;
use nix::sys::socket::{setsockopt, sockopt as option};
use std::collections::HashMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// The video begins so long before the drive, at its first rates: windows grow in this time.
pub(super) const WARM_UP: Duration = Duration::from_secs(2);

/// What is under way at the end may still arrive.
const GRACE: Duration = Duration::from_secs(2);

/// How long the camera's last packets may take when it has ended.
const REST: Duration = Duration::from_millis(200);

/// Sockets hold what comes while their thread waits for a processor.
const BUFFER_BYTES: usize = 64 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A packet of the camera.
pub(super) struct Sent {
    pub(super) at: Instant,
    pub(super) bytes: Vec<u8>,
}

/// What came out of one route.
#[derive(Default)]
pub(super) struct Arrived {
    /// The first arrival of each packet, by its digest.
    pub(super) at: HashMap<u64, Instant>,
    /// Packets dropped at the receiver's own socket.
    pub(super) overflow: u32,
}

/// One run of the video.
pub(super) struct Recording {
    pub(super) sent: Vec<Sent>,
    /// For each route.
    pub(super) arrived: Vec<Arrived>,
    /// When the drive began.
    pub(super) began: Instant,
    /// Packets that got no further than the camera's own node.
    pub(super) camera_overflow: u32,
}

/// Plays the video for `length` of the drive, which begins at `began`.
pub(super) fn play(
    run: &Run,
    lab: &Lab,
    ends: &Ends,
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
    let (camera_done, all_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let wait = began.saturating_since(ring::now() + WARM_UP);
    ensure!(
        !wait.is_zero(),
        "the network was not ready when the video should have begun"
    );
    run.stop.sleep(wait);
    let Ends {
        senders, receivers, ..
    } = ends;
    thread::scope(|scope| {
        // Whatever goes wrong here, the threads end.
        let _end = SetOnDrop([&camera_done, &all_done]);
        let receiving: Vec<_> = receivers
            .iter()
            .map(|receiver| scope.spawn(|| receive(receiver, &all_done)))
            .collect();
        let relaying = scope.spawn(|| relay(&camera, senders, &camera_done));
        let mut ffmpeg = Process::spawn(lab.ingress(), command)?;
        let status = loop {
            match ffmpeg.ended()? {
                Some(status) => break status,
                None if run.stop.sleep(LOOK_AGAIN) => bail!("stopped"),
                None => {}
            }
        };
        if !status.success() {
            bail!("the camera ended with {status}: {}", last_words(&log));
        }
        run.stop.sleep(REST);
        camera_done.store(true, Relaxed);
        let (sent, camera_overflow) = join(relaying)?;
        run.stop.sleep(GRACE);
        all_done.store(true, Relaxed);
        let arrived = receiving.into_iter().map(join).collect::<Result<_>>()?;
        Ok(Recording {
            sent,
            arrived,
            began,
            camera_overflow,
        })
    })
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

/// What a packet is known by.
pub(super) fn digest(packet: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    packet.hash(&mut hasher);
    hasher.finish()
}

/// Takes the packets from the camera to the routes, and notes when each came.
fn relay(camera: &UdpSocket, senders: &[Sender], done: &AtomicBool) -> Result<(Vec<Sent>, u32)> {
    let mut sent: Vec<Sent> = Vec::new();
    let mut buffer = [0; 2048];
    while !done.load(Relaxed) {
        let Some(length) = took(camera.recv(&mut buffer)).context("the camera's packets")? else {
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

fn receive(receiver: &Receiver, done: &AtomicBool) -> Result<Arrived> {
    let mut arrived = Arrived::default();
    match receiver {
        Receiver::Datagrams(socket) => {
            let mut buffer = [0; 2048];
            while !done.load(Relaxed) {
                if let Some(length) = took(socket.recv(&mut buffer)).context("receiving")? {
                    arrived.note(&buffer[..length]);
                }
            }
            arrived.overflow = sockopt::drops(socket)?;
        }
        Receiver::Stream(stream) => {
            let (mut stream, mut buffer) = (stream, [0; 1 << 16]);
            let mut framed = Framed::default();
            while !done.load(Relaxed) {
                match took(stream.read(&mut buffer)).context("receiving")? {
                    Some(0) => bail!("the connection was closed"),
                    Some(length) => framed.take(&buffer[..length], |packet| arrived.note(packet)),
                    None => {}
                }
            }
        }
    }
    Ok(arrived)
}

impl Arrived {
    fn note(&mut self, packet: &[u8]) {
        self.at.entry(digest(packet)).or_insert_with(ring::now);
    }
}

/// Packets in a stream of bytes, each behind its length (RFC 4571).
#[derive(Default)]
struct Framed(Vec<u8>);

impl Framed {
    fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        self.0.extend(bytes);
        let mut rest = &self.0[..];
        while let Some((length, after)) = rest.split_first_chunk()
            && let Some((packet, after)) =
                after.split_at_checked(u16::from_be_bytes(*length).into())
        {
            each(packet);
            rest = after;
        }
        self.0 = rest.to_vec();
    }
}

/// The packet as it stands in a stream of bytes.
pub(super) fn framed(packet: &[u8]) -> Vec<u8> {
    let length = u16::try_from(packet.len()).expect("a packet is smaller than 64 KiB");
    [&length.to_be_bytes()[..], packet].concat()
}

/// Makes a socket hold much, and its reader look up now and then.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    setsockopt(socket, option::RcvBufForce, &BUFFER_BYTES)?;
    socket.set_read_timeout(Some(LOOK_AGAIN))
}

/// How long the reader of a connection waits before it looks up.
pub(super) const READ_TIMEOUT: Duration = LOOK_AGAIN;

/// Nothing when the time was up.
fn took(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(length) => Ok(Some(length)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_found_again_however_the_stream_is_cut() {
        let packets = [vec![1; 300], vec![2], vec![3; 70]];
        let stream: Vec<u8> = packets.iter().flat_map(|packet| framed(packet)).collect();
        for size in [1, 2, 3, 100, stream.len()] {
            let (mut reader, mut found) = (Framed::default(), Vec::new());
            stream
                .chunks(size)
                .for_each(|part| reader.take(part, |packet| found.push(packet.to_vec())));
            assert_eq!(found, packets, "{size}");
        }
    }
}
