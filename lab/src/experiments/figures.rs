//! Figures of a stream over the five paths: 5a to 5c and 6a of the paper.

use super::five_paths::Variation;
use super::live::{FPS, LEVELS, Outcome, PUSH};
use crate::plot::{Axis, Plot, Series};
use crate::report::Item;
use hawser_qoe::{Qoe, measure};
use std::time::Duration;

/// The part of the variation that figure 6a shows.
const ARRIVALS_SHOWN: Duration = Duration::from_secs(2);

/// Returns figures 5a, 5b and 5c, with one value for each second of the stream.
pub(super) fn experience(outcomes: &[&Outcome]) -> Vec<Item> {
    let figure = |caption: &str, axis: fn() -> Axis, points: fn(&Qoe) -> f64| {
        let points = |outcome: &Outcome| per_second(outcome, points);
        Item::figure(caption, panels(outcomes, axis, points))
    };
    vec![
        figure(
            "Figure 5a: frames per second.",
            || Axis::linear("frames per second").showing(0.0..=FPS + 5.0),
            |qoe| qoe.fps_mean,
        ),
        figure(
            "Figure 5b: frame delay, from capture to decoding; the median of each second.",
            || Axis::linear("frame delay (ms)"),
            |qoe| qoe.frame_delay_p50_ms.unwrap_or(f64::NAN),
        ),
        figure(
            "Figure 5c: throughput of decoded frames.",
            || Axis::linear("throughput (Mb/s)"),
            |qoe| qoe.throughput_mbps,
        ),
    ]
}

/// Returns a panel for each level over the time of the stream, with a line for each outcome.
pub(super) fn panels(
    outcomes: &[&Outcome],
    axis: impl Fn() -> Axis,
    points: impl Fn(&Outcome) -> Vec<(f64, f64)>,
) -> Vec<Plot> {
    let panel = |level: &str| {
        let shown: Vec<&&Outcome> = outcomes
            .iter()
            .filter(|outcome| outcome.level == level)
            .collect();
        let variation = &shown.first()?.variation;
        let series = shown
            .iter()
            .map(|outcome| Series::line(outcome.policy, points(outcome)))
            .collect();
        Some(over_time(level, variation, axis(), series))
    };
    let levels = LEVELS.into_iter().chain([PUSH]);
    levels.filter_map(panel).collect()
}

/// Returns a panel over the time of a stream.
pub(super) fn over_time(title: &str, variation: &Variation, y: Axis, series: Vec<Series>) -> Plot {
    Plot {
        title: title.to_owned(),
        x: Axis::linear("time (s)").showing(0.0..=variation.end.as_secs_f64()),
        y,
        series,
        bands: variation.bands(),
    }
}

/// Returns a figure for each second of the stream.
pub(super) fn per_second(outcome: &Outcome, figure: impl Fn(&Qoe) -> f64) -> Vec<(f64, f64)> {
    let timeline = outcome.record.timeline();
    let seconds = outcome.variation.end.as_secs();
    (0..seconds)
        .map(|second| {
            let window = outcome
                .record
                .window(Duration::from_secs(second), Duration::from_secs(second + 1));
            (second as f64 + 0.5, figure(&measure(&timeline, window)))
        })
        .collect()
}

/// Returns figure 6a: the bytes that arrived when the variation began, at the lowest level that was
/// run.
pub(super) fn arrivals(outcomes: &[&Outcome]) -> Item {
    let level = LEVELS
        .into_iter()
        .find(|level| outcomes.iter().any(|outcome| outcome.level == *level));
    let shown = outcomes
        .iter()
        .filter(|outcome| Some(outcome.level) == level);
    let shown_s = 0.0..=ARRIVALS_SHOWN.as_secs_f64();
    let plot = Plot::new(
        level.unwrap_or_default(),
        Axis::linear("time since the variation began (s)").showing(shown_s),
        Axis::linear("received (MB)"),
        shown.map(|outcome| Series::line(outcome.policy, received(outcome))),
    );
    Item::figure(
        "Figure 6a: bytes that reached the viewer's application.",
        vec![plot],
    )
}

fn received(outcome: &Outcome) -> Vec<(f64, f64)> {
    let from = outcome.variation.from().as_secs_f64();
    let mut megabytes = 0.0;
    outcome
        .record
        .arrivals
        .iter()
        .map(|arrival| {
            (
                outcome.record.seconds(arrival.received_ns) - from,
                arrival.bytes as f64 / 1e6,
            )
        })
        .filter(|(at, _)| (0.0..ARRIVALS_SHOWN.as_secs_f64()).contains(at))
        .map(|(at, bytes)| {
            megabytes += bytes;
            (at, megabytes)
        })
        .collect()
}
