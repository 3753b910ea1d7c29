use hawser_model::Name;
use hawser_model::node::{Observation, Report};
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Maximum number of queued observations. When it is exceeded, the oldest ones are dropped.
const MAX_QUEUED: usize = 1024;

/// Lifetime of the observation that a flow is degraded. The flow may have recovered since; if not,
/// it is observed again.
const DEGRADED_LIFETIME: Duration = Duration::from_secs(5);

/// Observations to be sent to the controller, in batches that it accepts. An observation that a
/// newer one supersedes is removed.
#[derive(Debug)]
pub(crate) struct Outbox {
    queued: VecDeque<(Instant, Observation)>,
    /// Sent, and not acknowledged yet.
    in_flight: Vec<(Instant, Observation)>,
    /// The maximum size of a batch. Reduced after a rejection, until the rejected observation is
    /// alone.
    batch_size: usize,
    dropped: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        let batch_size = Report::MAX_OBSERVATIONS;
        Outbox {
            queued: VecDeque::new(),
            in_flight: Vec::new(),
            batch_size,
            dropped: 0,
        }
    }
}

/// The subject of an observation. A newer observation supersedes an older one of the same subject.
#[derive(PartialEq, Eq)]
enum Subject<'a> {
    Judgement(&'a Name),
    Degradation(&'a Name),
    Silence(&'a Name, u8),
}

impl Outbox {
    /// Adds an observation of the time `at`.
    pub(crate) fn push(&mut self, at: Instant, observation: Observation) {
        if let Observation::SignalRefused { reason, count } = &observation {
            let same = self.queued.iter_mut().find_map(|(_, queued)| match queued {
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
        if let Some(newer) = subject(&observation) {
            self.queued
                .retain(|(_, queued)| subject(queued).is_none_or(|subject| subject != newer));
        }
        self.queued.push_back((at, observation));
        self.drop_oldest();
    }

    /// Returns whether no observations are queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// Returns the number of observations that are queued or in flight.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.queued.len() + self.in_flight.len()
    }

    /// Returns the number of observations that were dropped because too many were queued or the
    /// controller rejected them.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Takes the oldest queued observations, to be sent now. Call [`Outbox::handle_delivered`],
    /// [`Outbox::handle_rejected`] or [`Outbox::put_back`] before the next batch is taken.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Observation> {
        let fresh = |(at, observation): &(Instant, Observation)| {
            !matches!(observation, Observation::Degraded { .. })
                || now.saturating_since(*at) < DEGRADED_LIFETIME
        };
        self.queued.retain(fresh);
        self.in_flight = self
            .queued
            .drain(..self.queued.len().min(self.batch_size))
            .collect();
        self.in_flight
            .iter()
            .map(|(at, observation)| aged(observation, now.saturating_since(*at)))
            .collect()
    }

    /// The batch was delivered.
    pub(crate) fn handle_delivered(&mut self) {
        if !self.in_flight.is_empty() {
            self.in_flight.clear();
            self.batch_size = (self.batch_size * 2).min(Report::MAX_OBSERVATIONS);
        }
    }

    /// The controller rejected the batch. Half of it is sent again; a single observation is
    /// dropped.
    pub(crate) fn handle_rejected(&mut self) {
        match self.in_flight.len() {
            0 => {}
            1 => {
                self.in_flight.clear();
                self.dropped += 1;
            }
            several => {
                self.batch_size = several / 2;
                self.put_back();
            }
        }
    }

    /// The batch may not have been delivered, and is queued again.
    pub(crate) fn put_back(&mut self) {
        let newer = std::mem::take(&mut self.queued);
        self.queued = std::mem::take(&mut self.in_flight).into();
        newer
            .into_iter()
            .for_each(|(at, observation)| self.push(at, observation));
    }

    fn drop_oldest(&mut self) {
        while self.queued.len() > MAX_QUEUED {
            self.queued.pop_front();
            self.dropped += 1;
        }
    }
}

fn subject(observation: &Observation) -> Option<Subject<'_>> {
    match observation {
        Observation::Judged { flow, .. } => Some(Subject::Judgement(flow)),
        Observation::Degraded { flow, .. } => Some(Subject::Degradation(flow)),
        Observation::PathSilent { flow, path } | Observation::PathRestored { flow, path } => {
            Some(Subject::Silence(flow, *path))
        }
        _ => None,
    }
}

/// Adjusts the times of an observation that is sent `age` after it was made.
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
    use hawser_units::{PathSet, PolicyCode};

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn judged(flow: &str, epoch: u32) -> Observation {
        let (flow, reason) = (name(flow), String::new());
        Observation::Judged {
            flow,
            epoch,
            code: PolicyCode(1),
            probes: PathSet::EMPTY,
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
            code: PolicyCode(1),
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
        outbox.handle_delivered();
        outbox.put_back();
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_degradation_is_told_with_its_age_and_not_when_it_is_old() {
        let mut outbox = Outbox::default();
        outbox.push(at(0), degraded("a", 5));
        outbox.push(at(4_000), degraded("b", 5));
        let sent = outbox.take(at(6_000));
        assert_eq!(
            sent,
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

        outbox.handle_delivered();
        (0..MAX_QUEUED as u32 + 5).for_each(|epoch| outbox.push(at(2), applied(epoch)));
        assert_eq!(outbox.dropped(), 5);
        assert_eq!(outbox.take(at(3))[0], applied(5));
    }

    #[test]
    fn what_is_more_than_a_report_takes_goes_into_several() {
        let mut outbox = Outbox::default();
        let all: Vec<Observation> = (0..MAX_QUEUED as u32).map(applied).collect();
        all.iter()
            .for_each(|observation| outbox.push(at(0), observation.clone()));
        let mut sent = vec![];
        while !outbox.is_empty() {
            let part = outbox.take(at(1));
            assert!((1..=Report::MAX_OBSERVATIONS).contains(&part.len()));
            sent.extend(part);
            outbox.handle_delivered();
        }
        assert_eq!((sent, outbox.dropped()), (all, 0));
    }

    #[test]
    fn one_that_is_refused_takes_no_other_with_it() {
        let mut outbox = Outbox::default();
        (0..600).for_each(|epoch| outbox.push(at(0), applied(epoch)));
        let mut sent = vec![];
        while !outbox.is_empty() {
            let part = outbox.take(at(1));
            if part.contains(&applied(300)) {
                outbox.handle_rejected();
            } else {
                sent.extend(part);
            }
            outbox.handle_delivered();
        }
        let others: Vec<Observation> = (0..600)
            .filter(|epoch| *epoch != 300)
            .map(applied)
            .collect();
        assert_eq!((sent, outbox.dropped()), (others, 1));
    }
}
