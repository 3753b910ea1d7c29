use crate::config::Peer;
use crate::echo::CandidateStatus;
use hawser_model::Name;
use hawser_model::pair::{Generations, PublicKey};
use hawser_model::resource::Policy;
use hawser_node::{PairStatus, PathState, ReceivedFlow, Viewer, Window};
use hawser_replication_bpf::WatchStats;
use hawser_units::PathId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The status of a node under a controller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerStatus {
    /// The URLs of the controller's instances.
    pub urls: Vec<String>,
    /// `connecting`, `connected`, `unreachable` or `refused`.
    pub state: String,
    /// The time of the last change of state, milliseconds since 1970.
    pub since_unix_ms: u64,
    /// The reason that the controller is unreachable or refuses the node.
    pub reason: Option<String>,
    /// The revision of the current assignment. 0 before the first one.
    pub revision: u64,
    /// Number of observations that were dropped because too many were queued or the controller
    /// rejected them.
    pub observations_dropped: u64,
    /// The flows that this node cannot carry out as assigned, with the reason.
    pub not_applied: BTreeMap<Name, String>,
    /// The keys that are shared with each peer.
    #[serde(default)]
    pub peers: BTreeMap<String, PeerStatus>,
    /// The paths, by path number, counted from one.
    pub paths: BTreeMap<u8, PathStatus>,
    /// The candidates for paths, also those that are paths.
    #[serde(default)]
    pub candidates: Vec<CandidateStatus>,
    /// The policies of sent flows, by flow number.
    pub send: BTreeMap<u16, PolicyStatus>,
    /// Received flows, by flow number.
    pub receive: BTreeMap<u16, JudgedStatus>,
    /// Number of in-band signals since the agent started, by outcome. Outcomes that did not occur
    /// are left out.
    pub signals: BTreeMap<String, u64>,
}

/// The keys that are shared with a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Their source: `file`, `none` (`authenticate = false`), or `nodes`, which make them.
    pub source: String,
    /// The public keys of this node from which keys are derived, the oldest first.
    #[serde(default)]
    pub own: Vec<PublicKey>,
    /// The public keys of the peer from which keys are derived, the oldest first.
    #[serde(default)]
    pub peer: Vec<PublicKey>,
    /// The generations of the two from which the key for packets to the peer is derived.
    #[serde(default)]
    pub sends: Option<Generations>,
    /// The reason that flows to or from the peer wait, or are refused.
    #[serde(default)]
    pub obstacle: Option<String>,
}

impl PeerStatus {
    pub(crate) fn by_hand(peer: &Peer) -> Self {
        let source = if peer.key.is_some() { "file" } else { "none" };
        PeerStatus {
            source: source.to_owned(),
            own: Vec::new(),
            peer: Vec::new(),
            sends: None,
            obstacle: None,
        }
    }

    pub(crate) fn derived(pair: &PairStatus) -> Self {
        PeerStatus {
            source: "nodes".to_owned(),
            own: pair.own.clone(),
            peer: pair.peer.clone(),
            sends: pair.sends,
            obstacle: pair.obstacle.clone(),
        }
    }
}

/// The health of a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStatus {
    /// Whether its interface is up and its next hop known.
    pub up: bool,
    /// The smoothed round-trip time to the peer, microseconds. `None` while the peer does not
    /// reply.
    pub rtt_us: Option<u32>,
}

/// A policy in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// The controller's name of the flow.
    pub flow: Name,
    /// The epoch of the policy.
    pub epoch: u32,
    /// The paths on which every packet is sent: bit i is path i+1.
    pub code: u8,
    /// The paths on which one packet in `probe_every` is sent as well.
    pub probes: u8,
    /// The probing interval in packets, a power of two. 0 if no path is probed.
    pub probe_every: u16,
    /// The controller's reason for the policy.
    pub reason: String,
}

/// The judgement of a received flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JudgedStatus {
    /// The policy in force at the ingress.
    pub policy: PolicyStatus,
    /// `auto`, `single`, `redirect`, `replicate`, `successive` or `evidence`.
    pub mode: String,
    /// Number of packets that were judged.
    pub packets: u64,
    /// The deliveries of the paths for the last hundred of them.
    pub window: Option<WindowStatus>,
    /// The viewer's requests. `None` if they are not watched.
    pub watch: Option<WatchStatus>,
}

/// The deliveries of the paths for a number of consecutive packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowStatus {
    /// Number of packets.
    pub packets: u32,
    /// Packets of which no copy arrived.
    pub lost: u32,
    /// The deliveries of the paths that were used, by path number, counted from one.
    pub paths: BTreeMap<u8, PathWindowStatus>,
}

/// The deliveries of a path in a window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathWindowStatus {
    /// Packets that were sent on it.
    pub sent: u32,
    /// Packets whose copy on it arrived in time.
    pub rewards: u32,
    /// Packets for which only the copy on it arrived in time.
    pub only: u32,
}

/// The requests of a viewer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchStatus {
    /// Number of requests.
    pub requests: u64,
    /// Number of connections that were closed.
    pub closed_connections: u64,
    /// Number of requests that were retransmitted.
    pub retransmissions: u64,
    /// Number of requests that were not recorded because there were too many.
    pub records_lost: u64,
    /// Number of requests that were late or missing since the flow has been watched with this
    /// trigger. Not counted while the flow is on all of its paths because of late requests, and for
    /// a second after that.
    pub late: u64,
    /// How often as many consecutive requests were late as the trigger allows.
    pub degraded: u64,
    /// Number of packets that answer a request, if known.
    pub packets_per_request: Option<u64>,
}

impl From<&Policy> for PolicyStatus {
    fn from(policy: &Policy) -> Self {
        PolicyStatus {
            flow: policy.flow.clone(),
            epoch: policy.epoch,
            code: policy.code.0,
            probes: policy.probes.bits(),
            probe_every: policy.probe_every,
            reason: format!("{:?}", policy.reason).to_lowercase(),
        }
    }
}

impl From<&PathState> for PathStatus {
    fn from(state: &PathState) -> Self {
        PathStatus {
            up: state.up,
            rtt_us: state.rtt_us,
        }
    }
}

impl JudgedStatus {
    /// Describes a flow. `stats` returns the kernel's counters of its viewer's requests.
    pub(crate) fn of(received: &ReceivedFlow, stats: impl FnOnce() -> WatchStats) -> Self {
        let viewer = received.viewer();
        JudgedStatus {
            policy: received.policy().into(),
            mode: format!("{:?}", received.mode()).to_lowercase(),
            packets: received.packets(),
            window: received.window().map(WindowStatus::from),
            watch: viewer.map(|viewer| WatchStatus::of(viewer, stats())),
        }
    }
}

impl WatchStatus {
    fn of(viewer: &Viewer, stats: WatchStats) -> Self {
        let packets = viewer.packets_per_request();
        WatchStatus {
            requests: stats.requests,
            closed_connections: stats.ends,
            retransmissions: stats.retransmissions,
            records_lost: stats.lost,
            late: viewer.late_requests(),
            degraded: viewer.degradations(),
            packets_per_request: packets.map(|packets| packets.round() as u64),
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
            (path.number(), status)
        });
        WindowStatus {
            packets: window.packets,
            lost: window.lost,
            paths: paths.collect(),
        }
    }
}
