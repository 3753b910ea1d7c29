use crate::cache::Cache;
use crate::delivery::InFlight;
use hawser_congestion::{Acked, Feedback as Report, Permission, RateControl};
use hawser_fanout::Budget;
use hawser_objects::Clock;
use hawser_packets::feedback::{Block, ClockStamp, Feedback, Pose, Totals};
use hawser_packets::media::{Header, ObjectId, PacketId};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

/// The round trip that is assumed before one is known.
const ASSUMED_RTT: Duration = Duration::from_millis(100);

/// The time over which the bytes sent are compared with the target, and the share of the target below
/// which the rate does not grow.
const WINDOW: Duration = Duration::from_millis(200);
const LOW: f64 = 0.4;

/// The longest time between two updates of a subscriber whose reports are missing.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The time for which a budget is remembered after it was replaced: longer than packets wait for a look.
const BUDGET_MEMORY: Duration = Duration::from_millis(300);

/// The time after a mark for which a path is taken for one whose queue management bears no bursts.
const MARK_MEMORY: Duration = Duration::from_secs(30);

/// The time between two searches for objects to forget.
const TIDYING_INTERVAL: Duration = Duration::from_millis(500);

/// A subscriber of the relay: the packets that it was sent and has acknowledged, and its rate.
///
/// The sender of packets forwards the packets as they arrive. The rate of the subscriber follows from
/// the objects that it is served and from its reports.
pub struct Subscriber {
    control: Box<dyn RateControl + Send>,
    /// The headers below each datagram. Rates include them.
    overhead: ByteSize,
    clock: Clock,
    /// The objects of which all packets are sent when they arrive, each with the number of the packet
    /// that was the next one then.
    served: BTreeMap<ObjectId, u64>,
    /// The budgets that may have decided on packets that were not looked at, each with the time from which on.
    budgets: VecDeque<(Instant, Budget)>,
    /// The number below which packets of the cache have been processed, and the time of that.
    looked_at: u64,
    looked: Instant,
    next_tidying: Instant,
    in_flight: InFlight,
    /// Packets that were sent from the cache. An acknowledgement does not tell which of two copies arrived.
    cached: BTreeSet<PacketId>,
    utilisation: Utilisation,
    newest: Option<Newest>,
    /// The time of the newest report of a packet that was marked CE.
    marked: Option<Instant>,
    pose: Option<Pose>,
    stats: SubscriberStats,
}

/// The newest report.
#[derive(Debug, Clone, Copy)]
struct Newest {
    number: u64,
    totals: Totals,
}

/// Counts of a [`Subscriber`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SubscriberStats {
    /// Packets that were sent when they arrived.
    pub packets: u64,
    /// Bytes of them with all headers.
    pub bytes: u64,
    /// Packets that were acknowledged.
    pub acknowledged: u64,
    /// Packets that were lost.
    pub lost: u64,
    /// Packets that were sent again.
    pub repeated: u64,
    /// Packets from before it joined that were sent from the cache.
    pub earlier: u64,
    /// Acknowledgements of packets that were not sent.
    pub acknowledged_unsent: u64,
    /// Time stamps that are impossible.
    pub impossible_times: u64,
    /// Packets that were forgotten before a report told of them.
    pub unknown: u64,
}

/// The share of the target that is used.
#[derive(Debug, Default)]
struct Utilisation {
    since: Option<Instant>,
    bytes: u64,
    is_low: bool,
}

impl Subscriber {
    /// Creates a subscriber to which nothing was sent. `next` is the number of the cache's next packet.
    pub fn new(control: Box<dyn RateControl + Send>, overhead: ByteSize, next: u64) -> Self {
        Subscriber {
            control,
            overhead,
            clock: Clock::default(),
            served: BTreeMap::new(),
            budgets: VecDeque::new(),
            looked_at: next,
            looked: Instant::ZERO,
            next_tidying: Instant::ZERO,
            in_flight: InFlight::default(),
            cached: BTreeSet::new(),
            utilisation: Utilisation::default(),
            newest: None,
            marked: None,
            pose: None,
            stats: SubscriberStats::default(),
        }
    }

    /// Records that the packets of an object are forwarded to this subscriber as they arrive.
    pub fn serve(&mut self, object: ObjectId, cache: &Cache) {
        self.served.insert(object, cache.next());
    }

