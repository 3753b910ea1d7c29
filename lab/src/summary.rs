//! `summary.json`, the results of an experiment for people and programs to compare.
//!
//! ```
//! use hawser_lab::summary::{Case, Provenance, Summary};
//!
//! let provenance = Provenance::gather(1);
//! let mut summary = Summary::new("table1", provenance);
//! let mut case = Case::new("replicate/fhd");
//! case.metrics.set("fps_mean", 29.9);
//! case.paper.set("fps_mean", 30.0);
//! summary.cases.push(case);
//! let folder = tempfile::tempdir()?;
//! summary.write(folder.path())?;
//! assert_eq!(Summary::read(folder.path())?.case("replicate/fhd").unwrap().metrics.get("fps_mean"), Some(29.9));
//! # anyhow::Ok(())
//! ```

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The name of the file in an experiment's output folder.
pub const FILE_NAME: &str = "summary.json";

/// Units, one of which every metric's name contains as a word. A gap is the difference of two ratios.
const UNITS: &[&str] = &[
    "ns", "us", "ms", "s", "bps", "kbps", "mbps", "gbps", "pps", "fps", "bytes", "packets",
    "frames", "points", "paths", "nodes", "changes", "ratio", "gap", "cores", "ssim", "db",
    "score",
];

/// The outcome of one run of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The name of the experiment, as `hawser lab list` shows it.
    pub experiment: String,
    /// Whether the figures may be used. False if the emulator or the machine could not keep up.
    pub valid: bool,
    /// The reasons why the figures are not valid, one sentence each.
    pub invalid_because: Vec<String>,
    /// The number of cases that failed, and are not among `cases`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub failed_cases: usize,
    /// The origin of the figures.
    #[serde(flatten)]
    pub provenance: Provenance,
    /// One entry for each case that was run.
    pub cases: Vec<Case>,
}

/// The data needed to repeat a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Seed of the random number generators.
    pub seed: u64,
    /// The release of the running kernel.
    pub kernel: String,
    /// The commit of the source tree, with `+dirty` when files differ from it; `unknown` outside a
    /// git tree.
    pub commit: String,
    /// The command line.
    pub command: String,
}

/// One combination of an experiment's parameters.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Case {
    /// The name, in parts separated by `/`, such as `replicate/fhd`.
    pub name: String,
    /// The parameters.
    pub params: Map<String, Value>,
    /// The measured figures.
    pub metrics: Metrics,
    /// The paper's figures under the same names.
    pub paper: Metrics,
}

/// Figures by name, in the order in which they were set. In the file `null` marks a figure that
/// could not be measured.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Metrics(Map<String, Value>);

/// Returns whether a count is left out of the file.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

impl Summary {
    /// A valid summary without cases.
    pub fn new(experiment: &str, provenance: Provenance) -> Self {
        Summary {
            experiment: experiment.into(),
            valid: true,
            invalid_because: Vec::new(),
            failed_cases: 0,
            provenance,
            cases: Vec::new(),
        }
    }

    /// Marks the run as not valid.
    pub fn invalidate(&mut self, reason: impl Into<String>) {
        self.valid = false;
        self.invalid_because.push(reason.into());
    }

    /// Counts a case that failed, which makes the run not valid.
    pub fn count_failed(&mut self, reason: impl Into<String>) {
        self.failed_cases += 1;
        self.invalidate(reason);
    }

    /// Returns the case of the given name.
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.cases.iter().find(|case| case.name == name)
    }

    /// Writes [`FILE_NAME`] into `folder`, which is created if it does not exist.
    ///
    /// # Errors
    /// If a metric's name contains no unit.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        self.check()?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let path = folder.join(FILE_NAME);
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Reads the file that [`Summary::write`] wrote to `folder`.
    pub fn read(folder: &Path) -> Result<Self> {
        Self::read_file(&folder.join(FILE_NAME))
    }

    /// Reads a summary.
    ///
    /// # Errors
    /// If the file cannot be read, is not a summary, or a metric's name contains no unit.
    pub fn read_file(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let parsed = || -> Result<Self> {
            let summary: Summary = serde_json::from_str(&text)?;
            summary.check()?;
            Ok(summary)
        };
        parsed().with_context(|| format!("{} is not a summary", path.display()))
    }

    /// Checks what the types do not tell.
    ///
    /// # Errors
    /// If `valid` contradicts the reasons, or a metric's name contains no unit.
    pub(crate) fn check(&self) -> Result<()> {
        if self.valid != self.invalid_because.is_empty() {
            bail!("`valid` has to be false exactly if `invalid_because` has an entry");
        }
        for case in &self.cases {
            for (name, value) in case.metrics.0.iter().chain(&case.paper.0) {
                if !name.split('_').any(|word| UNITS.contains(&word)) {
                    bail!(
                        "metric {name} of {}: the name contains none of the units {}",
                        case.name,
                        UNITS.join(", ")
                    );
                }
                if !(value.is_number() || value.is_null()) {
                    bail!("metric {name} of {}: {value} is not a number", case.name);
                }
            }
        }
        Ok(())
    }
}

