use super::process::{TICK, Usage};
use crate::experiment;
use crate::summary::quantile;
use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use parking_lot::Mutex;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The limit of the 99th percentile of the lateness of the simulated nodes' timers. Above it, nodes
/// and controller wait for a processor rather than for each other.
const LAG_LIMIT_MS: f64 = 50.0;

/// The kinds of latencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the first packet of the connection until the controller has registered the node.
    Registration,
    /// From the registration until the node has its assignment.
    Assignment,
    /// From a report to its response.
    Heartbeat,
    /// From an operator's request until a node's stream has the policy.
    PolicyChange,
    /// From a node's observation until a node's stream has the policy.
    ObservedChange,
    /// From the loss of a connection to a controller until the node has its assignment from another
    /// one.
    Reconnection,
    /// The lateness of a timer of the simulated nodes. The load of the machine contributes this to
    /// all other latencies.
    Lag,
}

impl Kind {
    pub(super) const ALL: [Kind; 7] = [
        Kind::Registration,
        Kind::Assignment,
        Kind::Heartbeat,
        Kind::PolicyChange,
        Kind::ObservedChange,
        Kind::Reconnection,
        Kind::Lag,
    ];

    /// Returns the prefix of the metrics' names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Registration => "registration",
            Kind::Assignment => "assignment",
            Kind::Heartbeat => "heartbeat",
            Kind::PolicyChange => "policy_change",
            Kind::ObservedChange => "observed_change",
            Kind::Reconnection => "reconnection",
            Kind::Lag => "agents_lag",
        }
    }

    /// Returns whether the latency is measured in the steady state only.
    fn is_steady(self) -> bool {
        !matches!(self, Kind::Registration | Kind::Assignment)
    }
}

/// The latencies and errors of one case over all nodes.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    samples: [Mutex<Vec<Duration>>; Kind::ALL.len()],
    is_steady: AtomicBool,
    requests: AtomicU64,
    errors: AtomicU64,
    last_error: Mutex<String>,
}

impl Latencies {
    /// Begins the measurement of the steady state.
    pub(super) fn begin(&self) {
        self.is_steady.store(true, Ordering::Relaxed);
    }

    /// Ends the measurement of the steady state.
    pub(super) fn end(&self) {
        self.is_steady.store(false, Ordering::Relaxed);
    }

    /// Records a latency.
    pub(super) fn record(&self, kind: Kind, time: Duration) {
        if !kind.is_steady() || self.is_steady.load(Ordering::Relaxed) {
            self.samples[kind as usize].lock().push(time);
        }
    }

    /// Counts a request, and its error if it failed.
    pub(super) fn record_response<T>(&self, answer: Result<T, hawser_client::Error>) -> Option<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        answer
            .map_err(|error| self.record_error(&error.to_string()))
            .ok()
    }

    /// Counts an error.
    pub(super) fn record_error(&self, error: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        error.clone_into(&mut self.last_error.lock());
    }

    /// Returns the number of errors relative to the number of requests.
    pub(super) fn errors_ratio(&self) -> f64 {
        let requests = self.requests.load(Ordering::Relaxed).max(1);
        self.errors.load(Ordering::Relaxed) as f64 / requests as f64
    }

    pub(super) fn last_error(&self) -> String {
        self.last_error.lock().clone()
    }

    /// Returns the number of samples.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.samples[kind as usize].lock().len()
    }

    /// Returns the samples in milliseconds, in ascending order.
    pub(super) fn sorted_ms(&self, kind: Kind) -> Vec<f64> {
        let mut times: Vec<f64> = self.samples[kind as usize]
            .lock()
            .iter()
            .map(|time| time.as_secs_f64() * 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// Writes all samples to `latencies.csv`.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let mut text = String::from("kind,ms\n");
        for kind in Kind::ALL {
            for ms in self.sorted_ms(kind) {
                text += &format!("{},{ms:.3}\n", kind.name());
            }
        }
        let path = folder.join("latencies.csv");
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Measures the lateness of timers until cancelled.
pub(super) async fn lag(latencies: Arc<Latencies>) {
    const INTERVAL: Duration = Duration::from_millis(20);
    loop {
        let due = Instant::now() + INTERVAL;
        tokio::time::sleep_until(due.into()).await;
        latencies.record(Kind::Lag, due.elapsed());
    }
}

/// Returns the processor time of this process.
pub(super) fn own_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()).unsigned_abs())
    };
    Ok(micros(usage.user_time()) + micros(usage.system_time()))
}

/// Returns the total busy processor time of this machine since it booted.
pub(super) fn machine_cpu() -> Result<Duration> {
    let path = "/proc/stat";
    let statistics = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    busy(&statistics).context("cannot parse /proc/stat")
}

