//! CellFusion in virtual time: four cellular uplinks of a moving car carry one video, with each
//! scheme.

mod clock;
mod connection;
mod cost;
mod drive;
mod histogram;
mod oracle;
mod paper;
mod report;
mod score;
mod simulation;
mod video;

use crate::experiment::{Completed, Experiment, Run, matches};
use crate::summary::Summary;
use anyhow::{Result, ensure};
use connection::Identities;
pub(super) use drive::{Drive, LENGTH, all as drives};
use hawser_qoe::Qoe;
use hawser_xnc::{Config, Scheme};
use score::Trip;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
pub(super) use video::{REORDERING_WAIT, play};

/// The paper's scheme.
const XNC: &str = "xnc";

/// The sender that knows the future behaviour of the links.
const ORACLE: &str = "oracle";

/// The best single path, selected afterwards.
const SINGLE: &str = "single";

/// All cases, XNC first.
const CASES: [&str; 12] = [
    XNC,
    "minrtt",
    "redundant",
    "xlink",
    "ecf",
    "blest",
    "bonding",
    "fec",
    "xnc-uncoded",
    "xnc-slow-loss",
    SINGLE,
    ORACLE,
];

/// A job with all that it needs.
pub(crate) struct Ride {
    job: Job,
    drive: Arc<Drive>,
    length: Duration,
    identities: Arc<Identities>,
}

/// See [`about`](Experiment::about).
pub(crate) struct CellFusion;

impl Experiment for CellFusion {
    type Case = Ride;
    type Measured = Trip;

    fn name(&self) -> &'static str {
        "cellfusion"
    }

    fn about(&self) -> &'static str {
        "a car's video over four cellular uplinks in virtual time, 60 drives with each scheme; needs no root; \
         --case 'xnc/drive-00*,oracle/drive-00*' selects some of the drives"
    }

    fn names(&self) -> Vec<String> {
        CASES.map(String::from).to_vec()
    }

    fn cases(&self, run: &Run) -> Result<Vec<Ride>> {
        let length = length(run);
        ensure!(
            length <= drive::LENGTH,
            "a drive lasts {} s",
            drive::LENGTH.as_secs()
        );
        let drives = drive::all()?;
        let jobs = chosen(run.pattern.as_deref(), &drives)?;
        let drives: Vec<Arc<Drive>> = drives.into_iter().map(Arc::new).collect();
        let identities = Arc::new(Identities::sign()?);
        let ride = |job: Job| Ride {
            drive: Arc::clone(&drives[job.drive]),
            identities: Arc::clone(&identities),
            length,
            job,
        };
        Ok(jobs.into_iter().map(ride).collect())
    }

    /// As many as there are processors. Their number does not influence the results.
    fn workers(&self) -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    fn measure(&self, ride: &Ride, run: &Run) -> Result<Trip> {
        let trip = run_job(
            &ride.job,
            &ride.drive,
            ride.length,
            run.seed,
            &ride.identities,
        )?;
        trip.write(&run.out)?;
        Ok(trip)
    }

    fn summarise(
        &self,
        completed: Vec<Completed<Ride, Trip>>,
        summary: &mut Summary,
        run: &Run,
    ) -> Result<()> {
        let trips = completed.into_iter().map(|one| one.measured).collect();
        let scores = score::collect(trips);
        summary.cases = score::cases(&scores, length(run));
        cost::write(&scores, &run.out)?;
        report::write(summary, &scores, &run.out)
    }
}

fn length(run: &Run) -> Duration {
    run.seconds.map_or(drive::LENGTH, Duration::from_secs_f64)
}

impl fmt::Display for Ride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job.case, self.drive.name)?;
        self.job
            .path
            .map_or(Ok(()), |path| write!(f, ", path {}", path + 1))
    }
}

/// A scheme on a drive, or on one path of the drive.
#[derive(Debug, Clone, Copy)]
struct Job {
    case: &'static str,
    path: Option<usize>,
    drive: usize,
}

/// Returns the jobs whose names a pattern matches: `CASE/DRIVE`, without the path.
fn chosen(pattern: Option<&str>, drives: &[Drive]) -> Result<Vec<Job>> {
    let wanted = pattern.unwrap_or("*");
    let pattern = with_drives(wanted);
    let mut jobs = Vec::new();
    for case in CASES {
        for (number, drive) in drives.iter().enumerate() {
            if matches(&pattern, &format!("{case}/{}", drive.name)) {
                jobs.extend(jobs_of(case, number, drive));
            }
        }
    }
    ensure!(
        !jobs.is_empty(),
        "no case matches {wanted:?}; the cases are: {}",
        CASES.join(", ")
    );
    Ok(jobs)
}

