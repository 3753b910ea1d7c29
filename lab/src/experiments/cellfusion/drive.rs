//! The drives: uplinks of a moving car, from the shared traces or generated.

use anyhow::{Context, Result, ensure};
use hawser_media::data_dir;
use hawser_netem::{Drive as Trace, LinkConfig, QueueLimit};
use hawser_units::ByteSize;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

/// The duration of a drive.
pub(in crate::experiments) const LENGTH: Duration = Duration::from_secs(60);

/// The interval between the rows of a trace.
pub(super) const STEP: Duration = Duration::from_millis(100);

/// The buffer of a base station for one modem. Such queues are deep, because radio links pause;
/// this one takes 80 ms to drain at 100 Mb/s and 1.6 s at 5 Mb/s.
const QUEUE: QueueLimit = QueueLimit::Bytes(ByteSize(1_000_000));

/// The number of drives generated without the shared traces, and the number of paths of each.
const GENERATED_DRIVES: u64 = 6;
const PATHS: u32 = 4;

/// One drive.
#[derive(Debug, Clone)]
pub(in crate::experiments) struct Drive {
    pub(in crate::experiments) name: String,
    paths: Vec<LinkConfig>,
}

impl Drive {
    /// Parses a trace.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self> {
        let trace = Trace::parse(text)?;
        let paths = trace
            .paths()
            .map(|path| trace.link(path))
            .collect::<Result<Vec<_>, _>>()?;
        ensure!(!paths.is_empty(), "the trace has no path");
        Ok(Drive {
            name: name.to_owned(),
            paths,
        })
    }

    /// Generates a drive that resembles the shared ones from a seed: rates vary between 0 and 100
    /// Mb/s, and a path with a low rate also loses packets, unless the drive is `lossless`.
    pub(in crate::experiments) fn generated(seed: u64, lossless: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut rates = [30.0_f64; PATHS as usize];
        let mut text = "t_ms,path,rate_mbps,owd_ms,loss\n".to_owned();
        for row in 0..LENGTH.as_millis() / STEP.as_millis() {
            for (path, rate) in rates.iter_mut().enumerate() {
                let step = if lossless { 2.0 } else { 12.0 };
                let min = if lossless { 15.0 } else { -10.0 };
                *rate = (*rate + step * (2.0 * random.random::<f64>() - 1.0)).clamp(min, 100.0);
                let loss = if !lossless && *rate < 5.0 {
                    0.2 * random.random::<f64>()
                } else {
                    0.0
                };
                let at = row * STEP.as_millis();
                let delay = 20 + 3 * path;
                writeln!(text, "{at},{path},{:.2},{delay},{loss:.2}", rate.max(0.0))
                    .expect("a string");
            }
        }
        Drive::parse(&format!("drawn-{seed:03}"), &text).expect("the generated trace is valid")
    }

    /// Returns the number of uplinks of the car.
    pub(in crate::experiments) fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Returns the link from the car to the cloud.
    pub(in crate::experiments) fn uplink(&self, path: usize) -> LinkConfig {
        LinkConfig {
            queue: Some(QUEUE),
            ..self.paths[path].clone()
        }
    }

    /// Returns the link from the cloud to the car. It has the same delay and loss, but an unlimited
    /// rate.
    pub(in crate::experiments) fn downlink(&self, path: usize) -> LinkConfig {
        LinkConfig {
            rate: None,
            ..self.paths[path].clone()
        }
    }
}

/// Returns the shared drives, ordered by name, or generated ones on a machine without them.
pub(in crate::experiments) fn all() -> Result<Vec<Drive>> {
    let folder = data_dir().join("traces/drives");
    if !folder.exists() {
        return Ok((0..GENERATED_DRIVES)
            .map(|seed| Drive::generated(seed, false))
            .collect());
    }
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    files
        .iter()
        .map(|file| {
            let wrong = || format!("cannot read {}", file.display());
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            Drive::parse(&name, &fs::read_to_string(file).with_context(wrong)?).with_context(wrong)
        })
        .collect()
}
