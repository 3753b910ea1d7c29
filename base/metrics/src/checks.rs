//! The metrics of a program in the reference, `docs/reference/metrics.md`.

use std::path::Path;
use std::{env, fs};

/// Checks that the program's section of the reference is that of a page which has a sample of each metric. With
/// `UPDATE_REFERENCE` in the environment, writes the section instead.
///
/// # Panics
/// If it is another one, or a metric has no sample.
pub fn check_reference(prefix: &str, page: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let reference = fs::read_to_string(&file).expect("the reference");
    let begin = format!("## `{prefix}`\n\n| metric | type | labels | |\n|---|---|---|---|\n");
    let (before, rest) = reference
        .split_once(&begin)
        .expect("a section of the program");
    let end = rest.find("\n##").unwrap_or(rest.len());
    let rows = rows(page);
    if env::var_os("UPDATE_REFERENCE").is_some() {
        let updated = format!("{before}{begin}{rows}{}", &rest[end..]);
        fs::write(&file, updated).expect("the reference can be written");
    } else {
        assert_eq!(
            rest[..end],
            rows,
            "`UPDATE_REFERENCE=1 cargo test` writes the page"
        );
    }
}

/// Returns a row for each metric of a page.
fn rows(page: &str) -> String {
    let lines: Vec<&str> = page.lines().collect();
    let heads = lines.windows(3).filter_map(|lines| {
        let (name, help) = lines[0].strip_prefix("# HELP ")?.split_once(' ')?;
        let kind = lines[1].rsplit(' ').next()?;
        let sample = lines[2];
        assert!(sample.starts_with(name), "{name} has no sample: {page}");
        Some((name, kind, help, sample))
    });
    let rows = heads.map(|(name, kind, help, sample)| {
        let suffix = if kind == "counter" { "_total" } else { "" };
        let labels = sample.split(['{', ',']).skip(1);
        let labels = labels.filter_map(|label| Some(format!("`{}`", label.split_once('=')?.0)));
        let labels: Vec<String> = labels.collect();
        format!(
            "| `{name}{suffix}` | {kind} | {} | {help} |\n",
            labels.join(", ")
        )
    });
    rows.collect()
}
