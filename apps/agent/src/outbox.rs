use hawser_control::Name;
use hawser_control::node::{Observation, Report};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Observations that wait for the controller at most; the oldest go first.
const MAX_WAITING: usize = 1024;

/// A flow that was degraded so long ago may have recovered; it will be noticed again if not.
const DEGRADED_COUNTS_FOR: Duration = Duration::from_secs(5);

/// Observations on their way to the controller, handed over in parts that it accepts. One that a newer one makes void is
/// taken out.
#[derive(Debug)]
pub(crate) struct Outbox {
    waiting: VecDeque<(Instant, Observation)>,
    /// Handed over, and not known to have arrived.
    under_way: Vec<(Instant, Observation)>,
    /// How many are handed over at once: fewer after a refusal, until the one that is refused is alone.
    at_once: usize,
    dropped: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        let at_once = Report::MAX_OBSERVATIONS;
        Outbox {
            waiting: VecDeque::new(),
            under_way: Vec::new(),
            at_once,
            dropped: 0,
        }
    }
}

/// Of two observations about the same, the newer one counts.
#[derive(PartialEq, Eq)]
enum About<'a> {
    Judgement(&'a Name),
    Degradation(&'a Name),
    Silence(&'a Name, u8),
}

impl Outbox {
    /// Takes in what happened at the time `at`.
    pub(crate) fn push(&mut self, at: Instant, observation: Observation) {
        if let Observation::SignalRefused { reason, count } = &observation {
            let same = self
                .waiting
                .iter_mut()
                .find_map(|(_, waiting)| match waiting {
                    Observation::SignalRefused {
                        reason: known,
                        count,
                    } if known == reason => Some(count),
                    _ => None,
                });
            if let Some(total) = same {
                *total += count;
                return;
            }
        }
        if let Some(newer) = about(&observation) {
            self.waiting
                .retain(|(_, waiting)| about(waiting).is_none_or(|about| about != newer));
        }
        self.waiting.push_back((at, observation));
        self.shorten();
    }

    /// Whether there is anything to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Observations that were never told because too many waited or the controller did not take them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The oldest that wait, to be handed over now. The next ones follow when these have arrived.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Observation> {
        let fresh = |(at, observation): &(Instant, Observation)| {
            !matches!(observation, Observation::Degraded { .. })
                || now.saturating_since(*at) < DEGRADED_COUNTS_FOR
        };
        self.waiting.retain(fresh);
        self.under_way = self
            .waiting
            .drain(..self.waiting.len().min(self.at_once))
            .collect();
        self.under_way
            .iter()
            .map(|(at, observation)| aged(observation, now.saturating_since(*at)))
            .collect()
    }

    /// What was taken has arrived.
    pub(crate) fn arrived(&mut self) {
        if !self.under_way.is_empty() {
            self.under_way.clear();
            self.at_once = (self.at_once * 2).min(Report::MAX_OBSERVATIONS);
        }
    }

    /// The controller does not accept what was taken. Half of it is tried again; one that is refused alone is dropped.
    pub(crate) fn refused(&mut self) {
        match self.under_way.len() {
            0 => {}
            1 => {
                self.under_way.clear();
                self.dropped += 1;
            }
            several => {
                self.at_once = several / 2;
                self.put_back();
            }
        }
    }

    /// What was taken may not have arrived, and waits again.
    pub(crate) fn put_back(&mut self) {
        let newer = std::mem::take(&mut self.waiting);
        self.waiting = std::mem::take(&mut self.under_way).into();
        newer
            .into_iter()
            .for_each(|(at, observation)| self.push(at, observation));
    }

    fn shorten(&mut self) {
        while self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
            self.dropped += 1;
        }
    }
}

fn about(observation: &Observation) -> Option<About<'_>> {
    match observation {
        Observation::Judged { flow, .. } => Some(About::Judgement(flow)),
        Observation::Degraded { flow, .. } => Some(About::Degradation(flow)),
        Observation::PathSilent { flow, path } | Observation::PathRestored { flow, path } => {
            Some(About::Silence(flow, *path))
        }
        _ => None,
    }
}

