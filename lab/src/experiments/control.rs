//! Scalability of the controller: thousands of nodes with ten flows each, against one process with
//! its own database, one process with etcd, and three with etcd of which the leader is killed.

mod fleet;
mod load;
mod measure;
mod process;
mod report;
mod takeover;

use crate::experiment::{Experiment, Results, Run, progress};
use crate::summary::{Case, Metrics, Summary, quantile};
use anyhow::{Context, Result, bail};
use fleet::Fleet;
use hawser_client::OperatorClient;
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{Stop, Topology};
use load::Changes;
use measure::{EtcdMeasured, Kind, Latencies, Measured, Takeover};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use process::{Access, Cluster, Usage};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Numbers of nodes of the cases.
const AGENTS: [usize; 4] = [200, 1_000, 3_000, 10_000];

/// Flows per node: each node replicates this number of flows and deduplicates the same number.
const FLOWS_PER_AGENT: usize = 10;

/// Duration of the measurement of the steady state in seconds.
const STEADY_S: f64 = 60.0;

/// Nodes that connect per second. A handshake takes about 1 ms of processor time at each end.
const ARRIVALS_PER_S: f64 = 200.0;

/// Policy changes per second, one half by an operator, the other half caused by observations of
/// nodes.
const CHANGES_PER_S: f64 = 50.0;

/// The longest time for which changes are awaited after the measurement.
const ARRIVAL: Duration = Duration::from_secs(30);

/// The target of the 99th percentile of latencies in milliseconds.
const TARGET_P99_MS: f64 = 50.0;

/// The lease time of the controllers, as by default.
const LEASE: Duration = Duration::from_secs(15);

/// Threads of the simulated nodes. The machine has two processors, which they share with the
/// controller.
const WORKERS: usize = 2;

/// The controllers of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controllers {
    /// One with the embedded store.
    Embedded,
    /// One with etcd.
    Etcd,
    /// Three with etcd, of which the leader is killed.
    KilledLeader,
}

/// The controllers and nodes of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    controllers: Controllers,
    agents: usize,
}

impl Setup {
    fn all() -> Vec<Setup> {
        use Controllers::{Embedded, Etcd, KilledLeader};
        let kinds = [Embedded, Etcd, KilledLeader].into_iter();
        kinds
            .flat_map(|controllers| {
                AGENTS.map(|agents| Setup {
                    controllers,
                    agents,
                })
            })
            .collect()
    }
}

/// The experiment.
pub(crate) struct Control;

impl Experiment for Control {
    type Case = Setup;
    type Trial = Setup;
    type Outcome = Measured;

    fn name(&self) -> &'static str {
        "control"
    }

    fn about(&self) -> &'static str {
        "thousands of simulated nodes on real mutual TLS connections against one controller, or three"
    }

    fn cases(&self) -> Vec<Setup> {
        Setup::all()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Setup>> {
        run.chosen(Setup::all())
    }

    fn measure(&self, setup: &Setup, run: &Run) -> Result<Measured> {
        progress(&format!("  {} flows", setup.agents * FLOWS_PER_AGENT));
        raise_open_files()?;
        run_case(run, *setup)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let setups: Vec<Setup> = completed.iter().map(|one| one.trial).collect();
        let cases = completed.iter();
        let cases = cases.map(|one| describe(one.trial, &one.outcome));
        summary.cases = cases.collect();
        report::write(summary, &setups, &run.out)
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.controllers {
            Controllers::Embedded => "embedded/agents",
            Controllers::Etcd => "etcd/agents",
            Controllers::KilledLeader => "etcd/killed-leader",
        };
        write!(f, "{kind}-{}", self.agents)
    }
}

/// Raises the limit of open files: every node has a connection, of which both ends are on this
/// machine.
fn raise_open_files() -> Result<()> {
    let (_, hard_limit) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard_limit, hard_limit)
        .context("cannot raise the number of open files")
}

