//! The codecs of volumetric video against each other: bytes, times and quality at the rates of a
//! stream.

mod coding;
mod distance;
mod report;
mod scenario;
mod score;
mod trial;

use crate::experiment::{Experiment, Measured, Results, Run, progress};
use crate::summary::Summary;
use anyhow::{Result, ensure};
use scenario::{Clip, Scenario};
use score::Score;
use trial::Outcome;

/// See [`about`](Experiment::about).
pub(crate) struct Codecs;

impl Experiment for Codecs {
    type Case = Scenario;
    type Trial = Scenario;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "codecs"
    }

    fn about(&self) -> &'static str {
        "bytes, times and quality of the codecs over recordings; needs an ffmpeg with libvmaf, see `make codecs`, and no root"
    }

    fn cases(&self) -> Vec<Scenario> {
        Scenario::all()
    }

    fn takes_recording(&self) -> bool {
        true
    }

    fn trials(&self, run: &Run) -> Result<Vec<Scenario>> {
        let all = match &run.recording {
            Some(file) => Scenario::of(&Clip::of_file(file)?),
            None => Scenario::all(),
        };
        let mut chosen = run.chosen(all)?;
        if run.recording.is_none() {
            leave_out_missing(&mut chosen)?;
        }
        Ok(chosen)
    }

    fn measure(&self, scenario: &Scenario, run: &Run) -> Result<Outcome> {
        trial::run(scenario, run)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let scores: Vec<Score> = completed
            .into_iter()
            .map(|one| Score::new(one.trial, one.outcome))
            .collect();
        summary.cases = scores.iter().map(Score::case).collect();
        summary.cases.extend(score::crossings(&scores));
        report::write(summary, &scores, &run.out)
    }
}

impl Measured for Outcome {}

/// Leaves out the cases of recordings that are not on this machine, and says so.
fn leave_out_missing(cases: &mut Vec<Scenario>) -> Result<()> {
    // The cases of a recording follow each other.
    let mut clips: Vec<Clip> = cases.iter().map(|case| case.clip.clone()).collect();
    clips.dedup();
    for clip in clips.iter().filter(|clip| !clip.is_there()) {
        let name = clip.name();
        progress(&format!(
            "left out: the recording {name} is not in $HAWSER_DATA"
        ));
        cases.retain(|case| case.clip != *clip);
    }
    ensure!(
        !cases.is_empty(),
        "none of these recordings is in $HAWSER_DATA"
    );
    Ok(())
}
