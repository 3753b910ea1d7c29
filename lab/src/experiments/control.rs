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
use hawser_client::OperatorClient;
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
    let lab = Topology::with_paths(1).build()?;
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

/// The measurements of the steady state.
struct Steady {
    from: Usage,
    to: Usage,
    agents_cpu: Duration,
    machine_cpu: Duration,
    changes: usize,
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
        let enrol = fleet::enrol(&self.controller, &operator, self.agents, &self.stop);
        let (identities, enrolment) = timed(enrol).await?;
        let ((), flows_created) =
            timed(fleet::create_flows(&operator, self.agents, &self.stop)).await?;
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
        let steady = self.steady_state(&operator, &fleet, &latencies).await?;
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
        let seconds = self.seconds;
        progress(&format!("  all nodes connected, measuring for {seconds} s"));
        let lag = tokio::spawn(measure::lag(Arc::clone(latencies)));
        let (from, agents_from) = (self.controller.usage()?, measure::own_cpu()?);
        let machine_from = measure::machine_cpu()?;
        latencies.begin();
        let changes = Changes::start(operator, fleet, latencies);
        self.pause(Duration::from_secs_f64(seconds)).await?;
        let changes = changes.stop().await;
        let (to, agents_to) = (self.controller.usage()?, measure::own_cpu()?);
        let machine_cpu = measure::machine_cpu()? - machine_from;
        // Changes that have not arrived yet still count.
        self.pause(Duration::from_secs(2)).await?;
        latencies.end();
        lag.abort();
        Ok(Steady {
            from,
            to,
            agents_cpu: agents_to - agents_from,
            machine_cpu,
            changes,
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

/// Returns the result of some work, and its duration.
async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, Duration)> {
    let began = Instant::now();
    Ok((work.await?, began.elapsed()))
}

fn describe(size: Size, measured: &Measured) -> Case {
    let agents = size.agents;
    let mut case = Case::new(&size.to_string());
    case.set_param("agents", agents);
    case.set_param("flows", agents * FLOWS_PER_AGENT);
    case.set_param("arrivals_per_s", ARRIVALS_PER_S);
    case.set_param("policy_changes", measured.changes);
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
    metrics
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
