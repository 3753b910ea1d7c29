//! For any bytes, the files of an earlier agent are read without a panic, and what is accepted is
//! written as it was read.

#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use crate::persisted::PersistedAssignment;
use crate::status::Status;
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs;

const ASSIGNMENT: &str = r#"{"revision":7,"report_every_ms":1000,"reconnect_within_ms":0,"keys":{},"discovery":{},"signal_key":"00ff","sends":[
    {"flow":"f1","number":3,"peer":"edge-2","select":{"destination":"203.0.113.0/24"},"policy":
    {"flow":"f1","epoch":9,"code":3,"probes":4,"probe_every":32,"reason":"judged",
    "decided_unix_ms":1700000000000}}],"receives":[]}"#;

/// Reads a file that an agent finds at its start; returns whether it has an assignment.
fn check(text: &[u8]) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let mut persisted = PersistedAssignment::at(directory.path());
    fs::write(directory.path().join("assignment.json"), text).unwrap();
    let _ = Status::read(&directory.path().join("assignment.json"));
    let Some(assignment) = persisted.read() else {
        return false;
    };
    persisted.write(&assignment);
    assert_eq!(persisted.read(), Some(assignment));
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_bytes_are_no_assignment_or_one(bytes in vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn a_changed_file_is_no_assignment_or_one(changes in changes()) {
        check(&changed(ASSIGNMENT.as_bytes(), &changes));
    }
}

#[test]
fn the_unchanged_file_is_an_assignment() {
    assert!(check(ASSIGNMENT.as_bytes()));
}
