use crate::assignment::Plan;
use crate::config::Config;
use crate::flows::Flows;
use crate::judge::Judge;
use crate::status::{JudgedStatus, WindowStatus};
use crate::trace::{Change, Trace};
use crate::watch::Watch;
use anyhow::Result;
use hawser_control::node::{Observation, Receive};
use hawser_control::resource::Policy;
use hawser_pathset::JudgedPacket;
use hawser_units::{FlowId, Instant};
use hawser_wire::SealRing;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long copies of a removed flow may still be in flight.
const LINGER: Duration = Duration::from_secs(5);

/// A pending degradation is resolved this long after the arrival deadline of its packets, even if
/// no packet arrived since.
const RESOLVE_WITHIN: Duration = Duration::from_millis(50);

/// Packets that arrived up to this long before the requests were late are judged as well, because
/// probes are few.
const LOOKBACK: Duration = Duration::from_millis(500);

/// The state of received flows at the egress node: their judges, and the watch on their viewers'
/// requests.
pub(super) struct Egress {
    watch: Option<Watch>,
    received: BTreeMap<FlowId, Received>,
    /// Removed flows whose copies are still deduplicated, with the time until which they are.
    lingering: BTreeMap<FlowId, (SealRing, Instant)>,
    /// The time within which all copies of a packet arrive.
    arrival_deadline: Duration,
}

struct Received {
    assigned: Receive,
    /// The policy in force at the ingress.
    policy: Policy,
    judge: Judge,
    /// The arrival time of the newest packet that was judged.
    judged_until: Instant,
    pending: Option<PendingDegradation>,
}

/// A degradation that is not reported yet. The viewer's requests are late while the flow is on
/// paths that are judged. It is reported when the packets of that time have been judged, unless the
/// paths delivered them in time.
struct PendingDegradation {
    at: Instant,
    /// The start of the time whose packets are judged.
    since: Instant,
    degraded: Observation,
}

impl Egress {
    pub(super) fn start(config: &Config) -> Result<Self> {
        let watch = (!config.watch.is_empty()).then(Watch::start).transpose()?;
        let arrival_deadline = config.arrival_deadline;
        Ok(Egress {
            watch,
            received: BTreeMap::new(),
            lingering: BTreeMap::new(),
            arrival_deadline,
        })
    }

    pub(super) fn follow(
        &mut self,
        interfaces: &[String],
        number_of: impl Fn(&str) -> Option<u32>,
    ) {
        if let Some(watch) = &mut self.watch {
            watch.follow(interfaces, number_of);
        }
    }

    /// Judges and watches the flows of a plan. Flows whose assignment has not changed keep their
    /// state.
    pub(super) fn set_flows(&mut self, plan: &Plan, now: Instant, trace: &mut Trace) -> Result<()> {
        let mut before = std::mem::take(&mut self.received);
        for (flow, receive) in &plan.receives {
            let same = |received: &Received| received.has_same_assignment(receive);
            let received = before.remove(flow).filter(same);
            let received = received.unwrap_or_else(|| Received::new(receive, now));
            self.received.insert(*flow, received);
        }
        for (flow, receive) in &plan.receives {
            self.apply_policy(*flow, &receive.policy, now, trace);
        }
        match &mut self.watch {
            Some(watch) => watch.set_flows(plan, now),
            None => Ok(()),
        }
    }

    /// Discards all judges and policies.
    pub(super) fn reset(&mut self) {
        self.received.clear();
    }

    /// Applies a policy. Returns `false` if it is not newer than the one in force or belongs to no
    /// received flow.
    pub(super) fn set_policy(
        &mut self,
        plan: &Plan,
        policy: &Policy,
        now: Instant,
        trace: &mut Trace,
    ) -> bool {
        let Some(flow) = plan.received(&policy.flow) else {
            return false;
        };
        let is_new = self.apply_policy(flow, policy, now, trace);
        if let (true, Some(watch)) = (is_new, &mut self.watch) {
            watch.handle_policy(flow, policy, now);
        }
        is_new
    }

    /// Passes the fate of a packet to the judge of its flow.
    pub(super) fn handle_packet(&mut self, packet: &JudgedPacket, trace: &mut Trace) {
        let Some(received) = self.received.get_mut(&packet.flow) else {
            return;
        };
        received.judged_until = received.judged_until.max(packet.at);
        if let Some(window) = received.judge.handle_packet(packet) {
            trace.window(
                packet.at,
                &received.assigned.flow,
                received.policy.epoch,
                window,
            );
        }
    }

