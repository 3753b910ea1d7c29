use super::super::five_paths::{self, Variation};
use crate::emulator::EmulatedPath;
use anyhow::Result;
use hawser_netem::{Rate, Span};
use hawser_testbed::topology::Lab;
use hawser_units::Bitrate;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The rate of each path, Mb/s: that of an uplink which a few TCP connections fill.
const RATE_MBPS: f64 = 40.0;

/// Longer than any demonstration.
const ALWAYS: Duration = Duration::from_secs(1000 * 24 * 3600);

/// The present disturbances of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Disturbances {
    /// The first path carries nothing.
    pub(super) cut: bool,
    /// The random delays of Table I of Qian et al.: of up to 50 ms on the first path, and of less on the others.
    pub(super) jitter: bool,
    /// TCP connections send at full speed over the first path.
    pub(super) upload: bool,
}

impl Disturbances {
    /// Returns the first paths of Table I of Qian et al. with the rate of an uplink.
    pub(super) fn links(self, lab: &Lab) -> Result<Vec<EmulatedPath>> {
        let during = self.jitter.then_some((Duration::ZERO, ALWAYS));
        let variation = Variation {
            during: during.into_iter().collect(),
            end: ALWAYS,
        };
        let mut paths = five_paths::emulated(lab, &variation)?;
        let mut cuts = self
            .cut
            .then(|| Span::new(Duration::ZERO, ALWAYS))
            .transpose()?;
        for path in &mut paths {
            for link in [&mut path.forward, &mut path.backward] {
                link.rate = Some(Rate::Constant(Bitrate::from_mbps(RATE_MBPS)));
                link.cuts.extend(cuts);
            }
            // Only the first path.
            cuts = None;
        }
        Ok(paths)
    }

    /// Returns whether the connections of the upload can send.
    pub(super) fn uploads(self) -> bool {
        self.upload && !self.cut
    }
}
