//! Line and point plots as SVG, sized so that several fit in a row on a wide screen and one below
//! the other on a phone.
//!
//! Colours are CSS classes (`s0`, `s1`, ...) that the page defines, so that one drawing suits light
//! and dark screens and paper.

mod scale;

use scale::Scale;
pub use scale::{Axis, Kind};
use std::collections::HashSet;
use std::fmt::Write as _;

/// Number of series that the page has colours for.
pub const MAX_SERIES: usize = 6;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 402.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 218.0;

/// One panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// The title above the drawing, which distinguishes this panel from its neighbours.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series. Later ones are drawn over earlier ones.
    pub series: Vec<Series>,
    /// Shaded ranges of the x axis.
    pub bands: Vec<Band>,
}

/// A series of points, in the order in which they are drawn. A value that is not finite interrupts
/// the line.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend. The same name has the same colour in all figures of a report.
    pub name: String,
    /// Pairs of x and y.
    pub points: Vec<(f64, f64)>,
    /// The way in which the points are drawn.
    pub mark: Mark,
}

/// The way in which the points of a series are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line from point to point.
    Line,
    /// Horizontal, then vertical segments: for a distribution, or for a value that holds until the
    /// next.
    Steps,
    /// Dots.
    Dots,
}

impl Mark {
    /// Returns the class of the style sheet.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Mark::Dots => "dots",
            Mark::Line | Mark::Steps => "line",
        }
    }
}

/// A shaded range of the x axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// Lower end of the range.
    pub from: f64,
    /// Upper end of the range.
    pub to: f64,
    /// The text above the range.
    pub label: String,
}

impl Plot {
    /// Creates a panel without bands.
    pub fn new(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Self {
        Plot {
            title: title.into(),
            x,
            y,
            series: series.into_iter().collect(),
            bands: Vec::new(),
        }
    }
}

impl Series {
    /// Creates a series whose points are joined by a line.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Series {
            name: name.into(),
            points,
            mark: Mark::Line,
        }
    }

    /// Creates a series of separate dots.
    pub fn dots(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Series {
            name: name.into(),
            points,
            mark: Mark::Dots,
        }
    }

    /// Creates an empirical distribution function: for each x the share of `values` that are at
    /// most x, from 0 to 1. Values that are not finite count in the total only, so that a frame
    /// which did not arrive keeps the curve below one.
    pub fn distribution(name: impl Into<String>, values: &[f64]) -> Self {
        let mut sorted: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| value.is_finite())
            .collect();
        sorted.sort_by(f64::total_cmp);
        let share = |rank: usize| rank as f64 / values.len() as f64;
        let points = sorted
            .iter()
            .enumerate()
            .map(|(index, value)| (*value, share(index + 1)))
            .collect();
        Series {
            name: name.into(),
            points,
            mark: Mark::Steps,
        }
    }
}

impl Plot {
    /// Returns the drawing. `class_of` maps a series' name to its colour, which is less than
    /// [`MAX_SERIES`].
    pub fn svg(&self, class_of: impl Fn(&str) -> usize) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Scale::new(&self.x, points().map(|point| point.0), (LEFT, RIGHT));
        let y = Scale::new(&self.y, points().map(|point| point.1), (BOTTOM, TOP));
        let mut svg = String::new();
        self.open(&mut svg);
        self.bands(&mut svg, &x);
        grid(&mut svg, &x, &y);
        self.axes(&mut svg);
        for series in &self.series {
            let class = class_of(&series.name);
            let path = match series.mark {
                Mark::Line => line(&series.points, &x, &y, false),
                Mark::Steps => line(&series.points, &x, &y, true),
                Mark::Dots => dots(&series.points, &x, &y),
            };
            let kind = series.mark.class();
            let _ = writeln!(svg, r#"<path class="{kind} s{class}" d="{path}"/>"#);
        }
        svg.push_str("</svg>");
        svg
    }

    fn open(&self, svg: &mut String) {
        let title = escape(&self.title);
        let description = escape(&format!(
            "{}: {} over {}",
            self.title, self.y.label, self.x.label
        ));
        let _ = writeln!(
            svg,
            r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{description}" xmlns="http://www.w3.org/2000/svg">
<text class="panel" x="{LEFT}" y="16">{title}</text>"#
        );
    }

    fn bands(&self, svg: &mut String, x: &Scale) {
        for band in &self.bands {
            let (from, to) = (x.clamped(band.from), x.clamped(band.to));
            let (width, height, middle) = (to - from, BOTTOM - TOP, (from + to) / 2.0);
            let _ = writeln!(
                svg,
                r#"<rect class="band" x="{from:.1}" y="{TOP}" width="{width:.1}" height="{height}"/>
<text class="band" x="{middle:.1}" y="{:.1}">{}</text>"#,
                TOP - 3.0,
                escape(&band.label)
            );
        }
    }

