use super::measure::{Kind, Latencies};
use super::process::Access;
use super::{ARRIVALS_PER_S, FLOWS_PER_AGENT};
use anyhow::{Result, bail};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use hawser_client::{
    Backoff, Error, Identity, NodeClient, NodeMessage, OperatorClient, pause_within,
};
use hawser_model::Name;
use hawser_model::access::NewEnrolment;
use hawser_model::node::{
    Assignment, Observation, Receive, ReceiveReport, ReceivedPath, Registration, Report, Send,
    SendReport,
};
use hawser_model::resource::{
    Cause, Flow, Mode, PathEnd, PathHealth, Policy, Pruning, Selector, Tenant, Trigger,
};
use hawser_testbed::topology::Stop;
use parking_lot::Mutex;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const TENANT: &str = "lab";

/// Concurrent requests while nodes and flows are created.
const CONCURRENCY: usize = 64;

/// Number of paths of each node.
const PATHS: u8 = 2;

/// The reporting interval, which is the controller's default.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Simulated nodes: real clients, keys, certificates and connections, but no kernel behind them.
pub(super) struct Fleet {
    agents: Vec<NodeClient>,
    latencies: Arc<Latencies>,
    assigned: AtomicUsize,
    disconnections: AtomicUsize,
    flows: Vec<FlowState>,
    origin: Instant,
}

/// The changes of a flow as its nodes see them.
#[derive(Default)]
struct FlowState {
    /// The time of the change requested, nanoseconds since `origin`; 0 if there was none.
    requested_ns: AtomicU64,
    /// The epoch before the change.
    epoch_before: AtomicU32,
    /// Whether a controller has accepted the change.
    is_accepted: AtomicBool,
    /// The greatest epochs that the ingress and the egress have received.
    epochs: [AtomicU32; 2],
}

impl FlowState {
    /// Returns the epoch that both nodes have received.
    fn epoch(&self) -> u32 {
        let [ingress, egress] = &self.epochs;
        let epochs = [ingress, egress].map(|epoch| epoch.load(Ordering::Relaxed));
        epochs[0].min(epochs[1])
    }
}

/// Enrols all nodes, each with a token of its own. Every step is that of a real node: a new key,
/// its request, the authority pinned by the token, and a connection of its own.
pub(super) async fn enrol(
    access: &Access,
    operator: &OperatorClient,
    agents: usize,
    stop: &Stop,
) -> Result<Vec<Identity>> {
    create_tenant(operator).await?;
    let enrol = |index: usize| async move {
        if stop.requested() {
            bail!("stopped");
        }
        let enrolment = NewEnrolment {
            tenant: tenant(),
            valid_s: NewEnrolment::valid_s(),
        };
        let enrolment = operator.enrol_node(&agent_name(index), &enrolment).await?;
        Ok(hawser_client::enrol(&access.controllers, &enrolment.token).await?)
    };
    stream::iter(0..agents)
        .map(enrol)
        .buffered(CONCURRENCY)
        .try_collect()
        .await
}

async fn create_tenant(operator: &OperatorClient) -> Result<()> {
    let tenant = Tenant {
        name: tenant(),
        description: String::new(),
    };
    operator.create_tenant(&tenant).await?;
    Ok(())
}

/// Creates [`FLOWS_PER_AGENT`] flows for each node, from it to the nodes that follow.
pub(super) async fn create_flows(
    operator: &OperatorClient,
    agents: usize,
    stop: &Stop,
) -> Result<()> {
    let create = |index: usize| async move {
        if stop.requested() {
            bail!("stopped");
        }
        operator.create_flow(&flow(index, agents)).await?;
        Ok(())
    };
    stream::iter(0..agents * FLOWS_PER_AGENT)
        .map(create)
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await
}

