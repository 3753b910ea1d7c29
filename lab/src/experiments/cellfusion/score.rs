//! Results of the schemes: for each drive, and over the drives of a set.

use super::contender::{self, ORACLE, PAPER, SINGLE, XNC, technology, video};
use super::drive::{Drive, Set};
use super::histogram::Histogram;
use super::pictures::{self, Film, Picture};
use super::simulation::{Outcome, window};
use super::video::{FPS, ReceivedFrame, Second, Viewer, timeline};
use super::{Job, bootstrap, paper};
use crate::experiment::Measured;
use crate::summary::{Case, Metrics, mean, quantile};
use anyhow::{Context, Result};
use hawser_qoe::{Qoe, Window, measure};
use hawser_units::Instant;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The results of one drive with one scheme.
pub(crate) struct Trip {
    case: &'static str,
    /// The path, if only one is used.
    path: Option<usize>,
    pub(super) drive: String,
    repetition: u32,
    set: Set,
    /// The duration of the part of the drive that was run.
    length: Duration,
    pub(super) qoe: Qoe,
    /// The share of time for which the oracle stalls.
    pub(super) floor: f64,
    pub(super) seen: Vec<ReceivedFrame>,
    /// Its pictures, if the run has them.
    pub(super) pictures: Option<Vec<Picture>>,
    packet_delays: Histogram,
    frame_delays: Histogram,
    lost_packets: u64,
    pub(super) by_second: Vec<Second>,
    /// Count of frames captured in the window, and of those that were not shown.
    frames: u64,
    lost_frames: u64,
    first_bytes: u64,
    further_bytes: u64,
    datagrams: u64,
    lost_datagrams: u64,
    pub(super) cpu: Duration,
}