    /// Records the budget by which packets are sent from now on.
    pub fn set_budget(&mut self, now: Instant, budget: Budget) {
        self.budgets.push_back((now, budget));
        self.forget_budgets(now);
    }

    fn forget_budgets(&mut self, now: Instant) {
        let is_over = |(since, _): &(Instant, Budget)| *since + BUDGET_MEMORY <= now;
        while self.budgets.get(1).is_some_and(is_over) {
            self.budgets.pop_front();
        }
    }

    /// Records the packets that have arrived at the relay and were therefore sent to the subscriber. To be
    /// called after [`Subscriber::serve`] for the objects that have begun.
    pub fn look(&mut self, now: Instant, cache: &Cache) {
        self.forget_budgets(now);
        self.looked_at = self.looked_at.max(cache.oldest());
        let mut object = None;
        for number in self.looked_at..cache.next() {
            let Some(packet) = cache.get(number) else {
                continue;
            };
            let id = packet.header.id;
            let (same, is_served) =
                object.unwrap_or((id.object, self.served.contains_key(&id.object)));
            let is_served = match same == id.object {
                true => is_served,
                false => self.served.contains_key(&id.object),
            };
            object = Some((id.object, is_served));
            if is_served && self.is_in_share(&packet.header) {
                let size = ByteSize(packet.datagram.len() as u64) + self.overhead;
                self.in_flight.add(number, id, packet.arrived);
                self.control.handle_sent(packet.arrived, number, size);
                self.utilisation.bytes += size.0;
                self.stats.packets += 1;
                self.stats.bytes += size.0;
            }
        }
        self.looked_at = cache.next();
        self.looked = now;
        self.utilisation.update(now, self.control.target());
        self.stats.unknown += self.in_flight.forget(cache.oldest()) as u64;
        if now >= self.next_tidying {
            self.next_tidying = now + TIDYING_INTERVAL;
            self.forget(cache);
        }
    }

    /// Processes an authenticated report. Returns the packets to the subscriber that were lost.
    pub fn handle_feedback(
        &mut self,
        now: Instant,
        number: u64,
        report: &Feedback,
        cache: &Cache,
    ) -> Vec<PacketId> {
        self.look(now, cache);
        if self.clock.handle_stamp(now, &report.clock).is_err() {
            self.stats.impossible_times += 1;
        }
        if self.newest.is_none_or(|newest| number > newest.number) {
            let totals = report.totals;
            self.newest = Some(Newest { number, totals });
            self.pose = report.pose.or(self.pose);
        }
        let mut acked = Vec::new();
        let mut is_answer = false;
        for block in &report.blocks {
            is_answer |= self.acknowledge(block, cache, &mut acked);
        }
        if acked.iter().any(|packet| packet.ecn == Ecn::Ce) {
            self.marked = Some(now);
        }
        let lost = self.in_flight.lost(now, self.loss_delay());
        self.stats.lost += lost.len() as u64;
        let numbers: Vec<u64> = lost.iter().map(|sent| sent.number).collect();
        self.control.handle_feedback(&Report {
            now,
            reported: report.clock.sent,
            acked: &acked,
            lost: &numbers,
            abandoned: &[],
            is_answer,
            app_limited: self.utilisation.is_low,
        });
        lost.into_iter().map(|sent| sent.id).collect()
    }

    /// Records that a packet of the cache was sent, and whether it was sent before.
    pub fn handle_cached(&mut self, id: PacketId, is_repeated: bool) {
        self.cached.insert(id);
        match is_repeated {
            true => self.stats.repeated += 1,
            false => self.stats.earlier += 1,
        }
    }

    /// Reacts to missing reports. To be called every few tens of milliseconds.
    pub fn handle_timeout(&mut self, now: Instant, cache: &Cache) {
        if now >= self.looked + LOOK_INTERVAL {
            self.look(now, cache);
        }
        if self.control.poll_timeout().is_some_and(|due| due <= now) {
            self.control.handle_timeout(now);
        }
    }

