use super::scene::{FLOW, Policy, Scene};
use crate::counters::{self, Counters};
use crate::experiment::{Run, write_json};
use crate::experiments::five_paths::Variation;
use crate::experiments::history::History;
use crate::experiments::live::{self, Live, Outcome};
use crate::programs::stream::Source;
use crate::record::Record;
use crate::summary::{Case, Metrics};
use anyhow::Result;
use hawser_agent::Status;
use hawser_model::resource::Flow;
use hawser_testbed::edges::Edges;
use hawser_testbed::topology::Lab;
use hawser_testing::Control;
use serde_json::Value;
use std::time::Duration;

/// A run of a case with one seed.
pub(crate) struct StreamOutcome {
    pub(super) seed: u64,
    pub(super) scene: Scene,
    pub(super) outcome: Outcome,
    /// The judgements and decisions of controller and agents; `None` with MPTCP.
    pub(super) history: Option<History>,
}

/// Bytes of the link header in a frame, which are not part of the packet.
const LINK_HEADER_BYTES: u64 = 14;

/// Runs a stream.
pub(super) fn run(run: &Run, scene: &Scene) -> Result<StreamOutcome> {
    let variation = scene.variation(run.seconds);
    let (policy, level) = (scene.policy_name(), scene.level_name());
    let raw = format!("{policy}-{level}-{}", run.seed);
    let live = Live::prepare(run, &raw, &scene.topology(), &variation)?;
    let source = scene.source(&live.directory)?;
    let (record, history, cost) = stream(run, scene, &live, &source, &variation)?;
    let emulation = live.finish()?;

    let mut case = live::case(&scene.to_string(), &source.recording, &variation);
    case.set_param("congestion", source.congestion.clone());
    case.params.extend(scene.params());
    case.metrics = live::metrics(&record, &emulation, &variation);
    let identical = live::identical(&record);
    case.metrics.set("identical_frames_ratio", identical);
    case.metrics.set("bandwidth_cost_ratio", cost);
    if let Some(history) = &history {
        describe(history, scene, &variation, &mut case.metrics);
    }
    let invalid_because = live::invalid_because(source.fps, &record, &emulation, &variation);
    Ok(StreamOutcome {
        seed: run.seed,
        scene: scene.clone(),
        outcome: Outcome {
            policy,
            level,
            case,
            record,
            variation,
            invalid_because,
            picture: None,
        },
        history,
    })
}

/// Runs the stream. Returns its record, the history of its flow, and the bandwidth cost during the
/// variation.
fn stream(
    run: &Run,
    scene: &Scene,
    live: &Live,
    source: &Source,
    variation: &Variation,
) -> Result<(Record, Option<History>, f64)> {
    let controlled = scene
        .flow(&live.lab)
        .map(|flow| Controlled::start(run, live, &flow))
        .transpose()?;
    let mut stream = live.stream(run, source)?;
    live.sleep(run, &mut stream, Duration::ZERO, variation.from())?;
    let before = Reading::take(&live.lab, controlled.as_ref())?;
    live.sleep(run, &mut stream, variation.from(), variation.to())?;
    let after = Reading::take(&live.lab, controlled.as_ref())?;
    live.sleep(run, &mut stream, variation.to(), variation.end)?;
    let record = stream.stop()?;
    let history = controlled
        .map(|controlled| controlled.stop(live, &record))
        .transpose()?;
    Ok((record, history, before.cost_until(&after)))
}

/// The controller and the agents of a stream's flow.
struct Controlled {
    control: Control,
    edges: Edges<Status>,
}

impl Controlled {
    fn start(run: &Run, live: &Live, flow: &Flow) -> Result<Self> {
        let mut control = Control::start(&live.lab, &run.hawser, &live.directory)?;
        let edges = Edges::start_controlled(&live.lab, &run.hawser, &live.directory, &control)?;
        control.create_flow(flow)?;
        Ok(Controlled { control, edges })
    }

    fn stop(self, live: &Live, record: &Record) -> Result<History> {
        write_json(&live.directory.join("events.json"), &self.control.events()?)?;
        self.edges.stop()?;
        self.control.stop()?;
        History::read(&live.directory, FLOW, record.began_ns)
    }
}

/// The traffic sent until some time.
struct Reading {
    /// The counters of the source.
    source: Counters,
    /// The status of the ingress edge; `None` if there is no agent.
    ingress: Option<Status>,
}

impl Reading {
    fn take(lab: &Lab, controlled: Option<&Controlled>) -> Result<Self> {
        let device = &lab.addressing().source.near.device;
        let ingress = controlled
            .map(|controlled| controlled.edges.ingress())
            .transpose()?;
        Ok(Reading {
            source: counters::of_device(lab.source(), device)?,
            ingress,
        })
    }

    /// Returns the ratio of the bytes sent on paths to the bytes of the source, between two
    /// readings.
    fn cost_until(&self, after: &Reading) -> f64 {
        let (Some(before), Some(then)) = (&self.ingress, &after.ingress) else {
            return 1.0;
        };
        let sent = after.source - self.source;
        let packets_bytes = sent.sent_bytes - LINK_HEADER_BYTES * sent.sent_packets;
        1.0 + (additional_bytes(then) - additional_bytes(before)) / packets_bytes as f64
    }
}

