//! The tables of results in the documentation are those of the stored runs.

use hawser_lab::results::{self, Runs};
use std::path::Path;

#[test]
fn the_tables_of_results_are_up_to_date() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let page = std::fs::read_to_string(docs.join("cellfusion.md")).unwrap();
    assert!(page.contains("<!-- results: "), "the page has such a table");
    let changed = results::update_folder(&docs, Runs::new(), false).unwrap();
    assert!(
        changed.is_empty(),
        "run `hawser lab tables`, which updates {}",
        changed.join(", ")
    );
}
