//! The self-test of the emulator.

use crate::emulator::load::{self, Arrivals, FRAME};
use crate::emulator::{EmulatedPath, Emulator, EmulatorReport};
use crate::summary::Case;
use anyhow::{Context, Result, anyhow};
use hawser_netem::{Delay, LinkConfig, Loss, Probability, QueueLimit, Rate};
use hawser_testbed::topology::{Lab, Topology, network_egress, network_ingress};
use hawser_units::{Bitrate, ByteSize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

/// The results of the emulator's self-test on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct SelfTest {
    /// The measurements: `emulator/rate`, `emulator/table1`, `emulator/delay`.
    pub cases: Vec<Case>,
    /// The requirements that were not met, one sentence each.
    pub unmet: Vec<String>,
}

/// The errors of a delay: the metric, its quantile, and the limit in milliseconds.
const DELAY_ERRORS: [(&str, f64, Option<f64>); 3] = [
    ("delay_error_p50_ms", 0.5, Some(0.2)),
    ("delay_error_p99_ms", 0.99, Some(1.0)),
    ("delay_error_max_ms", 1.0, None),
];

/// The maximum relative error of a rate.
const RATE_TOLERANCE: f64 = 0.01;

/// Rate (Mb/s), delay (ms) and loss of the paths of the paper's Table I.
const TABLE_1: [(f64, u64, f64); 5] = [
    (400.0, 20, 0.0005),
    (400.0, 30, 0.0005),
    (150.0, 100, 0.0005),
    (50.0, 100, 0.0005),
    (50.0, 30, 0.0),
];

/// Measures, for about `seconds` each, the rate of one link of 400 Mb/s, the rates of the five
/// links of Table I at once, and the error of a delay of 20 ms at 100 Mb/s, end to end. The machine
/// should be otherwise idle.
///
/// # Errors
/// If the machine does not meet the requirements of the emulator; see [`Emulator::start`].
pub fn self_test(seconds: f64) -> Result<SelfTest> {
    let duration = Duration::try_from_secs_f64(seconds)
        .context("the duration of the self-test is not valid")?;
    let mut test = SelfTest {
        cases: Vec::new(),
        unmet: Vec::new(),
    };
    test.rates("emulator/rate", &TABLE_1[..1], duration)?;
    test.rates("emulator/table1", &TABLE_1, duration)?;
    test.delay(duration)?;
    Ok(test)
}

impl SelfTest {
    /// Measures rates by offering each link a little more than its rate.
    fn rates(&mut self, name: &str, links: &[(f64, u64, f64)], duration: Duration) -> Result<()> {
        const OVERLOAD: f64 = 1.05;
        let configs = links
            .iter()
            .map(|(mbps, delay, loss)| table_1_link(*mbps, *delay, *loss));
        let offered: Vec<_> = links
            .iter()
            .map(|(mbps, ..)| Bitrate::from_mbps(mbps * OVERLOAD))
            .collect();
        let (report, arrivals) = measure(configs.collect::<Result<_>>()?, &offered, duration)?;
        let rates = arrivals.iter().map(|arrivals| arrivals.rate().mbps());
        let rates: Vec<f64> = rates.collect();
        let configured: f64 = links.iter().map(|(mbps, ..)| mbps).sum();
        let worst = worst_error(&rates, links);
        let mut case = self.case(name, &report);
        case.set_param("frame_bytes", FRAME.0);
        case.set_param("configured_mbps", configured);
        case.metrics.set("rate_mbps", rates.iter().sum());
        case.metrics.set("worst_rate_error_ratio", worst);
        self.cases.push(case);
        if worst > RATE_TOLERANCE {
            self.unmet.push(format!(
                "{name}: the error of a rate was {:.1} %, limit 1 %",
                worst * 100.0
            ));
        }
        Ok(())
    }

    fn delay(&mut self, duration: Duration) -> Result<()> {
        const NAME: &str = "emulator/delay";
        const DELAY: Duration = Duration::from_millis(20);
        let config = LinkConfig {
            delay: Delay::Constant(DELAY),
            ..LinkConfig::default()
        };
        let (report, arrivals) = measure(vec![config], &[Bitrate::from_mbps(100.0)], duration)?;
        let delays = arrivals[0].delays.iter();
        let mut errors: Vec<Duration> = delays.map(|delay| delay.abs_diff(DELAY)).collect();
        errors.sort_unstable();
        let quantile =
            |share: f64| errors.get(((errors.len() as f64 * share) as usize).min(errors.len() - 1));
        let mut case = self.case(NAME, &report);
        case.set_param("frame_bytes", FRAME.0);
        case.set_param("offered_mbps", 100);
        for (metric, share, limit_ms) in DELAY_ERRORS {
            let error = quantile(share).context("no frame arrived")?.as_secs_f64() * 1e3;
            case.metrics.set(metric, error);
            if let Some(limit) = limit_ms.filter(|limit| error > *limit) {
                self.unmet
                    .push(format!("{NAME}: {metric} is {error:.3}, limit {limit}"));
            }
        }
        self.cases.push(case);
        Ok(())
    }

