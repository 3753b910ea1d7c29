use crate::bottleneck::{Planned, Scheduled, Sent};
use crate::config::{LinkConfig, LossAt, Order};
use crate::delay::Extra;
use crate::departure::Departure;
use crate::discipline::Waiting;
use crate::histogram::Histogram;
use crate::loss::{Drawn, LossModel};
use crate::packet::Packet;
use crate::random::{Draws, Stream};
use crate::stats::{Class, DropReason, LinkStats, Sojourn};
use hawser_units::{ByteSize, Ecn, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// One direction of an emulated link with the packets in it.
#[derive(Debug, Clone)]
pub struct Link<T> {
    config: LinkConfig,
    starts_at: Instant,
    loss: Option<LossModel>,
    bottleneck: Bottleneck<T>,
    min_delay: Duration,
    extra: Vec<Extra>,
    duplicating: Draws,
    reordering: Draws,
    corrupting: Draws,
    corrupt: Option<fn(&mut T)>,
    mark: Option<fn(&mut T)>,
    latest_arrival: Instant,
    latest_departure: Instant,
    departures: BinaryHeap<Reverse<Departure<T>>>,
    highest_departed: u64,
    sojourn: Sojourn,
    stats: LinkStats,
}

#[derive(Debug, Clone)]
enum Bottleneck<T> {
    Planned(Planned),
    Scheduled(Box<Scheduled<Held<T>>>),
}

/// The fate of a packet that was pushed into a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The packet leaves at this time; [`Instant::MAX`] if the link's rate stays zero.
    Leaves(Instant),
    /// The packet waits in the queue of a discipline, which decides later when it leaves, and
    /// whether.
    Queued,
    /// The packet was dropped.
    Dropped(DropReason),
}

impl<T: Clone> Link<T> {
    /// Creates a link whose schedules and traces start at `starts_at`. Before that, the first step
    /// of each schedule holds, and there are no delivery opportunities. The same seed and the same
    /// packets give the same departures.
    pub fn new(config: LinkConfig, seed: u64, starts_at: Instant) -> Self {
        let extras = config.extra_delay.iter().cloned().enumerate();
        Link {
            starts_at,
            loss: config.loss.clone().map(|loss| LossModel::new(loss, seed)),
            bottleneck: Bottleneck::new(&config, seed, starts_at),
            min_delay: config.min_delay(),
            extra: extras
                .map(|(number, extra)| Extra::new(extra, seed, number))
                .collect(),
            duplicating: Draws::new(seed, Stream::Duplicate, 0),
            reordering: Draws::new(seed, Stream::Reorder, 0),
            corrupting: Draws::new(seed, Stream::Corrupt, 0),
            corrupt: None,
            mark: None,
            latest_arrival: Instant::ZERO,
            latest_departure: Instant::ZERO,
            departures: BinaryHeap::new(),
            highest_departed: 0,
            sojourn: Sojourn::default(),
            stats: LinkStats::default(),
            config,
        }
    }

    /// Sets the function that corrupts packets. Without it, no packet is corrupted.
    #[must_use]
    pub fn corrupting_by(self, corrupt: fn(&mut T)) -> Self {
        Link {
            corrupt: Some(corrupt),
            ..self
        }
    }

    /// Sets the function that marks packets with CE. Without it, disciplines treat every packet as
    /// not ECN-capable, because a mark would be lost.
    #[must_use]
    pub fn marking_by(self, mark: fn(&mut T)) -> Self {
        Link {
            mark: Some(mark),
            ..self
        }
    }

    /// Restarts schedules and traces at `starts_at`. Packets whose departure is decided keep it;
    /// packets in the queue of a discipline leave by the new schedule.
    pub fn restart(&mut self, starts_at: Instant) {
        self.starts_at = starts_at;
        match &mut self.bottleneck {
            Bottleneck::Planned(planned) => planned.restart(starts_at),
            Bottleneck::Scheduled(scheduled) => scheduled.restart(starts_at),
        }
        if self.latest_departure == Instant::MAX {
            self.latest_departure = Instant::ZERO;
        }
    }

    /// Offers the link a packet of `size` that arrives `now`, of flow 0 and not ECN-capable. If
    /// `now` is before the previous packet's arrival, that time is used instead.
    pub fn push(&mut self, now: Instant, size: ByteSize, payload: T) -> Admission {
        self.push_packet(now, Packet::new(size, payload))
    }

