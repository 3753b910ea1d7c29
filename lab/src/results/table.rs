//! The template of a table, and the table that it makes of summaries.

use crate::experiment::matches;
use crate::summary::{Case, Summary};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;

/// The template of one table.
pub(super) struct Template<'a> {
    /// Pattern of the cases to show.
    cases: &'a str,
    header: &'a str,
    row: &'a str,
}

impl<'a> Template<'a> {
    pub(super) fn parse(comment: &[&'a str]) -> Result<Self> {
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

    pub(super) fn render(&self, summaries: &[&Summary]) -> Result<String> {
        let columns = self.header.matches('|').count().saturating_sub(1);
        let mut table = format!("{}\n|{}\n", self.header, "---|".repeat(columns));
        for summary in summaries {
            for case in self.chosen(summary) {
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

    fn chosen<'s>(&self, summary: &'s Summary) -> impl Iterator<Item = &'s Case> {
        let cases = summary.cases.iter();
        cases.filter(|case| matches(self.cases, &case.name))
    }

    /// Returns the figures of a summary that the table shows: the name of the case, and that of the
    /// figure as in the template.
    pub(super) fn shown<'s>(&'s self, summary: &'s Summary) -> Vec<(&'s str, &'s str)> {
        let placeholders = self.row.split('{').skip(1);
        let placeholders = placeholders.filter_map(|rest| rest.split(['}', ':']).next());
        let names: Vec<&str> = placeholders.collect();
        let of_case = |case: &'s Case| {
            let figures = names.iter().map(|name| match name.split_once('@') {
                Some((figure, other)) => (other, figure),
                None => (&case.name[..], *name),
            });
            figures.collect::<Vec<_>>()
        };
        self.chosen(summary).flat_map(of_case).collect()
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

    #[test]
    fn a_run_that_is_not_valid_is_named() {
        let mut run = Summary::new("live", Provenance::gather(1));
        run.invalidate("the emulator was late");
        assert!(origin(&run).ends_with("**Not valid:** the emulator was late.\n"));
    }
}
