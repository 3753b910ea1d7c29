//! A short run of the tunnel's fairness: `hawser lab run tunnel-flows` with the traffic that harms
//! a video most.

use hawser_lab::summary::{Case, Summary};
use std::process::Command;

/// Minimum frame rate of an unharmed video of 30 frames per second.
const FPS_MIN: f64 = 29.0;

/// Minimum share of the capacity left by the video that the other flows must get. The machine of a
/// test is busier than that of a measurement.
const OTHERS_MIN: f64 = 0.7;

/// Maximum number of runs while the machine is too slow.
const ATTEMPTS: u32 = 3;

fn run(case: &str) -> (Case, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args([
            "lab",
            "run",
            "tunnel-flows",
            "--case",
            case,
            "--seconds",
            "10",
            "--attempts",
            "1",
            "--out",
        ])
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let mut summary = Summary::read(folder.path()).unwrap_or_else(|_| panic!("{errors}"));
    assert_eq!(summary.cases.len(), 1, "{errors}");
    (summary.cases.remove(0), summary.invalid_because)
}

/// Runs a case until the video is unharmed.
///
/// # Panics
/// If the video is harmed in a valid run or in all [`ATTEMPTS`].
fn assert_unharmed(case: &str) {
    for attempt in 1..=ATTEMPTS {
        let (measured, invalid_because) = run(case);
        let metric = |name| {
            measured
                .metrics
                .get(name)
                .unwrap_or_else(|| panic!("{name}: {measured:?}"))
        };
        let is_unharmed = metric("fps_mean") >= FPS_MIN
            && metric("frame_delay_p95_ms") < 100.0
            && metric("other_of_what_the_video_leaves_ratio") >= OTHERS_MIN;
        if is_unharmed {
            return;
        }
        let goes_on = attempt < ATTEMPTS && !invalid_because.is_empty();
        assert!(goes_on, "{measured:?} {invalid_because:?}");
        eprintln!("attempt {attempt}: {measured:?} {invalid_because:?}");
    }
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
fn a_video_keeps_its_frames_beside_a_sender_that_does_not_slow_down() {
    assert_unharmed("udp-30");
}
