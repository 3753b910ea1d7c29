//! Notices that a path carries small packets only: a hop on it has become narrower, and its answers
//! (ICMP) do not arrive.
//!
//! Losses by chance, and pauses of a radio link, hit packets of all sizes. A hop that is too narrow
//! loses every large packet while small ones, sent between them, arrive. The outcomes are looked at
//! in the order of sending, so that a pause is one gap, however long it is.

/// The sizes to which the datagrams of a path are reduced, in bytes: one after the other, until they
/// arrive. They belong to hops, over IPv4, of 1480, 1400, 1352 (the last one for IPv6 inside) and
/// 1280 bytes, and to the smallest one that QUIC allows.
const SIZES: [usize; 5] = [1416, 1336, 1288, 1216, 1160];

/// How much evidence there has to be for a narrow hop.
#[derive(Debug, Clone, Copy)]
struct Evidence {
    /// The large packets that have to be lost in a row.
    lost: u32,
    /// The gaps that they have to be in, each between small packets that arrived.
    gaps: u32,
}

/// The evidence on a path that has carried large packets: at a loss of 20 % by chance, so many are
/// lost once in a quarter of a billion packets.
const FIRST: Evidence = Evidence { lost: 12, gaps: 4 };

/// The evidence for each further step until a packet of the new size has arrived. By then senders
/// inside are silent for seconds, and try with single packets.
const FURTHER: Evidence = Evidence { lost: 2, gaps: 1 };

/// The outcomes of a path's large packets since one of them last arrived.
#[derive(Debug, Default)]
pub(crate) struct BlackHole {
    /// The size of datagrams that the path is used with, in bytes.
    size: usize,
    /// Whether it was narrowed and has not carried a packet of the new size yet.
    is_narrowing: bool,
    /// The large packets that were lost in gaps, and the number of these gaps.
    lost: u32,
    gaps: u32,
    /// The large packets that were lost since a small one arrived.
    in_gap: u32,
    /// Whether a small packet was lost since one arrived.
    is_pause: bool,
}

impl BlackHole {
    /// Takes note of the size of datagrams with which the path is used.
    pub(crate) fn set_size(&mut self, size: usize) {
        if size != self.size {
            *self = BlackHole {
                size,
                is_narrowing: size < self.size,
                ..BlackHole::default()
            };
        }
    }

    /// Handles the outcome of a packet, in the order of sending.
    pub(crate) fn handle_outcome(&mut self, bytes: u64, has_arrived: bool) {
        let Some(next) = self.next() else {
            return;
        };
        if self.is_older(bytes) {
            return;
        }
        match (bytes > next as u64, has_arrived) {
            (true, true) => self.handle_large_arrival(),
            (true, false) => self.in_gap += 1,
            (false, false) => self.is_pause = true,
            (false, true) => {
                if self.in_gap > 0 && !self.is_pause {
                    self.lost += self.in_gap;
                    self.gaps += 1;
                }
                (self.in_gap, self.is_pause) = (0, false);
            }
        }
    }

    /// Handles the arrival of a packet of `bytes` that had counted as lost.
    pub(crate) fn handle_late_arrival(&mut self, bytes: u64) {
        if !self.is_older(bytes) && self.next().is_some_and(|next| bytes > next as u64) {
            self.handle_large_arrival();
        }
    }

    /// Returns whether a packet was sent before the path was narrowed: it says nothing about packets
    /// of the present size.
    fn is_older(&self, bytes: u64) -> bool {
        bytes > self.size as u64
    }

    fn handle_large_arrival(&mut self) {
        self.is_narrowing = false;
        (self.lost, self.gaps) = (0, 0);
        (self.in_gap, self.is_pause) = (0, false);
    }

    /// Returns the next smaller size, if larger packets do not arrive.
    pub(crate) fn narrowed(&self) -> Option<usize> {
        let needed = if self.is_narrowing { FURTHER } else { FIRST };
        let is_certain = self.lost >= needed.lost && self.gaps >= needed.gaps;
        self.next().filter(|_| is_certain)
    }

    fn next(&self) -> Option<usize> {
        SIZES.into_iter().find(|size| *size < self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const FULL: usize = 1438;
    const LARGE: u64 = FULL as u64;
    const SMALL: u64 = 100;

    fn path() -> BlackHole {
        let mut path = BlackHole::default();
        path.set_size(FULL);
        path
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
        let mut path = path();
        path.set_size(SIZES[0]);
        path.handle_outcome(SIZES[0] as u64, true);
        for _ in 0..FIRST.lost {
            assert_eq!(path.narrowed(), None);
            path.handle_outcome(SIZES[0] as u64, false);
            path.handle_outcome(SMALL, true);
        }
        assert_eq!(path.narrowed(), Some(SIZES[1]));
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
                    true => path.handle_late_arrival(LARGE),
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
}
