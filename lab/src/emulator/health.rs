use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

/// How well the emulator kept up. Lateness is the time from a frame's scheduled departure to the
/// end of the system call that sent it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Health {
    /// Frames read from all devices.
    pub frames_received: u64,
    /// Frames handed to the devices.
    pub frames_sent: u64,
    /// Median lateness.
    pub lateness_p50_us: f64,
    /// 99th percentile of the lateness.
    pub lateness_p99_us: f64,
    /// 99.9th percentile of the lateness.
    pub lateness_p999_us: f64,
    /// Maximum lateness.
    pub lateness_max_us: f64,
    /// Frames dropped because they arrived faster than the emulator read.
    pub ring_drops: u64,
    /// Frames dropped because they were larger than [`ring::MAX_FRAME`](hawser_testbed::ring::MAX_FRAME).
    pub too_large: u64,
    /// Frames dropped because they contained several packets: segmentation offload was on at the
    /// device's other end.
    pub trains: u64,
    /// Frames that the kernel refused to send.
    pub send_failures: u64,
    /// Frames that the devices dropped in either direction.
    pub device_drops: u64,
    /// Processor time of the emulator's thread.
    pub cpu_ms: f64,
    /// Time for which the emulator ran.
    pub wall_ms: f64,
    /// Whether the thread had real-time priority.
    pub realtime: bool,
}

impl Health {
    /// The median lateness above which a run is invalid: one hundredth of the smallest delay of the
    /// paper's Table I.
    pub const LATENESS_P50_LIMIT: Duration = Duration::from_micros(200);

    /// The 99th percentile of the lateness above which a run is invalid.
    pub const LATENESS_P99_LIMIT: Duration = Duration::from_millis(1);

    /// The 99.9th percentile of the lateness above which a run is invalid: the smallest delay of
    /// Table I. The host of a virtual machine may take a processor away for half of that several
    /// times a second, see `docs/design/lab.md`.
    pub const LATENESS_P999_LIMIT: Duration = Duration::from_millis(20);

    /// Returns whether the figures of an experiment over these links may be used.
    pub fn valid(&self) -> bool {
        self.invalid_because().is_empty()
    }

    /// Returns the reasons why the figures are not valid, one sentence each: frames were later than
    /// the limits, or were lost although no link's configuration drops them.
    pub fn invalid_because(&self) -> Vec<String> {
        self.late().into_iter().chain(self.lost()).collect()
    }

    /// Returns the percentiles of the lateness that are above their limits.
    fn late(&self) -> Vec<String> {
        let (p50, p99) = (Self::LATENESS_P50_LIMIT, Self::LATENESS_P99_LIMIT);
        let p999 = Self::LATENESS_P999_LIMIT;
        [
            ("median", self.lateness_p50_us, p50),
            ("99th percentile", self.lateness_p99_us, p99),
            ("99.9th percentile", self.lateness_p999_us, p999),
        ]
        .into_iter()
        .filter(|(_, us, limit)| *us > micros(*limit))
        .map(|(what, us, limit)| {
            format!(
                "the emulator was late: {what} of the lateness {us:.0} us, limit {:.0} us",
                micros(limit)
            )
        })
        .collect()
    }

