//! Writes the events of a node under a controller to the log and to the trace.

use crate::trace::{Change, Trace};
use hawser_model::Name;
use hawser_model::node::Observation;
use hawser_model::resource::Policy;
use hawser_node::{Connection, Event, PolicyWord};
use hawser_units::Instant;
use tracing::{error, info, warn};

/// Writes an event.
pub(super) fn record(trace: &mut Trace, event: &Event) {
    match event {
        Event::Connection(connection) => log_connection(connection),
        Event::Assigned { revision } => info!(revision, "received an assignment"),
        Event::CountingRestarted => warn!(
            "the controller restarted counting assignments: its policies replace those in force"
        ),
        Event::PolicyApplied {
            at,
            flow,
            policy,
            by_signal,
        } => record_applied(trace, *at, flow, policy, *by_signal),
        Event::PolicyReceived { at, policy } => trace_received(trace, *at, policy),
        Event::KeysChanged { generations } => info!(?generations, "the keys of this node changed"),
        Event::NotApplied { flow, reason } => warn!(%flow, "{reason}"),
        Event::Window {
            at,
            flow,
            epoch,
            window,
        } => trace.window(*at, flow, *epoch, window),
        Event::Observed { at, observation } => trace_observation(trace, *at, observation),
    }
}

fn log_connection(connection: &Connection) {
    match connection {
        Connection::Connecting => {}
        Connection::Connected => info!("connected to the controller"),
        Connection::Unreachable(why) => {
            warn!("controller unreachable; the last policies stay in force: {why}")
        }
        Connection::Refused(why) => error!(
            "THE CONTROLLER REFUSES THIS NODE; the last policies stay in force until the node is enrolled again: {why}"
        ),
    }
}

fn record_applied(
    trace: &mut Trace,
    at: Instant,
    flow: &Name,
    policy: &PolicyWord,
    by_signal: bool,
) {
    let detail = if by_signal {
        "by signal"
    } else {
        "by the controller"
    };
    let (code, probes) = (policy.code, policy.probes);
    info!(%flow, epoch = policy.epoch, "paths {:#010b}, probes {:#010b}, {detail}", code.0, probes.bits());
    let change = Change {
        event: "policy",
        epoch: policy.epoch,
        code,
        probes,
        probe_every: policy.probe_every,
        detail,
    };
    trace.change(at, flow, change);
}

fn trace_received(trace: &mut Trace, at: Instant, policy: &Policy) {
    let change = Change {
        event: "policy",
        epoch: policy.epoch,
        code: policy.code,
        probes: policy.probes,
        probe_every: policy.probe_every,
        detail: &format!("{:?}", policy.reason).to_lowercase(),
    };
    trace.change(at, &policy.flow, change);
}

fn trace_observation(trace: &mut Trace, at: Instant, observation: &Observation) {
    let path_name = |number: &u8| format!("path {number}");
    match observation {
        Observation::Judged {
            flow,
            epoch,
            code,
            probes,
            probe_every,
            reason,
        } => {
            let change = Change {
                event: "judged",
                epoch: *epoch,
                code: *code,
                probes: *probes,
                probe_every: *probe_every,
                detail: reason,
            };
            trace.change(at, flow, change);
        }
        Observation::Degraded {
            flow,
            since_due_us,
            silent_us,
        } => {
            let detail = format!("{since_due_us} us since due; {silent_us} us of silence");
            trace.event(at, flow, "degraded", None, &detail);
        }
        Observation::FirstReplica {
            flow,
            epoch,
            after_us,
        } => {
            let after = format!("{after_us} us");
            trace.event(at, flow, "first_replica", Some(*epoch), &after);
        }
        Observation::PathSilent { flow, path } => {
            trace.event(at, flow, "silent", None, &path_name(path));
        }
        Observation::PathRestored { flow, path } => {
            trace.event(at, flow, "restored", None, &path_name(path));
        }
        Observation::LatentError { flow, path } => {
            trace.event(at, flow, "latent_error", None, &path_name(path));
        }
        // Policies are traced where they take effect. The others do not concern a flow, or are
        // logged.
        Observation::Applied { .. }
        | Observation::SignalRefused { .. }
        | Observation::NotApplied { .. } => {}
    }
}
