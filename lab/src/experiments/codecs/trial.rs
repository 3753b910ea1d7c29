//! A recording through a codec at a rate: its frames as a viewer sees them.

use super::coding::Coding;
use super::distance::{Psnr, psnr};
use super::scenario::{Coder, Scenario};
use crate::experiment::Run;
use crate::experiments::studio::{SIZE, Studio};
use crate::vmaf::Vmaf;
use anyhow::{Context, Result, ensure};
use hawser_cloud::Image;
use std::time::{Duration, Instant};

/// The default number of frames, and the number of those that only teach the rate control.
const FRAMES: usize = 100;
pub(super) const LEARNING: usize = 10;
/// The frames of which positions are compared: one in so many.
const COMPARED: usize = 10;
/// The frames of the programs of Draco, which take long to start and to read.
const CPP_FRAMES: usize = 12;

/// The results of a case. The first frames, which teach the rate control, are left out.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(super) fps: f64,
    pub(super) frames: Vec<Shown>,
    /// VMAF of each frame.
    pub(super) scores: Vec<f64>,
    /// The last frame as captured, and as it was shown.
    pub(super) captured: Image,
    pub(super) picture: Image,
}

/// A frame that was encoded, decoded and drawn.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) bytes: u64,
    pub(super) points: usize,
    pub(super) encode: Duration,
    pub(super) decode: Duration,
    pub(super) render: Duration,
    /// The distance from what was captured, which is computed for some frames only.
    pub(super) psnr: Option<Psnr>,
}

/// Measures a case.
///
/// # Errors
/// If the recording cannot be played or has too few frames, or a program is missing.
pub(super) fn run(scenario: &Scenario, run: &Run) -> Result<Outcome> {
    let folder = run.raw(&scenario.to_string())?;
    let recording = scenario.clip.recording()?;
    let fps = recording.fps;
    let frames = run.seconds.map_or(FRAMES, |s| (s * fps) as usize);
    let frames = match scenario.coder {
        Coder::Product(_) => frames,
        Coder::DracoCpp => frames.min(CPP_FRAMES),
    };
    let mut player = recording.open()?;
    let first = player.next_frame()?;
    let mut next = first.context("the recording has no frames")?;
    let mut studio = Studio::in_front_of(&next.clone().into_cloud())?;
    let mut coding = Coding::new(scenario, &next, fps)?;
    let mut comparison = Vmaf::find()?.compare(SIZE, &folder.join("vmaf.json"))?;
    let (mut shown, mut pictures) = (Vec::new(), None);
    for number in 0..frames {
        let captured = next.clone().into_cloud();
        let coded = coding.code(next, &folder)?;
        let start = Instant::now();
        let picture = studio.draw(&coded.decoded);
        let render = start.elapsed();
        if number >= LEARNING {
            let reference = studio.draw(&captured);
            comparison.write(&reference, &picture)?;
            let is_compared = (number - LEARNING).is_multiple_of(COMPARED);
            shown.push(Shown {
                bytes: coded.bytes,
                points: coded.decoded.len(),
                encode: coded.encode,
                decode: coded.decode,
                render,
                psnr: is_compared
                    .then(|| psnr(&captured, &coded.decoded))
                    .flatten(),
            });
            pictures = Some((reference, picture));
        }
        match player.next_frame()? {
            Some(frame) => next = frame,
            None => break,
        }
    }
    let (captured, picture) =
        pictures.with_context(|| format!("a recording needs more than {LEARNING} frames"))?;
    let scores = comparison.finish()?;
    ensure!(
        scores.len() == shown.len(),
        "VMAF of {} of {} pictures",
        scores.len(),
        shown.len()
    );
    Ok(Outcome {
        fps,
        frames: shown,
        scores,
        captured,
        picture,
    })
}
