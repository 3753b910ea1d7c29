//! The contenders: schemes as published, ours, ours with changes, and the references.

use super::drive::Technology;
use super::video::BITRATE;
use crate::rivals::schemes::Scheme;
use hawser_coding::kernel::Kernel;
use hawser_units::Bitrate;
use hawser_xnc::Config;
use hawser_xnc::experiment::{LossDetection, RecoveryMethod};
use std::fmt;
use std::time::Duration;

/// A way to send a video of a bitrate, displayed as its name: that of the sender, then the change,
/// then the bitrate unless it is [`BITRATE`], as in `xnc-without-simd-5mbps`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Contender {
    pub(super) sender: Sender,
    pub(super) change: Option<Change>,
    pub(super) video: Bitrate,
}

/// The way in which packets leave the car.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// A session of the tunnel with a scheme.
    Tunnel(Scheme),
    /// Plain UDP, each flow on the path that its hash selects. A path's queue drops what does not
    /// fit, as with all plain UDP.
    Bonding,
    /// Plain UDP on each path by itself. The best one counts, selected afterwards.
    Single,
    /// Plain UDP on each path of one technology by itself.
    Only(Technology),
    /// A sender that knows the future behaviour of the links.
    Oracle,
}

/// A change of a scheme.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    name: &'static str,
    apply: fn(&mut Config),
}

impl PartialEq for Change {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sender {
            Sender::Tunnel(scheme) => f.write_str(scheme.name())?,
            Sender::Bonding => f.write_str("bonding")?,
            Sender::Single => f.write_str("single")?,
            Sender::Only(Technology::FiveG) => f.write_str("5g-only")?,
            Sender::Only(Technology::Lte) => f.write_str("lte-only")?,
            Sender::Oracle => f.write_str("oracle")?,
        }
        if let Some(change) = self.change {
            write!(f, "-{}", change.name)?;
        }
        if self.video != BITRATE {
            write!(f, "-{}mbps", self.video.bps() / 1_000_000)?;
        }
        Ok(())
    }
}

impl Contender {
    const fn of(sender: Sender) -> Self {
        Contender {
            sender,
            change: None,
            video: BITRATE,
        }
    }

    const fn changed(self, name: &'static str, apply: fn(&mut Config)) -> Self {
        Contender {
            change: Some(Change { name, apply }),
            ..self
        }
    }

    const fn with_frame_dropping(self) -> Self {
        self.changed("with-frame-dropping", |config| {
            config.experiment.drop_frames = true
        })
    }

    const fn at_mbps(self, mbps: u64) -> Self {
        Contender {
            video: Bitrate::from_bps(mbps * 1_000_000),
            ..self
        }
    }

    /// Returns the technology of which it uses each uplink by itself.
    pub(super) fn technology(self) -> Option<Technology> {
        match self.sender {
            Sender::Only(technology) => Some(technology),
            _ => None,
        }
    }

    /// Returns the configuration of a scheme of the tunnel with the change.
    pub(super) fn config(self, scheme: Scheme) -> Config {
        let mut config = scheme.config();
        if let Some(change) = self.change {
            (change.apply)(&mut config);
        }
        config
    }
}

/// Our scheme.
pub(super) const XNC: Contender = Contender::of(Sender::Tunnel(Scheme::Xnc));

/// The paper's scheme.
pub(super) const PAPER: Contender = Contender::of(Sender::Tunnel(Scheme::XncPaper));

// The other schemes of the tunnel.
pub(super) const MINRTT: Contender = Contender::of(Sender::Tunnel(Scheme::MinRtt));
pub(super) const REDUNDANT: Contender = Contender::of(Sender::Tunnel(Scheme::Redundant));
pub(super) const XLINK: Contender = Contender::of(Sender::Tunnel(Scheme::Xlink));
pub(super) const ECF: Contender = Contender::of(Sender::Tunnel(Scheme::Ecf));
pub(super) const BLEST: Contender = Contender::of(Sender::Tunnel(Scheme::Blest));
pub(super) const FEC: Contender = Contender::of(Sender::Tunnel(Scheme::Fec));
pub(super) const PLURIBUS: Contender = Contender::of(Sender::Tunnel(Scheme::Pluribus));