    /// Returns the observations to report, with their times.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<(Instant, Observation)> {
        let mut observations = Vec::new();
        if let Some(watch) = &mut self.watch {
            watch.poll(now, |flow, at, degraded| {
                match self.received.get_mut(&flow) {
                    Some(received) if received.can_verify_degradation() => {
                        received.defer(at, degraded)
                    }
                    _ => observations.push((at, degraded)),
                }
            });
            for (flow, received) in &mut self.received {
                match received.resolve(now, self.arrival_deadline) {
                    Some(Resolution::Confirmed(at, degraded)) => observations.push((at, degraded)),
                    Some(Resolution::Dismissed) => watch.rearm(*flow, now),
                    None => {}
                }
            }
        }
        for received in self.received.values_mut() {
            received
                .judge
                .poll(now, |observation| observations.push((now, observation)));
        }
        observations
    }

    /// Updates the number of packets per frame in the judges.
    pub(super) fn update_frame_sizes(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        for (flow, received) in &mut self.received {
            if let Some(packets_per_frame) = watch.frame_size(*flow, received.judge.packets()) {
                received.judge.handle_frame_size(packets_per_frame);
            }
        }
    }

    /// Keeps deduplicating the flows that are no longer in the plan.
    pub(super) fn linger(&mut self, before: &Plan, plan: &Plan, now: Instant) {
        for (flow, keys) in &before.flows.receive {
            self.lingering.insert(*flow, (keys.clone(), now + LINGER));
        }
        self.lingering
            .retain(|flow, _| !plan.flows.receive.contains_key(flow));
    }

    pub(super) fn add_lingering(&self, flows: &mut Flows) {
        flows.receive.extend(
            self.lingering
                .iter()
                .map(|(flow, (keys, _))| (*flow, keys.clone())),
        );
    }

    /// Removes the flows whose copies are no longer in flight. Returns whether there were any.
    pub(super) fn expire_lingering(&mut self, now: Instant) -> bool {
        let before = self.lingering.len();
        self.lingering.retain(|_, (_, until)| now < *until);
        self.lingering.len() < before
    }

    pub(super) fn status(&self) -> BTreeMap<u16, JudgedStatus> {
        let mut status: BTreeMap<u16, JudgedStatus> = self
            .received
            .iter()
            .map(|(flow, received)| {
                let judged = JudgedStatus {
                    policy: (&received.policy).into(),
                    mode: format!("{:?}", received.assigned.mode).to_lowercase(),
                    packets: received.judge.packets(),
                    window: received.judge.window().map(WindowStatus::from),
                    watch: None,
                };
                ((*flow).into(), judged)
            })
            .collect();
        for (flow, watched, stats) in self.watch.iter().flat_map(Watch::flows) {
            if let Some(judged) = status.get_mut(&flow.into()) {
                judged.watch = Some(watched.status(stats));
            }
        }
        status
    }

    fn apply_policy(
        &mut self,
        flow: FlowId,
        policy: &Policy,
        now: Instant,
        trace: &mut Trace,
    ) -> bool {
        let Some(received) = self.received.get_mut(&flow) else {
            return false;
        };
        if policy.epoch <= received.policy.epoch {
            return false;
        }
        let Policy {
            epoch,
            code,
            probes,
            probe_every,
            reason,
            ..
        } = *policy;
        received.policy = policy.clone();
        received.judge.handle_policy(epoch, code, probes, now);
        let detail = format!("{reason:?}").to_lowercase();
        let change = Change {
            event: "policy",
            epoch,
            code,
            probes,
            probe_every,
            detail: &detail,
        };
        trace.change(now, &policy.flow, change);
        true
    }
}

impl Received {
    fn new(assigned: &Receive, now: Instant) -> Self {
        Received {
            judge: Judge::new(assigned, now),
            policy: assigned.policy.clone(),
            assigned: assigned.clone(),
            judged_until: now,
            pending: None,
        }
    }

    /// Returns whether the packets can show if the paths cause late requests.
    fn can_verify_degradation(&self) -> bool {
        self.judge.measures_damage() && !self.policy.code.paths().is_empty()
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
        let pending = self.pending.take_if(|pending| {
            self.judged_until >= pending.at || now > pending.at + arrival_deadline + RESOLVE_WITHIN
        })?;
        Some(match self.judge.exceeded_tolerance_since(pending.since) {
            Some(false) => Resolution::Dismissed,
            Some(true) | None => Resolution::Confirmed(pending.at, pending.degraded),
        })
    }

    /// Returns whether the judge can be kept: everything but the policy is the same.
    fn has_same_assignment(&self, other: &Receive) -> bool {
        Receive {
            policy: self.assigned.policy.clone(),
            ..other.clone()
        } == self.assigned
    }
}

/// The outcome of a pending degradation.
enum Resolution {
    /// The paths cause it, or there is no evidence that they do not.
    Confirmed(Instant, Observation),
    /// The paths delivered the packets in time.
    Dismissed,
}
