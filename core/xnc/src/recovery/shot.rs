//! One shot of opportunistic recovery (Ni, section 4.5): its state, and the number of recovery
//! packets on each path.

use hawser_units::{MAX_PATHS, PathId};
use std::ops::Range;

/// The recovery of a range.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shot {
    /// The first packet, and the number of packets, that the shot covers.
    pub(super) first: u64,
    pub(super) count: u8,
    /// The number of lost packets among them.
    pub(super) lost: usize,
    /// Packets of the shot that wait for window.
    pub(super) unsent: usize,
    /// Packets of the shot on each path.
    pub(super) by_path: [usize; MAX_PATHS],
    /// Coded packets over these packets that are planned or in flight, and that arrived.
    pub(super) in_flight: usize,
    pub(super) arrived: usize,
    /// The number of shots for packets of this range so far.
    pub(super) attempts: u32,
}

impl Shot {
    pub(super) fn ids(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.count)
    }

    /// Returns whether none of its packets waits for window, and no coded one is in flight.
    pub(super) fn is_over(&self) -> bool {
        self.in_flight == 0 && self.unsent == 0
    }
}

/// The limits of one shot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ShotRule {
    /// The number of packets in addition to the number of lost ones, if that is more than one (k of
    /// theorem 4.1).
    pub(super) extra: usize,
    /// The maximum share of the needed packets for one path (rho).
    pub(super) path_share: f64,
    /// The maximum share of the needed packets for all paths together.
    pub(super) total_share: f64,
    /// The number of paths that get a copy of a packet that was lost alone.
    pub(super) copies: usize,
}

impl ShotRule {
    /// Returns how many packets have to arrive for `lost` packets to be recovered almost certainly.
    fn needed(&self, lost: usize) -> usize {
        if lost > 1 { lost + self.extra } else { lost }
    }

    /// Returns how many packets are sent for `lost` packets.
    fn total(&self, lost: usize) -> usize {
        match self.needed(lost) {
            needed @ 0..=1 => needed * self.copies.max(1),
            needed => ((needed as f64 * self.total_share) as usize).max(needed),
        }
    }

    /// Returns how many packets a shot for `lost` packets consists of, with this number of paths.
    pub(super) fn shot_size(&self, lost: usize, paths: usize) -> usize {
        let max = self.max_per_path(lost).saturating_mul(paths);
        self.total(lost).min(max).max(self.needed(lost))
    }

    /// Returns how many packets of the shot may still be sent on a path.
    pub(super) fn left_on(&self, shot: &Shot, path: PathId) -> usize {
        let sent = shot.by_path[path.index()];
        self.max_per_path(shot.lost).saturating_sub(sent)
    }

    /// Returns whether each of the paths got its share of the shot; `false` without paths.
    pub(super) fn is_spent(&self, shot: &Shot, paths: impl Iterator<Item = PathId>) -> bool {
        let mut paths = paths.peekable();
        paths.peek().is_some() && paths.all(|path| self.left_on(shot, path) == 0)
    }

    /// Returns the maximum number of packets for one path.
    fn max_per_path(&self, lost: usize) -> usize {
        match self.needed(lost) {
            needed @ 0..=1 => needed,
            needed => ((needed as f64 * self.path_share) as usize).max(1),
        }
    }

    /// Distributes a whole shot for `lost` packets over the paths (Ni, section 4.5.2). `rooms` is the
    /// number of packets that each path's window allows. Every path gets as many, up to the maximum
    /// for one path, so the shares are in proportion to the windows. Returns `None` if the windows
    /// together allow fewer packets than are needed.
    pub(super) fn whole_shares(
        &self,
        lost: usize,
        rooms: &[(PathId, usize)],
    ) -> Option<Vec<(PathId, usize)>> {
        let open: usize = rooms.iter().map(|(_, room)| room).sum();
        let max = self.max_per_path(lost);
        let share = |(path, room): &(PathId, usize)| (*path, max.min(*room));
        let shares = rooms.iter().map(share).filter(|(_, share)| *share > 0);
        (open >= self.needed(lost)).then(|| shares.collect())
    }

