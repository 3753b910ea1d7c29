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

use anyhow::{Context, Error};
use hawser_units::ByteSize;
use hawser_xnc::Config;
use hawser_xnc::experiment::{Experiment, LossDetection, NewScheduler, RecoveryMethod, Scheduler};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A scheme, displayed as its name.
///
/// Schemes that are built as reliable transports deliver in order and wait for missing packets, as their
/// streams do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// The product's.
    Xnc,
    /// CellFusion's XNC as published, with the parameters of Ni (30 Mb/s, section 4): packets take the path
    /// with the lowest round-trip time of those with window, and lost packets are recovered in one shot
    /// over all paths.
    XncPaper,
    /// Multipath QUIC: the path with the lowest smoothed round-trip time of those with window (Raiciu,
    /// NSDI 2012; De Coninck, CoNEXT 2017), fully reliable.
    MinRtt,
    /// Every packet on every path with window (Froemmgen, ICC 2016), fully reliable.
    Redundant,
    /// Multipath QUIC that retransmits unacknowledged packets on another path when the play-out buffer
    /// runs low (Zheng, SIGCOMM 2021), fully reliable.
    Xlink,
    /// Earliest completion first (Lim, CoNEXT 2017), fully reliable.
    Ecf,
    /// Blocking estimation (Ferlin, Networking 2016), fully reliable.
    Blest,
    /// Each flow is hashed onto a path, without recovery.
    Bonding,
    /// Sliding-window coding ahead of losses, at a rate that follows the measured loss, without
    /// retransmission.
    Fec,
    /// Coded packets fill the spare capacity of the paths (Mahajan, ATC 2012), without retransmission.
    Pluribus,
    /// All packets on the path with the lowest index, without recovery.
    Single,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let mut all = Scheme::ALL.into_iter();
        let scheme = all.find(|scheme| scheme.name() == name);
        scheme.with_context(|| format!("there is no scheme `{name}`"))
    }
}

impl Scheme {
    /// All schemes, that of the product first.
    pub const ALL: [Scheme; 11] = [
        Scheme::Xnc,
        Scheme::XncPaper,
        Scheme::MinRtt,
        Scheme::Redundant,
        Scheme::Xlink,
        Scheme::Ecf,
        Scheme::Blest,
        Scheme::Bonding,
        Scheme::Fec,
        Scheme::Pluribus,
        Scheme::Single,
    ];

    /// Returns the name in cases and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Xnc => "xnc",
            Scheme::XncPaper => "xnc-paper",
            Scheme::MinRtt => "minrtt",
            Scheme::Redundant => "redundant",
            Scheme::Xlink => "xlink",
            Scheme::Ecf => "ecf",
            Scheme::Blest => "blest",
            Scheme::Bonding => "bonding",
            Scheme::Fec => "fec",
            Scheme::Pluribus => "pluribus",
            Scheme::Single => "single",
        }
    }

    /// Returns whether it retransmits lost packets until they arrive.
    pub fn is_reliable(self) -> bool {
        matches!(
            self,
            Scheme::MinRtt | Scheme::Redundant | Scheme::Xlink | Scheme::Ecf | Scheme::Blest
        )
    }

    /// Returns its parameters.
    pub fn config(self) -> Config {
        let (new, lookback): (fn() -> Box<dyn Scheduler>, _) = match self {
            Scheme::Xnc => return Config::default(),
            Scheme::XncPaper | Scheme::MinRtt => (|| Box::new(min_rtt::MinRtt), 0),
            Scheme::Redundant => (|| Box::new(redundant::Redundant), 0),
            Scheme::Xlink => (|| Box::new(xlink::Xlink::default()), 0),
            Scheme::Ecf => (|| Box::new(ecf::Ecf::default()), 0),
            Scheme::Blest => (|| Box::new(blest::Blest::default()), 0),
            Scheme::Bonding => (|| Box::new(fixed::Fixed::ByHash), 0),
            Scheme::Single => (|| Box::new(fixed::Fixed::First), 0),
            Scheme::Fec => (|| Box::new(fec::Fec::default()), fec::WINDOW as usize),
            Scheme::Pluribus => (
                || Box::new(pluribus::Pluribus::default()),
                pluribus::MAX_WINDOW as usize,
            ),
        };
        let recovery = match self {
            Scheme::XncPaper => RecoveryMethod::OneShot { coded: true },
            _ if self.is_reliable() => RecoveryMethod::Retransmit,
            _ => RecoveryMethod::None,
        };
        let experiment = Experiment {
            scheduler: NewScheduler {
                name: self.name(),
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
        match self {
            Scheme::XncPaper => Config {
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
            _ if self.is_reliable() => Config {
                reorder: Some(Duration::MAX),
                packet_memory: ByteSize(4 << 20),
                ..config
            },
            _ => config,
        }
    }
}
