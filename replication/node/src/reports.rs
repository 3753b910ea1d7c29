//! Decides when the node reports next.

use crate::message::{PathState, ReportContent};
use crate::outbox::Outbox;
use hawser_model::discovery::Ends;
use hawser_units::Instant;
use std::time::Duration;

/// The relative change of a round-trip time, against the last reported one, that is reported at
/// once.
const RTT_CHANGE: f64 = 0.2;

/// The shortest interval between reports of a changed health.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// The state of reporting.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(crate) outbox: Outbox,
    /// Whether the controller can take a report.
    pub(crate) is_ready: bool,
    /// The time at which a report is due although there is nothing new.
    pub(crate) next_at: Instant,
    /// The states of all paths.
    pub(crate) paths: Vec<PathState>,
    /// The candidates for paths on which the other node answers.
    pub(crate) reached: Vec<Ends>,
    /// The time of the last report, and the states of the paths and the candidates in it.
    reported: Option<(Instant, Vec<PathState>, Vec<Ends>)>,
}

impl Reports {
    pub(crate) fn new(now: Instant) -> Self {
        Reports {
            outbox: Outbox::default(),
            is_ready: false,
            next_at: now,
            paths: Vec::new(),
            reached: Vec::new(),
            reported: None,
        }
    }

    /// Returns when the next report is due; `None` while the controller cannot take one.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if !self.is_ready {
            return None;
        }
        if !self.outbox.is_empty() {
            return Some(Instant::ZERO);
        }
        let changed = self.reported.as_ref();
        let changed = changed.filter(|(_, paths, reached)| {
            self.have_paths_changed(paths) || self.reached != *reached
        });
        let changed = changed.map(|(at, ..)| *at + MIN_REPORT_INTERVAL);
        changed.into_iter().chain([self.next_at]).min()
    }

    /// Returns the report that is due, and schedules the next one after `interval`.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        revision: u64,
        interval: Duration,
    ) -> Option<ReportContent> {
        if self.poll_timeout().is_none_or(|due| now < due) {
            return None;
        }
        self.is_ready = false;
        self.next_at = now + interval;
        self.reported = Some((now, self.paths.clone(), self.reached.clone()));
        Some(ReportContent {
            revision,
            paths: self.paths.clone(),
            reached: self.reached.clone(),
            observations: self.outbox.take(now),
        })
    }

    fn have_paths_changed(&self, reported: &[PathState]) -> bool {
        self.paths.iter().any(|now| {
            let before = reported.iter().find(|before| before.path == now.path);
            before.is_some_and(|before| {
                before.up != now.up || has_rtt_changed(before.rtt_us, now.rtt_us)
            })
        })
    }
}

fn has_rtt_changed(reported_us: Option<u32>, now_us: Option<u32>) -> bool {
    match (reported_us, now_us) {
        (Some(reported), Some(now)) => {
            f64::from(reported.abs_diff(now)) > RTT_CHANGE * f64::from(reported.max(1))
        }
        (reported, now) => reported.is_some() != now.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::PathId;

    const INTERVAL: Duration = Duration::from_secs(5);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn paths(up: bool, rtt_us: Option<u32>) -> Vec<PathState> {
        let states = PathId::all()
            .take(1)
            .map(|path| PathState { path, up, rtt_us });
        states.collect()
    }

    /// Returns whether a report is made.
    fn reports(reports: &mut Reports, now: Instant) -> bool {
        let made = reports.poll(now, 1, INTERVAL).is_some();
        reports.is_ready = true;
        made
    }

    #[test]
    fn a_report_waits_for_the_controller_and_then_for_its_interval() {
        let mut state = Reports::new(at(0));
        assert_eq!(
            (state.poll_timeout(), state.poll(at(1), 1, INTERVAL)),
            (None, None)
        );
        state.is_ready = true;
        assert!(reports(&mut state, at(1)));
        assert!(!reports(&mut state, at(5_000)));
        assert_eq!(state.poll_timeout(), Some(at(5_001)));
        assert!(reports(&mut state, at(5_001)));
    }

    #[test]
    fn a_changed_path_is_reported_soon_but_not_noise() {
        let mut state = Reports::new(at(0));
        state.is_ready = true;
        state.paths = paths(true, Some(10_000));
        assert!(reports(&mut state, at(0)));
        state.paths = paths(true, Some(12_000));
        assert!(!reports(&mut state, at(600)));
        for (millis, paths) in [
            (700, paths(true, Some(12_001))),
            (1_300, paths(false, Some(12_001))),
            (1_900, paths(false, None)),
        ] {
            state.paths = paths;
            assert!(reports(&mut state, at(millis)), "{millis}");
        }
        state.paths = paths(true, None);
        assert!(!reports(&mut state, at(2_399)));
        assert!(reports(&mut state, at(2_400)));
        state.reached = vec![Ends {
            local: [192, 0, 2, 1].into(),
            remote: [192, 0, 2, 2].into(),
        }];
        assert!(reports(&mut state, at(2_900)));
        assert!(!reports(&mut state, at(3_400)));
    }
}
