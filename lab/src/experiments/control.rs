//! Scalability of one controller: thousands of nodes with ten flows each, against one process with
//! its own database.

mod fleet;
mod load;
mod measure;
mod process;
mod report;

use crate::experiment::{Completed, Experiment, Run, progress};
use crate::summary::{Case, Metrics, Summary, quantile};
use anyhow::{Context, Result, bail};
use fleet::Fleet;
use hawser_io::netns::Namespace;
use hawser_testbed::topology::{Stop, Topology};
use load::Changes;
use measure::{Kind, Latencies, Measured};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use process::{Access, ControllerProcess, Usage};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Numbers of nodes of the cases.
const AGENTS: [usize; 3] = [1_000, 3_000, 10_000];

/// Flows per node: each node replicates this number of flows and deduplicates the same number.
const FLOWS_PER_AGENT: usize = 10;

/// Duration of the measurement of the steady state in seconds.
const STEADY_S: f64 = 60.0;

/// Nodes that connect per second. A handshake takes about 1 ms of processor time at each end.
const ARRIVALS_PER_S: f64 = 200.0;

/// Policy changes per second, one half by an operator, the other half caused by observations of
/// nodes.
const CHANGES_PER_S: f64 = 50.0;

/// The target of the 99th percentile of latencies in milliseconds.
const TARGET_P99_MS: f64 = 1_000.0;

/// Threads of the simulated nodes. The machine has two processors, which they share with the
/// controller.
const WORKERS: usize = 2;

/// The nodes of a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    agents: usize,
}

/// The experiment.
pub(crate) struct Control;

impl Experiment for Control {
    type Case = Size;
    type Measured = Measured;

    fn name(&self) -> &'static str {
        "control"
    }

    fn about(&self) -> &'static str {
        "thousands of simulated nodes on real mutual TLS connections against one controller"
    }

    fn names(&self) -> Vec<String> {
        AGENTS.map(|agents| Size { agents }.to_string()).to_vec()
    }

    fn cases(&self, run: &Run) -> Result<Vec<Size>> {
        run.chosen(AGENTS.map(|agents| Size { agents }).to_vec())
    }

    fn measure(&self, size: &Size, run: &Run) -> Result<Measured> {
        progress(&format!("  {} flows", size.agents * FLOWS_PER_AGENT));
        raise_open_files()?;
        run_case(run, *size)
    }

    fn summarise(
        &self,
        completed: Vec<Completed<Size, Measured>>,
        summary: &mut Summary,
        run: &Run,
    ) -> Result<()> {
        let cases = completed
            .iter()
            .map(|one| describe(one.case, &one.measured));
        summary.cases = cases.collect();
        report::write(summary, &run.out)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agents-{}", self.agents)
    }
}

/// Raises the limit of open files: every node has a connection, of which both ends are on this
/// machine.
fn raise_open_files() -> Result<()> {
    let (_, hard_limit) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard_limit, hard_limit)
        .context("cannot raise the number of open files")
}

