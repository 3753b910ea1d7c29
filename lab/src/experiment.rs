//! The interface of experiments, the options of a run, and the runner of all experiments.
//!
//! One rule holds for all: a measurement is repeated while the emulator or the machine does not
//! keep up, at most [`Run::attempts`] times. Figures that are not valid at the end, and cases that
//! fail or panic, make the run invalid with the reason. They do not discard the other cases, unless
//! all fail.

use crate::summary::{Provenance, Summary};
use anyhow::{Context, Result, anyhow, bail};
use hawser_testbed::topology::Stop;
use parking_lot::Mutex;
use serde::Serialize;
use std::fmt::Display;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use wildmatch::WildMatch;

/// An experiment: which cases there are, how one is measured, and what the figures mean.
pub trait Experiment: Sync {
    /// The parameters of a case, displayed as its name, which the list, patterns and the summary have.
    type Case: Display;

    /// The parameters of one measurement of cases, such as a case with a seed, displayed as its name.
    type Trial: Display + Send + Sync;

    /// The results of a trial.
    type Outcome: Measured;

    /// The name that `hawser lab run` takes.
    fn name(&self) -> &'static str;

    /// A description in one sentence.
    fn about(&self) -> &'static str;

    /// Returns all cases, in the order in which they are listed.
    fn cases(&self) -> Vec<Self::Case>;

    /// Returns whether a run may use another recording than the experiment's.
    fn takes_recording(&self) -> bool {
        false
    }

    /// Returns whether a run may decode the video and compare its pictures.
    fn has_pictures(&self) -> bool {
        false
    }

    /// Returns whether a run may repeat its cases with further seeds.
    fn has_repetitions(&self) -> bool {
        false
    }

    /// Returns the trials of the cases that a run selects, in the order in which they run.
    fn trials(&self, run: &Run) -> Result<Vec<Self::Trial>>;

    /// The number of trials that are measured at the same time. It is 1 unless time is virtual.
    fn workers(&self) -> usize {
        1
    }

    /// Runs a trial.
    fn measure(&self, trial: &Self::Trial, run: &Run) -> Result<Self::Outcome>;

    /// Adds the cases to the summary, and writes the report and further files to the output folder.
    /// At least one trial was measured.
    fn summarise(
        &self,
        completed: Vec<Completed<Self::Trial, Self::Outcome>>,
        summary: &mut Summary,
        run: &Run,
    ) -> Result<()>;
}

/// The results of a trial.
pub trait Measured: Send {
    /// Returns the reasons why the figures are not valid, one sentence each. The figures themselves
    /// are no reason. There is none in virtual time, which passes as it should on any machine.
    fn invalid_because(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The trials of an experiment that were measured, in the order in which they ran.
pub type Results<E> = Vec<Completed<<E as Experiment>::Trial, <E as Experiment>::Outcome>>;

/// A trial that was measured.
#[derive(Debug, Clone)]
pub struct Completed<T, O> {
    /// The trial.
    pub trial: T,
    /// The results of the last attempt.
    pub outcome: O,
    /// The number of attempts.
    pub attempts: u32,
}

/// An experiment that is started by its name.
pub trait Entry: Sync {
    /// The name that `hawser lab run` takes.
    fn name(&self) -> &'static str;

    /// A description in one sentence.
    fn about(&self) -> &'static str;

    /// Returns the names of all cases, in the order in which they are listed.
    fn case_names(&self) -> Vec<String>;

    /// Returns whether a run may use another recording than the experiment's.
    fn takes_recording(&self) -> bool;

    /// Returns whether a run may decode the video and compare its pictures.
    fn has_pictures(&self) -> bool;

    /// Returns whether a run may repeat its cases with further seeds.
    fn has_repetitions(&self) -> bool;

    /// Runs the selected cases and writes all files but the summary to the output folder, which it
    /// creates.
    fn run(&self, run: &Run) -> Result<Summary>;
}

impl<E: Experiment> Entry for E {
    fn name(&self) -> &'static str {
        Experiment::name(self)
    }

    fn about(&self) -> &'static str {
        Experiment::about(self)
    }

    fn case_names(&self) -> Vec<String> {
        let cases = self.cases();
        cases.iter().map(E::Case::to_string).collect()
    }

    fn takes_recording(&self) -> bool {
        Experiment::takes_recording(self)
    }

    fn has_pictures(&self) -> bool {
        Experiment::has_pictures(self)
    }

    fn has_repetitions(&self) -> bool {
        Experiment::has_repetitions(self)
    }

