use hawser_units::Instant;
use std::cmp::Reverse;
use std::time::Duration;

/// The time after which reordering that is not seen any more is forgotten, at most twice this.
const PERIOD: Duration = Duration::from_secs(5);

/// How much longer packets take than packets that overtake them (RFC 8985, section 3.1).
#[derive(Debug, Default)]
pub(crate) struct Reordering {
    /// The packet that left last of those that arrived.
    newest: Option<Transit>,
    /// The longest such time in this period, and in the one before.
    longest: [Duration; 2],
    period_began: Option<Instant>,
}

/// A packet from sending, by the own clock, to arrival, by the viewer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transit {
    /// The number of the transmission.
    pub(crate) number: u64,
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
}

impl Reordering {
    /// Takes the packets of a report.
    pub(crate) fn add(&mut self, now: Instant, mut transits: Vec<Transit>) {
        let began = *self.period_began.get_or_insert(now);
        if now.saturating_since(began) >= PERIOD {
            self.longest = [Duration::ZERO, self.longest[0]];
            self.period_began = Some(now);
        }
        // The one that left last first, so that those of the same report are compared with it.
        transits.sort_unstable_by_key(|transit| Reverse(transit.number));
        for transit in transits {
            match self.newest {
                Some(newest) if transit.number < newest.number => {
                    self.longest[0] = self.longest[0].max(newest.lead(&transit));
                }
                _ => self.newest = Some(transit),
            }
        }
    }

    /// Returns the time for which a packet is waited for, beyond that of a packet that overtook it.
    /// Zero if no packet was overtaken lately.
    pub(crate) fn window(&self) -> Duration {
        self.longest[0].max(self.longest[1])
    }
}

impl Transit {
    /// Returns by how much longer a packet that left earlier took, if this one overtook it.
    fn lead(&self, earlier: &Transit) -> Duration {
        let later_by = earlier.arrived.saturating_since(self.arrived);
        if later_by.is_zero() {
           
        }
        later_by + self.sent.saturating_since(earlier.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn transit(number: u64, sent: u64, arrived: u64) -> Transit {
        Transit {
            number,
            sent: Instant::ZERO + ms(sent),
            arrived: Instant::ZERO + ms(arrived),
        }
    }

    fn window(reports: Vec<Vec<Transit>>) -> Duration {
        let mut reordering = Reordering::default();
        for report in reports {
            reordering.add(Instant::ZERO, report);
        }
        reordering.window()
    }

    #[test]
    fn packets_in_order_need_no_patience() {
        // The second one took longer, and was not overtaken.
        let report = vec![transit(0, 0, 20), transit(1, 1, 40), transit(2, 2, 40)];
        assert_eq!(window(vec![report]), ms(0));
    }

    #[test]
    fn the_window_is_how_much_longer_an_overtaken_packet_took() {
        let (slow, fast) = (transit(0, 0, 50), transit(1, 10, 30));
        assert_eq!(window(vec![vec![slow, fast]]), ms(30), "50 against 20 ms");
        assert_eq!(window(vec![vec![fast], vec![slow]]), ms(30));
        assert_eq!(window(vec![vec![fast, slow]]), ms(30));
    }

    #[test]
    fn reordering_is_forgotten_after_a_while() {
        let mut reordering = Reordering::default();
        reordering.add(Instant::ZERO, vec![transit(1, 10, 30), transit(0, 0, 50)]);
        let later = |periods: u32| Instant::ZERO + periods * PERIOD;
        reordering.add(later(1), vec![transit(2, 5000, 5020)]);
        assert_eq!(reordering.window(), ms(30));
        reordering.add(later(2), vec![transit(3, 9999, 10_019)]);
        assert_eq!(reordering.window(), ms(0));
    }
}
