use crate::judge::Window;
use hawser_control::Name;
use hawser_control::resource::Policy;
use hawser_units::PathId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a node under a controller tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerStatus {
    /// Where the controller's instances are.
    pub urls: Vec<String>,
    /// `connecting`, `connected`, `away` or `refused`.
    pub state: String,
    /// Since when, milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Why it is away or refuses.
    pub why: Option<String>,
    /// Of the assignment that is carried out; 0 before the first.
    pub revision: u64,
    /// Observations that were never reported because too many waited.
    pub observations_dropped: u64,
    /// What of the assignment does not fit this node, by flow, and why.
    pub not_applied: BTreeMap<Name, String>,
    /// By path number, counted from one.
    pub paths: BTreeMap<u8, PathStatus>,
    /// Policies of the flows that are sent, by flow number.
    pub send: BTreeMap<u16, PolicyStatus>,
    /// Flows that are received, by flow number.
    pub receive: BTreeMap<u16, JudgedStatus>,
    /// In-band signals since the agent started, by outcome; only those that occurred.
    pub signals: BTreeMap<String, u64>,
}

/// How a path is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Whether its interface is up and its next hop known.
    pub up: bool,
    /// The smoothed round-trip time to the peer, microseconds; none while it does not answer.
    pub rtt_us: Option<u32>,
}

/// A policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// What the controller calls the flow.
    pub flow: Name,
    /// Of the policy.
    pub epoch: u32,
    /// The paths that every packet takes: bit i is path i+1.
    pub code: u8,
    /// The paths that one packet in `probe_every` takes as well.
    pub probes: u8,
    /// A power of two; 0 when nothing is probed.
    pub probe_every: u16,
    /// Why, as the controller says.
    pub because: String,
}

/// What is made of a received flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedStatus {
    /// In force at the ingress.
    pub policy: PolicyStatus,
    /// `single`, `redirect`, `replicate`, `successive` or `evidence`.
    pub mode: String,
    /// Packets that were judged.
    pub packets: u64,
    /// What the paths did for the last hundred of them.
    pub window: Option<WindowStatus>,
    /// The viewer's requests, if they are watched.
    pub watch: Option<WatchStatus>,
}

/// What paths did for a number of packets in a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowStatus {
    /// How many.
    pub packets: u32,
    /// Those of which no copy came.
    pub lost: u32,
    /// By path number, counted from one; those that were used.
    pub paths: BTreeMap<u8, PathWindowStatus>,
}

/// What a path did for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathWindowStatus {
    /// Packets that were sent over it.
    pub sent: u32,
    /// Those whose copy by it came in time.
    pub rewards: u32,
    /// Those for which only its copy did.
    pub only: u32,
}

/// A viewer's requests.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchStatus {
    /// Requests so far.
    pub requests: u64,
    /// Connections that have ended.
    pub ends: u64,
    /// Requests that were sent again.
    pub retransmissions: u64,
    /// Requests that were not noticed because there were too many.
    pub records_lost: u64,
    /// Requests that came late, or should have come, since the flow is watched in this way. None are counted while it is on all
    /// of its paths because they did, nor in the second after it is not any more.
    pub late: u64,
    /// How often requests came late as many times in a row as the trigger allows.
    pub degraded: u64,
    /// Packets that answer a request, as far as known.
    pub packets_per_request: Option<u64>,
}

impl From<&Policy> for PolicyStatus {
    fn from(policy: &Policy) -> Self {
        PolicyStatus {
            flow: policy.flow.clone(),
            epoch: policy.epoch,
            code: policy.code,
            probes: policy.probes,
            probe_every: policy.probe_every,
            because: format!("{:?}", policy.because).to_lowercase(),
        }
    }
}

impl From<&Window> for WindowStatus {
    fn from(window: &Window) -> Self {
        let used = PathId::all()
            .zip(&window.paths)
            .filter(|(_, part)| part.sent > 0);
        let paths = used.map(|(path, part)| {
            let status = PathWindowStatus {
                sent: part.sent,
                rewards: part.rewards,
                only: part.only,
            };
            (u8::from(path) + 1, status)
        });
        WindowStatus {
            packets: window.packets,
            lost: window.lost,
            paths: paths.collect(),
        }
    }
}
