//! VMAF, the video quality metric of Netflix, as the program `ffmpeg` computes it with libvmaf.

use crate::summary::{Metrics, deviation, mean};
use anyhow::{Context, Result, bail, ensure};
use hawser_cloud::Image;
use serde::Deserialize;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// The variable of the environment that names an ffmpeg with libvmaf.
const VARIABLE: &str = "HAWSER_VMAF";

/// A program `ffmpeg` with libvmaf.
#[derive(Debug, Clone)]
pub struct Vmaf {
    ffmpeg: OsString,
}

impl Vmaf {
    /// Returns the program that `$HAWSER_VMAF` names, or else the `ffmpeg` in `PATH`.
    ///
    /// # Errors
    /// If it does not run, or has no libvmaf.
    pub fn find() -> Result<Self> {
        let named = env::var_os(VARIABLE);
        let ffmpeg = named.clone().unwrap_or_else(|| "ffmpeg".into());
        let output = Command::new(&ffmpeg)
            .args(["-hide_banner", "-v", "error", "-h", "filter=libvmaf"])
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", ffmpeg.display()))?;
        if String::from_utf8_lossy(&output.stdout).contains("log_path") {
            return Ok(Vmaf { ffmpeg });
        }
        match named {
            Some(_) => bail!("{VARIABLE}: {} has no libvmaf", ffmpeg.display()),
            None => bail!(
                "VMAF: the installed ffmpeg has no libvmaf; `make codecs` installs one that has, \
                 or set {VARIABLE} to such a program"
            ),
        }
    }

    /// Starts to compare pictures of a size with their references. libvmaf writes its figures to
    /// the file `log` (JSON).
    ///
    /// # Errors
    /// If the file cannot be written, or the program not be started.
    pub fn compare(&self, (width, height): (usize, usize), log: &Path) -> Result<Comparison> {
        ensure!(
            width.is_multiple_of(2) && height.is_multiple_of(2),
            "VMAF: a picture of {width} x {height} pixels: the sides must be even"
        );
        let log = std::path::absolute(log)?;
        let folder = log.parent().context("no folder for the log of VMAF")?;
        let complaints = log.with_extension("txt");
        let stderr = File::create(&complaints)
            .with_context(|| format!("cannot write {}", complaints.display()))?;
        let name = log.file_name().context("no name for the log of VMAF")?;
        // One picture has the reference above the other one.
        let filter = format!(
            "split[a][b];[a]crop={width}:{height}:0:0,format=yuv420p[reference];\
             [b]crop={width}:{height}:0:{height},format=yuv420p[shown];\
             [shown][reference]libvmaf=log_fmt=json:n_threads=2:log_path={}",
            name.display()
        );
        let mut ffmpeg = Command::new(&self.ffmpeg)
            .args(["-nostdin", "-v", "error", "-f", "rawvideo"])
            .args(["-pix_fmt", "rgb24", "-s"])
            .arg(format!("{width}x{}", 2 * height))
            .args(["-i", "-", "-lavfi", &filter, "-f", "null", "-"])
            // A filter's option has no room for the special characters of a path.
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(stderr)
            // An interrupt from the terminal ends the lab, which then ends the comparison.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.ffmpeg.display()))?;
        let pictures = ffmpeg.stdin.take();
        Ok(Comparison {
            size: (width, height),
            ffmpeg,
            pictures,
            log,
            complaints,
        })
    }
}

/// Pictures that are being compared with their references.
pub struct Comparison {
    size: (usize, usize),
    ffmpeg: Child,
    /// `None` when no more follow.
    pictures: Option<ChildStdin>,
    log: PathBuf,
    complaints: PathBuf,
}

impl Comparison {
    /// Compares one more picture. Waits while ffmpeg is busy with earlier ones.
    ///
    /// # Errors
    /// If a picture has another size, or ffmpeg has failed.
    pub fn write(&mut self, reference: &Image, shown: &Image) -> Result<()> {
        for image in [reference, shown] {
            let size = (image.width(), image.height());
            ensure!(
                size == self.size,
                "VMAF: a picture of {size:?} pixels, not {:?}",
                self.size
            );
        }
        let pictures = self.pictures.as_mut().context("ffmpeg has exited")?;
        let written = pictures.write_all(reference.rgb());
        let written = written.and_then(|()| pictures.write_all(shown.rgb()));
        written.or_else(|error| {
            // The reason that ffmpeg gives says more than the closed pipe.
            self.end()?;
            Err(error).context("cannot give pictures to ffmpeg")
        })
    }

    /// Returns the score of each picture, 0 to 100.
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub fn finish(mut self) -> Result<Vec<f64>> {
        self.end()?;
        let log = std::fs::read_to_string(&self.log)
            .with_context(|| format!("cannot read {}", self.log.display()))?;
        scores(&log).with_context(|| format!("{} has no scores", self.log.display()))
    }

