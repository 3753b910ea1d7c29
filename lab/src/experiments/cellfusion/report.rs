use super::contender::{
    BLEST, BONDING, Contender, ECF, FEC, MINRTT, ONE_TECHNOLOGY, ORACLE, PAPER, PLURIBUS,
    PROCESSOR, REDUNDANT, SINGLE, WITHOUT_CODING, WITHOUT_EARLY_LOSS, WITHOUT_FRAME_DROPPING,
    WITHOUT_QUEUE_TARGET, WITHOUT_REPEATED_SHOTS, WITHOUT_SIMD, WITHOUT_STRAGGLERS, XLINK, XNC,
};
use super::outcome::Outcome;
use super::pictures::Picture;
use super::score::Score;
use super::video::Second;
use super::{cost, paper};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Cell, Highlight, Item, Report, Section, Table};
use crate::summary::Summary;
use anyhow::Result;
use std::iter::zip;
use std::path::Path;

/// Writes `report.html`. `example` is the section with pictures, if there are any.
pub(super) fn write(
    summary: &Summary,
    scores: &[Score],
    example: Option<Section>,
    out: &Path,
) -> Result<()> {
    Report {
        title: "A car's video over four cellular uplinks",
        intro: "A moving car streams 30 frames per second at 30 Mb/s to the cloud over four cellular uplinks. Their drives \
                are composed of runs that were measured on 5G and LTE, not all at the same time. Time is virtual, but everything \
                above the links is the code that the tunnel runs: four QUIC connections with their handshakes, encryption, \
                acknowledgements and congestion control, and the schemes above them. Only bonding and the single path send plain \
                UDP. All schemes send the same packets over the same links. A frame counts as received when all of its packets \
                have arrived; the player waits up to 100 ms for missing earlier frames. The oracle knows the future of the \
                links, but decides packet by packet: it is a reference, and not a bound. Figures show the first set of \
                drives that was run.",
        highlights: highlights(summary),
        sections: sections(summary, scores, example),
        summary,
    }
    .write(out)
}

/// The metrics of XNC in large type, with their names.
const HIGHLIGHTS: [(&str, &str); 4] = [
    ("stall_ratio", "of the time the video is frozen, with XNC"),
    (
        "stall_reduction_vs_minrtt_ratio",
        "less stall time than with the minimum-RTT scheduler",
    ),
    (
        "stall_reduction_vs_xlink_ratio",
        "less stall time than with re-injection (XLINK)",
    ),
    (
        "redundancy_ratio",
        "redundancy: bytes sent in addition to the packets",
    ),
];

fn highlights(summary: &Summary) -> Vec<Highlight> {
    let Some(xnc) = summary.case(&XNC.to_string()) else {
        return Vec::new();
    };
    let share = |value: f64| format!("{:.1} %", 100.0 * value);
    let highlight = |(metric, label): (&str, &str)| {
        let ours = xnc.metrics.get(metric).filter(|value| value.is_finite())?;
        let paper = xnc.paper.get(metric);
        let comparison = paper.map_or_else(String::new, |paper| format!("paper {}", share(paper)));
        Some(Highlight::new(share(ours), label, comparison))
    };
    let mut highlights: Vec<Highlight> = HIGHLIGHTS.into_iter().filter_map(highlight).collect();
    if let Some(floor) = summary
        .case(&ORACLE.to_string())
        .and_then(|oracle| oracle.metrics.get("stall_ratio"))
    {
        highlights[0].comparison = format!("oracle: {}", share(floor));
    }
    highlights
}

/// Returns the sections. A report has six colours, assigned to names in the order of their
/// appearance. The first section introduces the names in an order that gives no colour to two
/// series of one figure.
fn sections(summary: &Summary, scores: &[Score], example: Option<Section>) -> Vec<Section> {
    let mut sections = vec![
        all_schemes(scores),
        bonding(scores),
        packet_delay(scores),
        schedulers(scores),
        coding_ahead(scores),
        contributions(scores),
        parts(scores),
    ];
    sections.extend(one_technology(scores));
    sections.extend(similarity(scores));
    sections.extend(example);
    sections.push(processor_time(scores));
    sections.push(all_figures(summary));
    sections
}

