//! The figures of a case, and the rates at which codecs reach a quality.

use super::distance::Psnr;
use super::scenario::{Coder, Rate, Scenario};
use super::trial::Outcome;
use crate::summary::{Case, Metrics, mean, quantile};
use crate::vmaf;
use hawser_publish::CodecName;
use std::time::Duration;

/// The score of VMAF at which rates are compared.
pub(super) const SCORE: f64 = 85.0;

/// The metric that has the score.
pub(super) const VMAF: &str = "vmaf_mean_score";

/// The codec to which rates are compared.
const RIVAL: Coder = Coder::Product(CodecName::Draco);

/// A case with its figures.
pub(super) struct Score {
    pub(super) scenario: Scenario,
    pub(super) outcome: Outcome,
    metrics: Metrics,
}

impl Score {
    pub(super) fn new(scenario: Scenario, outcome: Outcome) -> Self {
        let metrics = metrics(&outcome);
        Score {
            scenario,
            outcome,
            metrics,
        }
    }

    pub(super) fn case(&self) -> Case {
        let mut case = Case::new(&self.scenario.to_string());
        if let Rate::Mbps(rate) = self.scenario.rate {
            case.set_param("target_mbps", rate);
        }
        case.metrics = self.metrics.clone();
        case
    }

    /// Returns a figure, NaN if it could not be measured.
    pub(super) fn get(&self, metric: &str) -> f64 {
        self.metrics.get(metric).unwrap_or(f64::NAN)
    }
}

fn metrics(outcome: &Outcome) -> Metrics {
    let frames = &outcome.frames;
    let bytes = mean(frames.iter().map(|frame| frame.bytes as f64));
    let compared = || frames.iter().filter_map(|frame| frame.psnr);
    let psnr = |figure: fn(&Psnr) -> f64| mean(compared().map(|psnr| figure(&psnr)));
    let time = |stage: fn(&super::trial::Shown) -> Duration| {
        let mut times: Vec<f64> = frames
            .iter()
            .map(|frame| stage(frame).as_secs_f64() * 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        quantile(&times, 0.5)
    };
    let mut metrics = Metrics::default();
    metrics.set("rate_mbps", bytes * outcome.fps * 8e-6);
    metrics.set("frame_bytes", bytes);
    metrics.set(
        "frame_points",
        mean(frames.iter().map(|frame| frame.points as f64)),
    );
    metrics.set("encode_ms", time(|frame| frame.encode));
    metrics.set("decode_ms", time(|frame| frame.decode));
    metrics.set("render_ms", time(|frame| frame.render));
    metrics.set("geometry_psnr_db", psnr(|psnr| psnr.geometry_db));
    metrics.set("luma_psnr_db", psnr(|psnr| psnr.luma_db));
    vmaf::describe(&[&outcome.scores], &mut metrics);
    metrics
}

/// Returns, for each codec that was measured at several rates, a case with the rate at which it
/// reaches the score, and with that rate's share of Draco's.
pub(super) fn crossings(scores: &[Score]) -> Vec<Case> {
    let mut cases = Vec::new();
    for (clip, coder) in subjects(scores) {
        let curve = curve(scores, clip, coder, VMAF);
        if curve.len() < 2 {
            continue;
        }
        let mut case = Case::new(&crossing_name(clip, coder));
        let crossing = crossing(&curve);
        case.set_param("is_bound", matches!(crossing, Crossing::Below(_)));
        case.metrics.set("rate_mbps", crossing.mbps());
        if coder != RIVAL {
            let rival = self::crossing(&self::curve(scores, clip, RIVAL, VMAF));
            let ratio = crossing.mbps() / rival.mbps();
            case.metrics.set("rate_of_draco_ratio", ratio);
        }
        cases.push(case);
    }
    cases
}

/// Returns the name of the case with the rate at which a codec reaches the score.
pub(super) fn crossing_name(clip: &str, coder: Coder) -> String {
    format!("{clip}/{}/vmaf-{SCORE:.0}", coder.name())
}

/// Returns the recordings with their codecs, in the order of the cases, which follow each other.
pub(super) fn subjects(scores: &[Score]) -> Vec<(&str, Coder)> {
    let scenarios = scores.iter().map(|score| &score.scenario);
    let mut subjects: Vec<_> = scenarios
        .map(|scenario| (scenario.clip.name(), scenario.coder))
        .collect();
    subjects.dedup();
    subjects
}

/// Returns rates and a figure of a codec in the order of the rates.
pub(super) fn curve(scores: &[Score], clip: &str, coder: Coder, metric: &str) -> Vec<(f64, f64)> {
    let is_wanted =
        |score: &&Score| score.scenario.clip.name() == clip && score.scenario.coder == coder;
    let mut curve: Vec<(f64, f64)> = scores
        .iter()
        .filter(is_wanted)
        .map(|score| (score.get("rate_mbps"), score.get(metric)))
        .collect();
    curve.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    curve
}

/// The rate at which a codec reaches the score.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Crossing {
    At(f64),
    /// At the smallest rate that was measured, or below.
    Below(f64),
    Never,
}

impl Crossing {
    fn mbps(self) -> f64 {
        match self {
            Crossing::At(mbps) | Crossing::Below(mbps) => mbps,
            Crossing::Never => f64::NAN,
        }
    }
}

/// Returns the rate from which on all scores are reached, between two measured ones by a line over
/// the logarithm of the rate.
fn crossing(curve: &[(f64, f64)]) -> Crossing {
    let Some(below) = curve.iter().rposition(|(_, score)| *score < SCORE) else {
        return curve
            .first()
            .map_or(Crossing::Never, |(mbps, _)| Crossing::Below(*mbps));
    };
    let Some((mbps, score)) = curve.get(below + 1) else {
        return Crossing::Never;
    };
    let (from_mbps, from_score) = curve[below];
    let share = (SCORE - from_score) / (score - from_score);
    Crossing::At(from_mbps * (mbps / from_mbps).powf(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_score_lies_between_two_rates() {
        let curve = [(5.0, 50.0), (10.0, 80.0), (40.0, 90.0), (80.0, 95.0)];
        let Crossing::At(mbps) = crossing(&curve) else {
            panic!()
        };
        assert!((mbps - 20.0).abs() < 1e-9);
        // A codec that falls below the score again has not reached it.
        let curve = [(5.0, 86.0), (10.0, 84.0), (20.0, 86.0)];
        assert!(matches!(crossing(&curve), Crossing::At(mbps) if mbps > 10.0));
    }

    #[test]
    fn a_score_may_be_reached_at_every_rate_or_at_none() {
        assert_eq!(crossing(&[(5.0, 86.0), (10.0, 90.0)]), Crossing::Below(5.0));
        assert_eq!(crossing(&[(5.0, 50.0), (10.0, 60.0)]), Crossing::Never);
        assert_eq!(crossing(&[]), Crossing::Never);
    }
}
