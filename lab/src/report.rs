//! `report.html`: one self-contained page that presents a run.

mod table;

use crate::plot::{MAX_SERIES, Mark, Plot, escape};
use crate::summary::Summary;
use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hawser_cloud::Image;
use hawser_recording::encode_png;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
pub use table::{Cell, Table};

/// The name of the file in an experiment's output folder.
pub const FILE_NAME: &str = "report.html";

/// The report of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Report<'a> {
    /// The heading of the page.
    pub title: &'a str,
    /// A description of the experiment in a few sentences.
    pub intro: &'a str,
    /// The most important figures.
    pub highlights: Vec<Highlight>,
    /// The sections, in reading order.
    pub sections: Vec<Section>,
    /// The summary, which supplies validity and provenance.
    pub summary: &'a Summary,
}

/// A figure in large type.
#[derive(Debug, Clone, PartialEq)]
pub struct Highlight {
    /// The figure with its unit.
    pub value: String,
    /// The name of the figure.
    pub label: String,
    /// The value to compare it with.
    pub comparison: String,
}

/// A heading with a paragraph, tables and figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The paragraph below the heading; may be empty.
    pub text: String,
    /// Tables and figures.
    pub items: Vec<Item>,
}

/// A table or a figure.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// Rows and columns.
    Table(Table),
    /// Plots side by side.
    Figure(Figure),
    /// Pictures side by side.
    Pictures(Vec<Picture>),
}

/// A picture with its caption.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// The text below the picture.
    pub caption: String,
    /// The bytes of a PNG file.
    pub png: Vec<u8>,
}

/// Panels that share a legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// The text below the panels.
    pub caption: String,
    /// The plots, each with its own title.
    pub panels: Vec<Plot>,
}

impl Highlight {
    /// Creates a highlight.
    pub fn new(
        value: impl Into<String>,
        label: impl Into<String>,
        comparison: impl Into<String>,
    ) -> Self {
        Highlight {
            value: value.into(),
            label: label.into(),
            comparison: comparison.into(),
        }
    }
}

impl Section {
    /// Creates a section with a table of all cases.
    pub fn all_figures(text: impl Into<String>, summary: &Summary) -> Self {
        let table = Table::of_cases(&summary.cases, "");
        Section::new("All figures", text, vec![Item::Table(table)])
    }

    /// Creates a section.
    pub fn new(title: impl Into<String>, text: impl Into<String>, items: Vec<Item>) -> Self {
        Section {
            title: title.into(),
            text: text.into(),
            items,
        }
    }
}

impl Item {
    /// Creates a figure.
    pub fn figure(caption: impl Into<String>, panels: Vec<Plot>) -> Self {
        Item::Figure(Figure {
            caption: caption.into(),
            panels,
        })
    }

    /// Creates a picture over the whole width.
    pub fn picture(caption: impl Into<String>, image: &Image) -> Self {
        Item::Pictures(vec![Picture {
            caption: caption.into(),
            png: encode_png(image),
        }])
    }
}