fn all_schemes(scores: &[Score]) -> Section {
    let first = [XNC, MINRTT, BONDING, ORACLE, SINGLE, PAPER];
    let second = [
        BLEST,
        WITHOUT_EARLY_LOSS,
        XLINK,
        ECF,
        REDUNDANT,
        WITHOUT_CODING,
    ];
    let third = [
        WITHOUT_FRAME_DROPPING,
        FEC,
        PLURIBUS,
        WITHOUT_QUEUE_TARGET,
        WITHOUT_STRAGGLERS,
        WITHOUT_REPEATED_SHOTS,
    ];
    figures(
        "All schemes",
        "Redundancy (bytes sent in addition to the packets) and stalls: one dot for each drive.",
        vec![
            vec![cost_and_stalls(&of(scores, &first))],
            vec![cost_and_stalls(&of(scores, &second))],
            vec![cost_and_stalls(&of(scores, &third))],
        ],
    )
}

fn bonding(scores: &[Score]) -> Section {
    figures(
        "Against multipath QUIC and bonding",
        "The paper's figure 9, whose road tests gave CellFusion 29.1 fps and 0.99 % of stalls: 66 % fewer than \
         multipath QUIC, 69 % fewer than multipath TCP, 81 % fewer than bonding. Distributions over drives.",
        vec![experience(&of(
            scores,
            &[XNC, PAPER, MINRTT, BONDING, ORACLE],
        ))],
    )
}

fn packet_delay(scores: &[Score]) -> Section {
    figures(
        "Packet delay",
        "The paper's figure 10a: percentiles 95, 99 and 99.9 of 47.4, 73.8 and 222 ms with CellFusion, of 55.8, 259 and \
         955 ms on 5G alone, and of 76.1, 267 and 792 ms on LTE alone, in the deployment. The single path here is the one with the least stall time. Lost packets are not part \
         of these curves: see lost packets in the table.",
        vec![vec![delays(&of(scores, &[XNC, PAPER, SINGLE, ORACLE]))]],
    )
}

fn schedulers(scores: &[Score]) -> Section {
    let shown = of(scores, &[XNC, PAPER, MINRTT, XLINK, ECF, REDUNDANT]);
    figures(
        "Against other schedulers",
        "The paper's figure 11: XNC has 86.6 % fewer stalls than minRTT, 82.2 % fewer than XLINK and 92.8 % fewer than ECF, with less \
         than 10 % redundancy; the redundant scheduler has up to 300 %.",
        vec![experience(&shown), vec![redundancy(&shown)]],
    )
}

fn coding_ahead(scores: &[Score]) -> Section {
    let shown = of(scores, &[XNC, PAPER, PLURIBUS, FEC]);
    figures(
        "Against coding ahead of losses",
        "The paper's figure 12: XNC has 81.67 % fewer stalls than Pluribus, with 89.49 % less redundancy.",
        vec![experience(&shown), vec![redundancy(&shown)]],
    )
}

fn contributions(scores: &[Score]) -> Section {
    let (uncoded, slow) = ([XNC, WITHOUT_CODING], [XNC, WITHOUT_EARLY_LOSS]);
    figures(
        "What coding and early loss detection contribute",
        "The paper's figure 13: coding reduces the percentiles 95 and 99 of the loss by 15.6 and 41.7 % (here packets with a delay of more \
         than 200 ms count as lost); declaring packets \
         lost when the video needs them reduces the packet delay by 8.5 and 28.4 %.",
        vec![vec![
            losses(&of(scores, &uncoded)),
            delays(&of(scores, &slow)),
        ]],
    )
}

fn parts(scores: &[Score]) -> Section {
    let shown = [
        XNC,
        WITHOUT_QUEUE_TARGET,
        WITHOUT_STRAGGLERS,
        WITHOUT_REPEATED_SHOTS,
    ];
    figures(
        "What ours adds to the paper",
        "XNC without one of its parts each.",
        vec![
            experience(&of(scores, &shown)),
            experience(&of(scores, &[WITHOUT_FRAME_DROPPING, PAPER])),
        ],
    )
}

/// Returns the section on the uplinks of one technology, if such cases were run.
fn one_technology(scores: &[Score]) -> Option<Section> {
    let scores = of(scores, &ONE_TECHNOLOGY);
    if scores.is_empty() {
        return None;
    }
    let loss = |second: &Second| Some(100.0 * second.lost());
    let losses = by_second("loss", "packets lost (%)", &scores, loss);
    let by_second_delays = by_second("delay", "mean delay (ms)", &scores, Second::delay_ms);
    Some(figures(
        "A single uplink on 5G or LTE",
        "The paper's figures 3 and 10a: each uplink carries the video alone, as plain UDP. In the paper, loss on both is as high \
         as 100 % for tens of seconds, and delays are up to a few seconds; in the deployment, the percentiles 95, 99 and 99.9 \
         of the packet delay were 55.8, 259 and 955 ms on 5G, and 76.1, 267 and 792 ms on LTE. Distributions over uplinks, \
         over the seconds of all uplinks, and over the packets that arrived; the delay of a second is the mean of those.",
        vec![
            experience(&scores),
            vec![losses, by_second_delays],
            vec![delays(&scores)],
        ],
    ))
}