    fn end(&mut self) -> Result<()> {
        drop(self.pictures.take());
        let status = self.ffmpeg.wait().context("cannot wait for ffmpeg")?;
        if status.success() {
            return Ok(());
        }
        let mut complaint = String::new();
        let file = File::open(&self.complaints).map(|file| file.take(2000));
        // Without the text, the status is the reason.
        let _ = file.and_then(|mut file| file.read_to_string(&mut complaint));
        bail!("ffmpeg failed to compare pictures ({status}): {complaint}");
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        drop(self.pictures.take());
        let _ = self.ffmpeg.wait();
    }
}

/// Sets the figures of the scores of runs: the mean and the deviation within a run, each as the mean over
/// the runs; the lowest and the highest of all; and the deviation of the means where there are several
/// runs. Sets none if no picture was scored.
pub(crate) fn describe(runs: &[&[f64]], metrics: &mut Metrics) {
    let all = || runs.iter().copied().flatten().copied();
    if all().next().is_none() {
        return;
    }
    let means: Vec<f64> = runs.iter().map(|run| mean(run.iter().copied())).collect();
    metrics.set("vmaf_mean_score", mean(means.iter().copied()));
    if runs.len() > 1 {
        metrics.set("vmaf_between_runs_stddev_score", deviation(&means));
    }
    let within = runs.iter().map(|run| deviation(run));
    metrics.set("vmaf_within_run_stddev_score", mean(within));
    metrics.set("vmaf_min_score", all().fold(f64::NAN, f64::min));
    metrics.set("vmaf_max_score", all().fold(f64::NAN, f64::max));
}

/// Parses the log of libvmaf.
fn scores(log: &str) -> Result<Vec<f64>> {
    #[derive(Deserialize)]
    struct Log {
        frames: Vec<Frame>,
    }
    #[derive(Deserialize)]
    struct Frame {
        metrics: Metrics,
    }
    #[derive(Deserialize)]
    struct Metrics {
        vmaf: f64,
    }
    let log: Log = serde_json::from_str(log)?;
    let scores = log.frames.into_iter().map(|frame| frame.metrics.vmaf);
    Ok(scores.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::{Cloud, Intrinsics, Pose, Renderer};
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    /// A program in the place of ffmpeg.
    fn program(folder: &Path, script: &str) -> Vmaf {
        let path = folder.join("ffmpeg");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Vmaf {
            ffmpeg: path.into(),
        }
    }

    fn picture(background: [u8; 3]) -> Image {
        let renderer = Renderer::new(Intrinsics::centred(4, 2, 1.0)).unwrap();
        let mut renderer = renderer.with_background(background);
        renderer.render(&Cloud::new(), &Pose::looking([0.0; 3], 0.0, 0.0))
    }

    #[test]
    fn each_reference_is_above_what_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("vmaf.json");
        let script =
            r#"cat >pictures; echo '{"frames": [{"metrics": {"vmaf": 12.5}}]}' >vmaf.json"#;
        let mut comparison = program(folder.path(), script)
            .compare((4, 2), &log)
            .unwrap();
        comparison
            .write(&picture([1; 3]), &picture([2; 3]))
            .unwrap();
        assert_eq!(comparison.finish().unwrap(), [12.5]);
        let pictures = fs::read(folder.path().join("pictures")).unwrap();
        assert_eq!(pictures, [[1; 24], [2; 24]].concat());
    }

    #[test]
    fn the_reason_of_a_failure_is_that_of_ffmpeg() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("vmaf.json");
        let vmaf = program(folder.path(), "cat >/dev/null; echo no model >&2; exit 3");
        let comparison = vmaf.compare((4, 2), &log).unwrap();
        let error = comparison.finish().unwrap_err().to_string();
        assert!(error.contains("no model"), "{error}");
        assert!(vmaf.compare((3, 2), &log).is_err());
        let mut comparison = vmaf.compare((8, 2), &log).unwrap();
        assert!(
            comparison
                .write(&picture([1; 3]), &picture([2; 3]))
                .is_err()
        );
    }

    #[test]
    fn figures_are_over_runs() {
        let mut metrics = Metrics::default();
        describe(&[&[], &[]], &mut metrics);
        assert_eq!(metrics, Metrics::default());
        describe(&[&[80.0, 90.0], &[95.0, 95.0]], &mut metrics);
        let expected = [
            ("vmaf_mean_score", 90.0),
            ("vmaf_between_runs_stddev_score", 5.0),
            ("vmaf_within_run_stddev_score", 2.5),
            ("vmaf_min_score", 80.0),
            ("vmaf_max_score", 95.0),
        ];
        assert_eq!(metrics, Metrics::from(expected));
    }

    #[test]
    fn the_log_of_libvmaf_has_a_score_for_each_picture() {
        let log = r#"{"version": "3.0.0", "fps": 41.5, "frames": [
            {"frameNum": 0, "metrics": {"integer_motion": 0.0, "vmaf": 97.4}},
            {"frameNum": 1, "metrics": {"integer_motion": 1.5, "vmaf": 45.0}}],
            "pooled_metrics": {}}"#;
        assert_eq!(scores(log).unwrap(), [97.4, 45.0]);
        assert!(scores("{}").is_err());
    }
}
