use super::Waiting;
use super::bucket::Bucket;
use super::drr::Drr;
use crate::config::{self, MeterMode};
use crate::figure::Probability;
use crate::rate::Serialiser;
use crate::stats::{Class, DropReason};
use hawser_units::{ByteSize, Instant};
use std::time::Duration;

/// The queue of De Fré et al. (MMSys 2025, figure 5): a policer and a marking meter for L4S packets,
/// then HTB with a class for L4S and one for the others.
#[derive(Debug, Clone)]
pub(crate) struct Paper<P> {
    config: config::Paper,
    policer: Bucket,
    meter: Bucket,
    l4s: HtbClass<P>,
    classic: HtbClass<P>,
    filled: Option<Instant>,
}

/// A class of HTB: up to its assured rate it comes before classes that borrow.
#[derive(Debug, Clone)]
struct HtbClass<P> {
    flows: Drr<P>,
    assured: Bucket,
}

/// The minimum depth of a token bucket in bytes: two packets.
const MIN_DEPTH: f64 = 3028.0;

/// The debt that marked packets may build up, as a time at the rate of the meter. With it the meter
/// bridges the gaps between the packets of several flows.
const METER_DEBT: Duration = Duration::from_millis(1);

impl<P> Paper<P> {
    pub(crate) fn new(config: config::Paper) -> Self {
        let class = || HtbClass {
            flows: Drr::new(config.quantum, config.flow_packets),
            assured: Bucket::default(),
        };
        Paper {
            policer: Bucket::default(),
            meter: Bucket::default(),
            l4s: class(),
            classic: class(),
            filled: None,
            config,
        }
    }

    pub(crate) fn push(
        &mut self,
        now: Instant,
        bottleneck: &Serialiser,
        mut packet: Waiting<P>,
    ) -> Result<(), DropReason> {
        self.fill(now, bottleneck);
        let class = class(&packet);
        if class == Class::L4s {
            if !self.policer.take(packet.size) {
                return Err(DropReason::Policer);
            }
            let debt = bottleneck.capacity(now, now + METER_DEBT);
            packet.is_marked = self.is_metered(packet.size, debt);
        }
        if self.class(class).flows.push(packet) {
            Ok(())
        } else {
            Err(DropReason::Queue)
        }
    }

    /// Takes the packet that leaves `now`. A class within its assured rate precedes one that
    /// borrows, and L4S precedes Classic.
    pub(crate) fn pop(&mut self, now: Instant, bottleneck: &Serialiser) -> Option<Waiting<P>> {
        self.fill(now, bottleneck);
        let assured = [Class::L4s, Class::Classic]
            .into_iter()
            .find(|class| self.class(*class).is_assured());
        if let Some(class) = assured {
            let class = self.class(class);
            let packet = class.flows.pop()?;
            class.assured.owe(packet.size, f64::INFINITY);
            return Some(packet);
        }
        self.l4s.flows.pop().or_else(|| self.classic.flows.pop())
    }

    /// Takes the last packet of the longest queue.
    pub(crate) fn shed(&mut self) -> Option<Waiting<P>> {
        if self.l4s.flows.longest() > self.classic.flows.longest() {
            self.l4s.flows.shed()
        } else {
            self.classic.flows.shed()
        }
    }

    pub(crate) fn packets(&self) -> u64 {
        self.l4s.flows.packets() + self.classic.flows.packets()
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        self.l4s.flows.bytes() + self.classic.flows.bytes()
    }

    fn class(&mut self, class: Class) -> &mut HtbClass<P> {
        match class {
            Class::L4s => &mut self.l4s,
            Class::Classic => &mut self.classic,
        }
    }

    /// Returns whether the rate of L4S is above the one from which on packets are marked. The link
    /// could send `debt` bytes in [`METER_DEBT`].
    fn is_metered(&mut self, size: ByteSize, debt: f64) -> bool {
        let is_above = !self.meter.take(size);
        if is_above && self.config.meter == MeterMode::All {
            let debt = self.config.mark_share.get() * debt;
            self.meter.owe(size, debt.max(MIN_DEPTH));
        }
        is_above
    }

    /// Fills all buckets with their share of the bytes that the link could send since the last time.
    fn fill(&mut self, now: Instant, bottleneck: &Serialiser) {
        let earned = bottleneck.capacity(self.filled.unwrap_or(now), now);
        let burst = bottleneck.capacity(now, now + self.config.burst);
        let fill = |bucket: &mut Bucket, share: Probability| {
            let depth = (share.get() * burst).max(MIN_DEPTH);
            bucket.fill(share.get() * earned, depth);
        };
        fill(&mut self.policer, self.config.drop_share);
        fill(&mut self.meter, self.config.mark_share);
        let assured = self.config.mark_share.get();
        self.l4s.assured.fill(assured * earned, MIN_DEPTH);
        let assured = 1.0 - assured;
        self.classic.assured.fill(assured * earned, MIN_DEPTH);
        self.filled = Some(now);
    }
}

impl<P> HtbClass<P> {
    fn is_assured(&self) -> bool {
        self.assured.is_solvent() && self.flows.packets() > 0
    }
}

/// Returns the class of a packet: those that are ECN-capable are L4S.
pub(crate) fn class<P>(packet: &Waiting<P>) -> Class {
    if packet.ecn.is_capable() {
        Class::L4s
    } else {
        Class::Classic
    }
}