/// Returns the section on the similarity of pictures, if these were decoded.
fn similarity(scores: &[Score]) -> Option<Section> {
    let groups = [
        &[XNC, PAPER, MINRTT, BONDING, ORACLE, SINGLE][..],
        &[XNC, PAPER, MINRTT, XLINK, ECF, REDUNDANT],
        &[XNC, PAPER, PLURIBUS, FEC],
    ];
    let panels = |group: &&[Contender]| {
        let mut shown = of(scores, group);
        shown.retain(|score| score.pictures().is_some());
        let others = shown.iter().any(|score| score.contender != XNC);
        others.then(|| {
            vec![
                similarities("on the screen", &shown, |picture| {
                    picture.on_screen.unwrap_or(f64::NAN)
                }),
                similarities("of frames", &shown, |picture| {
                    picture.ssim.unwrap_or(f64::NAN)
                }),
            ]
        })
    };
    let panels: Vec<_> = groups.iter().filter_map(panels).collect();
    (!panels.is_empty()).then(|| {
        figures(
            "Similarity of pictures",
            "SSIM (the paper's figures 9, 11 and 12, whose only figure in text is CellFusion's mean of 0.93), for each frame that was \
             sent. On the screen: of the picture that is there 200 ms after the capture, which is an older one if the frame is late \
             or lost. Of frames: of the frame itself, whenever it is shown. Frames for which there is no picture keep a curve below 1.",
            panels,
        )
    })
}

/// Returns the distribution of a similarity over the frames of all outcomes.
fn similarities(title: &str, scores: &[&Score], similarity: impl Fn(&Picture) -> f64) -> Plot {
    let series = |score: &&Score| {
        let pictures = score.pictures().unwrap_or_default().into_iter().flatten();
        let values: Vec<f64> = pictures.map(&similarity).collect();
        Series::distribution(&score.label, &values)
    };
    Plot::new(
        title,
        Axis::linear("SSIM"),
        shares("share of frames"),
        scores.iter().map(series),
    )
}

fn processor_time(scores: &[Score]) -> Section {
    let mut items = vec![Item::Table(processor(scores))];
    if scores
        .iter()
        .any(|score| PROCESSOR.contains(&score.contender))
    {
        items.push(Item::figure("", vec![load(scores)]));
    }
    Section::new(
        "Processor",
        "The paper's figure 14: at 30 Mb/s, XNC takes 43.77 % more processor time than multipath QUIC, and XNC with SIMD \
         instructions, as here, 23.44 % more. Here both ends, encryption and the emulated links are included, on the machine that ran this.",
        items,
    )
}

fn all_figures(summary: &Summary) -> Section {
    Section::all_figures(
        "The paper's figures are below ours where its text has one: frame rate, stalls and the reduction against bonding of \
         its road tests, delays, their reductions against a single path and redundancy of its deployment, other reductions of \
         its emulation. stall_above_floor: in excess of the oracle's. Links suffice where the oracle does not stall. low and \
         high: 95 % interval by paired bootstrap over drives. packet_delay: of the packets that were delivered; \
         packet_delay_of_sent: of all packets, a dash where lost ones reach the percentile. \
         late_packets_per_second: percentile, over all seconds of all drives, of the share of packets that were lost or \
         delayed by more than 200 ms.",
        summary,
    )
}

/// Returns the scores of contenders, in their order, without those that were not run.
fn of<'a>(scores: &'a [Score], contenders: &[Contender]) -> Vec<&'a Score> {
    contenders
        .iter()
        .filter_map(|contender| scores.iter().find(|score| score.contender == *contender))
        .collect()
}

/// Returns a section of figures, each of which consists of panels.
fn figures(title: &str, text: &str, panels: Vec<Vec<Plot>>) -> Section {
    let figure = |panels| Item::figure("", panels);
    Section::new(title, text, panels.into_iter().map(figure).collect())
}

