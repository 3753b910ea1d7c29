//! CellFusion in virtual time: four cellular uplinks of a moving car carry one video, with each
//! scheme.

mod bootstrap;
mod clock;
mod connection;
mod contender;
mod cost;
mod cross_validation;
mod drive;
mod example;
mod histogram;
mod oracle;
mod paper;
mod pictures;
mod plain;
mod report;
mod score;
mod simulation;
mod video;

use crate::experiment::{Completed, Experiment, Run, matches, progress};
use crate::summary::Summary;
use anyhow::{Result, bail, ensure};
use connection::Identities;
use contender::{CASES, ORACLE, SINGLE, Sender};
use drive::Set;
pub(super) use drive::{Drive, all as drives, known};
use hawser_qoe::Qoe;
use hawser_units::Bitrate;
use parking_lot::Mutex;
use pictures::Film;
use score::{Score, Trip};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
pub(super) use video::{BITRATE, REORDERING_WAIT, play};

/// A job with all that it needs.
pub(crate) struct Ride {
    job: Job,
    course: Arc<Course>,
    length: Duration,
    identities: Arc<Identities>,
    /// The video, if the run has pictures.
    film: Option<Arc<Film>>,
}

/// A drive, and the share of time for which the oracle stalls on it, by the bitrate of the video.
struct Course {
    drive: Drive,
    floors: Mutex<BTreeMap<Bitrate, f64>>,
}

impl Course {
    fn floor(&self, video: Bitrate, length: Duration) -> f64 {
        let floor = || floor(&self.drive, video, length).stall_ratio;
        *self.floors.lock().entry(video).or_insert_with(floor)
    }
}

impl From<Drive> for Course {
    fn from(drive: Drive) -> Course {
        Course {
            drive,
            floors: Mutex::default(),
        }
    }
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
         --case 'xnc/drive-00*,oracle/drive-00*' selects some of the drives, 'xnc/reversed-*,xnc/mahimahi-*' other sets, \
         '*-with-frame-dropping' rivals that drop frames as XNC does, '5g-only*,lte-only*' single uplinks, \
         '*mbps,minrtt,xnc,xnc-without-simd' the processor time at several bitrates, 'xnc,xnc-with-*' cross-validation; \
         --repetitions N repeats each drive, --pictures adds SSIM"
    }

    fn names(&self) -> Vec<String> {
        contender::all().map(String::from).collect()
    }

    fn has_pictures(&self) -> bool {
        true
    }

    fn has_repetitions(&self) -> bool {
        true
    }

    fn cases(&self, run: &Run) -> Result<Vec<Ride>> {
        let mut drives = drive::all()?;
        let pattern = run.pattern.as_deref();
        if pattern.is_some_and(|pattern| pattern.contains('/')) {
            drives.extend(drive::further(&drives)?);
        }
        let jobs = chosen(pattern, &drives)?;
        let jobs = jobs
            .into_iter()
            .flat_map(|job| job.repeated(run.repetitions));
        let courses = drives.into_iter().map(Course::from);
        let courses: Vec<Arc<Course>> = courses.map(Arc::new).collect();
        let identities = Arc::new(Identities::sign()?);
        let film = run.pictures.then(film).transpose()?;
        let ride = |job: Job| {
            let course = &courses[job.drive];
            Ride {
                length: course.drive.part(run.seconds),
                course: Arc::clone(course),
                identities: Arc::clone(&identities),
                film: film.clone(),
                job,
            }
        };
        Ok(jobs.map(ride).collect())
    }

    /// As many as there are processors. Their number does not influence the results.
    fn workers(&self) -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    fn measure(&self, ride: &Ride, run: &Run) -> Result<Trip> {
        let trip = run_job(
            &ride.job,
            &ride.course,
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
        let film = completed.first().and_then(|one| one.case.film.clone());
        let trips = completed.into_iter().map(|one| one.measured);
        let mut trips: Vec<Trip> = trips.collect();
        trips.sort_by_key(Trip::place);
        let mut scores = score::collect(trips);
        if let Some(film) = &film {
            decode(&mut scores, film, summary, run)?;
        }
        summary.cases = score::cases(&scores);
        summary
            .cases
            .iter_mut()
            .for_each(|case| case.set_param("repetitions", run.repetitions));
        let example = film.map(|film| {
            let video = if film.is_filmed {
                "dashcam"
            } else {
                "test picture"
            };
            let cases = summary.cases.iter_mut();
            cases.for_each(|case| case.set_param("video", video));
            example::section(&scores, &film)
        });
        let example = example.transpose()?.flatten();
        cost::write(&scores, summary, &run.out)?;
        summary.cases.extend(cross_validation::cases(&scores));
        report::write(summary, &scores, example, &run.out)
    }
}

