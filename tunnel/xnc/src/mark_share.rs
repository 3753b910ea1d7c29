/// The bytes of packets that a path may have received before their datagrams are seen here. More is
/// forgotten when no datagram is to come: it was the overhead of packets.
const MAX_AHEAD: f64 = 1500.0;

/// Decides which datagrams of a QUIC connection count as marked with "congestion experienced".
///
/// The connection tells how many bytes of its packets were marked, but not which datagrams were in
/// them. So the same share of the bytes of its datagrams is marked, as where frames are put into
/// packets of another size (RFC 9599, section 4.6). A datagram is marked when at least half of it
/// is due.
#[derive(Debug, Clone, Copy, Default)]
pub struct MarkShare {
    /// Bytes of packets whose datagrams are to come, and how many of them were marked.
    bytes: f64,
    marked: f64,
    /// Bytes of datagrams that are still to be marked; negative if more were marked.
    owed: f64,
}

impl MarkShare {
    /// Notes packets that have arrived, of which `marked` bytes were marked.
    pub fn handle_packets(&mut self, bytes: u64, marked: u64) {
        self.bytes += bytes as f64;
        self.marked += marked.min(bytes) as f64;
    }

    /// Returns whether the next datagram, of `bytes`, counts as marked.
    pub fn next(&mut self, bytes: usize) -> bool {
        if self.marked <= 0.0 && self.owed <= 0.0 {
            self.bytes = (self.bytes - bytes as f64).max(0.0);
            return false;
        }
        let taken = (bytes as f64).min(self.bytes);
        let marked = if taken > 0.0 {
            self.marked * taken / self.bytes
        } else {
            0.0
        };
        self.bytes -= taken;
        self.marked -= marked;
        self.owed += marked;
        let is_marked = self.owed >= 0.5 * bytes as f64;
        if is_marked {
            self.owed -= bytes as f64;
        }
        is_marked
    }

    /// Notes that the datagrams of all known packets were seen.
    pub fn handle_end(&mut self) {
        if self.bytes > MAX_AHEAD {
            self.marked *= MAX_AHEAD / self.bytes;
            self.bytes = MAX_AHEAD;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of a packet besides its datagram.
    const OVERHEAD: u64 = 3;

    /// Lets packets of one datagram each arrive, in batches, and returns the bytes of marked
    /// packets and of marked datagrams.
    fn pass(batches: &[Vec<(usize, bool)>]) -> (u64, u64) {
        let (mut share, mut arrived, mut passed) = (MarkShare::default(), 0, 0);
        for batch in batches {
            for (bytes, is_marked) in batch {
                let packet = *bytes as u64 + OVERHEAD;
                share.handle_packets(packet, if *is_marked { packet } else { 0 });
                arrived += if *is_marked { packet } else { 0 };
            }
            for (bytes, _) in batch {
                passed += if share.next(*bytes) { *bytes as u64 } else { 0 };
            }
            share.handle_end();
        }
        (arrived, passed)
    }

    #[test]
    fn all_or_nothing_is_marked_as_it_arrived() {
        let batch = |is_marked| vec![vec![(1400, is_marked); 10]; 100];
        assert_eq!(pass(&batch(false)), (0, 0));
        assert_eq!(pass(&batch(true)).1, 1000 * 1400);
    }

    #[test]
    fn a_single_mark_is_passed_at_once_and_once() {
        let packets: Vec<_> = (0..200).map(|number| (1000, number == 50)).collect();
        let mut share = MarkShare::default();
        let marked: Vec<usize> = packets
            .iter()
            .enumerate()
            .filter_map(|(number, (bytes, is_marked))| {
                share.handle_packets(1003, if *is_marked { 1003 } else { 0 });
                let marked = share.next(*bytes);
                share.handle_end();
                marked.then_some(number)
            })
            .collect();
        assert_eq!(marked, [50]);
    }

    #[test]
    fn packets_without_datagrams_count_by_their_bytes() {
        let mut share = MarkShare::default();
        let mut marked = 0;
        for _ in 0..1000 {
            // An acknowledgement of 30 bytes is marked, the packet of a datagram is not.
            share.handle_packets(30 + 1403, 30);
            marked += u32::from(share.next(1400));
            share.handle_end();
        }
        assert!((20..=22).contains(&marked), "{marked}");
    }

    #[test]
    fn marks_of_packets_ahead_are_kept_for_their_datagrams() {
        let mut share = MarkShare::default();
        share.handle_packets(1000 * 1003, 250 * 1003);
        let marked = (0..1000).filter(|_| share.next(1000)).count();
        assert!((249..=251).contains(&marked), "{marked}");
    }

    proptest! {
        #[test]
        fn the_share_of_marked_bytes_is_kept(
            batches in prop::collection::vec(prop::collection::vec((1..1500usize, prop::bool::weighted(0.3)), 1..40), 1..60),
        ) {
            let (arrived, passed) = pass(&batches);
            let packets = batches.iter().map(Vec::len).sum::<usize>() as u64;
            // The overhead is not in datagrams, and a datagram is marked as a whole or not at all.
            let slack = OVERHEAD * packets + MAX_AHEAD as u64 + 1500;
            prop_assert!(passed <= arrived + 1500, "{passed} of {arrived}");
            prop_assert!(passed + slack >= arrived, "{passed} of {arrived}");
        }

        #[test]
        fn any_counts_are_bounded(steps in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u16>()), 0..100)) {
            let mut share = MarkShare::default();
            for (bytes, marked, datagram) in steps {
                share.handle_packets(bytes, marked);
                share.next(datagram.into());
                share.handle_end();
                prop_assert!(share.marked >= 0.0 && share.bytes <= MAX_AHEAD);
                prop_assert!(share.owed.abs() <= f64::from(u16::MAX));
            }
        }
    }
}
