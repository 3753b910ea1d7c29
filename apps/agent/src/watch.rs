//! Watches the viewers' requests at the egress. Late requests show that a flow is degraded.

use crate::assignment::Plan;
use crate::flows::Selectors;
use crate::status::WatchStatus;
use anyhow::{Context, Result};
use hawser_bpf::{Request, WatchStats, Watcher};
use hawser_control::Name;
use hawser_control::node::Observation;
use hawser_control::resource::{self, Policy};
use hawser_pathset::{Degraded, Trigger, TriggerConfig};
use hawser_units::{FlowId, Instant, PathSet};
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

/// A trigger that caused no change of policy is re-armed after this time.
const REARM_AFTER: Duration = Duration::from_secs(5);

/// Minimum number of requests for a sample of the frame size.
const MIN_REQUESTS: u64 = 10;

/// Weight of a new sample in the smoothed frame size.
const GAIN: f64 = 0.25;

/// The watch on the interfaces that face viewers.
pub(crate) struct Watch {
    watcher: Watcher,
    /// The indices of the interfaces to which the program is attached, by name.
    attached: BTreeMap<String, u32>,
    selectors: Selectors,
    flows: BTreeMap<FlowId, Watched>,
    requests: Vec<Request>,
}

/// A flow whose viewer's requests are watched.
#[derive(Debug)]
pub(crate) struct Watched {
    flow: Name,
    /// The trigger's description. A flow with another one gets a new trigger.
    settings: resource::Trigger,
    /// All paths that the flow can use.
    paths: PathSet,
    trigger: Trigger,
    fired_at: Option<Instant>,
    /// How often the trigger has fired.
    degraded: u64,
    on_all_paths: bool,
    frames: FrameSize,
}

/// The number of packets that answer a request.
#[derive(Debug, Default)]
struct FrameSize {
    requests: u64,
    packets: u64,
    smoothed: Option<f64>,
}

impl Watch {
    /// Loads the eBPF program.
    pub(crate) fn start() -> Result<Self> {
        Ok(Watch {
            watcher: Watcher::load().context("cannot load the program that watches requests")?,
            attached: BTreeMap::new(),
            selectors: Selectors::new(),
            flows: BTreeMap::new(),
            requests: Vec::new(),
        })
    }

    /// Watches the current interfaces.
    pub(crate) fn follow(
        &mut self,
        interfaces: &[String],
        number_of: impl Fn(&str) -> Option<u32>,
    ) {
        for name in interfaces {
            let (now, before) = (number_of(name), self.attached.get(name).copied());
            if now == before {
                continue;
            }
            before
                .into_iter()
                .for_each(|number| self.watcher.detach(number));
            self.attached.remove(name);
            let Some(number) = now else { continue };
            match self.watcher.attach(number) {
                Ok(()) => info!(interface = name, "watching requests"),
                // Logged once: the next attempt is made when the interface has another index.
                Err(error) => warn!(interface = name, "cannot watch requests: {error}"),
            }
            self.attached.insert(name.clone(), number);
        }
    }

    /// Watches the flows of a plan. Flows that are already watched keep their state.
    pub(crate) fn set_flows(&mut self, plan: &Plan, now: Instant) -> Result<()> {
        let mut before = std::mem::take(&mut self.flows);
        for (flow, trigger) in &plan.watched {
            let receive = &plan.receives[flow];
            let same =
                |watched: &Watched| watched.flow == receive.flow && watched.settings == *trigger;
            let mut watched = match before.remove(flow).filter(same) {
                Some(watched) => watched,
                None => {
                    let (min, max) = trigger.request_bytes;
                    self.watcher.set_flow(*flow, Some(min..=max))?;
                    Watched::new(receive.flow.clone(), trigger)
                }
            };
            watched.paths = receive.paths;
            watched.handle_policy(&receive.policy, now);
            self.flows.insert(*flow, watched);
        }
        for flow in before.keys().filter(|flow| !self.flows.contains_key(flow)) {
            self.watcher.set_flow(*flow, None)?;
        }
        for (prefix, rules) in &plan.watch_selectors {
            self.watcher.select(*prefix, rules)?;
        }
        for prefix in self
            .selectors
            .keys()
            .filter(|prefix| !plan.watch_selectors.contains_key(prefix))
        {
            self.watcher.select(*prefix, &[])?;
        }
        self.selectors = plan.watch_selectors.clone();
        Ok(())
    }

    /// Applies a policy that is in force at the ingress.
    pub(crate) fn handle_policy(&mut self, flow: FlowId, policy: &Policy, now: Instant) {
        if let Some(watched) = self.flows.get_mut(&flow) {
            watched.handle_policy(policy, now);
        }
    }

