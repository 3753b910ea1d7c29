//! The cases: a controller, the flows that it competes with, and the bottleneck.

use super::frames::{Frame, captured_within};
use anyhow::Result;
use hawser_congestion::{Bounds, PaperConfig, PaperL4s, Prague, PragueConfig, RateControl, Spread};
use hawser_netem::{Class, Delay, Discipline, DualPi2, LinkConfig, Loss, Paper, Rate, Steps};
use hawser_objects::Rule;
use hawser_units::{Bitrate, Instant};
use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// The propagation delay in each direction (section 4.2).
pub(super) const ONE_WAY: Duration = Duration::from_millis(10);

/// The time from the first frame to the start of the competing flows (section 4.1).
pub(super) const RIVALS_AFTER: Duration = Duration::from_secs(5);

/// The time between reports of the viewer.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(5);

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Scenario {
    pub(super) media: Media,
    pub(super) network: Network,
    pub(super) rivals: Rivals,
}

/// What carries the media flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    Hawser(Controller),
    /// WebRTC with Google's congestion control (GCC), both of `str0m`.
    WebRtc,
}

/// The rate control of Hawser's media, and how its packets leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    /// Ours: paced at the rate that the path bears, two layers, kept until their deadline.
    Prague,
    /// The paper's: paced over 20 ms, one layer, kept until it is acknowledged.
    Paper,
}

/// The bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// Figure 5 at 200 Mb/s.
    Paper,
    /// `DualPI2` at 100 Mb/s.
    DualPi2,
    /// The same; the rate falls to 20 Mb/s for the second third of the stable state.
    Steps,
    /// The same with 1 % of random loss.
    Loss,
}

/// The competing flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rivals {
    None,
    Cubic(usize),
    Prague(usize),
}

/// The times of a run, from the first frame on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Times {
    /// The end of the start-up and beginning of the stable state.
    pub(super) stable: Duration,
    /// The end.
    pub(super) end: Duration,
}

impl Scenario {
    /// Returns all cases in the order in which they run.
    pub(super) fn all() -> Vec<Scenario> {
        [
            Media::Hawser(Controller::Prague),
            Media::Hawser(Controller::Paper),
            Media::WebRtc,
        ]
        .into_iter()
        .flat_map(Scenario::of)
        .collect()
    }

    fn of(media: Media) -> impl Iterator<Item = Scenario> {
        let alone = [Rivals::None];
        let cubic = (1..=3).map(Rivals::Cubic);
        let prague = (1..=3).map(Rivals::Prague);
        let paper = alone.into_iter().chain(cubic).chain(prague);
        let paper = paper.map(|rivals| (Network::Paper, rivals));
        let others = [
            (Network::DualPi2, Rivals::None),
            (Network::DualPi2, Rivals::Cubic(3)),
            (Network::DualPi2, Rivals::Prague(3)),
            (Network::Steps, Rivals::None),
            (Network::Loss, Rivals::None),
        ];
        paper.chain(others).map(move |(network, rivals)| Scenario {
            media,
            network,
            rivals,
        })
    }

    /// Returns the link from the senders to the receivers.
    pub(super) fn link(self, times: Times) -> Result<LinkConfig> {
        let loss = match self.network {
            Network::Loss => Some(Loss::Independent(0.01.try_into()?)),
            _ => None,
        };
        Ok(LinkConfig {
            rate: Some(self.network.rate(times)?),
            discipline: Some(self.network.discipline()),
            delay: Delay::Constant(ONE_WAY),
            loss,
            ..LinkConfig::default()
        })
    }
}

impl Network {
    fn rate(self, times: Times) -> Result<Rate> {
        let [fast, slow] = [100.0, 20.0].map(Bitrate::from_mbps);
        let steps = vec![
            (Duration::ZERO, fast),
            (times.fall(), slow),
            (times.rise(), fast),
        ];
        Ok(match self {
            Network::Paper => Rate::Constant(Bitrate::from_mbps(200.0)),
            Network::Steps => Rate::Steps(Steps::new(steps)?),
            Network::DualPi2 | Network::Loss => Rate::Constant(fast),
        })
    }

    fn discipline(self) -> Discipline {
        match self {
            Network::Paper => Discipline::Paper(Paper::default()),
            _ => Discipline::DualPi2(DualPi2::default()),
        }
    }
}

impl Media {
    /// Returns the class of its packets in the queues.
    pub(super) fn class(self) -> Class {
        match self {
            Media::Hawser(_) => Class::L4s,
            Media::WebRtc => Class::Classic,
        }
    }
}

impl Controller {
    /// Returns the controller. Rates and sizes are those of whole packets with all headers.
    pub(super) fn control(self, now: Instant) -> Box<dyn RateControl + Send> {
        match self {
            Controller::Prague => Box::new(Prague::new(
                PragueConfig {
                    feedback_interval: REPORT_INTERVAL,
                    ..PragueConfig::default()
                },
                now,
            )),
            Controller::Paper => Box::new(PaperL4s::new(PaperConfig::default(), now)),
        }
    }

    pub(super) fn spread(self) -> Spread {
        match self {
            Controller::Prague => Spread::BorneRate,
            Controller::Paper => Spread::PAPER,
        }
    }

    /// Returns the rule of the in-flight buffer.
    pub(super) fn rule(self) -> Rule {
        match self {
            Controller::Prague => Rule::Deadline,
            Controller::Paper => Rule::UntilAcknowledged,
        }
    }

    /// Returns the part of a frame's packets that each layer has.
    pub(super) fn layers(self) -> &'static [f64] {
        match self {
            Controller::Prague => &[0.25, 0.75],
            Controller::Paper => &[1.0],
        }
    }

    /// Returns the highest target.
    pub(super) fn maximum() -> Bitrate {
        Bounds::default().maximum()
    }
}

impl Rivals {
    pub(super) fn count(self) -> usize {
        match self {
            Rivals::None => 0,
            Rivals::Cubic(count) | Rivals::Prague(count) => count,
        }
    }
}

impl Times {
    /// Returns the frames of the stable state.
    pub(super) fn stable_frames(self, frames: &[Frame]) -> Range<usize> {
        captured_within(frames, self.stable..self.end)
    }

    /// Returns the time at which the rate falls in [`Network::Steps`].
    pub(super) fn fall(self) -> Duration {
        self.stable + (self.end - self.stable) / 3
    }

    /// Returns the time at which the rate returns in [`Network::Steps`].
    pub(super) fn rise(self) -> Duration {
        self.stable + (self.end - self.stable) * 2 / 3
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.media {
            Media::Hawser(Controller::Prague) => write!(f, "prague/")?,
            Media::Hawser(Controller::Paper) => write!(f, "paper/")?,
            Media::WebRtc => write!(f, "gcc/")?,
        }
        let network = match self.network {
            Network::Paper => "",
            Network::DualPi2 => "dual-pi2",
            Network::Steps => "steps",
            Network::Loss => "loss-1",
        };
        let dash = if network.is_empty() { "" } else { "-" };
        match self.rivals {
            Rivals::None if network.is_empty() => write!(f, "alone"),
            Rivals::None => write!(f, "{network}"),
            Rivals::Cubic(count) => write!(f, "{network}{dash}cubic-{count}"),
            Rivals::Prague(count) => write!(f, "{network}{dash}prague-{count}"),
        }
    }
}
