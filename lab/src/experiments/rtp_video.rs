//! A video of 6 Mb/s and 30 frames per second in RTP packets, from the camera to the viewer.

use anyhow::{Result, anyhow};
use hawser_qoe::Frame;
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring;
use hawser_units::{ByteSize, Instant};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const FPS: u32 = 30;

/// Mean bytes of a frame and of a key frame, which result in 6 Mb/s, and the number of frames from
/// one key frame to the next.
const FRAME_BYTES: usize = 23_000;
const KEY_FRAME_BYTES: usize = 80_000;
const KEY_FRAME_INTERVAL: u32 = 30;

/// Maximum bytes of a frame in one packet.
const PAYLOAD: usize = 1200;

/// Bytes of the RTP header (RFC 3550), and of all headers: RTP, frame number, packets of the frame,
/// capture time.
const RTP: usize = 12;
const HEADERS: usize = RTP + 4 + 2 + 8;
const RTP_VERSION_2: u8 = 0x80;
const RTP_MARKER: u8 = 0x80;
const RTP_DYNAMIC_TYPE: u8 = 96;

/// The maximum time for the last frames to arrive.
const DRAIN_TIME: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A running video from one namespace to another.
pub(super) struct Video {
    sending: Arc<AtomicBool>,
    receiving: Arc<AtomicBool>,
    sender: JoinHandle<usize>,
    receiver: JoinHandle<Vec<Frame>>,
}

impl Video {
    /// Sends a video from `camera` to `address`, which belongs to `viewer`. `seed` determines the
    /// sizes of frames.
    pub(super) fn start(
        camera: &Namespace,
        viewer: &Namespace,
        address: IpAddr,
        seed: u64,
    ) -> Result<Video> {
        let target = viewer.run(|| UdpSocket::bind((address, 0)))??;
        let socket = camera.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        socket.connect(target.local_addr()?)?;
        target.set_read_timeout(Some(POLL_INTERVAL))?;
        let (sending, receiving) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(true)),
        );
        let sender = thread::spawn({
            let sending = Arc::clone(&sending);
            move || send(&socket, &sending, seed)
        });
        let receiver = thread::spawn({
            let receiving = Arc::clone(&receiving);
            move || receive(&target, &receiving)
        });
        Ok(Video {
            sending,
            receiving,
            sender,
            receiver,
        })
    }

    /// Stops the video. Returns the complete frames, and the number of frames sent.
    pub(super) fn stop(self) -> Result<(Vec<Frame>, usize)> {
        self.sending.store(false, Relaxed);
        let sent = self
            .sender
            .join()
            .map_err(|_| anyhow!("the thread that sends the video panicked"))?;
        thread::sleep(DRAIN_TIME);
        self.receiving.store(false, Relaxed);
        let frames = self
            .receiver
            .join()
            .map_err(|_| anyhow!("the thread that receives the video panicked"))?;
        Ok((frames, sent))
    }
}

fn send(socket: &UdpSocket, sending: &AtomicBool, seed: u64) -> usize {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let source: u32 = random.random();
    let mut sequence = 0u16;
    let mut frame = 0u32;
    let began = ring::now();
    while sending.load(Relaxed) {
        let captured = began + Duration::from_secs(1) * frame / FPS;
        thread::sleep(captured.saturating_since(ring::now()));
        let mean = if frame.is_multiple_of(KEY_FRAME_INTERVAL) {
            KEY_FRAME_BYTES
        } else {
            FRAME_BYTES
        };
        let size = random.random_range(mean * 3 / 4..mean * 5 / 4);
        let packets = size.div_ceil(PAYLOAD);
        for packet in 0..packets {
            let header = Header {
                frame,
                packets: packets as u16,
                captured,
            };
            let payload = PAYLOAD.min(size - packet * PAYLOAD);
            let is_last = packet + 1 == packets;
            let bytes = header.packet(source, sequence, is_last, payload);
            sequence = sequence.wrapping_add(1);
            // A packet that cannot be sent is missing at the viewer.
            let _ = socket.send(&bytes);
        }
        frame += 1;
    }
    frame as usize
}

/// The header after that of RTP.
struct Header {
    frame: u32,
    /// The number of packets of the frame.
    packets: u16,
    captured: Instant,
}

impl Header {
    /// Returns a packet with a payload of zeros.
    fn packet(&self, source: u32, sequence: u16, is_last: bool, payload: usize) -> Vec<u8> {
        let marker = if is_last { RTP_MARKER } else { 0 };
        let mut bytes = vec![0; HEADERS + payload];
        bytes[0] = RTP_VERSION_2;
        bytes[1] = RTP_DYNAMIC_TYPE | marker;
        bytes[2..4].copy_from_slice(&sequence.to_be_bytes());
        bytes[4..8].copy_from_slice(&(self.frame * 90_000 / FPS).to_be_bytes());
        bytes[8..RTP].copy_from_slice(&source.to_be_bytes());
        bytes[RTP..RTP + 4].copy_from_slice(&self.frame.to_be_bytes());
        bytes[RTP + 4..RTP + 6].copy_from_slice(&self.packets.to_be_bytes());
        bytes[RTP + 6..HEADERS].copy_from_slice(&self.captured.as_nanos().to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Self {
        let frame = bytes[RTP..RTP + 4].try_into().expect("four bytes");
        let packets = bytes[RTP + 4..RTP + 6].try_into().expect("two bytes");
        let captured = bytes[RTP + 6..HEADERS].try_into().expect("eight bytes");
        Header {
            frame: u32::from_be_bytes(frame),
            packets: u16::from_be_bytes(packets),
            captured: Instant::from_nanos(u64::from_be_bytes(captured)),
        }
    }
}

/// A frame that is not complete yet.
#[derive(Debug, Clone, Copy, Default)]
struct Partial {
    packets: u16,
    bytes: u64,
}

fn receive(socket: &UdpSocket, receiving: &AtomicBool) -> Vec<Frame> {
    let mut partial: Vec<Partial> = Vec::new();
    let mut frames = Vec::new();
    let mut bytes = [0; HEADERS + PAYLOAD];
    while receiving.load(Relaxed) {
        let Ok(length) = socket.recv(&mut bytes) else {
            continue;
        };
        let now = ring::now();
        let header = Header::parse(&bytes);
        let frame = header.frame as usize;
        partial.resize(partial.len().max(frame + 1), Partial::default());
        let seen = &mut partial[frame];
        seen.packets += 1;
        seen.bytes += (length - HEADERS) as u64;
        if seen.packets == header.packets {
            frames.push(Frame {
                captured: header.captured,
                decoded: now,
                size: ByteSize(seen.bytes),
            });
        }
    }
    frames
}
