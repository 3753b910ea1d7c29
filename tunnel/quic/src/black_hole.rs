//! Notices that a path carries packets only up to some size: a hop on it has become narrower, and its
//! answers (ICMP) do not arrive.
//!
//! Losses by chance, and pauses of a radio link, hit packets of all sizes. A hop that is too narrow
//! loses every packet above its limit while smaller ones, sent between them, arrive. The limit can be
//! any size, and the packets in use can have any size, so each size is judged by itself: all packets
//! of at least this size are lost, since the last one arrived. The outcomes are looked at in the order
//! of sending, so that a pause is one gap, however long it is.

use std::collections::BTreeMap;

/// The sizes to which the UDP payloads of a path are reduced, in bytes: one after the other, until they
/// arrive. They belong to hops, over IPv4, of 1480, 1400, 1352 (the last one for IPv6 inside) and
/// 1280 bytes, and to the smallest one that QUIC allows. A larger size is used if it has arrived
/// while the packets above it were lost.
const SIZES: [usize; 5] = [1452, 1372, 1324, 1252, 1200];

/// Evidence for a narrow hop: packets that were lost in a row, and the gaps that they were in, each
/// between smaller packets that arrived.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    lost: u32,
    gaps: u32,
}

/// The evidence that is needed for a size that the path may have carried: at a loss of 20 % by chance,
/// so many are lost once in a quarter of a billion packets.
const FIRST: Evidence = Evidence { lost: 12, gaps: 4 };

/// The evidence for a size that has not arrived since the path was narrowed. By then senders inside
/// are silent for seconds, and try with single packets.
const FURTHER: Evidence = Evidence { lost: 2, gaps: 1 };

/// The packets that were lost since one arrived.
#[derive(Debug, Clone, Copy)]
struct Gap {
    lost: u32,
    /// The size of the smallest one.
    smallest: usize,
}

/// The outcomes of a connection's packets, by their sizes: a packet can carry several datagrams, which
/// arrive together or not at all.
#[derive(Debug)]
pub(crate) struct BlackHole {
    /// The size of packets that the path is used with, in bytes.
    size: usize,
    /// Whether it was narrowed to this size.
    is_narrowed: bool,
    /// The largest packet that has arrived since then.
    largest_arrived: usize,
    /// The gaps since a packet of this size or a larger one last arrived, by the size of the smallest
    /// packet that was lost in them.
    gaps: BTreeMap<usize, Evidence>,
    /// The largest packet that has arrived since the first of these gaps.
    arrived_between: usize,
    gap: Option<Gap>,
}

impl Default for BlackHole {
    fn default() -> Self {
        BlackHole {
            size: usize::MAX,
            is_narrowed: false,
            largest_arrived: 0,
            gaps: BTreeMap::new(),
            arrived_between: 0,
            gap: None,
        }
    }
}

impl BlackHole {
    /// Takes note of the size of packets with which the path is used.
    pub(crate) fn set_size(&mut self, size: usize) {
        if size != self.size {
            *self = BlackHole {
                size,
                is_narrowed: size < self.size,
                ..BlackHole::default()
            };
        }
    }

    /// Handles the outcome of a packet, in the order of sending.
    pub(crate) fn handle_outcome(&mut self, bytes: u64, has_arrived: bool) {
        let Some(bytes) = self.present_size(bytes) else {
            return;
        };
        if has_arrived {
            self.end_gap(bytes);
            return self.handle_arrival(bytes);
        }
        let gap = self.gap.get_or_insert(Gap {
            lost: 0,
            smallest: bytes,
        });
        gap.lost += 1;
        gap.smallest = gap.smallest.min(bytes);
    }

    /// Forgets the evidence, because packets that had counted as lost have arrived.
    pub(crate) fn restart(&mut self) {
        self.gaps.clear();
        self.gap = None;
    }

    /// Returns the size of a packet; none for one that was sent before the path was narrowed, which
    /// says nothing about packets of the present size.
    fn present_size(&self, bytes: u64) -> Option<usize> {
        let bytes = usize::try_from(bytes).ok()?;
        (bytes <= self.size).then_some(bytes)
    }

