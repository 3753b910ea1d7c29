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
use hawser_units::{FlowId, Instant, PathSet, PolicyCode};
use hawser_wire::SealRing;
use std::collections::BTreeMap;
use std::time::Duration;

/// Copies of a flow that has ended may still be on their way for so long.
const LINGER: Duration = Duration::from_secs(5);

/// A doubt ends so long after the copies of its time are in, although nothing came since.
const SETTLE_WITHIN: Duration = Duration::from_millis(50);

/// What came so long before the requests were late is looked at as well: probes are few.
const LOOK_BACK: Duration = Duration::from_millis(500);

/// What the node that eliminates makes of the packets of flows and of their viewers' requests.
pub(super) struct Egress {
    watch: Option<Watch>,
    received: BTreeMap<FlowId, Received>,
    /// Flows that have ended, until when their copies are still eliminated.
    lingering: BTreeMap<FlowId, (SealRing, Instant)>,
    /// When all copies of a packet are in.
    arrival_deadline: Duration,
}

struct Received {
    asked: Receive,
    /// In force at the ingress.
    policy: Policy,
    judge: Judge,
    /// When the newest packet that was judged came.
    judged_until: Instant,
    doubt: Option<Doubt>,
}

/// The viewer's requests are late while the flow is on paths that are judged: it is told when the packets of that time have
/// been judged too, unless the paths did what they should.
struct Doubt {
    at: Instant,
    /// From when on packets count.
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

    /// Judges and watches the flows of a plan. Those that are asked for as before go on.
    pub(super) fn set_flows(&mut self, plan: &Plan, now: Instant, trace: &mut Trace) -> Result<()> {
        let mut before = std::mem::take(&mut self.received);
        for (flow, receive) in &plan.receives {
            let same = |received: &Received| received.is_asked_as(receive);
            let received = before.remove(flow).filter(same);
            let received = received.unwrap_or_else(|| Received::new(receive, now));
            self.received.insert(*flow, received);
        }
        for (flow, receive) in &plan.receives {
            self.take_policy(*flow, &receive.policy, now, trace);
        }
        match &mut self.watch {
            Some(watch) => watch.set_flows(plan, now),
            None => Ok(()),
        }
    }

    /// Forgets what was judged and by which policies.
    pub(super) fn forget(&mut self) {
        self.received.clear();
    }

    /// Takes note of a policy; false when it is not newer or of no flow that is received here.
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
        let is_new = self.take_policy(flow, policy, now, trace);
        if let (true, Some(watch)) = (is_new, &mut self.watch) {
            watch.handle_policy(flow, policy, now);
        }
        is_new
    }

    /// Takes in what became of a packet.
    pub(super) fn handle_packet(&mut self, packet: &JudgedPacket, trace: &mut Trace) {
        let Some(received) = self.received.get_mut(&packet.flow) else {
            return;
        };
        received.judged_until = received.judged_until.max(packet.at);
        if let Some(window) = received.judge.handle_packet(packet) {
            trace.window(
                packet.at,
                &received.asked.flow,
                received.policy.epoch,
                window,
            );
        }
    }

    /// What is to be told.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<(Instant, Observation)> {
        let mut said = Vec::new();
        if let Some(watch) = &mut self.watch {
            watch.poll(now, |flow, at, degraded| {
                match self.received.get_mut(&flow) {
                    Some(received) if received.can_doubt() => received.doubt(at, degraded),
                    _ => said.push((at, degraded)),
                }
            });
            for (flow, received) in &mut self.received {
                match received.settle(now, self.arrival_deadline) {
                    Some(Settled::Founded(at, degraded)) => said.push((at, degraded)),
                    Some(Settled::Unfounded) => watch.rearm(*flow, now),
                    None => {}
                }
            }
        }
        for received in self.received.values_mut() {
            received
                .judge
                .poll(now, |observation| said.push((now, observation)));
        }
        said
    }

    /// Tells the judges how many packets the frames have.
    pub(super) fn frame_sizes(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        for (flow, received) in &mut self.received {
            if let Some(packets_per_frame) = watch.frame_size(*flow, received.judge.packets()) {
                received.judge.handle_frame_size(packets_per_frame);
            }
        }
    }

    /// Goes on eliminating copies of the flows that are no longer in the plan.
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

    /// Whether there are flows whose copies are no longer on their way; they are forgotten.
    pub(super) fn has_left(&mut self, now: Instant) -> bool {
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
                    mode: format!("{:?}", received.asked.mode).to_lowercase(),
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

    fn take_policy(
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
            because,
            ..
        } = *policy;
        received.policy = policy.clone();
        received
            .judge
            .handle_policy(epoch, PolicyCode(code), PathSet::from_bits(probes), now);
        let detail = format!("{because:?}").to_lowercase();
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
    fn new(asked: &Receive, now: Instant) -> Self {
        Received {
            judge: Judge::new(asked, now),
            policy: asked.policy.clone(),
            asked: asked.clone(),
            judged_until: now,
            doubt: None,
        }
    }

    /// Whether the packets will tell if the paths are to blame.
    fn can_doubt(&self) -> bool {
        self.judge.knows_damage() && !PolicyCode(self.policy.code).paths().is_empty()
    }

    fn doubt(&mut self, at: Instant, degraded: Observation) {
        if let Observation::Degraded { silent_us, .. } = &degraded {
            let since = at - (Duration::from_micros(*silent_us) + LOOK_BACK);
            self.doubt = Some(Doubt {
                at,
                since,
                degraded,
            });
        }
    }

    /// Ends a doubt when the packets of its time have been judged, or when there were none.
    fn settle(&mut self, now: Instant, arrival_deadline: Duration) -> Option<Settled> {
        let doubt = self.doubt.take_if(|doubt| {
            self.judged_until >= doubt.at || now > doubt.at + arrival_deadline + SETTLE_WITHIN
        })?;
        Some(match self.judge.suffered_since(doubt.since) {
            Some(false) => Settled::Unfounded,
            Some(true) | None => Settled::Founded(doubt.at, doubt.degraded),
        })
    }

    /// Whether a judgement that has begun can go on.
    fn is_asked_as(&self, other: &Receive) -> bool {
        Receive {
            policy: self.asked.policy.clone(),
            ..other.clone()
        } == self.asked
    }
}

/// What became of a doubt.
enum Settled {
    /// The paths are to blame, or nothing speaks for them.
    Founded(Instant, Observation),
    /// They did what they should.
    Unfounded,
}