impl Measured for Trip {
    /// Virtual time passes as it should on any machine.
    fn invalid_because(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Trip {
    /// Creates the results from the frames that the viewer received.
    pub(super) fn of_viewer(job: &Job, drive: &Drive, viewer: &Viewer, length: Duration) -> Self {
        let (from, to) = window(length);
        let seen = viewer.received_frames();
        let captured = || {
            seen.iter()
                .filter(|frame| (from..to).contains(&frame.captured))
        };
        let mut frame_delays = Histogram::default();
        for frame in captured() {
            if let Some(shown) = frame.shown {
                frame_delays.add(shown.saturating_since(frame.captured));
            }
        }
        let (packet_delays, lost_packets) = viewer.packet_delays(from, to);
        let window = Window::new(from, to).expect("a drive takes time");
        let frames = captured().count() as u64;
        Trip {
            case: job.case,
            path: job.path,
            drive: drive.name.clone(),
            repetition: job.repetition,
            set: drive.set,
            length,
            qoe: measure(&timeline(&seen), window),
            floor: 0.0,
            lost_frames: frames - frame_delays.total(),
            frames,
            packet_delays,
            frame_delays,
            lost_packets,
            by_second: viewer.by_second(from, to),
            seen,
            pictures: None,
            first_bytes: 0,
            further_bytes: 0,
            datagrams: 0,
            lost_datagrams: 0,
            cpu: Duration::ZERO,
        }
    }

    /// Returns the place of its set and case in the results.
    pub(super) fn place(&self) -> (Set, Option<usize>) {
        let case = contender::all().position(|case| case == self.case);
        (self.set, case)
    }

    /// Returns the share of time for which it stalls in excess of the oracle.
    pub(super) fn above_floor(&self) -> f64 {
        self.qoe.stall_ratio - self.floor
    }

    /// Returns the redundancy: the bytes sent in addition to the first transmission of each packet,
    /// relative to those.
    pub(super) fn redundancy(&self) -> f64 {
        self.further_bytes as f64 / self.first_bytes.max(1) as f64
    }

    /// Creates the results with the bytes and datagrams that were sent.
    pub(super) fn of_outcome(
        job: &Job,
        drive: &Drive,
        outcome: &Outcome,
        length: Duration,
    ) -> Self {
        Trip {
            first_bytes: outcome.first_bytes,
            further_bytes: outcome.further_bytes,
            datagrams: outcome.datagrams,
            lost_datagrams: outcome.lost_datagrams,
            ..Trip::of_viewer(job, drive, &outcome.viewer, length)
        }
    }

    /// Decodes the frames that the viewer was shown, and writes the similarity of the pictures to the
    /// raw data of the experiment.
    pub(super) fn decode(&mut self, film: &Film, out: &Path) -> Result<()> {
        let pictures = film.compare(&self.seen)?;
        let path = self.folder(out)?.join(format!("{}-ssim.csv", self.name()));
        pictures::write(&pictures, &path)?;
        self.pictures = Some(pictures);
        Ok(())
    }

    /// Returns the name of its files: the drive, and the number of the repetition from the second on.
    fn name(&self) -> String {
        match self.repetition {
            0 => self.drive.clone(),
            repetition => format!("{}-{}", self.drive, repetition + 1),
        }
    }

    /// Creates the folder of the case in the raw data of the experiment.
    fn folder(&self, out: &Path) -> Result<PathBuf> {
        let case = self.path.map_or_else(
            || self.case.to_owned(),
            |path| format!("{}-{path}", self.case),
        );
        let folder = out.join("raw").join(case);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// Writes all frames to the raw data of the experiment.
    pub(super) fn write(&self, out: &Path) -> Result<()> {
        let folder = self.folder(out)?;
        let ms = |at: Instant| at.as_nanos() as f64 / 1e6;
        let or_nothing =
            |at: Option<Instant>| at.map_or_else(String::new, |at| format!("{:.3}", ms(at)));
        let mut text = "captured_ms,bytes,complete_ms,shown_ms\n".to_owned();
        for ReceivedFrame {
            captured,
            complete,
            shown,
            size,
        } in &self.seen
        {
            let (captured, complete, shown) =
                (ms(*captured), or_nothing(*complete), or_nothing(*shown));
            writeln!(text, "{captured:.3},{},{complete},{shown}", size.0)?;
        }
        let path = folder.join(format!("{}.csv", self.name()));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// The results of a scheme over the drives of a set.
pub(super) struct Score {
    pub(super) case: &'static str,
    pub(super) set: Set,
    /// The best path, for the case of a single path.
    path: Option<usize>,
    /// The results of the drives, in their order. The repetitions of a drive follow each other.
    pub(super) trips: Vec<Trip>,
    pub(super) packet_delays: Histogram,
    pub(super) frame_delays: Histogram,
    pub(super) lost_packets: u64,
}

impl Score {
    fn of(trips: Vec<Trip>) -> Self {
        let (mut packet_delays, mut frame_delays) = (Histogram::default(), Histogram::default());
        for trip in &trips {
            packet_delays.merge(&trip.packet_delays);
            frame_delays.merge(&trip.frame_delays);
        }
        Score {
            case: trips[0].case,
            set: trips[0].set,
            path: trips[0].candidate(),
            lost_packets: trips.iter().map(|trip| trip.lost_packets).sum(),
            packet_delays,
            frame_delays,
            trips,
        }
    }

    /// Returns the name of the case in the summary: the scheme, and the set unless it is the default.
    pub(super) fn name(&self) -> String {
        self.set.of(self.case)
    }

    /// Returns the share of time in which the video is frozen, with equal weight for each drive.
    pub(super) fn stall_ratio(&self) -> f64 {
        self.mean(|trip| trip.qoe.stall_ratio)
    }

    /// Returns the redundancy: the bytes sent in addition to the first transmission of each packet,
    /// relative to those.
    fn redundancy(&self) -> f64 {
        self.share(|trip| trip.further_bytes, |trip| trip.first_bytes)
    }

    /// Returns the share of lost or late packets for each second of each drive, sorted in ascending
    /// order.
    pub(super) fn losses(&self) -> Vec<f64> {
        self.by_second(|second| Some(second.late()))
    }

    /// Returns a figure of each second of each trip that has one, sorted in ascending order.
    pub(super) fn by_second(&self, figure: impl Fn(&Second) -> Option<f64>) -> Vec<f64> {
        let seconds = self.trips.iter().flat_map(|trip| &trip.by_second);
        let mut figures: Vec<f64> = seconds.filter_map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures
    }

    fn loss_percentile(&self, share: f64) -> f64 {
        quantile(&self.losses(), share)
    }

    fn mean(&self, figure: impl Fn(&Trip) -> f64) -> f64 {
        mean(self.trips.iter().map(figure))
    }

    /// Returns the mean of a figure on each drive, or each single uplink of a drive, in their order.
    pub(super) fn by_drive(&self, figure: impl Fn(&Trip) -> f64) -> Vec<f64> {
        let of_sample = |trips: &[Trip]| mean(trips.iter().map(&figure));
        self.samples().map(of_sample).collect()
    }

    /// Returns the mean of a figure on each drive with an even number, and on each with an odd one.
    pub(super) fn by_half(&self, figure: impl Fn(&Trip) -> f64) -> [Vec<f64>; 2] {
        let of_sample = |trips: &[Trip]| mean(trips.iter().map(&figure));
        [0, 1].map(|parity| {
            let is_of_half = |trips: &&[Trip]| trips[0].parity() == Some(parity);
            self.samples().filter(is_of_half).map(of_sample).collect()
        })
    }

    /// Returns the repetitions on each drive, or on each single uplink of a drive.
    fn samples(&self) -> impl Iterator<Item = &[Trip]> {
        self.trips
            .chunk_by(|one, other| (&one.drive, one.path) == (&other.drive, other.path))
    }

    fn share(&self, part: impl Fn(&Trip) -> u64, whole: impl Fn(&Trip) -> u64) -> f64 {
        self.trips.iter().map(part).sum::<u64>() as f64
            / self.trips.iter().map(whole).sum::<u64>() as f64
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::from([
            ("fps_mean", self.mean(|trip| trip.qoe.fps_mean)),
            ("stall_ratio", self.stall_ratio()),
        ]);
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99)] {
            let delay_ms = self.frame_delays.percentile_ms(share);
            metrics.set(&format!("frame_delay_{name}_ms"), delay_ms);
        }
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)] {
            let delay_ms = self.packet_delays.percentile_ms(share);
            metrics.set(&format!("packet_delay_{name}_ms"), delay_ms);
        }
        self.set_delivery(&mut metrics);
        self.set_losses(&mut metrics);
        self.set_stalls(&mut metrics);
        if self.case != ORACLE {
            let link_loss = self.share(|trip| trip.lost_datagrams, |trip| trip.datagrams);
            metrics.set("redundancy_ratio", self.redundancy());
            metrics.set("link_loss_ratio", link_loss);
        }
        if technology(self.case).is_some() {
            self.set_seconds(&mut metrics);
        }
        if let Some(pictures) = self.pictures() {
            set_pictures(&mut metrics, &pictures);
        }
        metrics
    }

    /// Returns the pictures of each trip, if all trips have them.
    pub(super) fn pictures(&self) -> Option<Vec<&[Picture]>> {
        let trips = self.trips.iter();
        trips.map(|trip| trip.pictures.as_deref()).collect()
    }

    /// Sets the distributions, over the seconds of all uplinks, of the share of lost packets and of
    /// the mean delay of the delivered ones, and the outages.
    fn set_seconds(&self, metrics: &mut Metrics) {
        let losses = self.by_second(|second| Some(second.lost()));
        let delays = self.by_second(Second::delay_ms);
        let shares = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];
        for (name, share) in shares {
            let name = format!("lost_packets_per_second_{name}_ratio");
            metrics.set(&name, quantile(&losses, share));
        }
        for (name, share) in shares.into_iter().chain([("max", 1.0)]) {
            let name = format!("packet_delay_per_second_{name}_ms");
            metrics.set(&name, quantile(&delays, share));
        }
        let outage_ratio = self.share(Trip::outages, |trip| trip.by_second.len() as u64);
        metrics.set("outage_seconds_ratio", outage_ratio);
        let longest = self.trips.iter().map(Trip::longest_outage_s).max();
        metrics.set("longest_outage_s", longest.unwrap_or(0) as f64);
    }

