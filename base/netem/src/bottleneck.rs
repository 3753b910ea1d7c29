use crate::config::{LinkConfig, QueueLimit};
use crate::discipline::{Queues, Waiting, default_limit};
use crate::queue::Queue;
use crate::rate::Serialiser;
use crate::stats::{Class, DropReason, LinkStats};
use hawser_units::{ByteSize, Instant};
use std::time::Duration;

/// The bottleneck of a link without a discipline: each departure is planned at arrival.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    queue: Queue,
    serialiser: Serialiser,
}

impl Planned {
    pub(crate) fn new(config: &LinkConfig, starts_at: Instant) -> Self {
        Planned {
            queue: Queue::new(config.queue),
            serialiser: Serialiser::new(config.rate.clone(), starts_at),
        }
    }

    pub(crate) fn restart(&mut self, starts_at: Instant) {
        self.serialiser.restart(starts_at);
    }

    /// Admits a packet that arrives `now`. Returns when its serialisation ends.
    pub(crate) fn admit(&mut self, now: Instant, size: ByteSize) -> Result<Instant, DropReason> {
        let progress = self.serialiser.plan(now, size);
        if !self.queue.admit(now, progress.finish(), size) {
            return Err(DropReason::Queue);
        }
        self.serialiser.commit(progress);
        Ok(progress.finish())
    }

    pub(crate) fn high_water(&self) -> ByteSize {
        self.queue.high_water()
    }
}

/// A bottleneck in front of which a discipline decides, whenever the bottleneck is free, which
/// packet leaves next.
#[derive(Debug, Clone)]
pub(crate) struct Scheduled<P> {
    queues: Queues<P>,
    limit: Option<QueueLimit>,
    serialiser: Serialiser,
    /// The time up to which packets have left the queue.
    clock: Instant,
    /// The packet that is being serialised, and when that ends.
    serialised: (Instant, ByteSize),
    high_water: ByteSize,
}

/// A packet that left the queue.
#[derive(Debug)]
pub(crate) struct Sent<P> {
    pub(crate) packet: Waiting<P>,
    pub(crate) class: Class,
    /// The time from arrival to the start of serialisation.
    pub(crate) waited: Duration,
    /// The end of serialisation.
    pub(crate) finish: Instant,
}

impl<P> Scheduled<P> {
    /// Returns `None` if the configuration has no discipline.
    pub(crate) fn new(config: &LinkConfig, seed: u64, starts_at: Instant) -> Option<Self> {
        let discipline = config.discipline.as_ref()?;
        Some(Scheduled {
            queues: Queues::new(discipline, seed),
            limit: config.queue.or_else(|| default_limit(discipline)),
            serialiser: Serialiser::new(config.rate.clone(), starts_at),
            clock: Instant::ZERO,
            serialised: (Instant::ZERO, ByteSize(0)),
            high_water: ByteSize(0),
        })
    }

    /// Restarts the schedule of the rate at `starts_at`.
    pub(crate) fn restart(&mut self, starts_at: Instant) {
        self.serialiser.restart(starts_at);
    }

    /// Queues a packet. All packets that leave before its arrival must have been taken by
    /// [`serve`](Scheduled::serve).
    ///
    /// Returns the reason if the packet is dropped. Counts others that are dropped in its place.
    pub(crate) fn push(
        &mut self,
        packet: Waiting<P>,
        stats: &mut LinkStats,
    ) -> Result<(), DropReason> {
        let (number, size) = (packet.number, packet.size);
        self.clock = self.clock.max(packet.arrived);
        self.queues.push(self.clock, &self.serialiser, packet)?;
        let mut freed = ByteSize(0);
        while freed < size
            && self.exceeds_limit()
            && let Some(dropped) = self.queues.shed()
        {
            if dropped.number == number {
                return Err(DropReason::Queue);
            }
            stats.count_drop(DropReason::Queue);
            freed += dropped.size;
        }
        Ok(())
    }

    /// Takes the next packet that leaves the queue by `now`, and counts those that the discipline
    /// drops.
    pub(crate) fn serve(&mut self, now: Instant, stats: &mut LinkStats) -> Option<Sent<P>> {
        let start = self.next_start().filter(|start| *start <= now);
        let sent = start.and_then(|start| self.send(start, stats));
        if sent.is_none() {
            self.clock = self.clock.max(now);
            self.high_water = self.high_water.max(self.occupancy().1);
        }
        sent
    }

    /// Returns when the next packet leaves the queue, if any waits; [`Instant::MAX`] if the rate
    /// stays zero.
    pub(crate) fn next_start(&self) -> Option<Instant> {
        (self.queues.packets() > 0).then(|| self.serialiser.free_from(self.clock))
    }

    pub(crate) fn packets(&self) -> u64 {
        self.queues.packets()
    }

    pub(crate) fn high_water(&self) -> ByteSize {
        self.high_water
    }

    fn send(&mut self, start: Instant, stats: &mut LinkStats) -> Option<Sent<P>> {
        self.clock = start;
        let dropped = &mut stats.dropped_aqm;
        let packet = self.queues.pop(start, &self.serialiser, dropped)?;
        let progress = self.serialiser.plan(start, packet.size);
        self.serialiser.commit(progress);
        self.serialised = (progress.finish(), packet.size);
        Some(Sent {
            class: self.queues.class(&packet),
            waited: packet.waited(start),
            finish: progress.finish(),
            packet,
        })
    }

    fn exceeds_limit(&self) -> bool {
        let (packets, bytes) = self.occupancy();
        match self.limit {
            None => false,
            Some(QueueLimit::Bytes(limit)) => bytes > limit,
            Some(QueueLimit::Packets(limit)) => packets > limit,
            Some(QueueLimit::Time(limit)) => {
                let drained = self.serialiser.plan(self.clock, self.queues.bytes());
                drained.finish().saturating_since(self.clock) > limit
            }
        }
    }

    /// Returns the packets and bytes that wait or are being serialised.
    fn occupancy(&self) -> (u64, ByteSize) {
        let (finish, size) = self.serialised;
        let (packets, bytes) = (self.queues.packets(), self.queues.bytes());
        if finish > self.clock {
            (packets + 1, bytes + size)
        } else {
            (packets, bytes)
        }
    }
}
