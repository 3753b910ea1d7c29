//! CellFusion in real time: ffmpeg streams a car's video over four emulated uplinks, with and
//! without the tunnel.

mod framing;
mod report;
mod route;
mod rtp;
mod score;
mod setting;
mod stream;
mod trial;
mod tunnel;
mod view;

use super::cellfusion::{Drive, drives, known};
use super::dashcam::{Clip, FPS, frames};
use crate::experiment::{Completed, Experiment, Run, progress};
use crate::rivals::schemes;
use crate::summary::Summary;
use anyhow::{Result, anyhow};
use route::Route;
use setting::{Setting, Trial};
use std::fmt;
use std::sync::Arc;

/// The scheme that the others are compared with.
const XNC: &str = "xnc";

/// The best single path, selected afterwards.
const SINGLE: &str = "single";

/// The kernel's multipath TCP.
const MPTCP: &str = "mptcp";

/// The schemes that run by default, on one drive in ten.
const DEFAULT: [&str; 4] = [XNC, "bonding", SINGLE, MPTCP];
const DRIVE_STRIDE: usize = 10;

/// The maximum number of encoded frames, which are repeated for as long as the video lasts.
const MAX_FRAMES: u64 = 10 * FPS;

/// A scheme on a drive.
#[derive(Debug, Clone)]
struct Ride {
    scheme: &'static str,
    drive: Arc<Drive>,
    /// The number of the drive.
    number: usize,
}

/// See [`about`](Experiment::about).
pub(crate) struct CellFusionLive;

impl Experiment for CellFusionLive {
    type Case = Setting;
    type Measured = Trial;

    fn name(&self) -> &'static str {
        "cellfusion-live"
    }

    fn about(&self) -> &'static str {
        "a car's video by ffmpeg through the real tunnel over four emulated uplinks, and over MPTCP and single paths; \
         one drive in ten by default, --case 'xnc/*-00*,mptcp/*-00*' selects others"
    }

    fn names(&self) -> Vec<String> {
        schemes().map(|scheme| format!("{scheme}/*")).collect()
    }

    fn cases(&self, run: &Run) -> Result<Vec<Setting>> {
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
        chosen
            .into_iter()
            .map(|ride| ride.setting(&clip, run))
            .collect()
    }

    fn measure(&self, setting: &Setting, run: &Run) -> Result<Trial> {
        trial::run(run, setting)
    }

    fn summarise(
        &self,
        completed: Vec<Completed<Setting, Trial>>,
        summary: &mut Summary,
        run: &Run,
    ) -> Result<()> {
        let with_attempts = |one: Completed<Setting, Trial>| {
            let mut trial = one.measured;
            let attempts = one.attempts.into();
            trial.case.params.insert("attempts".into(), attempts);
            trial
        };
        let trials: Vec<Trial> = completed.into_iter().map(with_attempts).collect();
        summary.cases = score::cases(&trials);
        report::write(summary, &trials, &run.out)
    }
}

/// Returns the schemes of the tunnel, and the alternatives to the tunnel.
fn schemes() -> impl Iterator<Item = &'static str> {
    let others = schemes::NAMES
        .into_iter()
        .filter(|name| !DEFAULT.contains(name));
    DEFAULT.into_iter().chain(others)
}

/// Returns all schemes on all drives, or only those that run by default.
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
    let schemes = schemes().filter(|scheme| all || DEFAULT.contains(scheme));
    let ride = |scheme, (number, drive): &(usize, Arc<Drive>)| Ride {
        scheme,
        drive: Arc::clone(drive),
        number: *number,
    };
    schemes
        .flat_map(|scheme| drives.iter().map(move |drive| ride(scheme, drive)))
        .collect()
}

impl Ride {
    fn setting(self, clip: &Arc<Clip>, run: &Run) -> Result<Setting> {
        Ok(Setting {
            scheme: self.scheme,
            route: Route::of(self.scheme)?,
            length: self.drive.part(run.seconds),
            drive: self.drive,
            port: port(self.number),
            clip: Arc::clone(clip),
            // All schemes use the same links, and each drive's video has ports of its own.
            seed: run
                .seed
                .wrapping_mul(1_000_003)
                .wrapping_add(self.number as u64),
        })
    }
}

impl fmt::Display for Ride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scheme, self.drive.name)
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
    fn every_case_has_a_route() {
        for ride in rides(drives(), true) {
            assert!(Route::of(ride.scheme).is_ok(), "{ride}");
        }
        let default = rides(drives(), false);
        assert_eq!(default.len(), 2 * DEFAULT.len());
        assert_eq!(default[0].to_string(), "xnc/drawn-005");
        assert_eq!(default[0].number, 5);
    }
}