/// Returns the bytes of copies other than the first of each replicated packet.
fn additional_bytes(status: &Status) -> f64 {
    let copies = status
        .send
        .values()
        .flat_map(|flow| flow.copies.values())
        .map(|copies| copies.bytes);
    let packets = status.send.values().map(|flow| flow.bytes);
    copies.sum::<u64>() as f64 - packets.sum::<u64>() as f64
}

fn describe(history: &History, scene: &Scene, variation: &Variation, metrics: &mut Metrics) {
    metrics.set(
        "paths_mean",
        history.paths_mean(variation.from(), variation.to()),
    );
    if !scene.uncapped {
        set_trigger(history, variation, metrics);
    }
    if scene.recovery {
        set_recovery(history, variation, metrics);
    }
}

/// Sets the times until the trigger fired, and from then to the first replica.
fn set_trigger(history: &History, variation: &Variation, metrics: &mut Metrics) {
    let after = history
        .triggered_in(variation)
        .map(|at| at - variation.from().as_secs_f64());
    let first_copy = history.trigger_to_first_copy().map(|seconds| seconds * 1e3);
    metrics.set("variation_to_trigger_s", after.unwrap_or(f64::NAN));
    metrics.set(
        "trigger_to_first_replica_ms",
        first_copy.unwrap_or(f64::NAN),
    );
}

/// Sets the times in which the flow returned to one path after the first variation, and was
/// replicated in the second.
fn set_recovery(history: &History, variation: &Variation, metrics: &mut Metrics) {
    let [first, second] = variation.during[..] else {
        unreachable!("a recovery has two variations")
    };
    let calm = history
        .first(first.1, |paths| paths == 1)
        .filter(|at| *at < second.0.as_secs_f64());
    let again = history
        .first(second.0, |paths| paths > 1)
        .filter(|at| *at < second.1.as_secs_f64());
    let since =
        |at: Option<f64>, begin: Duration| at.map_or(f64::NAN, |at| at - begin.as_secs_f64());
    metrics.set("calm_to_one_path_s", since(calm, first.1));
    metrics.set("variation_to_many_paths_s", since(again, second.0));
}

/// Sets the throughput of every trial relative to that of the single path with the same level and
/// seed.
pub(super) fn compare(trials: &mut [StreamOutcome]) {
    let single: Vec<(&str, u64, f64)> = trials
        .iter()
        .filter(|trial| trial.scene.policy == Policy::Single)
        .map(|trial| (trial.outcome.level, trial.seed, throughput(trial)))
        .collect();
    for trial in trials {
        let same_case = |(level, seed, _): &&(&str, u64, f64)| {
            *level == trial.outcome.level && *seed == trial.seed
        };
        if let Some((_, _, single_path)) = single.iter().find(same_case) {
            let gain = throughput(trial) / single_path;
            trial
                .outcome
                .case
                .metrics
                .set("throughput_gain_ratio", gain);
        }
    }
}

fn throughput(trial: &StreamOutcome) -> f64 {
    trial
        .outcome
        .case
        .metrics
        .get("throughput_mbps")
        .unwrap_or(f64::NAN)
}

/// Combines cases of different seeds into one, with the medians and the figures of each seed.
pub(super) fn summarise<'a>(cases: impl IntoIterator<Item = (u64, &'a Case)>) -> Option<Case> {
    let cases: Vec<(u64, &Case)> = cases.into_iter().collect();
    let (_, first) = cases.first()?;
    let mut summary = Case {
        metrics: Metrics::default(),
        ..(*first).clone()
    };
    let mut by_seed = serde_json::Map::new();
    for name in first.metrics.names() {
        let values = values(&cases, name);
        summary.metrics.set(name, median(&values));
        by_seed.insert(
            name.to_owned(),
            values.into_iter().map(Value::from).collect(),
        );
    }
    let attempts = cases
        .iter()
        .filter_map(|(_, case)| case.params.get("attempts").cloned());
    summary.params.insert("attempts".into(), attempts.collect());
    let seeds: Vec<u64> = cases.iter().map(|(seed, _)| *seed).collect();
    summary.set_param("seeds", seeds);
    summary.set_param("by_seed", by_seed);
    Some(summary)
}

/// Returns a metric of each case.
fn values(cases: &[(u64, &Case)], metric: &str) -> Vec<f64> {
    cases
        .iter()
        .map(|(_, case)| case.metrics.get(metric).unwrap_or(f64::NAN))
        .collect()
}

/// Returns the median of the finite values.
fn median(values: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        length => (sorted[(length - 1) / 2] + sorted[length / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_beside_what_each_seed_gave() {
        let case = |fps: f64, trigger: f64| {
            let mut case = Case::new("single/fhd");
            case.metrics = [("fps_mean", fps), ("trigger_to_first_replica_ms", trigger)].into();
            case
        };
        let cases = [case(12.0, f64::NAN), case(10.0, 30.0), case(14.0, 50.0)];

        let summary = summarise((1..).zip(&cases)).unwrap();

        assert_eq!(summary.metrics.get("fps_mean"), Some(12.0));
        assert_eq!(
            summary.metrics.get("trigger_to_first_replica_ms"),
            Some(40.0)
        );
        let by_seed = serde_json::to_string(&summary.params["by_seed"]).unwrap();
        assert_eq!(
            by_seed,
            r#"{"fps_mean":[12.0,10.0,14.0],"trigger_to_first_replica_ms":[null,30.0,50.0]}"#
        );
        assert_eq!(summary.params["seeds"], Value::from(vec![1, 2, 3]));
    }
}
