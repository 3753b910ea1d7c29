//! The drives: uplinks of a moving car, from the shared traces, composed of others, or generated.

use anyhow::{Context, Result, ensure};
use hawser_netem::{
    DRIVE_HEADER, Delay, Drive as Trace, LinkConfig, Loss, LossAt, Opportunities, QueueLimit, Rate,
    Steps,
};
use hawser_recording::data_dir;
use hawser_units::{Bitrate, ByteSize, MAX_PATHS};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The duration of a drive that is generated or composed.
const LENGTH: Duration = Duration::from_secs(60);

/// The maximum duration of a drive.
const MAX_LENGTH: Duration = Duration::from_secs(24 * 3600);

/// The interval between the rates of a drive that is generated or composed.
const STEP: Duration = Duration::from_millis(100);

/// The buffer of a base station for one modem. Such queues are deep, because radio links pause;
/// this one takes 80 ms to drain at 100 Mb/s and 1.6 s at 5 Mb/s.
const QUEUE: QueueLimit = QueueLimit::Bytes(ByteSize(1_000_000));

/// The number of drives generated without the shared traces, and the number of paths of each.
const GENERATED_DRIVES: u64 = 6;
const PATHS: u32 = 4;

/// The number of 5G uplinks of a recorded drive. They come before those on LTE.
const PATHS_ON_5G: usize = 2;

/// The mean length of a burst of losses in packets. The traces tell only the share of lost packets.
const BURST_PACKETS: NonZeroU32 = NonZeroU32::new(5).expect("not zero");

/// The number of drives composed of Mahimahi's traces.
const COMPOSED_DRIVES: u64 = 20;

/// A set of drives. Results are reported for each set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::experiments) enum Set {
    /// The shared traces.
    Recorded,
    /// Generated on a machine without the shared traces.
    Drawn,
    /// The shared traces, reversed in time.
    Reversed,
    /// Composed of Mahimahi's traces.
    Mahimahi,
}

impl Set {
    /// All sets, in the order of the results.
    pub(super) const ALL: [Set; 4] = [Set::Recorded, Set::Drawn, Set::Reversed, Set::Mahimahi];

    pub(super) fn name(self) -> &'static str {
        match self {
            Set::Recorded => "recorded",
            Set::Drawn => "drawn",
            Set::Reversed => "reversed",
            Set::Mahimahi => "mahimahi",
        }
    }

    /// Returns the name of a case on this set in the summary.
    pub(super) fn of(self, case: &str) -> String {
        match self.is_default() {
            true => case.to_owned(),
            false => format!("{case}/{}", self.name()),
        }
    }

    /// Returns whether the set runs without a pattern that selects its drives.
    pub(super) fn is_default(self) -> bool {
        matches!(self, Set::Recorded | Set::Drawn)
    }
}

/// The radio technology of an uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Technology {
    FiveG,
    Lte,
}

/// One drive.
#[derive(Debug, Clone)]
pub(in crate::experiments) struct Drive {
    pub(in crate::experiments) name: String,
    pub(super) set: Set,
    /// The duration.
    pub(in crate::experiments) length: Duration,
    paths: Vec<LinkConfig>,
}

