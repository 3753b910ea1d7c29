use crate::config::{LinkConfig, Order};
use crate::delay::Extra;
use crate::loss::LossModel;
use crate::queue::Queue;
use crate::random::{Draws, Stream};
use crate::rate::Serialiser;
use crate::stats::{DropReason, LinkStats};
use hawser_units::{ByteSize, Instant};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// One direction of an emulated link with the packets in it.
#[derive(Debug, Clone)]
pub struct Link<T> {
    config: LinkConfig,
    starts_at: Instant,
    loss: Option<LossModel>,
    queue: Queue,
    serialiser: Serialiser,
    extra: Vec<Extra>,
    duplicating: Draws,
    reordering: Draws,
    corrupting: Draws,
    corrupt: Option<fn(&mut T)>,
    latest_arrival: Instant,
    latest_departure: Instant,
    departures: BinaryHeap<Reverse<Departure<T>>>,
    highest_departed: u64,
    stats: LinkStats,
}

/// The fate of a packet that was pushed into a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The packet leaves at this time; [`Instant::MAX`] if the link's rate stays zero.
    Leaves(Instant),
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
            queue: Queue::new(config.queue),
            serialiser: Serialiser::new(config.rate.clone(), starts_at),
            extra: extras
                .map(|(number, extra)| Extra::new(extra, seed, number))
                .collect(),
            duplicating: Draws::new(seed, Stream::Duplicate, 0),
            reordering: Draws::new(seed, Stream::Reorder, 0),
            corrupting: Draws::new(seed, Stream::Corrupt, 0),
            corrupt: None,
            latest_arrival: Instant::ZERO,
            latest_departure: Instant::ZERO,
            departures: BinaryHeap::new(),
            highest_departed: 0,
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

    /// Restarts schedules and traces at `starts_at`. Packets in the link keep the departure times
    /// decided when they arrived.
    pub fn restart(&mut self, starts_at: Instant) {
        self.starts_at = starts_at;
        self.serialiser.restart(starts_at);
        if self.latest_departure == Instant::MAX {
            self.latest_departure = Instant::ZERO;
        }
    }

    /// Offers the link a packet of `size` that arrives `now`. If `now` is before the previous
    /// packet's arrival, that time is used instead.
    pub fn push(&mut self, now: Instant, size: ByteSize, mut payload: T) -> Admission {
        let now = now.max(self.latest_arrival);
        self.latest_arrival = now;
        let number = self.stats.offered;
        self.stats.offered += 1;
        self.stats.offered_bytes += size;

        let decision = match self.decide(now, size) {
            Ok(decision) => decision,
            Err(reason) => {
                self.stats.count_drop(reason);
                return Admission::Dropped(reason);
            }
        };
        if decision.is_corrupted
            && let Some(corrupt) = self.corrupt
        {
            corrupt(&mut payload);
            self.stats.corrupted += 1;
        }
        self.stats.duplicated += decision.copies;
        for payload in std::iter::repeat_n(payload, 1 + decision.copies as usize) {
            self.departures.push(Reverse(Departure {
                leaves: decision.leaves,
                number,
                size,
                payload,
            }));
        }
        Admission::Leaves(decision.leaves)
    }

    /// Returns when the next packet leaves.
    pub fn next_departure(&self) -> Option<Instant> {
        self.departures
            .peek()
            .map(|next| next.0.leaves)
            .filter(|leaves| *leaves < Instant::MAX)
    }

    /// Removes and returns the next packet that has left by `now`, with its departure time.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, T)> {
        if self.next_departure()? > now {
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
        LinkStats {
            in_link: self.departures.len() as u64,
            queue_high_water_bytes: self.queue.high_water(),
            ..self.stats
        }
    }

    /// Decides the fate of a packet. Every impairment draws before the first one decides, so that
    /// none depends on the outcome of another.
    fn decide(&mut self, now: Instant, size: ByteSize) -> Result<Decision, DropReason> {
        let elapsed = self.elapsed(now);
        let lost = self
            .loss
            .as_mut()
            .is_some_and(|loss| loss.loses(elapsed.unwrap_or_default()));
        self.extra.iter_mut().for_each(Extra::draw);
        let held_back = self
            .config
            .reorder
            .filter(|reorder| self.reordering.hit(reorder.share));
        let copies = u64::from(self.duplicating.hit(self.config.duplicate));
        let is_corrupted = self.corrupting.hit(self.config.corrupt);

        if elapsed.is_some_and(|elapsed| self.config.cuts.iter().any(|cut| cut.contains(elapsed))) {
            return Err(DropReason::Cut);
        }
        if lost {
            return Err(DropReason::Loss);
        }
        let progress = self.serialiser.plan(now, size);
        if !self.queue.admit(now, progress.finish(), size) {
            return Err(DropReason::Queue);
        }
        self.serialiser.commit(progress);

        let mut leaves = self.propagate(progress.finish());
        if let Some(reorder) = held_back {
            leaves += reorder.delay;
        }
        Ok(Decision {
            leaves,
            copies,
            is_corrupted,
        })
    }

    fn propagate(&mut self, sent: Instant) -> Instant {
        let elapsed = self.elapsed(sent);
        let base = sent + self.config.delay.at(elapsed.unwrap_or_default());
        let mut leaves = self
            .extra
            .iter_mut()
            .fold(base, |leaves, extra| leaves + extra.delay(elapsed));
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

struct Decision {
    leaves: Instant,
    copies: u64,
    is_corrupted: bool,
}

#[derive(Debug, Clone)]
struct Departure<T> {
    leaves: Instant,
    number: u64,
    size: ByteSize,
    payload: T,
}

impl<T> Departure<T> {
    fn key(&self) -> (Instant, u64) {
        (self.leaves, self.number)
    }
}

impl<T> PartialEq for Departure<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Departure<T> {}

impl<T> PartialOrd for Departure<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Departure<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