    /// Handles the records up to `now`, and passes the degraded flows to `emit`.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        mut emit: impl FnMut(FlowId, Instant, Observation),
    ) {
        self.requests.clear();
        self.watcher.drain(&mut self.requests);
        for request in &self.requests {
            let Some(watched) = self.flows.get_mut(&request.flow) else {
                continue;
            };
            if request.is_end() {
                watched.trigger.handle_end(request.at);
            } else {
                watched.trigger.handle_request(request.at);
            }
        }
        for (flow, watched) in &mut self.flows {
            if let Some((at, degraded)) = watched.poll(now) {
                emit(*flow, at, degraded);
            }
        }
    }

    /// Re-arms the trigger of a flow whose paths did not cause the late requests.
    pub(crate) fn rearm(&mut self, flow: FlowId, now: Instant) {
        if let Some(watched) = self.flows.get_mut(&flow) {
            watched.fired_at = None;
            watched.trigger.rearm(now);
        }
    }

    /// Returns the smoothed number of packets per request, if there is a new sample. `packets` is
    /// the number of packets of the flow so far.
    pub(crate) fn frame_size(&mut self, flow: FlowId, packets: u64) -> Option<f64> {
        let watched = self.flows.get_mut(&flow)?;
        let requests = self.watcher.stats(flow).ok()?.requests;
        watched.frames.handle(requests, packets)
    }

    /// Returns the flows with their counters.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (FlowId, &Watched, WatchStats)> {
        self.flows.iter().map(|(flow, watched)| {
            // A table that cannot be read is reported elsewhere.
            (
                *flow,
                watched,
                self.watcher.stats(*flow).unwrap_or_default(),
            )
        })
    }
}

impl Watched {
    fn new(flow: Name, settings: &resource::Trigger) -> Self {
        let config = TriggerConfig {
            late_after: Duration::from_millis(settings.late_after_ms.into()),
            in_a_row: settings.consecutive,
            ..TriggerConfig::default()
        };
        Watched {
            flow,
            settings: settings.clone(),
            paths: PathSet::EMPTY,
            trigger: Trigger::new(config),
            fired_at: None,
            degraded: 0,
            on_all_paths: false,
            frames: FrameSize::default(),
        }
    }

    pub(crate) fn status(&self, stats: WatchStats) -> WatchStatus {
        WatchStatus {
            requests: stats.requests,
            closed_connections: stats.ends,
            retransmissions: stats.retransmissions,
            records_lost: stats.lost,
            late: self.trigger.late_requests(),
            degraded: self.degraded,
            packets_per_request: self.frames.smoothed.map(|packets| packets.round() as u64),
        }
    }

    /// Applies a policy. A flow that is on all of its paths cannot be helped further; any other
    /// can.
    fn handle_policy(&mut self, policy: &Policy, now: Instant) {
        let on_all_paths = policy.code.paths() == self.paths;
        let had_fired = self.fired_at.take().is_some();
        if !on_all_paths && (had_fired || self.on_all_paths) {
            self.trigger.rearm(now);
        }
        self.on_all_paths = on_all_paths;
    }

    fn poll(&mut self, now: Instant) -> Option<(Instant, Observation)> {
        if self
            .fired_at
            .is_some_and(|at| now.saturating_since(at) > REARM_AFTER)
            && !self.on_all_paths
        {
            self.fired_at = None;
            self.trigger.rearm(now);
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
        let since_due_us = micros(at.saturating_since(due));
        Some((
            at,
            Observation::Degraded {
                flow: self.flow.clone(),
                since_due_us,
                silent_us: micros(silent),
            },
        ))
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
    use hawser_control::resource::{Cause, Selector};
    use hawser_units::PolicyCode;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn policy(epoch: u32, code: u8) -> Policy {
        let flow = "stage".parse().unwrap();
        let (reason, decided_unix_ms) = (Cause::Configured, 0);
        Policy {
            flow,
            epoch,
            code: PolicyCode(code),
            probes: PathSet::EMPTY,
            probe_every: 0,
            reason,
            decided_unix_ms,
        }
    }

    fn watched() -> Watched {
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
        let mut watched = Watched::new("stage".parse().unwrap(), &settings);
        watched.paths = PathSet::from_bits(0b11);
        watched.handle_policy(&policy(1, 0), at(0));
        watched
    }

    /// Polls every millisecond. Returns the times at which the flow was reported as degraded.
    fn degraded(watched: &mut Watched, millis: std::ops::Range<u64>) -> Vec<u64> {
        let mut reported = Vec::new();
        for now in millis {
            reported.extend(watched.poll(at(now)).map(|_| now));
        }
        reported
    }

    #[test]
    fn silence_is_told_once_and_again_when_the_help_was_taken_away() {
        let mut watched = watched();
        watched.trigger.handle_request(at(1_000));
        assert_eq!(degraded(&mut watched, 1_000..2_000), [1_201]);
        watched.handle_policy(&policy(2, 0b11), at(2_000));
        assert!(degraded(&mut watched, 2_000..9_000).is_empty());
        watched.handle_policy(&policy(3, 0b1), at(9_000));
        // One second of hold-off, then two requests that do not arrive.
        assert_eq!(degraded(&mut watched, 9_000..11_000), [10_201]);
    }

    #[test]
    fn silence_that_nobody_heeds_is_told_again() {
        let mut watched = watched();
        watched.trigger.handle_request(at(0));
        assert_eq!(
            degraded(&mut watched, 0..8_000),
            [201, 201 + 5_001 + 1_000 + 201]
        );
    }

    #[test]
    fn a_frame_has_as_many_packets_as_come_for_a_request() {
        let mut size = FrameSize::default();
        assert_eq!(size.handle(9, 100), None);
        assert_eq!(size.handle(10, 100), Some(10.0));
        // On the default route no packets are counted.
        assert_eq!(size.handle(40, 100), None);
        assert_eq!(size.handle(60, 500), Some(12.5));
    }
}
