use hawser_units::Instant;
use std::cmp::Reverse;
use std::time::Duration;

/// The time after which reordering that is not seen any more is forgotten, at most twice this.
const PERIOD: Duration = Duration::from_secs(5);

/// How much later packets that are overtaken are acknowledged than the quickest ones (RFC 8985, section
/// 3.1). Reports may overtake each other, too.
#[derive(Debug)]
pub(crate) struct Reordering {
    /// The packet that left last of those that were acknowledged.
    newest: Option<Transit>,
    /// The longest such time in this period, and in the one before.
    longest: [Duration; 2],
    /// The time until the quickest acknowledgement in this period, and in the one before.
    quickest: [Duration; 2],
    period_began: Option<Instant>,
}

/// A packet from sending to acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transit {
    /// The number of the transmission.
    pub(crate) number: u64,
    pub(crate) sent: Instant,
    pub(crate) acknowledged: Instant,
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
    /// Takes the packets of a report.
    pub(crate) fn add(&mut self, now: Instant, mut transits: Vec<Transit>) {
        let began = *self.period_began.get_or_insert(now);
        if now.saturating_since(began) >= PERIOD {
            self.longest = [Duration::ZERO, self.longest[0]];
            self.quickest = [Duration::MAX, self.quickest[0]];
            self.period_began = Some(now);
        }
        // The one that left last first, so that those of the same report are compared with it.
        transits.sort_unstable_by_key(|transit| Reverse(transit.number));
        for transit in transits {
            self.quickest[0] = self.quickest[0].min(transit.took());
            match self.newest {
                Some(newest) if transit.number < newest.number => {
                    if newest.acknowledged < transit.acknowledged {
                        self.longest[0] = self.longest[0].max(self.beyond_quickest(&transit));
                    }
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

    /// Any packet may be compared with the quickest one, whichever overtook this one.
    fn beyond_quickest(&self, transit: &Transit) -> Duration {
        let quickest = self.quickest[0].min(self.quickest[1]);
        transit.took().saturating_sub(quickest)
    }
}

impl Transit {
    fn took(&self) -> Duration {
        self.acknowledged.saturating_since(self.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn transit(number: u64, sent: u64, acknowledged: u64) -> Transit {
        Transit {
            number,
            sent: Instant::ZERO + ms(sent),
            acknowledged: Instant::ZERO + ms(acknowledged),
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
        // The quickest one, which overtook nothing, took 10 ms.
        let quickest = transit(2, 30, 40);
        assert_eq!(window(vec![vec![fast, quickest], vec![slow]]), ms(40));
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