// The references.
pub(super) const BONDING: Contender = Contender::of(Sender::Bonding);
pub(super) const SINGLE: Contender = Contender::of(Sender::Single);
pub(super) const ORACLE: Contender = Contender::of(Sender::Oracle);
const ONLY_5G: Contender = Contender::of(Sender::Only(Technology::FiveG));
const ONLY_LTE: Contender = Contender::of(Sender::Only(Technology::Lte));

// Our scheme without one of its parts.
pub(super) const WITHOUT_EARLY_LOSS: Contender = XNC.changed("without-early-loss", |config| {
    config.experiment.loss_detection = LossDetection::Quic;
});
pub(super) const WITHOUT_FRAME_DROPPING: Contender =
    XNC.changed("without-frame-dropping", |config| {
        config.experiment.drop_frames = false;
    });
pub(super) const WITHOUT_QUEUE_TARGET: Contender = XNC.changed("without-queue-target", |config| {
    config.experiment.queue_target = Duration::MAX;
    config.experiment.queue_target_shared = Duration::MAX;
});
pub(super) const WITHOUT_STRAGGLERS: Contender = XNC.changed("without-stragglers", |config| {
    config.experiment.straggler_delay = Duration::MAX;
});
pub(super) const WITHOUT_REPEATED_SHOTS: Contender = XNC
    .changed("without-repeated-shots", |config| {
        config.experiment.shots = 1
    });
pub(super) const WITHOUT_CODING: Contender = XNC.changed("without-coding", |config| {
    config.experiment.recovery = RecoveryMethod::OneShot { coded: false }
});
pub(super) const WITHOUT_SIMD: Contender =
    XNC.changed("without-simd", |config| config.kernel = Kernel::scalar());

/// The contenders that run by default, XNC first.
pub(super) const DEFAULT: [Contender; 18] = [
    XNC,
    PAPER,
    MINRTT,
    REDUNDANT,
    XLINK,
    ECF,
    BLEST,
    BONDING,
    FEC,
    PLURIBUS,
    SINGLE,
    WITHOUT_EARLY_LOSS,
    WITHOUT_FRAME_DROPPING,
    WITHOUT_QUEUE_TARGET,
    WITHOUT_STRAGGLERS,
    WITHOUT_REPEATED_SHOTS,
    WITHOUT_CODING,
    ORACLE,
];

/// The others drop whole frames before they send them, as XNC does. These and the following contenders run
/// only if a pattern selects them.
const WITH_FRAME_DROPPING: [Contender; 8] = [
    PAPER.with_frame_dropping(),
    MINRTT.with_frame_dropping(),
    REDUNDANT.with_frame_dropping(),
    XLINK.with_frame_dropping(),
    ECF.with_frame_dropping(),
    BLEST.with_frame_dropping(),
    FEC.with_frame_dropping(),
    PLURIBUS.with_frame_dropping(),
];

/// Each uplink of one technology carries the video alone, as plain UDP.
pub(super) const ONE_TECHNOLOGY: [Contender; 4] =
    [ONLY_5G, ONLY_5G.at_mbps(10), ONLY_LTE, ONLY_LTE.at_mbps(10)];

/// The contenders whose processor time is compared at several bitrates, besides those that run by default.
pub(super) const PROCESSOR: [Contender; 10] = [
    MINRTT.at_mbps(5),
    MINRTT.at_mbps(10),
    MINRTT.at_mbps(20),
    XNC.at_mbps(5),
    XNC.at_mbps(10),
    XNC.at_mbps(20),
    WITHOUT_SIMD.at_mbps(5),
    WITHOUT_SIMD.at_mbps(10),
    WITHOUT_SIMD.at_mbps(20),
    WITHOUT_SIMD,
];

