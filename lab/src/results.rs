//! Tables of measured figures in the documentation, written from stored summaries.
//!
//! A page holds the template of a table in a comment, and between the comment and its end mark the table itself,
//! which [`update`] writes:
//!
//! ```text
//! <!-- results: cellfusion/seed-1.json
//! cases: xnc,fec
//! | scheme | frames/s | stalls |
//! | `{case}` | {fps_mean:2}[ ({paper.fps_mean:2})] | {stall_ratio:%2} |
//! -->
//! <!-- end of results -->
//! ```
//!
//! The first line names the summaries, separated by commas, below the folder of the stored results. `cases` selects
//! cases as `hawser lab run --case` does; without it, all cases are shown. The last line is repeated for each case
//! of each summary. In it, `{NAME:FORMAT}` stands for
//!
//! - `case`, `seed`, `params.NAME`: the case's name, the run's seed, and a parameter of the case;
//! - `NAME`, `paper.NAME`: a metric of the case, and the paper's figure of that name;
//! - `NAME@CASE`: a metric of another case of the same summary.
//!
//! The format is a number of decimals, with `%` in front for per cent, or `M` for millions. A figure that could not be measured is shown as `–`. A
//! part in square brackets is omitted if one of its figures is missing. The command, commit and kernel of each
//! summary are written below the table.

use crate::experiment::matches;
use crate::summary::{Case, Summary};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of stored results, relative to the pages.
pub const FOLDER: &str = "results";

const OPEN: &str = "<!-- results: ";
const CLOSE: &str = "<!-- end of results -->";

/// Rewrites the tables of all Markdown pages in the folder and its subfolders. Returns the pages that have changed.
///
/// # Errors
/// If a page or summary cannot be read, or a template is not valid.
pub fn update_folder(docs: &Path, write: bool) -> Result<Vec<String>> {
    let results = docs.join(FOLDER);
    let mut changed = Vec::new();
    for path in pages(docs)? {
        let page = path.display().to_string();
        let before = fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
        let after =
            update(&before, |name| read(&results.join(name))).with_context(|| page.clone())?;
        if after == before {
            continue;
        }
        if write {
            fs::write(&path, after).with_context(|| format!("cannot write {page}"))?;
        }
        changed.push(page);
    }
    Ok(changed)
}

/// Returns the page with its tables rewritten.
///
/// # Errors
/// If a summary cannot be read, a template is not valid, or a table has no end mark.
pub fn update(page: &str, read: impl Fn(&str) -> Result<Summary>) -> Result<String> {
    let mut updated = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        updated.push_str(line);
        updated.push('\n');
        let Some(names) = line.strip_prefix(OPEN) else {
            continue;
        };
        let comment: Vec<&str> = lines.by_ref().take_while(|line| *line != "-->").collect();
        for line in comment.iter().chain(&["-->"]) {
            updated.push_str(line);
            updated.push('\n');
        }
        let summaries = names.split(',').map(|name| read(name.trim()));
        let summaries = summaries.collect::<Result<Vec<_>>>()?;
        updated.push_str(&Template::parse(&comment)?.render(&summaries)?);
        let has_end = lines.by_ref().any(|line| line == CLOSE);
        ensure!(has_end, "the table of {names} has no line {CLOSE}");
        updated.push_str(CLOSE);
        updated.push('\n');
    }
    Ok(updated)
}

/// Returns the Markdown pages of a folder and its subfolders, sorted.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            pages.extend(self::pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    Ok(pages)
}

fn read(path: &Path) -> Result<Summary> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Summary::parse(&text).with_context(|| format!("{} is not a summary", path.display()))
}

/// The template of one table.
struct Template<'a> {
    /// Pattern of the cases to show.
    cases: &'a str,
    header: &'a str,
    row: &'a str,
}