fn run_case(run: &Run, size: Size) -> Result<Measured> {
    let folder = run.raw(&size.to_string())?;
    // One namespace of a lab: all of its ports are free, and everything in it is removed with it.
    let lab = Topology {
        paths: 1,
        ..Topology::default()
    }
    .build()?;
    let namespace = lab.source();
    // This number of connections leaves many ports in TIME_WAIT.
    namespace.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
    let controller = ControllerProcess::start(&run.hawser, namespace, &folder)?;
    let runtime = runtime_in(namespace)?;
    let measured = runtime.block_on(measure(run, size.agents, &controller));
    // The threads have to exit before the lab is dropped, because a namespace exists as long as a
    // thread is inside.
    drop(runtime);
    controller.stop()?;
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

async fn measure(run: &Run, agents: usize, controller: &ControllerProcess) -> Result<Measured> {
    // The thread that blocks on a runtime is not one of its threads, and so not in the namespace.
    let work = Work {
        agents,
        seconds: run.seconds.unwrap_or(STEADY_S),
        controller: controller.access()?,
        stop: run.stop.clone(),
    };
    tokio::spawn(work.run()).await?
}

/// The parameters of one case.
struct Work {
    agents: usize,
    seconds: f64,
    controller: Access,
    stop: Stop,
}

impl Work {
    async fn run(self) -> Result<Measured> {
        let operator = Arc::new(self.controller.operator()?);
        let empty = self.controller.usage()?;
        let began = Instant::now();
        let identities = fleet::enrol(&self.controller, &operator, self.agents, &self.stop).await?;
        let enrolment = began.elapsed();
        let began = Instant::now();
        fleet::create_flows(&operator, self.agents, &self.stop).await?;
        let flows_created = began.elapsed();
        let idle = self.controller.usage()?;
        progress(&format!(
            "  nodes enrolled in {:.1} s, flows created in {:.1} s",
            enrolment.as_secs_f64(),
            flows_created.as_secs_f64()
        ));

        let latencies = Arc::new(Latencies::default());
        let fleet = Fleet::new(&self.controller, &identities, &latencies)?;
        let nodes = fleet.start();
        self.wait_until_assigned(&fleet, &latencies).await?;
        // Twice the reporting interval: then every node has reported.
        self.pause(Duration::from_secs(10)).await?;

        progress(&format!(
            "  all nodes connected, measuring for {} s",
            self.seconds
        ));
        let lag = tokio::spawn(measure::lag(Arc::clone(&latencies)));
        let (steady_from, agents_from) = (self.controller.usage()?, measure::own_cpu()?);
        let machine_from = measure::machine_cpu()?;
        latencies.begin();
        let changes = Changes::start(&operator, &fleet, &latencies);
        self.pause(Duration::from_secs_f64(self.seconds)).await?;
        let changes = changes.stop().await;
        let (steady_to, agents_to) = (self.controller.usage()?, measure::own_cpu()?);
        let machine_cpu = measure::machine_cpu()? - machine_from;
        // Changes that have not arrived yet still count.
        self.pause(Duration::from_secs(2)).await?;
        latencies.end();
        lag.abort();
        drop(nodes);
        let agents_cpu = agents_to - agents_from;
        Ok(Measured {
            empty,
            idle,
            steady_from,
            steady_to,
            agents_cpu,
            machine_cpu,
            enrolment,
            flows_created,
            changes,
            latencies,
        })
    }

    async fn wait_until_assigned(&self, fleet: &Fleet, latencies: &Latencies) -> Result<()> {
        let timeout =
            Duration::from_secs_f64(self.agents as f64 / ARRIVALS_PER_S) + Duration::from_secs(120);
        let end = Instant::now() + timeout;
        while fleet.assigned() < self.agents {
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

fn describe(size: Size, measured: &Measured) -> Case {
    let agents = size.agents;
    let mut case = Case::new(&size.to_string());
    case.params.insert("agents".into(), agents.into());
    case.params
        .insert("flows".into(), (agents * FLOWS_PER_AGENT).into());
    case.params
        .insert("arrivals_per_s".into(), ARRIVALS_PER_S.into());
    case.params
        .insert("policy_changes".into(), measured.changes.into());
    case.params
        .insert("last_error".into(), measured.latencies.last_error().into());
    case.metrics = metrics(agents, measured);
    case
}

fn metrics(agents: usize, measured: &Measured) -> Metrics {
    let Measured {
        empty,
        idle,
        steady_from,
        steady_to,
        latencies,
        ..
    } = measured;
    let mut metrics = Metrics::default();
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
    metrics.set("errors_ratio", latencies.errors_ratio());
    let seconds = measured.seconds();
    let controller_cores = (steady_to.cpu - steady_from.cpu).as_secs_f64() / seconds;
    let grown = |to: &Usage, from: &Usage| to.memory_bytes as f64 - from.memory_bytes as f64;
    metrics.set("controller_cpu_cores", controller_cores);
    metrics.set(
        "controller_cpu_per_agent_us_per_s",
        controller_cores * 1e6 / agents as f64,
    );
    metrics.set("controller_memory_bytes", steady_to.memory_bytes as f64);
    metrics.set(
        "controller_memory_per_agent_bytes",
        grown(steady_to, idle) / agents as f64,
    );
    let flows = (agents * FLOWS_PER_AGENT) as f64;
    metrics.set(
        "controller_memory_per_flow_bytes",
        grown(idle, empty) / flows,
    );
    metrics.set(
        "agents_cpu_cores",
        measured.agents_cpu.as_secs_f64() / seconds,
    );
    metrics.set("others_cpu_cores", measured.others_cores());
    metrics.set("enrolment_s", measured.enrolment.as_secs_f64());
    metrics.set("flows_created_s", measured.flows_created.as_secs_f64());
    metrics
}