    /// Returns the losses that no link's configuration caused.
    fn lost(&self) -> Vec<String> {
        [
            (
                self.ring_drops,
                "were dropped because they arrived faster than the emulator read",
            ),
            (
                self.too_large,
                "were dropped because they were too large for the emulator",
            ),
            (
                self.trains,
                "were dropped because they contained several packets: segmentation offload is on at a device",
            ),
            (self.send_failures, "could not be sent"),
            (self.device_drops, "were dropped by the devices"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{count} frames {why}"))
        .collect()
    }

    /// Returns the share of one core that the emulator used.
    pub fn cpu_cores(&self) -> f64 {
        self.cpu_ms / self.wall_ms
    }

    pub(super) fn with_lateness(self, lateness: &Lateness) -> Self {
        Health {
            lateness_p50_us: micros(lateness.percentile(0.5)),
            lateness_p99_us: micros(lateness.percentile(0.99)),
            lateness_p999_us: micros(lateness.percentile(0.999)),
            lateness_max_us: micros(lateness.max),
            ..self
        }
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// A histogram of durations with a resolution of one microsecond up to 20 ms.
#[derive(Debug, Clone)]
pub struct Lateness {
    counts: Vec<u64>,
    max: Duration,
}

impl Default for Lateness {
    fn default() -> Self {
        const RANGE_US: usize = 20_000;
        Lateness {
            counts: vec![0; RANGE_US + 1],
            max: Duration::ZERO,
        }
    }
}

impl Lateness {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let last = self.counts.len() - 1;
        self.counts[(duration.as_micros() as usize).min(last)] += 1;
        self.max = self.max.max(duration);
    }

    /// Returns the duration that `share` of all durations do not exceed, rounded up to a
    /// microsecond; zero if there are none.
    pub fn percentile(&self, share: f64) -> Duration {
        let total: u64 = self.counts.iter().sum();
        let mut left = (total as f64 * share).ceil() as u64;
        for (us, count) in (1..).zip(&self.counts) {
            if left <= *count {
                return Duration::from_micros(us).min(self.max);
            }
            left -= count;
        }
        self.max
    }
}

/// Frames that devices have dropped since their creation, by device.
pub(super) struct DeviceDrops(BTreeMap<String, u64>);

impl DeviceDrops {
    /// Reads the counters of the calling thread's namespace.
    pub(super) fn read(devices: &[String]) -> Result<Self> {
        const COUNTERS: &str = "/proc/thread-self/net/dev";
        let table =
            fs::read_to_string(COUNTERS).with_context(|| format!("cannot read {COUNTERS}"))?;
        let mut drops = parse_device_drops(&table);
        drops.retain(|device, _| devices.contains(device));
        Ok(DeviceDrops(drops))
    }

    /// Returns the number of frames dropped since `earlier`.
    pub(super) fn since(&self, earlier: &DeviceDrops) -> u64 {
        let before = |device| earlier.0.get(device).copied().unwrap_or(0);
        self.0
            .iter()
            .map(|(device, drops)| drops.saturating_sub(before(device)))
            .sum()
    }
}

/// Parses the `drop` columns of both directions of `/proc/net/dev`.
fn parse_device_drops(table: &str) -> BTreeMap<String, u64> {
    const RECEIVE: usize = 3;
    const TRANSMIT: usize = 11;
    let rows = table.lines().filter_map(|line| line.split_once(':'));
    let drops = rows.filter_map(|(device, counters)| {
        let counters: Vec<u64> = counters
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        Some((
            device.trim().to_owned(),
            counters.get(RECEIVE)? + counters.get(TRANSMIT)?,
        ))
    });
    drops.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_what_was_recorded() {
        let mut lateness = Lateness::default();
        assert_eq!(lateness.percentile(0.5), Duration::ZERO);

        (1..=100).for_each(|us| lateness.record(Duration::from_nanos(us * 1000 - 500)));
        lateness.record(Duration::from_secs(1));

        assert_eq!(lateness.percentile(0.5), Duration::from_micros(51));
        assert_eq!(lateness.percentile(0.99), Duration::from_micros(100));
        assert_eq!(lateness.percentile(1.0), Duration::from_micros(20_001));
        assert_eq!(lateness.max, Duration::from_secs(1));
    }

    #[test]
    fn an_emulator_that_fell_behind_says_so() {
        let good = Health {
            lateness_p50_us: 40.0,
            lateness_p99_us: 300.0,
            ..Health::default()
        };
        assert!(good.valid());

        let late = Health {
            lateness_p99_us: 1500.0,
            ring_drops: 3,
            ..good
        };
        assert_eq!(
            late.invalid_because(),
            [
                "the emulator was late: 99th percentile of the lateness 1500 us, limit 1000 us",
                "3 frames were dropped because they arrived faster than the emulator read"
            ]
        );
    }

    #[test]
    fn drops_of_both_directions_are_added() {
        let table = "Inter-|   Receive                    |  Transmit\n \
                     face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo\n\
                     \x20 in1: 100 2 0 3 0 0 0 0 200 4 0 5 0 0 0 0\n";
        assert_eq!(
            parse_device_drops(table),
            BTreeMap::from([("in1".to_owned(), 8)])
        );
    }
}
