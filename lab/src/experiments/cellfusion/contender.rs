//! The cases: schemes as published, ours, ours without one of its parts, and the references.

use super::drive::Technology;
use super::video::BITRATE;
use crate::rivals::schemes;
use anyhow::{Context, Result};
use hawser_coding::kernel::Kernel;
use hawser_units::Bitrate;
use hawser_xnc::Config;
use hawser_xnc::experiment::{LossDetection, RecoveryMethod};
use std::time::Duration;

/// Our scheme.
pub(super) const XNC: &str = "xnc";

/// The paper's scheme.
pub(super) const PAPER: &str = "xnc-paper";

/// The sender that knows the future behaviour of the links.
pub(super) const ORACLE: &str = "oracle";

/// Each flow on the path that its hash selects, as plain UDP.
pub(super) const BONDING: &str = "bonding";

/// The best single path, selected afterwards, as plain UDP.
pub(super) const SINGLE: &str = "single";

/// The cases that run by default, XNC first.
pub(super) const CASES: [&str; 18] = [
    XNC,
    PAPER,
    "minrtt",
    "redundant",
    "xlink",
    "ecf",
    "blest",
    BONDING,
    "fec",
    "pluribus",
    SINGLE,
    "xnc-without-early-loss",
    "xnc-without-frame-dropping",
    "xnc-without-queue-target",
    "xnc-without-stragglers",
    "xnc-without-repeated-shots",
    "xnc-without-coding",
    ORACLE,
];

/// The cases in which others drop whole frames before they send them, as XNC does. They run only if
/// a pattern selects them.
pub(super) const WITH_FRAME_DROPPING: [&str; 8] = [
    "xnc-paper-with-frame-dropping",
    "minrtt-with-frame-dropping",
    "redundant-with-frame-dropping",
    "xlink-with-frame-dropping",
    "ecf-with-frame-dropping",
    "blest-with-frame-dropping",
    "fec-with-frame-dropping",
    "pluribus-with-frame-dropping",
];

/// The cases in which each uplink of one technology carries the video alone, as plain UDP. They run
/// only if a pattern selects them.
pub(super) const ONE_TECHNOLOGY: [&str; 4] =
    ["5g-only", "5g-only-10mbps", "lte-only", "lte-only-10mbps"];

/// The cases whose processor time is compared at several bitrates, besides those that run by default.
/// They run only if a pattern selects them.
pub(super) const PROCESSOR: [&str; 10] = [
    "minrtt-5mbps",
    "minrtt-10mbps",
    "minrtt-20mbps",
    "xnc-5mbps",
    "xnc-10mbps",
    "xnc-20mbps",
    "xnc-without-simd-5mbps",
    "xnc-without-simd-10mbps",
    "xnc-without-simd-20mbps",
    "xnc-without-simd",
];

/// The cases in which one constant of XNC has another value, from which cross-validation chooses. They
/// run only if a pattern selects them.
pub(super) const TUNED: [&str; 21] = [
    "xnc-with-loss-threshold-80ms",
    "xnc-with-loss-threshold-130ms",
    "xnc-with-loss-threshold-waiting-130ms",
    "xnc-with-loss-threshold-waiting-300ms",
    "xnc-with-straggler-delay-20ms",
    "xnc-with-straggler-delay-40ms",
    "xnc-with-straggler-delay-60ms",
    "xnc-with-straggler-share-30%",
    "xnc-with-straggler-share-50%",
    "xnc-with-range-packets-10",
    "xnc-with-range-packets-30",
    "xnc-with-extra-packets-0",
    "xnc-with-extra-packets-2",
    "xnc-with-shots-2",
    "xnc-with-queue-target-25ms",
    "xnc-with-queue-target-60ms",
    "xnc-with-max-path-backlog-60ms",
    "xnc-with-max-path-backlog-150ms",
    "xnc-with-max-frame-queue-delay-40ms",
    "xnc-with-max-frame-queue-delay-90ms",
    "xnc-with-delivered-within-90ms",
];

/// Returns all cases, in the order in which they run.
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    CASES
        .into_iter()
        .chain(WITH_FRAME_DROPPING)
        .chain(ONE_TECHNOLOGY)
        .chain(PROCESSOR)
        .chain(TUNED)
}

/// Returns the bitrate of a case's video.
pub(super) fn video(case: &str) -> Bitrate {
    parts(case).1
}

/// Returns the technology of the uplinks of a case, if it uses each of them alone.
pub(super) fn technology(case: &str) -> Option<Technology> {
    match parts(case).0 {
        "5g-only" => Some(Technology::FiveG),
        "lte-only" => Some(Technology::Lte),
        _ => None,
    }
}