    /// Ends the gap before a packet of `bytes` that has arrived. If a packet in it was not larger, it
    /// was a pause or a loss by chance.
    fn end_gap(&mut self, bytes: usize) {
        let Some(gap) = self.gap.take().filter(|gap| gap.smallest > bytes) else {
            return;
        };
        if self.gaps.is_empty() {
            self.arrived_between = 0;
        }
        let evidence = self.gaps.entry(gap.smallest).or_default();
        evidence.lost += gap.lost;
        evidence.gaps += 1;
    }

    fn handle_arrival(&mut self, bytes: usize) {
        self.gaps = self.gaps.split_off(&(bytes + 1));
        self.largest_arrived = self.largest_arrived.max(bytes);
        self.arrived_between = self.arrived_between.max(bytes);
    }

    /// Returns the size of packets to be used instead, if larger packets do not arrive.
    pub(crate) fn narrowed(&self) -> Option<usize> {
        let limit = self.limit()?;
        let step = SIZES.into_iter().find(|size| *size < limit)?;
        let proven = Some(self.arrived_between).filter(|proven| *proven < limit);
        Some(step.max(proven.unwrap_or(0)))
    }

    /// Returns the largest size from which on there is enough evidence that no packet arrives.
    fn limit(&self) -> Option<usize> {
        let mut total = Evidence::default();
        let mut sizes = self.gaps.iter().rev();
        let limit = sizes.find(|(size, evidence)| {
            total.lost += evidence.lost;
            total.gaps += evidence.gaps;
            let is_unproven = self.is_narrowed && **size > self.largest_arrived;
            let needed = if is_unproven { FURTHER } else { FIRST };
            total.lost >= needed.lost && total.gaps >= needed.gaps
        });
        limit.map(|(size, _)| *size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const FULL: usize = 1472;
    const LARGE: u64 = FULL as u64;
    const SMALL: u64 = 100;

    fn path() -> BlackHole {
        BlackHole {
            size: FULL,
            ..BlackHole::default()
        }
    }

    #[test]
    fn a_narrow_hop_is_noticed_among_small_packets() {
        let mut path = path();
        for _ in 0..FIRST.gaps {
            assert_eq!(path.narrowed(), None);
            (0..FIRST.lost / FIRST.gaps).for_each(|_| path.handle_outcome(LARGE, false));
            path.handle_outcome(SMALL, true);
        }
        for size in SIZES {
            assert_eq!(path.narrowed(), Some(size));
            path.set_size(size);
            assert_eq!(path.narrowed(), None, "it begins again with the new size");
            (0..FURTHER.lost).for_each(|_| path.handle_outcome(size as u64, false));
            path.handle_outcome(SMALL, true);
        }
        assert_eq!(path.narrowed(), None, "there is no smaller size");
    }

    /// Sends packets of sizes that `next` returns over a hop of `limit` until the path is used with
    /// packets that arrive. Returns their size, and the number of packets.
    fn settle(limit: usize, mut next: impl FnMut() -> usize) -> (usize, usize) {
        let mut path = path();
        for sent in 0..10_000 {
            // A sender inside that is told the size sends fragments of at most this size.
            let bytes = next().min(path.size);
            path.handle_outcome(bytes as u64, bytes <= limit);
            if let Some(size) = path.narrowed() {
                assert!(size < path.size);
                path.set_size(size);
            }
            if path.size <= limit {
                return (path.size, sent);
            }
        }
        panic!("packets above {limit} bytes are lost for good");
    }

    #[test]
    fn any_limit_is_found_with_packets_of_any_size() {
        for limit in (SIZES[4]..FULL).step_by(7) {
            for media in (limit + 1..=FULL).step_by(23) {
                let mut sent = 0;
                let mixed = || {
                    sent += 1;
                    if sent % 5 == 0 { 100 } else { media }
                };
                let (size, needed) = settle(limit, mixed);
                assert!(size >= SIZES[4] && needed < 100, "{limit} {media}");
            }
        }
    }

    #[test]
    fn packets_of_many_sizes_cost_little_of_the_limit() {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        for limit in (SIZES[4]..FULL - 20).step_by(7) {
            let (size, _) = settle(limit, || random.random_range(400..=FULL));
            let step = SIZES.into_iter().find(|size| *size <= limit).unwrap();
            assert!(size >= step, "{size} of {limit}");
        }
    }

    #[test]
    fn a_size_that_has_arrived_is_not_given_up() {
        let mut path = path();
        for _ in 0..FIRST.lost {
            path.handle_outcome(1330, true);
            path.handle_outcome(1331, false);
        }
        path.handle_outcome(SMALL, true);
        assert_eq!(path.narrowed(), Some(1330));
    }

    #[test]
    fn packets_of_an_earlier_size_do_not_count() {
        let mut path = path();
        path.set_size(SIZES[0]);
        for _ in 0..10 * FIRST.lost {
            path.handle_outcome(LARGE, false);
            path.handle_outcome(SMALL, true);
        }
        assert_eq!(path.narrowed(), None);
    }

    #[test]
    fn a_size_that_has_arrived_needs_the_full_evidence_again() {
        for bytes in [SIZES[0] as u64, 1210] {
            let mut path = path();
            path.set_size(SIZES[0]);
            path.handle_outcome(bytes, true);
            for _ in 0..FIRST.lost {
                assert_eq!(path.narrowed(), None);
                path.handle_outcome(bytes, false);
                path.handle_outcome(SMALL, true);
            }
            assert!(path.narrowed().is_some());
        }
    }

    #[test]
    fn a_pause_is_no_narrow_hop() {
        let mut path = path();
        for _ in 0..FIRST.gaps {
            path.handle_outcome(SMALL, true);
            (0..100).for_each(|_| path.handle_outcome(LARGE, false));
            // A small packet of the same pause.
            path.handle_outcome(SMALL, false);
        }
        path.handle_outcome(SMALL, true);
        assert_eq!(path.narrowed(), None);
        // A pause without one is a single gap.
        (0..100).for_each(|_| path.handle_outcome(LARGE, false));
        path.handle_outcome(SMALL, true);
        assert_eq!(path.narrowed(), None);
    }

    #[test]
    fn one_large_packet_that_arrives_is_enough() {
        for late in [false, true] {
            let mut path = path();
            for number in 0..10 * FIRST.lost {
                path.handle_outcome(LARGE, false);
                path.handle_outcome(SMALL, true);
                match late {
                    _ if number % 10 != 9 => {}
                    true => path.restart(),
                    false => path.handle_outcome(LARGE, true),
                }
                assert_eq!(path.narrowed(), None);
            }
        }
    }

    #[test]
    fn losses_by_chance_are_no_narrow_hop() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut path = path();
        for _ in 0..1_000_000 {
            let bytes = if random.random_bool(0.5) {
                LARGE
            } else {
                SMALL
            };
            path.handle_outcome(bytes, !random.random_bool(0.2));
            assert_eq!(path.narrowed(), None);
        }
    }

    #[test]
    fn losses_by_chance_of_any_size_are_no_narrow_hop() {
        let mut random = ChaCha8Rng::seed_from_u64(3);
        for loss in [0.02, 0.1, 0.2] {
            let mut path = path();
            for _ in 0..1_000_000 {
                let bytes = random.random_range(40..=LARGE);
                path.handle_outcome(bytes, !random.random_bool(loss));
                assert_eq!(path.narrowed(), None, "{loss}");
            }
        }
    }

    #[test]
    fn bursts_of_losses_are_no_narrow_hop() {
        let mut random = ChaCha8Rng::seed_from_u64(4);
        let mut path = path();
        let mut is_bad = false;
        for _ in 0..1_000_000 {
            is_bad = random.random_bool(if is_bad { 0.9 } else { 0.01 });
            let bytes = if random.random_bool(0.2) { 100 } else { 1352 };
            path.handle_outcome(bytes, !(is_bad && random.random_bool(0.8)));
            assert_eq!(path.narrowed(), None);
        }
    }
}
