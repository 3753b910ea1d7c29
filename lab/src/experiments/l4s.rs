//! A volumetric stream at L4S latency, in virtual time: the scenario of De Fré et al. and what it
//! lacks.

mod encoder;
mod flow;
mod frames;
mod hawser;
mod paper;
mod pictures;
mod publisher;
mod report;
mod rival;
mod scenario;
mod score;
mod simulation;
mod viewer;
mod webrtc;

use crate::experiment::{Experiment, Measured, Results, Run, progress, write_json};
use crate::summary::Summary;
use anyhow::{Context, Result, ensure};
use pictures::Gallery;
use scenario::{Scenario, Times};
use simulation::Outcome;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

/// The number of seeds with which each case runs (the paper has three iterations).
const SEEDS: u64 = 3;

/// The time before the stable state, and the default length of that.
const START_UP: Duration = Duration::from_secs(30);
const STABLE: Duration = Duration::from_secs(30);

/// A case with one seed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial {
    scenario: Scenario,
    times: Times,
    /// The number of the seed, from 0.
    number: u64,
}

/// See [`about`](Experiment::about).
#[derive(Default)]
pub(crate) struct L4s {
    /// `None` without VMAF.
    gallery: OnceLock<Option<Gallery>>,
}

impl L4s {
    /// Returns the recording for pictures, or nothing where VMAF is not installed.
    fn gallery(&self) -> Option<&Gallery> {
        let open = || {
            let gallery = Gallery::open();
            gallery
                .inspect_err(|error| progress(&format!("no pictures of the frames: {error:#}")))
                .ok()
        };
        self.gallery.get_or_init(open).as_ref()
    }
}

impl Experiment for L4s {
    type Case = Scenario;
    type Trial = Trial;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "l4s"
    }

    fn about(&self) -> &'static str {
        "an adaptive volumetric stream beside Cubic and Prague flows through L4S queues, in virtual time; needs no root"
    }

    fn cases(&self) -> Vec<Scenario> {
        Scenario::all()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Trial>> {
        let stable = run.seconds.map_or(STABLE, Duration::from_secs_f64);
        ensure!(
            stable >= Duration::from_secs(1),
            "the stable state must last a second at least"
        );
        let times = Times {
            stable: START_UP,
            end: START_UP + stable,
        };
        let trials = run.chosen(self.cases())?.into_iter().flat_map(|scenario| {
            (0..SEEDS).map(move |number| Trial {
                scenario,
                times,
                number,
            })
        });
        Ok(trials.collect())
    }

    /// As many as there are processors. Their number does not influence the results.
    fn workers(&self) -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    fn measure(&self, trial: &Trial, run: &Run) -> Result<Outcome> {
        let mut outcome = trial.run(run.seed)?;
        trial.write(&outcome, &run.out)?;
        if let Some(gallery) = self.gallery() {
            let folder = trial
                .folder(&run.out)
                .join(format!("pictures-{}", trial.number));
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            let stable = trial.times.stable_frames(&outcome.frames);
            outcome.pictures = gallery.show(trial.scenario, &outcome.frames, stable, &folder)?;
        }
        Ok(outcome)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let trials = completed.into_iter().map(|one| (one.trial, one.outcome));
        let scores = score::collect(trials.collect());
        summary.cases = scores.iter().map(score::Score::case).collect();
        report::write(summary, &scores, &run.out)
    }
}

impl Measured for Outcome {}

impl Trial {
    fn run(&self, seed: u64) -> Result<Outcome> {
        // All cases have the same frames with the same seed.
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(self.number);
        simulation::run(self.scenario, self.times, seed)
    }

    fn folder(&self, out: &Path) -> PathBuf {
        out.join("raw").join(self.scenario.to_string())
    }

    /// Writes all frames and rates to the raw data of the experiment.
    fn write(&self, outcome: &Outcome, out: &Path) -> Result<()> {
        let folder = self.folder(out);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let name = |kind: &str| folder.join(format!("{kind}-{}.csv", self.number));
        fs::write(name("frames"), frames_csv(outcome)?)?;
        fs::write(name("rates"), rates_csv(outcome)?)?;
        let counters = folder.join(format!("counters-{}.json", self.number));
        write_json(&counters, &outcome.counters)
    }
}

fn frames_csv(outcome: &Outcome) -> Result<String> {
    let ms = |at: hawser_units::Instant| format!("{:.3}", at.as_secs_f64() * 1e3);
    let or_nothing = |at: Option<hawser_units::Instant>| at.map(ms).unwrap_or_default();
    let mut text =
        "captured_ms,target_bps,bytes,began_ms,base_complete_ms,complete_ms\n".to_owned();
    for frame in &outcome.frames {
        let base = or_nothing(frame.complete.first().copied().flatten());
        let whole = frame.shown().filter(|_| frame.is_whole());
        let (captured, began, whole) = (
            ms(frame.captured),
            or_nothing(frame.began),
            or_nothing(whole),
        );
        let (target, bytes) = (frame.target.bps(), frame.size.0);
        writeln!(text, "{captured},{target},{bytes},{began},{base},{whole}")?;
    }
    Ok(text)
}

fn rates_csv(outcome: &Outcome) -> Result<String> {
    let mut text = "at_s,target_mbps,pacing_mbps,received_bytes,competitors_bytes\n".to_owned();
    for sample in &outcome.samples {
        let pacing = sample.pacing_mbps.map(|mbps| format!("{mbps:.3}"));
        let rivals: u64 = sample.rivals.iter().map(|bytes| bytes.0).sum();
        writeln!(
            text,
            "{:.1},{:.3},{},{},{rivals}",
            sample.at.as_secs_f64(),
            sample.target_mbps,
            pacing.unwrap_or_default(),
            sample.media.0
        )?;
    }
    Ok(text)
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, run {}", self.scenario, self.number + 1)
    }
}

#[cfg(test)]
mod tests;
