//! The experience of viewers, from the frames that they saw.

use crate::record::read_table;
use crate::summary::{Metrics, mean};
use anyhow::{Context, Result};
use hawser_qoe::{Frame, Qoe, Window, measure_with, stall_threshold};
use hawser_units::{Bitrate, ByteSize, Instant};
use hawser_view::Row;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// The time after a kill in which a gap is counted as its consequence: the program is started again after a second at
/// most.
const CONSEQUENCES: Duration = Duration::from_secs(4);

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

/// A kill of a program, and the time after it in which a gap is counted as a consequence. Times are nanoseconds since
/// 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kill {
    from_ns: u64,
    to_ns: u64,
    /// The condition of the network.
    condition: &'static str,
}

/// The frames of all viewers.
pub(super) struct Score {
    window: Window,
    /// The time of the measurement, nanoseconds since 1970.
    span: (u64, u64),
    kills: Vec<Kill>,
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
        span: (u64, u64),
        kills: Vec<Kill>,
        fps: f64,
    ) -> Result<Self> {
        let (from, to) = (Instant::from_nanos(span.0), Instant::from_nanos(span.1));
        let window = Window::new(from, to).context("the measurement has a length")?;
        let [first, slow, second] = tables.viewers.map(seen);
        Ok(Score {
            window,
            span,
            kills,
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
        self.add_gaps(&mut metrics);
        metrics
    }

    /// Adds the longest times without a new frame, if a program was killed: those that follow a kill, and the others.
    fn add_gaps(&self, metrics: &mut Metrics) {
        if self.kills.is_empty() {
            return;
        }
        let [first, _, second] = &self.decoding;
        let after_any = |frames: &[Seen]| longest(self.gaps(frames), |gap| self.has_followed(gap));
        metrics.set("kill_gap_s", after_any(first));
        let crowd = self.crowd.frames.iter().map(|frames| after_any(frames));
        metrics.set("crowd_kill_gap_s", crowd.fold(0.0, f64::max));
        metrics.set("second_relay_kill_gap_s", after_any(second));
        let other = longest(self.gaps(first), |gap| !self.has_followed(gap));
        metrics.set("other_gap_s", other);
        for kill in &self.kills {
            let after_this = longest(self.gaps(first), |gap| kill.is_followed_by(gap));
            metrics.set(&format!("kill_gap_{}_s", kill.condition), after_this);
        }
    }

    fn has_followed(&self, gap: &(u64, u64)) -> bool {
        self.kills.iter().any(|kill| kill.is_followed_by(gap))
    }

    /// Returns the times between two frames of the measurement.
    fn gaps<'a>(&self, frames: &'a [Seen]) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let (from, to) = self.span;
        let ready = frames.iter().map(|frame| frame.ready.as_nanos());
        let mut ready: Vec<u64> = ready.filter(|at| (from..to).contains(at)).collect();
        ready.extend([from, to]);
        ready.sort_unstable();
        let starts = ready.clone();
        starts.into_iter().zip(ready.into_iter().skip(1))
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

impl Kill {
    /// Returns a kill at this time, nanoseconds since 1970.
    pub(super) fn at(from_ns: u64, condition: &'static str) -> Self {
        Kill {
            from_ns,
            to_ns: from_ns + CONSEQUENCES.as_nanos() as u64,
            condition,
        }
    }

    fn is_followed_by(&self, &(from, to): &(u64, u64)) -> bool {
        from < self.to_ns && to > self.from_ns
    }
}

/// Returns the longest of the chosen gaps in seconds; 0 if there is none.
fn longest(gaps: impl Iterator<Item = (u64, u64)>, is_chosen: impl Fn(&(u64, u64)) -> bool) -> f64 {
    let chosen = gaps.filter(is_chosen);
    let longest = chosen.map(|(from, to)| to - from).max();
    longest.unwrap_or(0) as f64 / 1e9
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

    fn score(kills: Vec<Kill>) -> Score {
        let encoded = |number: u64| Encoded {
            captured_ns: at(number * 100).as_nanos(),
            bytes: 10_000,
            base_bytes: 2_000,
        };
        Score {
            window: Window::new(at(1000), at(3000)).unwrap(),
            span: (at(1000).as_nanos(), at(3000).as_nanos()),
            kills,
            interval: Duration::from_millis(100),
            encoded: (0..40).map(encoded).collect(),
            decoding: [frames(1), frames(2), Vec::new()],
            crowd: Watched {
                frames: vec![frames(1), frames(4)],
                overflow: 0,
            },
        }
    }

    #[test]
    fn gaps_after_kills_are_told_from_others() {
        let mut score = score(vec![Kill {
            from_ns: at(1500).as_nanos(),
            to_ns: at(1800).as_nanos(),
            condition: "lossy",
        }]);
        for (from, to) in [(1450, 1900), (2000, 2700)] {
            let is_kept = |seen: &Seen| !(at(from)..at(to)).contains(&seen.ready);
            score.decoding[0].retain(is_kept);
        }
        let metrics = score.metrics();
        for (name, expected) in [
            ("kill_gap_s", 0.5),
            ("kill_gap_lossy_s", 0.5),
            ("other_gap_s", 0.8),
            ("crowd_kill_gap_s", 0.4),
            ("second_relay_kill_gap_s", 2.0),
        ] {
            assert_eq!(metrics.get(name), Some(expected), "{name}");
        }
    }

    #[test]
    fn viewers_have_figures_of_their_own() {
        let score = score(Vec::new());
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
        assert_eq!(metrics.get("kill_gap_s"), None);
        assert_eq!(score.captured_fps(), 10.0);
    }
}