impl Drive {
    /// Parses a trace.
    ///
    /// # Errors
    /// If the trace is not valid, has no path or more than [`MAX_PATHS`], has a single time, or lasts
    /// longer than a day.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self> {
        let trace = Trace::parse(text)?;
        let length = trace.length();
        let length = length.context("the trace needs rows of at least two times to have an end")?;
        ensure!(length <= MAX_LENGTH, "the trace is longer than a day");
        let paths = trace
            .paths()
            .map(|path| trace.link(path))
            .collect::<Result<Vec<_>, _>>()?;
        let count = paths.len();
        ensure!(
            (1..=MAX_PATHS).contains(&count),
            "the trace has {count} paths; the tunnel uses up to {MAX_PATHS}"
        );
        Ok(Drive {
            name: name.to_owned(),
            set: Set::Recorded,
            length,
            paths,
        })
    }

    /// Generates a drive that resembles the shared ones from a seed: rates vary between 0 and 100
    /// Mb/s, and a path with a low rate also loses packets, unless the drive is `lossless`.
    pub(in crate::experiments) fn generated(seed: u64, lossless: bool) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut rates = [30.0_f64; PATHS as usize];
        let mut text = format!("{DRIVE_HEADER}\n");
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
        let drive = Drive::parse(&format!("drawn-{seed:03}"), &text);
        Drive {
            set: Set::Drawn,
            ..drive.expect("the generated trace is valid")
        }
    }

    /// Returns the drive in the reversed order of time.
    fn reversed(&self) -> Drive {
        let reversed = |path: &LinkConfig| LinkConfig {
            rate: path.rate.as_ref().map(|rate| match rate {
                Rate::Steps(steps) => Rate::Steps(reversed(steps, self.length)),
                other => other.clone(),
            }),
            delay: match &path.delay {
                Delay::Steps(steps) => Delay::Steps(reversed(steps, self.length)),
                other => other.clone(),
            },
            loss: path.loss.as_ref().map(|loss| match loss {
                Loss::Steps(steps) => Loss::Steps(reversed(steps, self.length)),
                other => other.clone(),
            }),
            ..path.clone()
        };
        let name = self.name.strip_prefix("drive-").unwrap_or(&self.name);
        Drive {
            name: format!("reversed-{name}"),
            set: Set::Reversed,
            length: self.length,
            paths: self.paths.iter().map(reversed).collect(),
        }
    }

    /// Composes a drive of recordings, drawn by seed. Each path repeats one of them from a random
    /// time on, with its rates in proportion, so that their mean is one of 10 to 40 Mb/s. The
    /// recordings tell no delay and no loss: a path has a constant delay of 15 to 45 ms, and loses
    /// 20 % of the packets in steps with less than a tenth of its mean rate.
    fn composed(seed: u64, recordings: &[Recording]) -> Result<Drive> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut path = || {
            let recording = &recordings[random.random_range(0..recordings.len())];
            let first = random.random_range(0..recording.mbps.len());
            let mean_mbps = random.random_range(10.0..40.0);
            let delay = Duration::from_micros(random.random_range(15_000..45_000));
            recording.path(first, mean_mbps, delay)
        };
        Ok(Drive {
            name: format!("mahimahi-{seed:03}"),
            set: Set::Mahimahi,
            length: LENGTH,
            paths: (0..PATHS).map(|_| path()).collect::<Result<_>>()?,
        })
    }

    /// Returns the duration of the drive, or of its first part if it is longer than that.
    pub(in crate::experiments) fn part(&self, seconds: Option<f64>) -> Duration {
        let part = seconds.map(Duration::from_secs_f64);
        part.map_or(self.length, |part| part.min(self.length))
    }

    /// Returns the number of uplinks of the car.
    pub(in crate::experiments) fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Returns the uplinks of a technology. It is known of recorded drives only.
    pub(super) fn paths_on(&self, technology: Technology) -> Range<usize> {
        let first_on_lte = PATHS_ON_5G.min(self.paths());
        match (self.set, technology) {
            (Set::Recorded, Technology::FiveG) => 0..first_on_lte,
            (Set::Recorded, Technology::Lte) => first_on_lte..self.paths(),
            (Set::Drawn | Set::Reversed | Set::Mahimahi, _) => 0..0,
        }
    }

    /// Returns the link from the car to the cloud. Packets are lost on the air, in bursts, and have
    /// used the link's rate then.
    pub(in crate::experiments) fn uplink(&self, path: usize) -> LinkConfig {
        let path = &self.paths[path];
        let loss = path.loss.clone().map(|loss| match loss {
            Loss::Steps(steps) => Loss::Bursts {
                steps,
                mean_packets: BURST_PACKETS,
            },
            other => other,
        });
        LinkConfig {
            queue: Some(QUEUE),
            loss,
            loss_at: LossAt::Exit,
            ..path.clone()
        }
    }

    /// Returns the link from the cloud to the car. It has the same delay and loss, but an unlimited
    /// rate.
    pub(in crate::experiments) fn downlink(&self, path: usize) -> LinkConfig {
        LinkConfig {
            rate: None,
            queue: None,
            ..self.uplink(path)
        }
    }
}

/// Returns the steps of a duration in the reversed order of time.
fn reversed<T: Copy>(steps: &Steps<T>, length: Duration) -> Steps<T> {
    let step = |(value, end): (T, Option<Duration>)| (length - end.unwrap_or(length), value);
    let mut reversed: Vec<_> = steps.since(Duration::ZERO).map(step).collect();
    reversed.reverse();
    Steps::new(reversed).expect("steps in order")
}

