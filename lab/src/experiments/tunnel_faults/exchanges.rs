use crate::summary::quantile;
use hawser_units::Instant;
use parking_lot::Mutex;

/// Requests in the order in which they were sent, with the times of their replies.
#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<Vec<Exchange>>);

#[derive(Debug, Clone, Copy)]
struct Exchange {
    asked: Instant,
    answered: Option<Instant>,
}

/// Figures of the requests sent within some windows, milliseconds. A request that was not answered has an
/// infinite response time.
pub(super) struct Figures {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// The longest time between two replies.
    pub(super) gap_max_ms: f64,
    pub(super) unanswered_ratio: f64,
}

impl Exchanges {
    /// Records a request and returns its number.
    pub(super) fn record_request(&self, now: Instant) -> usize {
        let mut exchanges = self.0.lock();
        exchanges.push(Exchange {
            asked: now,
            answered: None,
        });
        exchanges.len() - 1
    }

    /// Records a reply. Only the first one of a request counts.
    pub(super) fn record_reply(&self, number: usize, now: Instant) {
        if let Some(exchange) = self.0.lock().get_mut(number) {
            exchange.answered.get_or_insert(now);
        }
    }

    /// Returns the number of requests that were answered.
    pub(super) fn answered(&self) -> usize {
        self.0
            .lock()
            .iter()
            .filter(|one| one.answered.is_some())
            .count()
    }

    /// Returns the figures of some windows.
    pub(super) fn within(&self, windows: &[(Instant, Instant)]) -> Figures {
        let exchanges = self.0.lock();
        let asked = exchanges.iter().filter(|one| {
            windows
                .iter()
                .any(|(from, to)| (*from..*to).contains(&one.asked))
        });
        let asked: Vec<Exchange> = asked.copied().collect();
        let time = |one: &Exchange| {
            one.answered
                .map_or(f64::INFINITY, |answered| ms(one.asked, answered))
        };
        let mut times: Vec<f64> = asked.iter().map(time).collect();
        times.sort_by(f64::total_cmp);
        let unanswered = asked.iter().filter(|one| one.answered.is_none()).count();
        let answers: Vec<Instant> = exchanges.iter().filter_map(|one| one.answered).collect();
        Figures {
            p50_ms: quantile(&times, 0.5),
            p99_ms: quantile(&times, 0.99),
            gap_max_ms: windows
                .iter()
                .map(|window| longest_gap(&answers, *window))
                .fold(0.0, f64::max),
            unanswered_ratio: unanswered as f64 / asked.len() as f64,
        }
    }

    /// Returns the time of each request and its response time, seconds.
    pub(super) fn seconds(&self, began: Instant) -> Vec<(f64, Option<f64>)> {
        let exchanges = self.0.lock();
        let seconds = |one: &Exchange| {
            let took = one.answered.map(|answered| ms(one.asked, answered) / 1e3);
            (ms(began, one.asked) / 1e3, took)
        };
        exchanges.iter().map(seconds).collect()
    }
}

/// Returns the longest time within a window without an event, milliseconds. Gaps are limited to the
/// window.
pub(super) fn longest_gap(times: &[Instant], (from, to): (Instant, Instant)) -> f64 {
    let mut within: Vec<Instant> = times
        .iter()
        .copied()
        .filter(|at| (from..to).contains(at))
        .collect();
    within.sort();
    let ends = [from].into_iter().chain(within.iter().copied());
    let gaps = ends
        .zip(within.iter().copied().chain([to]))
        .map(|(one, next)| ms(one, next));
    gaps.fold(0.0, f64::max)
}

fn ms(from: Instant, to: Instant) -> f64 {
    to.saturating_since(from).as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn gaps_end_with_the_window() {
        let times = [at(50), at(10), at(400), at(20)];
        assert_eq!(longest_gap(&times, (at(0), at(60))), 30.0);
        assert_eq!(longest_gap(&times, (at(30), at(100))), 50.0);
        assert_eq!(longest_gap(&times, (at(500), at(700))), 200.0);
    }

    #[test]
    fn what_is_never_answered_is_counted() {
        let exchanges = Exchanges::default();
        for number in 0..4 {
            assert_eq!(exchanges.record_request(at(number * 10)), number as usize);
        }
        for (number, answered) in [(0, 5), (1, 30), (0, 90), (3, 31)] {
            exchanges.record_reply(number, at(answered));
        }
        let figures = exchanges.within(&[(at(0), at(40))]);
        assert_eq!((figures.p50_ms, figures.p99_ms), (5.0, f64::INFINITY));
        assert_eq!((figures.gap_max_ms, figures.unanswered_ratio), (25.0, 0.25));
        assert_eq!(exchanges.within(&[(at(25), at(40))]).unanswered_ratio, 0.0);
    }
}
