//! The requests of a flow's viewer, and the reports of the application. Late requests and late frames
//! show that the flow is degraded.

use hawser_experience::Experience;
use hawser_model::Name;
use hawser_model::node::Observation;
use hawser_model::resource::{self, Policy};
use hawser_pathset::{Degraded, Trigger, TriggerConfig};
use hawser_units::{Instant, PathSet};
use std::time::Duration;

/// A trigger that caused no change of policy is re-armed after this time.
const REARM_AFTER: Duration = Duration::from_secs(5);

/// Minimum number of requests for a sample of the frame size.
const MIN_REQUESTS: u64 = 10;

/// Weight of a new sample in the smoothed frame size.
const GAIN: f64 = 0.25;

/// The viewer of a received flow, whose requests may be watched and which may report late frames.
#[derive(Debug, Clone)]
pub struct Viewer {
    trigger: Trigger,
    fired_at: Option<Instant>,
    /// How often the trigger has fired.
    degraded: u64,
    on_all_paths: bool,
    frames: FrameSize,
}

/// The number of packets that answer a request.
#[derive(Debug, Clone, Default)]
struct FrameSize {
    requests: u64,
    packets: u64,
    smoothed: Option<f64>,
}

impl Viewer {
    /// Creates the viewer of a flow with this trigger, or with the default limits of one.
    pub(crate) fn new(settings: Option<&resource::Trigger>) -> Self {
        let default = TriggerConfig::default();
        let config = settings.map_or(default, |settings| TriggerConfig {
            late_after: Duration::from_millis(settings.late_after_ms.into()),
            in_a_row: settings.consecutive,
            ..default
        });
        Viewer {
            trigger: Trigger::new(config),
            fired_at: None,
            degraded: 0,
            on_all_paths: false,
            frames: FrameSize::default(),
        }
    }

    /// Returns the number of late or missing requests. They are not counted while the flow is on all
    /// of its paths because of late requests, and for a second after that.
    pub fn late_requests(&self) -> u64 {
        self.trigger.late_requests()
    }

    /// Returns how often as many consecutive requests, or reported frames, were late as the trigger
    /// allows.
    pub fn degradations(&self) -> u64 {
        self.degraded
    }

    /// Returns the smoothed number of packets that answer a request, if known.
    pub fn packets_per_request(&self) -> Option<f64> {
        self.frames.smoothed
    }

    pub(crate) fn handle_request(&mut self, at: Instant) {
        self.trigger.handle_request(at);
    }

    /// Handles a report of the application.
    pub(crate) fn handle_experience(&mut self, at: Instant, experience: &Experience) {
        let stalled = Duration::from_millis(experience.stalled_ms.unwrap_or_default().into());
        let late = experience.late.unwrap_or_default();
        self.trigger.handle_report(at, late, stalled);
    }

    /// Handles the end of a connection. Silence is no sign of degradation until the next request.
    pub(crate) fn handle_end(&mut self, at: Instant) {
        self.trigger.handle_end(at);
    }

    /// Returns the smoothed number of packets per request, if there is a new sample. Both counts are
    /// totals.
    pub(crate) fn handle_counts(&mut self, requests: u64, packets: u64) -> Option<f64> {
        self.frames.handle(requests, packets)
    }

    /// Applies a policy. A flow that is on all of its paths cannot be helped further; any other
    /// can.
    pub(crate) fn handle_policy(&mut self, policy: &Policy, all: PathSet, now: Instant) {
        let on_all_paths = policy.code.paths() == all;
        let had_fired = self.fired_at.take().is_some();
        if !on_all_paths && (had_fired || self.on_all_paths) {
            self.trigger.rearm(now);
        }
        self.on_all_paths = on_all_paths;
    }

    /// Re-arms the trigger, because the paths did not cause the late requests.
    pub(crate) fn rearm(&mut self, now: Instant) {
        self.fired_at = None;
        self.trigger.rearm(now);
    }

    /// Returns when [`Viewer::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.trigger.has_event() {
            return Some(Instant::ZERO);
        }
        let rearm_at = self.fired_at.filter(|_| !self.on_all_paths);
        let rearm_at = rearm_at.map(|at| at + (REARM_AFTER + Duration::from_nanos(1)));
        rearm_at
            .into_iter()
            .chain(self.trigger.poll_timeout())
            .min()
    }

    /// Returns the degradation of the flow, if as many consecutive requests are late by `now` as
    /// the trigger allows, with the time of its detection.
    pub(crate) fn handle_timeout(
        &mut self,
        flow: &Name,
        now: Instant,
    ) -> Option<(Instant, Observation)> {
        let waited = |at: Instant| now.saturating_since(at) > REARM_AFTER;
        if self.fired_at.is_some_and(waited) && !self.on_all_paths {
            self.rearm(now);
        }
        self.trigger.handle_timeout(now);
        let Degraded { at, due, silent } = self.trigger.poll_event()?;
        self.degraded += 1;
        self.fired_at = Some(now);
        if self.on_all_paths {
            // No further paths can be added. A policy with fewer paths re-arms the trigger.
            return None;
        }
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let degraded = Observation::Degraded {
            flow: flow.clone(),
            since_due_us: micros(at.saturating_since(due)),
            silent_us: micros(silent),
        };
        Some((at, degraded))
    }
}