    /// Sets the figures of which lost packets are part: the shares of all packets that were
    /// delivered in time, and percentiles of the delay in which a lost packet is never delivered.
    fn set_delivery(&self, metrics: &mut Metrics) {
        let sent = self.packet_delays.total() + self.lost_packets;
        for ms in [50, 100, 200] {
            let in_time = self.packet_delays.up_to(Duration::from_millis(ms));
            let name = format!("delivered_within_{ms}ms_ratio");
            metrics.set(&name, in_time as f64 / sent as f64);
        }
        for (name, share) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999)] {
            let delay_ms = self.packet_delays.percentile_ms_of(share, sent);
            metrics.set(&format!("packet_delay_of_sent_{name}_ms"), delay_ms);
        }
    }

    /// Sets the stalls beside the oracle's: over all drives, by drives on which it stalls or not,
    /// and by halves of the drives.
    fn set_stalls(&self, metrics: &mut Metrics) {
        let stalls = |trip: &Trip| trip.qoe.stall_ratio;
        metrics.set("stall_above_floor_ratio", self.mean(Trip::above_floor));
        metrics.set("stall_median_ratio", median(self.by_drive(stalls)));
        let above = self.by_drive(Trip::above_floor);
        metrics.set("stall_above_floor_median_ratio", median(above));
        let suffice = |trip: &Trip| trip.floor == 0.0;
        for (name, are_wanted) in [("links_suffice", true), ("links_fall_short", false)] {
            let trips = self.trips.iter().filter(|trip| suffice(trip) == are_wanted);
            let (all, above): (Vec<f64>, Vec<f64>) =
                trips.map(|trip| (stalls(trip), trip.above_floor())).unzip();
            metrics.set(&format!("stall_where_{name}_ratio"), mean(all.into_iter()));
            metrics.set(
                &format!("stall_above_floor_where_{name}_ratio"),
                mean(above.into_iter()),
            );
        }
        let halves = self.by_half(Trip::above_floor);
        for (name, above) in ["even", "odd"].iter().zip(halves) {
            metrics.set(
                &format!("stall_above_floor_{name}_drives_ratio"),
                mean(above.into_iter()),
            );
        }
    }

    /// Sets the shares of lost frames and packets, and of late packets.
    fn set_losses(&self, metrics: &mut Metrics) {
        let packets = self.packet_delays.total() + self.lost_packets;
        for (name, value) in [
            (
                "lost_frames_ratio",
                self.share(|trip| trip.lost_frames, |trip| trip.frames),
            ),
            (
                "lost_packets_ratio",
                self.lost_packets as f64 / packets as f64,
            ),
            (
                "late_packets_per_second_p95_ratio",
                self.loss_percentile(0.95),
            ),
            (
                "late_packets_per_second_p99_ratio",
                self.loss_percentile(0.99),
            ),
        ] {
            metrics.set(name, value);
        }
    }
}