impl Report<'_> {
    /// Writes [`FILE_NAME`] into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE_NAME);
        fs::write(&path, self.html()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the page as HTML.
    pub fn html(&self) -> String {
        let mut page = String::new();
        self.head(&mut page);
        self.validity(&mut page);
        self.highlights(&mut page);
        let palette = self.palette();
        for section in &self.sections {
            section.write(&mut page, &palette);
        }
        self.provenance(&mut page);
        page.push_str("</main>\n</body>\n</html>\n");
        page
    }

    fn head(&self, page: &mut String) {
        let title = escape(self.title);
        let _ = write!(
            page,
            r#"<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{}</style>
</head>
<body>
<main>
<header>
<p class="kind">Hawser lab · {}</p>
<h1>{title}</h1>
<p class="intro">{}</p>
</header>
"#,
            include_str!("report/report.css"),
            escape(&self.summary.experiment),
            escape(self.intro)
        );
    }

    /// Returns each series' name once. The position in the list is the series' colour.
    fn palette(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for item in self.sections.iter().flat_map(|section| &section.items) {
            let Item::Figure(figure) = item else { continue };
            for (name, _) in figure.legend() {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        names
    }

    fn validity(&self, page: &mut String) {
        if self.summary.valid {
            page.push_str(
                "<p class=\"verdict valid\">Valid: the emulator and the machine kept up.</p>\n",
            );
            return;
        }
        page.push_str(
            "<div class=\"verdict invalid\"><strong>Not valid: do not use these figures.</strong><ul>\n",
        );
        for reason in &self.summary.invalid_because {
            let _ = writeln!(page, "<li>{}</li>", escape(reason));
        }
        page.push_str("</ul></div>\n");
    }

    fn highlights(&self, page: &mut String) {
        if self.highlights.is_empty() {
            return;
        }
        page.push_str("<dl class=\"highlights\">\n");
        for Highlight {
            value,
            label,
            comparison,
        } in &self.highlights
        {
            let _ = writeln!(
                page,
                "<div><dt>{}</dt><dd class=\"value\">{}</dd><dd>{}</dd></div>",
                escape(label),
                escape(value),
                escape(comparison)
            );
        }
        page.push_str("</dl>\n");
    }

    fn provenance(&self, page: &mut String) {
        let provenance = &self.summary.provenance;
        page.push_str("<footer>\n<h2>Provenance</h2>\n<dl>\n");
        for (name, value) in [
            ("command", &provenance.command),
            ("seed", &provenance.seed.to_string()),
            ("kernel", &provenance.kernel),
            ("commit", &provenance.commit),
        ] {
            let _ = writeln!(
                page,
                "<dt>{name}</dt><dd><code>{}</code></dd>",
                escape(value)
            );
        }
        page.push_str(
            "</dl>\n<p>All figures are in <code>summary.json</code> in the same folder.</p>\n</footer>\n",
        );
    }
}

impl Section {
    fn write(&self, page: &mut String, palette: &[&str]) {
        let _ = writeln!(page, "<section>\n<h2>{}</h2>", escape(&self.title));
        if !self.text.is_empty() {
            let _ = writeln!(page, "<p>{}</p>", escape(&self.text));
        }
        for item in &self.items {
            match item {
                Item::Table(table) => table.html(page),
                Item::Figure(figure) => figure.write(page, palette),
                Item::Pictures(pictures) => write_pictures(pictures, page),
            }
        }
        page.push_str("</section>\n");
    }
}

fn write_pictures(pictures: &[Picture], page: &mut String) {
    let class = if pictures.len() == 1 {
        ""
    } else {
        " class=\"panels\""
    };
    let _ = writeln!(page, "<div class=\"wide\"><div{class}>");
    for Picture { caption, png } in pictures {
        let caption = escape(caption);
        let _ = writeln!(
            page,
            "<figure><img alt=\"{caption}\" src=\"data:image/png;base64,{}\">\n\
             <figcaption>{caption}</figcaption></figure>",
            BASE64_STANDARD.encode(png)
        );
    }
    page.push_str("</div></div>\n");
}

impl Figure {
    /// Returns the name and the mark of each series that any panel draws.
    fn legend(&self) -> Vec<(&str, Mark)> {
        let mut names: Vec<(&str, Mark)> = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !names.iter().any(|(name, _)| *name == series.name) {
                names.push((&series.name, series.mark));
            }
        }
        names
    }

    fn write(&self, page: &mut String, palette: &[&str]) {
        let class_of =
            |name: &str| palette.iter().position(|known| *known == name).unwrap_or(0) % MAX_SERIES;
        let class = if self.panels.len() == 1 {
            ""
        } else {
            " class=\"wide\""
        };
        let _ = write!(page, "<figure{class}>\n<ul class=\"legend\">");
        for (name, mark) in self.legend() {
            let (kind, class, name) = (mark.class(), class_of(name), escape(name));
            let _ = write!(page, "<li><i class=\"{kind} s{class}\"></i>{name}</li>");
        }
        page.push_str("</ul>\n<div class=\"panels\">\n");
        for panel in &self.panels {
            let _ = writeln!(page, "{}", panel.svg(class_of));
        }
        let _ = writeln!(
            page,
            "</div>\n<figcaption>{}</figcaption>\n</figure>",
            escape(&self.caption)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::{Axis, Series};
    use crate::summary::{Case, Provenance};
    use hawser_cloud::{Cloud, Intrinsics, Pose, Renderer};

    fn summary() -> Summary {
        let provenance = Provenance {
            seed: 7,
            kernel: "6.18".into(),
            commit: "abc".into(),
            command: "hawser <lab>".into(),
        };
        let mut summary = Summary::new("table1", provenance);
        let mut case = Case::new("replicate/fhd");
        case.metrics = [("fps_mean", 29.94), ("frame_delay_p95_ms", 81.0)].into();
        case.paper.set("fps_mean", 30.0);
        summary.cases.push(case);
        summary
    }

    fn html(summary: &Summary) -> String {
        let series = vec![
            Series::line("single", vec![(0.0, 1.0)]),
            Series::line("replicate", vec![]),
        ];
        let panel = Plot {
            title: "fhd".into(),
            x: Axis::linear("time (s)"),
            y: Axis::linear("frames (1/s)"),
            series,
            bands: vec![],
        };
        let figure = Figure {
            caption: "Frame rate".into(),
            panels: vec![panel],
        };
        let table = Table::of_cases(&summary.cases, "All figures");
        let mut renderer = Renderer::new(Intrinsics::centred(2, 2, 1.0)).unwrap();
        let image = renderer.render(&Cloud::new(), &Pose::looking([0.0; 3], 0.0, 0.0));
        let picture = Item::picture("Nothing", &image);
        let section = Section {
            title: "Figures".into(),
            text: String::new(),
            items: vec![Item::Table(table), Item::Figure(figure), picture],
        };
        Report {
            title: "Table I",
            intro: "Five paths.",
            highlights: vec![],
            sections: vec![section],
            summary,
        }
        .html()
    }

    #[test]
    fn the_paper_stands_beside_our_figure() {
        let page = html(&summary());
        assert!(
            page.contains("<td>29.9<span class=\"paper\">paper 30.0</span></td>"),
            "{page}"
        );
        assert!(page.contains("frame delay p95 (ms)"));
    }

    #[test]
    fn the_page_needs_nothing_from_outside() {
        let page = html(&summary())
            .replace("http://www.w3.org/2000/svg", "")
            .replace("src=\"data:image/png;base64,", "");
        for outside in [
            "http:", "https:", "src=", "<script", "<link", "@import", "url(",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn an_invalid_run_says_so_and_why() {
        let mut summary = summary();
        assert!(!html(&summary).contains("Not valid"));
        summary.invalidate("the emulator fell behind by 12 ms");
        let page = html(&summary);
        assert!(page.contains("Not valid") && page.contains("fell behind by 12 ms"));
    }

    #[test]
    fn provenance_is_escaped_and_there() {
        assert!(html(&summary()).contains("<code>hawser &lt;lab&gt;</code>"));
    }
}
