use crate::judge::{Judge, Window};
use crate::viewer::Viewer;
use hawser_experience::Experience;
use hawser_model::Name;
use hawser_model::node::{Observation, Receive};
use hawser_model::resource::{Mode, Policy, Selector};
use hawser_pathset::JudgedPacket;
use hawser_units::{Instant, MAX_PATHS};
use std::time::Duration;

/// A pending degradation is resolved this long after the arrival deadline of its packets, even if
/// no packet arrived since.
const RESOLVE_WITHIN: Duration = Duration::from_millis(50);

/// Packets that arrived up to this long before the requests were late are judged as well, because
/// probes are few.
const LOOKBACK: Duration = Duration::from_millis(500);

/// A flow whose copies the node deduplicates, with the one record of its policy.
#[derive(Debug)]
pub struct ReceivedFlow {
    /// The flow as assigned, with the newest policy in force at the ingress.
    pub(crate) assigned: Receive,
    judge: Judge,
    viewer: Viewer,
    /// Whether the viewer's requests are watched.
    is_watched: bool,
    /// The arrival time of the newest packet that was judged.
    judged_until: Instant,
    pending: Option<PendingDegradation>,
}

/// A degradation that is not reported yet. The viewer's requests are late while the flow is on
/// paths that are judged. It is reported when the packets of that time have been judged, unless the
/// paths delivered them in time.
#[derive(Debug)]
struct PendingDegradation {
    at: Instant,
    /// The start of the time whose packets are judged.
    since: Instant,
    degraded: Observation,
}

/// The outcome of a pending degradation.
enum Resolution {
    /// The paths cause it, or there is no evidence that they do not.
    Confirmed(Instant, Observation),
    /// The paths delivered the packets in time.
    Dismissed,
}

impl ReceivedFlow {
    /// Returns a flow that is judged from now on. Its viewer is not watched.
    pub(crate) fn new(assigned: Receive, now: Instant) -> Self {
        ReceivedFlow {
            judge: Judge::new(&assigned, now),
            viewer: Viewer::new(assigned.trigger.as_ref()),
            is_watched: false,
            judged_until: now,
            pending: None,
            assigned,
        }
    }

    /// Returns the policy in force at the ingress.
    pub fn policy(&self) -> &Policy {
        &self.assigned.policy
    }

    /// Returns the mode, which determines how the paths are judged.
    pub fn mode(&self) -> Mode {
        self.assigned.mode
    }

    /// Returns the number of packets that were judged.
    pub fn packets(&self) -> u64 {
        self.judge.packets()
    }

    /// Returns the last complete window of packets.
    pub fn window(&self) -> Option<&Window> {
        self.judge.window()
    }

    /// Returns the viewer; `None` if its requests are not watched.
    pub fn viewer(&self) -> Option<&Viewer> {
        Some(&self.viewer).filter(|_| self.is_watched)
    }

    /// Returns the packets of the flow, as selected at the ingress.
    pub fn select(&self) -> Option<&Selector> {
        self.assigned.select.as_ref()
    }

    /// Returns the node that replicates the flow.
    pub fn peer(&self) -> &Name {
        &self.assigned.peer
    }

    /// Returns whether the judge can be kept: everything but the policy is the same.
    pub(crate) fn has_same_assignment(&self, other: &Receive) -> bool {
        Receive {
            policy: self.assigned.policy.clone(),
            ..other.clone()
        } == self.assigned
    }

    /// Returns the record of the viewer, if the other assignment has the same trigger.
    pub(crate) fn viewer_for(&self, other: &Receive) -> Option<Viewer> {
        let is_same = self.assigned.trigger == other.trigger;
        is_same.then(|| self.viewer.clone())
    }

    /// Takes over an earlier record of the viewer, if there is one, and watches its requests, or
    /// stops.
    pub(crate) fn set_viewer(&mut self, viewer: Option<Viewer>, is_watched: bool, now: Instant) {
        if let Some(viewer) = viewer {
            self.viewer = viewer;
        }
        self.is_watched = is_watched;
        if !is_watched {
            self.viewer.handle_end(now);
        }
        let Receive { policy, paths, .. } = &self.assigned;
        self.viewer.handle_policy(policy, *paths, now);
    }

