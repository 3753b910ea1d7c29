//! CellFusion in virtual time: four cellular uplinks of a moving car carry one video, with each
//! contender.
//!
//! A run goes from a pattern to `summary.json` in this order: [`trial::chosen`] says which contenders
//! run on which drives, [`measure`] sends the video of one trial and evaluates what the viewer sees,
//! and [`score`] puts the trials of a contender together.

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
mod outcome;
mod paper;
mod pictures;
mod plain;
mod report;
mod score;
mod simulation;
mod trial;
mod video;

use crate::experiment::{Experiment, Results, Run, progress};
use crate::summary::Summary;
use anyhow::{Result, bail};
use connection::Identities;
use contender::{Contender, Sender};
pub(super) use drive::{Drive, all as drives, known};
use hawser_qoe::Qoe;
use hawser_units::Bitrate;
use outcome::Outcome;
use pictures::Film;
use score::Score;
use simulation::Transfer;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use trial::Trial;
pub(super) use video::{BITRATE, REORDERING_WAIT, play};

/// See [`about`](Experiment::about).
#[derive(Default)]
pub(crate) struct CellFusion {
    /// The video, if the run has pictures.
    film: OnceLock<Film>,
}

impl Experiment for CellFusion {
    type Case = Contender;
    type Trial = Trial;
    type Outcome = Outcome;

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

    fn has_pictures(&self) -> bool {
        true
    }

    fn has_repetitions(&self) -> bool {
        true
    }