fn run_case(run: &Run, setup: Setup) -> Result<Measured> {
    let folder = run.raw(&setup.to_string())?;
    // One namespace of a lab: all of its ports are free, and everything in it is removed with it.
    let lab = Topology::with_paths(1).build()?;
    let namespace = lab.source();
    // This number of connections leaves many ports in TIME_WAIT.
    namespace.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
    let (controllers, with_etcd) = match setup.controllers {
        Controllers::Embedded => (1, false),
        Controllers::Etcd => (1, true),
        Controllers::KilledLeader => (3, true),
    };
    let cluster = Cluster::start(&run.hawser, namespace, &folder, controllers, with_etcd)?;
    let runtime = runtime_in(namespace)?;
    let measured = runtime.block_on(measure(run, setup, &cluster));
    // The threads have to exit before the lab is dropped, because a namespace exists as long as a
    // thread is inside.
    drop(runtime);
    let killed = measured.as_ref().ok();
    let killed = killed.and_then(|measured| Some(&*measured.takeover.as_ref()?.killed));
    cluster.stop(killed)?;
    let measured = measured?;
    measured.latencies.write(&folder)?;
    Ok(measured)
}

fn runtime_in(namespace: &Namespace) -> Result<Runtime> {
    let namespace = namespace.clone();
    let enter = move || {
        namespace
            .enter()
            .expect("the namespace exists as long as its lab")
    };
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    Ok(builder
        .worker_threads(WORKERS)
        .enable_all()
        .on_thread_start(enter)
        .build()?)
}

async fn measure(run: &Run, setup: Setup, cluster: &Cluster) -> Result<Measured> {
    // The thread that blocks on a runtime is not one of its threads, and so not in the namespace.
    let work = Work {
        setup,
        seconds: run.seconds.unwrap_or(STEADY_S),
        access: cluster.access()?,
        stop: run.stop.clone(),
    };
    tokio::spawn(work.run()).await?
}

/// The measurements of the steady state.
struct Steady {
    from: Usage,
    to: Usage,
    agents_cpu: Duration,
    machine_cpu: Duration,
    changes: usize,
    etcd: Option<EtcdMeasured>,
    takeover: Option<Takeover>,
}

/// The parameters of one case.
struct Work {
    setup: Setup,
    seconds: f64,
    access: Access,
    stop: Stop,
}

impl Work {
    async fn run(self) -> Result<Measured> {
        let agents = self.setup.agents;
        let operator = Arc::new(self.access.operator()?);
        let empty = self.access.usage()?;
        let enrol = fleet::enrol(&self.access, &operator, agents, &self.stop);
        let (identities, enrolment) = timed(enrol).await?;
        let ((), flows_created) = timed(fleet::create_flows(&operator, agents, &self.stop)).await?;
        let idle = self.access.usage()?;
        progress(&format!(
            "  nodes enrolled in {:.1} s, flows created in {:.1} s",
            enrolment.as_secs_f64(),
            flows_created.as_secs_f64()
        ));

        let latencies = Arc::new(Latencies::default());
        let fleet = Fleet::new(&self.access, &identities, &latencies)?;
        let nodes = fleet.start();
        self.wait_until_assigned(&fleet, &latencies).await?;
        // Twice the reporting interval: then every node has reported.
        self.pause(Duration::from_secs(10)).await?;
        let steady = self.steady_state(&operator, &fleet, &latencies).await?;
        let lost = self.lost_changes(&fleet, steady.takeover.as_ref()).await?;
        drop(nodes);
        Ok(Measured {
            empty,
            idle,
            steady_from: steady.from,
            steady_to: steady.to,
            agents_cpu: steady.agents_cpu,
            machine_cpu: steady.machine_cpu,
            enrolment,
            flows_created,
            changes: steady.changes,
            accepted: fleet.accepted(),
            lost,
            etcd: steady.etcd,
            takeover: steady.takeover,
            latencies,
        })
    }

