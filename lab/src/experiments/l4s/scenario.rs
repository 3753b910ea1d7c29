//! The cases: a controller, the flows that it competes with, and the bottleneck.

use super::frames::{Frame, captured_within};
use crate::rivals::{PAPER_SPREAD, PaperConfig, PaperL4s};
use anyhow::Result;
use hawser_congestion::{Bounds, Prague, PragueConfig, RateControl, Spread};
use hawser_netem::{
    Class, Delay, Discipline, DualPi2, ExtraDelay, FqCodel, LinkConfig, Loss, Order, Paper,
    QueueLimit, Rate, Span, Steps,
};
use hawser_objects::Rule;
use hawser_units::{Bitrate, Instant};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

/// The propagation delay in each direction (section 4.2).
const ONE_WAY: Duration = Duration::from_millis(10);

/// The time from the first frame to the start of the competing flows (section 4.1).
pub(super) const RIVALS_AFTER: Duration = Duration::from_secs(5);

/// The longest additional delay of a packet in [`Network::Jitter`].
const JITTER: Duration = Duration::from_millis(10);

/// The additional delay of each direction in [`Network::Detour`].
const DETOUR: Duration = Duration::from_millis(30);

/// The time between reports of the viewer.
pub(super) const REPORT_INTERVAL: Duration = Duration::from_millis(5);

/// The queue of [`Losses::Unmarked`].
const QUEUE: Duration = Duration::from_millis(50);

/// The mean length of a burst of losses.
const BURST: NonZeroU32 = NonZeroU32::new(8).unwrap();

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(super) media: Media,
    pub(super) network: Network,
    pub(super) rivals: Rivals,
}

/// The sender of the media flow.
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
    /// FQ-CoDel at 100 Mb/s: a queue for each flow, which marks as RFC 3168 says.
    FqCodel,
    /// `DualPI2`; the rate falls to 20 Mb/s for the second third of the stable state.
    Steps,
    /// The same with losses that are not congestion.
    Loss(Losses),
    /// The same; each packet takes up to 10 ms longer, and may be overtaken.
    Jitter,
    /// The same; nothing passes in either direction for 20 to 100 ms, about once a second, as when a
    /// Wi-Fi station scans or its channel is taken.
    Pauses,
    /// The same; packets take 30 ms longer in each direction in the second third of the stable state, as
    /// over another route or cell.
    Detour,
}

/// The losses of [`Network::Loss`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Losses {
    /// This many of 1000 packets, each at random.
    Random(u16),
    /// 1 %, in bursts of 8 packets on average.
    Bursts,
    /// 1 % at random, and the pauses of [`Network::Pauses`].
    Pauses,
    /// 1 % at random; the bottleneck is a queue of 50 ms that does not mark.
    Unmarked,
    /// 1 % at random; the bottleneck is [`Network::FqCodel`].
    FqCodel,
}

impl Losses {
    const ALL: [Losses; 8] = [
        Losses::Random(1),
        Losses::Random(10),
        Losses::Random(30),
        Losses::Random(100),
        Losses::Bursts,
        Losses::Pauses,
        Losses::Unmarked,
        Losses::FqCodel,
    ];

