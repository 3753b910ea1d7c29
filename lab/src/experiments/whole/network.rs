//! The behaviour of the four paths over time.

use super::super::cellfusion::Drive;
use super::super::five_paths::{self, Variation};
use super::STREAM_MBPS;
use crate::emulator::EmulatedPath;
use anyhow::Result;
use hawser_netem::{
    Delay, Discipline, DualPi2, LinkConfig, Loss, Probability, QueueLimit, Rate, Span, Steps,
};
use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::Bitrate;
use std::time::Duration;

/// Number of paths.
pub(super) const PATHS: usize = 4;

/// The rate of a path that is not the limit, and of one with a DualPI2.
const RATE_MBPS: f64 = 100.0;
const DUALPI2_MBPS: f64 = 40.0;

/// The propagation delay of each path in each direction.
const DELAYS_MS: [u64; PATHS] = [20, 25, 30, 35];

/// The queue of a path that has no discipline, as the time that it takes to drain.
const QUEUE: Duration = Duration::from_millis(100);

/// The share of packets that a lossy path loses, in each direction.
const LOSS: f64 = 0.01;

/// The mean rate of all cellular paths together, as a part of the stream's rate.
const CELLULAR_RATIO: f64 = 1.3;

/// The behaviour of the paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Nothing happens.
    Calm,
    /// Table I of Qian et al., with its random delays.
    Jitter,
    /// Uplinks of a car, which together bear little more than the stream.
    Cellular,
    /// Each path fails in turn, for a quarter of the time.
    Outage,
    /// Each path has a DualPI2, and TCP Cubic competes on the default path.
    L4s,
    /// Each path loses packets at random.
    Lossy,
}

/// A network of the cases: conditions that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// One condition all the time.
    Steady(Condition),
    /// One condition after the other.
    Changing,
}

/// A condition for some time, which begins so long after the start of the measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) condition: Condition,
    pub(super) from: Duration,
    pub(super) length: Duration,
}

impl Condition {
    /// All conditions but the calm one.
    pub(super) const ALL: [Condition; 5] = [
        Condition::Jitter,
        Condition::Cellular,
        Condition::Outage,
        Condition::L4s,
        Condition::Lossy,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Condition::Calm => "calm",
            Condition::Jitter => "jitter",
            Condition::Cellular => "cellular",
            Condition::Outage => "outage",
            Condition::L4s => "l4s",
            Condition::Lossy => "lossy",
        }
    }

    /// Returns the links of all paths for some time. `drive` is that of cellular paths.
    pub(super) fn links(
        self,
        lab: &Lab,
        length: Duration,
        drive: &Drive,
    ) -> Result<Vec<EmulatedPath>> {
        if self == Condition::Jitter {
            let variation = Variation {
                during: vec![(Duration::ZERO, length)],
                end: length,
            };
            return five_paths::emulated(lab, &variation);
        }
        let factor = match self {
            Condition::Cellular => factor(drive, length),
            _ => 1.0,
        };
        let paths = lab.paths().enumerate().map(|(index, id)| {
            let [forward, backward] = match self {
                Condition::Cellular => {
                    [scaled(drive.uplink(index), factor)?, drive.downlink(index)]
                }
                _ => [self.link(index, length)?, self.link(index, length)?],
            };
            Ok(EmulatedPath {
                name: id.to_string(),
                ingress_device: network_ingress(id),
                egress_device: network_egress(id),
                forward,
                backward,
            })
        });
        paths.collect()
    }

    /// Returns a path in one direction.
    fn link(self, index: usize, length: Duration) -> Result<LinkConfig> {
        let delay = Delay::Constant(Duration::from_millis(DELAYS_MS[index]));
        if self == Condition::L4s {
            return Ok(LinkConfig {
                rate: Some(Rate::Constant(Bitrate::from_mbps(DUALPI2_MBPS))),
                discipline: Some(Discipline::DualPi2(DualPi2::default())),
                delay,
                ..LinkConfig::default()
            });
        }
        let outage = length / PATHS as u32;
        let cut = || Span::new(outage * index as u32, outage * (index as u32 + 1));
        Ok(LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(RATE_MBPS))),
            queue: Some(QueueLimit::Time(QUEUE)),
            delay,
            loss: match self {
                Condition::Lossy => Some(Loss::Independent(Probability::try_from(LOSS)?)),
                _ => None,
            },
            cuts: match self {
                Condition::Outage => vec![cut()?],
                _ => Vec::new(),
            },
            ..LinkConfig::default()
        })
    }
}

