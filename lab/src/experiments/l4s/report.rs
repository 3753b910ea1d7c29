//! `report.html`.

use super::scenario::{Media, Network, Rivals};
use super::score::{Score, rate, targets};
use super::simulation::{Outcome, Sample};
use crate::plot::{Axis, Band, Plot, Series};
use crate::report::{Highlight, Item, Report, Section};
use crate::summary::Summary;
use anyhow::Result;
use hawser_units::ByteSize;
use std::path::Path;

/// The number of samples over which a rate is averaged.
const WINDOW: usize = 5;

pub(super) fn write(summary: &Summary, scores: &[Score], out: &Path) -> Result<()> {
    Report {
        title: "A volumetric stream at L4S latency",
        intro: "A sender of 30 frames per second adapts its rate to a bottleneck that marks packets early (L4S), alone and \
                beside bulk flows that start after 5 s. prague is Hawser's controller, paper that of De Fré et al. as far as \
                its text tells it, gcc the rival WebRTC with GCC of str0m 0.25. Time is virtual; packets, their encryption, \
                feedback, retransmission, pacing and the controllers are the code of the product, and with gcc that of str0m. \
                The stable state follows after the start-up. Sizes and rates are those of IP packets.",
        highlights: highlights(summary),
        sections: sections(summary, scores),
        summary,
    }
    .write(out)
}

/// The metrics in large type: the case, the metric, its unit and its description.
const HIGHLIGHTS: [(&str, &str, &str, &str); 5] = [
    (
        "prague/cubic-3",
        "convergence_s",
        "s",
        "from 12.5 to 90 Mb/s",
    ),
    (
        "prague/cubic-3",
        "latency_mean_ms",
        "ms",
        "from a frame's first packet to its completeness, beside three Cubic flows",
    ),
    (
        "prague/prague-3",
        "target_mbps",
        "Mb/s",
        "beside three Prague flows",
    ),
    (
        "gcc/cubic-3",
        "target_mbps",
        "Mb/s",
        "WebRTC (GCC of str0m) beside three Cubic flows",
    ),
    (
        "prague/dual-pi2",
        "queue_delay_p99_ms",
        "ms",
        "in the queue at 90 of 100 Mb/s, 99th percentile",
    ),
];

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let highlight = |(name, metric, unit, label): (&str, &str, &str, &str)| {
        let case = summary.case(name)?;
        let ours = case.metrics.get(metric)?;
        let paper = case.paper.get(metric);
        let comparison = paper.map_or_else(String::new, |paper| format!("paper {paper} {unit}"));
        Some(Highlight::new(
            format!("{ours:.1} {unit}"),
            label,
            comparison,
        ))
    };
    HIGHLIGHTS.into_iter().filter_map(highlight).collect()
}

const BESIDE_CUBIC: &str = "The paper's figures 7a and 9: its queue at 200 Mb/s marks L4S above 100 Mb/s. There the \
     estimate reaches 90 Mb/s after 10 s, and a frame takes 30 ms, 10 of them the network's and 20 of pacing.";

const BESIDE_PRAGUE: &str = "The paper's figure 7b: 58, 15 and 12.5 Mb/s against one, two and three flows, which share \
     100 Mb/s with the stream.";

const WEBRTC: &str = "The paper's figures 6 and 8: its WebRTC, whose packets are not ECN-capable, reaches 90 Mb/s after 22 s \
     beside Prague flows, and has 46, 30 and 30 Mb/s beside one, two and three Cubic flows. There its latency grows with \
     their number, beyond that of L4S at three in the mean and from two on in the peaks, and beside three 3 % of its frames \
     are undecodable. Ours is another implementation: GCC of str0m 0.25 looks for a higher rate by short bursts, as Google's \
     does. It is not tuned.";

const OTHERS: &str = "Not in the paper: DualPI2 (RFC 9332) at 100 Mb/s; a fall to 20 Mb/s and the return; 1 % of the \
     packets lost at random.";