/// Completes a pattern: an alternative without a slash selects its cases on all drives.
fn with_drives(pattern: &str) -> String {
    let complete = |alternative: &str| {
        if alternative.contains('/') {
            alternative.to_owned()
        } else {
            format!("{alternative}/*")
        }
    };
    let alternatives: Vec<String> = pattern.split(',').map(complete).collect();
    alternatives.join(",")
}

/// Returns the jobs of a case on a drive: one for each path if single paths are compared.
fn jobs_of(case: &'static str, number: usize, drive: &Drive) -> Vec<Job> {
    let job = |path| Job {
        case,
        path,
        drive: number,
    };
    if case == SINGLE {
        (0..drive.paths()).map(Some).map(job).collect()
    } else {
        vec![job(None)]
    }
}

fn run_job(
    job: &Job,
    drive: &Drive,
    length: Duration,
    seed: u64,
    identities: &Identities,
) -> Result<Trip> {
    let began = cost::thread_cpu()?;
    let mut trip = if job.case == ORACLE {
        Trip::of_viewer(job, drive, &oracle::run(drive, length), length)
    } else {
        let paths = job
            .path
            .map_or_else(|| (0..drive.paths()).collect(), |path| vec![path]);
        let config = Config::of(job.case.parse::<Scheme>()?);
        // All schemes use the same links.
        let seed = seed.wrapping_mul(1_000_003).wrapping_add(job.drive as u64);
        let outcome = simulation::run(drive, &paths, config, length, seed, identities)?;
        Trip::of_outcome(job, drive, &outcome, length)
    };
    trip.cpu = cost::thread_cpu()?.saturating_sub(began);
    Ok(trip)
}

/// Returns the best possible experience of a viewer on a drive: that of the oracle.
pub(super) fn floor(drive: &Drive, length: Duration) -> Qoe {
    let job = Job {
        case: ORACLE,
        path: None,
        drive: 0,
    };
    Trip::of_viewer(&job, drive, &oracle::run(drive, length), length).qoe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Case;

    const LENGTH: Duration = Duration::from_secs(4);

    fn cases(names: &[&'static str], drive: &Drive) -> Vec<Case> {
        let identities = Identities::sign().unwrap();
        let job = |case: &&'static str| Job {
            case,
            path: None,
            drive: 0,
        };
        let trip = |case| run_job(&job(case), drive, LENGTH, 1, &identities).unwrap();
        score::cases(&score::collect(names.iter().map(trip).collect()), LENGTH)
    }

    fn metric(case: &Case, name: &str) -> f64 {
        case.metrics.get(name).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_cases() {
        let drive = Drive::generated(1, false);
        let run = || serde_json::to_string(&cases(&["xnc", "fec", "minrtt"], &drive)).unwrap();
        assert_eq!(run(), run());
    }

    #[test]
    fn no_scheme_gets_below_the_floor() {
        for seed in 0..2 {
            let cases = cases(
                &["oracle", "xnc", "redundant", "minrtt"],
                &Drive::generated(seed, false),
            );
            let floor = &cases[0];
            for case in &cases[1..] {
                for name in ["stall_ratio", "packet_delay_p50_ms", "lost_frames_ratio"] {
                    let (ours, floor) = (metric(case, name), metric(floor, name));
                    assert!(ours >= floor, "{} {name}: {ours} below {floor}", case.name);
                }
                assert!(
                    metric(case, "fps_mean") > 0.0,
                    "{} delivers something",
                    case.name
                );
            }
        }
    }

    #[test]
    fn links_that_lose_nothing_cost_nothing() {
        let cases = cases(&["xnc"], &Drive::generated(3, true));
        assert!(
            metric(&cases[0], "redundancy_ratio") < 0.01,
            "{:?}",
            cases[0].metrics
        );
        assert_eq!(metric(&cases[0], "lost_packets_ratio"), 0.0);
        assert_eq!(metric(&cases[0], "stall_ratio"), 0.0);
    }

    #[test]
    fn patterns_choose_schemes_and_drives() {
        let drives: Vec<Drive> = (0..12).map(|seed| Drive::generated(seed, false)).collect();
        let count = |pattern: &str| chosen(Some(pattern), &drives).map_or(0, |jobs| jobs.len());
        assert_eq!(count("xnc"), 12);
        assert_eq!(count("xnc/drawn-00*,oracle/*-011"), 11);
        assert_eq!(count("xnc/*"), 12);
        assert_eq!(count("xnc*"), 36);
        assert_eq!(count("xnc*/drawn-000"), 3);
        assert_eq!(count("fec/drawn-0?0"), 2);
        assert_eq!(count("single/drawn-000"), 4, "each path by itself");
        assert_eq!(count("nothing"), 0);
    }
}