    fn axes(&self, svg: &mut String) {
        let (across, down) = ((LEFT + RIGHT) / 2.0, (TOP + BOTTOM) / 2.0);
        let _ = writeln!(
            svg,
            r#"<path class="axis" d="M{LEFT} {BOTTOM}H{RIGHT}"/>
<text class="label" x="{across}" y="{:.1}">{}</text>
<text class="label" transform="translate(12 {down}) rotate(-90)">{}</text>"#,
            BOTTOM + 34.0,
            escape(&self.x.label),
            escape(&self.y.label)
        );
    }
}

/// Draws a line with a label at each tick of both axes.
fn grid(svg: &mut String, x: &Scale, y: &Scale) {
    for tick in y.ticks() {
        let at = y.at(tick.value);
        let _ = writeln!(
            svg,
            r#"<path class="grid" d="M{LEFT} {at:.1}H{RIGHT}"/><text class="tick y" x="{:.1}" y="{:.1}">{}</text>"#,
            LEFT - 6.0,
            at + 4.0,
            tick.label
        );
    }
    for tick in x.ticks() {
        let at = x.at(tick.value);
        let _ = writeln!(
            svg,
            r#"<path class="grid" d="M{at:.1} {TOP}V{BOTTOM}"/><text class="tick" x="{at:.1}" y="{:.1}">{}</text>"#,
            BOTTOM + 15.0,
            tick.label
        );
    }
}

/// Returns the path of a line. Of the points in one column of pixels only the first, the extremes
/// and the last are drawn: the drawing looks the same and stays small.
fn line(points: &[(f64, f64)], x: &Scale, y: &Scale, steps: bool) -> String {
    let mut path = String::new();
    for stretch in points.split(|point| !x.shows(point.0) || !point.1.is_finite()) {
        let mut last_y: Option<f64> = None;
        for column in stretch.chunk_by(|a, b| x.at(a.0).floor() == x.at(b.0).floor()) {
            for index in outline(column) {
                let (at_x, at_y) = (x.at(column[index].0), y.clamped(column[index].1));
                match last_y {
                    None => drop(write!(path, "M{at_x:.1} {at_y:.1}")),
                    Some(_) if steps => drop(write!(path, "H{at_x:.1}V{at_y:.1}")),
                    Some(_) => drop(write!(path, "L{at_x:.1} {at_y:.1}")),
                }
                last_y = Some(at_y);
            }
        }
    }
    path
}

/// Returns the indices of the first, the lowest, the highest and the last point of a column, in
/// order.
fn outline(column: &[(f64, f64)]) -> Vec<usize> {
    let indices = 0..column.len();
    let by_height = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
    let lowest = indices.clone().min_by(by_height);
    let highest = indices.clone().max_by(by_height);
    let mut selected: Vec<usize> = [indices.clone().next(), lowest, highest, indices.last()]
        .into_iter()
        .flatten()
        .collect();
    selected.sort_unstable();
    selected.dedup();
    selected
}

/// Returns the path of dots. Dots that would cover each other are drawn once.
fn dots(points: &[(f64, f64)], x: &Scale, y: &Scale) -> String {
    let mut path = String::new();
    let mut drawn = HashSet::new();
    for point in points
        .iter()
        .filter(|point| x.shows(point.0) && point.1.is_finite())
    {
        let (at_x, at_y) = (x.at(point.0), y.clamped(point.1));
        if drawn.insert(((at_x * 2.0) as i64, (at_y * 2.0) as i64)) {
            let _ = write!(path, "M{at_x:.1} {at_y:.1}h0");
        }
    }
    path
}

/// Escapes text for HTML and SVG, attributes included.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        Plot {
            title: "a <b>".into(),
            x: Axis::linear("time (s)"),
            y: Axis::linear("delay (ms)"),
            series: vec![Series::line("single", points)],
            bands: vec![Band {
                from: 10.0,
                to: 50.0,
                label: "variation".into(),
            }],
        }
    }

    fn path(svg: &str) -> &str {
        svg.split_once(r#"class="line s2" d=""#)
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0
    }

    #[test]
    fn a_long_series_stays_small_and_keeps_its_extremes() {
        let mut points: Vec<_> = (0..1_000_000).map(|i| (f64::from(i) / 1e4, 1.0)).collect();
        points[500_000].1 = 100.0;
        let svg = plot(points).svg(|_| 2);
        assert!(svg.len() < 50_000, "{} bytes", svg.len());
        assert!(
            path(&svg).contains(&format!(" {TOP:.1}")),
            "the peak is drawn at the top"
        );
    }

    #[test]
    fn a_missing_value_interrupts_the_line() {
        let svg = plot(vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 1.0), (3.0, 2.0)]).svg(|_| 2);
        assert_eq!(path(&svg).matches('M').count(), 2);
    }

    #[test]
    fn an_empty_plot_is_still_a_drawing() {
        let svg = plot(Vec::new()).svg(|_| 2);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn text_is_escaped() {
        assert!(plot(Vec::new()).svg(|_| 2).contains("a &lt;b&gt;"));
    }

    #[test]
    fn a_distribution_counts_what_never_arrived() {
        let series = Series::distribution("single", &[30.0, f64::INFINITY, 10.0, 20.0]);
        assert_eq!(series.points, [(10.0, 0.25), (20.0, 0.5), (30.0, 0.75)]);
    }
}
