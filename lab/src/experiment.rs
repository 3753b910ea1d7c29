//! The interface that all experiments implement, and the options of a run.

use crate::summary::Summary;
use anyhow::{Context, Result};
use hawser_testbed::topology::Stop;
use std::fs;
use std::path::PathBuf;
use wildmatch::WildMatch;

/// An experiment. Running it produces a summary, raw data and a report.
pub trait Experiment: Sync {
    /// The name that `hawser lab run` takes.
    fn name(&self) -> &'static str;

    /// A description in one sentence.
    fn about(&self) -> &'static str;

    /// The names of all cases, in the order in which they run.
    fn cases(&self) -> Vec<String>;

    /// Runs the selected cases and writes all files but the summary to the output folder.
    fn run(&self, run: &Run) -> Result<Summary>;
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program that plays the nodes: `hawser`.
    pub hawser: PathBuf,
    /// Seed of the random number generators.
    pub seed: u64,
    /// Duration of a case in seconds. Without it, the experiment's default.
    pub seconds: Option<f64>,
    /// Maximum number of times that a case is run. It is repeated while the emulator or the machine
    /// does not keep up.
    pub attempts: u32,
    /// Pattern of the names of the cases to run: `*` matches any text, commas separate
    /// alternatives.
    pub pattern: Option<String>,
    /// The output folder.
    pub out: PathBuf,
    /// Ends the run early when requested.
    pub stop: Stop,
}

impl Run {
    /// Repeats a measurement while the emulator or the machine does not keep up, at most `attempts`
    /// times. The measured figures do not influence this.
    ///
    /// `invalid_because` returns the reasons why an outcome is not valid. Returns the last outcome
    /// and the number of attempts.
    pub fn until_valid<T>(
        &self,
        mut measure: impl FnMut() -> Result<T>,
        invalid_because: impl Fn(&T) -> Vec<String>,
    ) -> Result<(T, u32)> {
        let mut attempt = 1;
        loop {
            let outcome = measure()?;
            let reasons = invalid_because(&outcome);
            if reasons.is_empty() || attempt >= self.attempts || self.stop.requested() {
                return Ok((outcome, attempt));
            }
            println!("  not valid, repeating: {}", reasons.join("; "));
            attempt += 1;
        }
    }

    /// Creates an empty folder for raw data, and removes the one of an earlier run.
    pub(crate) fn raw(&self, name: &str) -> Result<PathBuf> {
        let folder = std::path::absolute(self.out.join("raw").join(name))?;
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// Returns the cases of `all` that the pattern selects.
    ///
    /// # Errors
    /// If no case matches.
    pub fn chosen(&self, all: Vec<String>) -> Result<Vec<String>> {
        let Some(pattern) = &self.pattern else {
            return Ok(all);
        };
        let chosen: Vec<String> = all
            .iter()
            .filter(|case| matches(pattern, case))
            .cloned()
            .collect();
        anyhow::ensure!(
            !chosen.is_empty(),
            "no case matches {pattern:?}; the cases are: {}",
            all.join(", ")
        );
        Ok(chosen)
    }
}

/// Returns whether a pattern matches a name: `*` matches any text, commas separate alternatives.
fn matches(pattern: &str, name: &str) -> bool {
    pattern
        .split(',')
        .any(|alternative| WildMatch::new(alternative).matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_cases() {
        for (pattern, name, expected) in [
            ("single/fhd", "single/fhd", true),
            ("single/fhd", "single/fhd2", false),
            ("single/*", "single/fhd", true),
            ("*/fhd", "replicate/fhd", true),
            ("*/fhd", "replicate/hd", false),
            ("single/fhd,replicate/fhd", "replicate/fhd", true),
            ("*", "anything", true),
            ("hd", "replicate/hd", false),
            ("*l*/hd", "replicate/hd", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
