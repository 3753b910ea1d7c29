use hawser_units::{Instant, MAX_PATHS, PathId, PathSet};
use std::collections::VecDeque;
use std::time::Duration;

/// The number of slots in a window; the oldest is discarded as a whole.
const SLOTS: usize = 8;

/// Minimum duration of a slot.
const SLOT: Duration = Duration::from_millis(500);

/// The longest slot of a [long](Window::long) window.
const LONGEST_SLOT: Duration = Duration::from_secs(2);

/// A path keeps order if at most one copy in this many arrives out of order.
const IN_ORDER: u32 = 100;

/// The number of packets for each set of paths.
type Counts = [u64; 256];

/// The packets of the last seconds, by the paths that they were sent over and the paths whose
/// copies were useful.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
    /// Whether the next packet starts a slot.
    is_cut: bool,
    /// Slots beyond [`SLOTS`].
    more_slots: usize,
    /// The time after which a slot ends however few packets it holds.
    slot_ends: Option<Duration>,
}

#[derive(Debug, Clone)]
struct Slot {
    start: Instant,
    packets: u64,
    /// Packets of which every copy was late.
    late: u64,
    /// For each path set that packets were sent over: packet counts by the set of paths whose
    /// copies were useful.
    sent: Vec<(PathSet, Box<[u32; 256]>)>,
    /// By path index: copies that followed another one, and how many of them arrived out of order.
    order: [(u32, u32); MAX_PATHS],
}

impl Window {
    /// Counts a packet that was sent over `sent`; a slot holds at least `slot_packets` of them.
    pub(super) fn count(&mut self, at: Instant, sent: PathSet, useful: PathSet, slot_packets: u64) {
        let is_full = |slot: &Slot| {
            let age = at.saturating_since(slot.start);
            age >= SLOT && slot.packets >= slot_packets
                || self.slot_ends.is_some_and(|ends| age >= ends)
        };
        let is_cut = std::mem::take(&mut self.is_cut);
        if is_cut || self.slots.back().is_none_or(is_full) {
            if self.slots.len() == SLOTS + self.more_slots {
                self.slots.pop_front();
            }
            self.slots.push_back(Slot {
                start: at,
                packets: 0,
                late: 0,
                sent: Vec::new(),
                order: Default::default(),
            });
        }
        let Some(slot) = self.slots.back_mut() else {
            return;
        };
        slot.packets += 1;
        let index = slot
            .sent
            .iter()
            .position(|(paths, _)| *paths == sent)
            .unwrap_or_else(|| {
                slot.sent.push((sent, Box::new([0; 256])));
                slot.sent.len() - 1
            });
        slot.sent[index].1[usize::from(useful.bits())] += 1;
    }

    /// Returns a window of twice as many slots, none of which is long: of a flow of few packets, or one that tolerates
    /// little damage, it can say what happened in the last seconds.
    pub(super) fn long() -> Self {
        Window {
            more_slots: SLOTS,
            slot_ends: Some(LONGEST_SLOT),
            ..Window::default()
        }
    }

