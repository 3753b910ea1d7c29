//! The figures of a run, from the tables of publisher and viewer.

use super::Window;
use crate::programs::push::PushLogs;
use crate::record::read_table;
use crate::summary::{Case, Metrics, mean, quantile};
use anyhow::Result;
use hawser_view::Row as PushRow;
use serde::Deserialize;

/// A line of the publisher's table of encoded frames.
#[derive(Debug, Clone, Deserialize)]
struct Encoded {
    captured_ns: u64,
    encode_us: u64,
}

/// A line of the publisher's table of flows.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct FlowState {
    time_ns: u64,
    target_mbps: f64,
    queue_ms: Option<f64>,
    received_bytes: u64,
    ce_bytes: u64,
    lost: u64,
}

/// The tables of a run.
pub(super) struct Score {
    window: Window,
    began_ns: u64,
    frames: Vec<PushRow>,
    encoded: Vec<Encoded>,
    flows: Vec<FlowState>,
}

impl Score {
    pub(super) fn read(logs: &PushLogs, window: Window) -> Result<Self> {
        Ok(Score {
            window,
            began_ns: logs.began_ns,
            frames: read_table(&logs.frames)?,
            encoded: read_table(&logs.encoded)?,
            flows: read_table(&logs.flows)?,
        })
    }

    /// Returns the number of frames per second that were encoded during the measurement.
    pub(super) fn encoded_fps(&self) -> f64 {
        self.encoded().count() as f64 / self.seconds()
    }

    /// Returns the case with all metrics.
    pub(super) fn case(&self, name: &str) -> Case {
        let mut case = Case::new(name);
        case.metrics = self.metrics();
        case
    }

    /// Adds the main figures of a stream that goes the other way.
    pub(super) fn add_as_other_direction(&self, metrics: &mut Metrics) {
        let own = self.metrics();
        for (name, of_back) in [
            ("throughput_mbps", "back_throughput_mbps"),
            ("whole_frames_ratio", "back_whole_frames_ratio"),
            ("frame_delay_p99_ms", "back_frame_delay_p99_ms"),
        ] {
            if let Some(value) = own.get(name) {
                metrics.set(of_back, value);
            }
        }
    }

    fn metrics(&self) -> Metrics {
        let frames: Vec<&PushRow> = self.frames().collect();
        let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
        let transport = frames
            .iter()
            .filter_map(|f| Some(ms(f.first_packet_ns?, f.received_ns)));
        let delay = frames
            .iter()
            .filter_map(|f| Some(ms(f.captured_ns?, f.decoded_ns)));
        let decode = frames.iter().map(|f| ms(f.decoding_ns, f.decoded_ns));
        let encode = self.encoded().map(|frame| frame.encode_us as f64 / 1e3);
        let queue = self.states().filter_map(|state| state.queue_ms);
        let [transport, delay, decode, encode, queue] = [
            transport.collect(),
            delay.collect(),
            decode.collect(),
            encode.collect(),
            queue.collect(),
        ]
        .map(Figures::of);
        let (whole, shown) = (frames.iter().filter(|f| f.is_whole).count(), frames.len());
        let captured = self.encoded().count().max(1) as f64;
        let mut metrics = Metrics::from([
            ("throughput_mbps", self.throughput_mbps()),
            ("target_mbps", mean(self.states().map(|s| s.target_mbps))),
            ("marked_ratio", self.marked_ratio()),
            ("frames_ratio", shown as f64 / captured),
            ("whole_frames_ratio", whole as f64 / captured),
            ("transport_mean_ms", transport.mean),
            ("transport_p99_ms", transport.p99),
            ("frame_delay_p50_ms", delay.p50),
            ("frame_delay_p99_ms", delay.p99),
            ("queue_delay_p99_ms", queue.p99),
            ("encode_ms", encode.mean),
            ("decode_ms", decode.mean),
            ("lost_packets", self.growth(|state| state.lost)),
        ]);
        if let Some(mbps) = self.window.competitors_mbps {
            metrics.set("competitors_mbps", mbps);
        }
        metrics
    }

    fn throughput_mbps(&self) -> f64 {
        self.growth(|state| state.received_bytes) * 8e-6 / self.seconds()
    }

    fn marked_ratio(&self) -> f64 {
        let received = self.growth(|state| state.received_bytes).max(1.0);
        self.growth(|state| state.ce_bytes) / received
    }

    /// Returns the growth of a count of the flow during the measurement.
    fn growth(&self, count: impl Fn(&FlowState) -> u64) -> f64 {
        let first = self.states().next().map_or(0, &count);
        let last = self.states().last().map_or(0, &count);
        last.saturating_sub(first) as f64
    }

    fn seconds(&self) -> f64 {
        (self.window.to_ns - self.window.from_ns) as f64 / 1e9
    }

    /// Returns the frames that were captured during the measurement and were decoded.
    fn frames(&self) -> impl Iterator<Item = &PushRow> {
        let is_within = |frame: &&PushRow| frame.captured_ns.is_some_and(|ns| self.is_within(ns));
        self.frames.iter().filter(is_within)
    }

    fn encoded(&self) -> impl Iterator<Item = &Encoded> {
        let frames = self.encoded.iter();
        frames.filter(|frame| self.is_within(frame.captured_ns))
    }

    fn states(&self) -> impl Iterator<Item = &FlowState> {
        let states = self.flows.iter();
        states.filter(|state| self.is_within(state.time_ns))
    }

    fn is_within(&self, ns: u64) -> bool {
        (self.window.from_ns..self.window.to_ns).contains(&ns)
    }

    /// Returns the target over the seconds since the start of the stream.
    pub(super) fn targets(&self) -> Vec<(f64, f64)> {
        let states = self.flows.iter();
        let point = |state: &FlowState| (self.since(state.time_ns), state.target_mbps);
        states.map(point).collect()
    }

    /// Returns the milliseconds from capture to the end of decoding of each frame.
    pub(super) fn delays(&self) -> Vec<(f64, f64)> {
        let point = |frame: &PushRow| {
            let captured = frame.captured_ns?;
            let delay = frame.decoded_ns.saturating_sub(captured) as f64 / 1e6;
            Some((self.since(captured), delay))
        };
        self.frames.iter().filter_map(point).collect()
    }

    /// Returns the beginning and the end of the measurement, seconds since the start of the stream.
    pub(super) fn measured(&self) -> (f64, f64) {
        (
            self.since(self.window.from_ns),
            self.since(self.window.to_ns),
        )
    }

    fn since(&self, ns: u64) -> f64 {
        (ns as f64 - self.began_ns as f64) / 1e9
    }
}

/// Mean and percentiles, NaN without values.
struct Figures {
    mean: f64,
    p50: f64,
    p99: f64,
}

impl Figures {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Figures {
            mean: mean(values.iter().copied()),
            p50: quantile(&values, 0.5),
            p99: quantile(&values, 0.99),
        }
    }
}
