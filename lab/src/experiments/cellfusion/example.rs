//! The paper's figure 8: an example of what viewers see with different schemes.

use super::pictures::{Film, Picture};
use super::score::{Score, comparable};
use super::simulation::WARM_UP;
use crate::plot::{Axis, Plot, Series};
use crate::report::{Item, Picture as Captioned, Section};
use crate::summary::deviation;
use anyhow::Result;
use hawser_units::Instant;

/// The time before and after the moment of the example that the plots show, seconds.
const AROUND_S: f64 = 5.0;

/// A scheme with the pictures of its drives.
struct Scheme<'a> {
    score: &'a Score,
    drives: Vec<&'a [Picture]>,
}

/// A frame that was sent on a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Moment {
    /// The number of the drive.
    drive: usize,
    /// The number of the frame, without those of the warm-up.
    frame: usize,
}

/// Returns the section with the pictures of one moment; `None` if there are no two schemes with
/// pictures of the same drives, or these never differ.
///
/// # Errors
/// If ffmpeg fails.
pub(super) fn section(scores: &[Score], film: &Film) -> Result<Option<Section>> {
    let schemes = schemes(scores);
    let drives: Vec<&[&[Picture]]> = schemes.iter().map(|scheme| &scheme.drives[..]).collect();
    let Some(moment) = moment(&drives) else {
        return Ok(None);
    };
    let outcome = &schemes[0].score.outcomes[moment.drive];
    let mut pictures = vec![Captioned {
        caption: "as the camera sent it".to_owned(),
        png: film.original(&outcome.seen, moment.frame)?,
    }];
    for scheme in &schemes {
        // Before the first picture, there is none to show.
        let Some(similarity) = scheme.drives[moment.drive][moment.frame].on_screen else {
            continue;
        };
        let seen = &scheme.score.outcomes[moment.drive].seen;
        if let Some(png) = film.on_screen(seen, moment.frame)? {
            pictures.push(Captioned {
                caption: format!("{}: SSIM {similarity:.3}", scheme.score.label),
                png,
            });
        }
    }
    let text = format!(
        "The paper's figure 8: what a viewer sees. This is {}, {:.2} s after its beginning. Of all frames of the drives that were \
         run, it is the one at which the screens of the schemes differ most: the standard deviation of their SSIM is the largest. \
         The plots show the {AROUND_S:.0} s before and after it.",
        outcome.drive(),
        since_beginning_s(drives[0][moment.drive][moment.frame].captured)
    );
    let plots = schemes.iter().map(|scheme| scheme.timeline(moment));
    Ok(Some(Section::new(
        "An example",
        text,
        vec![Item::Pictures(pictures), Item::figure("", plots.collect())],
    )))
}

/// Returns the schemes that have pictures of the same drives as the first one that has any.
fn schemes(scores: &[Score]) -> Vec<Scheme<'_>> {
    let with_pictures = scores.iter().filter_map(|score| {
        let drives = score.pictures()?;
        Some(Scheme { score, drives })
    });
    let mut schemes: Vec<Scheme<'_>> = with_pictures.collect();
    if let Some(first) = schemes.first().map(|scheme| scheme.score) {
        schemes.retain(|scheme| comparable(scheme.score, first));
    }
    schemes
}

/// Returns the frame at which the similarities on the screens of the schemes have the largest
/// standard deviation, the first one of several; `None` if they never differ.
fn moment(schemes: &[&[&[Picture]]]) -> Option<Moment> {
    let (mut found, mut largest) = (None, 0.0);
    for (drive, pictures) in schemes.first()?.iter().enumerate() {
        for frame in 0..pictures.len() {
            let on_screens = schemes.iter().map(|drives| {
                let on_screen = drives[drive][frame].on_screen;
                on_screen.unwrap_or(0.0)
            });
            let difference = deviation(&on_screens.collect::<Vec<_>>());
            if difference > largest {
                (found, largest) = (Some(Moment { drive, frame }), difference);
            }
        }
    }
    found
}

impl Scheme<'_> {
    /// Returns the similarity on the screen around a moment.
    fn timeline(&self, moment: Moment) -> Plot {
        let pictures = self.drives[moment.drive];
        let middle_s = since_beginning_s(pictures[moment.frame].captured);
        let (from_s, to_s) = (middle_s - AROUND_S, middle_s + AROUND_S);
        let point = |picture: &Picture| {
            let similarity = picture.on_screen.unwrap_or(f64::NAN);
            (since_beginning_s(picture.captured), similarity)
        };
        let points = pictures.iter().map(point);
        let points = points.filter(|(at_s, _)| (from_s..=to_s).contains(at_s));
        Plot::new(
            &self.score.label,
            Axis::linear("time (s)").showing(from_s..=to_s),
            Axis::linear("SSIM on the screen").showing(0.0..=1.0),
            [Series::line(&self.score.label, points.collect())],
        )
    }
}

/// Returns the time since the beginning of the drive, seconds.
fn since_beginning_s(at: Instant) -> f64 {
    at.saturating_since(Instant::ZERO + WARM_UP).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(on_screen: &[f64]) -> Vec<Picture> {
        let picture = |on_screen: &f64| Picture {
            captured: Instant::ZERO,
            ssim: None,
            on_screen: Some(*on_screen),
        };
        on_screen.iter().map(picture).collect()
    }

    #[test]
    fn the_example_is_where_the_screens_differ_most() {
        let [good, late, dark] =
            [[1.0, 1.0, 1.0], [1.0, 0.5, 0.4], [0.4, 0.4, 0.4]].map(|drive| self::drive(&drive));
        let (first, second) = ([&good[..], &good], [&good[..], &late]);

        let found = moment(&[&first, &second]);
        assert_eq!(found, Some(Moment { drive: 1, frame: 2 }));
        // The first of several.
        let found = moment(&[&first, &[&good, &dark]]);
        assert_eq!(found, Some(Moment { drive: 1, frame: 0 }));
        assert_eq!(moment(&[&first, &first]), None, "they are the same");
        assert_eq!(moment(&[&second]), None, "one scheme differs from none");
        assert_eq!(moment(&[]), None);
    }
}