    /// Takes over the policy of a new assignment of the same flow. Returns whether it is newer than
    /// the one in force.
    pub(crate) fn reassign(&mut self, policy: Policy, now: Instant) -> bool {
        let is_newer = policy.epoch > self.assigned.policy.epoch;
        self.assigned.policy = policy;
        if is_newer {
            self.judge.handle_policy(&self.assigned.policy, now);
        }
        is_newer
    }

    /// Applies a policy if it is newer than the one in force. Returns whether it is.
    pub(crate) fn handle_policy(&mut self, policy: &Policy, now: Instant) -> bool {
        if policy.epoch <= self.assigned.policy.epoch {
            return false;
        }
        if policy.code != self.assigned.policy.code && self.assigned.mode == Mode::Auto {
            // It is about the paths before, which the judge has left.
            self.pending = None;
        }
        self.assigned.policy = policy.clone();
        self.judge.handle_policy(policy, now);
        self.viewer.handle_policy(policy, self.assigned.paths, now);
        true
    }

    /// Passes the fate of a packet to the judge. Returns the window that it completes.
    pub(crate) fn handle_packet(&mut self, packet: &JudgedPacket) -> Option<&Window> {
        self.judged_until = self.judged_until.max(packet.at);
        self.judge.handle_packet(packet)
    }

    /// Passes the arrival times of the newest copies to the judge, by path index.
    pub(crate) fn handle_arrivals(&mut self, newest: &[Option<Instant>; MAX_PATHS]) {
        self.judge.handle_arrivals(newest);
    }

    /// Handles a request of the viewer.
    pub(crate) fn handle_request(&mut self, at: Instant) {
        if self.is_watched {
            self.viewer.handle_request(at);
        }
    }

    /// Handles a report of the application. A flow that stays on the default route cannot be helped.
    pub(crate) fn handle_experience(&mut self, at: Instant, experience: &Experience) {
        if self.assigned.mode != Mode::Single {
            self.viewer.handle_experience(at, experience);
        }
    }

    /// Handles the end of a connection of the viewer.
    pub(crate) fn handle_end(&mut self, at: Instant) {
        if self.is_watched {
            self.viewer.handle_end(at);
        }
    }

    /// Passes the size of frames to the judge, from the total number of requests.
    pub(crate) fn handle_request_count(&mut self, requests: u64) {
        let packets = self.judge.packets();
        if let Some(size) = self.viewer.handle_counts(requests, packets) {
            self.judge.handle_frame_size(size);
        }
    }

    /// Returns when [`ReceivedFlow::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self, arrival_deadline: Duration) -> Option<Instant> {
        let viewer = self.viewer.poll_timeout();
        let pending = self.pending.as_ref().map(|pending| {
            if self.judged_until >= pending.at {
                pending.at
            } else {
                pending.expires(arrival_deadline)
            }
        });
        let judge = self.judge.poll_timeout();
        viewer.into_iter().chain(pending).chain(judge).min()
    }

    /// Lets time pass, and passes the observations to `emit`, with their times.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        arrival_deadline: Duration,
        mut emit: impl FnMut(Instant, Observation),
    ) {
        let flow = &self.assigned.flow;
        if let Some((at, degraded)) = self.viewer.handle_timeout(flow, now) {
            if self.can_verify_degradation() {
                self.defer(at, degraded);
            } else {
                emit(at, degraded);
            }
        }
        match self.resolve(now, arrival_deadline) {
            Some(Resolution::Confirmed(at, degraded)) => emit(at, degraded),
            Some(Resolution::Dismissed) => self.viewer.rearm(now),
            None => {}
        }
        self.judge.handle_timeout(now);
        while let Some(observation) = self.judge.poll_observation(&self.assigned.policy) {
            emit(now, observation);
        }
    }

    /// Returns whether the packets can show if the paths cause late requests.
    fn can_verify_degradation(&self) -> bool {
        self.judge.measures_damage() && !self.assigned.policy.code.paths().is_empty()
    }

    fn defer(&mut self, at: Instant, degraded: Observation) {
        if let Observation::Degraded { silent_us, .. } = &degraded {
            let since = at - (Duration::from_micros(*silent_us) + LOOKBACK);
            self.pending = Some(PendingDegradation {
                at,
                since,
                degraded,
            });
        }
    }

    /// Resolves the pending degradation if the packets of its time have been judged, or if none
    /// arrived.
    fn resolve(&mut self, now: Instant, arrival_deadline: Duration) -> Option<Resolution> {
        let judged_until = self.judged_until;
        let pending = self.pending.take_if(|pending| {
            judged_until >= pending.at || now >= pending.expires(arrival_deadline)
        })?;
        Some(match self.judge.exceeded_tolerance_since(pending.since) {
            Some(false) => Resolution::Dismissed,
            Some(true) if self.judge.handle_degraded() => Resolution::Dismissed,
            Some(true) | None => Resolution::Confirmed(pending.at, pending.degraded),
        })
    }
}

