//! The tunnel's fairness in short: `hawser lab run tunnel-flows` beside the traffic that harms a video most.

use crate::support;

use hawser_lab::summary::Case;

/// Frames a second that a viewer takes for an unharmed video of 30.
const FPS_MIN: f64 = 29.0;

/// The share of what the video leaves; the machine of a test is busier than that of a measurement.
const OTHERS_MIN: f64 = 0.7;

fn run(case: &str) -> (Case, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let mut lab = support::lab();
    lab.args(["run", "tunnel-flows", "--case", case, "--attempts", "1"])
        .args(["--seconds", "5"]);
    let (mut summary, output) = support::run(&mut lab, folder.path());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(summary.cases.len(), 1, "{errors}");
    (summary.cases.remove(0), summary.invalid_because)
}

/// Runs a case. A run in which the machine was too slow says nothing but that the video arrives.
///
/// # Panics
/// When the video is harmed in a valid run, or does not arrive.
fn assert_unharmed(case: &str) {
    let (measured, invalid_because) = run(case);
    let metric = |name| {
        measured
            .metrics
            .get(name)
            .unwrap_or_else(|| panic!("{name}: {measured:?}"))
    };
    assert!(metric("fps_mean") > 0.0, "{measured:?}");
    let is_unharmed = metric("fps_mean") >= FPS_MIN
        && metric("frame_delay_p95_ms") < 100.0
        && metric("other_of_what_the_video_leaves_ratio") >= OTHERS_MIN;
    assert!(
        is_unharmed || !invalid_because.is_empty(),
        "{measured:?} {invalid_because:?}"
    );
}

#[test]
fn a_video_keeps_its_frames_beside_eight_uploads() {
    assert_unharmed("cubic-8");
}

#[test]
fn a_video_keeps_its_frames_beside_eight_downloads() {
    assert_unharmed("cubic-8/down");
}

#[test]
fn a_video_keeps_its_frames_beside_a_greedy_sender() {
    assert_unharmed("udp-30");
}