    /// Creates a case with the health of the emulator, and adds the reasons for which it is not
    /// valid to the unmet requirements.
    fn case(&mut self, name: &str, report: &EmulatorReport) -> Case {
        let health = &report.health;
        self.unmet.extend(
            health
                .invalid_because()
                .into_iter()
                .map(|reason| format!("{name}: {reason}")),
        );
        let mut case = Case::new(name);
        case.metrics.set("lateness_p50_us", health.lateness_p50_us);
        case.metrics.set("lateness_p99_us", health.lateness_p99_us);
        case.metrics
            .set("lateness_p999_us", health.lateness_p999_us);
        case.metrics.set("lateness_max_us", health.lateness_max_us);
        case.metrics.set("emulator_cpu_cores", health.cpu_cores());
        case
    }
}

/// Returns the largest relative error of the rates of links.
fn worst_error(rates: &[f64], links: &[(f64, u64, f64)]) -> f64 {
    let errors = rates
        .iter()
        .zip(links)
        .map(|(rate, (mbps, ..))| (rate / mbps - 1.0).abs());
    errors.fold(0.0, f64::max)
}

fn table_1_link(mbps: f64, delay_ms: u64, loss: f64) -> Result<LinkConfig> {
    let loss = Probability::try_from(loss)?;
    Ok(LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(mbps))),
        queue: Some(QueueLimit::Bytes(ByteSize(1_000_000))),
        delay: Delay::Constant(Duration::from_millis(delay_ms)),
        loss: Some(Loss::Independent(loss)),
        ..LinkConfig::default()
    })
}

/// Sends through the forward links for `duration`. Returns the emulator's report and the arrivals
/// on each link.
fn measure(
    configs: Vec<LinkConfig>,
    offered: &[Bitrate],
    duration: Duration,
) -> Result<(EmulatorReport, Vec<Arrivals>)> {
    const SEED: u64 = 1;
    let lab = Topology::with_paths(configs.len()).build()?;
    let paths = lab
        .paths()
        .zip(configs)
        .map(|(path, forward)| EmulatedPath {
            name: path.to_string(),
            ingress_device: network_ingress(path),
            egress_device: network_egress(path),
            backward: forward.clone(),
            forward,
        });
    let mut emulator = Emulator::start(lab.network(), paths.collect(), SEED)?;
    emulator.steer(&[lab.ingress(), lab.egress()])?;
    let arrivals = send(&lab, offered, duration)?;
    Ok((emulator.stop()?, arrivals))
}

/// Sends from the ingress edge and returns the arrivals at the egress edge.
fn send(lab: &Lab, offered: &[Bitrate], duration: Duration) -> Result<Vec<Arrivals>> {
    let near = lab.paths().map(|path| lab.path(path).near.device.clone());
    let far = lab.paths().map(|path| lab.path(path).far.device.clone());
    let far: Vec<String> = far.collect();
    let load: Vec<_> = near.zip(offered.iter().copied()).collect();
    let ended = AtomicBool::new(false);
    let (ready, is_ready) = sync_channel(1);
    thread::scope(|scope| {
        // The sender below does nothing but wait for this message.
        let ready = move || ready.send(()).unwrap_or(());
        let receiver = scope.spawn(|| load::receive(lab.egress(), &far, ready, &ended));
        let send = || load::send(lab.ingress(), &load, duration);
        // If the receiver fails before it is ready, joining it returns the error.
        let sent = match is_ready.recv() {
            Ok(()) => join(scope.spawn(send).join()),
            Err(_) => Ok(()),
        };
        ended.store(true, Ordering::Relaxed);
        let arrivals = join(receiver.join());
        sent.and(arrivals)
    })
}

fn join<T>(joined: thread::Result<Result<T>>) -> Result<T> {
    joined.map_err(|_| anyhow!("a thread of the self-test panicked"))?
}