    /// Measures while policies change.
    async fn steady_state(
        &self,
        operator: &Arc<OperatorClient>,
        fleet: &Arc<Fleet>,
        latencies: &Arc<Latencies>,
    ) -> Result<Steady> {
        progress(&format!(
            "  all nodes connected, measuring for {} s",
            self.seconds
        ));
        let victim = match self.setup.controllers {
            Controllers::KilledLeader => Some(takeover::leader(&self.access).await?),
            Controllers::Embedded | Controllers::Etcd => None,
        };
        // The usage of a controller that was killed cannot be read.
        let measured = victim
            .as_ref()
            .map_or_else(|| self.access.clone(), |victim| self.access.without(victim));
        let lag = tokio::spawn(measure::lag(Arc::clone(latencies)));
        let (from, etcd_from, agents_from) = (
            measured.usage()?,
            measured.etcd_usage()?,
            measure::own_cpu()?,
        );
        let machine_from = measure::machine_cpu()?;
        latencies.begin();
        let changes = Changes::start(operator, fleet, latencies);
        let takeover = match victim {
            Some(victim) => Some(self.kill(victim, fleet).await?),
            None => self
                .pause(Duration::from_secs_f64(self.seconds))
                .await
                .map(|()| None)?,
        };
        let changes = changes.stop().await;
        let (to, etcd_to, agents_to) = (
            measured.usage()?,
            measured.etcd_usage()?,
            measure::own_cpu()?,
        );
        let machine_cpu = measure::machine_cpu()? - machine_from;
        // Changes that have not arrived yet still count.
        let late = Instant::now() + ARRIVAL;
        while !fleet.lost_changes().is_empty() && Instant::now() < late {
            self.pause(Duration::from_millis(50)).await?;
        }
        latencies.end();
        lag.abort();
        let etcd = etcd_from.zip(etcd_to).zip(measured.etcd_database_bytes()?);
        Ok(Steady {
            from,
            to,
            agents_cpu: agents_to - agents_from,
            machine_cpu,
            changes,
            etcd: etcd.map(|((from, to), database_bytes)| EtcdMeasured {
                from,
                to,
                database_bytes,
            }),
            takeover,
        })
    }

    /// Kills the leader after a third of the time, and measures until the end.
    async fn kill(&self, victim: String, fleet: &Fleet) -> Result<Takeover> {
        let part = Duration::from_secs_f64(self.seconds / 3.0);
        self.pause(part).await?;
        let before = fleet.disconnections();
        takeover::kill(&self.access, &victim)?;
        let killed_at = Instant::now();
        progress(&format!("  killed the leader, {victim}"));
        let rest = self.access.without(&victim);
        let election = takeover::next_leader(&rest, &victim, LEASE * 4).await?;
        // Losses of nodes are reported when the lease of their controller has ended.
        let end = (2 * part).max(2 * LEASE);
        self.pause(end.saturating_sub(killed_at.elapsed())).await?;
        Ok(Takeover {
            nodes_lost: takeover::nodes_lost(&rest).await?,
            disconnected: fleet.disconnections() - before,
            killed: victim,
            election,
        })
    }

    /// Returns the number of accepted changes that did not reach both of their nodes, or that a
    /// controller does not have.
    async fn lost_changes(&self, fleet: &Fleet, takeover: Option<&Takeover>) -> Result<usize> {
        let unreached = fleet.lost_changes().len();
        let access = takeover.map(|takeover| self.access.without(&takeover.killed));
        let access = access.as_ref().unwrap_or(&self.access);
        let mut outdated = 0;
        for operator in access.operators()? {
            for (flow, epoch) in fleet.changed_epochs() {
                outdated += usize::from(operator.policy(&flow).await?.epoch < epoch);
            }
        }
        Ok(unreached + outdated)
    }

    async fn wait_until_assigned(&self, fleet: &Fleet, latencies: &Latencies) -> Result<()> {
        let agents = self.setup.agents;
        let timeout =
            Duration::from_secs_f64(agents as f64 / ARRIVALS_PER_S) + Duration::from_secs(120);
        let end = Instant::now() + timeout;
        while fleet.assigned() < agents {
            if Instant::now() > end {
                let (assigned, error) = (fleet.assigned(), latencies.last_error());
                bail!(
                    "only {assigned} nodes received their assignments within {timeout:?}; the last error was: {error}"
                );
            }
            self.pause(Duration::from_millis(50)).await?;
        }
        Ok(())
    }

    async fn pause(&self, duration: Duration) -> Result<()> {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            if self.stop.requested() {
                bail!("stopped");
            }
            tokio::time::sleep(
                end.saturating_duration_since(Instant::now())
                    .min(Duration::from_millis(50)),
            )
            .await;
        }
        Ok(())
    }
}

/// Returns the result of some work, and its duration.
async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
    let began = Instant::now();
    Ok((work.await?, began.elapsed()))
}

