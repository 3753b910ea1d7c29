//! One shot of opportunistic recovery (Ni, section 4.5): its state, and the number of recovery
//! packets on each path.

use hawser_units::PathId;
use std::ops::Range;

/// The recovery of a range.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shot {
    /// The first packet, and the number of packets, that the shot covers.
    pub(super) first: u64,
    pub(super) count: u8,
    /// The number of lost packets among them.
    pub(super) lost: usize,
    /// Whether the packets of the shot are coded, and not the lost packets themselves.
    pub(super) is_coded: bool,
    /// Whether it has so many packets that it survives the failure of any one path.
    pub(super) has_margin: bool,
    /// Packets of the shot that wait for window.
    pub(super) unsent: usize,
    /// Coded packets over these packets that are planned or in flight, and that arrived.
    pub(super) in_flight: usize,
    pub(super) arrived: usize,
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

/// Returns how many packets have to arrive for `lost` packets to be recovered almost certainly:
/// `extra` more, if these are coded packets of several (theorem 4.1).
pub(super) fn needed(lost: usize, extra: usize) -> usize {
    if lost > 1 { lost + extra } else { lost }
}

/// Distributes a whole shot over the paths (Ni, section 4.5.2). `rooms` is the number of packets
/// that each path's window allows. Every path gets as many, up to `path_share` (rho) times those
/// that are needed, so the shares are in proportion to the windows. Returns `None` if the windows
/// together allow fewer packets than are needed.
pub(super) fn whole_shares(
    needed: usize,
    path_share: f64,
    rooms: &[(PathId, usize)],
) -> Option<Vec<(PathId, usize)>> {
    let open: usize = rooms.iter().map(|(_, room)| room).sum();
    let max = match needed {
        0 | 1 => needed,
        _ => ((needed as f64 * path_share) as usize).max(1),
    };
    let share = |(path, room): &(PathId, usize)| (*path, max.min(*room));
    let shares = rooms.iter().map(share).filter(|(_, share)| *share > 0);
    (open >= needed).then(|| shares.collect())
}

/// Distributes a shot over the paths. With `margin`, there are so many packets that those that are
/// needed arrive even if any one of the paths fails: paths often pause together, or one after
/// another. `rooms` is the number of packets that each path has room for, the best path first. If
/// there is too little room for that, the best paths get as many as are needed, or as there is room
/// for.
pub(super) fn spread(
    needed: usize,
    margin: bool,
    rooms: &[(PathId, usize)],
) -> Vec<(PathId, usize)> {
    let open = rooms.iter().filter(|(_, room)| *room > 0);
    let others = open.clone().count().saturating_sub(1).max(1);
    let share = needed.div_ceil(others);
    let margin = if margin { share } else { 0 };
    let mut left = needed + margin;
    let mut shares: Vec<(PathId, usize)> = open
        .clone()
        .map(|(path, room)| {
            let share = share.min(*room).min(left);
            left -= share;
            (*path, share)
        })
        .collect();
    let mut missing = left.saturating_sub(margin);
    for ((_, share), (_, room)) in shares.iter_mut().zip(open) {
        let more = missing.min(room - *share);
        *share += more;
        missing -= more;
    }
    shares.retain(|(_, share)| *share > 0);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RHO: f64 = 1.1;

    fn rooms(rooms: &[usize]) -> Vec<(PathId, usize)> {
        PathId::all().zip(rooms.iter().copied()).collect()
    }

    fn by_index(shares: Vec<(PathId, usize)>) -> Vec<(usize, usize)> {
        let share = |(path, share): (PathId, usize)| (path.index(), share);
        shares.into_iter().map(share).collect()
    }

    #[test]
    fn more_than_one_lost_packet_needs_extra_packets() {
        assert_eq!([0, 1, 2, 7].map(|lost| needed(lost, 3)), [0, 1, 5, 10]);
    }

    #[test]
    fn a_shot_survives_the_failure_of_a_path() {
        let shares = |needed, open: &[usize]| by_index(spread(needed, true, &rooms(open)));
        assert_eq!(shares(1, &[3, 0, 1]), [(0, 1), (2, 1)]);
        assert_eq!(shares(6, &[30, 30, 30]), [(0, 3), (1, 3), (2, 3)]);
        assert_eq!(shares(7, &[30, 30, 30]), [(0, 4), (1, 4), (2, 3)]);
        assert_eq!(shares(6, &[0, 30]), [(1, 6)], "there is no other path");
    }

    #[test]
    fn a_shot_without_margin_has_as_many_packets_as_are_needed() {
        let shares = |needed, open: &[usize]| by_index(spread(needed, false, &rooms(open)));
        assert_eq!(shares(1, &[3, 0, 1]), [(0, 1)]);
        assert_eq!(shares(6, &[30, 30, 30]), [(0, 3), (1, 3)]);
        assert_eq!(shares(6, &[2, 1, 30]), [(0, 2), (1, 1), (2, 3)]);
        assert_eq!(shares(6, &[2, 1, 1]), [(0, 2), (1, 1), (2, 1)]);
    }

    #[test]
    fn the_best_paths_get_what_others_have_no_room_for() {
        let shares = |needed, open: &[usize]| by_index(spread(needed, true, &rooms(open)));
        assert_eq!(shares(6, &[30, 1, 1]), [(0, 4), (1, 1), (2, 1)]);
        assert_eq!(shares(6, &[2, 1, 1]), [(0, 2), (1, 1), (2, 1)]);
        assert_eq!(shares(6, &[0, 0]), []);
    }

    #[test]
    fn a_whole_shot_waits_for_windows_in_proportion() {
        let shares =
            |lost, open: &[usize]| whole_shares(needed(lost, 3), RHO, &rooms(open)).map(by_index);
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
        fn any_path_may_fail_if_there_is_room(
            needed in 1usize..64,
            room in proptest::collection::vec(0usize..80, 1..8),
        ) {
            let shares = spread(needed, true, &rooms(&room));
            let total: usize = shares.iter().map(|(_, share)| share).sum();
            prop_assert!(shares.iter().all(|(path, share)| *share <= room[path.index()]));
            prop_assert!(total >= needed.min(room.iter().sum()));
            let others = room.iter().filter(|room| **room > 0).count().saturating_sub(1);
            prop_assert!(total <= needed + needed.div_ceil(others.max(1)));
            if others > 0 && room.iter().all(|room| *room == 0 || *room >= needed) {
                prop_assert!(shares.iter().all(|(_, share)| total - share >= needed));
            }
        }
    }
}
