//! The figures of a case, over all seeds.

use super::frames::Frame;
use super::pictures::Stages;
use super::scenario::{Controller, Media, Network, Scenario, Times};
use super::simulation::{Outcome, Sample};
use super::webrtc::CONTROL;
use super::{Trial, paper};
use crate::summary::{Case, Metrics, quantile};
use crate::vmaf;
use hawser_units::ByteSize;
use std::time::Duration;

/// The time from capture after which a frame counts as late: three frames.
const LATE: Duration = Duration::from_millis(100);

/// A case with the outcomes of its seeds.
pub(super) struct Score {
    pub(super) scenario: Scenario,
    pub(super) times: Times,
    pub(super) outcomes: Vec<Outcome>,
}

/// Collects the outcomes of each case.
pub(super) fn collect(trials: Vec<(Trial, Outcome)>) -> Vec<Score> {
    let mut scores: Vec<Score> = Vec::new();
    for (trial, outcome) in trials {
        let score = scores
            .iter_mut()
            .find(|score| score.scenario == trial.scenario);
        match score {
            Some(score) => score.outcomes.push(outcome),
            None => scores.push(Score {
                scenario: trial.scenario,
                times: trial.times,
                outcomes: vec![outcome],
            }),
        }
    }
    scores
}

impl Score {
    /// Returns the entry of the summary.
    pub(super) fn case(&self) -> Case {
        let mut case = Case::new(&self.scenario.to_string());
        case.set_param("seeds", self.outcomes.len());
        case.set_param("start_up_s", self.times.stable.as_secs_f64());
        case.set_param(
            "seconds",
            (self.times.end - self.times.stable).as_secs_f64(),
        );
        let converges_to = if self.reaches_maximum() {
            "maximum"
        } else {
            "plateau"
        };
        case.set_param("convergence_to", converges_to);
        if self.scenario.media == Media::WebRtc {
            case.set_param("control", CONTROL);
        }
        case.metrics = self.metrics();
        case.paper = paper::figures(self.scenario);
        case
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::default();
        metrics.set(
            "convergence_s",
            self.mean(|outcome| self.convergence(outcome)),
        );
        self.rates(&mut metrics);
        self.delays(&mut metrics);
        self.losses(&mut metrics);
        self.pictures(&mut metrics);
        if self.scenario.network == Network::Steps {
            metrics.set("recovery_s", self.mean(|outcome| self.recovery(outcome)));
        }
        metrics
    }

    fn rates(&self, metrics: &mut Metrics) {
        let media = |sample: &Sample| sample.media;
        metrics.set("throughput_mbps", self.mean(|o| self.mbps(o, media)));
        metrics.set("target_mbps", self.mean(|o| self.target(o)));
        let rivals = self.scenario.rivals.count();
        if rivals > 0 {
            let each = |o: &Outcome| -> Vec<f64> {
                let rival = |number: usize| self.mbps(o, move |sample| sample.rivals[number]);
                (0..rivals).map(rival).collect()
            };
            let sum = |o: &Outcome| -> f64 { each(o).iter().sum() };
            let least = |o: &Outcome| each(o).into_iter().fold(f64::INFINITY, f64::min);
            metrics.set("competitors_mbps", self.mean(sum));
            metrics.set("competitor_min_mbps", self.mean(least));
        }
    }

    fn delays(&self, metrics: &mut Metrics) {
        let latency = self.spans(Frame::latency);
        metrics.set(
            "latency_mean_ms",
            latency.iter().sum::<f64>() / latency.len() as f64,
        );
        metrics.set("latency_p99_ms", quantile(&latency, 0.99));
        metrics.set("latency_max_ms", quantile(&latency, 1.0));
        let beyond = |frame: &Frame| Some(frame.latency()?.saturating_sub(frame.pacing));
        metrics.set(
            "latency_beyond_pacing_p99_ms",
            quantile(&self.spans(beyond), 0.99),
        );
        let delay = self.spans(Frame::delay);
        metrics.set("frame_delay_p99_ms", quantile(&delay, 0.99));
        metrics.set("frame_delay_max_ms", quantile(&delay, 1.0));
        let queue = |o: &Outcome| o.queue.quantile(0.99).as_secs_f64() * 1e3;
        let highest = self.outcomes.iter().map(queue).fold(f64::NAN, f64::max);
        metrics.set("queue_delay_p99_ms", highest);
    }

    fn losses(&self, metrics: &mut Metrics) {
        let frames: Vec<&Frame> = self.stable_frames().collect();
        let mut share = |name: &str, is_so: fn(&Frame) -> bool| {
            let count = frames.iter().filter(|frame| is_so(frame)).count();
            metrics.set(name, count as f64 / frames.len() as f64);
        };
        share("undecodable_frames_ratio", |frame| {
            frame.began.is_some() && !frame.is_decodable()
        });
        share("dropped_frames_ratio", |frame| frame.began.is_none());
        share("reduced_frames_ratio", |frame| {
            frame.is_decodable() && !frame.is_whole()
        });
        share("late_frames_ratio", |frame| {
            frame.delay().is_some_and(|delay| delay > LATE)
        });
    }