impl Network {
    pub(super) fn all() -> impl Iterator<Item = Network> {
        let steady = Condition::ALL.into_iter().map(Network::Steady);
        steady.chain([Network::Changing])
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Network::Steady(condition) => condition.name(),
            Network::Changing => "changing",
        }
    }

    /// The heading in the report.
    pub(super) fn title(self) -> &'static str {
        match self {
            Network::Steady(Condition::Calm) => "Calm paths",
            Network::Steady(Condition::Jitter) => "Jitter",
            Network::Steady(Condition::Cellular) => "Cellular uplinks",
            Network::Steady(Condition::Outage) => "Outages",
            Network::Steady(Condition::L4s) => "Competing downloads",
            Network::Steady(Condition::Lossy) => "Random loss",
            Network::Changing => "A network that changes",
        }
    }

    /// A description in the report: the behaviour of the paths, and its consequences.
    pub(super) fn about(self) -> &'static str {
        match self {
            Network::Steady(Condition::Calm) => "Nothing happens.",
            Network::Steady(Condition::Jitter) => {
                "Packets on the default path are delayed at random by up to 50 ms and overtake each other; the others \
                 vary less (the first four paths of Table I of Qian et al.). Every path bears the stream: copies cost \
                 bandwidth, and help only if frames would come too late without them."
            }
            Network::Steady(Condition::Cellular) => {
                "The paths are uplinks of a car in motion, whose rates rise and fall; together they bear 1.3 times \
                 the stream, and none bears it alone for long. There is no room for copies: a mode that sends them \
                 fills the queues with them."
            }
            Network::Steady(Condition::Outage) => {
                "Each path in turn carries nothing for a quarter of the time, the default path first. With copies no \
                 frame is missing. A mode that moves the stream has a gap until it has noticed."
            }
            Network::Steady(Condition::L4s) => {
                "Each path has a bottleneck with the queue DualPI2, and a TCP download with Cubic competes on the \
                 default path. The sender has to keep its share and its delay low there, or the stream leaves that \
                 path."
            }
            Network::Steady(Condition::Lossy) => {
                "Each path loses one packet in a hundred at random. On one path the sender has to repair losses and \
                 must not take them for congestion; with copies hardly any packet is lost."
            }
            Network::Changing => {
                "All of these follow each other in one run, after calm seconds that are not measured. No mode is the \
                 best one all the time."
            }
        }
    }

    /// Returns the conditions of a measurement of this duration, or of the default one.
    pub(super) fn phases(self, seconds: Option<f64>) -> Vec<Phase> {
        let conditions = match self {
            Network::Steady(condition) => vec![condition],
            Network::Changing => Condition::ALL.to_vec(),
        };
        let length = match seconds {
            Some(seconds) => Duration::from_secs_f64(seconds) / conditions.len() as u32,
            None => PHASE,
        };
        let phase = |(number, condition)| Phase {
            condition,
            from: length * number,
            length,
        };
        (0..).zip(conditions).map(phase).collect()
    }
}

/// The default duration of a condition.
const PHASE: Duration = Duration::from_secs(20);

impl Phase {
    pub(super) fn to(&self) -> Duration {
        self.from + self.length
    }

    /// Returns the times at which the paths change, in order.
    pub(super) fn changes(&self) -> Vec<Duration> {
        let parts = match self.condition {
            Condition::Outage => PATHS as u32,
            _ => 1,
        };
        let change = |part| self.from + self.length / parts * part;
        (0..parts).map(change).collect()
    }
}

/// Returns the factor that gives the uplinks of a drive together the intended rate.
fn factor(drive: &Drive, length: Duration) -> f64 {
    let rates = (0..PATHS).map(|path| match drive.uplink(path).rate {
        Some(Rate::Steps(rates)) => mean_mbps(&rates, length),
        _ => RATE_MBPS,
    });
    CELLULAR_RATIO * STREAM_MBPS / rates.sum::<f64>()
}

fn mean_mbps(rates: &Steps<Bitrate>, length: Duration) -> f64 {
    let (mut megabits, mut from) = (0.0, Duration::ZERO);
    for (rate, end) in rates.since(Duration::ZERO) {
        let to = end.unwrap_or(length).min(length);
        megabits += rate.mbps() * to.saturating_sub(from).as_secs_f64();
        from = to;
    }
    megabits / length.as_secs_f64()
}

/// Returns a link with all rates multiplied by a factor.
fn scaled(link: LinkConfig, factor: f64) -> Result<LinkConfig> {
    let scale = |rate: Bitrate| Bitrate::from_mbps(rate.mbps() * factor);
    let rate = match link.rate {
        Some(Rate::Steps(rates)) => {
            let mut from = Duration::ZERO;
            let mut steps = Vec::new();
            for (rate, end) in rates.since(Duration::ZERO) {
                steps.push((from, scale(rate)));
                from = end.unwrap_or(from);
            }
            Some(Rate::Steps(Steps::new(steps)?))
        }
        Some(Rate::Constant(rate)) => Some(Rate::Constant(scale(rate))),
        other => other,
    };
    Ok(LinkConfig { rate, ..link })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn conditions_follow_each_other() {
        let phases = Network::Changing.phases(Some(10.0));
        assert_eq!(phases.len(), 5);
        assert_eq!(phases[2].condition, Condition::Outage);
        assert_eq!((phases[2].from, phases[2].to()), (4 * SECOND, 6 * SECOND));
        let halves = [8, 9, 10, 11].map(|half| half * SECOND / 2);
        assert_eq!(phases[2].changes(), halves);
        let steady = Network::Steady(Condition::Lossy).phases(None);
        assert_eq!(steady[0].changes(), [Duration::ZERO]);
        assert_eq!(steady[0].to(), 20 * SECOND);
    }

    #[test]
    fn cellular_paths_together_bear_little_more_than_the_stream() {
        let (drive, length) = (Drive::generated(1, false), 20 * SECOND);
        let factor = factor(&drive, length);
        let rates = (0..PATHS).map(
            |path| match scaled(drive.uplink(path), factor).unwrap().rate {
                Some(Rate::Steps(rates)) => mean_mbps(&rates, length),
                other => panic!("{other:?}"),
            },
        );
        let together = rates.sum::<f64>() / STREAM_MBPS;
        assert!((together - CELLULAR_RATIO).abs() < 1e-3, "{together}");
    }
}
