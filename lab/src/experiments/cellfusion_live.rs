//! CellFusion in real time: ffmpeg streams a car's video over four emulated uplinks, with and
//! without the tunnel.

mod framing;
mod outcome;
mod report;
mod route;
mod rtp;
mod score;
mod stream;
mod trial;
mod tunnel;
mod view;

use super::cellfusion::{Drive, drives, known};
use super::dashcam::{Clip, FPS, frames};
use crate::experiment::{Completed, Experiment, Results, Run, progress};
use crate::rivals::schemes::Scheme;
use crate::summary::Summary;
use anyhow::{Context, Result, anyhow};
use outcome::Outcome;
use route::Route;
use std::sync::{Arc, OnceLock};
use trial::Trial;

/// The name of the scheme that the others are compared with.
const XNC: &str = Scheme::Xnc.name();

/// The name of the best single path, selected afterwards.
const SINGLE: &str = "single";

/// The name of the kernel's multipath TCP.
const MPTCP: &str = "mptcp";

/// The routes that run by default, on one drive in ten.
const DEFAULT: [Route; 4] = [
    Route::Tunnel(Scheme::Xnc),
    Route::Tunnel(Scheme::Bonding),
    Route::Single,
    Route::Mptcp,
];
const DRIVE_STRIDE: usize = 10;

/// The maximum number of encoded frames, which are repeated for as long as the video lasts.
const MAX_FRAMES: u64 = 10 * FPS;

/// See [`about`](Experiment::about).
#[derive(Default)]
pub(crate) struct CellFusionLive {
    /// The video, from the choice of the trials on.
    clip: OnceLock<Clip>,
}

impl Experiment for CellFusionLive {
    type Case = Route;
    type Trial = Trial;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "cellfusion-live"
    }

    fn about(&self) -> &'static str {
        "a car's video by ffmpeg through the real tunnel over four emulated uplinks, and over MPTCP and single paths; \
         one drive in ten by default, --case 'xnc/*-00*,mptcp/*-00*' selects others"
    }

    fn cases(&self) -> Vec<Route> {
        routes().collect()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Trial>> {
        let drives = drives()?;
        let unknown = format!(
            "no case matches; a case is SCHEME/DRIVE; {}",
            known(&drives)
        );
        let all = trials(drives, run.pattern.is_some());
        let chosen = run.chosen(all).map_err(|_| anyhow!(unknown))?;
        let lengths = chosen.iter().map(|trial| trial.drive.part(run.seconds));
        let longest = lengths.max().unwrap_or_default();
        progress("encoding the video");
        let clip = Clip::encode(frames(stream::WARM_UP + longest).min(MAX_FRAMES))?;
        self.clip.get_or_init(|| clip);
        Ok(chosen)
    }

    fn measure(&self, trial: &Trial, run: &Run) -> Result<Outcome> {
        let clip = self.clip.get().context("the video is encoded")?;
        trial::run(run, trial, clip)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let with_attempts = |one: Completed<Trial, Outcome>| {
            let mut outcome = one.outcome;
            outcome.case.set_param("attempts", one.attempts);
            outcome
        };
        let outcomes: Vec<Outcome> = completed.into_iter().map(with_attempts).collect();
        summary.cases = score::cases(&outcomes);
        report::write(summary, &outcomes, &run.out)
    }
}

/// Returns the tunnel with each scheme, and the alternatives to the tunnel.
fn routes() -> impl Iterator<Item = Route> {
    let of_tunnel = Scheme::ALL.into_iter().map(Route::Tunnel);
    let others = of_tunnel.filter(|route| DEFAULT.iter().all(|other| other.name() != route.name()));
    DEFAULT.into_iter().chain(others)
}

/// Returns all routes on all drives, or only those that run by default.
fn trials(drives: Vec<Drive>, all: bool) -> Vec<Trial> {
    let drives = drives.into_iter().map(Arc::new).enumerate();
    let drives: Vec<(usize, Arc<Drive>)> = if all {
        drives.collect()
    } else {
        drives
            .skip(DRIVE_STRIDE / 2)
            .step_by(DRIVE_STRIDE)
            .collect()
    };
    let routes = routes().filter(|route| all || DEFAULT.contains(route));
    let trial = |route, (number, drive): &(usize, Arc<Drive>)| Trial {
        route,
        drive: Arc::clone(drive),
        number: *number,
    };
    routes
        .flat_map(|route| drives.iter().map(move |drive| trial(route, drive)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drives() -> Vec<Drive> {
        (0..20).map(|seed| Drive::generated(seed, false)).collect()
    }

    #[test]
    fn by_default_few_routes_run_on_few_drives() {
        assert_eq!(trials(drives(), true).len(), 20 * routes().count());
        let default = trials(drives(), false);
        assert_eq!(default.len(), 2 * DEFAULT.len());
        assert_eq!(default[0].to_string(), "xnc/drawn-005");
        assert_eq!(default[0].number, 5);
    }
}