impl Fleet {
    pub(super) fn new(
        access: &Access,
        identities: &[Identity],
        latencies: &Arc<Latencies>,
    ) -> Result<Arc<Self>> {
        let identities = identities.iter().enumerate();
        let clients: Result<Vec<_>, _> = identities
            .map(|(index, identity)| NodeClient::new(&access.controllers_of(index), identity))
            .collect();
        let agents = clients?;
        Ok(Arc::new(Fleet {
            latencies: Arc::clone(latencies),
            assigned: AtomicUsize::new(0),
            disconnections: AtomicUsize::new(0),
            flows: (0..agents.len() * FLOWS_PER_AGENT)
                .map(|_| FlowState::default())
                .collect(),
            agents,
            origin: Instant::now(),
        }))
    }

    /// Connects the nodes, [`ARRIVALS_PER_S`] of them per second. They are stopped when the result
    /// is dropped.
    pub(super) fn start(self: &Arc<Self>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for index in 0..self.agents.len() {
            tasks.spawn(Arc::clone(self).run_node(index));
        }
        tasks
    }

    /// Returns the number of nodes that have received their assignment.
    pub(super) fn assigned(&self) -> usize {
        self.assigned.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that nodes have lost after they had received their
    /// assignment.
    pub(super) fn disconnections(&self) -> usize {
        self.disconnections.load(Ordering::Relaxed)
    }

    /// Returns the number of flows.
    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Records that a change of the flow is requested now.
    pub(super) fn note_request(&self, flow: usize) {
        let state = &self.flows[flow];
        state.epoch_before.store(state.epoch(), Ordering::Relaxed);
        let now_ns = nanos(self.origin.elapsed());
        state.requested_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Records that a controller has accepted the change of the flow.
    pub(super) fn note_acceptance(&self, flow: usize) {
        self.flows[flow].is_accepted.store(true, Ordering::Relaxed);
    }

    /// Returns the number of changes that a controller has accepted.
    pub(super) fn accepted(&self) -> usize {
        let is_accepted = |flow: &&FlowState| flow.is_accepted.load(Ordering::Relaxed);
        self.flows.iter().filter(is_accepted).count()
    }

    /// Returns the flows with an accepted change that has not reached both nodes.
    pub(super) fn lost_changes(&self) -> Vec<usize> {
        let is_lost = |flow: &FlowState| {
            flow.is_accepted.load(Ordering::Relaxed)
                && flow.epoch() <= flow.epoch_before.load(Ordering::Relaxed)
        };
        let flows = self.flows.iter().enumerate();
        flows
            .filter(|(_, flow)| is_lost(flow))
            .map(|(index, _)| index)
            .collect()
    }

    /// Returns the epochs that both nodes of each changed flow have received.
    pub(super) fn changed_epochs(&self) -> impl Iterator<Item = (Name, u32)> {
        let flows = self.flows.iter().enumerate();
        flows
            .filter(|(_, flow)| flow.is_accepted.load(Ordering::Relaxed))
            .map(|(index, flow)| (flow_name(index), flow.epoch()))
    }

    /// Reports the flow as degraded, as its egress. Returns whether a controller accepted it.
    pub(super) async fn degrade(&self, flow: usize) -> bool {
        let observation = Observation::Degraded {
            flow: flow_name(flow),
            since_due_us: 1_000,
            silent_us: 451_000,
        };
        let report = Report {
            observations: vec![observation],
            ..Report::default()
        };
        let egress = &self.agents[egress_of(flow, self.agents.len())];
        let response = self.latencies.record_response(egress.report(&report).await);
        response.is_some()
    }

    async fn run_node(self: Arc<Self>, index: usize) {
        tokio::time::sleep(Duration::from_secs_f64(index as f64 / ARRIVALS_PER_S)).await;
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let mut link = Link {
            fleet: &self,
            index,
            lost_at: None,
            reconnect_within: Duration::ZERO,
        };
        loop {
            let reason = match link.session().await {
                Ok(()) => "the controller closed a stream".to_owned(),
                Err(error) => error.to_string(),
            };
            self.latencies.record_error(&reason);
            // As an agent does.
            let within = std::mem::take(&mut link.reconnect_within);
            if within > Duration::ZERO {
                link.lost_at = Some(Instant::now());
                self.disconnections.fetch_add(1, Ordering::Relaxed);
                backoff.reset();
                pause_within(within).await;
            }
            backoff.pause().await;
        }
    }

    async fn keep_reporting(
        &self,
        client: &NodeClient,
        report: &Mutex<Report>,
    ) -> Result<(), Error> {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            let report = report.lock().clone();
            let began = Instant::now();
            if self
                .latencies
                .record_response(client.report(&report).await)
                .is_some()
            {
                self.latencies.record(Kind::Heartbeat, began.elapsed());
            }
        }
    }

    /// Records a policy that a node has received.
    fn record_policy(&self, node: usize, policy: &Policy) {
        let Some(flow) = flow_index(&policy.flow) else {
            return;
        };
        let (state, end) = (&self.flows[flow], usize::from(node != ingress_of(flow)));
        let before = state.epochs[end].fetch_max(policy.epoch, Ordering::Relaxed);
        let kind = match policy.reason {
            Cause::Operator => Kind::PolicyChange,
            Cause::Degraded => Kind::ObservedChange,
            _ => return,
        };
        let requested_ns = state.requested_ns.load(Ordering::Relaxed);
        if before < policy.epoch && requested_ns > 0 {
            let took_ns = nanos(self.origin.elapsed()).saturating_sub(requested_ns);
            self.latencies.record(kind, Duration::from_nanos(took_ns));
        }
    }
}

/// The connection of a node to a controller.
struct Link<'a> {
    fleet: &'a Fleet,
    index: usize,
    /// The time when the last connection was lost, until there is another one.
    lost_at: Option<Instant>,
    /// The time within which the node returns after the loss of the connection; zero before there
    /// is one.
    reconnect_within: Duration,
}

