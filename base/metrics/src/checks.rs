//! The metrics of a page, to be compared with those of its documentation.

use std::collections::BTreeSet;

/// Name, type and labels of metrics.
pub type Described = BTreeSet<(String, String, String)>;

/// Returns the metrics of a page.
///
/// # Panics
/// If one has no sample.
pub fn served(page: &str) -> Described {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let described = types.map(|line| {
        let (name, kind) = line.split_once(' ').expect("a name and a type");
        let suffix = if kind == "counter" { "_total" } else { "" };
        let name = format!("{name}{suffix}");
        let sample = page
            .lines()
            .find(|line| line.split(['{', ' ']).next() == Some(&name))
            .unwrap_or_else(|| panic!("{name} has no sample: {page}"));
        let labels = sample.split(['{', ',']).skip(1);
        let labels = labels.filter_map(|label| Some(label.split_once('=')?.0));
        let labels: Vec<_> = labels.collect();
        (name, kind.to_owned(), labels.join(" "))
    });
    described.collect()
}

/// Returns the metrics of the tables of a page of documentation whose names begin with `prefix`.
pub fn documented(documentation: &str, prefix: &str) -> Described {
    let first_cell = format!("| `{prefix}_");
    let rows = documentation
        .lines()
        .filter(|line| line.starts_with(&first_cell));
    let rows = rows.map(|line| {
        let cells: Vec<_> = line
            .split('|')
            .map(|cell| cell.replace(['`', ','], ""))
            .collect();
        let cell = |number: usize| cells[number].trim().to_owned();
        (cell(1), cell(2), cell(3))
    });
    rows.collect()
}
