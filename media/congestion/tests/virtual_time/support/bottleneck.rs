use super::packet::Packet;
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// Which packets the queue marks.
#[derive(Clone, Copy)]
pub(crate) enum Marking {
    /// Those that waited longer than this (the step of RFC 9332, section 2.5.1.1).
    Step(Duration),
    /// By the control law of CoDel: a standing queue of 5 ms for 100 ms (RFC 8289).
    Codel,
    /// None.
    Never,
}

/// A queue of a limited time in front of a rate that changes in steps.
pub(crate) struct Bottleneck {
    pub(crate) rates: Vec<(Instant, Bitrate)>,
    pub(crate) marking: Marking,
    pub(crate) limit: ByteSize,
    queue: VecDeque<(Instant, Packet)>,
    queued: u64,
    idle_from: Instant,
    codel: Codel,
    pub(crate) drops: u64,
}

#[derive(Default)]
struct Codel {
    above_since: Option<Instant>,
    next_mark: Option<Instant>,
    count: u32,
}

impl Codel {
    fn marks(&mut self, now: Instant, waited: Duration) -> bool {
        let interval = Duration::from_millis(100);
        if waited < Duration::from_millis(5) {
            *self = Codel::default();
            return false;
        }
        let since = *self.above_since.get_or_insert(now);
        let due = self.next_mark.unwrap_or(since + interval);
        if now < due {
            return false;
        }
        self.count += 1;
        self.next_mark = Some(due + interval.div_f64(f64::from(self.count).sqrt()));
        true
    }
}

impl Bottleneck {
    pub(crate) fn new(rates: &[(Duration, f64)], marking: Marking, limit: ByteSize) -> Self {
        let step =
            |(from, mbps): &(Duration, f64)| (Instant::ZERO + *from, Bitrate::from_mbps(*mbps));
        Bottleneck {
            rates: rates.iter().map(step).collect(),
            marking,
            limit,
            queue: VecDeque::new(),
            queued: 0,
            idle_from: Instant::ZERO,
            codel: Codel::default(),
            drops: 0,
        }
    }

    /// Takes a packet. One that does not fit is dropped.
    pub(crate) fn push(&mut self, now: Instant, packet: Packet) {
        if self.queued + packet.size.0 > self.limit.0 {
            self.drops += 1;
            return;
        }
        self.queued += packet.size.0;
        self.queue.push_back((now, packet));
    }

    /// Returns when the next packet has left.
    pub(crate) fn next_departure(&self) -> Option<Instant> {
        let (arrived, packet) = self.queue.front()?;
        let starts = self.idle_from.max(*arrived);
        Some(starts + self.rate(starts).time_to_send(packet.size))
    }

    /// Removes the packet that has left by now, and returns the time for which it waited.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Duration, Packet)> {
        let left = self.next_departure().filter(|left| *left <= now)?;
        let (arrived, mut packet) = self.queue.pop_front()?;
        let waited = self.idle_from.saturating_since(arrived);
        self.queued -= packet.size.0;
        self.idle_from = left;
        let is_marked = match self.marking {
            Marking::Step(threshold) => waited > threshold,
            Marking::Codel => self.codel.marks(left, waited),
            Marking::Never => false,
        };
        if is_marked && !packet.ecn.is_capable() {
            self.drops += 1;
            return self.pop(now);
        }
        if is_marked {
            packet.ecn = Ecn::Ce;
        }
        Some((waited, packet))
    }

    fn rate(&self, at: Instant) -> Bitrate {
        let steps = self.rates.iter().rev();
        let holding = steps.into_iter().find(|(from, _)| *from <= at);
        holding.map_or(self.rates[0].1, |(_, rate)| *rate)
    }
}