    /// Offers the link a packet that arrives `now`, as [`push`](Link::push) does. A link without a
    /// discipline ignores its flow and ECN field.
    pub fn push_packet(&mut self, now: Instant, packet: Packet<T>) -> Admission {
        let now = now.max(self.latest_arrival);
        self.latest_arrival = now;
        self.stats.offered += 1;
        self.stats.offered_bytes += packet.size;

        let fate = self.draw(now);
        let admission = match self.refusal(now, &fate) {
            Some(reason) => Err(reason),
            None => self.admit(now, packet, fate),
        };
        admission.unwrap_or_else(|reason| {
            self.stats.count_drop(reason);
            Admission::Dropped(reason)
        })
    }

    /// Returns when the next packet may leave, which is the time to call [`pop`](Link::pop) next.
    ///
    /// Without a discipline, a packet leaves at that time. With one, the time may be earlier than
    /// the next departure, and [`pop`](Link::pop) then returns `None`.
    pub fn next_departure(&self) -> Option<Instant> {
        let queued = match &self.bottleneck {
            Bottleneck::Planned(_) => None,
            Bottleneck::Scheduled(scheduled) => scheduled.next_start(),
        };
        let decided = self.departures.peek().map(|next| next.0.leaves);
        let queued = queued.map(|start| start + self.min_delay);
        decided
            .into_iter()
            .chain(queued)
            .min()
            .filter(|leaves| *leaves < Instant::MAX)
    }

    /// Removes and returns the next packet that has left by `now`, with its departure time.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, T)> {
        self.serve(now);
        let next = self.departures.peek()?.0.leaves;
        if next > now || next == Instant::MAX {
            return None;
        }
        let Reverse(departure) = self.departures.pop()?;
        self.stats.delivered += 1;
        self.stats.delivered_bytes += departure.size;
        if departure.number < self.highest_departed {
            self.stats.reordered += 1;
        }
        self.highest_departed = self.highest_departed.max(departure.number);
        Some((departure.leaves, departure.payload))
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> LinkStats {
        let (queued, high_water) = match &self.bottleneck {
            Bottleneck::Planned(planned) => (0, planned.high_water()),
            Bottleneck::Scheduled(scheduled) => (scheduled.packets(), scheduled.high_water()),
        };
        LinkStats {
            in_link: self.departures.len() as u64 + queued,
            queue_high_water_bytes: high_water,
            sojourn_l4s: self.sojourn(Class::L4s).quantiles(),
            sojourn_classic: self.sojourn(Class::Classic).quantiles(),
            ..self.stats
        }
    }

    /// Returns the times that packets of a class spent in the queue of the discipline, from arrival
    /// to the start of serialisation. It is empty without a discipline.
    pub fn sojourn(&self, class: Class) -> &Histogram {
        self.sojourn.of(class)
    }

    /// Draws the fate of a packet. Every impairment draws before the first one decides, so that
    /// none depends on the outcome of another.
    fn draw(&mut self, now: Instant) -> Fate {
        let elapsed = self.elapsed(now).unwrap_or_default();
        let reorder = self
            .config
            .reorder
            .filter(|reorder| self.reordering.hit(reorder.share));
        let mut lost_behind = None;
        let mut is_lost = false;
        if let Some(loss) = &mut self.loss {
            let drawn = loss.draw();
            match self.config.loss_at {
                LossAt::Entry => is_lost = loss.loses(elapsed, drawn),
                LossAt::Exit => lost_behind = Some(drawn),
            }
        }
        Fate {
            is_lost,
            lost_behind,
            extra: self.extra.iter_mut().map(Extra::draw).collect(),
            held_back: reorder.map(|reorder| reorder.delay),
            copies: u64::from(self.duplicating.hit(self.config.duplicate)),
            is_corrupted: self.corrupting.hit(self.config.corrupt),
        }
    }

    /// Returns why a packet that arrives `now` does not reach the queue, if so.
    fn refusal(&self, now: Instant, fate: &Fate) -> Option<DropReason> {
        let is_cut = |elapsed| self.config.cuts.iter().any(|cut| cut.contains(elapsed));
        if self.elapsed(now).is_some_and(is_cut) {
            Some(DropReason::Cut)
        } else {
            fate.is_lost.then_some(DropReason::Loss)
        }
    }

    fn admit(
        &mut self,
        now: Instant,
        packet: Packet<T>,
        fate: Fate,
    ) -> Result<Admission, DropReason> {
        let number = self.stats.offered - 1;
        match &mut self.bottleneck {
            Bottleneck::Planned(planned) => {
                let finish = planned.admit(now, packet.size)?;
                let payload = packet.payload;
                let leaves = self.depart(number, packet.size, finish, Held { fate, payload });
                leaves.map(Admission::Leaves)
            }
            Bottleneck::Scheduled(_) => self.enqueue(now, number, packet, fate),
        }
    }