    fn run(&self, run: &Run) -> Result<Summary> {
        let trials = self.trials(run)?;
        // Not every trial leaves raw data, and a report needs the folder, too.
        fs::create_dir_all(&run.out)
            .with_context(|| format!("cannot create {}", run.out.display()))?;
        let mut summary = Summary::new(Experiment::name(self), Provenance::gather(run.seed));
        let results = measure_all(self, &trials, run)?;
        let completed = sift(trials, results, &mut summary)?;
        self.summarise(completed, &mut summary, run)?;
        Ok(summary)
    }
}

/// The results of a trial with the number of attempts.
type Attempted<O> = Result<(O, u32)>;

/// Measures the trials, as many at a time as there are workers.
fn measure_all<E: Experiment>(
    experiment: &E,
    trials: &[E::Trial],
    run: &Run,
) -> Result<Vec<Attempted<E::Outcome>>> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while !run.stop.requested() {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(trial) = trials.get(index) else {
                break;
            };
            progress(&format!("[{}/{}] {trial}", index + 1, trials.len()));
            let result = run
                .until_valid(|| without_panic(|| experiment.measure(trial, run)))
                .inspect_err(|error| progress(&format!("  failed: {error:#}")));
            let mut results = results.lock();
            results.push((index, result));
        }
    };
    match experiment.workers() {
        1 => work(),
        workers => thread::scope(|scope| {
            (0..workers).for_each(|_| drop(scope.spawn(work)));
        }),
    }
    if run.stop.requested() {
        bail!("stopped");
    }
    let mut results = results.into_inner();
    results.sort_by_key(|(index, _)| *index);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// Returns what `measure` returns, or an error if it panics. The measurement is then discarded with
/// all that it was changing.
fn without_panic<T>(measure: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(measure)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(anyhow!("panicked: {}", text.unwrap_or("without a message")))
    })
}

/// Returns the trials that were measured. Those that failed or are not valid invalidate the summary.
///
/// # Errors
/// If every trial failed: the first failure.
fn sift<T: Display, O: Measured>(
    trials: Vec<T>,
    results: Vec<Attempted<O>>,
    summary: &mut Summary,
) -> Result<Vec<Completed<T, O>>> {
    let (mut completed, mut failure) = (Vec::new(), None);
    for (trial, result) in trials.into_iter().zip(results) {
        match result {
            Ok((outcome, attempts)) => {
                for reason in outcome.invalid_because() {
                    summary.invalidate(format!("{trial}: {reason}"));
                }
                completed.push(Completed {
                    trial,
                    outcome,
                    attempts,
                });
            }
            Err(error) => {
                summary.count_failed(format!("{trial}: {error:#}"));
                failure.get_or_insert(error.context(format!("case {trial}")));
            }
        }
    }
    match failure {
        Some(failure) if completed.is_empty() => Err(failure),
        _ => Ok(completed),
    }
}

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The program that plays the nodes: `hawser`.
    pub hawser: PathBuf,
    /// Seed of the random number generators.
    pub seed: u64,
    /// Number of times that each case is run with another seed, where the experiment repeats cases.
    pub repetitions: u32,
    /// Duration of a case in seconds. Without it, the experiment's default.
    pub seconds: Option<f64>,
    /// Maximum number of times that a case is run. It is repeated while the emulator or the machine
    /// does not keep up.
    pub attempts: u32,
    /// Pattern of the names of the cases to run: `*` matches any text, commas separate
    /// alternatives.
    pub pattern: Option<String>,
    /// Description of the recording to use instead of the experiment's.
    pub recording: Option<PathBuf>,
    /// Whether to decode the video and to compare its pictures, where the experiment does not always.
    pub pictures: bool,
    /// The output folder.
    pub out: PathBuf,
    /// Ends the run early when requested.
    pub stop: Stop,
}

