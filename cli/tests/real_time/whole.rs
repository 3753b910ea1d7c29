//! All parts at once in short: `hawser lab run whole`. Whatever the machine has time for, viewers get frames.

use crate::support;

#[test]
fn a_stream_reaches_viewers_through_all_parts() {
    let (folder, no_recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut lab = support::lab();
    lab.args([
        "run",
        "whole",
        "--case",
        "outage/replicate",
        "--attempts",
        "1",
    ])
    .args(["--seconds", "4"])
    .env("HAWSER_DATA", no_recordings.path());

    let (summary, output) = support::run(&mut lab, folder.path());

    let errors = String::from_utf8_lossy(&output.stderr);
    let case = summary.case("outage/replicate");
    let metrics = &case.unwrap_or_else(|| panic!("{errors}")).metrics;
    for viewer in ["", "crowd_", "second_relay_"] {
        let fps = metrics.get(&format!("{viewer}fps_mean"));
        assert!(fps.is_some_and(|fps| fps > 0.0), "{viewer} {metrics:?}");
    }
    let cost = metrics.get("bandwidth_cost_ratio");
    assert!(cost.is_some_and(|cost| cost > 3.0), "{metrics:?}");
    assert_eq!(metrics.get("paths_mean"), Some(4.0));
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("Outages"));
}