impl Trip {
    /// Returns the path if this is a trip of [`SINGLE`], of which only the best path counts.
    fn candidate(&self) -> Option<usize> {
        self.path.filter(|_| self.case == SINGLE)
    }

    /// Returns the number of seconds that are outages.
    fn outages(&self) -> u64 {
        let outages = self.by_second.iter().filter(|second| second.is_outage());
        outages.count() as u64
    }

    /// Returns the maximum number of consecutive seconds that are outages.
    fn longest_outage_s(&self) -> usize {
        let outages = self.by_second.split(|second| !second.is_outage());
        outages.map(<[Second]>::len).max().unwrap_or(0)
    }

    /// Returns the number of the drive modulo 2, if its name ends with a number.
    fn parity(&self) -> Option<u32> {
        self.drive
            .chars()
            .last()?
            .to_digit(10)
            .map(|digit| digit % 2)
    }
}

/// Sets the similarity of the pictures of each trip: of the frames that were shown, and of what was
/// on the screen, which counts as 0 where there was nothing yet.
fn set_pictures(metrics: &mut Metrics, pictures: &[&[Picture]]) {
    let on_screen = |picture: &Picture| Some(picture.on_screen.unwrap_or(0.0));
    set_similarity(metrics, "ssim", pictures, |picture| picture.ssim);
    set_similarity(metrics, "ssim_on_screen", pictures, on_screen);
    let frames = pictures.iter().copied().flatten();
    let is_damaged = |picture: &&Picture| picture.ssim.is_some_and(|ssim| ssim < 1.0);
    let (count, damaged) = (frames.clone().count(), frames.filter(is_damaged).count());
    metrics.set("damaged_frames_ratio", damaged as f64 / count as f64);
}

