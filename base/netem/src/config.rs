mod discipline;

pub(crate) use discipline::CodelSettings;
pub use discipline::{
    Decisions, Discipline, DualPi2, FqCodel, L4sAqm, MeterMode, Paper, Scheduler,
};

use crate::figure::{Probability, Span};
use crate::steps::Steps;
use crate::trace::Opportunities;
use hawser_units::{Bitrate, ByteSize};
use std::num::NonZeroU32;
use std::time::Duration;

/// Configuration of one direction of a link. The default forwards everything without delay.
///
/// Times of schedules are relative to the link's start, which the experiment sets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkConfig {
    /// The rate at which packets are serialised. Absent: unlimited.
    pub rate: Option<Rate>,
    /// The limit of the queue in front of the bottleneck; a packet that does not fit is dropped.
    /// Absent: unlimited, or the default of the discipline.
    pub queue: Option<QueueLimit>,
    /// The discipline of that queue, which decides when a packet leaves. Absent: a drop-tail queue
    /// that decides when a packet arrives.
    pub discipline: Option<Discipline>,
    /// The propagation delay. Default: none.
    pub delay: Delay,
    /// Delay on top of the propagation delay; several add up. Default: none.
    pub extra_delay: Vec<ExtraDelay>,
    /// Whether a packet may overtake another. Default: `keep`.
    pub order: Order,
    /// Random loss. Absent: none.
    pub loss: Option<Loss>,
    /// Where packets are lost. Default: `entry`.
    pub loss_at: LossAt,
    /// Periods in which every arriving packet is dropped. Packets that are already in the link
    /// still arrive. Default: none.
    pub cuts: Vec<Span>,
    /// The share of packets that are duplicated. Default: 0.
    pub duplicate: Probability,
    /// The share of packets that are corrupted, if the link has a corruption function
    /// ([`Link::corrupting_by`](crate::Link::corrupting_by)). Default: 0.
    pub corrupt: Probability,
    /// The share of packets that are held back so that others overtake them. Absent: none.
    pub reorder: Option<Reorder>,
}

impl LinkConfig {
    /// Returns the minimum propagation delay.
    pub fn min_delay(&self) -> Duration {
        match &self.delay {
            Delay::Constant(delay) => *delay,
            Delay::Steps(steps) => steps.values().min().unwrap_or_default(),
        }
    }
}

/// The rate of the bottleneck.
#[derive(Debug, Clone, PartialEq)]
pub enum Rate {
    /// A constant rate.
    Constant(Bitrate),
    /// Rates from given times on.
    Steps(Steps<Bitrate>),
    /// Opportunities to deliver 1500 bytes each, repeating.
    Opportunities(Opportunities),
}

/// The limit of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueLimit {
    /// Bytes, including the packet that is being serialised.
    Bytes(ByteSize),
    /// Packets, including the one that is being serialised.
    Packets(u64),
    /// The time from a packet's arrival to the end of its serialisation.
    Time(Duration),
}

/// The propagation delay.
#[derive(Debug, Clone, PartialEq)]
pub enum Delay {
    /// A constant delay.
    Constant(Duration),
    /// Delays from given times on.
    Steps(Steps<Duration>),
}

impl Default for Delay {
    fn default() -> Self {
        Delay::Constant(Duration::ZERO)
    }
}

/// A delay drawn uniformly from a range.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtraDelay {
    /// The range of delays.
    pub range: Span,
    /// The time for which a drawn delay holds. Default: 0, each packet draws its own.
    pub hold: Duration,
    /// The period in which packets are delayed, by the time at which they leave the bottleneck.
    /// Absent: always.
    pub during: Option<Span>,
}

/// Whether packets may overtake each other in the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// A packet leaves no earlier than those that arrived before it.
    #[default]
    Keep,
    /// A packet leaves when its own delay has passed.
    Free,
}

/// Random loss.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Each packet is lost with this probability.
    Independent(Probability),
    /// Probabilities from given times on.
    Steps(Steps<Probability>),
    /// Loss in bursts: a good and a bad state, between which the link may change before each packet
    /// (Gilbert 1960, Elliott 1963). It starts in the good state. The bad state lasts
    /// `1 / bad_to_good` packets on average.
    GilbertElliott {
        /// The probability of changing to the bad state, per packet.
        good_to_bad: Probability,
        /// The probability of changing to the good state, per packet.
        bad_to_good: Probability,
        /// The probability of losing a packet in the good state.
        loss_good: Probability,
        /// The probability of losing a packet in the bad state.
        loss_bad: Probability,
    },
    /// Loss in bursts whose share changes at given times. The model is that of Gilbert: in the bad state, which lasts `mean_packets` on average, every packet is lost, and
    /// the probability of changing to it gives the share. Above a share of `mean_packets` of
    /// `mean_packets + 1`, bursts are longer, and without loss there is no bad state.
    Bursts {
        /// The share of lost packets from given times on.
        steps: Steps<Probability>,
        /// The mean length of a burst in packets.
        mean_packets: NonZeroU32,
    },
}

/// Where packets are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LossAt {
    /// When they enter the link. A lost packet does not use the rate, as in the kernel's netem.
    #[default]
    Entry,
    /// Behind the bottleneck, as on a radio link: a lost packet has used its rate. Loss in steps is
    /// that of the time at which its serialisation ends.
    Exit,
}

/// Reordering of a share of packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reorder {
    /// The share of packets that are held back.
    pub share: Probability,
    /// The time for which they are held back. They are overtaken only if other packets arrive
    /// within this time.
    pub delay: Duration,
}