    /// Starts a slot with the next packet.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
    }

    /// Notes that every copy of the packet that was counted last was late.
    pub(super) fn count_late(&mut self) {
        if let Some(slot) = self.slots.back_mut() {
            slot.late += 1;
        }
    }

    /// Returns the number of packets of which every copy was late, from `since` on and some before.
    pub(super) fn late_since(&self, since: Instant) -> u64 {
        let slots = self.slots.iter().skip(self.first_since(since));
        slots.map(|slot| slot.late).sum()
    }

    /// Counts a copy that followed another one on its path, in order or not.
    pub(super) fn count_order(&mut self, path: PathId, out_of_order: bool) {
        let Some(slot) = self.slots.back_mut() else {
            return;
        };
        let (copies, reordered) = &mut slot.order[path.index()];
        *copies += 1;
        *reordered += u32::from(out_of_order);
    }

    /// Returns whether copies keep their order on a path.
    pub(super) fn keeps_order(&self, path: PathId) -> bool {
        let orders = self.slots.iter().map(|slot| slot.order[path.index()]);
        let (copies, reordered) = orders.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
        copies >= IN_ORDER && reordered <= copies / IN_ORDER
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
    }

    /// Returns the time span of the window.
    pub(super) fn span(&self, now: Instant) -> Duration {
        self.slots
            .front()
            .map_or(Duration::ZERO, |slot| now.saturating_since(slot.start))
    }

    /// Returns the packet rate per second once the window spans half a second.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        let span = self.span(now);
        let packets: u64 = self.slots.iter().map(|slot| slot.packets).sum();
        (span >= SLOT).then(|| packets as f64 / span.as_secs_f64())
    }

    /// Returns the damage of all packets in the window.
    pub(super) fn damages(&self) -> Damages {
        self.damages_since(Instant::ZERO)
    }

    /// Returns the damage of the packets from `since` on, and of some before: slots are not
    /// divided.
    pub(super) fn damages_since(&self, since: Instant) -> Damages {
        let first = self.first_since(since);
        let mut sent: Vec<(PathSet, Counts)> = Vec::new();
        for (paths, counts) in self.slots.iter().skip(first).flat_map(|slot| &slot.sent) {
            let index = sent
                .iter()
                .position(|(other, _)| other == paths)
                .unwrap_or_else(|| {
                    sent.push((*paths, [0; 256]));
                    sent.len() - 1
                });
            sent[index]
                .1
                .iter_mut()
                .zip(counts.iter())
                .for_each(|(sum, count)| *sum += u64::from(*count));
        }
        sent.iter_mut()
            .for_each(|(_, counts)| sum_over_subsets(counts));
        Damages { sent }
    }

    /// Returns the index of the slot that contains `since`.
    fn first_since(&self, since: Instant) -> usize {
        let ended_before = |next: Option<&Slot>| next.is_some_and(|next| next.start <= since);
        (0..self.slots.len())
            .find(|slot| !ended_before(self.slots.get(slot + 1)))
            .unwrap_or(0)
    }
}

/// Turns counts of sets into counts of sets and all their subsets.
fn sum_over_subsets(counts: &mut Counts) {
    for bit in (0..8).map(|index| 1 << index) {
        for set in (0..256).filter(|set| set & bit != 0) {
            counts[set] += counts[set ^ bit];
        }
    }
}

/// The damage that the flow would have taken over fewer paths.
#[derive(Debug, Clone)]
pub(super) struct Damages {
    /// For each path set that packets were sent over: by set, the packets without a useful copy
    /// outside that set.
    sent: Vec<(PathSet, Counts)>,
}

/// A number of damaged packets, and the number of packets that it refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Damage {
    pub(super) damaged: u64,
    pub(super) packets: u64,
}

impl Damages {
    /// Returns the packets whose useful copies all came over paths outside `paths`, of the packets
    /// sent over `paths` and others.
    pub(super) fn without_others(&self, paths: PathSet) -> Damage {
        self.sum(
            |sent, counts| {
                let useless = counts[0];
                let has_others = sent != paths;
                has_others.then(|| Damage {
                    damaged: counts[usize::from(!paths.bits())] - useless,
                    packets: counts[0xff] - useless,
                })
            },
            paths,
        )
    }

    /// Returns the packets without a useful copy over `paths`, of the packets sent over them.
    pub(super) fn whole(&self, paths: PathSet) -> Damage {
        self.sum(
            |_, counts| {
                Some(Damage {
                    damaged: counts[usize::from(!paths.bits())],
                    packets: counts[0xff],
                })
            },
            paths,
        )
    }

    fn sum(&self, damage: impl Fn(PathSet, &Counts) -> Option<Damage>, paths: PathSet) -> Damage {
        let sent_over = self
            .sent
            .iter()
            .filter(|(sent, _)| paths.difference(*sent).is_empty());
        sent_over
            .filter_map(|(sent, counts)| damage(*sent, counts))
            .fold(Damage::default(), |sum, more| Damage {
                damaged: sum.damaged + more.damaged,
                packets: sum.packets + more.packets,
            })
    }
}
