//! A short live run: `hawser lab run cellfusion-live` with seconds of a generated drive and a test
//! picture.

use crate::support;

use hawser_lab::emulator::EmulatorReport;
use hawser_lab::summary::Summary;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Number of frames from one key frame to the next.
const GROUP: usize = 30;

struct Outcome {
    summary: Summary,
    passed: bool,
    folder: TempDir,
}

/// Runs a case without recordings. The programs in `tools` take precedence over others of the same
/// name.
fn run(case: &str, seconds: &str, tools: &Path) -> Outcome {
    let (folder, no_recordings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut lab = support::lab();
    lab.args([
        "run",
        "cellfusion-live",
        "--strict",
        "--attempts",
        "1",
        "--case",
        case,
    ])
    .args(["--seconds", seconds])
    .env("HAWSER_DATA", no_recordings.path())
    .env(
        "PATH",
        format!("{}:{}", tools.display(), std::env::var("PATH").unwrap()),
    );
    let (summary, output) = support::run(&mut lab, folder.path());
    Outcome {
        summary,
        passed: output.status.success(),
        folder,
    }
}

/// The columns of a row of `frames.csv` that the tests use.
struct Frame {
    complete_s: Option<f64>,
    picture_s: Option<f64>,
    ssim: Option<f64>,
}

impl Outcome {
    fn metric(&self, case: &str, name: &str) -> f64 {
        let metrics = &self
            .summary
            .case(case)
            .unwrap_or_else(|| panic!("{:?}", self.summary))
            .metrics;
        metrics
            .get(name)
            .unwrap_or_else(|| panic!("{name}: {metrics:?}"))
    }

    fn raw(&self, case: &str, file: &str) -> String {
        fs::read_to_string(
            self.folder
                .path()
                .join("raw")
                .join(case.replace('/', "-"))
                .join(file),
        )
        .unwrap()
    }

    fn frames(&self, case: &str) -> Vec<Frame> {
        let text = self.raw(case, "frames.csv");
        let mut lines = text.lines();
        assert_eq!(
            lines.next(),
            Some("captured_s,bytes,complete_s,shown_s,picture_s,ssim")
        );
        let frame = |line: &str| {
            let figures: Vec<Option<f64>> =
                line.split(',').map(|figure| figure.parse().ok()).collect();
            Frame {
                complete_s: figures[2],
                picture_s: figures[4],
                ssim: figures[5],
            }
        };
        lines.map(frame).collect()
    }

    /// Asserts what must hold under any network conditions and on a slow machine.
    fn assert_sound(&self, case: &str) {
        let scheme = case.split('/').next().unwrap();
        let names: Vec<&str> = self
            .summary
            .cases
            .iter()
            .map(|case| &case.name[..])
            .collect();
        assert_eq!(names, [scheme, case], "{:?}", self.summary.invalid_because);
        assert_eq!(
            self.summary.case(case).unwrap().params["video"],
            "test picture"
        );
        assert_eq!(self.metric(case, "altered_packets"), 0.0);
        assert!(self.metric(case, "fps_mean") > 0.0);

        let frames = self.frames(case);
        let mut undamaged = 0;
        for group in frames.chunks(GROUP) {
            let is_whole = |frame: &&Frame| {
                frame
                    .complete_s
                    .zip(frame.picture_s)
                    .is_some_and(|(complete, picture)| complete <= picture)
            };
            // The frames that they refer to are complete too.
            for frame in group.iter().take_while(is_whole) {
                assert_eq!(
                    frame.ssim,
                    Some(1.0),
                    "{case}: frame {undamaged} of the undamaged ones"
                );
                undamaged += 1;
            }
        }
        assert!(undamaged > 0);
        assert!(
            frames
                .iter()
                .filter_map(|frame| frame.ssim)
                .all(|ssim| ssim <= 1.0)
        );

        // Errors of the measurement are reported, and fail a strict run.
        let emulation: EmulatorReport =
            serde_json::from_str(&self.raw(case, "emulator.json")).unwrap();
        for reason in emulation.health.invalid_because() {
            assert!(
                self.summary
                    .invalid_because
                    .contains(&format!("{case}: {reason}")),
                "{reason}"
            );
        }
        assert_eq!(self.passed, self.summary.valid);
    }
}

#[test]
fn a_video_passes_the_tunnel() {
    let case = "xnc/drawn-000";

    let outcome = run(case, "2", Path::new("/nonexistent"));

    outcome.assert_sound(case);
    // Its four links together carry four times as much.
    assert!(
        outcome.metric(case, "lost_packets_ratio") < 0.1,
        "{:?}",
        outcome.summary
    );
    assert!(
        outcome.metric(case, "redundancy_ratio") < 0.5,
        "{:?}",
        outcome.summary
    );
    assert_eq!(
        outcome.metric("xnc", "fps_mean"),
        outcome.metric(case, "fps_mean")
    );
    let page = fs::read_to_string(outcome.folder.path().join("report.html")).unwrap();
    assert!(page.contains("drawn-000"));
}

#[test]
fn a_camera_that_ends_early_makes_a_run_invalid() {
    let case = "single/drawn-000";
    let tools = tempfile::tempdir().unwrap();
    let ffmpeg = tools.path().join("ffmpeg");
    let script = "#!/bin/sh
        PATH=${PATH#*:}
        case \"$*\" in
        *rtp://*) timeout --signal INT 3 ffmpeg \"$@\" || exit 0 ;;
        *) exec ffmpeg \"$@\" ;;
        esac";
    fs::write(&ffmpeg, script).unwrap();
    fs::set_permissions(&ffmpeg, fs::Permissions::from_mode(0o755)).unwrap();

    let outcome = run(case, "2", tools.path());

    outcome.assert_sound(case);
    let reasons = &outcome.summary.invalid_because;
    let says_so = |reason: &String| reason.starts_with(&format!("{case}: the camera sent "));
    assert!(
        !outcome.passed && reasons.iter().any(says_so),
        "{reasons:?}"
    );
}
