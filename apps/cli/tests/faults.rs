//! The fault matrix in short: `hawser lab run faults` with two thousand packets of every kind.

use hawser_lab::summary::Summary;
use std::process::Command;

/// Runs the scenarios that match and returns what they measured, valid or not: an emulator that was late changes delays,
/// not what arrives.
fn run(scenarios: &str) -> Summary {
    let folder = tempfile::tempdir().unwrap();
    let pattern = scenarios.split(',').map(|name| format!("{name}/*")).collect::<Vec<_>>().join(",");
    let output = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(["lab", "run", "faults", "--seconds", "1", "--attempts", "1", "--case", &pattern, "--out"])
        .arg(folder.path())
        .output()
        .unwrap();
    Summary::read(folder.path()).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// No packet missing, nothing corrupt, and at most 0.1 % of duplicates, which of so few packets is two.
fn assert_complete(scenarios: &str) {
    let summary = run(scenarios);
    for case in &summary.cases {
        let metric = |name| case.metrics.get(name).unwrap();
        let (missing, corrupt) = (metric("missing_packets"), metric("corrupt_packets"));
        assert_eq!((missing, corrupt), (0.0, 0.0), "{} {:?} {:?}", case.name, case, summary.invalid_because);
        assert!(metric("duplicates_ratio") <= 0.001, "{} {case:?}", case.name);
    }
}

#[test]
fn nothing_is_missing_beside_a_cut_path() {
    assert_complete("cut,flapping");
}

#[test]
fn nothing_is_missing_beside_a_lossy_path() {
    assert_complete("lossy-20,lossy-80,ipv6-lossy-20");
}

#[test]
fn nothing_is_missing_beside_a_path_that_reorders_or_is_late() {
    assert_complete("reordering-20,late-450ms");
}

#[test]
fn nothing_is_missing_when_the_good_copies_come_late() {
    assert_complete("skew-1ms,skew-10ms,skew-50ms,skew-450ms");
}

#[test]
fn nothing_is_missing_of_what_an_edge_itself_sends() {
    assert_complete("local-clean,local-cut,local-lossy-20,local-ipv6-lossy-20");
}

#[test]
fn transparent_copies_of_what_has_an_id_are_complete_beside_encapsulated_ones() {
    let summary = run("transparent-lossy-20,local-transparent-lossy-20");
    for case in summary.cases.iter().filter(|case| !case.name.ends_with("/udp-df-ipv4")) {
        // A packet in 65,536, or a train of eight, has ID 0 and takes the lossy path alone.
        assert!(case.metrics.get("missing_packets").unwrap() <= 8.0, "{case:?}");
        assert!(case.metrics.get("duplicates_ratio").unwrap() <= 0.001, "{case:?}");
    }
}

#[test]
fn a_path_that_corrupts_packets_takes_none_away_where_tags_cover_the_whole() {
    assert_complete("corrupting-20,local-corrupting-20");
}