    /// Hands a packet to the discipline, after those that leave before it arrives.
    fn enqueue(
        &mut self,
        now: Instant,
        number: u64,
        packet: Packet<T>,
        fate: Fate,
    ) -> Result<Admission, DropReason> {
        self.serve(now);
        let payload = packet.payload;
        let packet = Waiting {
            number,
            arrived: now,
            size: packet.size,
            ecn: self.mark.map_or(Ecn::NotEct, |_| packet.ecn),
            flow: packet.flow,
            is_marked: false,
            payload: Held { fate, payload },
        };
        if let Bottleneck::Scheduled(scheduled) = &mut self.bottleneck {
            scheduled.push(packet, &mut self.stats)?;
        }
        self.serve(now);
        Ok(Admission::Queued)
    }

    /// Passes on all packets that leave the queue of the discipline by `now`.
    fn serve(&mut self, now: Instant) {
        while let Bottleneck::Scheduled(scheduled) = &mut self.bottleneck
            && let Some(sent) = scheduled.serve(now, &mut self.stats)
        {
            self.pass_on(sent);
        }
    }

    fn pass_on(&mut self, sent: Sent<Held<T>>) {
        let Waiting {
            number,
            size,
            ecn,
            is_marked,
            payload: mut held,
            ..
        } = sent.packet;
        self.sojourn.record(sent.class, sent.waited);
        if is_marked && let Some(mark) = self.mark {
            mark(&mut held.payload);
            self.stats.count_mark(ecn);
        }
        if let Err(reason) = self.depart(number, size, sent.finish, held) {
            self.stats.count_drop(reason);
        }
    }

    /// Lets a packet propagate whose serialisation ends at `finish`. Returns when it leaves, or why
    /// it does not.
    fn depart(
        &mut self,
        number: u64,
        size: ByteSize,
        finish: Instant,
        held: Held<T>,
    ) -> Result<Instant, DropReason> {
        let Held { fate, mut payload } = held;
        let elapsed = self.elapsed(finish).unwrap_or_default();
        if let (Some(loss), Some(drawn)) = (&mut self.loss, fate.lost_behind)
            && loss.loses(elapsed, drawn)
        {
            return Err(DropReason::Loss);
        }
        let leaves = self.propagate(finish, &fate.extra) + fate.held_back.unwrap_or_default();
        if fate.is_corrupted
            && let Some(corrupt) = self.corrupt
        {
            corrupt(&mut payload);
            self.stats.corrupted += 1;
        }
        self.stats.duplicated += fate.copies;
        for payload in std::iter::repeat_n(payload, 1 + fate.copies as usize) {
            self.departures.push(Reverse(Departure {
                leaves,
                number,
                size,
                payload,
            }));
        }
        Ok(leaves)
    }

    fn propagate(&mut self, sent: Instant, drawn: &[f64]) -> Instant {
        let elapsed = self.elapsed(sent);
        let base = sent + self.config.delay.at(elapsed.unwrap_or_default());
        let mut leaves = self
            .extra
            .iter_mut()
            .zip(drawn)
            .fold(base, |leaves, (extra, drawn)| {
                leaves + extra.delay(elapsed, *drawn)
            });
        if self.config.order == Order::Keep {
            leaves = leaves.max(self.latest_departure);
            self.latest_departure = leaves;
        }
        leaves
    }

    /// Returns the time since the start of the schedules, or `None` before.
    fn elapsed(&self, at: Instant) -> Option<Duration> {
        (at >= self.starts_at).then(|| at.saturating_since(self.starts_at))
    }
}

impl<T> Bottleneck<T> {
    fn new(config: &LinkConfig, seed: u64, starts_at: Instant) -> Self {
        match Scheduled::new(config, seed, starts_at) {
            Some(scheduled) => Bottleneck::Scheduled(Box::new(scheduled)),
            None => Bottleneck::Planned(Planned::new(config, starts_at)),
        }
    }
}

/// The numbers drawn for a packet.
#[derive(Debug, Clone)]
struct Fate {
    /// Whether it is lost when it enters the link.
    is_lost: bool,
    /// The numbers that decide whether it is lost behind the bottleneck.
    lost_behind: Option<Drawn>,
    /// A number for each extra delay.
    extra: Vec<f64>,
    held_back: Option<Duration>,
    copies: u64,
    is_corrupted: bool,
}

/// A packet with the numbers drawn for it.
#[derive(Debug, Clone)]
struct Held<T> {
    fate: Fate,
    payload: T,
}
