//! A short run of the tunnel's faults: `hawser lab run tunnel-faults` with every fault of every
//! uplink for a fraction of a second.

use crate::support;

const FAULTS: [&str; 6] = [
    "link-down",
    "silent",
    "readdressed",
    "rebound",
    "throttled",
    "lossy",
];

#[test]
fn every_uplink_may_fail_in_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = support::lab();
    lab.args(["run", "tunnel-faults", "--case", "uplinks*"])
        .args(["--seconds", "10", "--attempts", "1"]);
    let (summary, _) = support::run(&mut lab, folder.path());

    let names: Vec<&str> = summary.cases.iter().map(|case| &case.name[..]).collect();
    let expected: Vec<String> = FAULTS
        .iter()
        .map(|fault| format!("uplinks/{fault}"))
        .collect();
    assert_eq!(names[0], "uplinks");
    assert_eq!(names[1..], expected);
    for case in &summary.cases {
        let metric = |name| {
            case.metrics
                .get(name)
                .unwrap_or_else(|| panic!("{name}: {case:?}"))
        };
        let faults = if case.name == "uplinks" { 24 } else { 4 };
        assert_eq!(case.params["faults"], faults, "{}", case.name);
        for lost in [
            "sessions_lost_ratio",
            "addresses_lost_ratio",
            "ssh_lost_ratio",
        ] {
            assert_eq!(metric(lost), 0.0, "{} {case:?}", case.name);
        }
        // SSH retransmits lost packets; pings do not.
        assert_eq!(metric("ssh_echo_unanswered_ratio"), 0.0, "{case:?}");
        assert!(metric("ping_unanswered_ratio") < 0.5, "{case:?}");
        assert!(metric("fps_mean") > 0.0, "{case:?}");
    }
}
