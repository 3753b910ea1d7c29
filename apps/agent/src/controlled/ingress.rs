use crate::assignment::Plan;
use crate::config::{ControllerConfig, parse_key};
use crate::first_copy::FirstCopies;
use crate::flows::Flows;
use crate::node::Node;
use anyhow::{Context, Result};
use hawser_bpf::{SendPolicy, SignalEvent, SignalEvents, SignalOptions, SignalOutcome};
use hawser_control::node::Observation;
use hawser_units::{FlowId, Instant};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// The policies at the ingress node, from the controller and from in-band signals.
pub(super) struct Ingress {
    /// The reader of the kernel's signal events, on a node that replicates.
    events: Option<SignalEvents>,
    /// The key with which signals are accepted, and the interfaces on which they are.
    signal_settings: Option<(String, Vec<u32>)>,
    /// The counts of rejected signals at the last report.
    reported: BTreeMap<SignalOutcome, u64>,
    /// The number of replayed signals, counted separately because repetitions of a signal are
    /// rejected for their epoch too.
    replayed: u64,
    first_copies: FirstCopies,
    in_force: BTreeMap<FlowId, SendPolicy>,
}

/// A policy that took effect in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) flow: FlowId,
    pub(super) policy: SendPolicy,
    /// Whether it came by signal.
    pub(super) by_signal: bool,
    pub(super) at: Instant,
}

impl Ingress {
    pub(super) fn start(node: &Node) -> Result<Self> {
        let events = node
            .sender()
            .map(|sender| sender.signal_events())
            .transpose()?;
        let in_force = node
            .flows()
            .send
            .iter()
            .map(|(flow, sent)| (*flow, sent.policy))
            .collect();
        Ok(Ingress {
            events,
            signal_settings: None,
            reported: BTreeMap::new(),
            replayed: 0,
            first_copies: FirstCopies::default(),
            in_force,
        })
    }

    /// Accepts signals with `key` on the configured interfaces that exist. Without a key, accepts
    /// none.
    pub(super) fn configure_signals(
        &mut self,
        node: &mut Node,
        settings: &ControllerConfig,
        key: Option<&str>,
    ) -> Result<()> {
        let numbers = settings
            .interfaces
            .iter()
            .filter_map(|name| node.interface_number(name));
        let wanted = key
            .filter(|_| settings.signals.is_some())
            .map(|key| (key.to_owned(), numbers.collect()));
        if wanted == self.signal_settings {
            return Ok(());
        }
        let Some(sender) = node.sender_mut() else {
            return Ok(());
        };
        match (&wanted, settings.signals) {
            (Some((digits, interfaces)), Some(address)) => {
                let key = parse_key(digits)
                    .context("the controller's signal key is not a key of 32 hexadecimal digits")?;
                let interfaces: &Vec<u32> = interfaces;
                sender.enable_signals(&SignalOptions {
                    interfaces: interfaces.clone(),
                    addresses: vec![address.ip()],
                    port: address.port(),
                    key,
                })?;
                info!("accepting in-band signals to {address}");
            }
            _ => sender.disable_signals(),
        }
        self.signal_settings = wanted;
        Ok(())
    }

    /// Applies a policy, unless it is not newer than the one in force.
    pub(super) fn set_policy(
        &mut self,
        node: &Node,
        flow: FlowId,
        policy: SendPolicy,
        now: Instant,
    ) -> Result<Option<Effect>> {
        let applied = node.set_policy(flow, policy)?;
        Ok(applied.then(|| {
            self.took_effect(Effect {
                flow,
                policy,
                by_signal: false,
                at: now,
            })
        }))
    }

    /// Replaces the flows. Returns the policies that took effect.
    pub(super) fn set_flows(
        &mut self,
        node: &mut Node,
        flows: Flows,
        replace_policies: bool,
        now: Instant,
    ) -> Result<Vec<Effect>> {
        self.in_force
            .retain(|flow, _| flows.send.contains_key(flow));
        let changed = node.set_flows(flows, replace_policies)?;
        let sent = &node.flows().send;
        let effects: Vec<_> = changed
            .into_iter()
            .map(|flow| Effect {
                flow,
                policy: sent[&flow].policy,
                by_signal: false,
                at: now,
            })
            .collect();
        Ok(effects
            .into_iter()
            .map(|effect| self.took_effect(effect))
            .collect())
    }

