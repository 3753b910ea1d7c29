//! Results of the schemes: on each drive, and on average over drives.

use super::XNC;
use super::outcome::Outcome;
use super::view::{Frame, View};
use crate::emulator::EmulatorReport;
use crate::summary::{Case, Metrics, mean, quantile};
use hawser_qoe::{Qoe, Window};
use hawser_units::Instant;
use std::time::Duration;

/// Returns the figures of a trial.
pub(super) fn metrics(
    view: &View,
    window: Window,
    qoe: &Qoe,
    floor: &Qoe,
    emulation: &EmulatorReport,
) -> Metrics {
    let mut metrics = experience(qoe, floor);
    set_pictures(&mut metrics, view, window);
    set_delays(&mut metrics, view, window);
    let lateness_us = emulation.health.lateness_p99_us;
    metrics.set("altered_packets", view.unexpected as f64);
    metrics.set("emulator_lateness_p99_us", lateness_us);
    metrics.set("camera_lateness_p99_ms", ms(view.camera_lateness(0.99)));
    metrics
}

/// Returns the figures of a player that shows whole frames only.
fn experience(qoe: &Qoe, floor: &Qoe) -> Metrics {
    Metrics::from([
        ("fps_mean", qoe.fps_mean),
        ("fps_floor_mean", floor.fps_mean),
        ("stall_ratio", qoe.stall_ratio),
        (
            "stall_above_floor_ratio",
            qoe.stall_ratio - floor.stall_ratio,
        ),
    ])
}

/// Sets the figures of the frames that the decoder outputs.
fn set_pictures(metrics: &mut Metrics, view: &View, window: Window) {
    let frames = frames(view, window);
    let ssim = frames.iter().filter_map(|frame| frame.ssim);
    let pictures = view.decoded_qoe(window);
    metrics.set("ssim_mean", mean(ssim));
    metrics.set(
        "lost_frames_ratio",
        share(&frames, |frame| frame.shown.is_none()),
    );
    metrics.set(
        "damaged_frames_ratio",
        share(&frames, |frame| frame.ssim.is_some_and(|ssim| ssim < 1.0)),
    );
    metrics.set("picture_fps_mean", pictures.fps_mean);
    metrics.set("picture_stall_ratio", pictures.stall_ratio);
}

/// Sets the delays of frames and packets, and the share of lost packets.
fn set_delays(metrics: &mut Metrics, view: &View, window: Window) {
    let frames = frames(view, window).into_iter();
    let frames = frames.map(|frame| (frame.captured, frame.shown));
    let packets = view
        .packets
        .iter()
        .filter(|(sent, _)| window.contains(*sent));
    percentiles(metrics, "frame_delay", frames);
    let lost = percentiles(metrics, "packet_delay", packets.copied());
    metrics.set("lost_packets_ratio", lost);
}

/// Returns the frames that were captured in a window.
fn frames(view: &View, window: Window) -> Vec<&Frame> {
    view.frames
        .iter()
        .filter(|frame| window.contains(frame.captured))
        .collect()
}

/// Sets the percentiles of delays, and returns the share of items that did not arrive.
fn percentiles(
    metrics: &mut Metrics,
    name: &str,
    delays: impl Iterator<Item = (Instant, Option<Instant>)>,
) -> f64 {
    let all: Vec<(Instant, Option<Instant>)> = delays.collect();
    let mut delays: Vec<f64> = all
        .iter()
        .filter_map(|(from, to)| Some(ms((*to)?.saturating_since(*from))))
        .collect();
    delays.sort_by(f64::total_cmp);
    for (percentile, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
        metrics.set(&format!("{name}_{percentile}_ms"), quantile(&delays, share));
    }
    1.0 - delays.len() as f64 / all.len() as f64
}

/// Returns the means over drives of each scheme, then all drives.
pub(super) fn cases(outcomes: &[Outcome]) -> Vec<Case> {
    let mut schemes: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !schemes.contains(&outcome.scheme) {
            schemes.push(outcome.scheme);
        }
    }
    let means = schemes.into_iter().map(|scheme| {
        let of_scheme: Vec<&Case> = outcomes
            .iter()
            .filter(|outcome| outcome.scheme == scheme)
            .map(|outcome| &outcome.case)
            .collect();
        average(scheme, &of_scheme)
    });
    means
        .chain(outcomes.iter().map(|outcome| outcome.case.clone()))
        .collect()
}

fn average(scheme: &str, drives: &[&Case]) -> Case {
    let mut case = Case::new(scheme);
    case.set_param("drives", drives.len());
    for name in drives[0].metrics.names() {
        case.metrics.set(
            name,
            mean(drives.iter().filter_map(|drive| drive.metrics.get(name))),
        );
    }
    if scheme == XNC {
        // The means of the paper's road tests (8.1.4).
        case.paper = Metrics::from([
            ("fps_mean", 29.11),
            ("stall_ratio", 0.0099),
            ("ssim_mean", 0.93),
        ]);
    }
    case
}

fn share(frames: &[&Frame], which: impl Fn(&Frame) -> bool) -> f64 {
    frames.iter().filter(|frame| which(frame)).count() as f64 / frames.len() as f64
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