impl<'a> Template<'a> {
    fn parse(comment: &[&'a str]) -> Result<Self> {
        let (cases, rows) = match comment {
            [first, rest @ ..] => match first.strip_prefix("cases: ") {
                Some(pattern) => (pattern, rest),
                None => ("*", comment),
            },
            [] => ("*", comment),
        };
        let [header, row] = rows else {
            bail!("the template needs a line with the headings and one with the figures");
        };
        Ok(Template { cases, header, row })
    }

    fn render(&self, summaries: &[Summary]) -> Result<String> {
        let columns = self.header.matches('|').count().saturating_sub(1);
        let mut table = format!("{}\n|{}\n", self.header, "---|".repeat(columns));
        for summary in summaries {
            let cases = summary.cases.iter();
            let chosen = cases.filter(|case| matches(self.cases, &case.name));
            for case in chosen {
                table.push_str(&row(self.row, &Source { summary, case })?);
                table.push('\n');
            }
        }
        table.push('\n');
        for summary in summaries {
            table.push_str(&origin(summary));
        }
        Ok(table)
    }
}

/// Returns a line on how the figures were measured.
fn origin(summary: &Summary) -> String {
    let provenance = &summary.provenance;
    let commit: String = provenance.commit.chars().take(7).collect();
    let mut line = format!(
        "`{}`, seed {}, Linux {}, commit {commit}.",
        provenance.command, provenance.seed, provenance.kernel
    );
    if !summary.valid {
        let _ = write!(
            line,
            " **Not valid:** {}.",
            summary.invalid_because.join("; ")
        );
    }
    line + "\n"
}

/// The origin of the figures in a row.
struct Source<'a> {
    summary: &'a Summary,
    case: &'a Case,
}

/// Renders a row. The parts in square brackets are omitted if they lack a figure.
fn row(template: &str, source: &Source) -> Result<String> {
    let mut row = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('[') {
        let (optional, after) = after.split_once(']').context("`[` without `]`")?;
        row.push_str(&figures(before, source)?.text);
        let optional = figures(optional, source)?;
        if optional.is_complete {
            row.push_str(&optional.text);
        }
        rest = after;
    }
    row.push_str(&figures(rest, source)?.text);
    Ok(row)
}

struct Figures {
    text: String,
    /// Whether all figures were measured.
    is_complete: bool,
}

fn figures(template: &str, source: &Source) -> Result<Figures> {
    let mut figures = Figures {
        text: String::new(),
        is_complete: true,
    };
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (placeholder, after) = after.split_once('}').context("`{` without `}`")?;
        figures.text.push_str(before);
        let value = source.value(placeholder)?;
        figures.is_complete &= value.is_some();
        figures.text.push_str(value.as_deref().unwrap_or("–"));
        rest = after;
    }
    figures.text.push_str(rest);
    Ok(figures)
}

impl Source<'_> {
    /// Returns the text for a placeholder, or `None` for a figure that was not measured.
    fn value(&self, placeholder: &str) -> Result<Option<String>> {
        let (name, format) = match placeholder.split_once(':') {
            Some((name, format)) => (name, Some(format)),
            None => (placeholder, None),
        };
        match (name, name.strip_prefix("params.")) {
            ("case", _) => return Ok(Some(self.case.name.clone())),
            ("seed", _) => return Ok(Some(self.summary.provenance.seed.to_string())),
            (_, Some(parameter)) => return Ok(self.parameter(parameter)),
            _ => {}
        }
        let format = format.with_context(|| format!("{{{placeholder}}} has no format"))?;
        let figure = self.figure(name)?;
        figure.map(|figure| formatted(figure, format)).transpose()
    }

    fn parameter(&self, name: &str) -> Option<String> {
        let value = self.case.params.get(name)?;
        Some(
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
        )
    }

    fn figure(&self, name: &str) -> Result<Option<f64>> {
        let (name, case) = match name.split_once('@') {
            Some((name, other)) => {
                let other = self.summary.case(other);
                (
                    name,
                    other.with_context(|| format!("{name}: there is no such case"))?,
                )
            }
            None => (name, self.case),
        };
        Ok(match name.strip_prefix("paper.") {
            Some(name) => case.paper.get(name),
            None => {
                let is_known = self.summary.cases.iter();
                let mut is_known = is_known.flat_map(|case| case.metrics.names());
                ensure!(
                    is_known.any(|known| known == name),
                    "no case has the metric {name}"
                );
                case.metrics.get(name)
            }
        })
    }
}