/// A recording of one uplink by Mahimahi: its rate in each step.
struct Recording {
    mbps: Vec<f64>,
}

impl Recording {
    /// Parses a trace.
    fn parse(text: &str) -> Result<Recording> {
        let opportunities: Vec<u64> = Opportunities::parse(text)?.into();
        let mut bits: Vec<f64> = Vec::new();
        for at in opportunities {
            let step = usize::try_from(u128::from(at) / STEP.as_millis())?;
            ensure!(step < 1_000_000, "{at} ms is more than a day");
            if step >= bits.len() {
                bits.resize(step + 1, 0.0);
            }
            bits[step] += Opportunities::SIZE.bits() as f64;
        }
        // The last step is not complete.
        bits.pop();
        ensure!(
            bits.iter().any(|bits| *bits > 0.0),
            "the trace has no step of {} ms with an opportunity",
            STEP.as_millis()
        );
        let mbps = |bits: &f64| bits / STEP.as_secs_f64() / 1e6;
        Ok(Recording {
            mbps: bits.iter().map(mbps).collect(),
        })
    }

    /// Returns a path with these rates from step `first` on, in proportion to `mean_mbps`.
    fn path(&self, first: usize, mean_mbps: f64, delay: Duration) -> Result<LinkConfig> {
        const WEAK: f64 = 0.1;
        const WEAK_LOSS: f64 = 0.2;
        let mean = self.mbps.iter().sum::<f64>() / self.mbps.len() as f64;
        let count = (LENGTH.as_millis() / STEP.as_millis()) as u32;
        let mut rates = Vec::new();
        let mut losses = Vec::new();
        for (step, mbps) in (0..count).zip(self.mbps.iter().cycle().skip(first)) {
            let loss = if *mbps < WEAK * mean { WEAK_LOSS } else { 0.0 };
            rates.push((STEP * step, Bitrate::from_mbps(mbps / mean * mean_mbps)));
            losses.push((STEP * step, loss.try_into()?));
        }
        Ok(LinkConfig {
            rate: Some(Rate::Steps(Steps::new(rates)?)),
            delay: Delay::Constant(delay),
            loss: Some(Loss::Steps(Steps::new(losses)?)),
            ..LinkConfig::default()
        })
    }
}

/// Returns the folder of the shared drives.
fn folder() -> PathBuf {
    data_dir().join("traces/drives")
}

/// Says which drives there are, for a pattern that matches none of them.
pub(in crate::experiments) fn known<'a>(drives: impl IntoIterator<Item = &'a Drive>) -> String {
    let drives = drives.into_iter();
    let mut drives = drives.filter(|drive| drive.set.is_default());
    let Some(first) = drives.next() else {
        return format!("there are no drives in {}", folder().display());
    };
    let last = &drives.last().unwrap_or(first).name;
    let kind = match first.set {
        Set::Drawn => format!(
            "there are no recorded drives in {} (set HAWSER_DATA); the computed ones",
            folder().display()
        ),
        _ => "the drives".to_owned(),
    };
    let first = &first.name;
    format!("{kind} are {first} to {last}, such as in --case 'xnc/{first}'")
}

/// Returns the shared drives, ordered by name, or generated ones on a machine without them.
pub(in crate::experiments) fn all() -> Result<Vec<Drive>> {
    let folder = folder();
    if !folder.exists() {
        return Ok((0..GENERATED_DRIVES)
            .map(|seed| Drive::generated(seed, false))
            .collect());
    }
    files(&folder, "csv")?
        .iter()
        .map(|file| {
            let wrong = || format!("cannot read {}", file.display());
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            Drive::parse(&name, &fs::read_to_string(file).with_context(wrong)?).with_context(wrong)
        })
        .collect()
}

