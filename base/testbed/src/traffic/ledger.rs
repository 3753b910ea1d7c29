use super::payload::Corrupt;

/// A record of the packets of a stream that have arrived.
#[derive(Debug)]
pub(super) struct Ledger {
    arrived: Vec<bool>,
    latest: Option<u64>,
    pub(super) received: u64,
    pub(super) duplicates: u64,
    pub(super) corrupt: u64,
    pub(super) reordered: u64,
}

impl Ledger {
    /// Creates a ledger for packets numbered from 0 to `packets - 1`.
    pub(super) fn new(packets: u64) -> Self {
        let packets = usize::try_from(packets).expect("a stream's packets fit in memory");
        Ledger {
            arrived: vec![false; packets],
            latest: None,
            received: 0,
            duplicates: 0,
            corrupt: 0,
            reordered: 0,
        }
    }

    pub(super) fn record(&mut self, arrival: Result<u64, Corrupt>) {
        let slot = arrival.ok().and_then(|number| {
            Some((number, self.arrived.get_mut(usize::try_from(number).ok()?)?))
        });
        match slot {
            None => self.corrupt += 1,
            Some((_, true)) => self.duplicates += 1,
            Some((number, arrived)) => {
                *arrived = true;
                self.received += 1;
                self.reordered += u64::from(self.latest > Some(number));
                self.latest = self.latest.max(Some(number));
            }
        }
    }

    /// Returns the numbers below `sent` that have not arrived.
    pub(super) fn missing(&self, sent: u64) -> impl Iterator<Item = u64> + Clone {
        (0..sent)
            .zip(&self.arrived)
            .filter(|(_, arrived)| !**arrived)
            .map(|(number, _)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_told_apart() {
        let mut ledger = Ledger::new(6);
        for arrival in [
            Ok(0),
            Ok(3),
            Ok(1),
            Ok(1),
            Ok(4),
            Ok(6),
            Err(Corrupt),
            Ok(0),
        ] {
            ledger.record(arrival);
        }
        let Ledger {
            received,
            duplicates,
            corrupt,
            reordered,
            ..
        } = ledger;
        assert_eq!((received, duplicates, corrupt, reordered), (4, 2, 2, 1));
        assert_eq!(ledger.missing(6).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(ledger.missing(5).collect::<Vec<_>>(), [2]);
    }
}
