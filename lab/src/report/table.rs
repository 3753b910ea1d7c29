use crate::plot::escape;
use crate::summary::Case;
use std::fmt::Write as _;

/// A table. The first column names the rows, the others contain figures.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The heading of each column.
    pub header: Vec<String>,
    /// The rows, with one cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// The text below the table.
    pub caption: String,
}

/// A cell of a table.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cell {
    /// The figure, or the name of the row.
    pub value: String,
    /// The paper's figure, if it has one.
    pub paper: Option<String>,
}

impl Cell {
    /// Creates a cell without a figure of the paper.
    pub fn new(value: impl Into<String>) -> Self {
        Cell {
            value: value.into(),
            paper: None,
        }
    }
}

impl Table {
    /// Creates a table of every metric of every case, with the paper's figures.
    pub fn of_cases<'a>(
        cases: impl IntoIterator<Item = &'a Case>,
        caption: impl Into<String>,
    ) -> Self {
        let cases: Vec<&Case> = cases.into_iter().collect();
        let names = metric_names(&cases);
        let header = std::iter::once("case".into())
            .chain(names.iter().map(|name| heading(name)))
            .collect();
        let row = |case: &Case| {
            let figures = names.iter().map(|name| Cell {
                value: case.metrics.get(name).map_or_else(|| "–".into(), number),
                paper: case.paper.get(name).map(number),
            });
            std::iter::once(Cell::new(&case.name))
                .chain(figures)
                .collect()
        };
        Table {
            header,
            rows: cases.into_iter().map(row).collect(),
            caption: caption.into(),
        }
    }

    /// Formats the table for a terminal, with the paper's figures in brackets.
    pub fn text(&self) -> String {
        let cell = |cell: &Cell| match &cell.paper {
            Some(paper) => format!("{} ({paper})", cell.value),
            None => cell.value.clone(),
        };
        let mut lines = vec![self.header.clone()];
        lines.extend(self.rows.iter().map(|row| row.iter().map(cell).collect()));
        let columns = 0..self.header.len();
        let widths: Vec<usize> = columns.map(|column| width(&lines, column)).collect();
        let mut text = String::new();
        for line in &lines {
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                let _ = match column {
                    0 => write!(text, "{cell:width$}"),
                    _ => write!(text, "  {cell:>width$}"),
                };
            }
            text.push('\n');
        }
        text
    }

    /// Appends the table to an HTML page.
    pub(super) fn html(&self, page: &mut String) {
        page.push_str("<figure class=\"wide\">\n<div class=\"scroll\"><table>\n<thead><tr>");
        for name in &self.header {
            let _ = write!(page, "<th scope=\"col\">{}</th>", escape(name));
        }
        page.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            page.push_str("<tr>");
            for (index, cell) in row.iter().enumerate() {
                let value = escape(&cell.value);
                let paper = cell.paper.as_deref().map_or_else(String::new, |paper| {
                    format!("<span class=\"paper\">paper {}</span>", escape(paper))
                });
                let _ = if index == 0 {
                    write!(page, "<th scope=\"row\">{value}</th>")
                } else {
                    write!(page, "<td>{value}{paper}</td>")
                };
            }
            page.push_str("</tr>\n");
        }
        let _ = writeln!(
            page,
            "</tbody>\n</table></div>\n<figcaption>{}</figcaption>\n</figure>",
            escape(&self.caption)
        );
    }
}

/// Returns the names of all metrics, in the order of their first appearance.
fn metric_names<'a>(cases: &[&'a Case]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for name in cases
        .iter()
        .flat_map(|case| case.metrics.names().chain(case.paper.names()))
    {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the number of characters of the widest cell in a column.
fn width(lines: &[Vec<String>], column: usize) -> usize {
    let cells = lines.iter().filter_map(|line| line.get(column));
    cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
}

/// Converts a metric's name to a column heading: `frame_delay_p95_ms` to `frame delay p95 (ms)`.
fn heading(metric: &str) -> String {
    let (words, unit) = match metric.rsplit_once('_') {
        Some((words, "mbps")) => (words, " (Mb/s)"),
        Some((words, "ms")) => (words, " (ms)"),
        Some((words, "us")) => (words, " (µs)"),
        Some((words, "ns")) => (words, " (ns)"),
        _ => (metric, ""),
    };
    words.replace('_', " ") + unit
}

/// Formats a figure with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_shows_the_paper_in_brackets() {
        let mut ours = Case::new("replicate/fhd");
        ours.metrics = [("fps_mean", 29.94), ("frame_delay_p95_ms", 812.3)].into();
        ours.paper.set("fps_mean", 30.0);
        let mut lost = Case::new("single/fhd");
        lost.metrics.set("frame_delay_p95_ms", f64::NAN);
        assert_eq!(
            Table::of_cases([&ours, &lost], "").text(),
            "case              fps mean  frame delay p95 (ms)\n\
             replicate/fhd  29.9 (30.0)                   812\n\
             single/fhd               –                     –\n"
        );
    }
}