impl Run {
    /// Repeats a measurement while the emulator or the machine does not keep up, at most `attempts`
    /// times. The measured figures do not influence this. Returns the last outcome and the number
    /// of attempts.
    fn until_valid<O: Measured>(&self, measure: impl Fn() -> Result<O>) -> Attempted<O> {
        let mut attempt = 1;
        loop {
            let outcome = measure()?;
            let reasons = outcome.invalid_because();
            if reasons.is_empty() || attempt >= self.attempts || self.stop.requested() {
                return Ok((outcome, attempt));
            }
            progress(&format!("  not valid, repeating: {}", reasons.join("; ")));
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

    /// Returns the cases of `all` whose names the pattern matches.
    ///
    /// # Errors
    /// If no case matches.
    pub fn chosen<C: Display>(&self, all: Vec<C>) -> Result<Vec<C>> {
        let Some(pattern) = &self.pattern else {
            return Ok(all);
        };
        let names: Vec<String> = all.iter().map(C::to_string).collect();
        let mut chosen = all;
        chosen.retain(|case| matches(pattern, &case.to_string()));
        anyhow::ensure!(
            !chosen.is_empty(),
            "no case matches {pattern:?}; the cases are: {}",
            names.join(", ")
        );
        Ok(chosen)
    }
}

/// Writes a value to a file of the raw data, as indented JSON.
pub(crate) fn write_json(file: &Path, value: &impl Serialize) -> Result<()> {
    fs::write(file, serde_json::to_vec_pretty(value)?)
        .with_context(|| format!("cannot write {}", file.display()))
}

/// Prints a line about a run to standard output. The run goes on if nothing reads it.
pub(crate) fn progress(line: &str) {
    if let Err(error) = hawser_service::print(&format!("{line}\n")) {
        tracing::warn!("cannot print the progress of the run: {error}");
    }
}

/// Returns whether a pattern matches a name: `*` matches any text, commas separate alternatives.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    pattern
        .split(',')
        .any(|alternative| WildMatch::new(alternative).matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Case;

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

    /// Fails, panics or is not valid, as its cases say.
    struct Mixed;

    const CASES: [&str; 4] = ["panics", "good", "late", "broken"];

    struct Figures(Vec<String>);

    impl Measured for Figures {
        fn invalid_because(&self) -> Vec<String> {
            self.0.clone()
        }
    }

    impl Experiment for Mixed {
        type Case = &'static str;
        type Trial = &'static str;
        type Outcome = Figures;

        fn name(&self) -> &'static str {
            "mixed"
        }

        fn about(&self) -> &'static str {
            "cases that fail"
        }

        fn cases(&self) -> Vec<&'static str> {
            CASES.to_vec()
        }

        fn trials(&self, run: &Run) -> Result<Vec<&'static str>> {
            run.chosen(self.cases())
        }

        fn workers(&self) -> usize {
            2
        }

        fn measure(&self, case: &&'static str, _: &Run) -> Result<Figures> {
            match *case {
                "broken" => bail!("out of order"),
                "panics" => panic!("no {case} today"),
                "late" => Ok(Figures(vec!["too late".to_owned()])),
                _ => Ok(Figures(Vec::new())),
            }
        }

        fn summarise(
            &self,
            completed: Results<Self>,
            summary: &mut Summary,
            run: &Run,
        ) -> Result<()> {
            fs::write(run.out.join("report.html"), "")?;
            summary.cases = completed
                .into_iter()
                .map(|one| Case::new(&format!("{} {}", one.trial, one.attempts)))
                .collect();
            Ok(())
        }
    }

    /// Returns a run into a folder that does not exist.
    fn run(pattern: &str) -> (tempfile::TempDir, Run) {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new/folder");
        let run = Run {
            hawser: PathBuf::new(),
            seed: 1,
            repetitions: 1,
            seconds: None,
            attempts: 3,
            pattern: Some(pattern.to_owned()),
            recording: None,
            pictures: false,
            out,
            stop: Stop::default(),
        };
        (folder, run)
    }

    #[test]
    fn a_case_that_fails_does_not_discard_the_others() {
        let (_folder, run) = run("*");
        let summary = Entry::run(&Mixed, &run).unwrap();
        assert!(run.out.join("report.html").exists());
        let names: Vec<&str> = summary.cases.iter().map(|case| &case.name[..]).collect();
        assert_eq!(names, ["good 1", "late 3"]);
        let reasons = [
            "panics: panicked: no panics today",
            "late: too late",
            "broken: out of order",
        ];
        assert_eq!(summary.invalid_because, reasons);
        assert_eq!(summary.failed_cases, 2);
    }

    #[test]
    fn a_run_of_cases_that_all_fail_fails() {
        let (_folder, run) = run("broken");
        let error = Entry::run(&Mixed, &run).unwrap_err();
        assert_eq!(format!("{error:#}"), "case broken: out of order");
    }

    #[test]
    fn a_run_that_is_stopped_has_no_figures() {
        let (_folder, run) = run("*");
        run.stop.request();
        let error = Entry::run(&Mixed, &run).unwrap_err();
        assert_eq!(error.to_string(), "stopped");
    }

    #[test]
    fn every_experiment_runs_a_case_into_a_new_folder() {
        for experiment in crate::experiments::all() {
            let name = experiment.name();
            let case = experiment.case_names().swap_remove(0);
            let (_folder, mut run) = run(&case);
            run.seconds = Some(1.0);
            run.stop.request();
            let error = experiment.run(&run).unwrap_err();
            assert_eq!(error.to_string(), "stopped", "{name} {case}");
            assert!(run.out.is_dir(), "{name} {case}");
        }
    }
}