    fn cases(&self) -> Vec<Contender> {
        contender::all().collect()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Trial>> {
        let mut drives = drive::all()?;
        let pattern = run.pattern.as_deref();
        if pattern.is_some_and(|pattern| pattern.contains('/')) {
            drives.extend(drive::further(&drives)?);
        }
        let drives: Vec<Arc<Drive>> = drives.into_iter().map(Arc::new).collect();
        let trials = trial::chosen(pattern, &drives)?.into_iter();
        let trials = trials.flat_map(|trial| trial.repeated(run.repetitions));
        if run.pictures {
            progress("encoding the video");
            let film = Film::encode()?;
            self.film.get_or_init(|| film);
        }
        Ok(trials.collect())
    }

    /// As many as there are processors. Their number does not influence the results.
    fn workers(&self) -> usize {
        thread::available_parallelism().map_or(1, usize::from)
    }

    fn measure(&self, trial: &Trial, run: &Run) -> Result<Outcome> {
        let outcome = measure(trial, trial.drive.part(run.seconds), run.seed)?;
        outcome.write(&run.out)?;
        Ok(outcome)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let outcomes = completed.into_iter().map(|one| one.outcome);
        let mut outcomes: Vec<Outcome> = outcomes.collect();
        outcomes.sort_by_key(Outcome::place);
        let mut scores = score::collect(outcomes);
        let film = self.film.get().filter(|_| run.pictures);
        if let Some(film) = film {
            decode(&mut scores, film, summary, run)?;
        }

        summary.cases = score::cases(&scores);
        for case in &mut summary.cases {
            case.set_param("repetitions", run.repetitions);
            if let Some(film) = film {
                case.set_param("video", film.name);
            }
        }
        cost::write(&scores, summary, &run.out)?;
        summary.cases.extend(cross_validation::cases(&scores));
        let example = film.map(|film| example::section(&scores, film));
        report::write(summary, &scores, example.transpose()?.flatten(), &run.out)
    }
}

/// Sends the video of a trial over the first `length` of its drive, and evaluates what the viewer sees.
fn measure(trial: &Trial, length: Duration, seed: u64) -> Result<Outcome> {
    let floor = floor(&trial.drive, trial.contender.video, length).stall_ratio;
    let identities = Identities::sign()?;
    let began = cost::thread_cpu()?;
    let transfer = send(trial, length, trial.seed(seed), &identities)?;
    let mut outcome = Outcome::new(trial, &transfer, length, floor);
    outcome.cpu = cost::thread_cpu()?.saturating_sub(began);
    Ok(outcome)
}

/// Sends the video of a trial.
fn send(trial: &Trial, length: Duration, seed: u64, identities: &Identities) -> Result<Transfer> {
    let Trial {
        contender,
        drive,
        path,
        ..
    } = trial;
    let video = contender.video;
    match contender.sender {
        Sender::Tunnel(scheme) => {
            let config = contender.config(scheme);
            simulation::run(drive, config, video, length, seed, identities)
        }
        Sender::Bonding | Sender::Single | Sender::Only(_) => {
            let hashed = simulation::flow_hash(seed) % drive.paths() as u64;
            let path = path.unwrap_or(hashed as usize);
            Ok(plain::run(drive, path, video, length, seed))
        }
        Sender::Oracle => Ok(Transfer::uncounted(oracle::run(drive, video, length))),
    }
}

/// Returns the experience of a viewer on a drive to which contenders with a video of the given bitrate
/// are compared: that of the oracle.
pub(super) fn floor(drive: &Drive, video: Bitrate, length: Duration) -> Qoe {
    let seen = oracle::run(drive, video, length).received_frames();
    video::qoe(&seen, simulation::window(length))
}

/// Decodes what each viewer was shown. One outcome at a time: ffmpeg uses all processors. One that
/// cannot be decoded has no pictures, and the summary says so.
fn decode(scores: &mut [Score], film: &Film, summary: &mut Summary, run: &Run) -> Result<()> {
    let count: usize = scores.iter().map(|score| score.outcomes.len()).sum();
    let outcomes = scores.iter_mut().flat_map(|score| &mut score.outcomes);
    for (number, outcome) in outcomes.enumerate() {
        if run.stop.requested() {
            bail!("stopped");
        }
        let name = format!("{}/{}", outcome.trial.contender, outcome.drive());
        progress(&format!("[{}/{count}] pictures of {name}", number + 1));
        if let Err(error) = outcome.decode(film, &run.out) {
            summary.invalidate(format!("{name}: no pictures: {error:#}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Case, Provenance};
    use hawser_units::Instant;

    const LENGTH: Duration = Duration::from_secs(4);

    fn outcomes(names: &[&str], drive: &Drive, repetitions: u32) -> Vec<Outcome> {
        let drive = Arc::new(drive.clone());
        let named = |name: &&str| contender::all().find(|case| case.to_string() == *name);
        let contenders = names.iter().map(|name| named(name).unwrap());
        let trials = contenders.flat_map(|contender| Trial::of(contender, 0, &drive));
        let trials = trials.flat_map(|trial| trial.repeated(repetitions));
        trials
            .map(|trial| measure(&trial, LENGTH, 1).unwrap())
            .collect()
    }

    fn scores(names: &[&str], drive: &Drive) -> Vec<Score> {
        score::collect(outcomes(names, drive, 1))
    }

    fn cases(names: &[&str], drive: &Drive) -> Vec<Case> {
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
        let outcomes = drives
            .iter()
            .flat_map(|drive| outcomes(&["single", "oracle"], drive, 1));
        let mut outcomes: Vec<Outcome> = outcomes.collect();
        outcomes.sort_by_key(Outcome::place);
        let cases = score::cases(&score::collect(outcomes));
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
            outcomes(&names, &drive, 1)
        };
        let mut outcomes: Vec<Outcome> = (0..4).flat_map(of_drive).collect();
        outcomes.sort_by_key(Outcome::place);
        let scores = score::collect(outcomes);
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

        let alone = score::collect(self::outcomes(
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
        let of = |count| score::cases(&score::collect(outcomes(&["xnc", "minrtt"], &drive, count)));
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
        scores[0].outcomes[0].pictures = Some(decoded.map(picture).to_vec());
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
}