    fn pictures(&self, metrics: &mut Metrics) {
        let pictures = self.outcomes.iter().map(|outcome| &outcome.pictures);
        let runs: Vec<Vec<f64>> = pictures
            .map(|pictures| pictures.scores.iter().map(|(_, score)| *score).collect())
            .collect();
        let runs: Vec<&[f64]> = runs.iter().map(Vec::as_slice).collect();
        vmaf::describe(&runs, metrics);
        let stages = || self.outcomes.iter().flat_map(|o| &o.pictures.stages);
        let mut median = |name: &str, time: fn(&Stages) -> Duration| {
            let mut times: Vec<f64> = stages().map(|s| time(s).as_secs_f64() * 1e3).collect();
            times.sort_unstable_by(f64::total_cmp);
            if !times.is_empty() {
                metrics.set(name, quantile(&times, 0.5));
            }
        };
        median("encode_ms", |stages| stages.encode);
        median("decode_ms", |stages| stages.decode);
        median("render_ms", |stages| stages.render);
    }

    fn reaches_maximum(&self) -> bool {
        let reaches = |outcome: &Outcome| first_target(outcome, maximum()).is_some();
        self.outcomes.iter().all(reaches)
    }

    /// Returns the time in seconds at which the target reached its maximum, or nine tenths of its
    /// plateau if it does not reach the maximum with every seed.
    fn convergence(&self, outcome: &Outcome) -> f64 {
        let aim = if self.reaches_maximum() {
            maximum()
        } else {
            0.9 * self.target(outcome)
        };
        first_target(outcome, aim).unwrap_or(f64::NAN)
    }

    /// Returns the time in seconds from the return of the rate until the target is at its maximum.
    fn recovery(&self, outcome: &Outcome) -> f64 {
        let rise = self.times.rise().as_secs_f64();
        let reached = targets(outcome).find(|(at, mbps)| *at >= rise && *mbps >= maximum());
        reached.map_or(f64::NAN, |(at, _)| at - rise)
    }

    /// Returns the mean target of the stable state.
    fn target(&self, outcome: &Outcome) -> f64 {
        let stable = self.times.stable.as_secs_f64();
        let targets: Vec<f64> = targets(outcome)
            .filter(|(at, _)| *at >= stable)
            .map(|(_, mbps)| mbps)
            .collect();
        targets.iter().sum::<f64>() / targets.len() as f64
    }

    /// Returns the rate of what was received in the stable state.
    fn mbps(&self, outcome: &Outcome, bytes: impl Fn(&Sample) -> ByteSize) -> f64 {
        let from = outcome.samples.iter().find(|s| s.at >= self.times.stable);
        let (Some(from), Some(to)) = (from, outcome.samples.last()) else {
            return f64::NAN;
        };
        rate(from, to, bytes)
    }

    /// Returns the mean of a figure over the seeds.
    fn mean(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        let sum: f64 = self.outcomes.iter().map(figure).sum();
        sum / self.outcomes.len() as f64
    }

    /// Returns the frames of the stable state of all seeds.
    fn stable_frames(&self) -> impl Iterator<Item = &Frame> {
        let outcomes = self.outcomes.iter();
        outcomes.flat_map(|outcome| &outcome.frames[self.times.stable_frames(&outcome.frames)])
    }

    /// Returns a time of each frame in ascending order, in milliseconds.
    fn spans(&self, span: impl Fn(&Frame) -> Option<Duration>) -> Vec<f64> {
        let spans = self.stable_frames().filter_map(span);
        let mut spans: Vec<f64> = spans.map(|span| span.as_secs_f64() * 1e3).collect();
        spans.sort_by(f64::total_cmp);
        spans
    }
}

/// Returns the rate in Mb/s between two samples.
pub(super) fn rate(from: &Sample, to: &Sample, bytes: impl Fn(&Sample) -> ByteSize) -> f64 {
    let bits = (bytes(to).0 - bytes(from).0) as f64 * 8.0;
    bits * 1e-6 / (to.at - from.at).as_secs_f64()
}

/// Returns the target at each frame: the time in seconds and Mb/s.
pub(super) fn targets(outcome: &Outcome) -> impl Iterator<Item = (f64, f64)> + '_ {
    let frames = outcome.frames.iter();
    frames.map(|frame| (frame.captured.as_secs_f64(), frame.target.mbps()))
}

fn first_target(outcome: &Outcome, mbps: f64) -> Option<f64> {
    let first = targets(outcome).find(|(_, target)| *target >= mbps);
    first.map(|(at, _)| at)
}

fn maximum() -> f64 {
    Controller::maximum().mbps()
}