fn processor(scores: &[Score]) -> Table {
    let row = |score: &Score| {
        let cost = cost::per_packet_us(score);
        let relative = cost::relative_to_minrtt(score, scores);
        let relative = relative.map_or_else(|| "–".to_owned(), |relative| format!("{relative:.2}"));
        let paper = paper::processor_time(score.contender).map(|more| format!("{:.2}", 1.0 + more));
        vec![
            Cell::new(score.name()),
            Cell::new(format!("{cost:.2}")),
            Cell {
                value: relative,
                paper,
            },
        ]
    };
    Table {
        header: ["case", "µs per packet", "relative to minrtt"]
            .map(String::from)
            .to_vec(),
        rows: scores.iter().map(row).collect(),
        caption: String::new(),
    }
}

/// Returns the processor time over the bitrates of the video.
fn load(scores: &[Score]) -> Plot {
    let series = |contender: &Contender| {
        let at_any_bitrate = |score: &&Score| {
            let other = score.contender;
            (other.sender, other.change) == (contender.sender, contender.change)
        };
        let of_contender = scores.iter().filter(at_any_bitrate);
        let of_contender = of_contender.filter(|score| score.set.is_default());
        let point = |score: &Score| {
            let mbps = score.contender.video.mbps();
            (mbps, 100.0 * cost::load(score))
        };
        let mut points: Vec<(f64, f64)> = of_contender.map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series::line(contender.to_string(), points)
    };
    Plot::new(
        "processor time",
        Axis::linear("bitrate of the video (Mb/s)"),
        Axis::linear("processor time (% of the time of the drives)"),
        [MINRTT, XNC, WITHOUT_SIMD].iter().map(series),
    )
}

fn cost_and_stalls(scores: &[&Score]) -> Plot {
    let series = |score: &&Score| {
        let redundancies = score.by_drive(|outcome| 100.0 * outcome.redundancy());
        let stalls = score.by_drive(|outcome| 100.0 * outcome.qoe.stall_ratio);
        Series::dots(&score.label, zip(redundancies, stalls).collect())
    };
    let (x, y) = (
        Axis::linear("redundancy (%)"),
        Axis::linear("stalled (% of the time)"),
    );
    Plot::new("drives", x, y, scores.iter().map(series))
}

/// Returns the distributions of frame rates and stalls.
fn experience(scores: &[&Score]) -> Vec<Plot> {
    let fps = |outcome: &Outcome| outcome.qoe.fps_mean;
    let stalls = |outcome: &Outcome| 100.0 * outcome.qoe.stall_ratio;
    vec![
        distribution("frame rate", "frames per second", scores, fps),
        distribution("stalls", "stalled (% of the time)", scores, stalls),
    ]
}

fn redundancy(scores: &[&Score]) -> Plot {
    distribution("redundancy", "redundancy (%)", scores, |outcome| {
        100.0 * outcome.redundancy()
    })
}

/// Returns the distribution of a figure over the drives.
fn distribution(
    title: &str,
    label: &str,
    scores: &[&Score],
    figure: impl Fn(&Outcome) -> f64,
) -> Plot {
    let series = |score: &&Score| Series::distribution(&score.label, &score.by_drive(&figure));
    Plot::new(
        title,
        Axis::linear(label),
        shares("share of drives"),
        scores.iter().map(series),
    )
}

fn delays(scores: &[&Score]) -> Plot {
    let series = |score: &&Score| Series::line(&score.label, score.packet_delays.distribution());
    let x = Axis::logarithmic("packet delay (ms)").showing(10.0..=10_000.0);
    Plot::new(
        "packet delay",
        x,
        shares("share of packets"),
        scores.iter().map(series),
    )
}

fn losses(scores: &[&Score]) -> Plot {
    let series = |score: &&Score| {
        let losses: Vec<f64> = score.losses().iter().map(|loss| 100.0 * loss).collect();
        Series::distribution(&score.label, &losses)
    };
    let x = Axis::linear("packets lost or late (% of the packets of a second)");
    Plot::new(
        "loss",
        x,
        shares("share of seconds").showing(0.9..=1.0),
        scores.iter().map(series),
    )
}

/// Returns the distribution of a figure over the seconds of all outcomes.
fn by_second(
    title: &str,
    label: &str,
    scores: &[&Score],
    figure: impl Fn(&Second) -> Option<f64>,
) -> Plot {
    let series = |score: &&Score| Series::distribution(&score.label, &score.by_second(&figure));
    Plot::new(
        title,
        Axis::linear(label),
        shares("share of seconds"),
        scores.iter().map(series),
    )
}

fn shares(label: &str) -> Axis {
    Axis::linear(label).showing(0.0..=1.0)
}