    /// Distributes `unsent` packets of a shot for `lost` packets over the paths. `rooms` is the
    /// number of packets that each path's window allows, the best path first. The best path is
    /// filled first, because after losses on one path the paths with a later expected delivery
    /// often lose packets soon as well.
    pub(super) fn shares(
        &self,
        lost: usize,
        unsent: usize,
        rooms: &[(PathId, usize)],
    ) -> Vec<(PathId, usize)> {
        let needed = self.needed(lost);
        if needed == 1 {
            let open = rooms.iter().filter(|(_, room)| *room > 0);
            return open.take(unsent).map(|(path, _)| (*path, 1)).collect();
        }
        let max = self.max_per_path(lost);
        let mut left = unsent;
        let share = |(path, room): &(PathId, usize)| {
            let share = left.min(*room).min(max);
            left -= share;
            (share > 0).then_some((*path, share))
        };
        rooms.iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAPER: ShotRule = ShotRule {
        extra: 3,
        path_share: 1.1,
        total_share: f64::INFINITY,
        copies: 8,
    };

    fn rooms(rooms: &[usize]) -> Vec<(PathId, usize)> {
        PathId::all().zip(rooms.iter().copied()).collect()
    }

    #[test]
    fn a_single_packet_goes_over_the_best_paths_that_take_it() {
        let paths = |shares: Vec<(PathId, usize)>| {
            shares
                .iter()
                .map(|(path, share)| (path.index(), *share))
                .collect::<Vec<_>>()
        };
        let open = rooms(&[3, 0, 1]);
        assert_eq!(PAPER.total(1), 8);
        assert_eq!(paths(PAPER.shares(1, 8, &open)), [(0, 1), (2, 1)]);
        assert_eq!(paths(PAPER.shares(1, 1, &open)), [(0, 1)]);
    }

    #[test]
    fn the_best_path_takes_what_its_window_takes() {
        let shares = PAPER.shares(9, 12, &rooms(&[7, 0, 30]));
        assert_eq!(
            shares.iter().map(|(_, share)| *share).collect::<Vec<_>>(),
            [7, 5]
        );
    }

    #[test]
    fn no_path_gets_more_than_its_share() {
        let shares = PAPER.shares(7, 30, &rooms(&[1000, 1000]));
        assert!(shares.iter().all(|(_, share)| *share == 11), "{shares:?}");
    }

    #[test]
    fn a_whole_shot_waits_for_all_windows_and_takes_each_in_proportion() {
        let shares = |lost, open: &[usize]| {
            let shares = PAPER.whole_shares(lost, &rooms(open))?;
            Some(
                shares
                    .iter()
                    .map(|(path, share)| (path.index(), *share))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(shares(7, &[5, 0, 4]), None, "ten are needed");
        assert_eq!(shares(7, &[6, 0, 4]), Some(vec![(0, 6), (2, 4)]));
        assert_eq!(
            shares(7, &[3, 30, 40]),
            Some(vec![(0, 3), (1, 11), (2, 11)])
        );
        assert_eq!(
            shares(1, &[0, 9, 1]),
            Some(vec![(1, 1), (2, 1)]),
            "one copy each"
        );
        assert_eq!(shares(1, &[0, 0]), None);
    }

    proptest! {
        #[test]
        fn what_is_sent_is_owed_and_fits(
            lost in 2usize..64,
            unsent in 0usize..200,
            room in proptest::collection::vec(0usize..200, 1..8),
        ) {
            let shares = PAPER.shares(lost, unsent, &rooms(&room));
            let max = PAPER.needed(lost) as f64 * 1.1;
            let sum: usize = shares.iter().map(|(_, share)| share).sum();
            let widest = room.iter().max().copied().unwrap_or(0).min(max as usize);
            prop_assert!(sum <= unsent && sum >= unsent.min(widest), "{} of {}", sum, unsent);
            for (path, share) in shares {
                prop_assert!(share <= room[path.index()]);
                prop_assert!(share as f64 <= max);
            }
        }
    }
}