impl PendingDegradation {
    /// Returns when the degradation is resolved although no packet was judged.
    fn expires(&self, arrival_deadline: Duration) -> Instant {
        self.at + (arrival_deadline + RESOLVE_WITHIN + Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::{PathId, PathSet, PolicyCode};

    const DEADLINE: Duration = Duration::from_millis(200);

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// A watched flow on two of three paths.
    fn flow(mode: &str) -> ReceivedFlow {
        let text = format!(
            r#"{{ "flow": "stage", "number": 4, "peer": "ingress", "mode": "{mode}", "pruning": {{}},
                  "paths": 7, "trigger": {{ "select": {{ "destination": "10.0.0.0/8" }} }},
                  "policy": {{ "flow": "stage", "epoch": 1, "code": 3, "probes": 0, "probe_every": 0,
                               "reason": "judged", "decided_unix_ms": 0 }} }}"#
        );
        let mut flow = ReceivedFlow::new(serde_json::from_str(&text).unwrap(), at(0));
        flow.set_viewer(None, true, at(0));
        flow
    }

    /// Passes packets that arrive every millisecond, on both paths or on none.
    fn pass_packets(flow: &mut ReceivedFlow, millis: std::ops::Range<u64>, arrive: bool) {
        for millis in millis {
            let mut skews = [None; MAX_PATHS];
            skews[..2].fill(arrive.then_some(Duration::ZERO));
            flow.handle_packet(&JudgedPacket {
                at: at(millis),
                flow: 4.try_into().unwrap(),
                sequence: millis,
                epoch: flow.policy().epoch as u8,
                sent: PathSet::from_bits(0b11),
                sent_micros: (millis * 1000) as u32,
                first: PathId::all().next().filter(|_| arrive),
                skews,
            });
        }
    }

    /// Lets time pass and returns the times at which a degradation is reported, each with the time
    /// that it is about.
    fn degraded(flow: &mut ReceivedFlow, millis: std::ops::Range<u64>) -> Vec<(u64, Instant)> {
        let mut reported = Vec::new();
        for now in millis {
            flow.handle_timeout(at(now), DEADLINE, |at, observation| {
                if matches!(observation, Observation::Degraded { .. }) {
                    reported.push((now, at));
                }
            });
        }
        reported
    }

    #[test]
    fn late_requests_on_unjudged_paths_are_reported_at_once() {
        let mut flow = flow("replicate");
        flow.handle_request(at(1_000));
        assert_eq!(degraded(&mut flow, 1_000..2_000), [(1_451, at(1_451))]);
    }

    #[test]
    fn late_requests_are_reported_when_packets_were_lost() {
        let mut flow = flow("evidence");
        pass_packets(&mut flow, 0..1_000, true);
        flow.handle_request(at(1_000));
        pass_packets(&mut flow, 1_000..1_450, false);
        assert!(degraded(&mut flow, 1_000..1_500).is_empty());
        pass_packets(&mut flow, 1_450..1_500, false);
        assert_eq!(flow.poll_timeout(DEADLINE), Some(at(1_451)));
        assert_eq!(degraded(&mut flow, 1_500..1_600), [(1_500, at(1_451))]);
    }