/// Returns the sum of all times but idle and iowait, which are fields 4 and 5 of the first line.
/// The last two fields are contained in others.
fn busy(statistics: &str) -> Option<Duration> {
    let fields = statistics
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace();
    let ticks: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let busy = [0, 1, 2, 5, 6, 7]
        .iter()
        .map(|field| ticks.get(*field))
        .sum::<Option<u64>>()?;
    Some(TICK * u32::try_from(busy).ok()?)
}

/// The measurements of one case.
#[derive(Debug)]
pub(crate) struct Measured {
    /// Usage when the controller has started.
    pub(super) empty: Usage,
    /// Usage with all nodes enrolled and all flows created, but no node connected.
    pub(super) idle: Usage,
    /// Usage at the beginning of the steady state.
    pub(super) steady_from: Usage,
    /// Usage at the end of the steady state.
    pub(super) steady_to: Usage,
    /// Processor time of the simulated nodes in the steady state.
    pub(super) agents_cpu: Duration,
    /// Processor time of the whole machine in the steady state.
    pub(super) machine_cpu: Duration,
    pub(super) enrolment: Duration,
    pub(super) flows_created: Duration,
    /// Number of policy changes requested. Each is sent to two nodes.
    pub(super) changes: usize,
    /// Number of policy changes that a controller accepted.
    pub(super) accepted: usize,
    /// Number of accepted changes that did not reach both nodes, or that a controller does not have
    /// at the end.
    pub(super) lost: usize,
    pub(super) etcd: Option<EtcdMeasured>,
    pub(super) takeover: Option<Takeover>,
    pub(super) latencies: Arc<Latencies>,
}

/// The measurements of etcd in one case.
#[derive(Debug)]
pub(super) struct EtcdMeasured {
    /// Usage at the beginning of the steady state.
    pub(super) from: Usage,
    /// Usage at the end of the steady state.
    pub(super) to: Usage,
    /// The size of the database file at the end.
    pub(super) database_bytes: u64,
}

impl EtcdMeasured {
    /// Returns the number of processors kept busy by etcd in the steady state.
    pub(super) fn cores(&self) -> f64 {
        (self.to.cpu - self.from.cpu).as_secs_f64() / (self.to.at - self.from.at).as_secs_f64()
    }
}

/// The measurements after the leader was killed.
#[derive(Debug)]
pub(super) struct Takeover {
    /// The name of the leader.
    pub(super) killed: String,
    /// From the death of the leader until another controller was the leader.
    pub(super) election: Duration,
    /// Number of losses of nodes that were reported.
    pub(super) nodes_lost: usize,
    /// Number of nodes that lost their connection.
    pub(super) disconnected: usize,
}

impl Measured {
    /// Returns the number of processors kept busy by other processes in the steady state.
    pub(super) fn others_cores(&self) -> f64 {
        let controller = self.steady_to.cpu - self.steady_from.cpu;
        let etcd = self.etcd.as_ref();
        let etcd = etcd.map_or(Duration::ZERO, |etcd| etcd.to.cpu - etcd.from.cpu);
        self.machine_cpu
            .saturating_sub(controller + etcd + self.agents_cpu)
            .as_secs_f64()
            / self.seconds()
    }

    /// Returns the duration of the steady state in seconds.
    pub(super) fn seconds(&self) -> f64 {
        (self.steady_to.at - self.steady_from.at).as_secs_f64()
    }
}

impl experiment::Measured for Measured {
    /// Returns the reasons why the latencies are not those of the controller.
    fn invalid_because(&self) -> Vec<String> {
        let lag_ms = quantile(&self.latencies.sorted_ms(Kind::Lag), 0.99);
        if lag_ms <= LAG_LIMIT_MS {
            return Vec::new();
        }
        let others = self.others_cores();
        vec![format!(
            "timers of the simulated nodes fired {lag_ms:.0} ms late (99th percentile, limit {LAG_LIMIT_MS:.0} ms): other processes kept {others:.2} processors busy"
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_work() {
        let statistics = "cpu  100 20 30 90000 5000 4 6 40 7 8\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy(statistics), Some(Duration::from_secs(2)));
    }

    #[test]
    fn the_steady_state_has_a_beginning_and_an_end() {
        let latencies = Latencies::default();
        for kind in [Kind::Registration, Kind::Heartbeat] {
            latencies.record(kind, Duration::from_millis(1));
        }
        latencies.begin();
        latencies.record(Kind::Heartbeat, Duration::from_millis(2));
        latencies.end();
        latencies.record(Kind::Heartbeat, Duration::from_millis(3));
        assert_eq!(latencies.sorted_ms(Kind::Heartbeat), [2.0]);
        assert_eq!(latencies.count(Kind::Registration), 1);
    }
}
