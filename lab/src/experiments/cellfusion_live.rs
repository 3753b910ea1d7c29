//! CellFusion in real time: ffmpeg streams a car's video over four emulated uplinks, with and
//! without the tunnel.

mod framing;
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
use anyhow::{Result, anyhow};
use route::Route;
use std::fmt;
use std::sync::Arc;
use trial::{Outcome, Trial};

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

/// A route on a drive.
#[derive(Debug, Clone)]
struct Ride {
    route: Route,
    drive: Arc<Drive>,
    /// The number of the drive.
    number: usize,
}

/// See [`about`](Experiment::about).
pub(crate) struct CellFusionLive;

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
        let rides = rides(drives, run.pattern.is_some());
        let chosen = run.chosen(rides).map_err(|_| anyhow!(unknown))?;
        let lengths = chosen.iter().map(|ride| ride.drive.part(run.seconds));
        let longest = lengths.max().unwrap_or_default();
        progress("encoding the video");
        let clip = Arc::new(Clip::encode(
            frames(stream::WARM_UP + longest).min(MAX_FRAMES),
        )?);
        Ok(chosen
            .into_iter()
            .map(|ride| ride.trial(&clip, run))
            .collect())
    }

    fn measure(&self, trial: &Trial, run: &Run) -> Result<Outcome> {
        trial::run(run, trial)
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
fn rides(drives: Vec<Drive>, all: bool) -> Vec<Ride> {
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
    let ride = |route, (number, drive): &(usize, Arc<Drive>)| Ride {
        route,
        drive: Arc::clone(drive),
        number: *number,
    };
    routes
        .flat_map(|route| drives.iter().map(move |drive| ride(route, drive)))
        .collect()
}

impl Ride {
    fn trial(self, clip: &Arc<Clip>, run: &Run) -> Trial {
        Trial {
            route: self.route,
            length: self.drive.part(run.seconds),
            drive: self.drive,
            port: port(self.number),
            clip: Arc::clone(clip),
            // All schemes use the same links, and each drive's video has ports of its own.
            seed: run
                .seed
                .wrapping_mul(1_000_003)
                .wrapping_add(self.number as u64),
        }
    }
}

impl fmt::Display for Ride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.route.name(), self.drive.name)
    }
}

/// Returns the port of a drive's video. The next port stays unused: RTCP goes there.
fn port(drive: usize) -> u16 {
    5004 + 2 * u16::try_from(drive).expect("a few drives")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drives() -> Vec<Drive> {
        (0..20).map(|seed| Drive::generated(seed, false)).collect()
    }

    #[test]
    fn by_default_few_routes_run_on_few_drives() {
        assert_eq!(rides(drives(), true).len(), 20 * routes().count());
        let default = rides(drives(), false);
        assert_eq!(default.len(), 2 * DEFAULT.len());
        assert_eq!(default[0].to_string(), "xnc/drawn-005");
        assert_eq!(default[0].number, 5);
    }
}
