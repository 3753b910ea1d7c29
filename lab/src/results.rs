//! Tables of measured figures in the documentation, written from stored runs.
//!
//! `docs/results/EXPERIMENT.json` holds runs of an experiment by name: of each its summary with one line for each
//! case, reduced to the cases and figures that pages show. [`update_folder`] adds runs, reduces them, and writes the
//! tables.
//!
//! A page holds the template of a table in a comment, and between the comment and its end mark the table itself:
//!
//! ```text
//! <!-- results: cellfusion/seed-1
//! cases: xnc,fec
//! | scheme | frames/s | stalls |
//! | `{case}` | {fps_mean:2}[ ({paper.fps_mean:2})] | {stall_ratio:%2} |
//! -->
//! <!-- end of results -->
//! ```
//!
//! The first line names runs as `EXPERIMENT/RUN`, separated by commas. `cases` selects cases as
//! `hawser lab run --case` does; without it, all cases are shown. The last line is repeated for each case of each run.
//! In it, `{NAME:FORMAT}` stands for
//!
//! - `case`, `seed`, `params.NAME`: the case's name, the run's seed, and a parameter of the case;
//! - `NAME`, `paper.NAME`: a metric of the case, and the paper's figure of that name;
//! - `NAME@CASE`: a metric of another case of the same run.
//!
//! The format is a number of decimals, with `%` in front for per cent, or `M` for millions. A figure that could not be measured is shown as `–`. A
//! part in square brackets is omitted if one of its figures is missing. The command, commit and kernel of each
//! run are written below the table.

mod table;

use crate::summary::Summary;
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use table::Template;

/// The folder of stored runs, relative to the pages.
pub const FOLDER: &str = "results";

const OPEN: &str = "<!-- results: ";
const CLOSE: &str = "<!-- end of results -->";

/// The number of significant digits of a stored figure.
const DIGITS: usize = 9;

/// Summaries of runs, by `EXPERIMENT/RUN`.
pub type Runs = BTreeMap<String, Summary>;

/// The figures that tables show: run, case, and figure as in the template.
pub type Shown = BTreeSet<(String, String, String)>;

/// Rewrites the tables of all Markdown pages in the folder and its subfolders, and the stored runs. Adds runs to these
/// or replaces them. Returns the files that have changed; they are left as they are unless `write` is set.
///
/// # Errors
/// If a file cannot be read, a template is not valid, or no page shows a run that is added.
pub fn update_folder(docs: &Path, added: Runs, write: bool) -> Result<Vec<String>> {
    let folder = docs.join(FOLDER);
    let mut runs = read(&folder)?;
    let names: Vec<String> = added.keys().cloned().collect();
    runs.extend(added.into_iter().map(|(name, run)| (name, rounded(run))));
    let (mut files, mut shown) = (Vec::new(), Shown::new());
    for path in pages(docs)? {
        let page = path.display().to_string();
        let before = fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
        let after = update(&before, &runs, &mut shown).with_context(|| page)?;
        files.push((path, after));
    }
    for name in names {
        let is_shown = shown.iter().any(|(run, ..)| *run == name);
        ensure!(is_shown, "no table shows {name}: write its template first");
    }
    for (experiment, text) in stored(&runs, &shown)? {
        files.push((folder.join(experiment + ".json"), text));
    }

    let mut changed = Vec::new();
    for (path, text) in files {
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            continue;
        }
        let name = path.display().to_string();
        if write {
            fs::write(&path, text).with_context(|| format!("cannot write {name}"))?;
        }
        changed.push(name);
    }
    Ok(changed)
}

/// Returns the page with its tables rewritten, and adds what they show.
///
/// # Errors
/// If there is no such run, a template is not valid, or a table has no end mark.
pub fn update(page: &str, runs: &Runs, shown: &mut Shown) -> Result<String> {
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
        let template = Template::parse(&comment)?;
        let mut summaries = Vec::new();
        for name in names.split(',').map(str::trim) {
            let run = runs.get(name);
            let run = run.with_context(|| format!("there is no stored run {name}"))?;
            let figures = template.shown(run).into_iter();
            shown.extend(figures.map(|(case, figure)| (name.into(), case.into(), figure.into())));
            summaries.push(run);
        }
        updated.push_str(&template.render(&summaries)?);
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

/// Reads the stored runs.
fn read(folder: &Path) -> Result<Runs> {
    let mut runs = Runs::new();
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let wrong = || format!("{} does not hold the runs of an experiment", path.display());
        let text = fs::read_to_string(&path).with_context(wrong)?;
        let of_experiment: Runs = serde_json::from_str(&text).with_context(wrong)?;
        let experiment = path.file_stem().unwrap_or_default().to_string_lossy();
        for (name, run) in of_experiment {
            run.check().with_context(wrong)?;
            runs.insert(format!("{experiment}/{name}"), run);
        }
    }
    Ok(runs)
}

