//! Figures of the paper: Y. Ni et al., *CellFusion: Multipath vehicle-to-cloud video streaming with
//! network coding in the wild*, SIGCOMM 2023.

use super::contender::{Contender, WITHOUT_SIMD, XNC};
use crate::summary::Metrics;

/// Returns the paper's figures under our metric names. Its curves have no numbers; these are from
/// its text: frame rate, stalls and the reduction against bonding of the road tests (8.1.4), packet
/// delays, their reductions against 5G alone, and redundancy of the deployment (8.2), other
/// reductions of the emulation (8.3). The figures of XNC are beside its published form and ours;
/// those of its parts, beside ours, whose parts can be removed. The text does not tell the bitrate
/// of the deployment, so its delays on a single technology are beside both bitrates.
pub(super) fn figures(case: &str) -> Metrics {
    match case {
        "xnc" | "xnc-paper" => Metrics::from([
            ("fps_mean", 29.11),
            ("stall_ratio", 0.0099),
            ("packet_delay_p95_ms", 47.4),
            ("packet_delay_p99_ms", 73.8),
            ("packet_delay_p999_ms", 222.3),
            ("redundancy_ratio", 0.09),
            ("stall_reduction_vs_minrtt_ratio", 0.8656),
            ("stall_reduction_vs_xlink_ratio", 0.8222),
            ("stall_reduction_vs_ecf_ratio", 0.9275),
            ("stall_reduction_vs_pluribus_ratio", 0.8167),
            ("stall_reduction_vs_bonding_ratio", 0.8062),
            ("packet_delay_p95_reduction_vs_single_ratio", 0.1505),
            ("packet_delay_p99_reduction_vs_single_ratio", 0.7153),
            ("packet_delay_p999_reduction_vs_single_ratio", 0.7672),
            ("redundancy_reduction_vs_pluribus_ratio", 0.8949),
            ("loss_p95_reduction_vs_xnc_without_coding_ratio", 0.1555),
            ("loss_p99_reduction_vs_xnc_without_coding_ratio", 0.4170),
            (
                "packet_delay_p95_reduction_vs_xnc_without_early_loss_ratio",
                0.0848,
            ),
            (
                "packet_delay_p99_reduction_vs_xnc_without_early_loss_ratio",
                0.2844,
            ),
        ]),
        "redundant" => Metrics::from([("redundancy_ratio", 3.0)]),
        "single" | "5g-only" | "5g-only-10mbps" => Metrics::from([
            ("packet_delay_p95_ms", 55.8),
            ("packet_delay_p99_ms", 259.2),
            ("packet_delay_p999_ms", 954.7),
        ]),
        "lte-only" | "lte-only-10mbps" => Metrics::from([
            ("packet_delay_p95_ms", 76.1),
            ("packet_delay_p99_ms", 267.2),
            ("packet_delay_p999_ms", 791.9),
        ]),
        _ => Metrics::default(),
    }
}

/// Returns the mean similarity of the pictures (SSIM) in the paper's road tests (8.1.4), the only one
/// in its text.
pub(super) fn ssim(case: &str) -> Option<f64> {
    matches!(case, "xnc" | "xnc-paper").then_some(0.93)
}

/// Returns the paper's figure of the processor time that a contender takes in addition to multipath QUIC
/// (8.3.6), relative to that. Its text has figures at 30 Mb/s only.
pub(super) fn processor_time(contender: Contender) -> Option<f64> {
    let figures = [(XNC, 0.2344), (WITHOUT_SIMD, 0.4377)];
    let found = figures.iter().find(|(of, _)| *of == contender);
    found.map(|(_, figure)| *figure)
}
