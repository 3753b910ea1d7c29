//! The cases: a bottleneck and what competes.

use crate::emulator::EmulatedPath;
use crate::experiments::cross_traffic::CrossTraffic;
use crate::programs::push::PushSource;
use anyhow::{Context, Result};
use hawser_netem::{Delay, Discipline, DualPi2, LinkConfig, Loss, Probability, Rate, Steps};
use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::{Bitrate, PathSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The highest rate of the stream.
pub(super) const MAX_RATE_MBPS: f64 = 30.0;

/// The rates of the bottleneck, and during a step.
const RATE_MBPS: f64 = 40.0;
const STEP_MBPS: f64 = 10.0;

/// The propagation delay in each direction, of the first and the second path.
const DELAYS_MS: [u64; 2] = [10, 15];

/// The share of packets that a path with loss loses.
const LOSS: f64 = 0.01;

/// The points of the synthetic performer; fewer for half of the link, and where two processors have to
/// encode two of them.
const POINTS: usize = 60_000;
const FEW_POINTS: usize = 25_000;

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Nothing competes.
    Alone,
    /// Nothing competes, and the stream needs no more than half of the link.
    Half,
    /// So many TCP Cubic flows of the kernel compete.
    Cubic(usize),
    /// The rate falls to a quarter in the second third of the measurement.
    Steps,
    /// Packets are lost at random.
    Loss,
    /// The stream is replicated over two paths that lose packets at random.
    Replicated,
    /// Another stream goes the other way, through a bottleneck like the first one.
    BothWays,
    /// The stream is in the tunnel, from the client to the server, over one uplink.
    Tunnel,
    /// The same over two uplinks that lose packets at random.
    LossyTunnel,
}

impl Scenario {
    pub(super) const ALL: [Scenario; 10] = [
        Scenario::Alone,
        Scenario::Half,
        Scenario::Cubic(1),
        Scenario::Cubic(3),
        Scenario::Steps,
        Scenario::Loss,
        Scenario::Replicated,
        Scenario::BothWays,
        Scenario::Tunnel,
        Scenario::LossyTunnel,
    ];

    /// Returns the number of paths.
    pub(super) fn paths(self) -> usize {
        match self {
            Scenario::Replicated | Scenario::LossyTunnel => 2,
            _ => 1,
        }
    }

    /// Returns whether the stream is in the tunnel.
    pub(super) fn is_in_tunnel(self) -> bool {
        matches!(self, Scenario::Tunnel | Scenario::LossyTunnel)
    }

    /// Returns the paths on which the stream is replicated; none if it takes the default route.
    pub(super) fn replicated_paths(self) -> PathSet {
        match self {
            Scenario::Replicated => PathSet::from_bits(0b11),
            _ => PathSet::EMPTY,
        }
    }

    /// Returns the folder of the raw data.
    pub(super) fn folder(self) -> String {
        self.to_string().replace('/', "-")
    }

    pub(super) fn competitors(self) -> CrossTraffic {
        match self {
            Scenario::Cubic(flows) => CrossTraffic::cubic(flows),
            _ => CrossTraffic::NONE,
        }
    }

    /// Returns the synthetic performer in a codec that can fill the bottleneck. Two processors that
    /// also emulate the network have no time to decode the videos of a recording.
    pub(super) fn source(self, directory: &Path) -> Result<PushSource> {
        let description = directory.join("performer.toml");
        let points = match self {
            Scenario::Half | Scenario::BothWays => FEW_POINTS,
            _ => POINTS,
        };
        let performer =
            format!("fps = 25\n[synthetic]\nseed = 1\npoints = {points}\nseconds = 4\n");
        fs::write(&description, performer)
            .with_context(|| format!("cannot write {}", description.display()))?;
        Ok(PushSource {
            recording: description.to_string_lossy().into_owned(),
            codec: "chunks".to_owned(),
            encodings: 1,
            fps: 25.0,
            max_rate_mbps: MAX_RATE_MBPS,
            is_constant: false,
        })
    }

    /// Returns the links. A step is in the second third of the `measured` time, which begins `after`
    /// the start of the stream.
    pub(super) fn links(
        self,
        lab: &Lab,
        after: Duration,
        measured: Duration,
    ) -> Result<Vec<EmulatedPath>> {
        let links = lab.paths().zip(DELAYS_MS).map(|(id, delay_ms)| {
            let delay = Delay::Constant(Duration::from_millis(delay_ms));
            let forward = self.forward(delay.clone(), after, measured)?;
            let backward = match self {
                Scenario::BothWays => forward.clone(),
                _ => LinkConfig {
                    delay,
                    ..LinkConfig::default()
                },
            };
            Ok(EmulatedPath {
                name: id.to_string(),
                ingress_device: network_ingress(id),
                egress_device: network_egress(id),
                forward,
                backward,
            })
        });
        links.collect()
    }

    fn forward(self, delay: Delay, after: Duration, measured: Duration) -> Result<LinkConfig> {
        let [fast, slow] = [RATE_MBPS, STEP_MBPS].map(Bitrate::from_mbps);
        let rate = match self {
            Scenario::Steps => Rate::Steps(Steps::new(vec![
                (Duration::ZERO, fast),
                (after + measured / 3, slow),
                (after + measured * 2 / 3, fast),
            ])?),
            _ => Rate::Constant(fast),
        };
        let loses = matches!(
            self,
            Scenario::Loss | Scenario::Replicated | Scenario::LossyTunnel
        );
        Ok(LinkConfig {
            rate: Some(rate),
            discipline: Some(Discipline::DualPi2(DualPi2::default())),
            delay,
            loss: match loses {
                true => Some(Loss::Independent(Probability::try_from(LOSS)?)),
                false => None,
            },
            ..LinkConfig::default()
        })
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Alone => write!(f, "prague/alone"),
            Scenario::Half => write!(f, "prague/half"),
            Scenario::Cubic(flows) => write!(f, "prague/cubic-{flows}"),
            Scenario::Steps => write!(f, "prague/steps"),
            Scenario::Loss => write!(f, "prague/loss-1"),
            Scenario::Replicated => write!(f, "prague/replicated-loss-1"),
            Scenario::BothWays => write!(f, "prague/both-ways"),
            Scenario::Tunnel => write!(f, "prague/tunnel"),
            Scenario::LossyTunnel => write!(f, "prague/tunnel-loss-1"),
        }
    }
}
