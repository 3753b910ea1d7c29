//! Queue disciplines: the queues in front of a bottleneck that decide when a packet leaves.

mod bucket;
mod chance;
mod codel;
mod drr;
mod dual_pi2;
mod fifo;
mod fq_codel;
mod paper;
mod pi2;

use crate::config::{self, QueueLimit};
use crate::rate::Serialiser;
use crate::stats::{Class, DropReason};
use dual_pi2::DualPi2;
use fifo::Fifo;
use fq_codel::FqCodel;
use hawser_units::{ByteSize, Ecn, Instant};
use paper::Paper;
use std::time::Duration;

/// A packet in a queue.
#[derive(Debug, Clone)]
pub(crate) struct Waiting<P> {
    /// The number of the packet in order of arrival.
    pub(crate) number: u64,
    pub(crate) arrived: Instant,
    pub(crate) size: ByteSize,
    pub(crate) ecn: Ecn,
    pub(crate) flow: u64,
    /// Whether the discipline marked it with CE.
    pub(crate) is_marked: bool,
    pub(crate) payload: P,
}

impl<P> Waiting<P> {
    /// Returns the time for which the packet has waited.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        now.saturating_since(self.arrived)
    }

    /// Returns the class to which a dual queue assigns the packet (RFC 9331, section 5.1).
    fn class(&self) -> Class {
        if self.ecn.is_l4s() {
            Class::L4s
        } else {
            Class::Classic
        }
    }
}

/// The queues of a discipline.
#[derive(Debug, Clone)]
pub(crate) enum Queues<P> {
    Fifo(Fifo<P>),
    FqCodel(FqCodel<P>),
    DualPi2(Box<DualPi2<P>>),
    Paper(Box<Paper<P>>),
}

impl<P> Queues<P> {
    pub(crate) fn new(config: &config::Discipline, seed: u64) -> Self {
        match config {
            config::Discipline::Fifo => Queues::Fifo(Fifo::default()),
            config::Discipline::FqCodel(config) => Queues::FqCodel(FqCodel::new(config, seed)),
            config::Discipline::DualPi2(config) => {
                Queues::DualPi2(Box::new(DualPi2::new(*config, seed)))
            }
            config::Discipline::Paper(config) => Queues::Paper(Box::new(Paper::new(*config))),
        }
    }

    /// Queues a packet that arrives `now`.
    ///
    /// Returns the reason if the discipline drops it at once.
    pub(crate) fn push(
        &mut self,
        now: Instant,
        bottleneck: &Serialiser,
        packet: Waiting<P>,
    ) -> Result<(), DropReason> {
        match self {
            Queues::Fifo(fifo) => fifo.push(packet),
            Queues::FqCodel(queues) => queues.push(packet),
            Queues::DualPi2(queues) => queues.push(now, packet),
            Queues::Paper(queues) => return queues.push(now, bottleneck, packet),
        }
        Ok(())
    }

    /// Takes the packet that leaves `now`, and adds the packets that an AQM drops to `dropped`.
    pub(crate) fn pop(
        &mut self,
        now: Instant,
        bottleneck: &Serialiser,
        dropped: &mut u64,
    ) -> Option<Waiting<P>> {
        match self {
            Queues::Fifo(fifo) => fifo.pop(),
            Queues::FqCodel(queues) => queues.pop(now, dropped),
            Queues::DualPi2(queues) => queues.pop(now, dropped),
            Queues::Paper(queues) => queues.pop(now, bottleneck),
        }
    }

    /// Takes the packet that a full queue drops.
    pub(crate) fn shed(&mut self) -> Option<Waiting<P>> {
        match self {
            Queues::Fifo(fifo) => fifo.pop_last(),
            Queues::FqCodel(queues) => queues.shed(),
            Queues::DualPi2(queues) => queues.shed(),
            Queues::Paper(queues) => queues.shed(),
        }
    }

    /// Returns the number of packets that wait.
    pub(crate) fn packets(&self) -> u64 {
        match self {
            Queues::Fifo(fifo) => fifo.packets(),
            Queues::FqCodel(queues) => queues.packets(),
            Queues::DualPi2(queues) => queues.packets(),
            Queues::Paper(queues) => queues.packets(),
        }
    }

    /// Returns the bytes of the packets that wait.
    pub(crate) fn bytes(&self) -> ByteSize {
        match self {
            Queues::Fifo(fifo) => fifo.bytes(),
            Queues::FqCodel(queues) => queues.bytes(),
            Queues::DualPi2(queues) => queues.bytes(),
            Queues::Paper(queues) => queues.bytes(),
        }
    }

    /// Returns the class to which the discipline assigns a packet.
    pub(crate) fn class(&self, packet: &Waiting<P>) -> Class {
        match self {
            Queues::Paper(_) => paper::class(packet),
            _ => packet.class(),
        }
    }
}

/// Returns the limit of a discipline whose configuration has none.
pub(crate) fn default_limit(config: &config::Discipline) -> Option<QueueLimit> {
    match config {
        config::Discipline::Fifo => None,
        config::Discipline::FqCodel(_) => Some(QueueLimit::Packets(10_240)),
        config::Discipline::DualPi2(_) => Some(QueueLimit::Time(Duration::from_millis(250))),
        config::Discipline::Paper(_) => Some(QueueLimit::Packets(10_000)),
    }
}

#[cfg(test)]
mod operations;
