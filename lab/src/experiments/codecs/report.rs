//! `report.html`, and the pictures.

use super::scenario::{Coder, Rate};
use super::score::{SCORE, Score, VMAF, crossing_name, curve, subjects};
use crate::plot::{Axis, Plot, Series};
use crate::report::{Highlight, Item, Report, Section};
use crate::summary::Summary;
use anyhow::{Context, Result};
use hawser_recording::encode_png;
use std::fs;
use std::path::Path;

/// The rate of the pictures in the report, Mb/s. All are written to files.
const PICTURES_MBPS: u32 = 20;

pub(super) fn write(summary: &Summary, scores: &[Score], out: &Path) -> Result<()> {
    write_pictures(scores, out)?;
    let mut sections: Vec<Section> = clips(scores)
        .into_iter()
        .map(|clip| section(scores, clip))
        .collect();
    sections.push(all_figures(summary));
    Report {
        title: "Codecs of volumetric video",
        intro: "Recordings pass the publisher's encoders, with their rate control, and the viewer's decoders, frame by frame. What \
                a viewer sees from the front and from 30 degrees beside that is compared with the same views of what was \
                captured, by VMAF, and the points with the captured ones. draco has the parameters of De Fré et al., and meets \
                a rate by sampling, as there; draco-cpp is Google's implementation. Rates are those of the encoded frames, \
                without headers of packets.",
        highlights: highlights(summary, scores),
        sections,
        summary,
    }
    .write(out)
}

/// Returns the names of the recordings.
fn clips(scores: &[Score]) -> Vec<&str> {
    let mut names: Vec<&str> = subjects(scores).iter().map(|(clip, _)| *clip).collect();
    names.dedup();
    names
}

fn highlights(summary: &Summary, scores: &[Score]) -> Vec<Highlight> {
    let highlight = |(clip, coder): (&str, Coder)| {
        let case = summary.case(&crossing_name(clip, coder))?;
        let mbps = case.metrics.get("rate_mbps")?;
        let bound = if case.params.get("is_bound") == Some(&true.into()) {
            "at most "
        } else {
            ""
        };
        let ratio = case.metrics.get("rate_of_draco_ratio");
        Some(Highlight::new(
            format!("{bound}{mbps:.1} Mb/s"),
            format!("{}, {clip}: VMAF {SCORE:.0}", coder.name()),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2} of Draco's rate")),
        ))
    };
    subjects(scores).into_iter().filter_map(highlight).collect()
}

fn section(scores: &[Score], clip: &str) -> Section {
    let plots = vec![
        plot(scores, clip, "VMAF", VMAF),
        plot(scores, clip, "geometry (dB)", "geometry_psnr_db"),
        plot(scores, clip, "luma (dB)", "luma_psnr_db"),
    ];
    let mut items = vec![Item::figure("", plots)];
    items.extend(pictures(scores, clip));
    let text = "The geometry's peak signal-to-noise ratio is from point to point; 100 dB stand for no difference.";
    Section::new(clip, text, items)
}

fn plot(scores: &[Score], clip: &str, label: &str, metric: &str) -> Plot {
    let of_clip = subjects(scores).into_iter().filter(|(of, _)| *of == clip);
    let series = of_clip.map(|(_, coder)| {
        let points = curve(scores, clip, coder, metric);
        if points.len() > 1 {
            Series::line(coder.name(), points)
        } else {
            Series::dots(coder.name(), points)
        }
    });
    Plot::new(
        label,
        Axis::logarithmic("Mb/s"),
        Axis::linear(label),
        series,
    )
}

/// Returns what was captured and what the codecs make of it.
fn pictures(scores: &[Score], clip: &str) -> Vec<Item> {
    let shown = scores.iter().filter(|score| {
        let scenario = &score.scenario;
        scenario.clip.name() == clip && scenario.rate == Rate::Mbps(PICTURES_MBPS)
    });
    let mut items = Vec::new();
    for score in shown {
        if items.is_empty() {
            items.push(Item::picture("As captured", &score.outcome.captured));
        }
        let caption = format!(
            "{}: {:.1} Mb/s, VMAF {:.0}, {:.0} points",
            score.scenario.coder.name(),
            score.get("rate_mbps"),
            score.get(VMAF),
            score.get("frame_points"),
        );
        items.push(Item::picture(caption, &score.outcome.picture));
    }
    items
}

/// Writes the last frame of each case as it was shown, and as it was captured, to the raw data.
fn write_pictures(scores: &[Score], out: &Path) -> Result<()> {
    for score in scores {
        let folder = out.join("raw").join(score.scenario.to_string());
        for (name, image) in [
            ("captured.png", &score.outcome.captured),
            ("shown.png", &score.outcome.picture),
        ] {
            let path = folder.join(name);
            fs::write(&path, encode_png(image))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}

fn all_figures(summary: &Summary) -> Section {
    Section::all_figures(
        "Times are medians of a frame: of all views at the same time where a codec encodes views, and of drawing both sides. \
         vmaf-85: the rate at which the score is reached; is_bound in summary.json where every rate reaches it.",
        summary,
    )
}
