use hawser_units::Instant;
use std::time::Duration;

/// The time after which reordering is forgotten, at most twice this.
const PERIOD: Duration = Duration::from_secs(5);

/// The time by which overtaken packets are acknowledged later than the quickest ones (RFC 8985, section
/// 3.1). Reports may overtake each other, too.
#[derive(Debug)]
pub(crate) struct Reordering {
    /// The highest number of a transmission that was acknowledged.
    newest: Option<u64>,
    /// The longest such time in this period, and in the one before.
    longest: [Duration; 2],
    /// The time until the quickest acknowledgement in this period, and in the one before.
    quickest: [Duration; 2],
    period_began: Option<Instant>,
}

impl Default for Reordering {
    fn default() -> Self {
        Reordering {
            newest: None,
            longest: [Duration::ZERO; 2],
            quickest: [Duration::MAX; 2],
            period_began: None,
        }
    }
}

impl Reordering {
    /// Adds the transmissions that a report acknowledges: the number, and the time of sending.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        transmissions: impl Iterator<Item = (u64, Instant)>,
    ) {
        let began = *self.period_began.get_or_insert(now);
        if now.saturating_since(began) >= PERIOD {
            self.longest = [Duration::ZERO, self.longest[0]];
            self.quickest = [Duration::MAX, self.quickest[0]];
            self.period_began = Some(now);
        }
        // Packets of one report do not overtake each other.
        let before = self.newest;
        for (number, sent) in transmissions {
            let took = now.saturating_since(sent);
            self.quickest[0] = self.quickest[0].min(took);
            if before.is_some_and(|before| number < before) {
                // Any packet may be compared with the quickest one, whichever overtook this one.
                let quickest = self.quickest[0].min(self.quickest[1]);
                self.longest[0] = self.longest[0].max(took - quickest);
            }
            self.newest = self.newest.max(Some(number));
        }
    }

    /// Returns the time after which an overtaken packet is lost, beyond that of the packet that overtook it.
    /// Zero if no packet was overtaken recently.
    pub(crate) fn window(&self) -> Duration {
        self.longest[0].max(self.longest[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn at(time: u64) -> Instant {
        Instant::ZERO + ms(time)
    }

    /// Takes a report at a time in milliseconds of transmissions: the number, and the time of sending.
    fn report(reordering: &mut Reordering, time: u64, acknowledged: &[(u64, u64)]) {
        let transmissions = acknowledged
            .iter()
            .map(|(number, sent)| (*number, at(*sent)));
        reordering.add(at(time), transmissions);
    }

    fn window(reports: &[(u64, &[(u64, u64)])]) -> Duration {
        let mut reordering = Reordering::default();
        for (time, acknowledged) in reports {
            report(&mut reordering, *time, acknowledged);
        }
        reordering.window()
    }

    #[test]
    fn packets_in_order_give_no_window() {
        // The second one took longer, and was not overtaken.
        assert_eq!(window(&[(20, &[(0, 0)]), (40, &[(1, 1), (2, 2)])]), ms(0));
        assert_eq!(window(&[(20, &[(0, 0)]), (40, &[(2, 2), (1, 1)])]), ms(0));
    }

    #[test]
    fn the_window_is_how_much_longer_an_overtaken_packet_took() {
        let (slow, fast) = ((0, 0), (1, 10));
        assert_eq!(
            window(&[(30, &[fast]), (50, &[slow])]),
            ms(30),
            "50 against 20 ms"
        );
        // The quickest one, which overtook nothing, took 10 ms.
        let quickest = (2, 30);
        let reports: [(u64, &[_]); 3] = [(30, &[fast]), (40, &[quickest]), (50, &[slow])];
        assert_eq!(window(&reports), ms(40));
    }

    #[test]
    fn a_packet_that_was_overtaken_comes_with_newer_ones() {
        let (slow, fast, newer) = ((0, 0), (1, 10), (2, 30));
        for acknowledged in [[slow, newer], [newer, slow]] {
            assert_eq!(window(&[(30, &[fast]), (50, &acknowledged)]), ms(30));
        }
    }

    #[test]
    fn reordering_is_forgotten_after_a_while() {
        let mut reordering = Reordering::default();
        report(&mut reordering, 30, &[(1, 10)]);
        report(&mut reordering, 50, &[(0, 0)]);
        report(&mut reordering, 5030, &[(2, 5000)]);
        assert_eq!(reordering.window(), ms(30));
        report(&mut reordering, 10_030, &[(3, 9999)]);
        assert_eq!(reordering.window(), ms(0));
    }
}
