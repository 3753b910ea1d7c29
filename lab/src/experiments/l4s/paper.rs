//! Figures of the paper: M. De Fré et al., *Low-latency volumetric video conferencing in congested
//! networks through L4S*, MMSys 2025.

use super::scenario::{Media, Network, Rivals, Scenario};
use crate::summary::Metrics;
use std::ops::RangeInclusive;

/// The transport latency: 10 ms of delay and 20 ms of pacing in all configurations (section 4.7).
const LATENCY_MS: f64 = 30.0;

/// Returns the paper's figures under our metric names: those of its own controller for both of
/// Hawser's, and those of its WebRTC for WebRTC. They are from its text. Figures 6 and 7 show the
/// estimate, which is our target.
pub(super) fn figures(scenario: Scenario) -> Metrics {
    let mut figures = Metrics::default();
    if scenario.network != Network::Paper || scenario.rivals == Rivals::None {
        return figures;
    }
    match scenario.media {
        Media::Hawser(_) => l4s(scenario.rivals, &mut figures),
        Media::WebRtc => webrtc(scenario.rivals, &mut figures),
    }
    figures
}

/// Sections 4.4 to 4.7.
fn l4s(rivals: Rivals, figures: &mut Metrics) {
    let rate = match rivals {
        Rivals::None | Rivals::Cubic(_) => 90.0,
        Rivals::Prague(1) => 58.0,
        Rivals::Prague(2) => 15.0,
        Rivals::Prague(_) => 12.5,
    };
    if matches!(rivals, Rivals::Cubic(_)) {
        figures.set("convergence_s", 10.0);
    }
    figures.set("target_mbps", rate);
    figures.set("latency_mean_ms", LATENCY_MS);
    figures.set("undecodable_frames_ratio", 0.0);
    match rivals {
        Rivals::Cubic(3) => vmaf(figures, [84.97, 0.33, 3.16], 74.0..=91.0),
        Rivals::Prague(3) => vmaf(figures, [45.17, 0.04, 2.41], 37.0..=64.0),
        _ => {}
    }
}

/// Sections 4.4 to 4.6. Figure 8, of the latency, has no numbers in the text.
fn webrtc(rivals: Rivals, figures: &mut Metrics) {
    match rivals {
        Rivals::None => {}
        Rivals::Cubic(flows) => {
            figures.set("target_mbps", if flows == 1 { 46.0 } else { 30.0 });
            if flows == 3 {
                figures.set("undecodable_frames_ratio", 0.03);
                vmaf(figures, [61.98, 3.26, 10.53], 11.0..=79.0);
            }
        }
        Rivals::Prague(flows) => {
            figures.set("convergence_s", 22.0);
            figures.set("target_mbps", 90.0);
            figures.set("undecodable_frames_ratio", 0.0);
            if flows == 3 {
                vmaf(figures, [85.39, 0.0, 2.57], 74.0..=91.0);
            }
        }
    }
}

/// Table 1, which does not say how many flows compete: the mean, its deviation between runs and the
/// deviation within a run. Table 2: the lowest and the highest score of three runs beside three flows.
fn vmaf(figures: &mut Metrics, [mean, between, within]: [f64; 3], range: RangeInclusive<f64>) {
    figures.set("vmaf_mean_score", mean);
    figures.set("vmaf_between_runs_stddev_score", between);
    figures.set("vmaf_within_run_stddev_score", within);
    figures.set("vmaf_min_score", *range.start());
    figures.set("vmaf_max_score", *range.end());
}
