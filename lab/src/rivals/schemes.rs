//! The schemes with which XNC is compared, and XNC as it was published: schedulers and parameters of
//! sessions of `hawser_xnc`.

mod blest;
mod ecf;
mod fec;
mod fixed;
mod min_rtt;
mod pluribus;
mod redundant;
pub(crate) mod tunnel;
mod xlink;

use anyhow::{Result, bail};
use hawser_units::ByteSize;
use hawser_xnc::Config;
use hawser_xnc::experiment::{Experiment, LossDetection, NewScheduler, RecoveryMethod, Scheduler};
use std::time::Duration;

/// The names of all schemes, that of the product first.
pub const NAMES: [&str; 11] = [
    "xnc",
    "xnc-paper",
    "minrtt",
    "redundant",
    "xlink",
    "ecf",
    "blest",
    "bonding",
    "fec",
    "pluribus",
    "single",
];

/// Returns whether a scheme retransmits lost packets until they arrive.
pub fn is_reliable(scheme: &str) -> bool {
    matches!(scheme, "minrtt" | "redundant" | "xlink" | "ecf" | "blest")
}

/// Returns the parameters of a scheme.
///
/// - `xnc`: the product's.
/// - `xnc-paper`: CellFusion's XNC as published, with the parameters of Ni (30 Mb/s, section 4): packets
///   take the path with the lowest round-trip time of those with window, and lost packets are recovered
///   in one shot over all paths.
/// - `minrtt`: multipath QUIC: the path with the lowest smoothed round-trip time of those with window
///   (Raiciu, NSDI 2012; De Coninck, CoNEXT 2017), fully reliable.
/// - `redundant`: every packet on every path with window (Froemmgen, ICC 2016), fully reliable.
/// - `xlink`: multipath QUIC that retransmits unacknowledged packets on another path when the play-out
///   buffer runs low (Zheng, SIGCOMM 2021), fully reliable.
/// - `ecf`: earliest completion first (Lim, CoNEXT 2017), fully reliable.
/// - `blest`: blocking estimation (Ferlin, Networking 2016), fully reliable.
/// - `bonding`: each flow is hashed onto a path, without recovery.
/// - `fec`: sliding-window coding ahead of losses, at a rate that follows the measured loss, without
///   retransmission.
/// - `pluribus`: coded packets fill the spare capacity of the paths (Mahajan, ATC 2012), without
///   retransmission.
/// - `single`: all packets on the path with the lowest index, without recovery.
///
/// Schemes that are built as reliable transports deliver in order and wait for missing packets, as their
/// streams do.
///
/// # Errors
/// If there is no scheme of that name.
pub fn config(scheme: &str) -> Result<Config> {
    let one_shot = RecoveryMethod::OneShot { coded: true };
    let (new, recovery, lookback): (fn() -> Box<dyn Scheduler>, _, _) = match scheme {
        "xnc" => return Ok(Config::default()),
        "xnc-paper" => (|| Box::new(min_rtt::MinRtt), one_shot, 0),
        "minrtt" => (|| Box::new(min_rtt::MinRtt), RecoveryMethod::Retransmit, 0),
        "redundant" => (
            || Box::new(redundant::Redundant),
            RecoveryMethod::Retransmit,
            0,
        ),
        "xlink" => (
            || Box::new(xlink::Xlink::default()),
            RecoveryMethod::Retransmit,
            0,
        ),
        "ecf" => (
            || Box::new(ecf::Ecf::default()),
            RecoveryMethod::Retransmit,
            0,
        ),
        "blest" => (
            || Box::new(blest::Blest::default()),
            RecoveryMethod::Retransmit,
            0,
        ),
        "bonding" => (|| Box::new(fixed::Fixed::ByHash), RecoveryMethod::None, 0),
        "single" => (|| Box::new(fixed::Fixed::First), RecoveryMethod::None, 0),
        "fec" => (
            || Box::new(fec::Fec::default()),
            RecoveryMethod::None,
            fec::WINDOW as usize,
        ),
        "pluribus" => (
            || Box::new(pluribus::Pluribus::default()),
            RecoveryMethod::None,
            pluribus::MAX_WINDOW as usize,
        ),
        _ => bail!("there is no scheme `{scheme}`"),
    };
    let name = NAMES.into_iter().find(|name| *name == scheme);
    let experiment = Experiment {
        scheduler: NewScheduler {
            name: name.unwrap_or_default(),
            new,
        },
        recovery,
        lookback,
        forgets_silence: false,
        loss_detection: LossDetection::Quic,
        range_packets: 10,
        drop_frames: false,
        connection_share: 1.0,
        ..Experiment::default()
    };
    let config = Config {
        extra_packets: 3,
        experiment,
        ..Config::default()
    };
    Ok(match scheme {
        "xnc-paper" => Config {
            experiment: Experiment {
                loss_detection: LossDetection::Timeout,
                queue_target: Duration::MAX,
                queue_target_shared: Duration::MAX,
                whole_shots: true,
                shots: 1,
                ..config.experiment
            },
            ..config
        },
        _ if is_reliable(scheme) => Config {
            reorder: Some(Duration::MAX),
            packet_memory: ByteSize(4 << 20),
            ..config
        },
        _ => config,
    })
}
