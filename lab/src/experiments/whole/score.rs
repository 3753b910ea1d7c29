//! The experience of viewers, from the frames that they saw.

use crate::record::read_table;
use crate::summary::{Metrics, mean};
use anyhow::Result;
use hawser_qoe::{Frame, Qoe, Window, measure_with, stall_threshold};
use hawser_units::{Bitrate, ByteSize, Instant};
use hawser_view::Row;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// A frame that a viewer saw. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seen {
    /// `None` if the clocks were not related.
    pub(super) captured: Option<Instant>,
    /// The time at which it was decoded, or complete at a viewer that does not decode.
    pub(super) ready: Instant,
    pub(super) size: ByteSize,
    /// Whether it had all layers.
    pub(super) is_whole: bool,
}

/// The tables that the programs left.
pub(super) struct Tables<'a> {
    /// The publisher's table of encoded frames.
    pub(super) encoded: &'a Path,
    /// The tables of the viewer that decodes at the first relay, of the slow one, and of the one at the second relay.
    pub(super) viewers: [&'a Path; 3],
}

/// A line of the publisher's table of encoded frames.
#[derive(Debug, Clone, Deserialize)]
struct Encoded {
    captured_ns: u64,
    bytes: u64,
    base_bytes: u64,
}

/// The frames that viewers who do not decode saw.
pub(super) struct Watched {
    /// Those of each viewer.
    pub(super) frames: Vec<Vec<Seen>>,
    /// Packets that were dropped at the viewers' sockets, because the machine was too slow.
    pub(super) overflow: u32,
}

/// The frames of all viewers.
pub(super) struct Score {
    window: Window,
    /// The time between captures.
    interval: Duration,
    /// The frames that the publisher encoded.
    encoded: Vec<Encoded>,
    decoding: [Vec<Seen>; 3],
    crowd: Watched,
}

impl Score {
    pub(super) fn read(
        tables: &Tables<'_>,
        crowd: Watched,
        window: Window,
        fps: f64,
    ) -> Result<Self> {
        let [first, slow, second] = tables.viewers.map(seen);
        Ok(Score {
            window,
            interval: Duration::from_secs_f64(1.0 / fps),
            encoded: read_table(tables.encoded)?,
            decoding: [first?, slow?, second?],
            crowd,
        })
    }

    /// Returns the figures of the viewer that decodes, and those of the others under names of their own.
    pub(super) fn metrics(&self) -> Metrics {
        let [first, slow, second] = self.decoding.each_ref().map(|frames| self.figures(frames));
        let crowd = self.crowd.frames.iter().map(|frames| self.figures(frames));
        let crowd: Vec<Figures> = crowd.collect();
        let mean_of = |figure: fn(&Figures) -> f64| mean(crowd.iter().map(figure));
        let least = crowd.iter().map(|viewer| viewer.qoe.fps_mean);
        let mut metrics = Metrics::from([
            ("fps_mean", first.qoe.fps_mean),
            ("stall_ratio", first.qoe.stall_ratio),
            ("frame_delay_p50_ms", or_nan(first.qoe.frame_delay_p50_ms)),
            ("frame_delay_p95_ms", or_nan(first.qoe.frame_delay_p95_ms)),
            ("frames_ratio", first.frames_ratio),
            ("whole_frames_ratio", first.whole_ratio),
            ("throughput_mbps", first.qoe.throughput_mbps),
            ("encoded_mbps", self.encoded_mbps(|frame| frame.bytes)),
            ("base_mbps", self.encoded_mbps(|frame| frame.base_bytes)),
            ("crowd_fps_mean", mean_of(|viewer| viewer.qoe.fps_mean)),
            (
                "crowd_fps_least",
                least.reduce(f64::min).unwrap_or(f64::NAN),
            ),
            (
                "crowd_stall_ratio",
                mean_of(|viewer| viewer.qoe.stall_ratio),
            ),
            (
                "crowd_whole_frames_ratio",
                mean_of(|viewer| viewer.whole_ratio),
            ),
        ]);
        for (name, viewer) in [("slow", slow), ("second_relay", second)] {
            let mut set = |figure: &str, value| metrics.set(&format!("{name}_{figure}"), value);
            set("fps_mean", viewer.qoe.fps_mean);
            set("stall_ratio", viewer.qoe.stall_ratio);
            set("frames_ratio", viewer.frames_ratio);
            set("whole_frames_ratio", viewer.whole_ratio);
            set("frame_delay_p95_ms", or_nan(viewer.qoe.frame_delay_p95_ms));
            set("throughput_mbps", viewer.qoe.throughput_mbps);
        }
        metrics
    }