impl Provenance {
    /// Collects the seed, the running kernel, the commit of the source tree that this program was
    /// built from, and the command line.
    pub fn gather(seed: u64) -> Self {
        let kernel =
            fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| "unknown".into());
        Provenance {
            seed,
            kernel: kernel.trim().into(),
            commit: commit(),
            command: command_line(std::env::args().skip(1)),
        }
    }
}

impl Case {
    /// A case without figures.
    pub fn new(name: &str) -> Self {
        Case {
            name: name.into(),
            ..Case::default()
        }
    }

    /// Sets a parameter.
    pub fn set_param(&mut self, name: &str, value: impl Into<Value>) {
        self.params.insert(name.into(), value.into());
    }
}

impl Metrics {
    /// Sets a figure. A value that is not finite marks a figure that could not be measured.
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.insert(name.into(), Value::from(value));
    }

    /// Returns the figure of the given name, if it was measured.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }

    /// Removes the figures whose names are not wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| is_wanted(name));
    }

    /// Changes all figures that were measured.
    pub(crate) fn apply(&mut self, change: impl Fn(f64) -> f64) {
        for value in self.0.values_mut() {
            if let Some(figure) = value.as_f64() {
                *value = Value::from(change(figure));
            }
        }
    }

    /// Returns the names, in the order in which they were set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<const N: usize> From<[(&str, f64); N]> for Metrics {
    fn from(figures: [(&str, f64); N]) -> Self {
        let mut metrics = Metrics::default();
        for (name, value) in figures {
            metrics.set(name, value);
        }
        metrics
    }
}

/// Returns the commit of the source tree. With sudo the tree belongs to another user, which git
/// rejects without `safe.directory`.
fn commit() -> String {
    Command::new("git")
        .args([
            "-c",
            "safe.directory=*",
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "describe",
        ])
        .args(["--always", "--abbrev=40", "--exclude=*", "--dirty=+dirty"])
        .output()
        .ok()
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .map_or_else(|| "unknown".into(), |commit| commit.trim().into())
}

/// Returns the command line of the lab with these arguments.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let mut words = vec!["hawser-lab".to_owned()];
    for argument in arguments {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            words.push(argument);
        } else {
            words.push(format!("'{}'", argument.replace('\'', r"'\''")));
        }
    }
    words.join(" ")
}

/// Returns the mean of values. NaN if there are none.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

/// Returns the standard deviation of values. NaN if there are none.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values.iter().copied());
    mean(values.iter().map(|value| (value - middle).powi(2))).sqrt()
}

/// Returns the quantile of sorted values by the nearest-rank method: the smallest value that at
/// least this share of the values do not exceed. NaN if there are none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let sorted: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            (
                quantile(&sorted, 0.5),
                quantile(&sorted, 0.99),
                quantile(&sorted, 1.0)
            ),
            (50.0, 99.0, 100.0)
        );
        assert_eq!(deviation(&[1.0, 3.0]), 1.0);
        assert_eq!(quantile(&[7.0], 0.99), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    fn provenance() -> Provenance {
        Provenance {
            seed: 7,
            kernel: "6.18".into(),
            commit: "abc+dirty".into(),
            command: "hawser lab run".into(),
        }
    }

    #[test]
    fn the_file_has_the_agreed_shape() {
        let mut summary = Summary::new("table1", provenance());
        let mut case = Case::new("replicate/fhd");
        case.set_param("seconds", 60);
        case.metrics = [("fps_mean", 29.9), ("frame_delay_p95_ms", f64::NAN)].into();
        case.paper.set("fps_mean", 30.0);
        summary.cases.push(case);
        assert_eq!(
            serde_json::to_string(&summary).unwrap(),
            r#"{"experiment":"table1","valid":true,"invalid_because":[],"seed":7,"kernel":"6.18","#
                .to_owned()
                + r#""commit":"abc+dirty","command":"hawser lab run","cases":[{"name":"replicate/fhd","#
                + r#""params":{"seconds":60},"metrics":{"fps_mean":29.9,"frame_delay_p95_ms":null},"#
                + r#""paper":{"fps_mean":30.0}}]}"#
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut summary = Summary::new("table1", provenance());
        summary.invalidate("the emulator fell behind by 12 ms");
        summary.count_failed("multi/hd: the viewer ended");
        summary.cases.push(Case::new("single/hd"));
        summary
            .write(&folder.path().join("made/when/missing"))
            .unwrap();
        let read = Summary::read(&folder.path().join("made/when/missing")).unwrap();
        assert_eq!(read, summary);
        assert!(!read.valid);
    }

    #[test]
    fn a_metric_without_a_unit_is_refused() {
        for (name, accepted) in [
            ("fps_mean", true),
            ("ns_per_packet", true),
            ("ratio_to_bare_broadcast", true),
            ("frame_delay_p95_ms", true),
            ("delay", false),
            ("items", false),
        ] {
            let mut summary = Summary::new("table1", provenance());
            let mut case = Case::new("single/hd");
            case.metrics.set(name, 1.0);
            summary.cases.push(case);
            assert_eq!(summary.check().is_ok(), accepted, "{name}");
        }
    }

    #[test]
    fn the_command_line_can_be_pasted_into_a_shell() {
        let arguments = ["run", "--case", "*/fhd", "it's"].map(String::from);
        assert_eq!(
            command_line(arguments.into_iter()),
            r"hawser-lab run --case '*/fhd' 'it'\''s'"
        );
    }
}
