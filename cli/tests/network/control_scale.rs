//! Controllers with many nodes in short: `hawser lab run control` with 200 nodes and 2,000 flows.

use crate::support;

use hawser_lab::summary::Case;

fn run(case: &str, seconds: &str) -> Case {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = support::lab();
    lab.args(["run", "control", "--case", case, "--attempts", "1"])
        .args(["--seconds", seconds]);
    let (mut summary, output) = support::run(&mut lab, folder.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(summary.cases.len(), 1, "{errors}");
    summary.cases.remove(0)
}

fn metric(case: &Case, name: &str) -> f64 {
    let value = case.metrics.get(name);
    value.unwrap_or_else(|| panic!("{name}: {case:?}"))
}

fn loses_no_change(case: &Case) {
    for metric_name in ["changes_not_accepted", "changes_lost"] {
        assert_eq!(metric(case, metric_name), 0.0, "{metric_name}: {case:?}");
    }
}

#[test]
fn every_change_reaches_its_nodes_from_each_store() {
    for store in ["embedded", "etcd"] {
        // Nodes report every 5 s.
        let case = run(&format!("{store}/agents-200"), "6");
        loses_no_change(&case);
        assert_eq!(metric(&case, "errors_ratio"), 0.0, "{case:?}");
        assert!(metric(&case, "heartbeat_p50_ms") > 0.0, "{case:?}");
        let has_database = case.metrics.get("etcd_database_bytes").is_some();
        assert_eq!(has_database, store == "etcd");
    }
}

#[test]
fn a_killed_leader_loses_no_policy_within_the_lease() {
    let case = run("etcd/killed-leader-200", "6");
    loses_no_change(&case);
    let disconnected = metric(&case, "nodes_disconnected");
    assert!(disconnected > 0.0, "{case:?}");
    assert_eq!(metric(&case, "nodes_reconnected"), disconnected, "{case:?}");
    assert_eq!(metric(&case, "nodes_lost"), 0.0, "{case:?}");
    assert!(metric(&case, "election_ms") > 0.0, "{case:?}");
}
