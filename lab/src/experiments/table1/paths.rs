use super::Variation;
use crate::emulator::EmulatedPath;
use crate::summary::Metrics;
use crate::topology::{Lab, network_egress, network_ingress};
use anyhow::Result;
use hawser_netem::{Delay, ExtraDelay, LinkConfig, Loss, Order, Probability, QueueLimit, Rate, Span};
use hawser_units::Bitrate;
use std::time::Duration;

/// A row of Table I.
struct Row {
    rate_mbps: f64,
    delay_ms: u64,
    loss: f64,
    /// Under variation a packet takes up to so much longer.
    extra_delay_ms: u64,
}

const TABLE_I: [Row; 5] = [
    Row { rate_mbps: 400.0, delay_ms: 20, loss: 0.0005, extra_delay_ms: 50 },
    Row { rate_mbps: 400.0, delay_ms: 30, loss: 0.0005, extra_delay_ms: 5 },
    Row { rate_mbps: 150.0, delay_ms: 100, loss: 0.0005, extra_delay_ms: 10 },
    Row { rate_mbps: 50.0, delay_ms: 100, loss: 0.0005, extra_delay_ms: 10 },
    Row { rate_mbps: 50.0, delay_ms: 30, loss: 0.0, extra_delay_ms: 5 },
];

/// What a link's queue holds; the paper does not say.
const QUEUE: Duration = Duration::from_millis(100);

/// The five paths, the same in both directions: so are the links of Mininet, on which the paper ran.
pub(super) fn emulated(lab: &Lab, variation: Variation) -> Result<Vec<EmulatedPath>> {
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
    fn link(&self, variation: Variation) -> Result<LinkConfig> {
        let extra_delay = ExtraDelay {
            range: Span::new(Duration::ZERO, Duration::from_millis(self.extra_delay_ms))?,
            hold: Duration::ZERO,
            during: Some(Span::new(variation.from, variation.to)?),
        };
        Ok(LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(self.rate_mbps))),
            queue: Some(QueueLimit::Time(QUEUE)),
            delay: Delay::Constant(Duration::from_millis(self.delay_ms)),
            extra_delay: vec![extra_delay],
            order: Order::Free,
            loss: (self.loss > 0.0).then_some(Loss::Independent(Probability::try_from(self.loss)?)),
            ..LinkConfig::default()
        })
    }
}

/// What the text of the paper says of a case; its other figures are curves without numbers.
pub(super) fn paper(case: &str) -> Metrics {
    match case {
        "single/fhd" => Metrics::from([("fps_min", 3.0)]),
        "replicate/nfov" => Metrics::from([("bandwidth_cost_ratio", 1.8)]),
        "replicate/fhd" => Metrics::from([("bandwidth_cost_ratio", 2.4)]),
        _ => Metrics::default(),
    }
}