fn sections(summary: &Summary, scores: &[Score]) -> Vec<Section> {
    let is_papers = |score: &&Score| score.scenario.network == Network::Paper;
    let is_webrtc = |score: &&Score| score.scenario.media == Media::WebRtc;
    let is_prague = |score: &&Score| matches!(score.scenario.rivals, Rivals::Prague(_));
    let (papers, others): (Vec<&Score>, Vec<&Score>) = scores.iter().partition(is_papers);
    let (webrtc, papers): (Vec<&Score>, Vec<&Score>) = papers.into_iter().partition(is_webrtc);
    let (prague, cubic): (Vec<&Score>, Vec<&Score>) = papers.into_iter().partition(is_prague);
    [
        section("Alone and beside Cubic", BESIDE_CUBIC, &cubic),
        section("Beside Prague", BESIDE_PRAGUE, &prague),
        section("WebRTC", WEBRTC, &webrtc),
        section("DualPI2, steps of the capacity, loss", OTHERS, &others),
        Some(all_figures(summary)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn section(title: &str, text: &str, scores: &[&Score]) -> Option<Section> {
    let figure = |score: &&Score| {
        let outcome = score.outcomes.first()?;
        let mut plots = vec![rates(score, outcome), latencies(score, outcome)];
        plots.extend(quality(score, outcome));
        Some(Item::figure("", plots))
    };
    let mut items: Vec<Item> = scores.iter().filter_map(figure).collect();
    items.extend(scores.last().and_then(|score| picture(score)));
    (!items.is_empty()).then(|| Section::new(title, text, items))
}

fn all_figures(summary: &Summary) -> Section {
    Section::all_figures(
        "Of the stable state, but for convergence_s: the time from the first frame until the target reaches 90 Mb/s, or \
         nine tenths of its mean in the stable state where it does not (convergence_to in summary.json). latency: from the \
         first packet of a frame to its completeness. frame_delay: from its capture. latency_beyond_pacing: without the \
         time that pacing takes for the frame. undecodable: begun, but without a complete base at the viewer; dropped: not begun; \
         reduced: without the refinement; late: more than 100 ms after capture. The paper's figures are below ours.",
        summary,
    )
}

fn rates(score: &Score, outcome: &Outcome) -> Plot {
    let mut series = vec![
        Series::line("target", targets(outcome).collect()),
        received("received", outcome, |sample| sample.media),
    ];
    if score.scenario.rivals.count() > 0 {
        series.push(received("competitors", outcome, |sample| {
            sample.rivals.iter().copied().sum()
        }));
    }
    Plot {
        title: format!("{}: rate", score.scenario),
        x: Axis::linear("time (s)"),
        y: Axis::linear("Mb/s").showing(0.0..=200.0),
        series,
        bands: start_up(score),
    }
}

/// Returns the rate of what was received over time.
fn received(name: &str, outcome: &Outcome, bytes: impl Fn(&Sample) -> ByteSize) -> Series {
    let pairs = outcome
        .samples
        .iter()
        .zip(outcome.samples.iter().skip(WINDOW));
    let points = pairs.map(|(from, to)| (to.at.as_secs_f64(), rate(from, to, &bytes)));
    Series::line(name, points.collect())
}

fn latencies(score: &Score, outcome: &Outcome) -> Plot {
    let frames = outcome.frames.iter();
    let points = frames.filter_map(|frame| {
        let latency = frame.latency()?.as_secs_f64() * 1e3;
        Some((frame.captured.as_secs_f64(), latency))
    });
    Plot {
        title: format!("{}: first packet to completeness", score.scenario),
        x: Axis::linear("time (s)"),
        y: Axis::linear("ms"),
        series: vec![Series::dots("latency", points.collect())],
        bands: start_up(score),
    }
}

/// Returns the scores over the stable state (figures 10 and 11), if there are pictures.
fn quality(score: &Score, outcome: &Outcome) -> Option<Plot> {
    let at = |number: usize| outcome.frames[number].captured.as_secs_f64();
    let scores = outcome.pictures.scores.iter();
    let points: Vec<(f64, f64)> = scores.map(|(number, vmaf)| (at(*number), *vmaf)).collect();
    (!points.is_empty()).then(|| {
        Plot::new(
            format!("{}: picture", score.scenario),
            Axis::linear("time (s)"),
            Axis::linear("VMAF").showing(0.0..=100.0),
            [Series::line("VMAF", points)],
        )
    })
}

/// Returns the last picture of a case's first run below what was captured.
fn picture(score: &Score) -> Option<Item> {
    let (captured, shown) = score.outcomes.first()?.pictures.last.as_ref()?;
    let caption = format!(
        "{}: the last frame, captured above and shown below",
        score.scenario
    );
    Some(Item::picture(caption, &captured.above(shown)))
}

fn start_up(score: &Score) -> Vec<Band> {
    vec![Band {
        from: 0.0,
        to: score.times.stable.as_secs_f64(),
        label: "start-up".to_owned(),
    }]
}