impl FrameSize {
    /// Returns the smoothed size, if there is a new sample.
    fn handle(&mut self, requests: u64, packets: u64) -> Option<f64> {
        let new = requests.saturating_sub(self.requests);
        if new < MIN_REQUESTS {
            return None;
        }
        let sample = packets.saturating_sub(self.packets) as f64 / new as f64;
        (self.requests, self.packets) = (requests, packets);
        if sample < 1.0 {
            // The flow takes the default route, where its packets are not counted.
            return None;
        }
        let smoothed = self
            .smoothed
            .map_or(sample, |before| before + GAIN * (sample - before));
        self.smoothed = Some(smoothed);
        self.smoothed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_model::resource::{Cause, Selector};
    use hawser_units::PolicyCode;

    const ALL: PathSet = PathSet::from_bits(0b11);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn stage() -> Name {
        "stage".parse().unwrap()
    }

    fn policy(epoch: u32, code: u8) -> Policy {
        Policy {
            flow: stage(),
            epoch,
            code: PolicyCode(code),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason: Cause::Configured,
            decided_unix_ms: 0,
        }
    }

    fn viewer() -> Viewer {
        let select = Selector {
            destination: "10.0.0.0/8".to_owned(),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        };
        let settings = resource::Trigger {
            select,
            request_bytes: (1, 200),
            late_after_ms: 100,
            consecutive: 2,
        };
        let mut viewer = Viewer::new(Some(&settings));
        viewer.handle_policy(&policy(1, 0), ALL, at(0));
        viewer
    }

    /// Lets every millisecond of a range pass. Returns the times at which the flow was reported as
    /// degraded.
    fn degraded(viewer: &mut Viewer, millis: std::ops::Range<u64>) -> Vec<u64> {
        let mut reported = Vec::new();
        for now in millis {
            let degraded = viewer.handle_timeout(&stage(), at(now));
            reported.extend(degraded.map(|_| now));
        }
        reported
    }

    #[test]
    fn silence_is_reported_again_after_fewer_paths() {
        let mut viewer = viewer();
        viewer.handle_request(at(1_000));
        assert_eq!(degraded(&mut viewer, 1_000..2_000), [1_201]);
        viewer.handle_policy(&policy(2, 0b11), ALL, at(2_000));
        assert!(degraded(&mut viewer, 2_000..9_000).is_empty());
        viewer.handle_policy(&policy(3, 0b1), ALL, at(9_000));
        // One second of hold-off, then two requests that do not arrive.
        assert_eq!(degraded(&mut viewer, 9_000..11_000), [10_201]);
    }

    #[test]
    fn silence_without_a_change_of_policy_is_reported_again() {
        let mut viewer = viewer();
        viewer.handle_request(at(0));
        assert_eq!(
            degraded(&mut viewer, 0..8_000),
            [201, 201 + 5_001 + 1_000 + 201]
        );
    }

    #[test]
    fn late_frames_are_reported_once_until_the_policy_changes() {
        let mut viewer = viewer();
        let mut reported = Vec::new();
        for second in 1..20u64 {
            let late = Experience {
                late: Some(30),
                ..Experience::default()
            };
            viewer.handle_experience(at(second * 1_000), &late);
            reported.extend(degraded(&mut viewer, second * 1_000..(second + 1) * 1_000));
        }
        // After a degradation that changed nothing, it is armed again, with a second of hold-off.
        assert_eq!(reported, [1_000, 8_000, 15_000]);
        viewer.handle_policy(&policy(2, 0b11), ALL, at(20_000));
        viewer.handle_experience(
            at(21_000),
            &Experience {
                stalled_ms: Some(1_000),
                ..Experience::default()
            },
        );
        assert!(degraded(&mut viewer, 21_000..40_000).is_empty());
    }

    #[test]
    fn the_size_of_a_frame_is_the_number_of_packets_for_a_request() {
        let mut size = FrameSize::default();
        assert_eq!(size.handle(9, 100), None);
        assert_eq!(size.handle(10, 100), Some(10.0));
        // On the default route no packets are counted.
        assert_eq!(size.handle(40, 100), None);
        assert_eq!(size.handle(60, 500), Some(12.5));
    }
}