/// XNC with another value of one constant, from which cross-validation chooses.
pub(super) const TUNED: [Contender; 21] = [
    XNC.changed("with-loss-threshold-80ms", |c| {
        c.experiment.loss_threshold = ms(80)
    }),
    XNC.changed("with-loss-threshold-130ms", |c| {
        c.experiment.loss_threshold = ms(130)
    }),
    XNC.changed("with-loss-threshold-waiting-130ms", |c| {
        c.experiment.loss_threshold_waiting = ms(130);
    }),
    XNC.changed("with-loss-threshold-waiting-300ms", |c| {
        c.experiment.loss_threshold_waiting = ms(300);
    }),
    XNC.changed("with-straggler-delay-20ms", |c| {
        c.experiment.straggler_delay = ms(20)
    }),
    XNC.changed("with-straggler-delay-40ms", |c| {
        c.experiment.straggler_delay = ms(40)
    }),
    XNC.changed("with-straggler-delay-60ms", |c| {
        c.experiment.straggler_delay = ms(60)
    }),
    XNC.changed("with-straggler-share-30%", |c| {
        c.experiment.straggler_share = 0.3
    }),
    XNC.changed("with-straggler-share-50%", |c| {
        c.experiment.straggler_share = 0.5
    }),
    XNC.changed("with-range-packets-10", |c| c.experiment.range_packets = 10),
    XNC.changed("with-range-packets-30", |c| c.experiment.range_packets = 30),
    XNC.changed("with-extra-packets-0", |c| c.extra_packets = 0),
    XNC.changed("with-extra-packets-2", |c| c.extra_packets = 2),
    XNC.changed("with-shots-2", |c| c.experiment.shots = 2),
    XNC.changed("with-queue-target-25ms", |c| {
        c.experiment.queue_target = ms(25)
    }),
    XNC.changed("with-queue-target-60ms", |c| {
        c.experiment.queue_target = ms(60)
    }),
    XNC.changed("with-max-path-backlog-60ms", |c| {
        c.experiment.max_path_backlog = ms(60)
    }),
    XNC.changed("with-max-path-backlog-150ms", |c| {
        c.experiment.max_path_backlog = ms(150);
    }),
    XNC.changed("with-max-frame-queue-delay-40ms", |c| {
        c.experiment.max_frame_queue_delay = ms(40);
    }),
    XNC.changed("with-max-frame-queue-delay-90ms", |c| {
        c.experiment.max_frame_queue_delay = ms(90);
    }),
    XNC.changed("with-delivered-within-90ms", |c| {
        c.experiment.delivered_within = ms(90);
    }),
];

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns all contenders, in the order in which they run.
pub(super) fn all() -> impl Iterator<Item = Contender> {
    DEFAULT
        .into_iter()
        .chain(WITH_FRAME_DROPPING)
        .chain(ONE_TECHNOLOGY)
        .chain(PROCESSOR)
        .chain(TUNED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_is_a_variant_of_its_own() {
        let (mut names, mut variants) = (Vec::new(), Vec::new());
        for contender in all() {
            let name = contender.to_string();
            assert!(!names.contains(&name), "{name}");
            if let Sender::Tunnel(scheme) = contender.sender {
                let variant = (contender.config(scheme), contender.video);
                assert!(!variants.contains(&variant), "{name}");
                variants.push(variant);
            }
            names.push(name);
        }
    }

    #[test]
    fn a_name_tells_the_sender_the_change_and_the_bitrate() {
        for (contender, name) in [
            (XNC, "xnc"),
            (ONE_TECHNOLOGY[1], "5g-only-10mbps"),
            (PROCESSOR[6], "xnc-without-simd-5mbps"),
            (WITH_FRAME_DROPPING[0], "xnc-paper-with-frame-dropping"),
            (TUNED[7], "xnc-with-straggler-share-30%"),
        ] {
            assert_eq!(contender.to_string(), name);
        }
    }
}
