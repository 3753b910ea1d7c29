use crate::config::{ControllerConfig, parse_key};
use crate::node::Node;
use anyhow::{Context, Result};
use hawser_node::{PolicyWord, Signal};
use hawser_replication_bpf::{
    SendPolicy, Sender, SignalEvent, SignalEvents, SignalOptions, SignalOutcome,
};
use std::collections::BTreeMap;
use tracing::{info, warn};

/// The in-band signals that the kernel handles.
pub(super) struct Signals {
    /// The reader of the kernel's signal events, on a node that replicates.
    events: Option<SignalEvents>,
    /// The key with which signals are to be accepted, 32 hexadecimal digits.
    key: Option<String>,
    /// The key with which signals are accepted, and the interfaces on which they are.
    enabled: Option<(String, Vec<u32>)>,
}

impl Signals {
    pub(super) fn start(node: &Node) -> Result<Self> {
        let events = node
            .sender()
            .map(|sender| sender.signal_events())
            .transpose()?;
        Ok(Signals {
            events,
            key: None,
            enabled: None,
        })
    }

    /// Accepts signals with `key` from now on. Without a key, accepts none.
    pub(super) fn set_key(
        &mut self,
        node: &mut Node,
        settings: &ControllerConfig,
        key: Option<String>,
    ) -> Result<()> {
        self.key = key;
        self.follow(node, settings)
    }

    /// Accepts signals on the configured interfaces that exist.
    pub(super) fn follow(&mut self, node: &mut Node, settings: &ControllerConfig) -> Result<()> {
        let numbers = settings
            .interfaces
            .iter()
            .filter_map(|name| node.interface_number(name));
        let wanted = (self.key.clone())
            .filter(|_| settings.signals.is_some())
            .map(|key| (key, numbers.collect()));
        if wanted == self.enabled {
            return Ok(());
        }
        let Some(sender) = node.sender_mut() else {
            return Ok(());
        };
        match (&wanted, settings.signals) {
            (Some((key, interfaces)), Some(_)) => enable(sender, settings, key, interfaces)?,
            _ => sender.disable_signals(),
        }
        self.enabled = wanted;
        Ok(())
    }

    /// Returns the signals that the kernel has handled since the last call, with the policies that
    /// it holds now.
    pub(super) fn poll(&mut self, node: &Node) -> Vec<Signal> {
        let (Some(events), Some(sender)) = (&mut self.events, node.sender()) else {
            return Vec::new();
        };
        let events = events.drain().unwrap_or_else(|error| {
            warn!("cannot read the events of in-band signals: {error}");
            Vec::new()
        });
        let signals = events.iter().filter_map(|event| signal(event, sender));
        signals.collect()
    }

    /// Returns the number of rejected signals since the programs were loaded, by reason, without
    /// those that were rejected for their epoch.
    pub(super) fn rejected(&self, node: &Node) -> Vec<(&'static str, u64)> {
        let is_rejected = |outcome: &SignalOutcome| {
            !matches!(outcome, SignalOutcome::Accepted | SignalOutcome::Epoch)
        };
        let rejected = counts(node)
            .into_iter()
            .filter(|(outcome, _)| is_rejected(outcome));
        rejected
            .map(|(outcome, count)| (outcome.name(), count))
            .collect()
    }

    /// Returns the number of signals since the programs were loaded, by outcome.
    pub(super) fn counts(&self, node: &Node) -> BTreeMap<String, u64> {
        let occurred = counts(node).into_iter().filter(|(_, count)| *count > 0);
        occurred
            .map(|(outcome, count)| (outcome.name().to_owned(), count))
            .collect()
    }
}

fn enable(
    sender: &mut Sender,
    settings: &ControllerConfig,
    key: &str,
    interfaces: &[u32],
) -> Result<()> {
    let Some(address) = settings.signals else {
        return Ok(());
    };
    let key = parse_key(key)
        .context("the controller's signal key is not a key of 32 hexadecimal digits")?;
    sender.enable_signals(&SignalOptions {
        interfaces: interfaces.to_vec(),
        addresses: vec![address.ip()],
        port: address.port(),
        key,
    })?;
    info!("accepting in-band signals to {address}");
    Ok(())
}

fn signal(event: &SignalEvent, sender: &Sender) -> Option<Signal> {
    let outcome = match event.outcome {
        SignalOutcome::Accepted => hawser_node::SignalOutcome::Accepted,
        SignalOutcome::Epoch => hawser_node::SignalOutcome::Outdated,
        _ => return None,
    };
    let flow = event.flow?;
    Some(Signal {
        at: event.at,
        flow,
        epoch: event.epoch,
        code: event.code,
        outcome,
        in_force: word(sender.policy_in_force(flow)),
    })
}

fn word(policy: SendPolicy) -> PolicyWord {
    PolicyWord {
        epoch: policy.epoch,
        code: policy.code,
        probes: policy.probes,
        probe_every: policy.probe_every,
    }
}

fn counts(node: &Node) -> Vec<(SignalOutcome, u64)> {
    // A table that cannot be read is reported elsewhere.
    node.sender()
        .and_then(|sender| sender.signal_counts().ok())
        .unwrap_or_default()
}
