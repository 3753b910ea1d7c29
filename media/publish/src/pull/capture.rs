use super::Config;
use super::server::{Counters, Server};
use crate::common::with_data_dir;
use crate::lines::Lines;
use crate::ticks::Ticks;
use anyhow::Context;
use hawser_cloud::{Cloud, Digest, Level};
use hawser_codec::pull::FrameHeader;
use hawser_codec::{Codec, ZstdEncoder};
use hawser_io::clock::unix_ns;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The camera: plays the loaded frames at the configured rate.
pub(crate) struct Capture {
    frames: Vec<Frame>,
    /// The number of the frame that is shown at each tick.
    shown: Vec<usize>,
    level: Level,
    interval: Duration,
    duration: Option<Duration>,
    encoder: ZstdEncoder,
    /// The CSV file of captured frames.
    log: Option<Lines>,
}

/// A frame of the recording.
enum Frame {
    Raw(Cloud),
    /// A frame that was encoded before the stream started.
    Encoded(Encoded),
}

/// The content of a frame's message, without its header.
struct Encoded {
    points: usize,
    digest: Digest,
    bytes: Vec<u8>,
}

/// The counts of a publisher's run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of frames that were captured and encoded.
    pub frames_captured: u64,
    /// Number of frames that were not captured because an earlier one took longer than its
    /// interval.
    pub frames_missed: u64,
    /// Number of viewers that connected.
    pub viewers: u64,
    /// Number of viewers that were rejected, because too many were connected or because they
    /// violated the protocol.
    pub viewers_refused: u64,
    /// Number of frames that were sent, over all viewers.
    pub frames_sent: u64,
    /// Number of bytes that were sent, over all viewers.
    pub bytes_sent: u64,
    /// Number of frames that a viewer skipped because a newer one replaced them before they could
    /// be sent.
    pub frames_skipped: u64,
}

impl Capture {
    pub(crate) fn open(config: &Config) -> anyhow::Result<Self> {
        let headings = "frame,captured_ns,points,bytes,digest";
        let log = config.log.as_deref();
        let log = log.map(|path| Lines::create(path, headings)).transpose()?;
        let (frames, shown) = config
            .recording
            .load_at(config.level, config.max_frames, config.fps)
            .with_context(|| with_data_dir("cannot load the recording"))?;
        let points: usize = frames.iter().map(Cloud::len).sum();
        tracing::info!(
            frames = frames.len(),
            points_per_frame = points / frames.len(),
            "recording loaded"
        );
        let mut encoder = ZstdEncoder::new();
        let frame = |cloud: Cloud| match config.encode_ahead {
            true => Frame::Encoded(Encoded::of(&cloud, &mut encoder)),
            false => Frame::Raw(cloud),
        };
        Ok(Capture {
            frames: frames.into_iter().map(frame).collect(),
            shown,
            level: config.level,
            interval: Duration::from_secs_f64(1.0 / config.fps),
            duration: config.duration,
            encoder,
            log,
        })
    }

    pub(crate) fn run(mut self, mut server: Server, stop: &AtomicBool) -> anyhow::Result<Report> {
        let mut report = Report::default();
        let result = self.play(&mut server, stop, &mut report);
        report.add(&server.finish());
        result.map(|()| report)
    }

    fn play(
        &mut self,
        server: &mut Server,
        stop: &AtomicBool,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let mut ticks = Ticks::start(self.interval, self.duration);
        while let Some(tick) = ticks.wait(stop) {
            let frame = self.capture(tick)?;
            server.publish(frame);
            report.frames_captured += 1;
            report.frames_missed += ticks.advance();
        }
        Ok(())
    }

    /// Returns the message with the frame of the current tick.
    fn capture(&mut self, tick: u64) -> anyhow::Result<Vec<u8>> {
        let captured_ns = unix_ns();
        let fresh;
        let encoded = match &self.frames[self.shown[ping_pong(self.shown.len(), tick)]] {
            Frame::Encoded(encoded) => encoded,
            Frame::Raw(cloud) => {
                fresh = Encoded::of(cloud, &mut self.encoder);
                &fresh
            }
        };
        let header = FrameHeader {
            number: tick,
            captured_ns,
            level: self.level,
            codec: Codec::Zstd,
            points: u32::try_from(encoded.points).context("the frame has too many points")?,
            length: u32::try_from(encoded.bytes.len()).context("the frame has too many bytes")?,
            digest: encoded.digest,
        };
        if let Some(log) = &mut self.log {
            log.write(format_args!(
                "{tick},{captured_ns},{},{},{}",
                header.points, header.length, header.digest
            ))?;
        }
        Ok([header.to_bytes().as_slice(), &encoded.bytes].concat())
    }
}

impl Encoded {
    fn of(cloud: &Cloud, encoder: &mut ZstdEncoder) -> Self {
        Encoded {
            points: cloud.len(),
            digest: cloud.digest(),
            bytes: encoder.compress(cloud),
        }
    }
}

impl Report {
    fn add(&mut self, counters: &Counters) {
        self.viewers = counters.viewers.load(Relaxed);
        self.viewers_refused = counters.viewers_refused.load(Relaxed);
        self.frames_sent = counters.frames_sent.load(Relaxed);
        self.bytes_sent = counters.bytes_sent.load(Relaxed);
        self.frames_skipped = counters.frames_skipped.load(Relaxed);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "captured {} frames, missed {}",
            self.frames_captured, self.frames_missed
        )?;
        write!(
            f,
            "sent {} frames ({:.1} MB) to {} viewers, which skipped {}; rejected {} viewers",
            self.frames_sent,
            self.bytes_sent as f64 / 1e6,
            self.viewers,
            self.frames_skipped,
            self.viewers_refused
        )
    }
}

/// Returns the index of the frame at a tick. Frames are played forwards and backwards in turn, so
/// that there is no jump from the last to the first.
fn ping_pong(frames: usize, tick: u64) -> usize {
    let turn = frames - 1;
    if turn == 0 {
        return 0;
    }
    let step = (tick % (2 * turn as u64)) as usize;
    if step <= turn { step } else { 2 * turn - step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_shown_forwards_and_backwards() {
        let shown = |frames| {
            (0..7)
                .map(|tick| ping_pong(frames, tick))
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(4), [0, 1, 2, 3, 2, 1, 0]);
        assert_eq!(shown(2), [0, 1, 0, 1, 0, 1, 0]);
        assert_eq!(shown(1), [0; 7]);
    }
}