/// Splits the name of a case into the sender and the bitrate of the video, which is [`BITRATE`]
/// unless the name ends with another one, as in `5g-only-10mbps`.
pub(super) fn parts(case: &str) -> (&str, Bitrate) {
    let rate = || {
        let (sender, mbps) = case.strip_suffix("mbps")?.rsplit_once('-')?;
        Some((sender, Bitrate::from_mbps(mbps.parse().ok()?)))
    };
    rate().unwrap_or((case, BITRATE))
}

/// The way in which a case sends.
#[derive(Debug)]
pub(super) enum Sender {
    /// A session of the tunnel.
    Tunnel(Box<Config>),
    /// UDP without a tunnel: packets go to the path's queue at once, which drops what does not fit.
    Plain,
    Oracle,
}

impl Sender {
    pub(super) fn of(case: &str) -> Result<Sender> {
        if case == ORACLE {
            return Ok(Sender::Oracle);
        }
        if [BONDING, SINGLE].contains(&case) || technology(case).is_some() {
            return Ok(Sender::Plain);
        }
        Ok(Sender::Tunnel(Box::new(config(parts(case).0)?)))
    }
}

fn config(case: &str) -> Result<Config> {
    if let Some(scheme) = case.strip_suffix("-with-frame-dropping") {
        let mut config = schemes::config(scheme)?;
        config.experiment.drop_frames = true;
        return Ok(config);
    }
    if let Some(change) = case.strip_prefix("xnc-with-") {
        let mut config = Config::default();
        tune(&mut config, change).with_context(|| format!("`{case}` is no case"))?;
        return Ok(config);
    }
    let Some((scheme, part)) = case.split_once("-without-") else {
        return schemes::config(case);
    };
    let mut config = schemes::config(scheme)?;
    let experiment = &mut config.experiment;
    match part {
        "early-loss" => experiment.loss_detection = LossDetection::Quic,
        "frame-dropping" => experiment.drop_frames = false,
        "queue-target" => {
            experiment.queue_target = Duration::MAX;
            experiment.queue_target_shared = Duration::MAX;
        }
        "stragglers" => experiment.straggler_delay = Duration::MAX,
        "repeated-shots" => experiment.shots = 1,
        "coding" => experiment.recovery = RecoveryMethod::OneShot { coded: false },
        "simd" => config.kernel = Kernel::scalar(),
        _ => anyhow::bail!("XNC has no part `{part}`"),
    }
    Ok(config)
}

/// Sets a constant to the value at the end of `change`, as in `straggler-delay-20ms`.
fn tune(config: &mut Config, change: &str) -> Result<()> {
    let (constant, value) = change.rsplit_once('-').context("no value")?;
    let time = || -> Result<Duration> {
        let ms = value.strip_suffix("ms").context("no time in ms")?;
        Ok(Duration::from_millis(ms.parse()?))
    };
    let experiment = &mut config.experiment;
    match constant {
        "loss-threshold" => experiment.loss_threshold = time()?,
        "loss-threshold-waiting" => experiment.loss_threshold_waiting = time()?,
        "straggler-delay" => experiment.straggler_delay = time()?,
        "straggler-share" => {
            let percent = value.strip_suffix('%').context("no share in %")?;
            experiment.straggler_share = percent.parse::<f64>()? / 100.0;
        }
        "range-packets" => experiment.range_packets = value.parse()?,
        "extra-packets" => config.extra_packets = value.parse()?,
        "shots" => experiment.shots = value.parse()?,
        "queue-target" => experiment.queue_target = time()?,
        "max-path-backlog" => experiment.max_path_backlog = time()?,
        "max-frame-queue-delay" => experiment.max_frame_queue_delay = time()?,
        "delivered-within" => experiment.delivered_within = time()?,
        _ => anyhow::bail!("no constant `{constant}`"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_variant_of_its_own() {
        let mut variants = Vec::new();
        for case in all() {
            if let Sender::Tunnel(config) = Sender::of(case).unwrap() {
                let variant = (config, video(case));
                assert!(!variants.contains(&variant), "{case}");
                variants.push(variant);
            }
        }
        let further = WITH_FRAME_DROPPING.len() + PROCESSOR.len() + TUNED.len();
        assert_eq!(variants.len(), CASES.len() - 3 + further);
        for no_case in ["xnc-without-paths", "xnc-with-paths-4", "xnc-with-shots"] {
            assert!(Sender::of(no_case).is_err(), "{no_case}");
        }
    }

    #[test]
    fn a_name_ends_with_the_bitrate_of_the_video() {
        assert_eq!(parts("xnc"), ("xnc", BITRATE));
        assert_eq!(parts("5g-only"), ("5g-only", BITRATE));
        let ten = Bitrate::from_mbps(10.0);
        assert_eq!(parts("5g-only-10mbps"), ("5g-only", ten));
        assert_eq!(technology("lte-only-10mbps"), Some(Technology::Lte));
        assert_eq!(technology("single"), None);
        assert!(Sender::of("xnc-fastmbps").is_err());
    }
}