/// Returns the text of the file of each experiment: its runs, with the cases and figures that are shown.
fn stored(runs: &Runs, shown: &Shown) -> Result<BTreeMap<String, String>> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, run) in runs {
        let (experiment, of_experiment) = name.split_once('/').context("EXPERIMENT/RUN")?;
        let run = reduced(run, |case, figure| {
            shown.contains(&(name.clone(), case.to_owned(), figure.to_owned()))
        });
        if run.cases.is_empty() {
            continue;
        }
        let lines = run.cases.iter().map(serde_json::to_string);
        let lines = lines.collect::<Result<Vec<_>, _>>()?.join(",\n");
        let rest = serde_json::to_string(&Summary {
            cases: Vec::new(),
            ..run
        })?;
        let rest = rest.strip_suffix("]}").expect("the cases are last");
        let runs = texts.entry(experiment.to_owned()).or_default();
        runs.push(format!("\"{of_experiment}\": {rest}\n{lines}\n]}}"));
    }
    let text = |runs: Vec<String>| format!("{{\n{}\n}}\n", runs.join(",\n"));
    let texts = texts.into_iter();
    Ok(texts.map(|(name, runs)| (name, text(runs))).collect())
}

/// Returns a run with the cases and figures that are shown.
fn reduced(run: &Summary, is_shown: impl Fn(&str, &str) -> bool) -> Summary {
    let mut run = run.clone();
    run.cases.retain_mut(|case| {
        let is_shown = |figure: &str| is_shown(&case.name, figure);
        case.params
            .retain(|name, _| is_shown(&format!("params.{name}")));
        case.metrics.retain(is_shown);
        case.paper.retain(|name| is_shown(&format!("paper.{name}")));
        is_shown("case") || case.metrics.names().next().is_some()
    });
    run
}

/// Returns a run with figures of [`DIGITS`] digits, which do not change when they are written and read again.
fn rounded(mut run: Summary) -> Summary {
    let rounded = |figure: f64| {
        let text = format!("{figure:.*e}", DIGITS - 1);
        text.parse().expect("a number")
    };
    for case in &mut run.cases {
        case.metrics.apply(rounded);
        case.paper.apply(rounded);
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Case, Provenance};

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

    fn runs() -> Runs {
        let run = |seed: u64| (format!("live/{seed}"), summary(seed));
        [1, 2].map(run).into()
    }

    fn updated(template: &str) -> Result<String> {
        let page = format!("# Results\n{OPEN}live/1, live/2\n{template}\n-->\nold\n{CLOSE}\nend\n");
        let updated = update(&page, &runs(), &mut Shown::new())?;
        assert_eq!(update(&updated, &runs(), &mut Shown::new())?, updated);
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
        let page = format!("{OPEN}live/1\n| a |\n| {{case}} |\n-->\n");
        assert!(update(&page, &runs(), &mut Shown::new()).is_err());
    }

    #[test]
    fn only_figures_that_are_shown_are_stored() {
        let folder = tempfile::tempdir().unwrap();
        let stored = folder.path().join(FOLDER);
        fs::create_dir(&stored).unwrap();
        let page = format!(
            "{OPEN}live/1\ncases: xnc\n| a |\n| {{fps_mean:2}} {{stall_ratio@fec:1}} |\n-->\n{CLOSE}\n"
        );
        fs::write(folder.path().join("page.md"), page).unwrap();
        let mut added = runs();
        let unshown = update_folder(folder.path(), added.clone(), true).unwrap_err();
        assert!(unshown.to_string().contains("no table shows live/2"));

        added.remove("live/2");
        let xnc = &mut added.get_mut("live/1").unwrap().cases[0];
        xnc.metrics.set("fps_mean", 29.634_567_891_2);
        let changed = update_folder(folder.path(), added, true).unwrap();
        assert_eq!(changed.len(), 2, "{changed:?}");
        let text = fs::read_to_string(stored.join("live.json")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].starts_with(r#""1": {"experiment":"live""#),
            "{text}"
        );
        assert_eq!(
            lines[2..],
            [
                r#"{"name":"xnc","params":{},"metrics":{"fps_mean":29.6345679},"paper":{}},"#,
                r#"{"name":"fec","params":{},"metrics":{"stall_ratio":null},"paper":{}}"#,
                "]}",
                "}"
            ]
        );
        let again = update_folder(folder.path(), Runs::new(), true).unwrap();
        assert!(again.is_empty(), "{again:?}");
    }
}