fn film() -> Result<Arc<Film>> {
    progress("encoding the video");
    Ok(Arc::new(Film::encode()?))
}

/// Decodes what each viewer was shown. One trip at a time: ffmpeg uses all processors. A trip that
/// cannot be decoded has no pictures, and the summary says so.
fn decode(scores: &mut [Score], film: &Film, summary: &mut Summary, run: &Run) -> Result<()> {
    let count: usize = scores.iter().map(|score| score.trips.len()).sum();
    let mut number = 0;
    for score in scores {
        for trip in &mut score.trips {
            if run.stop.requested() {
                bail!("stopped");
            }
            number += 1;
            let name = format!("{}/{}", score.case, trip.drive);
            progress(&format!("[{number}/{count}] pictures of {name}"));
            if let Err(error) = trip.decode(film, &run.out) {
                summary.invalidate(format!("{name}: no pictures: {error:#}"));
            }
        }
    }
    Ok(())
}

impl fmt::Display for Ride {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job.case, self.course.drive.name)?;
        if let Some(path) = self.job.path {
            write!(f, ", path {}", path + 1)?;
        }
        match self.job.repetition {
            0 => Ok(()),
            repetition => write!(f, ", repetition {}", repetition + 1),
        }
    }
}

/// A scheme on a drive, or on one path of the drive.
#[derive(Debug, Clone, Copy)]
struct Job {
    case: &'static str,
    path: Option<usize>,
    drive: usize,
    /// The number of earlier runs of the same job, with lower seeds.
    repetition: u32,
}

impl Job {
    fn repeated(self, repetitions: u32) -> impl Iterator<Item = Job> {
        (0..repetitions).map(move |repetition| Job { repetition, ..self })
    }
}

/// Returns the jobs whose names a pattern matches: `CASE/DRIVE`, without the path. An alternative of
/// the pattern without a slash selects its cases on the drives of the default set. The cases of a
/// drive follow each other, so that whatever else the machine does affects the processor time of all.
fn chosen(pattern: Option<&str>, drives: &[Drive]) -> Result<Vec<Job>> {
    let is_wanted = |case: &'static str, drive: &Drive| {
        let is_default = drive.set.is_default();
        let Some(pattern) = pattern else {
            return is_default && CASES.contains(&case);
        };
        pattern.split(',').any(|alternative| {
            if alternative.contains('/') {
                matches(alternative, &format!("{case}/{}", drive.name))
            } else {
                is_default && matches(alternative, case)
            }
        })
    };
    let mut jobs = Vec::new();
    for set in Set::ALL {
        for (number, drive) in drives.iter().enumerate() {
            for case in contender::all() {
                if drive.set == set && is_wanted(case, drive) {
                    jobs.extend(jobs_of(case, number, drive));
                }
            }
        }
    }
    ensure!(
        !jobs.is_empty(),
        "no case matches {:?}; {}; the cases are: {}",
        pattern.unwrap_or("*"),
        known(drives),
        contender::all().collect::<Vec<_>>().join(", ")
    );
    Ok(jobs)
}

/// Returns the jobs of a case on a drive: one for each path if single paths are used.
fn jobs_of(case: &'static str, number: usize, drive: &Drive) -> Vec<Job> {
    let job = |path| Job {
        case,
        path,
        drive: number,
        repetition: 0,
    };
    match contender::technology(case) {
        Some(technology) => drive.paths_on(technology).map(Some).map(job).collect(),
        None if case == SINGLE => (0..drive.paths()).map(Some).map(job).collect(),
        None => vec![job(None)],
    }
}

fn run_job(
    job: &Job,
    course: &Course,
    length: Duration,
    seed: u64,
    identities: &Identities,
) -> Result<Trip> {
    let (drive, video) = (&course.drive, contender::video(job.case));
    let floor = course.floor(video, length);
    let began = cost::thread_cpu()?;
    // All schemes use the same links.
    let seed = seed.wrapping_add(job.repetition.into());
    let seed = seed.wrapping_mul(1_000_003).wrapping_add(job.drive as u64);
    let mut trip = match Sender::of(job.case)? {
        Sender::Oracle => Trip::of_viewer(job, drive, &oracle::run(drive, video, length), length),
        Sender::Plain => {
            let hashed = simulation::flow_hash(seed) % drive.paths() as u64;
            let path = job.path.unwrap_or(hashed as usize);
            let outcome = plain::run(drive, path, video, length, seed);
            Trip::of_outcome(job, drive, &outcome, length)
        }
        Sender::Tunnel(config) => {
            let outcome = simulation::run(drive, *config, video, length, seed, identities)?;
            Trip::of_outcome(job, drive, &outcome, length)
        }
    };
    trip.floor = floor;
    trip.cpu = cost::thread_cpu()?.saturating_sub(began);
    Ok(trip)
}