/// Sets the mean over trips of a similarity, and its percentiles over the pictures of all trips.
fn set_similarity(
    metrics: &mut Metrics,
    name: &str,
    pictures: &[&[Picture]],
    similarity: impl Fn(&Picture) -> Option<f64>,
) {
    let of_trip = |trip: &&[Picture]| trip.iter().filter_map(&similarity).collect();
    let trips: Vec<Vec<f64>> = pictures.iter().map(of_trip).collect();
    // A trip that shows nothing has no mean.
    let means = trips.iter().filter(|trip| !trip.is_empty());
    let means = means.map(|trip| mean(trip.iter().copied()));
    metrics.set(&format!("{name}_mean"), mean(means));
    let mut all = trips.concat();
    all.sort_by(f64::total_cmp);
    for (percentile, share) in [("p50", 0.5), ("p05", 0.05), ("p01", 0.01)] {
        metrics.set(&format!("{name}_{percentile}"), quantile(&all, share));
    }
}

/// Returns the median; NaN without values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// Groups trips, which are in the order of sets, cases and drives, into scores. Of the single paths
/// only the one with the least stall time is kept.
pub(super) fn collect(trips: Vec<Trip>) -> Vec<Score> {
    let mut groups: Vec<Vec<Trip>> = Vec::new();
    for trip in trips {
        let key = |trip: &Trip| (trip.set, trip.case, trip.candidate());
        let same = |group: &&mut Vec<Trip>| key(&group[0]) == key(&trip);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(trip),
            None => groups.push(vec![trip]),
        }
    }
    let mut scores: Vec<Score> = groups.into_iter().map(Score::of).collect();
    for set in Set::ALL {
        let is_single = |score: &Score| score.set == set && score.case == SINGLE;
        let singles = scores.iter().filter(|score| is_single(score));
        // Drives may have different numbers of paths.
        let all_drives = singles.clone().map(|score| score.trips.len()).max();
        let best = singles
            .filter(|score| Some(score.trips.len()) == all_drives)
            .min_by(|a, b| a.stall_ratio().total_cmp(&b.stall_ratio()))
            .and_then(|best| best.path);
        scores.retain(|score| !is_single(score) || score.path == best);
    }
    scores
}

