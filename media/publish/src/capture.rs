//! The camera: plays the recording, and encodes each frame for the rate of the network.

use crate::Config;
use crate::encode::{Encoders, Sizes, TrackSlice, payload};
use crate::log::FrameLog;
use crate::playing::Leading;
use crate::report::Captured;
use crate::ticks::Ticks;
use hawser_cloud::Pose;
use hawser_io::clock::SteadyClock;
use hawser_io::udp::Waker;
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_recording::Player;
use hawser_units::{Bitrate, Instant};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::Sender;
use std::time::Duration;

/// The number of frames that are queued for the network.
const WAITING: usize = 2;

/// The maximum number of missed frames that are skipped at once to play in real time: reading them takes time, too.
const CATCH_UP: u64 = 4;

/// A message of the camera to the network.
pub(crate) enum Message {
    /// A frame was captured at this time. Its slices follow.
    Frame(Instant),
    /// A part of the frame.
    Slice(TrackSlice),
    /// The frame is complete.
    End,
    /// Sound from this time on.
    Sound { captured: Instant, packet: Vec<u8> },
}

/// The network's demand on the camera.
#[derive(Debug)]
pub(crate) struct Demand {
    /// The rate at which to encode, with all headers; `None` without viewers.
    pub(crate) target: Option<Bitrate>,
    /// The pose of the only viewer.
    pub(crate) pose: Option<Pose>,
    /// The length of a full datagram.
    pub(crate) datagram: usize,
    /// Whether the network's thread has ended.
    pub(crate) is_over: bool,
}

impl Default for Demand {
    fn default() -> Self {
        Demand {
            target: None,
            pose: None,
            datagram: DEFAULT_DATAGRAM,
            is_over: false,
        }
    }
}

/// The channel from the camera to the network's thread, which is woken when it is dropped: also when the
/// camera panics.
pub(crate) struct ToNetwork {
    pub(crate) demand: Arc<Mutex<Demand>>,
    pub(crate) captured: Arc<Mutex<Captured>>,
    pub(crate) messages: Sender<Message>,
    /// The number of frames that the network has not processed completely.
    pub(crate) waiting: Arc<AtomicUsize>,
    // Dropped after the messages, so that the thread finds their end when it wakes.
    pub(crate) waker: WakeOnDrop,
}

impl ToNetwork {
    /// Announces a frame, unless the network is busy with earlier ones.
    fn begin(&self, captured: Instant) -> bool {
        if self.waiting.load(Relaxed) >= WAITING {
            return false;
        }
        self.waiting.fetch_add(1, Relaxed);
        self.send(Message::Frame(captured));
        true
    }

    fn send(&self, message: Message) {
        // If the network's thread has ended, it returns the reason.
        let _ = self.messages.send(message);
        self.waker.0.wake();
    }
}

/// Wakes a socket's thread when it is dropped.
pub(crate) struct WakeOnDrop(pub(crate) Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// The camera.
pub(crate) struct Capture {
    clock: SteadyClock,
    interval: Duration,
    /// The time in which a frame has to leave at the target rate.
    leaving_time: Duration,
    duration: Option<Duration>,
    points: usize,
    player: Player,
    /// Tells the sound what is played.
    leading: Leading,
    /// Frames per second of the recording.
    fps: f64,
    /// The place of the next frame in the recording, in frames.
    place: f64,
    /// The frames of the recording for each that is captured.
    step: f64,
    encoders: Encoders,
    network: ToNetwork,
    log: Option<FrameLog>,
    /// The error that ended the table of frames.
    table_error: Option<anyhow::Error>,
    report: Captured,
}

impl Capture {
    pub(crate) fn new(
        config: &Config,
        clock: SteadyClock,
        player: Player,
        encoders: Encoders,
        (network, leading): (ToNetwork, Leading),
    ) -> anyhow::Result<Self> {
        Ok(Capture {
            clock,
            interval: config.interval(),
            leaving_time: config.leaving_time(),
            duration: config.duration,
            points: config.points,
            player,
            leading,
            fps: config.recording.fps,
            // The first frame was read to open the encoders.
            place: 1.0,
            step: config.recording.step(config.fps),
            encoders,
            network,
            log: config.log.as_deref().map(FrameLog::create).transpose()?,
            table_error: None,
            report: Captured::default(),
        })
    }

    /// Captures until the duration is over or `stop` is set. The network ends with it. Also returns the
    /// errors that ended it or the table of frames early.
    pub(crate) fn run(mut self, stop: &AtomicBool) -> (Captured, Vec<anyhow::Error>) {
        let played = self.play(stop).err();
        let errors = self.table_error.into_iter().chain(played);
        (self.report, errors.collect())
    }

    fn play(&mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        let mut ticks = Ticks::start(self.interval, self.duration);
        while ticks.wait(stop).is_some() && !self.is_over() {
            self.capture()?;
            let missed = ticks.advance();
            self.place += self.step * missed.min(CATCH_UP) as f64;
            self.report.missed += missed;
            *self.network.captured.lock() = self.report;
        }
        Ok(())
    }

    /// Reads the frame of the recording that is due, and encodes it if there are viewers.
    fn capture(&mut self) -> anyhow::Result<()> {
        let due = self.player.frame_at(self.place)?;
        let time_s = self.place / self.fps;
        self.leading.0.set(self.clock.now(), time_s);
        self.place += self.step;
        self.report.left_out = self.player.left_out();
        self.report.damaged = self.player.lost();
        self.report.out_of_range = self.player.out_of_range();
        let Some(frame) = due else {
            return Ok(());
        };
        self.report.frames += 1;
        let (target, pose, datagram) = {
            let demand = self.network.demand.lock();
            (demand.target, demand.pose, demand.datagram)
        };
        let Some(target) = target else {
            return Ok(());
        };
        let captured = self.clock.now();
        let size = payload(target.bytes_in(self.leaving_time), datagram);
        self.encoders.set_datagram(datagram);
        let (network, sizes) = (&self.network, Mutex::new(Sizes::default()));
        let is_sent = network.begin(captured);
        let slices = |slice: TrackSlice| {
            sizes.lock().add(&slice);
            if is_sent {
                network.send(Message::Slice(slice));
            }
        };
        let points = self.points;
        let points = self
            .encoders
            .encode_slices(frame, points, size, pose.as_ref(), &slices);
        let took = self.clock.now().saturating_since(captured);
        if is_sent {
            network.send(Message::End);
        } else {
            self.report.discarded += 1;
        }
        self.report.handle_encoded(took);
        let sizes = sizes.into_inner();
        if let Some(log) = &mut self.log
            && let Err(error) = log.write(captured, points, sizes, (took, size))
        {
            // The broadcast continues when the disk is full.
            tracing::error!("no further lines of --log: {error:#}");
            self.log = None;
            self.table_error = Some(error);
        }
        Ok(())
    }

    /// Returns whether the network's thread has ended. Its result has the reason.
    fn is_over(&self) -> bool {
        self.network.demand.lock().is_over
    }
}