/// Returns the experience of a viewer on a drive to which schemes with a video of the given bitrate
/// are compared: that of the oracle.
pub(super) fn floor(drive: &Drive, video: Bitrate, length: Duration) -> Qoe {
    let job = Job {
        case: ORACLE,
        path: None,
        drive: 0,
        repetition: 0,
    };
    Trip::of_viewer(&job, drive, &oracle::run(drive, video, length), length).qoe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Case, Provenance};
    use hawser_units::Instant;

    const LENGTH: Duration = Duration::from_secs(4);

    fn trips(names: &[&'static str], drive: &Drive, repetitions: u32) -> Vec<Trip> {
        let identities = Identities::sign().unwrap();
        let course = Course::from(drive.clone());
        let jobs = names.iter().flat_map(|case| jobs_of(case, 0, drive));
        let jobs = jobs.flat_map(|job| job.repeated(repetitions));
        let trip = |job| run_job(&job, &course, LENGTH, 1, &identities).unwrap();
        jobs.map(trip).collect()
    }

    fn scores(names: &[&'static str], drive: &Drive) -> Vec<Score> {
        score::collect(trips(names, drive, 1))
    }

    fn cases(names: &[&'static str], drive: &Drive) -> Vec<Case> {
        score::cases(&scores(names, drive))
    }

    fn metric(case: &Case, name: &str) -> f64 {
        case.metrics.get(name).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_cases() {
        let drive = Drive::generated(1, false);
        let run = || {
            serde_json::to_string(&cases(&["xnc", "pluribus", "bonding", "minrtt"], &drive))
                .unwrap()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn no_scheme_gets_below_the_floor() {
        for seed in 0..2 {
            let cases = cases(
                &["oracle", "xnc", "xnc-paper", "redundant", "minrtt"],
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

    /// Two uplinks on 5G, of which the first carries nothing from 1 s to 4 s, and one on LTE, which
    /// carries 20 Mb/s.
    const UPLINKS: &str = "t_ms,path,rate_mbps,owd_ms,loss\n\
                           0,0,100,20,0\n1000,0,0,20,0\n4000,0,100,20,0\n0,1,100,20,0\n0,2,20,20,0\n";

    #[test]
    fn each_uplink_of_one_technology_is_measured_by_itself() {
        let drive = Drive::parse("drive-000", UPLINKS).unwrap();
        let names = ["5g-only", "lte-only", "lte-only-10mbps", "single"];
        let cases = cases(&names, &drive);
        let param = |case: usize, name: &str| cases[case].params[name].as_u64();

        assert_eq!(
            (param(0, "drives"), param(0, "uplinks")),
            (Some(1), Some(2))
        );
        assert_eq!(
            (param(1, "drives"), param(1, "uplinks")),
            (Some(1), Some(1))
        );
        assert_eq!(param(1, "video_mbps"), Some(30));
        assert_eq!(param(2, "video_mbps"), Some(10));
        assert_eq!(param(3, "path"), Some(1), "the one without an outage");

        // The queue keeps packets of the first of the three seconds.
        assert_eq!(metric(&cases[0], "longest_outage_s"), 2.0);
        assert_eq!(metric(&cases[0], "outage_seconds_ratio"), 2.0 / 8.0);
        assert_eq!(metric(&cases[0], "lost_packets_per_second_p50_ratio"), 0.0);
        assert!(metric(&cases[0], "packet_delay_per_second_max_ms") > 2000.0);
        assert!(metric(&cases[0], "packet_delay_p50_ms") < 100.0);
        assert!(metric(&cases[0], "packet_delay_p999_ms") > 2000.0);

        // 20 Mb/s carry two thirds of a video of 30 Mb/s, behind a full queue.
        let lost = metric(&cases[1], "lost_packets_per_second_p50_ratio");
        assert!((0.3..0.4).contains(&lost), "{lost}");
        let delay = metric(&cases[1], "packet_delay_per_second_p50_ms");
        assert!((350.0..450.0).contains(&delay), "{delay}");
        assert_eq!(metric(&cases[2], "lost_packets_ratio"), 0.0);
        assert_eq!(metric(&cases[2], "stall_above_floor_ratio"), 0.0);

        for case in &cases {
            assert!(case.paper.names().count() > 0, "{}", case.name);
            for name in case.paper.names() {
                assert!(case.metrics.get(name).is_some(), "{} {name}", case.name);
            }
        }
    }

    #[test]
    fn the_single_path_is_one_that_all_drives_have() {
        let one_uplink = "t_ms,path,rate_mbps,owd_ms,loss\n0,0,20,20,0\n1000,0,20,20,0\n";
        let drives = [("drive-000", UPLINKS), ("drive-001", one_uplink)];
        let drives = drives.map(|(name, text)| Drive::parse(name, text).unwrap());
        let trips = drives
            .iter()
            .flat_map(|drive| trips(&["single", "oracle"], drive, 1));
        let mut trips: Vec<Trip> = trips.collect();
        trips.sort_by_key(Trip::place);
        let cases = score::cases(&score::collect(trips));
        assert_eq!(cases[0].name, "single");
        // On the first drive, the second path stalls less.
        assert_eq!(cases[0].params["path"], 0);
        assert_eq!(cases[0].params["drives"], 2);
    }

    #[test]
    fn constants_chosen_on_one_half_are_judged_on_the_other() {
        let names = [
            "xnc",
            "minrtt",
            "oracle",
            "xnc-with-queue-target-25ms",
            "xnc-with-shots-2",
        ];
        let of_drive = |number: u64| {
            let mut drive = Drive::generated(number, false);
            drive.name = format!("drive-{number:03}");
            trips(&names, &drive, 1)
        };
        let mut trips: Vec<Trip> = (0..4).flat_map(of_drive).collect();
        trips.sort_by_key(Trip::place);
        let scores = score::collect(trips);
        let (candidates, others): (Vec<Case>, Vec<Case>) = score::cases(&scores)
            .into_iter()
            .partition(|case| case.name.starts_with("xnc"));

        let [case] = &cross_validation::cases(&scores)[..] else {
            panic!("one set");
        };
        let ratio = |half: &str| format!("stall_above_floor_{half}_drives_ratio");
        for (half, other) in [("even", "odd"), ("odd", "even")] {
            let name = &case.params[&format!("chosen_on_{half}_drives")];
            let chosen = candidates.iter().find(|case| *name == case.name).unwrap();
            for candidate in &candidates {
                assert!(metric(chosen, &ratio(half)) <= metric(candidate, &ratio(half)));
            }
            assert_eq!(metric(case, &ratio(other)), metric(chosen, &ratio(other)));
        }
        let mean = (metric(case, &ratio("even")) + metric(case, &ratio("odd"))) / 2.0;
        let above = metric(case, "stall_above_floor_ratio");
        assert!((above - mean).abs() < 1e-12);
        let spared = 1.0 - above / metric(&others[0], "stall_above_floor_ratio");
        let reduction = metric(case, "stall_above_floor_reduction_vs_minrtt_ratio");
        assert!((reduction - spared).abs() < 1e-9, "{reduction} {spared}");

        assert!(case.metrics.names().all(|name| !name.contains("oracle")));

        let alone = score::collect(self::trips(
            &["xnc", "minrtt"],
            &Drive::generated(0, false),
            1,
        ));
        assert!(
            cross_validation::cases(&alone).is_empty(),
            "nothing to choose from"
        );
    }

    #[test]
    fn repetitions_of_a_drive_are_one_drive_with_further_seeds() {
        let drive = Drive::generated(1, false);
        let of = |count| score::cases(&score::collect(trips(&["xnc", "minrtt"], &drive, count)));
        let (once, again) = (of(1), of(3));
        assert_eq!(again[0].params["drives"], 1);
        let delivered = "delivered_within_50ms_ratio";
        assert_ne!(metric(&again[0], delivered), metric(&once[0], delivered));
        let low = "stall_above_floor_reduction_vs_minrtt_low_ratio";
        assert!(again[0].metrics.names().any(|name| name == low));
        let interval = again[0].metrics.get(low);
        assert_eq!(interval, None, "one drive has no interval");
    }

    #[test]
    fn processor_time_is_compared_at_the_same_bitrate() {
        let names = ["minrtt-5mbps", "xnc-5mbps", "xnc-without-simd-5mbps", "xnc"];
        let scores = scores(&names, &Drive::generated(1, false));
        let mut summary = Summary::new("cellfusion", Provenance::gather(1));
        summary.cases = score::cases(&scores);

        let cost = cost::summary(&scores, &summary);

        let relative = |case: usize| cost.cases[case].metrics.get("cpu_more_than_minrtt_ratio");
        assert_eq!(relative(0), Some(0.0));
        assert!(relative(1).is_some() && relative(2).is_some());
        assert_eq!(relative(3), None, "no multipath QUIC at 30 Mb/s");
        for case in &cost.cases {
            assert!(metric(case, "cpu_load_ratio") > 0.0, "{}", case.name);
        }
        let [_, simd, scalar, _] = &summary.cases[..] else {
            panic!("four cases")
        };
        assert_eq!(
            (&simd.params, &simd.metrics),
            (&scalar.params, &scalar.metrics),
            "the kernel changes no packet"
        );
        assert!(metric(simd, "redundancy_ratio") > 0.0, "something is coded");
    }

    #[test]
    fn similarity_is_there_if_all_drives_were_decoded() {
        let drive = Drive::generated(1, false);
        let mut scores = scores(&["xnc", "minrtt"], &drive);
        let plain = score::cases(&scores);
        let is_similarity = |name: &str| name.contains("ssim") || name.contains("damaged");
        for case in &plain {
            let figures = [&case.metrics, &case.paper];
            assert!(
                !figures
                    .iter()
                    .any(|figures| figures.names().any(is_similarity))
            );
        }

        let picture = |(ssim, on_screen)| pictures::Picture {
            captured: Instant::ZERO,
            ssim,
            on_screen,
        };
        let decoded = [
            (Some(1.0), Some(1.0)),
            (Some(0.6), Some(0.6)),
            (None, Some(0.4)),
            (Some(0.8), None),
        ];
        scores[0].trips[0].pictures = Some(decoded.map(picture).to_vec());
        let cases = score::cases(&scores);

        for (name, expected) in [
            ("ssim_mean", 0.8),
            ("ssim_p50", 0.8),
            ("ssim_p05", 0.6),
            ("ssim_on_screen_mean", 0.5),
            ("ssim_on_screen_p50", 0.4),
            ("ssim_on_screen_p01", 0.0),
            ("damaged_frames_ratio", 0.5),
        ] {
            let measured = metric(&cases[0], name);
            assert!((measured - expected).abs() < 1e-9, "{name}: {measured}");
        }
        assert_eq!(cases[0].paper.get("ssim_mean"), Some(0.93));
        assert_eq!(cases[1], plain[1], "not decoded");
    }

    #[test]
    fn patterns_choose_schemes_and_drives() {
        let drives: Vec<Drive> = (0..12).map(|seed| Drive::generated(seed, false)).collect();
        let count = |pattern: &str| chosen(Some(pattern), &drives).map_or(0, |jobs| jobs.len());
        assert_eq!(count("xnc"), 12);
        assert_eq!(count("xnc/drawn-00*,oracle/*-011"), 11);
        assert_eq!(count("xnc/*"), 12);
        assert_eq!(count("xnc-without*"), 120);
        assert_eq!(count("xnc-without*/drawn-000"), 10);
        assert_eq!(count("minrtt-w*/drawn-000"), 1, "with frame dropping");
        assert_eq!(count("minrtt*/drawn-000"), 5, "and at three bitrates");
        assert_eq!(count("fec/drawn-0?0"), 2);
        assert_eq!(count("single/drawn-000"), 4, "each path by itself");
        assert_eq!(count("nothing"), 0);
        assert_eq!(
            count("5g-only/*"),
            0,
            "the technology of drawn drives is not known"
        );
        let error = chosen(Some("xnc/drive-00*"), &drives)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("there are no recorded drives in "),
            "{error}"
        );
        assert!(
            error.contains("are drawn-000 to drawn-011, such as in --case 'xnc/drawn-000'"),
            "{error}"
        );
        let jobs = chosen(Some("xnc,minrtt"), &drives).unwrap();
        let first: Vec<_> = jobs[..3].iter().map(|job| (job.case, job.drive)).collect();
        assert_eq!(first, [("xnc", 0), ("minrtt", 0), ("xnc", 1)]);
        let default = chosen(None, &drives).unwrap();
        assert!(default.iter().all(|job| CASES.contains(&job.case)));

        let reversed = drive::further(&drives[..1]).unwrap();
        let both = [&drives[..1], &reversed[..1]].concat();
        let count = |pattern: &str| chosen(Some(pattern), &both).map_or(0, |jobs| jobs.len());
        assert_eq!(count("xnc"), 1, "the default set");
        assert_eq!(count("xnc/*"), 2);
        assert_eq!(count("xnc/reversed-*"), 1);
    }
}