fn describe(setup: Setup, measured: &Measured) -> Case {
    let agents = setup.agents;
    let mut case = Case::new(&setup.to_string());
    case.set_param("agents", agents);
    case.set_param("flows", agents * FLOWS_PER_AGENT);
    case.set_param("arrivals_per_s", ARRIVALS_PER_S);
    case.set_param("changes_per_s", CHANGES_PER_S);
    case.set_param("seconds", measured.seconds());
    case.set_param("policy_changes", measured.changes);
    case.set_param("lease_ms", LEASE.as_millis() as u64);
    case.set_param("last_error", measured.latencies.last_error());
    case.metrics = metrics(agents, measured);
    case
}

fn metrics(agents: usize, measured: &Measured) -> Metrics {
    let mut metrics = Metrics::default();
    set_latencies(&mut metrics, measured);
    set_resources(&mut metrics, agents, measured);
    metrics.set("enrolment_s", measured.enrolment.as_secs_f64());
    metrics.set("flows_created_s", measured.flows_created.as_secs_f64());
    if let Some(etcd) = &measured.etcd {
        metrics.set("etcd_cpu_cores", etcd.cores());
        metrics.set("etcd_memory_bytes", etcd.to.memory_bytes as f64);
        metrics.set("etcd_database_bytes", etcd.database_bytes as f64);
    }
    if let Some(takeover) = &measured.takeover {
        set_takeover(&mut metrics, takeover, &measured.latencies);
    }
    metrics
}

/// Sets the consequences of the death of the leader.
fn set_takeover(metrics: &mut Metrics, takeover: &Takeover, latencies: &Latencies) {
    metrics.set("election_ms", takeover.election.as_secs_f64() * 1e3);
    metrics.set("nodes_disconnected", takeover.disconnected as f64);
    let reconnected = latencies.count(Kind::Reconnection);
    metrics.set("nodes_reconnected", reconnected as f64);
    metrics.set("nodes_lost", takeover.nodes_lost as f64);
    let waits = [
        Kind::Heartbeat,
        Kind::PolicyChange,
        Kind::ObservedChange,
        Kind::Reconnection,
    ];
    let longest = waits.map(|kind| quantile(&latencies.sorted_ms(kind), 1.0));
    metrics.set("longest_wait_ms", longest.into_iter().fold(0.0, f64::max));
}

/// Sets the latencies, the changes that did not arrive, and the errors.
fn set_latencies(metrics: &mut Metrics, measured: &Measured) {
    let latencies = &measured.latencies;
    for kind in Kind::ALL {
        let sorted = latencies.sorted_ms(kind);
        metrics.set(&format!("{}_p50_ms", kind.name()), quantile(&sorted, 0.5));
        metrics.set(&format!("{}_p99_ms", kind.name()), quantile(&sorted, 0.99));
        metrics.set(&format!("{}_max_ms", kind.name()), quantile(&sorted, 1.0));
    }
    let arrived = latencies.count(Kind::PolicyChange) + latencies.count(Kind::ObservedChange);
    // Every change is sent to two nodes.
    metrics.set(
        "changes_missed_ratio",
        1.0 - arrived as f64 / (2 * measured.changes) as f64,
    );
    let requested = measured.changes - measured.accepted;
    metrics.set("changes_not_accepted", requested as f64);
    metrics.set("changes_lost", measured.lost as f64);
    metrics.set("errors_ratio", latencies.errors_ratio());
}

/// Sets the processor time and the memory of the controller, the nodes and others.
fn set_resources(metrics: &mut Metrics, agents: usize, measured: &Measured) {
    let (from, to) = (&measured.steady_from, &measured.steady_to);
    let seconds = measured.seconds();
    let grown = |to: &Usage, from: &Usage| to.memory_bytes as f64 - from.memory_bytes as f64;
    let per_agent = grown(to, &measured.idle) / agents as f64;
    let flows = (agents * FLOWS_PER_AGENT) as f64;
    let per_flow = grown(&measured.idle, &measured.empty) / flows;
    let controller = (to.cpu - from.cpu).as_secs_f64() / seconds;
    let nodes = measured.agents_cpu.as_secs_f64() / seconds;
    metrics.set("controller_cpu_cores", controller);
    metrics.set(
        "controller_cpu_per_agent_us_per_s",
        controller * 1e6 / agents as f64,
    );
    metrics.set("controller_memory_bytes", to.memory_bytes as f64);
    metrics.set("controller_memory_per_agent_bytes", per_agent);
    metrics.set("controller_memory_per_flow_bytes", per_flow);
    metrics.set("agents_cpu_cores", nodes);
    metrics.set("others_cpu_cores", measured.others_cores());
}