/// Formats a figure with a number of decimals, with `%` in front for per cent or `M` for millions.
fn formatted(figure: f64, format: &str) -> Result<String> {
    let (figure, digits, unit) = match format.split_at_checked(1) {
        Some(("%", digits)) => (figure * 100.0, digits, " %"),
        Some(("M", digits)) => (figure / 1e6, digits, ""),
        _ => (figure, format, ""),
    };
    let digits: usize = digits
        .parse()
        .with_context(|| format!("the format {format:?} is not a number of decimals"))?;
    Ok(format!("{figure:.digits$}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::Provenance;

    #[test]
    fn figures_are_formatted_in_their_units() {
        for (figure, format, text) in [
            (0.125, "%1", "12.5 %"),
            (2_345_678.0, "M1", "2.3"),
            (2.0, "0", "2"),
        ] {
            assert_eq!(formatted(figure, format).unwrap(), text);
        }
        assert!(formatted(1.0, "M").is_err());
    }

    fn summary(seed: u64) -> Summary {
        let provenance = Provenance {
            seed,
            kernel: "6.18".into(),
            commit: "0123456789abcdef".into(),
            command: format!("hawser lab run live --seed {seed}"),
        };
        let mut summary = Summary::new("live", provenance);
        let mut xnc = Case::new("xnc");
        xnc.params.insert("seconds".into(), 60.into());
        xnc.metrics = [("fps_mean", 29.634), ("stall_ratio", 0.0046)].into();
        xnc.paper.set("fps_mean", 29.11);
        let mut fec = Case::new("fec");
        fec.metrics = [("fps_mean", 29.2), ("stall_ratio", f64::NAN)].into();
        summary.cases = vec![xnc, fec];
        summary
    }

    fn updated(template: &str) -> Result<String> {
        let page = format!("# Results\n{OPEN}1.json, 2.json\n{template}\n-->\nold\n{CLOSE}\nend\n");
        let updated = update(&page, |name| Ok(summary(name[..1].parse()?)))?;
        // A second run changes nothing.
        assert_eq!(
            update(&updated, |name| Ok(summary(name[..1].parse()?)))?,
            updated
        );
        let (_, table) = updated.split_once("-->\n").unwrap();
        Ok(table.to_owned())
    }

    #[test]
    fn the_row_is_repeated_for_each_case_of_each_summary() {
        let template = "| scheme | seed | frames/s | stalls |\n\
             | `{case}` | {seed} | {fps_mean:2}[ ({paper.fps_mean:1})] | {stall_ratio:%2} |";
        assert_eq!(
            updated(template).unwrap(),
            "| scheme | seed | frames/s | stalls |\n|---|---|---|---|\n\
             | `xnc` | 1 | 29.63 (29.1) | 0.46 % |\n| `fec` | 1 | 29.20 | – |\n\
             | `xnc` | 2 | 29.63 (29.1) | 0.46 % |\n| `fec` | 2 | 29.20 | – |\n\n\
             `hawser lab run live --seed 1`, seed 1, Linux 6.18, commit 0123456.\n\
             `hawser lab run live --seed 2`, seed 2, Linux 6.18, commit 0123456.\n\
             <!-- end of results -->\nend\n"
        );
    }

    #[test]
    fn a_row_compares_cases_of_its_summary() {
        let template =
            "cases: xnc\n| s | xnc | fec |\n| {params.seconds} | {fps_mean:0} | {fps_mean@fec:1} |";
        let table = updated(template).unwrap();
        assert!(
            table.contains("| 60 | 30 | 29.2 |\n| 60 | 30 | 29.2 |\n\n"),
            "{table}"
        );
    }

    #[test]
    fn a_template_with_a_mistake_is_an_error() {
        for (template, error) in [
            ("| a |", "the template needs"),
            ("| a |\n| {fps_mean} |", "has no format"),
            ("| a |\n| {fps:1} |", "no case has the metric fps"),
            ("| a |\n| {fps_mean@ecf:1} |", "there is no such case"),
            ("| a |\n| {fps_mean:x} |", "not a number of decimals"),
            ("| a |\n| {fps_mean:1 |", "`{` without `}`"),
            ("| a |\n| [{fps_mean:1} |", "`[` without `]`"),
        ] {
            let refused = format!("{:#}", updated(template).unwrap_err());
            assert!(refused.contains(error), "{refused}");
        }
    }

    #[test]
    fn a_table_without_an_end_mark_is_an_error() {
        let page = format!("{OPEN}1.json\n| a |\n| {{case}} |\n-->\n");
        assert!(update(&page, |_| Ok(summary(1))).is_err());
    }

    #[test]
    fn a_run_that_is_not_valid_is_named() {
        let mut run = summary(1);
        run.invalidate("the emulator was late");
        assert!(origin(&run).ends_with("**Not valid:** the emulator was late.\n"));
    }
}