    fn loss(self) -> Result<Loss> {
        Ok(match self {
            Losses::Random(per_mille) => {
                Loss::Independent((f64::from(per_mille) / 1000.0).try_into()?)
            }
            Losses::Bursts => Loss::Bursts {
                steps: Steps::new(vec![(Duration::ZERO, 0.01.try_into()?)])?,
                mean_packets: BURST,
            },
            Losses::Pauses | Losses::Unmarked | Losses::FqCodel => {
                Loss::Independent(0.01.try_into()?)
            }
        })
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Losses::Random(per_mille) => write!(f, "loss-{}", f64::from(*per_mille) / 10.0),
            Losses::Bursts => write!(f, "loss-bursts"),
            Losses::Pauses => write!(f, "loss-pauses"),
            Losses::Unmarked => write!(f, "loss-unmarked"),
            Losses::FqCodel => write!(f, "loss-fq-codel"),
        }
    }
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
            (Network::FqCodel, Rivals::None),
            (Network::FqCodel, Rivals::Cubic(3)),
            (Network::Steps, Rivals::None),
            (Network::Jitter, Rivals::None),
            (Network::Pauses, Rivals::None),
            (Network::Detour, Rivals::None),
        ];
        let losses = Losses::ALL.map(|losses| (Network::Loss(losses), Rivals::None));
        let of = move |(network, rivals)| Scenario {
            media,
            network,
            rivals,
        };
        paper.chain(others).chain(losses).map(of)
    }

    /// Returns the link from the senders to the receivers.
    pub(super) fn link(self, times: Times, seed: u64) -> Result<LinkConfig> {
        let mut link = LinkConfig {
            rate: Some(self.network.rate(times, seed)?),
            discipline: Some(self.network.discipline()),
            delay: self.network.delay(times)?,
            ..LinkConfig::default()
        };
        match self.network {
            Network::Loss(losses) => {
                link.loss = Some(losses.loss()?);
                link.queue = (losses == Losses::Unmarked).then_some(QueueLimit::Time(QUEUE));
            }
            Network::Jitter => {
                link.order = Order::Free;
                link.extra_delay = vec![ExtraDelay {
                    range: Span::new(Duration::ZERO, JITTER)?,
                    hold: Duration::ZERO,
                    during: None,
                }];
            }
            _ => {}
        }
        Ok(link)
    }

    /// Returns the link from the receivers to the senders.
    pub(super) fn link_back(self, times: Times, seed: u64) -> Result<LinkConfig> {
        let rate = match self.network {
            Network::Pauses | Network::Loss(Losses::Pauses) => {
                Some(self.network.rate(times, seed)?)
            }
            _ => None,
        };
        Ok(LinkConfig {
            rate,
            delay: self.network.delay(times)?,
            ..LinkConfig::default()
        })
    }
}

impl Network {
    fn rate(self, times: Times, seed: u64) -> Result<Rate> {
        let [fast, slow] = [100.0, 20.0].map(Bitrate::from_mbps);
        let steps = vec![
            (Duration::ZERO, fast),
            (times.fall(), slow),
            (times.rise(), fast),
        ];
        Ok(match self {
            Network::Paper => Rate::Constant(Bitrate::from_mbps(200.0)),
            Network::Steps => Rate::Steps(Steps::new(steps)?),
            Network::Pauses | Network::Loss(Losses::Pauses) => {
                Rate::Steps(Steps::new(pauses(fast, times, seed))?)
            }
            Network::DualPi2
            | Network::FqCodel
            | Network::Loss(_)
            | Network::Jitter
            | Network::Detour => Rate::Constant(fast),
        })
    }

    /// Returns the propagation delay of each direction.
    fn delay(self, times: Times) -> Result<Delay> {
        Ok(match self {
            Network::Detour => Delay::Steps(Steps::new(vec![
                (Duration::ZERO, ONE_WAY),
                (times.fall(), ONE_WAY + DETOUR),
                (times.rise(), ONE_WAY),
            ])?),
            _ => Delay::Constant(ONE_WAY),
        })
    }

    fn discipline(self) -> Discipline {
        match self {
            Network::Paper => Discipline::Paper(Paper::default()),
            Network::Loss(Losses::Unmarked) => Discipline::Fifo,
            Network::FqCodel | Network::Loss(Losses::FqCodel) => {
                Discipline::FqCodel(FqCodel::default())
            }
            _ => Discipline::DualPi2(DualPi2::default()),
        }
    }
}

/// Returns the rates of a link that pauses for 20 to 100 ms, 500 to 1500 ms after the last pause.
fn pauses(rate: Bitrate, times: Times, seed: u64) -> Vec<(Duration, Bitrate)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(2);
    let mut steps = vec![(Duration::ZERO, rate)];
    let mut at = Duration::ZERO;
    while at < times.end {
        at += Duration::from_millis(random.random_range(500..1500));
        steps.push((at, Bitrate::from_bps(0)));
        at += Duration::from_millis(random.random_range(20..=100));
        steps.push((at, rate));
    }
    steps
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
            Controller::Paper => PAPER_SPREAD,
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
            Network::Paper => String::new(),
            Network::DualPi2 => "dual-pi2".to_owned(),
            Network::FqCodel => "fq-codel".to_owned(),
            Network::Steps => "steps".to_owned(),
            Network::Loss(losses) => losses.to_string(),
            Network::Jitter => "jitter".to_owned(),
            Network::Pauses => "pauses".to_owned(),
            Network::Detour => "detour".to_owned(),
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
