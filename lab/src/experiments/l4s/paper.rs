//! Figures of the paper: M. De Fré et al., *Low-latency volumetric video conferencing in congested
//! networks through L4S*, MMSys 2025.

use super::scenario::{Network, Rivals, Scenario};
use crate::summary::Metrics;

/// The transport latency: 10 ms of delay and 20 ms of pacing in all configurations (section 4.7).
const LATENCY_MS: f64 = 30.0;

/// Returns the paper's figures under our metric names, for both controllers: those of its own.
/// They are from its text. Figure 7 shows the estimate, which is our target.
pub(super) fn figures(scenario: Scenario) -> Metrics {
    if scenario.network != Network::Paper {
        return Metrics::default();
    }
    let rate = match scenario.rivals {
        Rivals::None => return Metrics::default(),
        Rivals::Cubic(_) => 90.0,
        Rivals::Prague(1) => 58.0,
        Rivals::Prague(2) => 15.0,
        Rivals::Prague(_) => 12.5,
    };
    let mut figures = Metrics::default();
    if matches!(scenario.rivals, Rivals::Cubic(_)) {
        figures.set("convergence_s", 10.0);
    }
    figures.set("target_mbps", rate);
    figures.set("latency_mean_ms", LATENCY_MS);
    figures.set("undecodable_frames_ratio", 0.0);
    figures
}
