//! What all experiments have in common.

use crate::summary::Summary;
use crate::topology::Stop;
use anyhow::{Context, Result};
use std::fs;
use std::path::PathBuf;
use wildmatch::WildMatch;

/// Something that can be run and leaves a summary, raw data and a report.
pub trait Experiment: Sync {
    /// As `hawser lab run` takes it.
    fn name(&self) -> &'static str;

    /// One sentence.
    fn about(&self) -> &'static str;

    /// The combinations, in the order in which they run.
    fn cases(&self) -> Vec<String>;

    /// Runs the chosen cases and writes everything but the summary to the output folder.
    fn run(&self, run: &Run) -> Result<Summary>;
}

/// How an experiment is run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program that plays the nodes: `hawser` itself.
    pub binary: PathBuf,
    /// Of every random choice.
    pub seed: u64,
    /// How long a case lasts, seconds; the experiment's own time when not given.
    pub seconds: Option<f64>,
    /// How often a case is run before it is left as it is: while the emulator or the machine does not keep up.
    pub attempts: u32,
    /// Runs the cases whose names match: `*` stands for anything, alternatives are separated by commas.
    pub pattern: Option<String>,
    /// Where everything goes.
    pub out: PathBuf,
    /// Ends the run early.
    pub stop: Stop,
}

impl Run {
    /// Measures again when the emulator or the machine did not keep up, whatever the figures were, as often as this run
    /// allows. `invalid_because` says why an outcome may not be used. Returns the last outcome and how many there were.
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
            println!("  again: {}", reasons.join("; "));
            attempt += 1;
        }
    }

    /// A folder for raw data that is empty, also when an earlier run left something there.
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

    /// The cases of `all` that were chosen.
    ///
    /// # Errors
    /// When there is none.
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
            "no case matches {pattern:?}; there are: {}",
            all.join(", ")
        );
        Ok(chosen)
    }
}

/// `*` stands for anything; alternatives are separated by commas.
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