    /// Returns the rate at which the subscriber can be served, with all headers; `None` while its
    /// reports have been missing for so long that nothing may be sent, but for tests of the path.
    pub fn rate(&self) -> Option<Bitrate> {
        match self.control.permission() {
            Permission::Send => Some(self.control.target()),
            // The packets that are forwarded then test the path, and stop until the next test.
            Permission::Probe { at } if at <= self.looked => Some(self.control.target()),
            Permission::Probe { .. } => None,
        }
    }

    /// Returns whether the path bears frames of more than its rate, as long as their queue drains: none was marked
    /// lately.
    pub fn bears_bursts(&self, now: Instant) -> bool {
        self.marked.is_none_or(|at| at + MARK_MEMORY <= now)
    }

    /// Returns the rate at which packets of the cache are sent.
    pub fn pacing_rate(&self) -> Bitrate {
        self.control.pacing_rate()
    }

    /// Returns the ECN field of packets of the cache.
    pub fn ecn(&self) -> Ecn {
        self.control.ecn()
    }

    /// Returns the headers below each datagram.
    pub const fn overhead(&self) -> ByteSize {
        self.overhead
    }

    /// Returns the smoothed round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        self.control.smoothed_rtt()
    }

    /// Returns a time stamp for a message to the subscriber.
    pub fn stamp(&mut self, now: Instant) -> ClockStamp {
        self.clock.stamp(now)
    }

    /// Returns the pose of the newest report that had one.
    pub const fn pose(&self) -> Option<Pose> {
        self.pose
    }

    /// Returns the totals of the newest report.
    pub fn totals(&self) -> Totals {
        self.newest.map(|newest| newest.totals).unwrap_or_default()
    }

    /// Returns the counts.
    pub const fn stats(&self) -> &SubscriberStats {
        &self.stats
    }

    /// Returns whether a packet of an object that is served was sent. Where the budget has just changed, one that may
    /// not have been sent does not count: it would seem lost.
    fn is_in_share(&self, header: &Header) -> bool {
        let mut budgets = self.budgets.iter();
        budgets.all(|(_, budget)| budget.has_packet(header))
    }

    /// Processes the part of a report on one object. Returns whether it acknowledges packets that were sent.
    fn acknowledge(&mut self, block: &Block, cache: &Cache, acked: &mut Vec<Acked>) -> bool {
        let object = block.object;
        let Some(kept) = cache.object(&object) else {
            return false;
        };
        let is_served = self.served.contains_key(&object);
        let mut is_answer = false;
        for (index, arrival) in (block.base..=u16::MAX).zip(&block.packets) {
            let (Some(arrival), Some(number)) = (arrival, kept.get(&index)) else {
                continue;
            };
            let is_cached = self.cached.contains(&PacketId { object, index });
            if self.in_flight.acknowledge(*number) {
                self.stats.acknowledged += 1;
                let held = arrival.age.duration().filter(|_| !is_cached);
                acked.extend(held.map(|held| Acked {
                    number: *number,
                    held,
                    ecn: arrival.ecn,
                }));
                is_answer = true;
            } else {
                let is_known = is_served || is_cached;
                self.stats.acknowledged_unsent += u64::from(!is_known);
                is_answer |= is_known;
            }
        }
        is_answer
    }

    /// Returns the time after which an overtaken packet is lost (RFC 9002, section 6.1.2).
    fn loss_delay(&self) -> Duration {
        self.control.smoothed_rtt().unwrap_or(ASSUMED_RTT) * 9 / 8
    }

    /// Forgets objects that the cache has forgotten.
    fn forget(&mut self, cache: &Cache) {
        let is_kept =
            |id: &ObjectId, began: u64| began >= cache.oldest() || cache.object(id).is_some();
        self.served.retain(|id, began| is_kept(id, *began));
        self.cached.retain(|id| cache.find(id).is_some());
    }
}

impl Utilisation {
    /// Compares what was sent since the window began with the target, when the window ends.
    fn update(&mut self, now: Instant, target: Bitrate) {
        let Some(since) = self.since else {
            self.since = Some(now);
            return;
        };
        let elapsed = now.saturating_since(since);
        if elapsed >= WINDOW {
            self.is_low = (self.bytes as f64) < LOW * target.bytes_in(elapsed).0 as f64;
            self.since = Some(now);
            self.bytes = 0;
        }
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("target", &self.control.target())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}
