//! Results of the contenders over the drives of a set.

use super::contender::{
    Contender, FEC, ORACLE, PAPER, PLURIBUS, SINGLE, WITHOUT_CODING, WITHOUT_EARLY_LOSS, XNC,
};
use super::drive::Set;
use super::histogram::Histogram;
use super::outcome::Outcome;
use super::pictures::Picture;
use super::video::{FPS, Second};
use super::{bootstrap, paper};
use crate::summary::{Case, Metrics, mean, quantile};
use std::time::Duration;

/// The results of a contender over the drives of a set.
pub(super) struct Score {
    pub(super) contender: Contender,
    /// The name of the contender.
    pub(super) label: String,
    pub(super) set: Set,
    /// The best path, for the case of a single path.
    path: Option<usize>,
    /// The results of the drives, in their order. The repetitions of a drive follow each other.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) packet_delays: Histogram,
    pub(super) frame_delays: Histogram,
    pub(super) lost_packets: u64,
}

impl Score {
    fn of(outcomes: Vec<Outcome>) -> Self {
        let (mut packet_delays, mut frame_delays) = (Histogram::default(), Histogram::default());
        for outcome in &outcomes {
            packet_delays.merge(&outcome.packet_delays);
            frame_delays.merge(&outcome.frame_delays);
        }
        Score {
            contender: outcomes[0].trial.contender,
            label: outcomes[0].trial.contender.to_string(),
            set: outcomes[0].set(),
            path: outcomes[0].candidate(),
            lost_packets: outcomes.iter().map(|outcome| outcome.lost_packets).sum(),
            packet_delays,
            frame_delays,
            outcomes,
        }
    }

    /// Returns the name of the case in the summary: the scheme, and the set unless it is the default.
    pub(super) fn name(&self) -> String {
        self.set.of(&self.label)
    }

    /// Returns the share of time in which the video is frozen, with equal weight for each drive.
    pub(super) fn stall_ratio(&self) -> f64 {
        self.mean(|outcome| outcome.qoe.stall_ratio)
    }

    /// Returns the redundancy: the bytes sent in addition to the first transmission of each packet,
    /// relative to those.
    fn redundancy(&self) -> f64 {
        self.share(
            |outcome| outcome.further_bytes,
            |outcome| outcome.first_bytes,
        )
    }

    /// Returns the share of lost or late packets for each second of each drive, sorted in ascending
    /// order.
    pub(super) fn losses(&self) -> Vec<f64> {
        self.by_second(|second| Some(second.late()))
    }

    /// Returns a figure of each second of each outcome that has one, sorted in ascending order.
    pub(super) fn by_second(&self, figure: impl Fn(&Second) -> Option<f64>) -> Vec<f64> {
        let seconds = self.outcomes.iter().flat_map(|outcome| &outcome.by_second);
        let mut figures: Vec<f64> = seconds.filter_map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures
    }

    fn loss_percentile(&self, share: f64) -> f64 {
        quantile(&self.losses(), share)
    }

    fn mean(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        mean(self.outcomes.iter().map(figure))
    }

    /// Returns the mean of a figure on each drive, or each single uplink of a drive, in their order.
    pub(super) fn by_drive(&self, figure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        let of_sample = |outcomes: &[Outcome]| mean(outcomes.iter().map(&figure));
        self.samples().map(of_sample).collect()
    }

    /// Returns the mean of a figure on each drive with an even number, and on each with an odd one.
    pub(super) fn by_half(&self, figure: impl Fn(&Outcome) -> f64) -> [Vec<f64>; 2] {
        let of_sample = |outcomes: &[Outcome]| mean(outcomes.iter().map(&figure));
        [0, 1].map(|parity| {
            let is_of_half = |outcomes: &&[Outcome]| outcomes[0].parity() == Some(parity);
            self.samples().filter(is_of_half).map(of_sample).collect()
        })
    }

    /// Returns the repetitions on each drive, or on each single uplink of a drive.
    fn samples(&self) -> impl Iterator<Item = &[Outcome]> {
        self.outcomes
            .chunk_by(|one, other| one.sample() == other.sample())
    }

    fn share(&self, part: impl Fn(&Outcome) -> u64, whole: impl Fn(&Outcome) -> u64) -> f64 {
        self.outcomes.iter().map(part).sum::<u64>() as f64
            / self.outcomes.iter().map(whole).sum::<u64>() as f64
    }

    fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::from([
            ("fps_mean", self.mean(|outcome| outcome.qoe.fps_mean)),
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
        if self.contender != ORACLE {
            let link_loss = self.share(
                |outcome| outcome.lost_datagrams,
                |outcome| outcome.datagrams,
            );
            metrics.set("redundancy_ratio", self.redundancy());
            metrics.set("link_loss_ratio", link_loss);
        }
        if self.contender.technology().is_some() {
            self.set_seconds(&mut metrics);
        }
        if let Some(pictures) = self.pictures() {
            set_pictures(&mut metrics, &pictures);
        }
        metrics
    }

    /// Returns the pictures of each outcome, if all outcomes have them.
    pub(super) fn pictures(&self) -> Option<Vec<&[Picture]>> {
        let outcomes = self.outcomes.iter();
        outcomes
            .map(|outcome| outcome.pictures.as_deref())
            .collect()
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
        let outage_ratio = self.share(Outcome::outages, |outcome| outcome.by_second.len() as u64);
        metrics.set("outage_seconds_ratio", outage_ratio);
        let longest = self.outcomes.iter().map(Outcome::longest_outage_s).max();
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
        let stalls = |outcome: &Outcome| outcome.qoe.stall_ratio;
        metrics.set("stall_above_floor_ratio", self.mean(Outcome::above_floor));
        metrics.set("stall_median_ratio", median(self.by_drive(stalls)));
        let above = self.by_drive(Outcome::above_floor);
        metrics.set("stall_above_floor_median_ratio", median(above));
        let suffice = |outcome: &Outcome| outcome.floor == 0.0;
        for (name, are_wanted) in [("links_suffice", true), ("links_fall_short", false)] {
            let outcomes = self
                .outcomes
                .iter()
                .filter(|outcome| suffice(outcome) == are_wanted);
            let (all, above): (Vec<f64>, Vec<f64>) = outcomes
                .map(|outcome| (stalls(outcome), outcome.above_floor()))
                .unzip();
            metrics.set(&format!("stall_where_{name}_ratio"), mean(all.into_iter()));
            metrics.set(
                &format!("stall_above_floor_where_{name}_ratio"),
                mean(above.into_iter()),
            );
        }
        let halves = self.by_half(Outcome::above_floor);
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
                self.share(|outcome| outcome.lost_frames, |outcome| outcome.frames),
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

/// Sets the similarity of the pictures of each outcome: of the frames that were shown, and of what was
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

/// Sets the mean over outcomes of a similarity, and its percentiles over the pictures of all outcomes.
fn set_similarity(
    metrics: &mut Metrics,
    name: &str,
    pictures: &[&[Picture]],
    similarity: impl Fn(&Picture) -> Option<f64>,
) {
    let of_trip = |outcome: &&[Picture]| outcome.iter().filter_map(&similarity).collect();
    let outcomes: Vec<Vec<f64>> = pictures.iter().map(of_trip).collect();
    // An outcome that shows nothing has no mean.
    let means = outcomes.iter().filter(|outcome| !outcome.is_empty());
    let means = means.map(|outcome| mean(outcome.iter().copied()));
    metrics.set(&format!("{name}_mean"), mean(means));
    let mut all = outcomes.concat();
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

/// Groups outcomes, which are in the order of sets, cases and drives, into scores. Of the single paths
/// only the one with the least stall time is kept.
pub(super) fn collect(outcomes: Vec<Outcome>) -> Vec<Score> {
    let mut groups: Vec<Vec<Outcome>> = Vec::new();
    for outcome in outcomes {
        let key = |outcome: &Outcome| (outcome.set(), outcome.trial.contender, outcome.candidate());
        let same = |group: &&mut Vec<Outcome>| key(&group[0]) == key(&outcome);
        match groups.iter_mut().find(same) {
            Some(group) => group.push(outcome),
            None => groups.push(vec![outcome]),
        }
    }
    let mut scores: Vec<Score> = groups.into_iter().map(Score::of).collect();
    for set in Set::ALL {
        let is_single = |score: &Score| score.set == set && score.contender == SINGLE;
        let singles = scores.iter().filter(|score| is_single(score));
        // Drives may have different numbers of paths.
        let all_drives = singles.clone().map(|score| score.outcomes.len()).max();
        let best = singles
            .filter(|score| Some(score.outcomes.len()) == all_drives)
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
        case.set_param("drives", drives(&score.outcomes).len());
        let suffice = score.outcomes.iter().filter(|outcome| outcome.floor == 0.0);
        case.set_param("drives_where_links_suffice", drives(suffice).len());
        if score.contender.technology().is_some() {
            case.set_param("uplinks", score.samples().count());
        }
        case.set_param(
            "seconds",
            score.mean(|outcome| outcome.length.as_secs_f64()),
        );
        case.set_param("video_mbps", score.contender.video.bps() / 1_000_000);
        case.set_param("video_fps", FPS);
        if let Some(path) = score.path {
            case.set_param("path", path);
        }
        case.metrics = score.metrics();
        set_comparisons(&mut case.metrics, score, scores);
        case.paper = paper::figures(&score.label);
        if let Some(ssim) = paper::ssim(&score.label).filter(|_| score.pictures().is_some()) {
            case.paper.set("ssim_mean", ssim);
        }
        case
    };
    scores.iter().map(describe).collect()
}

/// Sets the figures of a score relative to the others.
fn set_comparisons(metrics: &mut Metrics, score: &Score, scores: &[Score]) {
    let others = scores.iter().filter(|other| comparable(other, score));
    if [XNC, PAPER].contains(&score.contender) {
        others.for_each(|other| compare(score, other, metrics));
    }
}

/// Sets the reductions that XNC achieves in comparison with another scheme.
fn compare(xnc: &Score, other: &Score, metrics: &mut Metrics) {
    let mut reduction = |of: &str, figure: &dyn Fn(&Score) -> f64| {
        let name = format!("{of}_reduction_vs_{}_ratio", other.label.replace('-', "_"));
        metrics.set(&name, 1.0 - figure(xnc) / figure(other));
    };
    if [xnc.contender, ORACLE].contains(&other.contender) {
        return;
    }
    reduction("stall", &Score::stall_ratio);
    let percentile = |share: f64| move |score: &Score| score.packet_delays.percentile_ms(share);
    let other_is = |contenders: &[Contender]| contenders.contains(&other.contender);
    if other_is(&[SINGLE, WITHOUT_EARLY_LOSS]) {
        reduction("packet_delay_p95", &percentile(0.95));
        reduction("packet_delay_p99", &percentile(0.99));
    }
    if other_is(&[SINGLE]) {
        reduction("packet_delay_p999", &percentile(0.999));
    }
    if other_is(&[FEC, PLURIBUS]) {
        reduction("redundancy", &Score::redundancy);
    }
    if other_is(&[WITHOUT_CODING]) {
        reduction("loss_p95", &|score| score.loss_percentile(0.95));
        reduction("loss_p99", &|score| score.loss_percentile(0.99));
    }
    let (ours, theirs) = (
        xnc.by_drive(Outcome::above_floor),
        other.by_drive(Outcome::above_floor),
    );
    set_reduction(metrics, &ours, &theirs, &other.label);
}

/// Sets the share of another contender's stalls above the floor that is spared, with its 95 % interval. Each
/// pair of figures belongs to one drive.
pub(super) fn set_reduction(metrics: &mut Metrics, ours: &[f64], theirs: &[f64], other: &str) {
    let reduction = 1.0 - ours.iter().sum::<f64>() / theirs.iter().sum::<f64>();
    let (low, high) = bootstrap::reduction(ours, theirs).unwrap_or((f64::NAN, f64::NAN));
    let versus = other.replace('-', "_");
    for (bound, value) in [("", reduction), ("_low", low), ("_high", high)] {
        let name = format!("stall_above_floor_reduction_vs_{versus}{bound}_ratio");
        metrics.set(&name, value);
    }
}

/// Returns whether two scores can be compared: they have to be of the same drives, with the same
/// video.
pub(super) fn comparable(one: &Score, other: &Score) -> bool {
    let theirs = other.outcomes.iter().map(Outcome::drive);
    one.contender.video == other.contender.video
        && one.outcomes.iter().map(Outcome::drive).eq(theirs)
}

/// Returns the names of the drives of outcomes, which are in the order of drives.
fn drives<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Vec<&'a str> {
    let mut names: Vec<&str> = outcomes.into_iter().map(Outcome::drive).collect();
    names.dedup();
    names
}
