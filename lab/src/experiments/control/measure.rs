use super::process::{TICK, Usage};
use crate::summary::quantile;
use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When timers of the simulated nodes fire so late, 99 of 100 times at most, nodes and controller wait for a processor
/// rather than for each other.
const LAG_LIMIT_MS: f64 = 50.0;

/// What takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the first packet of the connection until the controller has registered the node.
    Registration,
    /// From there until the node has its assignment.
    Assignment,
    /// A report and its answer.
    Heartbeat,
    /// From an operator's request until a node's stream has the policy.
    Ordered,
    /// From a node's observation until a node's stream has the policy.
    Observed,
    /// How late a timer of the simulated nodes fires: what their own machine adds to all of this.
    Lag,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] = [
        Kind::Registration,
        Kind::Assignment,
        Kind::Heartbeat,
        Kind::Ordered,
        Kind::Observed,
        Kind::Lag,
    ];

    /// The beginning of its metrics' names.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Registration => "registration",
            Kind::Assignment => "assignment",
            Kind::Heartbeat => "heartbeat",
            Kind::Ordered => "policy_change",
            Kind::Observed => "observed_change",
            Kind::Lag => "agents_lag",
        }
    }

    /// Whether it belongs to the steady state.
    fn is_steady(self) -> bool {
        !matches!(self, Kind::Registration | Kind::Assignment)
    }
}

/// What was seen of one case, by all nodes.
#[derive(Debug, Default)]
pub(super) struct Latencies {
    samples: [Mutex<Vec<Duration>>; Kind::ALL.len()],
    is_steady: AtomicBool,
    requests: AtomicU64,
    errors: AtomicU64,
    last_error: Mutex<String>,
}

impl Latencies {
    /// From now on the steady state is measured.
    pub(super) fn begin(&self) {
        self.is_steady.store(true, Ordering::Relaxed);
    }

    /// Nothing more is measured.
    pub(super) fn end(&self) {
        self.is_steady.store(false, Ordering::Relaxed);
    }

    /// One more sample.
    pub(super) fn took(&self, kind: Kind, time: Duration) {
        if !kind.is_steady() || self.is_steady.load(Ordering::Relaxed) {
            lock(&self.samples[kind as usize]).push(time);
        }
    }

    /// One more request; its error counts.
    pub(super) fn asked<T>(&self, answer: Result<T, hawser_client::Error>) -> Option<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        answer.map_err(|error| self.failed(&error.to_string())).ok()
    }

    /// Something went wrong.
    pub(super) fn failed(&self, error: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        error.clone_into(&mut lock(&self.last_error));
    }

    /// Errors by requests.
    pub(super) fn errors_ratio(&self) -> f64 {
        let requests = self.requests.load(Ordering::Relaxed).max(1);
        self.errors.load(Ordering::Relaxed) as f64 / requests as f64
    }

    pub(super) fn last_error(&self) -> String {
        lock(&self.last_error).clone()
    }

    /// How many samples.
    pub(super) fn count(&self, kind: Kind) -> usize {
        lock(&self.samples[kind as usize]).len()
    }

    /// In milliseconds, ascending.
    pub(super) fn sorted_ms(&self, kind: Kind) -> Vec<f64> {
        let mut times: Vec<f64> = lock(&self.samples[kind as usize])
            .iter()
            .map(|time| time.as_secs_f64() * 1e3)
            .collect();
        times.sort_by(f64::total_cmp);
        times
    }

    /// Writes every sample to `latencies.csv`.
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

/// Measures how late timers fire, for ever.
pub(super) async fn lag(latencies: Arc<Latencies>) {
    const EVERY: Duration = Duration::from_millis(20);
    loop {
        let due = Instant::now() + EVERY;
        tokio::time::sleep_until(due.into()).await;
        latencies.took(Kind::Lag, due.elapsed());
    }
}

/// Processor time of this process.
pub(super) fn own_cpu() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()).unsigned_abs())
    };
    Ok(micros(usage.user_time()) + micros(usage.system_time()))
}

/// Processor time that this machine has spent on anything, since it started.
pub(super) fn machine_cpu() -> Result<Duration> {
    let path = "/proc/stat";
    let statistics = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    busy(&statistics).context("the kernel's statistics have another form")
}

/// All but idle and waiting, which are fields 4 and 5 of the first line; the last two are contained in others.
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

/// What one case gave.
#[derive(Debug)]
pub(super) struct Measured {
    /// Until the controller served.
    pub(super) empty: Usage,
    /// With all nodes enrolled and all flows made, but no node connected.
    pub(super) idle: Usage,
    /// At the beginning of the steady state.
    pub(super) steady_from: Usage,
    /// At its end.
    pub(super) steady_to: Usage,
    /// Processor time of the simulated nodes in the steady state.
    pub(super) agents_cpu: Duration,
    /// Processor time of the whole machine in the steady state.
    pub(super) machine_cpu: Duration,
    pub(super) enrolment: Duration,
    pub(super) flows_created: Duration,
    /// Policy changes that were asked for; each goes to two nodes.
    pub(super) changes: usize,
    pub(super) latencies: Arc<Latencies>,
}

impl Measured {
    /// Processors that somebody else kept busy in the steady state.
    pub(super) fn others_cores(&self) -> f64 {
        let controller = self.steady_to.cpu - self.steady_from.cpu;
        self.machine_cpu
            .saturating_sub(controller + self.agents_cpu)
            .as_secs_f64()
            / self.seconds()
    }

    /// How long the steady state was measured.
    pub(super) fn seconds(&self) -> f64 {
        (self.steady_to.at - self.steady_from.at).as_secs_f64()
    }

    /// Why the latencies are not the controller's.
    pub(super) fn invalid_because(&self) -> Vec<String> {
        let lag_ms = quantile(&self.latencies.sorted_ms(Kind::Lag), 0.99);
        if lag_ms <= LAG_LIMIT_MS {
            return Vec::new();
        }
        let others = self.others_cores();
        vec![format!(
            "timers of the simulated nodes fired {lag_ms:.0} ms late: something else kept {others:.2} processors busy"
        )]
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            latencies.took(kind, Duration::from_millis(1));
        }
        latencies.begin();
        latencies.took(Kind::Heartbeat, Duration::from_millis(2));
        latencies.end();
        latencies.took(Kind::Heartbeat, Duration::from_millis(3));
        assert_eq!(latencies.sorted_ms(Kind::Heartbeat), [2.0]);
        assert_eq!(latencies.count(Kind::Registration), 1);
    }
}
