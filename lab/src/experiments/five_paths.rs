//! The five disjoint paths of Table I of Qian et al., and the times at which they vary.

use crate::emulator::EmulatedPath;
use crate::plot::Band;
use anyhow::Result;
use hawser_netem::{
    Delay, ExtraDelay, LinkConfig, Loss, Order, Probability, QueueLimit, Rate, Span,
};
use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::Bitrate;
use std::time::Duration;

/// A row of Table I.
struct Row {
    rate_mbps: f64,
    delay_ms: u64,
    loss: f64,
    /// Maximum additional delay of a packet during the variation.
    extra_delay_ms: u64,
}

const TABLE_I: [Row; 5] = [
    Row {
        rate_mbps: 400.0,
        delay_ms: 20,
        loss: 0.0005,
        extra_delay_ms: 50,
    },
    Row {
        rate_mbps: 400.0,
        delay_ms: 30,
        loss: 0.0005,
        extra_delay_ms: 5,
    },
    Row {
        rate_mbps: 150.0,
        delay_ms: 100,
        loss: 0.0005,
        extra_delay_ms: 10,
    },
    Row {
        rate_mbps: 50.0,
        delay_ms: 100,
        loss: 0.0005,
        extra_delay_ms: 10,
    },
    Row {
        rate_mbps: 50.0,
        delay_ms: 30,
        loss: 0.0,
        extra_delay_ms: 5,
    },
];

/// The queue of a link, as the time that it takes to drain. The paper does not give it.
const QUEUE: Duration = Duration::from_millis(100);

/// The duration of the paper's runs.
const SECONDS: f64 = 60.0;

/// The times at which the network varies, relative to the start of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Variation {
    /// The start and the end of each variation, in order; at least one.
    pub(super) during: Vec<(Duration, Duration)>,
    /// The end of the stream.
    pub(super) end: Duration,
}

impl Variation {
    /// Returns one variation from second 10 to 50 of 60, as in the paper, and the same parts of a
    /// shorter run.
    pub(super) fn once(seconds: Option<f64>) -> Self {
        Variation::of(seconds, &[(10.0, 50.0)])
    }

    /// Returns two variations, from second 10 to 25 and from second 40 to 55 of 60, and the same
    /// parts of a shorter run.
    pub(super) fn twice(seconds: Option<f64>) -> Self {
        Variation::of(seconds, &[(10.0, 25.0), (40.0, 55.0)])
    }

    /// The start of the first variation.
    pub(super) fn from(&self) -> Duration {
        self.during[0].0
    }

    /// The end of the last variation.
    pub(super) fn to(&self) -> Duration {
        self.during[self.during.len() - 1].1
    }

    /// Returns the variations as bands of a plot over time.
    pub(super) fn bands(&self) -> Vec<Band> {
        let band = |(from, to): &(Duration, Duration)| Band {
            from: from.as_secs_f64(),
            to: to.as_secs_f64(),
            label: "variation".to_owned(),
        };
        self.during.iter().map(band).collect()
    }

    fn of(seconds: Option<f64>, stretches: &[(f64, f64)]) -> Self {
        let seconds = seconds.unwrap_or(SECONDS);
        let part = |at: f64| Duration::from_secs_f64(seconds * at / SECONDS);
        let during = stretches
            .iter()
            .map(|&(from, to)| (part(from), part(to)))
            .collect();
        Variation {
            during,
            end: part(SECONDS),
        }
    }
}

/// Returns the five paths. They are the same in both directions, like the links of Mininet, which
/// the paper used.
pub(super) fn emulated(lab: &Lab, variation: &Variation) -> Result<Vec<EmulatedPath>> {
    lab.paths()
        .zip(&TABLE_I)
        .map(|(id, row)| {
            Ok(EmulatedPath {
                name: id.to_string(),
                ingress_device: network_ingress(id),
                egress_device: network_egress(id),
                forward: row.link(variation)?,
                backward: row.link(variation)?,
            })
        })
        .collect()
}

impl Row {
    fn link(&self, variation: &Variation) -> Result<LinkConfig> {
        let extra_delay = |&(from, to): &(Duration, Duration)| {
            Ok(ExtraDelay {
                range: Span::new(Duration::ZERO, Duration::from_millis(self.extra_delay_ms))?,
                hold: Duration::ZERO,
                during: Some(Span::new(from, to)?),
            })
        };
        Ok(LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(self.rate_mbps))),
            queue: Some(QueueLimit::Time(QUEUE)),
            delay: Delay::Constant(Duration::from_millis(self.delay_ms)),
            extra_delay: variation
                .during
                .iter()
                .map(extra_delay)
                .collect::<Result<_>>()?,
            order: Order::Free,
            loss: (self.loss > 0.0).then_some(Loss::Independent(Probability::try_from(self.loss)?)),
            ..LinkConfig::default()
        })
    }
}
