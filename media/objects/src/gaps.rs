use hawser_packets::media::PacketId;
use std::num::NonZeroU16;

/// The number of packets that have to overtake a missing one before it is reported early (RFC 9002,
/// section 6.1.1).
const OVERTAKEN: u8 = 3;

/// The number of gaps of packets that decode alone that are reported early though none is repaired: a relay leaves
/// out some. Of later ones, one in so many is.
const UNREPAIRED: u8 = 8;

/// Detects missing packets of a track, after which a report is sent before it is due.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    newest: Option<Newest>,
    /// The number of packets that still have to arrive after a gap.
    left: Option<u8>,
    /// The number of gaps since the last packet that came late.
    unrepaired: u8,
}

#[derive(Debug, Clone, Copy)]
struct Newest {
    id: PacketId,
    /// Whether it is the last packet of its object.
    is_last: bool,
}

impl Gaps {
    /// Adds a packet that arrived. Returns whether an earlier one is now missing for so long that it should
    /// be reported.
    pub(crate) fn add(&mut self, id: PacketId, count: Option<NonZeroU16>, is_alone: bool) -> bool {
        let arrived = Newest {
            id,
            is_last: count.is_some_and(|count| id.index + 1 == count.get()),
        };
        let Some(newest) = self.newest.replace(arrived) else {
            return false;
        };
        if id <= newest.id {
            // It was overtaken, or sent again.
            self.newest = Some(newest);
            self.unrepaired = 0;
            return false;
        }
        if !newest.is_followed_by(&id) {
            self.left.get_or_insert(OVERTAKEN);
        }
        self.left = self.left.map(|left| left - 1);
        let is_due = self.left.take_if(|left| *left == 0).is_some();
        if is_due {
            // After the first ones it rises from the number to twice that, again and again.
            let is_rare = self.unrepaired >= 2 * UNREPAIRED;
            self.unrepaired = if is_rare { UNREPAIRED } else { self.unrepaired } + 1;
        }
        is_due && (!is_alone || self.unrepaired <= UNREPAIRED || self.unrepaired == 2 * UNREPAIRED)
    }
}

impl Newest {
    /// Returns whether nothing is missing between this packet and a later one.
    fn is_followed_by(&self, id: &PacketId) -> bool {
        if id.object == self.id.object {
            id.index == self.id.index + 1
        } else {
            self.is_last && id.index == 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_packets::media::ObjectId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn id(group: u32, index: u16) -> PacketId {
        let object = ObjectId {
            alias: 1,
            group,
            object: 0,
            layer: 0,
        };
        PacketId { object, index }
    }

    /// Returns at which of the packets a gap is worth a report. Objects have five packets, whose number
    /// only the last one names.
    fn noticed(packets: &[(u32, u16)]) -> Vec<usize> {
        let mut gaps = Gaps::default();
        let packets = packets.iter().enumerate();
        let noticed = packets.filter(|(_, (group, index))| {
            let count = NonZeroU16::new(5).filter(|_| *index == 4);
            gaps.add(id(*group, *index), count, false)
        });
        noticed.map(|(at, _)| at).collect()
    }

    #[test]
    fn nothing_is_noticed_without_a_gap() {
        let whole: Vec<(u32, u16)> = (0..20).map(|at| (at / 5, at as u16 % 5)).collect();
        assert!(noticed(&whole).is_empty());
    }

    #[test]
    fn a_gap_is_noticed_once_after_three_later_packets() {
        let within = [(0, 0), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1)];
        assert_eq!(noticed(&within), [3]);
        let tail = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)];
        assert_eq!(noticed(&tail), [5]);
        let head = [(0, 4), (1, 1), (1, 2), (1, 3), (1, 4)];
        assert_eq!(noticed(&head), [3]);
    }

    #[test]
    fn packets_that_come_late_are_no_gaps() {
        let late = [(0, 3), (0, 1), (0, 2), (0, 4), (1, 0), (1, 1)];
        assert!(noticed(&late).is_empty());
    }

    #[test]
    fn gaps_that_are_never_repaired_are_reported_rarely() {
        let mut gaps = Gaps::default();
        let mut add = |index| gaps.add(id(0, index), None, true);
        // Every other packet is left out: three after a gap end it, and the next begins another one.
        let reported = (0..400).filter(|at| add(2 * at)).count();
        assert!((20..30).contains(&reported), "{reported}");
        assert!(!add(3));
        let reported = (400..424).filter(|at| add(2 * at)).count();
        assert_eq!(reported, 8);
    }

    /// Returns the same from the packets that overtake all before them.
    fn expected(packets: &[(u32, u16)]) -> Vec<usize> {
        let mut ahead: Vec<(usize, (u32, u16))> = Vec::new();
        for (at, packet) in packets.iter().enumerate() {
            if ahead.last().is_none_or(|(_, newest)| packet > newest) {
                ahead.push((at, *packet));
            }
        }
        let follows = |(group, index): (u32, u16), next: (u32, u16)| match index {
            4 => next.0 > group && next.1 == 0,
            _ => next == (group, index + 1),
        };
        let mut noticed = Vec::new();
        let mut first = 1;
        while first < ahead.len() {
            if follows(ahead[first - 1].1, ahead[first].1) {
                first += 1;
                continue;
            }
            let last = first + usize::from(OVERTAKEN) - 1;
            noticed.extend(ahead.get(last).map(|(at, _)| *at));
            first = last + 1;
        }
        noticed
    }

    proptest! {
        #[test]
        fn a_gap_is_noticed_by_the_third_packet_beyond_it_and_no_other(
            steps in vec((prop_oneof![6 => Just(1i32), 1 => -6..8i32], any::<bool>()), 0..100),
        ) {
            let mut newest = 0;
            let packets = steps.into_iter().map(|(step, goes_on)| {
                let position = (newest + step).max(0);
                if goes_on {
                    newest = position;
                }
                (position as u32 / 5, position as u16 % 5)
            });
            let packets: Vec<(u32, u16)> = packets.collect();
            prop_assert_eq!(noticed(&packets), expected(&packets));
        }
    }
}
