//! The comparison of relays in short: `hawser lab run relay`.

use crate::support;

use hawser_lab::summary::Case;
use std::sync::{Mutex, PoisonError};

/// Held by the run that has the machine.
static MACHINE: Mutex<()> = Mutex::new(());

fn run(cases: &str) -> Vec<Case> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let mut lab = support::lab();
    lab.args(["run", "relay", "--case", cases, "--seconds", "2"]);
    let (summary, output) = support::run(&mut lab, folder.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(summary.invalid_because, [""; 0], "{errors}");
    summary.cases
}

fn metric(case: &Case, name: &str) -> f64 {
    let figure = case.metrics.get(name);
    figure.unwrap_or_else(|| panic!("{name}: {case:?}"))
}

#[test]
fn every_way_to_relay_delivers_all_packets() {
    let cases = run("kernel/10/4,gso/10/4,sendmmsg/10/4,rewrite/10/4");
    let names = cases.iter().map(|case| case.name.as_str());
    let names: Vec<&str> = names.collect();
    let all = ["kernel/10/4", "gso/10/4", "sendmmsg/10/4", "rewrite/10/4"];
    assert_eq!(names, all);
    for case in &cases {
        assert!(metric(case, "added_delay_p50_us") > 0.0, "{case:?}");
        let syscalls = metric(case, "syscalls_per_delivered_packets");
        let is_in_kernel = ["kernel", "rewrite"]
            .iter()
            .any(|way| case.name.starts_with(way));
        assert_eq!(syscalls == 0.0, is_in_kernel, "{case:?}");
    }
}

#[test]
fn viewers_see_the_stream_through_one_relay_and_through_three() {
    for case in run("chain/*") {
        assert!(metric(&case, "frames_ratio") > 0.9, "{case:?}");
    }
}

#[test]
fn priorities_keep_frames_decodable_behind_a_bottleneck() {
    let cases = run("bottleneck");
    let [case] = &cases[..] else {
        panic!("{cases:?}");
    };
    assert!(metric(case, "decodable_frames_ratio") > 0.9, "{case:?}");
    assert!(
        metric(case, "random_decodable_frames_ratio") < 0.7,
        "{case:?}"
    );
}
