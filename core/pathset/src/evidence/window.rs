use hawser_units::{Instant, MAX_PATHS, PathId, PathSet};
use std::collections::VecDeque;
use std::time::Duration;

/// How many slots are remembered; the oldest is forgotten as a whole.
const SLOTS: usize = 8;

/// How long a slot collects at least.
const SLOT: Duration = Duration::from_millis(500);

/// A path keeps the order when at most one copy in so many comes out of order.
const IN_ORDER: u32 = 100;

/// How many packets there are for each set of paths.
type Counts = [u64; 256];

/// The packets of the last seconds, by what they were sent over and whose copies were of use.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    slots: VecDeque<Slot>,
}

#[derive(Debug, Clone)]
struct Slot {
    began: Instant,
    packets: u64,
    /// What packets were sent over, and how many by the set of paths whose copies were of use.
    sent: Vec<(PathSet, Box<[u32; 256]>)>,
    /// By path index: copies that followed another, and those of them that came out of order.
    order: [(u32, u32); MAX_PATHS],
}

impl Window {
    /// Counts a packet that was sent over `sent`; a slot holds at least `slot_packets` of them.
    pub(super) fn count(&mut self, at: Instant, sent: PathSet, useful: PathSet, slot_packets: u64) {
        let is_full =
            |slot: &Slot| at.saturating_since(slot.began) >= SLOT && slot.packets >= slot_packets;
        if self.slots.back().is_none_or(is_full) {
            if self.slots.len() == SLOTS {
                self.slots.pop_front();
            }
            self.slots.push_back(Slot {
                began: at,
                packets: 0,
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

    /// Counts a copy that followed another on its path, in order or not.
    pub(super) fn count_order(&mut self, path: PathId, out_of_order: bool) {
        let Some(slot) = self.slots.back_mut() else {
            return;
        };
        let (copies, swapped) = &mut slot.order[path.index()];
        *copies += 1;
        *swapped += u32::from(out_of_order);
    }

    /// Whether copies keep their order on a path.
    pub(super) fn keeps_order(&self, path: PathId) -> bool {
        let orders = self.slots.iter().map(|slot| slot.order[path.index()]);
        let (copies, swapped) = orders.fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
        copies >= IN_ORDER && swapped <= copies / IN_ORDER
    }

    pub(super) fn forget(&mut self) {
        self.slots.clear();
    }

    /// How far back it reaches.
    pub(super) fn span(&self, now: Instant) -> Duration {
        self.slots
            .front()
            .map_or(Duration::ZERO, |slot| now.saturating_since(slot.began))
    }

    /// Packets per second, once there is half a second of them.
    pub(super) fn rate(&self, now: Instant) -> Option<f64> {
        let span = self.span(now);
        let packets: u64 = self.slots.iter().map(|slot| slot.packets).sum();
        (span >= SLOT).then(|| packets as f64 / span.as_secs_f64())
    }

    /// Of all packets that are remembered.
    pub(super) fn damages(&self) -> Damages {
        self.damages_since(Instant::ZERO)
    }

    /// Of the packets from `since` on, and of some before.
    pub(super) fn damages_since(&self, since: Instant) -> Damages {
        let ended_before = |next: Option<&Slot>| next.is_some_and(|next| next.began <= since);
        let first = (0..self.slots.len())
            .find(|slot| !ended_before(self.slots.get(slot + 1)))
            .unwrap_or(0);
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
}

/// Turns counts of sets into counts of sets and all their subsets.
fn sum_over_subsets(counts: &mut Counts) {
    for bit in (0..8).map(|index| 1 << index) {
        for set in (0..256).filter(|set| set & bit != 0) {
            counts[set] += counts[set ^ bit];
        }
    }
}

/// What the flow would have suffered over fewer paths.
#[derive(Debug, Clone)]
pub(super) struct Damages {
    /// What packets were sent over, and how many had copies of use on no path outside the set that is the index.
    sent: Vec<(PathSet, Counts)>,
}

/// How many packets were damaged, out of how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Damage {
    pub(super) damaged: u64,
    pub(super) packets: u64,
}

impl Damages {
    /// The packets to which only paths outside `paths` were of use, of those that were sent over `paths` and others.
    pub(super) fn without_others(&self, paths: PathSet) -> Damage {
        self.sum(
            |sent, counts| {
                let of_no_use = counts[0];
                let has_others = sent != paths;
                has_others.then(|| Damage {
                    damaged: counts[usize::from(!paths.bits())] - of_no_use,
                    packets: counts[0xff] - of_no_use,
                })
            },
            paths,
        )
    }

    /// The packets to which no path of `paths` was of use, of those that were sent over them.
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