/// The observation as it is told so long after.
fn aged(observation: &Observation, age: Duration) -> Observation {
    let mut aged = observation.clone();
    if let Observation::Degraded { since_due_us, .. } = &mut aged {
        *since_due_us =
            since_due_us.saturating_add(u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
    }
    aged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn judged(flow: &str, epoch: u32) -> Observation {
        let (flow, reason) = (name(flow), String::new());
        Observation::Judged {
            flow,
            epoch,
            code: 1,
            probes: 0,
            probe_every: 0,
            reason,
        }
    }

    fn degraded(flow: &str, since_due_us: u64) -> Observation {
        Observation::Degraded {
            flow: name(flow),
            since_due_us,
            silent_us: 450_000,
        }
    }

    fn applied(epoch: u32) -> Observation {
        Observation::Applied {
            flow: name("a"),
            epoch,
            code: 1,
            by_signal: false,
        }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn the_newest_judgement_of_a_flow_counts() {
        let mut outbox = Outbox::default();
        outbox.push(at(0), judged("a", 1));
        outbox.push(at(1), judged("b", 1));
        outbox.push(at(2), degraded("a", 0));
        outbox.push(at(3), judged("a", 2));
        assert_eq!(
            outbox.take(at(3)),
            [judged("b", 1), degraded("a", 1_000), judged("a", 2)]
        );
        assert!(outbox.is_empty());
    }

    #[test]
    fn what_did_not_arrive_waits_again_unless_it_is_void_by_now() {
        let mut outbox = Outbox::default();
        outbox.push(at(0), judged("a", 1));
        outbox.push(at(0), judged("b", 1));
        outbox.take(at(0));
        outbox.push(at(1), judged("a", 2));
        outbox.put_back();
        assert_eq!(outbox.take(at(2)), [judged("b", 1), judged("a", 2)]);
        outbox.arrived();
        outbox.put_back();
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_degradation_is_told_with_its_age_and_not_when_it_is_old() {
        let mut outbox = Outbox::default();
        outbox.push(at(0), degraded("a", 5));
        outbox.push(at(4_000), degraded("b", 5));
        let told = outbox.take(at(6_000));
        assert_eq!(
            told,
            [Observation::Degraded {
                flow: name("b"),
                since_due_us: 2_000_005,
                silent_us: 450_000
            }]
        );
    }

    #[test]
    fn refused_signals_are_summed_and_the_rest_is_bounded() {
        let refused = |count| Observation::SignalRefused {
            reason: "tag".to_owned(),
            count,
        };
        let mut outbox = Outbox::default();
        outbox.push(at(0), refused(3));
        outbox.push(at(1), refused(4));
        assert_eq!(outbox.take(at(1)), [refused(7)]);

        outbox.arrived();
        (0..MAX_WAITING as u32 + 5).for_each(|epoch| outbox.push(at(2), applied(epoch)));
        assert_eq!(outbox.dropped(), 5);
        assert_eq!(outbox.take(at(3))[0], applied(5));
    }

    #[test]
    fn what_is_more_than_a_report_takes_goes_into_several() {
        let mut outbox = Outbox::default();
        let all: Vec<Observation> = (0..MAX_WAITING as u32).map(applied).collect();
        all.iter()
            .for_each(|observation| outbox.push(at(0), observation.clone()));
        let mut told = vec![];
        while !outbox.is_empty() {
            let part = outbox.take(at(1));
            assert!((1..=Report::MAX_OBSERVATIONS).contains(&part.len()));
            told.extend(part);
            outbox.arrived();
        }
        assert_eq!((told, outbox.dropped()), (all, 0));
    }

    #[test]
    fn one_that_is_refused_takes_no_other_with_it() {
        let mut outbox = Outbox::default();
        (0..600).for_each(|epoch| outbox.push(at(0), applied(epoch)));
        let mut told = vec![];
        while !outbox.is_empty() {
            let part = outbox.take(at(1));
            if part.contains(&applied(300)) {
                outbox.refused();
            } else {
                told.extend(part);
            }
            outbox.arrived();
        }
        let others: Vec<Observation> = (0..600)
            .filter(|epoch| *epoch != 300)
            .map(applied)
            .collect();
        assert_eq!((told, outbox.dropped()), (others, 1));
    }
}
