//! CellFusion in real time: ffmpeg streams a car's video over four emulated uplinks, with and
//! without the tunnel.

mod clip;
mod picture;
mod report;
mod route;
mod rtp;
mod score;
mod stream;
mod trial;
mod tunnel;
mod view;

use super::cellfusion::{Drive, LENGTH, drives};
use crate::experiment::{Entry, Run};
use crate::summary::{Provenance, Summary};
use anyhow::{Result, anyhow, bail, ensure};
use clip::Clip;
use hawser_xnc::Scheme;
use route::Route;
use std::time::Duration;
use trial::Trial;

/// The scheme that the others are compared with.
const XNC: &str = "xnc";

/// The best single path, selected afterwards.
const SINGLE: &str = "single";

/// The kernel's multipath TCP.
const MPTCP: &str = "mptcp";

/// The schemes that run by default, on one drive in ten.
const DEFAULT: [&str; 4] = [XNC, "bonding", SINGLE, MPTCP];
const DRIVE_STRIDE: usize = 10;

/// See [`about`](Entry::about).
pub(crate) struct CellFusionLive;

impl Entry for CellFusionLive {
    fn name(&self) -> &'static str {
        "cellfusion-live"
    }

    fn about(&self) -> &'static str {
        "a car's video by ffmpeg through the real tunnel over four emulated uplinks, and over MPTCP and single paths; \
         one drive in ten by default, --case 'xnc/drive-00*,mptcp/drive-00*' selects others"
    }

    fn cases(&self) -> Vec<String> {
        schemes().map(|scheme| format!("{scheme}/*")).collect()
    }

    fn run(&self, run: &Run) -> Result<Summary> {
        let length = run.seconds.map_or(LENGTH, Duration::from_secs_f64);
        ensure!(length <= LENGTH, "a drive lasts {} s", LENGTH.as_secs());
        let drives = drives()?;
        let chosen = run.chosen(names(&drives, run.pattern.is_some())).map_err(|_| {
            let (first, last) = (&drives[0].name, &drives[drives.len() - 1].name);
            anyhow!("no case matches; a case is SCHEME/DRIVE, such as {XNC}/{first}, with drives up to {last}")
        })?;
        let folder = tempfile::tempdir()?;
        println!("encoding the video");
        let clip = Clip::encode(folder.path(), stream::WARM_UP + length)?;
        let mut summary = Summary::new(self.name(), Provenance::gather(run.seed));
        let mut trials: Vec<Trial> = Vec::new();
        for (index, name) in chosen.iter().enumerate() {
            println!("[{}/{}] {name}", index + 1, chosen.len());
            let measured = measure(run, name, &drives, &clip, length);
            if run.stop.requested() {
                bail!("stopped");
            }
            match measured {
                Ok(trial) => {
                    trial
                        .invalid_because
                        .iter()
                        .for_each(|reason| summary.invalidate(format!("{name}: {reason}")));
                    trials.push(trial);
                }
                // A failed case does not discard the results of the others.
                Err(error) => {
                    println!("  failed: {error:#}");
                    summary.invalidate(format!("{name}: {error:#}"));
                }
            }
        }
        summary.cases = score::cases(&trials);
        report::write(&summary, &trials, &run.out)?;
        Ok(summary)
    }
}

/// Returns the schemes of the tunnel, and the alternatives to the tunnel.
fn schemes() -> impl Iterator<Item = &'static str> {
    let others = Scheme::ALL
        .into_iter()
        .map(Scheme::name)
        .filter(|name| !DEFAULT.contains(name));
    DEFAULT.into_iter().chain(others)
}

/// Returns the cases of all schemes on all drives, or only those that run by default.
fn names(drives: &[Drive], all: bool) -> Vec<String> {
    let drives: Vec<&Drive> = if all {
        drives.iter().collect()
    } else {
        drives
            .iter()
            .skip(DRIVE_STRIDE / 2)
            .step_by(DRIVE_STRIDE)
            .collect()
    };
    let schemes = schemes().filter(|scheme| all || DEFAULT.contains(scheme));
    schemes
        .flat_map(|scheme| {
            drives
                .iter()
                .map(move |drive| format!("{scheme}/{}", drive.name))
        })
        .collect()
}

fn measure(
    run: &Run,
    name: &str,
    drives: &[Drive],
    clip: &Clip,
    length: Duration,
) -> Result<Trial> {
    let (scheme, drive) = name.split_once('/').expect("cases are scheme/drive");
    let index = drives
        .iter()
        .position(|known| known.name == drive)
        .expect("a case is of a drive");
    let route = Route::of(scheme)?;
    // All schemes use the same links, and each drive's video has ports of its own.
    let seed = run.seed.wrapping_mul(1_000_003).wrapping_add(index as u64);
    let setting = trial::Setting {
        name,
        route,
        drive: &drives[index],
        port: port(index),
        clip,
        length,
        seed,
    };
    let (mut trial, attempts) = run.until_valid(
        || trial::run(run, &setting),
        |trial| trial.invalid_because.clone(),
    )?;
    trial.case.params.insert("attempts".into(), attempts.into());
    Ok(trial)
}

/// Returns the port of a drive's video. The next port stays unused: RTCP goes there.
fn port(drive: usize) -> u16 {
    5004 + 2 * u16::try_from(drive).expect("a few drives")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_route() {
        let drives: Vec<Drive> = (0..20).map(|seed| Drive::generated(seed, false)).collect();
        for name in names(&drives, true) {
            assert!(Route::of(name.split_once('/').unwrap().0).is_ok(), "{name}");
        }
        assert_eq!(names(&drives, false).len(), 2 * DEFAULT.len());
        assert_eq!(names(&drives, false)[0], "xnc/drawn-005");
    }
}
