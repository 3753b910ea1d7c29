//! The camera: plays the recording, and encodes each frame for the rate of the network.

use super::PushConfig;
use super::encode::{EncodedFrame, Encoders};
use super::log::FrameLog;
use super::report::Captured;
use hawser_cloud::Pose;
use hawser_io::clock::SteadyClock;
use hawser_io::udp::Waker;
use hawser_media::Player;
use hawser_units::{Bitrate, ByteSize, Instant};
use hawser_wire::media::{DEFAULT_DATAGRAM, Header};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

/// The time between two looks at whether to stop.
const STOP_POLL: Duration = Duration::from_millis(50);

/// A frame on its way to the network.
pub(super) struct Captures {
    pub(super) captured: Instant,
    pub(super) frame: EncodedFrame,
}

/// What the network tells the camera.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// The rate at which to encode, with all headers; `None` if nobody watches.
    pub(super) target: Option<Bitrate>,
    /// The pose of the only viewer.
    pub(super) pose: Option<Pose>,
    /// Whether the network's thread has ended.
    pub(super) is_over: bool,
}

/// The way from the camera to the network's thread.
#[derive(Debug, Clone)]
pub(super) struct ToNetwork {
    pub(super) demand: Arc<Mutex<Demand>>,
    pub(super) waker: Waker,
}

/// The camera.
pub(super) struct Capture {
    clock: SteadyClock,
    interval: Duration,
    duration: Option<Duration>,
    points: usize,
    player: Player,
    encoders: Encoders,
    frames: SyncSender<Captures>,
    network: ToNetwork,
    log: Option<FrameLog>,
    report: Captured,
}

impl Capture {
    pub(super) fn new(
        config: &PushConfig,
        clock: SteadyClock,
        player: Player,
        encoders: Encoders,
        frames: SyncSender<Captures>,
        network: ToNetwork,
    ) -> anyhow::Result<Self> {
        Ok(Capture {
            clock,
            interval: config.interval(),
            duration: config.duration,
            points: config.points,
            player,
            encoders,
            frames,
            network,
            log: config.log.as_deref().map(FrameLog::create).transpose()?,
            report: Captured::default(),
        })
    }

    /// Captures until the duration is over or `stop` is set. The network ends with it.
    pub(super) fn run(mut self, stop: &AtomicBool) -> anyhow::Result<Captured> {
        let played = self.play(stop);
        drop(self.frames);
        self.network.waker.wake();
        played.map(|()| self.report)
    }

    fn play(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let started = self.clock.now();
        let end = self.duration.map(|duration| started + duration);
        let mut next = started;
        while self.sleep_until(next, stop) && end.is_none_or(|end| next < end) && !self.is_over() {
            self.capture(next)?;
            let late = self.clock.now().saturating_since(next);
            let missed = (late.as_nanos() / self.interval.as_nanos()) as u32;
            self.report.missed += u64::from(missed);
            next += self.interval * (missed + 1);
        }
        Ok(())
    }

    /// Captures the frame that is due, and encodes it if somebody watches.
    fn capture(&mut self, due: Instant) -> anyhow::Result<()> {
        let Some(frame) = self.player.next_frame()? else {
            anyhow::bail!("the recording has ended");
        };
        self.report.frames += 1;
        let (target, pose) = {
            let demand = self.network.demand.lock();
            (demand.target, demand.pose)
        };
        let Some(target) = target else {
            return Ok(());
        };
        let captured = self.clock.now();
        let size = payload(target.bytes_in(self.interval));
        let frame = self
            .encoders
            .encode(frame, self.points, size, pose.as_ref());
        let took = self.clock.now().saturating_since(captured);
        self.report.handle_encoded(took);
        if let Some(log) = &mut self.log {
            log.write(captured, &frame, took, size)?;
        }
        tracing::trace!(late = ?captured.saturating_since(due), ?took, "frame encoded");
        match self.frames.try_send(Captures { captured, frame }) {
            Ok(()) => self.network.waker.wake(),
            Err(TrySendError::Full(_)) => self.report.discarded += 1,
            Err(TrySendError::Disconnected(_)) => {}
        }
        Ok(())
    }

    /// Returns whether the network's thread has ended, which then says why.
    fn is_over(&self) -> bool {
        self.network.demand.lock().is_over
    }

    /// Waits until a time. Returns `false` if `stop` was set before.
    fn sleep_until(&self, time: Instant, stop: &AtomicBool) -> bool {
        while !stop.load(Relaxed) {
            let left = time.saturating_since(self.clock.now());
            if left.is_zero() {
                return true;
            }
            thread::sleep(left.min(STOP_POLL));
        }
        false
    }
}

/// Returns the payload of packets that have so many bytes with all headers.
fn payload(size: ByteSize) -> ByteSize {
    let packet = DEFAULT_DATAGRAM as u64 + 28;
    let headers = Header::OVERHEAD as u64 + 28;
    ByteSize(size.0 * (packet - headers) / packet)
}