    /// Returns the frames per second of the viewer that decodes, in each second of the measurement.
    pub(super) fn fps(&self) -> Vec<(f64, f64)> {
        let fps = self.figures(&self.decoding[0]).qoe.fps;
        let middle = |second: usize| second as f64 + 0.5;
        let fps = fps.into_iter().enumerate();
        fps.map(|(second, fps)| (middle(second), fps)).collect()
    }

    /// Returns the number of frames per second that the publisher captured.
    pub(super) fn captured_fps(&self) -> f64 {
        self.encoded().count() as f64 / self.window.duration().as_secs_f64()
    }

    /// Returns the rate of something of each frame that was encoded.
    fn encoded_mbps(&self, bytes: fn(&Encoded) -> u64) -> f64 {
        let size = ByteSize(self.encoded().map(bytes).sum());
        Bitrate::average(size, self.window.duration()).mbps()
    }

    /// Returns the number of packets that viewers who do not decode were too slow to read.
    pub(super) fn overflow(&self) -> u32 {
        self.crowd.overflow
    }

    fn encoded(&self) -> impl Iterator<Item = &Encoded> {
        let frames = self.encoded.iter();
        frames.filter(|frame| self.window.contains(Instant::from_nanos(frame.captured_ns)))
    }

    fn figures(&self, frames: &[Seen]) -> Figures {
        let timeline: Vec<Frame> = frames.iter().filter_map(Seen::frame).collect();
        let of_window = frames.iter().filter(|seen| {
            seen.captured
                .is_some_and(|captured| self.window.contains(captured))
        });
        let captured = self.encoded().count().max(1) as f64;
        let whole = of_window.clone().filter(|seen| seen.is_whole);
        Figures {
            qoe: measure_with(&timeline, self.window, stall_threshold(self.interval)),
            frames_ratio: of_window.count() as f64 / captured,
            whole_ratio: whole.count() as f64 / captured,
        }
    }
}

/// The figures of a viewer.
struct Figures {
    qoe: Qoe,
    /// The share of captured frames that were seen.
    frames_ratio: f64,
    /// The share of captured frames that were seen with all layers.
    whole_ratio: f64,
}

impl Seen {
    fn frame(&self) -> Option<Frame> {
        Some(Frame {
            captured: self.captured?,
            decoded: self.ready,
            size: self.size,
        })
    }
}

/// Reads the table of a viewer.
fn seen(table: &Path) -> Result<Vec<Seen>> {
    let rows: Vec<Row> = read_table(table)?;
    let seen = |row: &Row| Seen {
        captured: row.captured_ns.map(Instant::from_nanos),
        ready: Instant::from_nanos(row.decoded_ns),
        size: ByteSize(row.bytes),
        is_whole: row.is_whole,
    };
    Ok(rows.iter().map(seen).collect())
}

fn or_nan(figure: Option<f64>) -> f64 {
    figure.unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns every `nth` frame of ten a second, all of them whole but each fourth that is seen.
    fn frames(nth: u64) -> Vec<Seen> {
        let seen = |number: u64| Seen {
            captured: Some(at(number * 100)),
            ready: at(number * 100 + 40),
            size: ByteSize(1000),
            is_whole: !number.is_multiple_of(4 * nth),
        };
        (0..40u64)
            .filter(|number| number.is_multiple_of(nth))
            .map(seen)
            .collect()
    }

    #[test]
    fn viewers_have_figures_of_their_own() {
        let encoded = |number: u64| Encoded {
            captured_ns: at(number * 100).as_nanos(),
            bytes: 10_000,
            base_bytes: 2_000,
        };
        let score = Score {
            window: Window::new(at(1000), at(3000)).unwrap(),
            interval: Duration::from_millis(100),
            encoded: (0..40).map(encoded).collect(),
            decoding: [frames(1), frames(2), Vec::new()],
            crowd: Watched {
                frames: vec![frames(1), frames(4)],
                overflow: 0,
            },
        };
        let metrics = score.metrics();
        for (name, expected) in [
            ("fps_mean", 10.0),
            ("frames_ratio", 1.0),
            ("whole_frames_ratio", 0.75),
            ("frame_delay_p95_ms", 40.0),
            ("stall_ratio", 0.0),
            ("slow_fps_mean", 5.0),
            ("slow_frames_ratio", 0.5),
            ("second_relay_fps_mean", 0.0),
            ("second_relay_stall_ratio", 1.0),
            ("crowd_fps_mean", 6.25),
            ("crowd_fps_least", 2.5),
            ("encoded_mbps", 0.8),
            ("base_mbps", 0.16),
        ] {
            assert_eq!(metrics.get(name), Some(expected), "{name}");
        }
        assert_eq!(score.captured_fps(), 10.0);
    }
}