/// Returns the cases of the summary.
pub(super) fn cases(scores: &[Score]) -> Vec<Case> {
    let describe = |score: &Score| {
        let mut case = Case::new(&score.name());
        case.set_param("set", score.set.name());
        case.set_param("drives", drives(&score.trips).len());
        let suffice = score.trips.iter().filter(|trip| trip.floor == 0.0);
        case.set_param("drives_where_links_suffice", drives(suffice).len());
        if technology(score.case).is_some() {
            case.set_param("uplinks", score.samples().count());
        }
        case.set_param("seconds", score.mean(|trip| trip.length.as_secs_f64()));
        case.set_param("video_mbps", video(score.case).bps() / 1_000_000);
        case.set_param("video_fps", FPS);
        if let Some(path) = score.path {
            case.set_param("path", path);
        }
        case.metrics = score.metrics();
        set_comparisons(&mut case.metrics, score, scores);
        case.paper = paper::figures(score.case);
        if let Some(ssim) = paper::ssim(score.case).filter(|_| score.pictures().is_some()) {
            case.paper.set("ssim_mean", ssim);
        }
        case
    };
    scores.iter().map(describe).collect()
}

/// Sets the figures of a score relative to the others.
fn set_comparisons(metrics: &mut Metrics, score: &Score, scores: &[Score]) {
    let others = scores.iter().filter(|other| comparable(other, score));
    if [XNC, PAPER].contains(&score.case) {
        others.for_each(|other| compare(score, other, metrics));
    }
}

/// Sets the reductions that XNC achieves in comparison with another scheme.
fn compare(xnc: &Score, other: &Score, metrics: &mut Metrics) {
    let mut reduction = |of: &str, figure: &dyn Fn(&Score) -> f64| {
        let name = format!("{of}_reduction_vs_{}_ratio", other.case.replace('-', "_"));
        metrics.set(&name, 1.0 - figure(xnc) / figure(other));
    };
    if other.case == xnc.case || other.case == ORACLE {
        return;
    }
    reduction("stall", &Score::stall_ratio);
    let percentile = |share: f64| move |score: &Score| score.packet_delays.percentile_ms(share);
    match other.case {
        SINGLE => {
            reduction("packet_delay_p95", &percentile(0.95));
            reduction("packet_delay_p99", &percentile(0.99));
            reduction("packet_delay_p999", &percentile(0.999));
        }
        "fec" | "pluribus" => reduction("redundancy", &Score::redundancy),
        "xnc-without-coding" => {
            reduction("loss_p95", &|score| score.loss_percentile(0.95));
            reduction("loss_p99", &|score| score.loss_percentile(0.99));
        }
        "xnc-without-early-loss" => {
            reduction("packet_delay_p95", &percentile(0.95));
            reduction("packet_delay_p99", &percentile(0.99));
        }
        _ => {}
    }
    let (ours, theirs) = (
        xnc.by_drive(Trip::above_floor),
        other.by_drive(Trip::above_floor),
    );
    set_reduction(metrics, &ours, &theirs, other.case);
}

/// Sets the share of another case's stalls above the floor that is spared, with its 95 % interval. Each
/// pair of figures belongs to one drive.
pub(super) fn set_reduction(metrics: &mut Metrics, ours: &[f64], theirs: &[f64], case: &str) {
    let reduction = 1.0 - ours.iter().sum::<f64>() / theirs.iter().sum::<f64>();
    let (low, high) = bootstrap::reduction(ours, theirs).unwrap_or((f64::NAN, f64::NAN));
    let versus = case.replace('-', "_");
    for (bound, value) in [("", reduction), ("_low", low), ("_high", high)] {
        let name = format!("stall_above_floor_reduction_vs_{versus}{bound}_ratio");
        metrics.set(&name, value);
    }
}

/// Returns whether two scores can be compared: they have to be of the same drives, with the same
/// video.
pub(super) fn comparable(one: &Score, other: &Score) -> bool {
    let drives = one.trips.iter().map(|trip| &trip.drive);
    drives.eq(other.trips.iter().map(|trip| &trip.drive)) && video(one.case) == video(other.case)
}

/// Returns the names of the drives of trips, which are in the order of drives.
fn drives<'a>(trips: impl IntoIterator<Item = &'a Trip>) -> Vec<&'a str> {
    let mut names: Vec<&str> = trips.into_iter().map(|trip| &trip.drive[..]).collect();
    names.dedup();
    names
}