/// Returns the drives of the sets that do not run by default: these drives reversed, and those
/// composed of Mahimahi's traces on a machine that has them.
pub(super) fn further(drives: &[Drive]) -> Result<Vec<Drive>> {
    let mut further: Vec<Drive> = drives.iter().map(Drive::reversed).collect();
    let folder = data_dir().join("traces/mahimahi");
    if !folder.exists() {
        return Ok(further);
    }
    let recording = |file: &PathBuf| {
        let wrong = || format!("cannot read {}", file.display());
        Recording::parse(&fs::read_to_string(file).with_context(wrong)?).with_context(wrong)
    };
    let recordings: Vec<Recording> = files(&folder, "up")?
        .iter()
        .map(recording)
        .collect::<Result<_>>()?;
    if !recordings.is_empty() {
        for seed in 0..COMPOSED_DRIVES {
            further.push(Drive::composed(seed, &recordings)?);
        }
    }
    Ok(further)
}

/// Returns the files of a folder with this extension, ordered by name.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|its| its == extension));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate_at(drive: &Drive, path: usize, at: Duration) -> Bitrate {
        match drive.uplink(path).rate {
            Some(Rate::Steps(steps)) => steps.at(at),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reversed_drive_ends_with_the_first_step() {
        let drive = Drive::generated(1, false);
        let reversed = drive.reversed();
        assert_eq!(reversed.name, "reversed-drawn-001");
        for path in 0..drive.paths() {
            for step in [0, 1, 299, 599] {
                assert_eq!(
                    rate_at(&drive, path, STEP * step),
                    rate_at(&reversed, path, STEP * (599 - step))
                );
            }
            assert_eq!(
                reversed.reversed().uplink(path),
                drive.uplink(path),
                "reversed twice"
            );
        }
    }

    const HEADER: &str = "t_ms,path,rate_mbps,owd_ms,loss\n";

    #[test]
    fn a_drive_may_have_any_rows_and_any_length() {
        let text = format!("{HEADER}0,0,10,20,0\n30,0,0,20,0\n70,0,20,20,0\n0,1,5,20,0\n");
        let drive = Drive::parse("drive-000", &text).unwrap();
        let ms = Duration::from_millis;
        assert_eq!(drive.length, ms(110));
        let reversed = drive.reversed();
        for (at, mbps) in [(0, 20.0), (39, 20.0), (40, 0.0), (79, 0.0), (80, 10.0)] {
            assert_eq!(
                rate_at(&reversed, 0, ms(at)),
                Bitrate::from_mbps(mbps),
                "{at}"
            );
        }
        assert_eq!(rate_at(&reversed, 1, ms(0)), Bitrate::from_mbps(5.0));
    }

    #[test]
    fn a_drive_that_cannot_be_run_is_refused_with_the_reason() {
        let paths: String = (0..9)
            .map(|path| format!("0,{path},9,9,0\n9,{path},9,9,0\n"))
            .collect();
        for (rows, reason) in [
            ("", "two times"),
            ("0,0,10,20,0\n0,1,10,20,0\n", "two times"),
            ("0,0,10,20,0\n90000000,0,10,20,0\n", "a day"),
            (&paths[..], "9 paths"),
        ] {
            let error = Drive::parse("drive-000", &format!("{HEADER}{rows}")).unwrap_err();
            assert!(error.to_string().contains(reason), "{error:#}");
        }
    }

    #[test]
    fn a_composed_drive_has_rates_in_proportion() {
        // 12 Mb/s for a second and nothing for another, without the last step.
        let lines = (0..1000).chain([2000]).map(|ms| format!("{ms}\n"));
        let recordings = [Recording::parse(&lines.collect::<String>()).unwrap()];
        assert_eq!(recordings[0].mbps.len(), 20);
        let drive = Drive::composed(3, &recordings).unwrap();
        assert_eq!(drive.paths(), 4);
        for path in 0..drive.paths() {
            let uplink = drive.uplink(path);
            let (Some(Rate::Steps(rates)), Some(Loss::Bursts { steps, .. })) =
                (uplink.rate, uplink.loss)
            else {
                panic!("rates and losses change");
            };
            let mbps: Vec<f64> = rates.values().map(Bitrate::mbps).collect();
            let mean = mbps.iter().sum::<f64>() / mbps.len() as f64;
            assert!((10.0..40.0).contains(&mean), "{mean}");
            for (rate, loss) in mbps.iter().zip(steps.values()) {
                assert!(*rate < 0.001 || (*rate - 2.0 * mean).abs() < 0.1, "{rate}");
                assert_eq!(loss.get() > 0.0, *rate < 0.001);
            }
        }
        assert!(Recording::parse("x\n").is_err());
        assert!(Recording::parse("\n").is_err());
    }
}