    /// Returns the policies that signals have applied since the last call.
    pub(super) fn poll(&mut self, node: &Node) -> Vec<Effect> {
        let (Some(events), Some(sender)) = (&mut self.events, node.sender()) else {
            return Vec::new();
        };
        let events = events.drain().unwrap_or_else(|error| {
            warn!("cannot read the events of in-band signals: {error}");
            Vec::new()
        });
        let mut effects = Vec::new();
        for SignalEvent {
            at,
            flow,
            epoch,
            code,
            outcome,
        } in events
        {
            let Some(flow) = flow else { continue };
            let in_force = sender.policy_in_force(flow);
            match outcome {
                SignalOutcome::Accepted => {
                    // The policy in force may be newer already. Its own event reports it.
                    let probed = if in_force.epoch == epoch {
                        in_force
                    } else {
                        SendPolicy::default()
                    };
                    let policy = SendPolicy {
                        code,
                        epoch,
                        ..probed
                    };
                    effects.push(self.took_effect(Effect {
                        flow,
                        policy,
                        by_signal: true,
                        at,
                    }));
                }
                SignalOutcome::Epoch => self.replayed += u64::from(epoch < in_force.epoch),
                _ => {}
            }
        }
        effects
    }

    /// Returns the numbers of signals that were rejected since the last call.
    pub(super) fn refused_signals(&mut self, node: &Node) -> Vec<Observation> {
        let mut refused = Vec::new();
        for (outcome, count) in counts(node) {
            let before = self.reported.insert(outcome, count).unwrap_or_default();
            // Each policy is sent several times. All repetitions are rejected for their epoch.
            if !matches!(outcome, SignalOutcome::Accepted | SignalOutcome::Epoch) {
                refused.push((outcome, count.saturating_sub(before)));
            }
        }
        refused.push((SignalOutcome::Epoch, std::mem::take(&mut self.replayed)));
        let new = refused.into_iter().filter(|(_, count)| *count > 0);
        new.map(|(outcome, count)| Observation::SignalRefused {
            reason: outcome.name().to_owned(),
            count,
        })
        .collect()
    }

    /// Returns the number of signals since the programs were loaded, by outcome.
    pub(super) fn signal_counts(&self, node: &Node) -> BTreeMap<String, u64> {
        let occurred = counts(node).into_iter().filter(|(_, count)| *count > 0);
        occurred
            .map(|(outcome, count)| (outcome.name().to_owned(), count))
            .collect()
    }

    /// Returns whether a first copy is awaited.
    pub(super) fn is_waiting(&self) -> bool {
        self.first_copies.is_waiting()
    }

    /// Records how many copies were sent on paths that are not in use.
    pub(super) fn record_copies(&mut self, node: &Node, plan: &Plan) {
        for (flow, policy) in &self.in_force {
            if !plan.flows.send.contains_key(flow) {
                continue;
            }
            let in_use = policy.code.paths();
            for path in node
                .config()
                .paths
                .keys()
                .filter(|path| !in_use.contains(**path))
            {
                self.first_copies
                    .record(*flow, *path, node.copies(*flow, *path));
            }
        }
    }

    /// Returns the first copies under policies that took effect recently.
    pub(super) fn first_copies(
        &mut self,
        node: &Node,
        plan: &Plan,
        now: Instant,
    ) -> Vec<(Instant, Observation)> {
        if !self.first_copies.is_waiting() {
            return Vec::new();
        }
        let found = self
            .first_copies
            .poll(now, |flow, path| node.copies(flow, path));
        let observation = |first: crate::first_copy::FirstCopy| {
            let flow = plan.flows.send.get(&first.flow)?.name.clone()?;
            let after_us = u64::try_from(first.after.as_micros()).unwrap_or(u64::MAX);
            Some((
                now,
                Observation::FirstReplica {
                    flow,
                    epoch: first.epoch,
                    after_us,
                },
            ))
        };
        found.into_iter().filter_map(observation).collect()
    }

    fn took_effect(&mut self, effect: Effect) -> Effect {
        let before = self
            .in_force
            .insert(effect.flow, effect.policy)
            .unwrap_or_default();
        let (before, after) = (before.code.paths(), effect.policy.code.paths());
        self.first_copies
            .start(effect.flow, effect.policy.epoch, before, after, effect.at);
        effect
    }
}

fn counts(node: &Node) -> Vec<(SignalOutcome, u64)> {
    // A table that cannot be read is reported elsewhere.
    node.sender()
        .and_then(|sender| sender.signal_counts().ok())
        .unwrap_or_default()
}