impl Link<'_> {
    /// Runs one connection until it is lost.
    async fn session(&mut self) -> Result<(), Error> {
        let (fleet, client) = (self.fleet, &self.fleet.agents[self.index]);
        let latencies = &fleet.latencies;
        let began = Instant::now();
        client.register(&registration()).await?;
        latencies.record(Kind::Registration, began.elapsed());
        let registered = Instant::now();
        let mut stream = client.stream().await?;
        let report = Mutex::new(Report::default());
        let listening = async {
            while let Some(message) = stream.next().await? {
                match message {
                    NodeMessage::Assignment(assignment) => {
                        *report.lock() = report_of(&assignment);
                        self.assigned(&assignment, registered);
                    }
                    NodeMessage::Policy(policy) => fleet.record_policy(self.index, &policy),
                    NodeMessage::Ping | NodeMessage::Authority(_) => {}
                }
            }
            Ok(())
        };
        tokio::select! {
            ended = listening => ended,
            never = fleet.keep_reporting(client, &report) => never,
        }
    }

    fn assigned(&mut self, assignment: &Assignment, registered: Instant) {
        let (fleet, latencies) = (self.fleet, &self.fleet.latencies);
        let is_first = self.reconnect_within == Duration::ZERO;
        if let Some(lost_at) = self.lost_at.take() {
            latencies.record(Kind::Reconnection, lost_at.elapsed());
        } else if is_first {
            latencies.record(Kind::Assignment, registered.elapsed());
            fleet.assigned.fetch_add(1, Ordering::Relaxed);
        }
        let within_ms = assignment.reconnect_within_ms.max(1);
        self.reconnect_within = Duration::from_millis(within_ms.into());
        let sends = assignment.sends.iter().map(|send| &send.policy);
        let receives = assignment.receives.iter().map(|receive| &receive.policy);
        for policy in sends.chain(receives) {
            fleet.record_policy(self.index, policy);
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("an experiment ends within centuries")
}

fn tenant() -> Name {
    TENANT.parse().expect("a word")
}

fn agent_name(index: usize) -> Name {
    format!("node-{index}").parse().expect("a word")
}

/// Returns the name of the flow of the given index.
pub(super) fn flow_name(index: usize) -> Name {
    format!("flow-{index}").parse().expect("a word")
}

fn flow_index(name: &Name) -> Option<usize> {
    name.as_str().strip_prefix("flow-")?.parse().ok()
}

fn ingress_of(flow: usize) -> usize {
    flow / FLOWS_PER_AGENT
}

/// Returns the egress of a flow: one of the nodes that follow the ingress, a different one for each
/// of its flows. Thus every node is the egress of the same number of flows.
fn egress_of(flow: usize, agents: usize) -> usize {
    (ingress_of(flow) + 1 + flow % FLOWS_PER_AGENT) % agents
}

fn flow(index: usize, agents: usize) -> Flow {
    let to = |destination: &str| Selector {
        destination: destination.to_owned(),
        protocol: None,
        source_ports: None,
        destination_ports: None,
    };
    Flow {
        name: flow_name(index),
        tenant: tenant(),
        ingress: agent_name(ingress_of(index)),
        egress: agent_name(egress_of(index, agents)),
        select: to(&format!(
            "10.{}.{}.{}/32",
            index >> 16 & 255,
            index >> 8 & 255,
            index & 255
        )),
        paths: Vec::new(),
        mode: Mode::Evidence,
        trigger: Some(Trigger {
            select: to("192.0.2.0/24"),
            request_bytes: Trigger::request_bytes(),
            late_after_ms: Trigger::late_after_ms(),
            consecutive: Trigger::consecutive(),
        }),
        pruning: Pruning::default(),
        transparent: false,
    }
}

fn registration() -> Registration {
    let end = |number: u8| PathEnd {
        number,
        interface: format!("wan{number}"),
        local: Ipv4Addr::new(198, 51, 100, number).into(),
        remote: Ipv4Addr::new(203, 0, 113, number).into(),
        discovered: false,
        tunnel: false,
    };
    Registration {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        paths: (1..=PATHS).map(end).collect(),
        uplinks: Vec::new(),
        signals: None,
        authorities: Vec::new(),
    }
}

/// Returns a report as large as a real one: every flow with its counters, every path with its
/// health.
fn report_of(assignment: &Assignment) -> Report {
    let health = |number| PathHealth {
        number,
        up: true,
        rtt_us: Some(20_000),
        dropped_by_device: 0,
    };
    Report {
        revision: assignment.revision,
        paths: (1..=PATHS).map(health).collect(),
        reached: Vec::new(),
        sends: assignment.sends.iter().map(sent).collect(),
        receives: assignment.receives.iter().map(received).collect(),
        observations: Vec::new(),
    }
}

fn sent(send: &Send) -> SendReport {
    SendReport {
        flow: send.flow.clone(),
        epoch: send.policy.epoch,
        code: send.policy.code,
        packets: 1_000_000,
        bytes: 1_200_000_000,
        sent_bytes: 2_400_000_000,
    }
}

fn received(receive: &Receive) -> ReceiveReport {
    let path = |number| ReceivedPath {
        number,
        arrivals: 1_000_000,
        first: 500_000,
        only_copy: 1_000,
        missing: 500,
    };
    ReceiveReport {
        flow: receive.flow.clone(),
        packets: 1_000_000,
        paths: (1..=PATHS).map(path).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_the_ingress_and_the_egress_of_as_many_flows() {
        const AGENTS: usize = 25;
        let mut egress = [0; AGENTS];
        for index in 0..AGENTS * FLOWS_PER_AGENT {
            let flow = flow(index, AGENTS);
            assert_ne!(flow.ingress, flow.egress);
            assert_eq!(flow_index(&flow.name), Some(index));
            egress[egress_of(index, AGENTS)] += 1;
        }
        assert_eq!(egress, [FLOWS_PER_AGENT; AGENTS]);
    }
}