    #[test]
    fn auto_acts_on_late_requests_itself() {
        let mut flow = flow("auto");
        let mut observations = Vec::new();
        for now in 0..1_600 {
            pass_packets(&mut flow, now..now + 1, now < 1_000);
            if now == 1_000 {
                flow.handle_request(at(now));
            }
            let mut judged = None;
            flow.handle_timeout(at(now), DEADLINE, |_, observation| {
                if let Observation::Judged { code, probes, .. } = observation {
                    judged = Some((code, probes));
                }
                observations.push(observation);
            });
            if let Some((code, probes)) = judged {
                let epoch = flow.policy().epoch + 1;
                let policy = Policy {
                    epoch,
                    code,
                    probes,
                    ..flow.policy().clone()
                };
                assert!(flow.handle_policy(&policy, at(now)));
            }
        }
        let takes_all = |observation: &Observation| match observation {
            Observation::Judged { code, .. } => code.0 == 0b111,
            _ => false,
        };
        assert!(observations.iter().any(takes_all), "{observations:?}");
        let is_degraded =
            |observation: &Observation| matches!(observation, Observation::Degraded { .. });
        assert!(!observations.iter().any(is_degraded), "{observations:?}");
    }

    #[test]
    fn late_requests_are_not_reported_while_paths_deliver() {
        let mut flow = flow("evidence");
        flow.handle_request(at(1_000));
        assert!(degraded(&mut flow, 1_000..1_500).is_empty());
        pass_packets(&mut flow, 0..1_500, true);
        assert!(degraded(&mut flow, 1_500..1_600).is_empty());
        assert_eq!(flow.viewer().unwrap().degradations(), 1);
    }

    #[test]
    fn late_requests_are_reported_when_no_packet_arrives() {
        let mut flow = flow("evidence");
        flow.handle_request(at(1_000));
        assert_eq!(degraded(&mut flow, 1_000..2_000), [(1_702, at(1_451))]);
    }

    fn late(frames: u32) -> Experience {
        Experience {
            late: Some(frames),
            ..Experience::default()
        }
    }

    #[test]
    fn late_frames_on_the_default_route_are_reported_at_once() {
        for (mode, reported) in [("replicate", 1), ("evidence", 1), ("single", 0)] {
            let mut flow = flow(mode);
            flow.handle_policy(
                &Policy {
                    epoch: 2,
                    code: PolicyCode::OFF,
                    ..flow.policy().clone()
                },
                at(0),
            );
            flow.handle_experience(at(2_000), &late(3));
            let due = flow.poll_timeout(DEADLINE).filter(|due| *due <= at(2_000));
            assert_eq!(due.is_some(), reported == 1, "{mode}");
            assert_eq!(degraded(&mut flow, 2_000..9_000).len(), reported, "{mode}");
        }
    }

    #[test]
    fn reported_late_frames_are_not_believed_while_paths_deliver() {
        let mut flow = flow("evidence");
        pass_packets(&mut flow, 0..2_000, true);
        flow.handle_experience(at(2_000), &late(30));
        assert!(degraded(&mut flow, 2_000..2_010).is_empty());
        pass_packets(&mut flow, 2_000..2_010, true);
        assert!(degraded(&mut flow, 2_010..2_500).is_empty());
        assert_eq!(flow.viewer().unwrap().degradations(), 1);
    }

    #[test]
    fn only_a_newer_policy_is_applied() {
        let mut flow = flow("evidence");
        let newer = Policy {
            epoch: 2,
            code: PolicyCode(0b1),
            ..flow.policy().clone()
        };
        assert!(flow.handle_policy(&newer, at(1)));
        assert!(!flow.handle_policy(&newer, at(2)));
        let older = Policy { epoch: 1, ..newer };
        assert!(!flow.handle_policy(&older, at(3)));
        assert_eq!(flow.policy().epoch, 2);
    }
}
